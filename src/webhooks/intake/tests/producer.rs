//! Records and dead letters of a delivery, and publish errors.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use serde_json::json;

use kafka::samples;
use model::{EncodedRecord, InvoicingAction, InvoicingEntity, InvoicingHook, TopicPrefix};

use crate::{
    avro, config,
    publish::{DeadLetters, LetterSigner, Preparer},
    webhooks::{
        dead_letter,
        delivery::{ApiFamily, Delivery, DeliveryContext},
        intake::{
            encode::{ReadyTopics, records},
            producer::PublishErrors,
        },
    },
};

/// The encoder has no topics: it refuses every record as one for a foreign topic.
async fn ready() -> ReadyTopics {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = config::RegistrySettings::open("http://127.0.0.1:1".parse().unwrap());
    let ids = avro::Ids::open(avro::Registry::new(&nowhere).unwrap(), directory.path()).await;
    let dead_letters = DeadLetters {
        topic: "acme.dead-letters".into(),
        partitions: 5,
        connector: "hooks".into(),
        task: 0,
        logged: false,
        prefix: TopicPrefix::new("acme").unwrap(),
        signer: LetterSigner::default(),
    };
    let prefix = TopicPrefix::new("acme").unwrap();
    ReadyTopics { preparer: Preparer::new(&prefix, 5, avro::Encoder::new(&ids, &[])), dead_letters }
}

fn delivery(body: impl Into<Bytes>, family: ApiFamily) -> Delivery {
    let context = DeliveryContext {
        connector: "hooks".into(),
        prefix: "acme".into(),
        dead_letter_topic: "acme.dead-letters".into(),
        received_at: 1_700_000_000_000_001,
        traceparent: None,
        content_ids: true,
        family,
    };
    Delivery { context: Arc::new(context), body: body.into() }
}

fn accounting(body: impl Into<Bytes>) -> Delivery {
    delivery(body, ApiFamily::Accounting { resource: None })
}

fn letters_of(ready: &ReadyTopics, delivery: &Delivery) -> Vec<EncodedRecord> {
    let parts = delivery.read().parts;
    parts
        .into_iter()
        .flat_map(|part| {
            records(ready, delivery, part.content).unwrap().into_iter().map(|prepared| prepared.record)
        })
        .collect()
}

fn headers(record: &EncodedRecord) -> Vec<(String, Bytes)> {
    record.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

#[tokio::test]
async fn a_dead_letter_is_read_as_the_same_delivery() {
    let unread = accounting(&b"{not json \xff"[..]);

    let letters = letters_of(&ready().await, &unread);

    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    let headers = headers(letter);
    assert_eq!(letter.value.as_deref(), Some(&b"{not json \xff"[..]));
    assert_eq!((&*letter.topic, &letter.key[..]), ("acme.dead-letters", &b"hooks"[..]));
    assert_eq!(dead_letter::text(&headers, dead_letter::RECEIVED_AT), Some("1700000000000001"));
    assert_eq!(dead_letter::text(&headers, "__connect.errors.stage"), Some("TASK_POLL"));
    let class = dead_letter::text(&headers, "__connect.errors.exception.class.name");
    assert_eq!(class, Some("model::Error::Malformed"));
    assert_eq!(dead_letter::text(&headers, dead_letter::RECORD), None, "it is about the whole delivery");
    let again = dead_letter::delivery(&headers, letter.value.clone().unwrap()).unwrap();
    assert_eq!((again.context, again.body), (unread.context, unread.body));
}

#[tokio::test]
async fn each_record_for_a_foreign_topic_is_a_dead_letter() {
    let hook = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created };
    let family = ApiFamily::Invoicing { hook: Some(hook.into()), tenants: Arc::default() };
    let notification = |tenant: &str| json!({ "Entity": "Customer", "EntityId": "1", "TenantId": tenant });
    let body = json!({ "Id": "x", "Notifications": [notification("7"), notification("8")] }).to_string();

    let letters = letters_of(&ready().await, &delivery(body.clone(), family));

    let reported: BTreeSet<_> = letters
        .iter()
        .map(|letter| dead_letter::text(&headers(letter), dead_letter::RECORD).unwrap().to_owned())
        .collect();
    assert_eq!((letters.len(), reported.len()), (2, 2), "{reported:?}");
    for letter in &letters {
        assert_eq!(letter.value.as_deref(), Some(body.as_bytes()));
        let headers = headers(letter);
        let topic = dead_letter::text(&headers, "__connect.errors.topic");
        assert_eq!(topic, Some("acme.invoicing.customer.events"));
        assert_eq!(dead_letter::text(&headers, "__connect.errors.stage"), Some("VALUE_CONVERTER"));
        let class = dead_letter::text(&headers, "__connect.errors.exception.class.name");
        assert_eq!(class, Some("avro::Error::ForeignTopic"));
    }
}

#[test]
fn a_publish_error_lasts_until_its_topic_takes_a_record() {
    let errors = PublishErrors::default();
    errors.failed("hooks", "one", &samples::unauthorised());
    let first = errors.all();

    errors.failed("hooks", "two", &samples::purged());
    errors.failed("hooks", "one", &samples::purged());
    errors.acknowledged("hooks", "two");
    errors.acknowledged("other", "one");

    let now = errors.all();
    assert_eq!((now.len(), now[0].since), (1, first[0].since));
    assert_ne!(now[0].cause, first[0].cause, "the last cause is shown");
    errors.acknowledged("hooks", "one");
    assert!(errors.all().is_empty());
}
