//! The seven operations under each of the nineteen prefixes.

use serde_json::json;

use super::{CUSTOMERS, SECRET, Stage, assert_done, id};
use crate::product::simulator::{RESOURCES, receiver::is_guid};

crate::tests! {
    plain every_operation_works_under_all_nineteen_prefixes;
    plain only_some_resources_have_disabled_events;
    plain the_known_names_of_accounts_and_customers_are_documented;
    plain a_configuration_record_has_the_documented_fields;
    plain a_webhook_is_known_under_its_own_prefix_alone;
    plain events_of_each_resource_reach_its_webhook_alone;
}

async fn every_operation_works_under_all_nineteen_prefixes() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    let (first, second) = (receiver.url("/first"), receiver.url("/second"));

    for (_, prefix) in RESOURCES {
        let body = stage.subscription(prefix, &first).await;
        let subscribed = stage.post(prefix, "subscribe", &body).await;
        let id = id(&subscribed.ok());
        assert_done(&subscribed, 3, &id);
        assert!(is_guid(&json!(id)), "{prefix}: {id}");
        assert_eq!(receiver.next().await.json()["WebhookId"], id.as_str(), "{prefix}");
        stage.idle().await;

        assert_done(&stage.switch(prefix, &id, false).await, 7, &id);
        assert_eq!(stage.flags(prefix, &id).await, (false, false), "{prefix}");
        assert_done(&stage.switch(prefix, &id, true).await, 7, &id);
        assert_eq!(stage.flags(prefix, &id).await, (true, false), "{prefix}");

        assert_eq!(stage.change(prefix, &id, &second).await.status, 200, "{prefix}");
        assert_eq!(receiver.next().await.path, "/second", "{prefix}");
        stage.idle().await;
        assert_eq!(stage.record(prefix, &id).await["url"], second, "{prefix}");

        let mut moved = body.clone();
        moved["url"] = json!(second);
        assert_done(&stage.post(prefix, "unsubscribe", &moved).await, 4, &id);
        assert_done(&stage.delete(prefix, &id).await, 5, &id);
        assert_eq!(stage.flags(prefix, &id).await, (false, true), "{prefix}");
    }
}

async fn only_some_resources_have_disabled_events() {
    let stage = Stage::start(|_| {}).await;

    let mut all = Vec::new();
    for (name, prefix) in RESOURCES {
        let events = stage.client.get(&format!("{prefix}/webhooks/events")).await.rows();
        let events: Vec<&str> = events.iter().map(|event| event.as_str().unwrap()).collect();
        let expected = match name {
            "accounts" | "customers" | "suppliers" => "Disabled",
            _ => "Deleted",
        };

        for (event, ending) in events.iter().zip(["Created", "Updated", expected, "ErrorOccurred"]) {
            let parts: Vec<&str> = event.split('.').collect();
            let [_, _, resource, event_type] = parts[..] else { panic!("{event}") };
            assert!(resource.eq_ignore_ascii_case(name), "{prefix}: {event}");
            assert!(event_type.ends_with(ending), "{prefix}: {event}");
        }
        assert_eq!(events.len(), 4, "{prefix}: {events:?}");
        all.extend(events.into_iter().map(str::to_owned));
    }

    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4 * RESOURCES.len(), "a name is shared");
}

async fn the_known_names_of_accounts_and_customers_are_documented() {
    let stage = Stage::start(|_| {}).await;

    for (prefix, domain, events) in [
        (
            "/accounting/api/accounts",
            "Svc.ACC.Accounts",
            ["AccountCreated", "AccountUpdated", "AccountDisabled", "ErrorOccurred"],
        ),
        (
            CUSTOMERS,
            "Svc.ACC.Customers",
            ["CustomerCreated", "CustomerUpdated", "CustomerDisabled", "ErrorOccurred"],
        ),
    ] {
        let expected = events.map(|event| format!("{domain}.{event}"));
        assert_eq!(stage.client.get(&format!("{prefix}/webhooks/events")).await.ok(), json!(expected));
    }
}

async fn a_configuration_record_has_the_documented_fields() {
    let (stage, receiver, id) = Stage::subscribed().await;

    let living = stage.record(CUSTOMERS, &id).await;
    stage.delete(CUSTOMERS, &id).await.ok();
    let deleted = stage.record(CUSTOMERS, &id).await;

    assert_eq!(living["id"], id.as_str());
    assert_eq!(living["thirdPartyApplicationName"], "tests");
    assert_eq!(living["url"], receiver.url("/hook"));
    assert!(living["tenantId"].as_str().is_some_and(|tenant| !tenant.is_empty()), "{living}");
    assert_eq!(living["secret"], SECRET);
    assert_eq!((&living["isActive"], &living["isDeleted"]), (&json!(true), &json!(false)));
    assert!(is_guid(&living["userIdentifier"]), "{living}");
    let events = ["CustomerCreated", "CustomerUpdated", "CustomerDisabled", "ErrorOccurred"];
    let expected = events.map(|event| {
        json!({
            "appName": "Svc", "domain": "ACC", "resource": "Customers", "eventType": event,
            "semanticName": format!("Svc.ACC.Customers.{event}"),
        })
    });
    assert_eq!(living["events"], json!(expected));
    assert_eq!(living.as_object().unwrap().len(), 9, "deletedAt is there only after deletion: {living}");

    assert_eq!((&deleted["isActive"], &deleted["isDeleted"]), (&json!(false), &json!(true)));
    assert_eq!(deleted["deletedAt"], "2026-11-15T12:00:00.0000000Z");
    assert_eq!(deleted.as_object().unwrap().len(), 10, "{deleted}");
}

async fn a_webhook_is_known_under_its_own_prefix_alone() {
    let (stage, _receiver, id) = Stage::subscribed().await;

    for (_, prefix) in RESOURCES.into_iter().filter(|(_, prefix)| *prefix != CUSTOMERS) {
        for answer in stage.operations(prefix, &id).await {
            assert_eq!(answer.status, 404, "{prefix}: {answer:?}");
            assert_eq!(answer.json()["ok"], false, "{prefix}: {answer:?}");
        }
    }

    assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false));
}

async fn events_of_each_resource_reach_its_webhook_alone() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    let mut ids = Vec::new();
    for (_, prefix) in RESOURCES {
        ids.push(stage.active(prefix, &mut receiver).await);
    }

    for ((name, prefix), id) in RESOURCES.into_iter().zip(ids) {
        let truth = stage.happen(name, "updated");

        let received = receiver.next().await;
        let (envelope, data) = (received.json(), received.data());
        assert_eq!(envelope["WebhookId"], id.as_str(), "{name}");
        assert_eq!(data["CorrelationId"], truth.id, "{name}");
        assert_eq!(data["SequenceVersion"], truth.sequence_version.to_string(), "{name}");
        let company = envelope["ExtraPartitionInformation"]["PartitionClientId"].as_str().unwrap();
        assert_eq!(truth.company.as_deref(), Some(company), "{name}");
        let read = stage.client.company(company).get(&format!("{prefix}/{}", truth.id)).await.ok();
        assert_eq!(read["correlationId"], truth.id, "{name}");
        assert_eq!(read["version"], truth.version, "{name}");
        assert_eq!(read["sequenceVersion"], data["SequenceVersion"], "{name}");
    }

    stage.idle().await;
    assert!(receiver.taken().is_empty(), "no webhook gets the events of another resource");
}
