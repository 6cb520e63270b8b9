//! Rule 4: a hook is effective once its receiver has returned the GUID it was asked for.

use serde_json::json;
use simulator::{deliveries::End, knobs::EchoTime};

use super::{HOOKS, INCOMING, Stage, assert_refused, receiver, subscription};
use crate::product::simulator::receiver::{Receiver, Reply, is_guid};

crate::tests! {
    plain a_hook_is_effective_after_its_echo;
    plain until_the_echo_is_back_events_are_missed;
    plain an_echo_that_is_not_exactly_the_guid_makes_no_hook_effective;
    plain an_echo_during_the_post_decides_whether_there_is_a_hook;
    plain the_guid_is_written_with_dashes_or_without_and_never_twice;
    plain the_echo_replaces_the_query_of_the_uri;
}

async fn a_hook_is_effective_after_its_echo() {
    let (stage, mut receiver) = Stage::echoing().await;

    let id = stage.hook(&receiver, "Customer", "Created").await;
    let asked = receiver.next().await;
    let entity = stage.happen(0, "Customer", "Created");
    let notified = receiver.next().await;

    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", INCOMING));
    let echo = asked.query.strip_prefix("echo=").unwrap();
    assert!(is_guid(&json!(echo)), "{echo}");
    let truth = &stage.truth()[0];
    assert!(truth.effective && truth.echo_failure.is_none());
    assert_eq!(truth.id.simple(), id);
    assert_eq!((notified.method.as_str(), &notified.json()["EntityId"]), ("POST", &json!(entity)));
}

async fn until_the_echo_is_back_events_are_missed() {
    let mut receiver = Receiver::scripted(|received| match received.method.as_str() {
        "GET" => Reply::Held(200),
        _ => Reply::Status(200),
    })
    .await;
    let stage = Stage::start(|_| {}).await;

    let created = stage.client.post(HOOKS, &subscription(&receiver, "Customer", "Created")).await;
    assert_eq!(receiver.next().await.method.as_str(), "GET");
    let listed = stage.client.get(HOOKS).await.rows().len();
    stage.happen(0, "Customer", "Created");
    stage.idle().await;
    let effective = stage.truth()[0].effective;
    // An empty body is not the echo.
    receiver.release(1);
    stage.echoed().await;

    assert_eq!((created.status, listed, effective), (200, 1, false));
    assert!(receiver.taken().is_empty());
    assert_eq!(stage.ends(), [End::Missed]);
}

/// Wrong answers to the echo.
const WRONG: [Reply; 9] = [
    Reply::EchoBetween("", "\n"),
    Reply::EchoBetween("\"", "\""),
    Reply::Text("6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    Reply::Text("{\"echo\":\"6f9619ff-8b86-d011-b42d-00c04fc964ff\"}"),
    Reply::Status(200),
    Reply::Status(204),
    Reply::Status(404),
    Reply::Status(500),
    Reply::Header(302, "location", "/elsewhere"),
];

async fn an_echo_that_is_not_exactly_the_guid_makes_no_hook_effective() {
    let stage = Stage::start(|knobs| knobs.delivery.time_limit = 5_000).await;

    for reply in WRONG {
        let mut receiver = Receiver::scripted(move |_| reply).await;
        stage.hook(&receiver, "Customer", "Created").await;
        let truth = stage.truth().pop().unwrap();

        assert!(!truth.effective && truth.echo_failure.is_some(), "{reply:?}: {truth:?}");
        assert_eq!(receiver.taken().len(), 1, "{reply:?}: it is asked for once");
    }
    stage.turn(|knobs| knobs.delivery.time_limit = 30);
    let receiver = Receiver::scripted(|_| Reply::Held(200)).await;
    stage.hook(&receiver, "Customer", "Created").await;
    stage.happen(0, "Customer", "Created");
    stage.idle().await;

    assert!(stage.truth().iter().all(|hook| !hook.effective && hook.echo_failure.is_some()));
    assert_eq!(stage.ends(), [End::Missed; WRONG.len() + 1]);
}

async fn an_echo_during_the_post_decides_whether_there_is_a_hook() {
    let mut echoing = receiver().await;
    let stage = Stage::start(|knobs| knobs.invoicing.echo = EchoTime::DuringPost).await;

    let created = stage.client.post(HOOKS, &subscription(&echoing, "Customer", "Created")).await;
    let asked = echoing.taken().len();
    let effective: Vec<bool> = stage.truth().iter().map(|hook| hook.effective).collect();

    assert_eq!((created.status, asked, effective), (200, 1, vec![true]));
    for reply in WRONG {
        let receiver = Receiver::scripted(move |_| reply).await;
        let answer = stage.client.post(HOOKS, &subscription(&receiver, "Customer", "Created")).await;
        assert_refused(&answer, 400, "echo");
    }
    assert_eq!(stage.truth().len(), 1);
}

async fn the_guid_is_written_with_dashes_or_without_and_never_twice() {
    let (stage, mut receiver) = Stage::echoing().await;
    let mut seen = std::collections::BTreeSet::new();

    for time in [EchoTime::AfterAnswer, EchoTime::DuringPost] {
        for dashes in [true, false] {
            stage.turn(|knobs| {
                knobs.invoicing.echo = time;
                knobs.invoicing.echo_dashes = dashes;
            });
            stage.hook(&receiver, "Customer", "Created").await;

            let echo = receiver.next().await.query.strip_prefix("echo=").unwrap().to_owned();
            assert_eq!(is_guid(&json!(echo)), dashes, "{echo}");
            assert_eq!(echo.len(), if dashes { 36 } else { 32 }, "{echo}");
            assert!(seen.insert(echo.replace('-', "")), "{echo} came before");
        }
    }
    assert_eq!(stage.truth().iter().filter(|hook| hook.effective).count(), 4);
}

async fn the_echo_replaces_the_query_of_the_uri() {
    let (stage, mut receiver) = Stage::echoing().await;
    let mut body = subscription(&receiver, "Customer", "Created");
    body["uri"] = json!(receiver.url(&format!("{INCOMING}?code=7")));

    stage.client.post(HOOKS, &body).await.ok();
    stage.echoed().await;
    let asked = receiver.next().await;
    stage.happen(0, "Customer", "Created");
    let notified = receiver.next().await;

    assert!(asked.query.starts_with("echo=") && !asked.query.contains("code"), "{}", asked.query);
    assert_eq!(notified.query, "code=7");
}
