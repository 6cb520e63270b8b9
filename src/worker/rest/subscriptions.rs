//! `/connectors/{name}/subscriptions` and `/connectors/{name}/gaps`: ours, beside Kafka Connect's.

use axum::{extract::State, response::Response};

use super::{
    answer::{Refusal, json},
    request::{Body, Name, Query},
};
use crate::worker::herder::Herder;

type Answer = Result<Response, Refusal>;

pub(super) async fn list(State(herder): State<Herder>, Name(name): Name, query: Query) -> Answer {
    Ok(json(200, &herder.subscriptions(&name, query.flag("all", false)).await?))
}

pub(super) async fn plan(State(herder): State<Herder>, Name(name): Name, query: Query) -> Answer {
    Ok(json(200, &herder.subscription_plan(&name, query.flag("removed", false)).await?))
}

/// Accepted, not done: whoever runs the connector's task does it, and says so in the list.
pub(super) async fn apply(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(202, &herder.wish(&name, false).await?))
}

pub(super) async fn remove(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(202, &herder.wish(&name, true).await?))
}

pub(super) async fn gaps(State(herder): State<Herder>, Name(name): Name, query: Query) -> Answer {
    Ok(json(200, &herder.gaps(&name, query.flag("all", false)).await?))
}

pub(super) async fn accept_gap(State(herder): State<Herder>, Name(name): Name, body: Body) -> Answer {
    Ok(json(200, &herder.accept_gap(&name, &body.gap()?).await?))
}
