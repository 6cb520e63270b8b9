//! Deliveries: envelope, `JsonData`, signature.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use simulator::{catalog::Resource, control::records, settings::Settings};

use super::{CUSTOMERS, SECRET, Stage, id};
use crate::product::simulator::{
    RESOURCES,
    reads::resource,
    receiver::{Received, Receiver, is_guid, signature},
};

crate::tests! {
    plain an_acknowledge_has_the_documented_envelope;
    plain a_change_has_the_documented_envelope;
    plain each_kind_of_event_says_so_in_its_event_type;
    plain an_event_of_no_company_has_no_partition_client_id;
    plain one_change_is_one_conversation_of_many_deliveries;
    plain every_delivery_is_signed_over_its_bytes_whatever_the_secret;
    plain the_signature_written_here_is_the_one_others_compute;
}

/// Noon of 15 November 2026 in 100 ns since the year 1.
const NOON: i64 = 639_303_408_000_000_000;
const MEMBERS: &str = "WebhookId OutgoingId ConversationId TenantId ExtraPartitionInformation EventType Timestamp \
                       JsonData UserIdentifier";

async fn an_acknowledge_has_the_documented_envelope() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;

    let id = stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;
    let received = receiver.next().await;

    let envelope = common(&stage, &received, &id).await;
    assert_eq!(envelope["ExtraPartitionInformation"], json!({}));
    assert_eq!(envelope["EventType"], descriptor("Acknowledge"));
    assert_eq!(envelope["Timestamp"], NOON);
    assert_eq!(received.data(), json!({ "Arguments": "Acknowledge" }));
}

async fn a_change_has_the_documented_envelope() {
    let (stage, mut receiver, id) = Stage::subscribed().await;

    let truth = stage.happen("customers", "updated");
    let received = receiver.next().await;

    let envelope = common(&stage, &received, &id).await;
    let partition = envelope["ExtraPartitionInformation"].as_object().unwrap();
    assert_eq!(partition["PartitionClientId"].as_str(), truth.company.as_deref());
    assert!(partition["UserName"].as_str().is_some_and(|name| !name.is_empty()), "{envelope}");
    assert_eq!(partition.len(), 2, "{envelope}");
    assert_eq!(envelope["EventType"], descriptor("CustomerUpdated"));
    assert_eq!(envelope["Timestamp"], NOON);
    let data = received.data();
    assert_eq!(data["CorrelationId"], truth.id);
    assert_eq!(data["SequenceVersion"], truth.sequence_version.to_string());
    let version = data["Version"].as_str().unwrap();
    assert!(version.contains("2026") && !version.contains('T'), "not ISO 8601: {version}");
    assert!(is_guid(&data["SvcProcessId"]), "{data}");
    for member in ["SvcSourceInterface", "SvcSourceAction"] {
        assert!(data[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {data}");
    }
    assert_eq!(data.as_object().unwrap().len(), 6, "{data}");
}

async fn each_kind_of_event_says_so_in_its_event_type() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    let customers = stage.active(CUSTOMERS, &mut receiver).await;
    stage.active("/accounting/api/charges", &mut receiver).await;

    for (resource, kind, event) in [
        ("customers", "created", "CustomerCreated"),
        ("customers", "updated", "CustomerUpdated"),
        ("customers", "disabled", "CustomerDisabled"),
        ("customers", "errorOccurred", "ErrorOccurred"),
        ("charges", "created", "ChargeCreated"),
        ("charges", "updated", "ChargeUpdated"),
        ("charges", "deleted", "ChargeDeleted"),
        ("charges", "errorOccurred", "ErrorOccurred"),
    ] {
        let all = || records(stage.provider(), self::resource(resource));
        let before = all();
        let truth = stage.happen(resource, kind);
        let received = receiver.next().await;

        assert_eq!(received.event(), event);
        assert_eq!(received.data()["CorrelationId"], truth.id, "{event}");
        assert_eq!(all() == before, kind == "errorOccurred", "{event}: a failed write changes nothing");
        let partition = &received.json()["ExtraPartitionInformation"];
        assert_eq!(partition["PartitionClientId"].as_str(), truth.company.as_deref(), "{event}");
        if resource == "customers" {
            let envelope = common(&stage, &received, &customers).await;
            assert_eq!(envelope["EventType"], descriptor(event));
        }
    }
}

async fn an_event_of_no_company_has_no_partition_client_id() {
    let mut receiver = Receiver::accepting().await;
    let adjust = |settings: &mut Settings| {
        settings.world.tenant_resources = BTreeSet::from([Resource::Persons]);
    };
    let stage = Stage::with(adjust).await;
    let (name, prefix) = RESOURCES[10];
    stage.active(prefix, &mut receiver).await;

    let truth = stage.happen(name, "updated");
    let received = receiver.next().await;

    assert_eq!((name, truth.company), ("persons", None));
    let partition = received.json()["ExtraPartitionInformation"].clone();
    assert!(partition.get("PartitionClientId").is_none(), "{partition}");
    assert!(partition["UserName"].is_string(), "{partition}");
    let read = stage.client.get(&format!("{prefix}/{}", truth.id)).await.ok();
    assert_eq!(read["sequenceVersion"], received.data()["SequenceVersion"]);
}

async fn one_change_is_one_conversation_of_many_deliveries() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    for _ in 0..2 {
        stage.active(CUSTOMERS, &mut receiver).await;
    }

    for _ in 0..3 {
        stage.happen("customers", "updated");
    }
    let received = receiver.several(6).await;

    let outgoing: BTreeSet<String> =
        received.iter().map(|received| received.json()["OutgoingId"].to_string()).collect();
    let conversations: BTreeSet<(String, String)> = received
        .iter()
        .map(|received| {
            let sequence = received.data()["SequenceVersion"].to_string();
            (sequence, received.json()["ConversationId"].to_string())
        })
        .collect();
    assert_eq!((outgoing.len(), conversations.len()), (6, 3));
}

async fn every_delivery_is_signed_over_its_bytes_whatever_the_secret() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    let long = "x".repeat(64);
    let longer = "ñ".repeat(33);

    for secret in ["s", SECRET, "with \"quotes\" and \\", &long, &longer] {
        let mut body = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;
        body["secret"] = json!(secret);
        let id = id(&stage.post(CUSTOMERS, "subscribe", &body).await.ok());
        let acknowledge = receiver.next().await;
        stage.idle().await;
        stage.happen("customers", "updated");
        let change = receiver.next().await;
        stage.delete(CUSTOMERS, &id).await.ok();

        for received in [acknowledge, change] {
            let expected = signature(secret, &received.body);
            assert_eq!(received.header("svc-webhook-signature"), Some(&*expected), "{secret}");
        }
    }
}

async fn the_signature_written_here_is_the_one_others_compute() {
    let long = "ñ".repeat(33);

    for (secret, body, expected) in [
        // RFC 4231, test case 2.
        (
            "Jefe",
            "what do ya want for nothing?",
            "sha256=5BDCC146BF60754E6A042426089575C75A003F089D2739839DEC58B964EC3843",
        ),
        // Python's hmac, a key longer than a block and text beyond ASCII.
        (&*long, "año", "sha256=211FF5ED5A1BAF2E92C261C296BA20DE76E46FB9209A6DBE35DF11F4A7910DAF"),
    ] {
        assert_eq!(signature(secret, body.as_bytes()), expected);
    }
}

fn descriptor(event: &str) -> Value {
    json!({
        "AppName": "Svc", "Domain": "ACC", "Resource": "Customers", "EventType": event,
        "SemanticName": format!("Svc.ACC.Customers.{event}"),
    })
}

/// Checks what all envelopes of a webhook of customers have in common, and returns the envelope.
async fn common(stage: &Stage, received: &Received, id: &str) -> Value {
    let envelope = received.json();
    let record = stage.record(CUSTOMERS, id).await;
    let members: BTreeSet<&str> = envelope.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, MEMBERS.split(' ').collect());
    assert_eq!(envelope["WebhookId"], id);
    assert_eq!(envelope["TenantId"], record["tenantId"]);
    assert_eq!(envelope["UserIdentifier"], record["userIdentifier"]);
    for member in ["WebhookId", "OutgoingId", "ConversationId", "UserIdentifier"] {
        assert!(is_guid(&envelope[member]), "{member}: {envelope}");
    }
    assert!(envelope["Timestamp"].is_i64() && envelope["Timestamp"].to_string().len() == 18, "{envelope}");
    assert!(envelope["JsonData"].is_string(), "{envelope}");
    assert!(received.header("content-type").is_some_and(|kind| kind.starts_with("application/json")));
    assert_eq!(received.header("svc-webhook-signature"), Some(&*signature(SECRET, &received.body)));
    envelope
}
