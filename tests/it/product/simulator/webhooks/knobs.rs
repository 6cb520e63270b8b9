//! Knobs of webhooks: what the document leaves open.

use serde_json::json;
use simulator::{
    deliveries::End,
    knobs::{AcknowledgeTime, ChangeAnswer, FailedAcknowledge, HttpStatus, TimestampEpoch},
};

use super::{CUSTOMERS, Stage, assert_done, id};
use crate::product::simulator::receiver::{Receiver, Reply, is_guid};

crate::tests! {
    plain a_failure_has_the_status_and_errors_of_the_knobs;
    plain an_acknowledge_can_precede_the_answer;
    plain an_answer_does_not_wait_for_retries_of_an_acknowledge;
    plain without_an_acknowledge_a_webhook_stays_awaiting;
    plain a_webhook_whose_acknowledge_failed_can_be_deleted;
    plain an_unsubscribe_ends_all_with_its_body;
    plain a_change_answers_a_result_a_record_or_nothing;
    plain no_more_webhooks_of_a_resource_live_than_the_knob_allows;
    plain a_timestamp_has_the_epoch_and_offset_of_the_knobs;
    plain a_webhook_disabled_by_the_provider_itself_misses_events;
}

async fn a_failure_has_the_status_and_errors_of_the_knobs() {
    let stage = Stage::start(|_| {}).await;

    for (status, state, objects) in [(422, 0, true), (200, 1, true), (400, -1, false), (409, 2, false)] {
        stage.turn(|knobs| {
            knobs.accounting.failure_status = HttpStatus::new(status).unwrap();
            knobs.accounting.failure_state = state;
            knobs.accounting.error_objects = objects;
        });

        let answer = stage.post(CUSTOMERS, "subscribe", &json!({})).await;

        let result = answer.json();
        assert_eq!((answer.status, &result["responseState"]), (status, &json!(state)), "{result}");
        assert!(is_guid(&result["webhookId"]), "{result}");
        let errors = result["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 4, "one for each field: {result}");
        for error in errors {
            if objects {
                assert!(error["code"].is_string() && error["message"].is_string(), "{error}");
            } else {
                assert!(error.is_string(), "{error}");
            }
        }
    }
}

async fn an_acknowledge_can_precede_the_answer() {
    let (stage, mut receiver) =
        Stage::accepting(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::BeforeAnswer).await;

    let id = stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;
    let after_subscribe = (receiver.taken().len(), stage.flags(CUSTOMERS, &id).await);
    stage.change(CUSTOMERS, &id, &receiver.url("/new")).await.ok();
    let after_change = (receiver.taken().len(), stage.flags(CUSTOMERS, &id).await);

    assert_eq!(after_subscribe, (1, (true, false)));
    assert_eq!(after_change, (1, (true, false)));
}

async fn an_answer_does_not_wait_for_retries_of_an_acknowledge() {
    let mut receiver = Receiver::scripted(|_| Reply::Status(500)).await;
    let stage = Stage::start(|knobs| {
        knobs.accounting.acknowledge = AcknowledgeTime::BeforeAnswer;
        knobs.accounting.retries = vec![3_600_000];
    })
    .await;

    let id = stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;

    assert_eq!(receiver.taken().len(), 1);
    assert_eq!(stage.flags(CUSTOMERS, &id).await, (false, false));
    assert_eq!(stage.ends(), [("Acknowledge".to_owned(), None)]);
}

async fn without_an_acknowledge_a_webhook_stays_awaiting() {
    let (stage, mut receiver) =
        Stage::accepting(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never).await;

    let id = stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;
    stage.happen("customers", "updated");
    stage.idle().await;

    assert_eq!(stage.flags(CUSTOMERS, &id).await, (false, false));
    assert!(receiver.taken().is_empty());
    assert_eq!(stage.ends(), [("CustomerUpdated".to_owned(), Some(End::Missed))]);
}

async fn a_webhook_whose_acknowledge_failed_can_be_deleted() {
    let mut accepting = Receiver::accepting().await;
    let refusing = Receiver::scripted(|_| Reply::Status(204)).await;
    let stage = Stage::start(|_| {}).await;

    for (becomes, deleted) in [(FailedAcknowledge::StaysAwaiting, false), (FailedAcknowledge::Deleted, true)]
    {
        stage.turn(|knobs| knobs.accounting.failed_acknowledge = becomes);
        let subscribed = stage.subscribe(CUSTOMERS, &refusing.url("/hook")).await;
        let moved = stage.active(CUSTOMERS, &mut accepting).await;
        stage.change(CUSTOMERS, &moved, &refusing.url("/moved")).await.ok();
        stage.idle().await;

        for id in [subscribed, moved] {
            let record = stage.record(CUSTOMERS, &id).await;
            assert_eq!((&record["isActive"], &record["isDeleted"]), (&json!(false), &json!(deleted)));
            assert_eq!(record.get("deletedAt").is_some(), deleted, "{becomes:?}");
        }
    }
}

async fn an_unsubscribe_ends_all_with_its_body() {
    let (stage, receiver) = Stage::accepting(|_| {}).await;
    let same = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;
    let mut shuffled = same.clone();
    shuffled["eventTypes"].as_array_mut().unwrap().reverse();
    let mut other_secret = same.clone();
    other_secret["secret"] = json!("another");
    let mut other_url = same.clone();
    other_url["url"] = json!(receiver.url("/other"));
    let bodies = [&same, &shuffled, &other_secret, &other_url];

    let mut ids = Vec::new();
    for body in bodies {
        ids.push(id(&stage.post(CUSTOMERS, "subscribe", body).await.ok()));
    }
    stage.idle().await;

    let ended = stage.post(CUSTOMERS, "unsubscribe", &same).await;

    assert_done(&ended, 4, &ids[0]);
    for (id, lives) in ids.iter().zip([false, false, true, true]) {
        assert_eq!(stage.flags(CUSTOMERS, id).await, (lives, false));
    }
}

async fn a_change_answers_a_result_a_record_or_nothing() {
    let (stage, receiver, id) = Stage::subscribed().await;

    for (number, knob) in
        [ChangeAnswer::Result, ChangeAnswer::Record, ChangeAnswer::Nothing].into_iter().enumerate()
    {
        stage.turn(|knobs| knobs.accounting.change_answer = knob);
        let url = receiver.url(&format!("/{number}"));
        let answer = stage.change(CUSTOMERS, &id, &url).await;
        stage.idle().await;

        assert_eq!(answer.status, 200, "{answer:?}");
        match knob {
            ChangeAnswer::Result => {
                let result = answer.json();
                assert_eq!((&result["webhookId"], &result["errors"]), (&json!(id), &json!([])));
                assert!(result["responseState"].is_i64(), "{result}");
            }
            ChangeAnswer::Record => {
                let record = answer.json();
                assert_eq!((&record["id"], &record["url"]), (&json!(id), &json!(url)));
                assert_eq!(record["isActive"], false, "it awaits its contract");
            }
            ChangeAnswer::Nothing => assert_eq!(answer.body, ""),
        }
    }
}

async fn no_more_webhooks_of_a_resource_live_than_the_knob_allows() {
    let (stage, receiver) = Stage::accepting(|knobs| knobs.accounting.max_webhooks = Some(2)).await;
    let body = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;
    let first = id(&stage.post(CUSTOMERS, "subscribe", &body).await.ok());
    stage.post(CUSTOMERS, "subscribe", &body).await.ok();

    let third = stage.post(CUSTOMERS, "subscribe", &body).await;
    stage.subscribe("/accounting/api/accounts", &receiver.url("/hook")).await;
    stage.delete(CUSTOMERS, &first).await.ok();
    let fourth = stage.post(CUSTOMERS, "subscribe", &body).await;

    super::assert_refused(&third, "one too many");
    assert_eq!(fourth.status, 200, "one that is deleted makes room: {fourth:?}");
}

async fn a_timestamp_has_the_epoch_and_offset_of_the_knobs() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;

    for (epoch, offset, expected) in [
        (TimestampEpoch::DotNet, 0, 639_303_408_000_000_000_i64),
        (TimestampEpoch::DotNet, 60, 639_303_444_000_000_000),
        (TimestampEpoch::FileTime, 0, 134_392_176_000_000_000),
        (TimestampEpoch::FileTime, -30, 134_392_158_000_000_000),
    ] {
        stage.turn(|knobs| {
            knobs.accounting.timestamp = epoch;
            knobs.accounting.timestamp_offset = offset;
        });
        stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;

        assert_eq!(receiver.next().await.json()["Timestamp"], expected, "{epoch:?} {offset}");
    }
}

async fn a_webhook_disabled_by_the_provider_itself_misses_events() {
    let (stage, mut receiver, id) = Stage::subscribed().await;

    stage.control.post(&format!("/_control/webhooks/{id}/disable"), &json!({})).await.ok();
    stage.happen("customers", "updated");
    let again = stage.control.post(&format!("/_control/webhooks/{id}/disable"), &json!({})).await;
    stage.idle().await;

    assert_eq!(stage.flags(CUSTOMERS, &id).await, (false, false));
    assert_eq!(again.status, 404, "it is not active any more");
    assert!(receiver.taken().is_empty());
}
