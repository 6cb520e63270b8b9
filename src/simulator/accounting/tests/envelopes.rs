//! What a receiver gets, member by member and byte by byte.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{act, company_id, entries, json, record, subscribe};
use crate::simulator::{
    catalog::{Kind, Resource},
    clock::midnight,
    deliveries::{
        End,
        rig::{Received, Receiver, Rig, subscription},
    },
    knobs::TimestampEpoch,
    random::Guid,
    settings::Settings,
    world::Change,
};

fn frozen() -> Settings {
    Settings { frozen_at: midnight(2026, 11, 15), ..Settings::default() }
}

/// Subscribes to a resource, lets something happen to its first record, and returns what came for it.
async fn told(rig: &Rig, resource: Resource, kind: Kind) -> Received {
    let receiver = Receiver::always(200).await;
    let path = format!("{}/webhooks/subscribe", resource.prefix());
    assert_eq!(rig.call("POST", &path, &subscription(resource.path(), &receiver.url())).await.0, 200);
    rig.idle().await;
    act(rig, resource, kind);
    rig.idle().await;
    receiver.received().remove(1)
}

/// HMAC as RFC 2104 has it, by hand: this test must not trust the library it checks.
fn hmac(key: &[u8], message: &[u8]) -> String {
    let mut block = [0; 64];
    if key.len() > 64 {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    let outer = Sha256::new().chain_update(block.map(|byte| byte ^ 0x5C)).chain_update(inner).finalize();
    outer.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[tokio::test]
async fn an_acknowledge_has_the_documents_members_and_an_empty_partition() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::with(frozen(), |_| {});

    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;

    let envelope = json(&receiver.received()[0]);
    let user = record(&rig, webhook).await["userIdentifier"].clone();
    let expected = json!({
        "WebhookId": webhook,
        "OutgoingId": entries(&rig)[0].about.outgoing,
        "ConversationId": envelope["ConversationId"],
        "TenantId": "tenant-1",
        "ExtraPartitionInformation": {},
        "EventType": {
            "AppName": "Svc",
            "Domain": "ACC",
            "Resource": "Customers",
            "EventType": "Acknowledge",
            "SemanticName": "Svc.ACC.Customers.Acknowledge",
        },
        "Timestamp": midnight(2026, 11, 15).unwrap().dotnet(),
        "JsonData": r#"{"Arguments":"Acknowledge"}"#,
        "UserIdentifier": user,
    });
    assert_eq!(envelope, expected);
    assert!(Guid::parse(envelope["ConversationId"].as_str().unwrap()).is_some());
}

#[tokio::test]
async fn a_change_has_the_documents_members_and_those_of_its_data() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::with(frozen(), |_| {});
    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;

    let change = act(&rig, Resource::Customers, Kind::Disabled);
    rig.idle().await;

    let came = receiver.received().remove(1);
    let envelope = json(&came);
    let company = company_id(&rig, change.place.company.unwrap());
    let customer = rig.provider.world().id(change.place);
    assert_eq!(came.headers["content-type"], "application/json; charset=utf-8");
    assert_eq!(came.path, "/hook");
    assert_eq!(envelope.as_object().unwrap().len(), 9);
    assert_eq!(envelope["WebhookId"], json!(webhook));
    assert_eq!(envelope["TenantId"], "tenant-1");
    let partition = envelope["ExtraPartitionInformation"].as_object().unwrap();
    assert_eq!(partition.len(), 2);
    assert_eq!(partition["PartitionClientId"], company);
    assert!(partition["UserName"].as_str().is_some_and(|name| !name.is_empty()));
    assert_eq!(envelope["EventType"]["SemanticName"], "Svc.ACC.Customers.CustomerDisabled");
    assert!(envelope["Timestamp"].as_i64().unwrap() >= midnight(2026, 11, 15).unwrap().dotnet());
    assert_eq!(envelope["Timestamp"].to_string().len(), 18);
    let data: Value = serde_json::from_str(envelope["JsonData"].as_str().unwrap()).unwrap();
    let expected = json!({
        "CorrelationId": customer,
        "Version": "11/15/2026 12:00:00 AM",
        "SequenceVersion": change.row.sequence.to_string(),
        "SvcSourceInterface": data["SvcSourceInterface"],
        "SvcProcessId": data["SvcProcessId"],
        "SvcSourceAction": "Disable",
    });
    assert_eq!(data, expected);
    assert!(data["SvcSourceInterface"].is_string());
    assert!(Guid::parse(data["SvcProcessId"].as_str().unwrap()).is_some());
    let about = entries(&rig).remove(1).about;
    assert_eq!((about.company.as_deref(), about.record.as_deref()), (Some(&*company), Some(&*customer)));
    assert_eq!(about.sequence, Some(change.row.sequence));
    assert_eq!(json!(about.outgoing), envelope["OutgoingId"]);
}

#[tokio::test]
async fn a_company_is_its_own_partition_and_a_tenant_resource_has_none() {
    let mut settings = frozen();
    settings.world.tenant_resources = [Resource::Persons].into();
    let rig = Rig::with(settings, |_| {});

    let company = json(&told(&rig, Resource::Companies, Kind::Updated).await);
    let person = json(&told(&rig, Resource::Persons, Kind::Updated).await);
    let estimation = json(&told(&rig, Resource::Estimations, Kind::Deleted).await);

    let data: Value = serde_json::from_str(company["JsonData"].as_str().unwrap()).unwrap();
    assert_eq!(company["ExtraPartitionInformation"]["PartitionClientId"], data["CorrelationId"]);
    assert_eq!(person["ExtraPartitionInformation"].get("PartitionClientId"), None);
    assert_eq!(estimation["ExtraPartitionInformation"]["PartitionClientId"], company_id(&rig, 0));
    assert_eq!(estimation["EventType"]["SemanticName"], "Svc.COR.Estimations.EstimationDeleted");
}

#[tokio::test]
async fn an_error_tells_the_record_and_a_text() {
    let rig = Rig::with(frozen(), |_| {});

    let envelope = json(&told(&rig, Resource::Accounts, Kind::ErrorOccurred).await);

    let data: Value = serde_json::from_str(envelope["JsonData"].as_str().unwrap()).unwrap();
    assert_eq!(envelope["EventType"]["SemanticName"], "Svc.ACC.Accounts.ErrorOccurred");
    assert!(Guid::parse(data["CorrelationId"].as_str().unwrap()).is_some());
    assert!(data["Error"].as_str().is_some_and(|text| !text.is_empty()));
    assert_eq!(data.get("SequenceVersion"), None);
}

#[tokio::test]
async fn every_delivery_is_signed_with_the_secret_over_its_exact_bytes() {
    // The second is longer than a block, so that its hash is the key.
    for secret in ["a secret wíth an accent".to_owned(), "long ".repeat(30)] {
        let receiver = Receiver::always(200).await;
        let rig = Rig::start(|_| {});
        let mut body: Value = serde_json::from_str(&subscription("customers", &receiver.url())).unwrap();
        body["secret"] = json!(secret);

        super::post(&rig, "subscribe", &body.to_string()).await;
        rig.idle().await;
        act(&rig, Resource::Customers, Kind::Updated);
        rig.idle().await;

        let received = receiver.received();
        assert_eq!(received.len(), 2);
        for one in received {
            let expected = format!("sha256={}", hmac(secret.as_bytes(), &one.body));
            assert_eq!(one.headers["svc-webhook-signature"], expected);
        }
    }
}

#[tokio::test]
async fn the_timestamp_counts_from_what_the_knob_says_in_the_zone_it_says() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::with(frozen(), |_| {});
    let midnight = midnight(2026, 11, 15).unwrap();
    let hour = 36_000_000_000;

    for (epoch, minutes) in [
        (TimestampEpoch::DotNet, 0),
        (TimestampEpoch::DotNet, 120),
        (TimestampEpoch::FileTime, -60),
        (TimestampEpoch::DotNet, i64::MAX),
    ] {
        rig.provider.turn(|knobs| {
            knobs.accounting.timestamp = epoch;
            knobs.accounting.timestamp_offset = minutes;
        });
        subscribe(&rig, &receiver).await;
        rig.idle().await;
    }

    let stamps: Vec<i64> =
        receiver.received().iter().map(|one| json(one)["Timestamp"].as_i64().unwrap()).collect();
    let expected = [midnight.dotnet(), midnight.dotnet() + 2 * hour, midnight.filetime() - hour];
    assert_eq!(stamps[..3], expected);
    assert_eq!(stamps[3].to_string().len(), 18);
}

#[tokio::test]
async fn the_same_seed_and_calls_give_the_same_bytes_and_another_seed_others() {
    let run = async |seed| {
        let receiver = Receiver::always(200).await;
        let mut settings = frozen();
        settings.world.seed = seed;
        // The receiver's port is not part of a body, so two runs may differ in it.
        let rig = Rig::with(settings, |knobs| knobs.delivery.concurrency = 1);
        for _ in 0..2 {
            subscribe(&rig, &receiver).await;
        }
        rig.idle().await;
        for _ in 0..50 {
            rig.provider.change(|world, clock| {
                let (place, _) = world.records(Resource::Customers).next().unwrap();
                ((), world.act(place, Kind::Updated, clock).map(Change::Record).into_iter().collect())
            });
        }
        rig.idle().await;
        let mut texts = receiver.texts();
        texts.sort_unstable();
        let hashes: Vec<u64> = entries(&rig).iter().map(|entry| entry.body_hash).collect();
        (texts, hashes)
    };

    let (first, second, other) = (run(1).await, run(1).await, run(2).await);

    assert_eq!(first.0.len(), 102);
    assert_eq!(first, second);
    assert!(first.1.iter().all(|hash| !other.1.contains(hash)));
}

#[tokio::test]
async fn an_event_of_any_name_and_data_can_be_sent_to_an_active_webhook_alone() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;
    let send = |webhook| {
        let accounting = &rig.provider.accounting;
        accounting.send(&rig.provider, webhook, Some("company"), "CustomerMerged", "not \"JSON\"\u{1}")
    };

    let known = send(webhook);
    rig.idle().await;
    let unknown = send(Guid(1));
    rig.provider.accounting.disable(&rig.provider, webhook);
    let disabled = send(webhook);

    let envelope = json(&receiver.received()[1]);
    assert_eq!((known, unknown, disabled), (true, false, false));
    assert_eq!(envelope["EventType"]["SemanticName"], "Svc.ACC.Customers.CustomerMerged");
    assert_eq!(envelope["ExtraPartitionInformation"]["PartitionClientId"], "company");
    assert_eq!(envelope["JsonData"], "not \"JSON\"\u{1}");
    assert_eq!(entries(&rig)[1].end, Some(End::Accepted));
}

#[tokio::test]
async fn a_configuration_record_has_the_documents_fields_and_no_others() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;

    let mut record = record(&rig, webhook).await;

    let user = record["userIdentifier"].take();
    assert!(user.as_str().and_then(Guid::parse).is_some());
    let event = |name: &str| {
        json!({
            "appName": "Svc",
            "domain": "ACC",
            "resource": "Customers",
            "eventType": name,
            "semanticName": format!("Svc.ACC.Customers.{name}"),
        })
    };
    let events = ["CustomerCreated", "CustomerUpdated", "CustomerDisabled", "ErrorOccurred"].map(event);
    let expected = json!({
        "id": webhook,
        "thirdPartyApplicationName": "tests",
        "url": receiver.url(),
        "tenantId": "tenant-1",
        "secret": "a secret wíth an accent",
        "isActive": true,
        "isDeleted": false,
        "events": events,
        "userIdentifier": null,
    });
    assert_eq!(record, expected);
}

#[tokio::test]
async fn a_webhook_hears_of_the_events_it_subscribed_to_and_of_no_others() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let mut body: Value = serde_json::from_str(&subscription("customers", &receiver.url())).unwrap();
    let disabled = "Svc.ACC.Customers.CustomerDisabled";
    body["eventTypes"] = json!([disabled, disabled]);
    super::post(&rig, "subscribe", &body.to_string()).await;
    rig.idle().await;

    act(&rig, Resource::Customers, Kind::Updated);
    act(&rig, Resource::Accounts, Kind::Disabled);
    act(&rig, Resource::Customers, Kind::Disabled);
    rig.idle().await;

    assert_eq!(super::events(&receiver.received()), ["Acknowledge", "CustomerDisabled"]);
    assert_eq!(rig.provider.deliveries.count(), 2);
    assert_eq!(rig.provider.accounting.webhooks()[0].events, [disabled]);
}
