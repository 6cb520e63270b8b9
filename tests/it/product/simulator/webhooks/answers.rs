//! Answers of receivers: which are accepted, and what happens otherwise.

use serde_json::json;
use simulator::{deliveries::End, knobs::Accepts};

use super::{CUSTOMERS, Stage};
use crate::product::simulator::receiver::{Receiver, Reply};

crate::tests! {
    plain an_answer_is_accepted_as_the_knob_says;
    plain a_receiver_has_five_seconds_by_default;
    plain a_receiver_that_is_not_there_has_failed;
    plain an_acknowledge_that_fails_first_is_tried_again;
    plain a_retry_is_abandoned_once_its_webhook_has_ended;
}

/// Answers; whether each is 200 without cookies, and whether 2xx without cookies.
const ANSWERS: [(Reply, bool, bool); 10] = [
    (Reply::Status(200), true, true),
    (Reply::Text("any text"), true, true),
    (Reply::Status(201), false, true),
    (Reply::Status(202), false, true),
    (Reply::Status(204), false, true),
    (Reply::Header(200, "set-cookie", "a=b"), false, false),
    (Reply::Header(302, "location", "/elsewhere"), false, false),
    (Reply::Status(401), false, false),
    (Reply::Status(410), false, false),
    (Reply::Status(500), false, false),
];

async fn an_answer_is_accepted_as_the_knob_says() {
    let stage = Stage::start(|knobs| knobs.accounting.retries = vec![1]).await;

    for (reply, ok, any) in ANSWERS {
        for (accepts, accepted) in [(Accepts::Only200, ok), (Accepts::Any2xx, any)] {
            stage.turn(|knobs| knobs.delivery.accepts = accepts);
            let about = format!("{reply:?} where {accepts:?}");
            let receiver = Receiver::scripted(move |_| reply).await;
            let id = stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;
            stage.idle().await;
            assert_eq!(stage.flags(CUSTOMERS, &id).await, (ok, false), "an Acknowledge needs 200: {about}");
            stage.delete(CUSTOMERS, &id).await.ok();

            let attempts = if accepted { 1 } else { 2 };
            assert_eq!(
                event_answered(&stage, reply).await,
                (accepted, attempts),
                "active, attempts: {about}"
            );
        }
    }
}

/// Answers an event like this; whether its webhook is still active, and how often the event was sent.
async fn event_answered(stage: &Stage, reply: Reply) -> (bool, usize) {
    let mut receiver = Receiver::scripted(move |received| match received.event().as_str() {
        "Acknowledge" => Reply::Status(200),
        _ => reply,
    })
    .await;
    let id = stage.active(CUSTOMERS, &mut receiver).await;
    stage.happen("customers", "updated");
    stage.idle().await;
    let (active, deleted) = stage.flags(CUSTOMERS, &id).await;
    assert!(!deleted);
    stage.delete(CUSTOMERS, &id).await.ok();
    (active, receiver.taken().len())
}

async fn a_receiver_has_five_seconds_by_default() {
    let mut receiver = Receiver::scripted(|_| Reply::Held(200)).await;
    let stage = Stage::start(|_| {}).await;
    let default = stage.control.get("/_control/knobs").await.ok();
    stage.turn(|knobs| {
        knobs.delivery.time_limit = 40;
        knobs.accounting.retries = vec![1];
    });

    let id = stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;
    stage.idle().await;

    assert_eq!(default["delivery"]["timeLimit"], json!(5_000));
    assert_eq!(stage.flags(CUSTOMERS, &id).await, (false, false));
    assert!(receiver.taken().iter().all(|received| received.event() == "Acknowledge"));
    let entry = &stage.entries()[0];
    assert_eq!((entry.end, entry.attempts.len()), (Some(End::GivenUp), 2));
    for attempt in &entry.attempts {
        assert_eq!((attempt.status, attempt.error.as_deref()), (None, Some("time limit")));
        assert!(attempt.took >= 40, "{attempt:?}");
    }
}

async fn a_receiver_that_is_not_there_has_failed() {
    let (stage, _receiver, id) = Stage::subscribed().await;
    // A bound socket that does not listen refuses connections.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nowhere = format!("http://{}/hook", taken.local_addr().unwrap());

    stage.change(CUSTOMERS, &id, &nowhere).await.ok();
    stage.idle().await;

    assert_eq!(stage.flags(CUSTOMERS, &id).await, (false, false));
    let entry = stage.entries().pop().unwrap();
    assert_eq!((entry.end, entry.attempts.len()), (Some(End::GivenUp), 3));
    assert!(entry.attempts.iter().all(|attempt| attempt.status.is_none() && attempt.error.is_some()));
}

async fn an_acknowledge_that_fails_first_is_tried_again() {
    let count = std::sync::atomic::AtomicU32::new(0);
    let mut receiver = Receiver::scripted(move |_| {
        let earlier = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Reply::Status(if earlier < 2 { 503 } else { 200 })
    })
    .await;
    let stage = Stage::start(|_| {}).await;

    let id = stage.subscribe(CUSTOMERS, &receiver.url("/hook")).await;
    stage.idle().await;

    assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false));
    assert_eq!(receiver.taken().len(), 3);
    let statuses: Vec<_> = stage.entries()[0].attempts.iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [Some(503), Some(503), Some(200)]);
}

async fn a_retry_is_abandoned_once_its_webhook_has_ended() {
    for end in ["delete", "disable"] {
        let mut receiver = Receiver::scripted(|received| match received.event().as_str() {
            "Acknowledge" => Reply::Status(200),
            _ => Reply::Held(500),
        })
        .await;
        let stage = Stage::start(|_| {}).await;
        let id = stage.active(CUSTOMERS, &mut receiver).await;

        stage.happen("customers", "updated");
        receiver.next().await;
        stage.turn(|knobs| knobs.delivery.hold = true);
        receiver.release(1);
        let ended = match end {
            "delete" => stage.delete(CUSTOMERS, &id).await,
            _ => stage.switch(CUSTOMERS, &id, false).await,
        };
        stage.turn(|knobs| knobs.delivery.hold = false);
        stage.idle().await;

        assert_eq!(ended.status, 200, "{end}");
        assert!(receiver.taken().is_empty(), "{end}");
        assert_eq!(stage.ends()[1], ("CustomerUpdated".to_owned(), Some(End::Abandoned)), "{end}");
    }
}
