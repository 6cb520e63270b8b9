//! Each row of the document's state table, over the wire on both sides.

use std::sync::Arc;

use serde_json::json;

use super::{CUSTOMERS, act, delete, entries, events, id, move_to, post, record, subscribe, switch};
use crate::simulator::{
    accounting::WebhookState,
    catalog::{Kind, Resource},
    clock::midnight,
    deliveries::{
        End,
        rig::{Receiver, Reply, Rig, subscription},
    },
    knobs::{AcknowledgeTime, ChangeAnswer, FailedAcknowledge, Unsubscribe},
    settings::Settings,
};

#[tokio::test]
async fn a_subscription_awaits_its_contract_until_the_acknowledge_is_answered_200() {
    let receiver = Receiver::start(|_, _| Reply::Held).await;
    let rig = Rig::start(|_| {});

    let (status, result) = post(&rig, "subscribe", &subscription("customers", &receiver.url())).await;
    let came = receiver.wait_for(1).await;
    let before = record(&rig, id(&result)).await;
    receiver.release();
    rig.idle().await;
    let after = record(&rig, id(&result)).await;
    act(&rig, Resource::Customers, Kind::Updated);
    rig.idle().await;

    assert_eq!((status, &result["responseState"], &result["errors"]), (200, &json!(3), &json!([])));
    assert_eq!(events(&came), ["Acknowledge"]);
    assert_eq!((&before["isActive"], &after["isActive"]), (&json!(false), &json!(true)));
    assert_eq!(events(&receiver.received()), ["Acknowledge", "CustomerUpdated"]);
}

#[tokio::test]
async fn the_acknowledge_leaves_only_after_the_answer() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let body = subscription("customers", &receiver.url());

    let unread = rig.respond("POST", &format!("{CUSTOMERS}/subscribe"), &body).await;
    let second = subscribe(&rig, &receiver).await;
    let first_came = receiver.wait_for(1).await;
    let states: Vec<_> = rig.provider.accounting.webhooks().iter().map(|webhook| webhook.state).collect();
    drop(unread);
    rig.idle().await;

    assert_eq!(super::json(&first_came[0])["WebhookId"], second.to_string());
    assert_eq!(states[0], WebhookState::AwaitingContract);
    assert_eq!(receiver.received().len(), 2);
    assert!(rig.provider.accounting.webhooks().iter().all(|webhook| webhook.state == WebhookState::Active));
}

#[tokio::test]
async fn the_acknowledge_follows_an_answer_on_a_connection_that_stays_open() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let router = crate::simulator::accounting::router().with_state(Arc::clone(&rig.provider));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}{CUSTOMERS}/subscribe", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let client = rig.provider.deliveries.client(&rig.provider);

    let answer = client.post(address).body(subscription("customers", &receiver.url())).send().await.unwrap();
    let came = receiver.wait_for(1).await;
    rig.idle().await;

    assert_eq!(answer.status(), 200);
    assert!(answer.headers().contains_key("content-length"), "{answer:?}");
    assert_eq!(events(&came), ["Acknowledge"]);
    assert_eq!(rig.provider.accounting.webhooks()[0].state, WebhookState::Active);
    server.abort();
}

#[tokio::test]
async fn an_acknowledge_before_the_answer_has_been_tried_once_when_the_answer_comes() {
    let receiver = Receiver::start(|number, _| Reply::Status(if number < 2 { 200 } else { 500 })).await;
    let rig = Rig::start(|knobs| {
        knobs.accounting.acknowledge = AcknowledgeTime::BeforeAnswer;
        knobs.accounting.retries = vec![3_600_000];
    });

    let accepted = subscribe(&rig, &receiver).await;
    let at_the_answer = rig.state(accepted);
    let moved = move_to(&rig, accepted, &format!("{}/moved", receiver.url())).await;
    let after_the_move = rig.state(accepted);
    let refused = subscribe(&rig, &receiver).await;

    assert_eq!(at_the_answer, Some(WebhookState::Active));
    assert_eq!((moved.0, after_the_move), (200, Some(WebhookState::Active)));
    assert_eq!(receiver.received().len(), 3);
    assert_eq!(rig.state(refused), Some(WebhookState::AwaitingContract));
}

#[tokio::test]
async fn without_an_acknowledge_a_webhook_stays_as_it_is_and_its_events_are_missed() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never);

    let webhook = subscribe(&rig, &receiver).await;
    act(&rig, Resource::Customers, Kind::Updated);
    rig.idle().await;

    assert_eq!(rig.state(webhook), Some(WebhookState::AwaitingContract));
    assert_eq!(receiver.received().len(), 0);
    assert_eq!(entries(&rig).iter().map(|entry| entry.end).collect::<Vec<_>>(), [Some(End::Missed)]);
}

#[tokio::test]
async fn a_failed_acknowledge_is_tried_again_by_the_schedule() {
    let receiver = Receiver::start(|number, _| Reply::Status(if number < 2 { 500 } else { 200 })).await;
    let rig = Rig::start(|_| {});

    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;

    assert_eq!(events(&receiver.received()), ["Acknowledge"; 3]);
    assert_eq!(rig.state(webhook), Some(WebhookState::Active));
}

#[tokio::test]
async fn an_acknowledge_that_failed_for_good_leaves_what_the_knob_says() {
    for (knob, state) in [
        (FailedAcknowledge::StaysAwaiting, WebhookState::AwaitingContract),
        (FailedAcknowledge::Deleted, WebhookState::Deleted),
    ] {
        // 204 is a 2xx, and still not the 200 that a contract needs.
        let receiver = Receiver::always(204).await;
        let rig = Rig::start(|knobs| knobs.accounting.failed_acknowledge = knob);

        let webhook = subscribe(&rig, &receiver).await;
        rig.idle().await;

        assert_eq!(rig.state(webhook), Some(state));
        assert_eq!(receiver.received().len(), 3);
    }
}

#[tokio::test]
async fn a_disabled_webhook_misses_events_until_it_is_enabled_again() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;

    let off = switch(&rig, webhook, false).await;
    let while_off = record(&rig, webhook).await;
    act(&rig, Resource::Customers, Kind::Updated);
    let on = switch(&rig, webhook, true).await;
    act(&rig, Resource::Customers, Kind::Disabled);
    rig.idle().await;

    let result = json!({ "responseState": 7, "webhookId": webhook, "errors": [] });
    assert_eq!((off, on), ((200, result.clone()), (200, result)));
    assert_eq!((&while_off["isActive"], &while_off["isDeleted"]), (&json!(false), &json!(false)));
    assert_eq!(events(&receiver.received()), ["Acknowledge", "CustomerDisabled"]);
    let ends: Vec<_> = entries(&rig).iter().map(|entry| entry.end).collect();
    assert_eq!(ends, [Some(End::Accepted), Some(End::Missed), Some(End::Accepted)]);
}

#[tokio::test]
async fn a_webhook_whose_deliveries_fail_through_all_retries_is_disabled() {
    let receiver = Receiver::start(|number, _| Reply::Status(if number == 0 { 200 } else { 401 })).await;
    let rig = Rig::start(|_| {});
    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;

    act(&rig, Resource::Customers, Kind::Updated);
    rig.idle().await;

    assert_eq!(rig.state(webhook), Some(WebhookState::Disabled));
    assert_eq!(entries(&rig)[1].attempts.len(), 3);
    assert_eq!(entries(&rig)[1].end, Some(End::GivenUp));
    let bodies = receiver.texts();
    assert_eq!(bodies[1], bodies[3]);
    assert_eq!(switch(&rig, webhook, true).await.0, 200);
}

#[tokio::test]
async fn a_change_of_url_makes_a_new_contract_there_and_leaves_the_old_place() {
    let (old, new) = (Receiver::always(200).await, Receiver::start(|_, _| Reply::Held).await);
    let rig = Rig::start(|_| {});
    let webhook = subscribe(&rig, &old).await;
    rig.idle().await;

    let (status, result) = move_to(&rig, webhook, &new.url()).await;
    new.wait_for(1).await;
    let before = record(&rig, webhook).await;
    act(&rig, Resource::Customers, Kind::Updated);
    new.release();
    rig.idle().await;
    act(&rig, Resource::Customers, Kind::Updated);
    rig.idle().await;

    assert_eq!((status, &result["webhookId"], &result["errors"]), (200, &json!(webhook), &json!([])));
    assert_eq!((&before["isActive"], &before["url"]), (&json!(false), &json!(new.url())));
    assert_eq!(events(&old.received()), ["Acknowledge"]);
    assert_eq!(events(&new.received()), ["Acknowledge", "CustomerUpdated"]);
    assert_eq!(rig.state(webhook), Some(WebhookState::Active));
}

#[tokio::test]
async fn an_acknowledge_accepted_at_the_old_url_makes_no_contract_for_the_new_one() {
    let (old, new) = (Receiver::start(|_, _| Reply::Held).await, Receiver::always(500).await);
    let rig = Rig::start(|knobs| knobs.accounting.strict_transitions = false);
    let webhook = subscribe(&rig, &old).await;
    old.wait_for(1).await;

    move_to(&rig, webhook, &new.url()).await;
    new.wait_for(3).await;
    old.release();
    rig.idle().await;

    assert_eq!(entries(&rig)[0].end, Some(End::Accepted));
    assert_eq!(rig.state(webhook), Some(WebhookState::AwaitingContract));
}

#[tokio::test]
async fn a_change_of_url_answers_in_the_shape_of_the_knob() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let webhook = subscribe(&rig, &receiver).await;
    rig.idle().await;

    for (at, shape) in
        [ChangeAnswer::Result, ChangeAnswer::Record, ChangeAnswer::Nothing].into_iter().enumerate()
    {
        rig.provider.turn(|knobs| knobs.accounting.change_answer = shape);
        let url = format!("{}/{at}", receiver.url());

        let (status, body) = move_to(&rig, webhook, &url).await;
        rig.idle().await;

        assert_eq!(status, 200);
        match shape {
            ChangeAnswer::Result => assert_eq!(body["webhookId"], json!(webhook)),
            ChangeAnswer::Record => assert_eq!((&body["id"], &body["url"]), (&json!(webhook), &json!(url))),
            ChangeAnswer::Nothing => assert_eq!(body, json!(null)),
        }
    }
}

#[tokio::test]
async fn every_webhook_that_is_not_deleted_can_be_deleted_once() {
    let receiver = Receiver::always(200).await;
    let frozen_at = midnight(2026, 11, 15);
    let rig = Rig::with(Settings { frozen_at, ..Settings::default() }, |_| {});
    let active = subscribe(&rig, &receiver).await;
    let disabled = subscribe(&rig, &receiver).await;
    rig.idle().await;
    switch(&rig, disabled, false).await;
    rig.provider.turn(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never);
    let awaiting = subscribe(&rig, &receiver).await;

    for webhook in [active, disabled, awaiting] {
        let before = record(&rig, webhook).await;
        let deleted = delete(&rig, webhook).await;
        let again = delete(&rig, webhook).await;
        let after = record(&rig, webhook).await;

        assert_eq!(before.get("deletedAt"), None);
        assert_eq!(deleted, (200, json!({ "responseState": 5, "webhookId": webhook, "errors": [] })));
        assert_eq!((again.0, again.1["errors"][0]["code"].as_str()), (422, Some("InvalidState")));
        assert_eq!((&after["isActive"], &after["isDeleted"]), (&json!(false), &json!(true)));
        assert_eq!(after["deletedAt"], "2026-11-15T00:00:00.0000000Z");
    }
    let count = rig.provider.deliveries.count();
    act(&rig, Resource::Customers, Kind::Updated);
    assert_eq!(rig.provider.deliveries.count(), count);
}

#[tokio::test]
async fn an_unsubscribe_with_the_same_body_ends_the_active_webhook() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let body = subscription("customers", &receiver.url());
    let mut reversed: serde_json::Value = serde_json::from_str(&body).unwrap();
    reversed["eventTypes"].as_array_mut().unwrap().reverse();
    let mut other = reversed.clone();
    other["secret"] = json!("another");
    let webhook = subscribe(&rig, &receiver).await;
    let awaiting = post(&rig, "unsubscribe", &body).await;
    rig.idle().await;

    let refused = post(&rig, "unsubscribe", &other.to_string()).await;
    let ended = post(&rig, "unsubscribe", &reversed.to_string()).await;
    let again = post(&rig, "unsubscribe", &body).await;
    act(&rig, Resource::Customers, Kind::Updated);
    rig.idle().await;
    let after = record(&rig, webhook).await;

    for refused in [awaiting, refused, again] {
        assert_eq!((refused.0, &refused.1["responseState"]), (422, &json!(0)));
        assert_eq!(refused.1["errors"][0]["code"], "NotSubscribed");
    }
    assert_eq!(ended, (200, json!({ "responseState": 4, "webhookId": webhook, "errors": [] })));
    assert_eq!((&after["isActive"], &after["isDeleted"]), (&json!(false), &json!(false)));
    assert_eq!(events(&receiver.received()), ["Acknowledge"]);
    assert_eq!(delete(&rig, webhook).await.0, 200);
}

#[tokio::test]
async fn an_unsubscribe_by_url_ends_all_webhooks_of_that_url() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.accounting.unsubscribe = Unsubscribe::SameUrl);
    let (first, second) = (subscribe(&rig, &receiver).await, subscribe(&rig, &receiver).await);
    rig.idle().await;
    let mut body: serde_json::Value =
        serde_json::from_str(&subscription("customers", &receiver.url())).unwrap();
    body["secret"] = json!("another");

    let (status, result) = post(&rig, "unsubscribe", &body.to_string()).await;

    assert_eq!((status, &result["webhookId"]), (200, &json!(first)));
    let states = [rig.state(first), rig.state(second)];
    assert_eq!(states, [Some(WebhookState::Unsubscribed); 2]);
}

#[tokio::test]
async fn only_the_rows_of_the_table_are_allowed_unless_the_provider_is_generous() {
    use WebhookState::{Active, AwaitingContract, Deleted, Disabled, Unsubscribed};
    // For each state: enable, disable, change to another url, change to the same url, delete.
    let table = [
        (AwaitingContract, [false, false, false, false, true], [false, false, true, true, true]),
        (Active, [false, true, true, false, true], [true, true, true, true, true]),
        (Disabled, [true, false, false, false, true], [true, true, true, true, true]),
        (Unsubscribed, [false, false, false, false, true], [false, false, false, false, true]),
        (Deleted, [false; 5], [false, false, false, false, true]),
    ];
    let receiver = Receiver::always(200).await;
    for (state, strict, generous) in table {
        for (strictness, allowed) in [(true, strict), (false, generous)] {
            for (operation, expected) in allowed.into_iter().enumerate() {
                let rig = Rig::start(|knobs| {
                    knobs.accounting.strict_transitions = strictness;
                    knobs.accounting.acknowledge = AcknowledgeTime::Never;
                });
                let webhook = match state {
                    AwaitingContract => subscribe(&rig, &receiver).await,
                    _ => rig.webhook(&receiver.url()).await,
                };
                match state {
                    AwaitingContract | Active => {}
                    Disabled => assert!(rig.provider.accounting.disable(&rig.provider, webhook)),
                    Deleted => assert_eq!(delete(&rig, webhook).await.0, 200),
                    Unsubscribed => {
                        let body = subscription("customers", &receiver.url());
                        assert_eq!(post(&rig, "unsubscribe", &body).await.0, 200);
                    }
                }
                assert_eq!(rig.state(webhook), Some(state));

                let (status, result) = match operation {
                    0 => switch(&rig, webhook, true).await,
                    1 => switch(&rig, webhook, false).await,
                    2 => move_to(&rig, webhook, "http://elsewhere.example/").await,
                    3 => move_to(&rig, webhook, &receiver.url()).await,
                    _ => delete(&rig, webhook).await,
                };

                let case = format!("{state:?} strict {strictness} operation {operation}: {result}");
                assert_eq!(status == 200, expected, "{case}");
                assert_eq!(result["webhookId"], json!(webhook), "{case}");
                assert_eq!(result["errors"] == json!([]), expected, "{case}");
                if !expected {
                    assert_eq!(rig.state(webhook), Some(state), "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn all_nineteen_resources_have_the_family_of_their_own() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});

    for resource in Resource::ALL {
        let prefix = format!("{}/webhooks", resource.prefix());
        let (_, names) = rig.call("GET", &format!("{prefix}/events"), "").await;
        let body = subscription(resource.path(), &receiver.url());
        let (status, result) = rig.call("POST", &format!("{prefix}/subscribe"), &body).await;
        let webhook = id(&result);
        let own = rig.call("GET", &format!("{prefix}/{webhook}"), "").await;

        assert_eq!(names, json!(resource.kinds().map(|kind| resource.semantic_name(kind))));
        assert_eq!(status, 200, "{prefix}: {result}");
        assert_eq!(own.1["events"][0]["semanticName"], names[0], "{prefix}");
        for other in Resource::ALL.into_iter().filter(|&other| other != resource) {
            let path = format!("{}/webhooks/{webhook}", other.prefix());
            let (status, body) = rig.call("GET", &path, "").await;
            assert_eq!((status, &body["ok"], &body["httpCode"]), (404, &json!(false), &json!(404)), "{path}");
        }
    }
    rig.idle().await;
    assert_eq!(events(&receiver.received()), ["Acknowledge"; 19]);
}
