//! From a delivery to the bytes Kafka gets: its records, or the dead letter that it becomes.
//!
//! A letter has the delivery's bytes and all that reading them again takes; [`letter`] says under which headers. All letters
//! of a connector have one key, hence one partition: pieces stand together, in the order they were cut.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;

use model::{EncodedRecord, Error as ModelError, Outgoing};

use crate::{
    publish::{DeadLetters, Failure, Original, Preparer, PublishStage},
    webhooks::{
        delivery::{Context, Delivery},
        letter::{self, Piece},
    },
};

/// Dead letters that not even their own topic takes whole are cut into pieces of this size: less than any limit in use.
const PIECE: usize = 512 << 10;

/// What it takes to write for a connector.
#[derive(Clone)]
pub struct Ready {
    /// Makes records.
    pub preparer: Preparer,
    /// Makes dead letters.
    pub dead_letters: DeadLetters,
}

/// Who knows which connectors can be written for.
pub trait Openings: Send + Sync {
    /// The means to write for the connector that received this; `None` while its topics or schemas are not there yet, and
    /// while it is paused.
    fn ready(&self, context: &Context) -> Option<Arc<Ready>>;

    /// The topics that this is written to are not there any more: they are to be looked for, or made, again.
    fn doubt(&self, context: &Context);

    /// Returns when that may have changed.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// What goes to Kafka.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) record: EncodedRecord,
    pub(super) kind: Kind,
}

/// What a record counts as once Kafka has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An event.
    Value,
    /// A dead letter, or the first piece of one; for an error of this class.
    Letter(PublishStage, &'static str),
    /// Another piece.
    Piece,
}

/// The records of a part; `None` where something is missing that comes by itself. What the schema refuses becomes a dead letter.
pub(super) fn records(
    ready: &Ready,
    delivery: &Delivery,
    content: Result<Vec<Outgoing>, ModelError>,
) -> Option<Vec<Prepared>> {
    let outgoing = match content {
        Ok(outgoing) => outgoing,
        Err(error) => {
            let failure = Failure::new(PublishStage::Read, error.class(), &error);
            return Some(letters(ready, delivery, None, &failure, 1));
        }
    };
    let mut records = Vec::with_capacity(outgoing.len());
    let mut refused = Vec::new();
    for record in outgoing {
        match ready.preparer.prepare(&record) {
            Ok(record) => records.push(Prepared { record, kind: Kind::Value }),
            Err(error) if error.retry().is_retriable() => return None,
            Err(error) => refused.push((record, Failure::new(PublishStage::Convert, error.class(), &error))),
        }
    }
    if let Some((record, failure)) = refused.first() {
        // Each letter has the whole body: of many, one stands for the delivery.
        let meant = (refused.len() == 1).then_some(record);
        records.extend(letters(ready, delivery, meant, failure, 1));
    }
    Some(records)
}

/// The dead letter of a delivery, in so many pieces. It stands for one record of it where that is known, else for all.
///
/// Logged here, where it is made: one that has to be sent again is logged again. Pieces are not, since what is cut has been
/// tried whole before.
pub(super) fn letters(
    ready: &Ready,
    delivery: &Delivery,
    meant: Option<&Outgoing>,
    failure: &Failure,
    pieces: usize,
) -> Vec<Prepared> {
    let (context, body) = (&delivery.context, &delivery.body);
    let topic = meant.map(|record| ready.preparer.topic_name(record.topic));
    if pieces == 1 {
        ready.dead_letters.log(topic.as_deref(), failure);
    }
    let pieces = pieces.clamp(1, body.len().max(1));
    // Texts and numbers alone, which are always writable.
    let head = Bytes::from(serde_json::to_vec(&*delivery.to_keep()).unwrap_or_default());
    let id = meant.map(|record| &*record.meta.id);
    let of_piece = (pieces > 1).then(|| Piece::headers(&letter::id(&head, id, failure, body), body, pieces));
    let piece = |number: usize| {
        let mut headers = vec![(letter::RECEIVED_AT, Bytes::from(context.received_at.to_string()))];
        if number == 1 {
            // Once: it may be large, with a company for every tenant, and a piece has to stay small.
            headers.push((letter::DELIVERY, head.clone()));
        }
        headers.extend(id.map(|id| (letter::RECORD, Bytes::from(id.to_owned()))));
        headers.extend(of_piece.iter().flat_map(|of_piece| of_piece(number)));
        let edge = |number: usize| body.len() * number / pieces;
        let value = body.slice(edge(number - 1)..edge(number));
        let original =
            Original { key: Bytes::copy_from_slice(context.connector.as_bytes()), value, place: None };
        let record = ready.dead_letters.record(&original, topic.as_deref(), failure, &headers);
        Prepared {
            record,
            kind: if number == 1 { Kind::Letter(failure.stage, failure.class) } else { Kind::Piece },
        }
    };
    (1..=pieces).map(piece).collect()
}

/// Pieces a body is cut into where it is refused whole.
pub(super) fn pieces(body: &[u8]) -> usize {
    body.len().div_ceil(PIECE).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::json;

    use model::{InvoicingAction, InvoicingEntity, InvoicingHook, TopicPrefix};

    use super::*;
    use crate::{
        avro, config,
        publish::LetterSigner,
        webhooks::{delivery::Family, letter::Joining},
    };

    /// The encoder has no topics: it refuses every record as one for a foreign topic.
    async fn ready() -> Ready {
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
        Ready { preparer: Preparer::new(&prefix, 5, avro::Encoder::new(&ids, &[])), dead_letters }
    }

    fn delivery(body: impl Into<Bytes>, family: Family) -> Delivery {
        let context = Context {
            connector: "hooks".into(),
            prefix: "acme".into(),
            dead_letters: "acme.dead-letters".into(),
            received_at: 1_700_000_000_000_001,
            traceparent: None,
            content_ids: true,
            family,
        };
        Delivery { context: Arc::new(context), body: body.into() }
    }

    fn accounting(body: impl Into<Bytes>) -> Delivery {
        delivery(body, Family::Accounting { resource: None })
    }

    fn letters_of(ready: &Ready, delivery: &Delivery) -> Vec<EncodedRecord> {
        let parts = delivery.read().parts;
        parts.into_iter().flat_map(|part| bytes(records(ready, delivery, part.content).unwrap())).collect()
    }

    fn bytes(prepared: Vec<Prepared>) -> Vec<EncodedRecord> {
        prepared.into_iter().map(|prepared| prepared.record).collect()
    }

    fn headers(record: &EncodedRecord) -> Vec<(String, Bytes)> {
        record.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    fn too_large() -> Failure {
        Failure {
            stage: PublishStage::Produce,
            class: "kafka::Error::RecordRefused",
            message: "too large".into(),
            causes: Vec::new(),
        }
    }

    fn joined<'a>(records: impl IntoIterator<Item = &'a EncodedRecord>) -> BTreeMap<String, Bytes> {
        let mut joining: BTreeMap<String, Joining> = BTreeMap::new();
        for record in records {
            let piece = Piece::from_headers(&headers(record)).unwrap().unwrap();
            let (id, number) = (piece.letter.clone(), piece.number);
            let one = joining.entry(id).or_insert_with(|| Joining::new(piece));
            one.add(number, record.value.clone().unwrap());
        }
        joining.into_iter().map(|(id, joining)| (id, joining.join().unwrap())).collect()
    }

    #[tokio::test]
    async fn a_body_that_cannot_be_read_is_a_letter_from_which_the_same_delivery_is_read() {
        let unread = accounting(&b"{not json \xff"[..]);

        let letters = letters_of(&ready().await, &unread);

        let [letter] = letters.as_slice() else { panic!("{letters:?}") };
        let headers = headers(letter);
        assert_eq!(letter.value.as_deref(), Some(&b"{not json \xff"[..]));
        assert_eq!((&*letter.topic, &letter.key[..]), ("acme.dead-letters", &b"hooks"[..]));
        assert_eq!(letter::text(&headers, letter::RECEIVED_AT), Some("1700000000000001"));
        assert_eq!(letter::text(&headers, "__connect.errors.stage"), Some("TASK_POLL"));
        let class = letter::text(&headers, "__connect.errors.exception.class.name");
        assert_eq!(class, Some("model::Error::Malformed"));
        assert_eq!(letter::text(&headers, letter::RECORD), None, "it stands for the whole delivery");
        let again = letter::delivery(&headers, letter.value.clone().unwrap()).unwrap();
        assert_eq!((again.context, again.body), (unread.context, unread.body));
    }

    #[tokio::test]
    async fn each_record_for_a_foreign_topic_is_a_letter_of_its_own() {
        let hook = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created };
        let family = Family::Invoicing { hook: Some(hook.into()), tenants: Arc::default() };
        let notification =
            |tenant: &str| json!({ "Entity": "Customer", "EntityId": "1", "TenantId": tenant });
        let body = json!({ "Id": "x", "Notifications": [notification("7"), notification("8")] }).to_string();

        let letters = letters_of(&ready().await, &delivery(body.clone(), family));

        let told: BTreeSet<_> = letters
            .iter()
            .map(|letter| letter::text(&headers(letter), letter::RECORD).unwrap().to_owned())
            .collect();
        assert_eq!((letters.len(), told.len()), (2, 2), "{told:?}");
        for letter in &letters {
            assert_eq!(letter.value.as_deref(), Some(body.as_bytes()));
            let headers = headers(letter);
            let topic = letter::text(&headers, "__connect.errors.topic");
            assert_eq!(topic, Some("acme.invoicing.customer.events"));
            assert_eq!(letter::text(&headers, "__connect.errors.stage"), Some("VALUE_CONVERTER"));
            let class = letter::text(&headers, "__connect.errors.exception.class.name");
            assert_eq!(class, Some("avro::Error::ForeignTopic"));
        }
    }

    #[tokio::test]
    async fn pieces_of_letters_that_interleave_or_are_written_twice_never_mix() {
        let ready = ready().await;
        let body: Vec<u8> = (0..PIECE * 2 + 77).map(|place| (place % 251) as u8).collect();
        let (first, mut second) = (accounting(body.clone()), accounting(body.clone()));
        Arc::make_mut(&mut second.context).received_at += 1;
        let cut = |delivery: &Delivery| bytes(letters(&ready, delivery, None, &too_large(), pieces(&body)));
        let (one, other, again) = (cut(&first), cut(&second), cut(&first));

        let interleaved = one[..2].iter().chain(&other).chain(&again).chain(&one[2..]);
        let whole = joined(interleaved);

        assert_eq!(one, again, "the same letter has the same pieces");
        assert_eq!(one.len(), 3);
        assert_eq!(whole.len(), 2, "two letters");
        assert!(whole.values().all(|joined| *joined == body));
        let all = || one.iter().chain(&other);
        assert!(all().all(|piece| piece.partition == one[0].partition && piece.key == one[0].key));
        assert!(all().all(|piece| piece.size() < 1 << 20), "no topic takes less than 1 MiB");
        let tell: Vec<_> =
            one.iter().map(|piece| letter::delivery(&headers(piece), Bytes::new()).is_ok()).collect();
        assert_eq!(tell, [true, false, false]);
    }

    #[tokio::test]
    async fn a_body_is_cut_into_no_more_pieces_than_it_has_bytes() {
        let ready = ready().await;
        for (body, expected) in [(&b""[..], 1), (b"x", 1), (b"xy", 2)] {
            let letters = bytes(letters(&ready, &accounting(body), None, &too_large(), 3));

            let whole: Vec<u8> = letters.iter().flat_map(|letter| letter.value.clone().unwrap()).collect();
            assert_eq!((letters.len(), whole.as_slice()), (expected, body));
        }
    }
}
