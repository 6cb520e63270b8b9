//! Notifications all the way to a receiver.

use std::sync::Arc;

use axum::{
    http::{Method, StatusCode, header},
    response::IntoResponse,
};
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Receiver, delete, provider, provider_with, subscribe};
use crate::simulator::{
    Provider,
    catalog::{Action, Entity},
    clock::Ticks,
    deliveries::{self, End, Entry, Family},
    knobs::InvoicingBody,
    random::Guid,
    world::InvoicingChange,
};

/// Delivers until dropped.
fn run(provider: &Arc<Provider>) -> AbortOnDropHandle<()> {
    let provider = Arc::clone(provider);
    AbortOnDropHandle::new(tokio::spawn(deliveries::run(provider, CancellationToken::new())))
}

fn announce(provider: &Provider, number: u64, action: Action) {
    let at = Ticks(17_000_000_000_000_000);
    let entity = Entity::Customer;
    let change = InvoicingChange { number, company: 0, entity, id: "4711".into(), action, revision: 1, at };
    provider.invoicing.announce(provider, &change);
}

fn entries(provider: &Provider) -> Vec<Entry> {
    provider.deliveries.entries(0, 100).into_iter().map(|(_, entry)| entry).collect()
}

#[tokio::test]
async fn an_effective_hook_is_posted_its_changes_with_their_signature() {
    let receiver = Receiver::good().await;
    let provider = provider();
    let _running = run(&provider);
    let id = subscribe(&provider, 0, &format!("{}?key=7", receiver.uri), "Customer", "Updated").await;

    announce(&provider, 1, Action::Updated);
    announce(&provider, 2, Action::Created);
    provider.deliveries.idle().await;

    let received = receiver.received();
    let [_echo, posted] = &received[..] else { panic!("{received:?}") };
    assert_eq!((&posted.method, posted.uri.query()), (&Method::POST, Some("key=7")));
    assert!(posted.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("application/json"));
    assert!(posted.headers["ms-signature"].to_str().unwrap().starts_with("sha256="));
    let body: Value = serde_json::from_slice(&posted.body).unwrap();
    assert_eq!((&body["EntityId"], &body["Entity"]), (&Value::from("4711"), &Value::from("Customer")));
    let entries = entries(&provider);
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].family, entries[0].webhook.simple()), (Family::Invoicing, id));
    assert_eq!(entries[0].end, Some(End::Accepted));
}

#[tokio::test]
async fn failed_deliveries_are_counted_in_wrapped_bodies_then_given_up_and_the_hook_stays() {
    let receiver = Receiver::start(|echo| match echo {
        "" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        echo => echo.to_owned().into_response(),
    })
    .await;
    let provider = provider_with(|knobs| {
        knobs.invoicing.retries = vec![0, 0];
        knobs.invoicing.body = InvoicingBody::Wrapped;
    });
    let _running = run(&provider);
    subscribe(&provider, 0, &receiver.uri, "Customer", "Created").await;

    announce(&provider, 1, Action::Created);
    provider.deliveries.idle().await;

    let attempts: Vec<Value> = receiver.received()[1..]
        .iter()
        .map(|one| serde_json::from_slice::<Value>(&one.body).unwrap()["Attempt"].clone())
        .collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert_eq!(entries(&provider)[0].end, Some(End::GivenUp));
    assert!(provider.invoicing.hooks()[0].effective);
}

#[tokio::test]
async fn gone_ends_the_attempts_and_the_hook_stays() {
    let receiver = Receiver::start(|echo| match echo {
        "" => StatusCode::GONE.into_response(),
        echo => echo.to_owned().into_response(),
    })
    .await;
    let provider = provider_with(|knobs| knobs.invoicing.retries = vec![0, 0]);
    let _running = run(&provider);
    subscribe(&provider, 0, &receiver.uri, "Customer", "Created").await;

    announce(&provider, 1, Action::Created);
    announce(&provider, 2, Action::Created);
    provider.deliveries.idle().await;

    let ended: Vec<_> = entries(&provider).iter().map(|entry| (entry.attempts.len(), entry.end)).collect();
    assert_eq!(ended, [(1, Some(End::GivenUp)), (1, Some(End::GivenUp))]);
    assert!(provider.invoicing.hooks()[0].effective);
}

#[tokio::test]
async fn what_a_hook_does_not_get_is_in_the_journal() {
    let receiver = Receiver::good().await;
    let silent = Receiver::start(|_| StatusCode::OK.into_response()).await;
    let provider = provider_with(|knobs| knobs.delivery.hold = true);
    let paused = subscribe(&provider, 0, &receiver.uri, "Customer", "Created").await;
    subscribe(&provider, 0, &silent.uri, "Customer", "Created").await;
    let deleted = subscribe(&provider, 0, &receiver.uri, "Customer", "Deleted").await;
    let _running = run(&provider);

    provider.invoicing.pause(&provider, Guid::parse(&paused).unwrap(), true);
    announce(&provider, 1, Action::Created);
    announce(&provider, 2, Action::Deleted);
    delete(&provider, Some(0), &deleted).await;
    provider.turn(|knobs| knobs.delivery.hold = false);
    provider.deliveries.idle().await;

    let ends: Vec<_> = entries(&provider).iter().map(|entry| entry.end).collect();
    assert_eq!(ends, [Some(End::Missed), Some(End::Missed), Some(End::Abandoned)]);
    let methods: Vec<_> = receiver.received().iter().map(|one| one.method.clone()).collect();
    assert_eq!(methods, [Method::GET, Method::GET]);
}
