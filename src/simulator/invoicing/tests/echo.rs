//! The echo, both ways and all the ways it fails.

use std::time::Duration;

use axum::{
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{Receiver, call, delete, post, provider, provider_with, read, send, subscribe, subscription};
use crate::simulator::{
    invoicing::echo,
    knobs::{EchoTime, Knobs},
    random::Guid,
};

fn during(knobs: &mut Knobs) {
    knobs.invoicing.echo = EchoTime::DuringPost;
}

#[tokio::test]
async fn after_the_answer_the_echo_makes_the_hook_effective() {
    let receiver = Receiver::good().await;
    let provider = provider();
    let body = subscription(&receiver.uri, "Customer", "Created").to_string();

    let answer = send(&provider, call(Some(0)), Method::POST, "webhooks", body).await;
    let held = (provider.invoicing.hooks()[0].effective, receiver.received().len());
    let (status, _) = read(answer).await;
    provider.invoicing.idle().await;

    assert_eq!((status, held), (200, (false, 0)));
    let hook = &provider.invoicing.hooks()[0];
    assert_eq!((hook.effective, &hook.echo_failure), (true, &None));
    let received = receiver.received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].method, Method::GET);
    assert_eq!(received[0].uri.path(), "/api/webhooks/incoming/Invoicing");
}

#[tokio::test]
async fn during_the_post_a_hook_is_effective_once_it_is_answered() {
    let receiver = Receiver::good().await;
    let provider = provider_with(during);

    let (status, _) =
        post(&provider, Some(0), "webhooks", &subscription(&receiver.uri, "Customer", "Created")).await;

    assert_eq!(status, 200);
    assert!(provider.invoicing.hooks()[0].effective);
}

#[tokio::test]
async fn the_echo_replaces_the_query_and_is_written_with_or_without_dashes() {
    for (dashes, length) in [(true, 36), (false, 32)] {
        let receiver = Receiver::good().await;
        let provider = provider_with(|knobs| knobs.invoicing.echo_dashes = dashes);
        let uri = format!("{}?tenant=7&echo=own", receiver.uri);

        subscribe(&provider, 0, &uri, "Customer", "Created").await;
        subscribe(&provider, 0, &uri, "Customer", "Created").await;

        let asked: Vec<String> =
            receiver.received().iter().map(|one| one.uri.query().unwrap().to_owned()).collect();
        for query in &asked {
            let text = query.strip_prefix("echo=").unwrap();
            assert_eq!(text.len(), length);
            assert!(Guid::parse(text).is_some(), "{text}");
        }
        assert_ne!(asked[0], asked[1]);
        assert!(provider.invoicing.hooks().iter().all(|hook| hook.effective));
    }
}

/// An answer to an echo.
type Answer = fn(&str) -> Response;

/// Answers that are no echo, and what the refusal says of each.
const BAD: [(Answer, &str); 9] = [
    (|_| StatusCode::OK.into_response(), "body"),
    (|_| "something else".into_response(), "body"),
    (|echo| format!("{echo}\n").into_response(), "body"),
    (|echo| format!(" {echo}").into_response(), "body"),
    (|echo| format!("\"{echo}\"").into_response(), "body"),
    (|echo| echo.to_uppercase().into_response(), "body"),
    (|echo| echo[1..].to_owned().into_response(), "body"),
    (|echo| (StatusCode::NOT_FOUND, echo.to_owned()).into_response(), "status 404"),
    (|echo| ([(header::SET_COOKIE, "session=1")], echo.to_owned()).into_response(), "cookies"),
];

#[tokio::test]
async fn after_the_answer_a_failed_echo_leaves_the_hook_without_effect() {
    for (answer, word) in BAD {
        let receiver = Receiver::start(answer).await;
        let provider = provider();

        subscribe(&provider, 0, &receiver.uri, "Customer", "Created").await;

        let hook = &provider.invoicing.hooks()[0];
        assert!(!hook.effective, "{word}");
        assert!(hook.echo_failure.as_ref().unwrap().contains(word), "{hook:?}");
        assert_eq!(receiver.received().len(), 1);
    }
}

#[tokio::test]
async fn during_the_post_a_failed_echo_refuses_it() {
    for (answer, word) in BAD {
        let receiver = Receiver::start(answer).await;
        let provider = provider_with(during);

        let (status, answer) =
            post(&provider, Some(0), "webhooks", &subscription(&receiver.uri, "Due", "Updated")).await;

        let message = answer["message"].as_str().unwrap();
        assert_eq!(status, 400);
        assert!(message.starts_with("uri: ") && message.contains(word), "{message}");
        assert!(provider.invoicing.hooks().is_empty());
    }
}

#[tokio::test]
async fn any_2xx_will_do_for_an_echo() {
    let receiver = Receiver::start(|echo| (StatusCode::ACCEPTED, echo.to_owned()).into_response()).await;
    let provider = provider();

    subscribe(&provider, 0, &receiver.uri, "Customer", "Created").await;

    assert!(provider.invoicing.hooks()[0].effective);
}

#[tokio::test]
async fn a_receiver_that_takes_too_long_or_is_not_there_gives_no_echo() {
    let slow = Receiver::start_async(|_| std::future::pending()).await;
    let nobody = "http://127.0.0.1:1/api/webhooks/incoming/Invoicing".to_owned();
    for (uri, word) in [(&slow.uri, "within 20ms"), (&nobody, "no answer: connection: Connection refused")] {
        let provider = provider_with(|knobs| {
            during(knobs);
            knobs.delivery.time_limit = if word.contains("20ms") { 20 } else { 5_000 };
        });

        let (status, answer) =
            post(&provider, Some(0), "webhooks", &subscription(uri, "Customer", "Created")).await;

        assert_eq!(status, 400);
        assert!(answer["message"].as_str().unwrap().contains(word), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_cut_by_the_time_limit() {
    let receiver = Receiver::start(|echo| {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(echo.to_owned())]);
        let rest = futures::stream::pending();
        axum::body::Body::from_stream(futures::StreamExt::chain(first, rest)).into_response()
    })
    .await;
    let client = reqwest::Client::new();
    let url = receiver.uri.parse().unwrap();

    let failed = echo::ask(&client, &url, "text", Duration::from_millis(20)).await.unwrap_err();

    assert!(matches!(failed, echo::Failure::TimeLimit(_)), "{failed}");
}

#[tokio::test]
async fn a_hook_deleted_before_its_echo_stays_deleted() {
    let receiver = Receiver::good().await;
    let provider = provider();
    let body = subscription(&receiver.uri, "Customer", "Created").to_string();
    let answer = send(&provider, call(Some(0)), Method::POST, "webhooks", body).await;
    let id = provider.invoicing.hooks()[0].id.simple();

    let (deleted, _) = delete(&provider, Some(0), &id).await;
    let (created, hook) = read(answer).await;
    provider.invoicing.idle().await;

    assert_eq!((created, deleted, &hook["id"]), (200, 200, &json!(id)));
    assert!(provider.invoicing.hooks().is_empty());
}
