//! The document's table of transitions: every row, and every other combination.

use serde_json::json;
use simulator::deliveries::End;

use super::{CUSTOMERS, Stage, assert_done, assert_refused, id, last_part};
use crate::product::simulator::receiver::{Receiver, Reply};

crate::tests! {
    plain a_subscribe_is_answered_3_and_awaits_its_acknowledge;
    plain later_events_of_the_subscribed_types_are_delivered;
    plain a_disabled_webhook_misses_events_until_enabled;
    plain a_webhook_is_disabled_after_the_last_retry;
    plain a_new_url_gets_events_after_its_acknowledge;
    plain an_acknowledge_at_the_old_url_is_no_contract_for_the_new;
    plain an_ended_webhook_gets_no_events;
    plain only_the_rows_of_the_table_are_transitions;
    plain a_generous_provider_never_revives_a_deleted_webhook;
}

async fn a_subscribe_is_answered_3_and_awaits_its_acknowledge() {
    let mut receiver = Receiver::scripted(|_| Reply::Held(200)).await;
    let stage = Stage::start(|_| {}).await;

    let body = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;
    let subscribed = stage.post(CUSTOMERS, "subscribe", &body).await;
    let acknowledge = receiver.next().await;
    let id = id(&subscribed.ok());
    let before = stage.flags(CUSTOMERS, &id).await;
    stage.happen("customers", "updated");
    receiver.release(1);
    stage.idle().await;

    assert_done(&subscribed, 3, &id);
    assert_eq!((acknowledge.method.as_str(), acknowledge.path.as_str()), ("POST", "/hook"));
    assert_eq!(acknowledge.event(), "Acknowledge");
    assert_eq!(before, (false, false));
    assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false));
    assert!(receiver.taken().is_empty(), "what happened before the contract is not sent after it");
    let ends = stage.ends();
    assert_eq!(ends[0], ("Acknowledge".to_owned(), Some(End::Accepted)));
    assert_eq!(ends[1], ("CustomerUpdated".to_owned(), Some(End::Missed)));
}

async fn later_events_of_the_subscribed_types_are_delivered() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    let mut body = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;
    body["eventTypes"] = json!(["Svc.ACC.Customers.CustomerDisabled", "Svc.ACC.Customers.CustomerCreated"]);
    stage.post(CUSTOMERS, "subscribe", &body).await.ok();
    assert_eq!(receiver.next().await.event(), "Acknowledge");
    stage.idle().await;

    for kind in ["created", "updated", "disabled", "errorOccurred", "created"] {
        stage.happen("customers", kind);
    }
    stage.happen("accounts", "created");
    stage.idle().await;

    let mut events: Vec<String> = receiver.taken().iter().map(|received| received.event()).collect();
    events.sort_unstable();
    assert_eq!(events, ["CustomerCreated", "CustomerCreated", "CustomerDisabled"]);
}

async fn a_disabled_webhook_misses_events_until_enabled() {
    let (stage, mut receiver, id) = Stage::subscribed().await;

    let off = stage.switch(CUSTOMERS, &id, false).await;
    let while_off = stage.flags(CUSTOMERS, &id).await;
    let missed = stage.happen("customers", "updated");
    let on = stage.switch(CUSTOMERS, &id, true).await;
    let delivered = stage.happen("customers", "updated");
    stage.idle().await;

    assert_done(&off, 7, &id);
    assert_done(&on, 7, &id);
    assert_eq!(while_off, (false, false));
    assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false));
    let sequences: Vec<_> =
        receiver.taken().iter().map(|received| received.data()["SequenceVersion"].clone()).collect();
    assert_eq!(sequences, [json!(delivered.sequence_version.to_string())]);
    let journal: Vec<_> =
        stage.entries().into_iter().skip(1).map(|entry| (entry.about.sequence, entry.end)).collect();
    assert_eq!(
        journal,
        [
            (Some(missed.sequence_version), Some(End::Missed)),
            (Some(delivered.sequence_version), Some(End::Accepted))
        ]
    );
}

async fn a_webhook_is_disabled_after_the_last_retry() {
    let mut receiver = Receiver::scripted(|received| match received.event().as_str() {
        "CustomerUpdated" => Reply::Status(500),
        _ => Reply::Status(200),
    })
    .await;
    let stage = Stage::start(|knobs| knobs.accounting.retries = vec![20, 40]).await;
    let id = stage.active(CUSTOMERS, &mut receiver).await;

    stage.happen("customers", "updated");
    let attempts = receiver.several(3).await;
    stage.idle().await;
    let disabled = stage.flags(CUSTOMERS, &id).await;
    stage.happen("customers", "created");
    assert_done(&stage.switch(CUSTOMERS, &id, true).await, 7, &id);
    stage.happen("customers", "created");
    stage.idle().await;

    assert_eq!(disabled, (false, false));
    assert!(attempts.iter().all(|attempt| attempt.body == attempts[0].body));
    for (pair, wait) in attempts.windows(2).zip([20, 40]) {
        assert!((pair[1].at - pair[0].at).as_millis() >= wait, "{wait} ms before a further attempt");
    }
    let journal = stage.entries();
    let statuses: Vec<_> = journal[1].attempts.iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [Some(500); 3]);
    let ends: Vec<_> = journal.iter().skip(1).map(|entry| entry.end).collect();
    assert_eq!(ends, [Some(End::GivenUp), Some(End::Missed), Some(End::Accepted)]);
    assert_eq!(receiver.taken().len(), 1);
}

async fn a_new_url_gets_events_after_its_acknowledge() {
    let mut old = Receiver::accepting().await;
    let mut new = Receiver::scripted(|_| Reply::Held(200)).await;
    let stage = Stage::start(|_| {}).await;
    let id = stage.active(CUSTOMERS, &mut old).await;

    assert_eq!(stage.change(CUSTOMERS, &id, &new.url("/new")).await.status, 200);
    let acknowledge = new.next().await;
    let awaiting = stage.record(CUSTOMERS, &id).await;
    stage.happen("customers", "updated");
    new.release(2);
    stage.idle().await;
    let accepted = stage.flags(CUSTOMERS, &id).await;
    stage.happen("customers", "created");
    stage.idle().await;

    assert_eq!((acknowledge.path.as_str(), acknowledge.event().as_str()), ("/new", "Acknowledge"));
    assert_eq!(acknowledge.json()["WebhookId"], id.as_str());
    assert_eq!((&awaiting["isActive"], &awaiting["url"]), (&json!(false), &json!(new.url("/new"))));
    assert_eq!(accepted, (true, false));
    let events: Vec<String> = new.taken().iter().map(|received| received.event()).collect();
    assert_eq!(events, ["CustomerCreated"]);
    assert!(old.taken().is_empty(), "the old url hears nothing after the change");
}

async fn an_acknowledge_at_the_old_url_is_no_contract_for_the_new() {
    let mut old = Receiver::scripted(|_| Reply::Held(200)).await;
    let mut new = Receiver::scripted(|_| Reply::Status(500)).await;
    let stage = Stage::start(|knobs| knobs.accounting.strict_transitions = false).await;
    let id = stage.subscribe(CUSTOMERS, &old.url("/old")).await;
    old.next().await;

    stage.change(CUSTOMERS, &id, &new.url("/new")).await.ok();
    new.several(3).await;
    old.release(1);
    stage.idle().await;

    assert_eq!(stage.ends()[0], ("Acknowledge".to_owned(), Some(End::Accepted)));
    assert_eq!(stage.flags(CUSTOMERS, &id).await, (false, false));
}

async fn an_ended_webhook_gets_no_events() {
    for (operation, state, flags) in [("unsubscribe", 4, (false, false)), ("delete", 5, (false, true))] {
        let (stage, mut receiver, id) = Stage::subscribed().await;

        let ended = operate(&stage, &receiver, operation, &id, &receiver.url("/hook")).await;
        stage.happen("customers", "updated");
        stage.idle().await;

        assert_done(&ended, state, &id);
        assert_eq!(stage.flags(CUSTOMERS, &id).await, flags, "{operation}");
        assert!(receiver.taken().is_empty(), "{operation}");
    }
}

const STATES: [&str; 5] = ["awaiting", "active", "disabled", "unsubscribed", "deleted"];
const OPERATIONS: [&str; 6] = ["enable", "disable", "change", "stay", "delete", "unsubscribe"];
/// The document's rows: state, operation, and `isActive` and `isDeleted` afterwards.
const ROWS: [(&str, &str, (bool, bool)); 8] = [
    ("active", "disable", (false, false)),
    ("disabled", "enable", (true, false)),
    // Once the new url has accepted the Acknowledge.
    ("active", "change", (true, false)),
    ("active", "unsubscribe", (false, false)),
    ("awaiting", "delete", (false, true)),
    ("active", "delete", (false, true)),
    ("disabled", "delete", (false, true)),
    ("unsubscribed", "delete", (false, true)),
];

async fn only_the_rows_of_the_table_are_transitions() {
    let receiver = Receiver::scripted(refuse_some).await;
    let stage = Stage::start(|_| {}).await;

    for state in STATES {
        for operation in OPERATIONS {
            let about = format!("{operation} of one that is {state}");
            let (id, url) = in_state(&stage, &receiver, state, &about).await;
            let before = stage.record(CUSTOMERS, &id).await;
            let answer = operate(&stage, &receiver, operation, &id, &url).await;
            stage.idle().await;

            match ROWS.iter().find(|row| (row.0, row.1) == (state, operation)) {
                Some((.., flags)) => {
                    assert_eq!(answer.status, 200, "{about}: {answer:?}");
                    assert_eq!(stage.flags(CUSTOMERS, &id).await, *flags, "{about}");
                }
                None => {
                    assert_refused(&answer, &about);
                    assert_eq!(stage.record(CUSTOMERS, &id).await, before, "{about}");
                }
            }
        }
    }
}

async fn a_generous_provider_never_revives_a_deleted_webhook() {
    let receiver = Receiver::scripted(refuse_some).await;
    let stage = Stage::start(|knobs| knobs.accounting.strict_transitions = false).await;

    let mut more = 0;
    for state in STATES {
        for operation in OPERATIONS {
            let about = format!("{operation} of one that is {state}");
            let (id, url) = in_state(&stage, &receiver, state, &about).await;
            let answer = operate(&stage, &receiver, operation, &id, &url).await;
            stage.idle().await;

            let flags = stage.flags(CUSTOMERS, &id).await;
            match ROWS.iter().find(|row| (row.0, row.1) == (state, operation)) {
                Some((.., expected)) => assert_eq!((answer.status, flags), (200, *expected), "{about}"),
                None => more += u32::from(answer.status == 200),
            }
            if state == "deleted" {
                assert_eq!(flags, (false, true), "{about}");
            }
        }
    }
    assert!(more > 0, "a knob that changes nothing");
}

fn refuse_some(received: &crate::product::simulator::receiver::Received) -> Reply {
    Reply::Status(if received.path.starts_with("/refuse") { 500 } else { 200 })
}

/// A webhook in this state, with its own url.
async fn in_state(stage: &Stage, receiver: &Receiver, state: &str, about: &str) -> (String, String) {
    let path = about.replace(' ', "-");
    let url = receiver.url(&format!("/{}/{path}", if state == "awaiting" { "refuse" } else { "accept" }));
    let body = stage.subscription(CUSTOMERS, &url).await;
    let id = id(&stage.post(CUSTOMERS, "subscribe", &body).await.ok());
    stage.idle().await;
    match state {
        "disabled" => stage.switch(CUSTOMERS, &id, false).await.ok(),
        "unsubscribed" => stage.post(CUSTOMERS, "unsubscribe", &body).await.ok(),
        "deleted" => stage.delete(CUSTOMERS, &id).await.ok(),
        _ => json!(null),
    };
    let truth = stage.provider().accounting.webhooks();
    let truth = serde_json::to_value(truth.iter().find(|webhook| webhook.id.to_string() == id)).unwrap();
    let reached = last_part(truth["state"].as_str().unwrap()).to_lowercase();
    assert!(reached.starts_with(state), "{about}: {reached}");
    (id, url)
}

async fn operate(
    stage: &Stage,
    receiver: &Receiver,
    operation: &str,
    id: &str,
    url: &str,
) -> crate::product::simulator::Answer {
    match operation {
        "enable" => stage.switch(CUSTOMERS, id, true).await,
        "disable" => stage.switch(CUSTOMERS, id, false).await,
        "change" => stage.change(CUSTOMERS, id, &receiver.url("/accept/moved")).await,
        // A change to the current url.
        "stay" => stage.change(CUSTOMERS, id, url).await,
        "delete" => stage.delete(CUSTOMERS, id).await,
        _ => {
            let body = stage.subscription(CUSTOMERS, url).await;
            stage.post(CUSTOMERS, "unsubscribe", &body).await
        }
    }
}
