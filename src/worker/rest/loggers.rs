//! `/admin/loggers`.

use axum::{extract::State, response::Response};

use super::{
    answer::{Refusal, empty, json},
    request::{Body, Name, Query},
};
use crate::worker::herder::Herder;

pub(super) async fn list(State(herder): State<Herder>) -> Response {
    json(200, &herder.loggers())
}

pub(super) async fn one(State(herder): State<Herder>, Name(logger): Name) -> Result<Response, Refusal> {
    Ok(json(200, &herder.logger(&logger)?))
}

/// A scope other than `cluster` means this worker, as in Kafka Connect.
pub(super) async fn set(
    State(herder): State<Herder>,
    Name(logger): Name,
    query: Query,
    body: Body,
) -> Result<Response, Refusal> {
    let level = body.level()?;
    let scope = query.all("scope").and_then(|values| values.first().copied()).unwrap_or("worker");
    if scope.eq_ignore_ascii_case("cluster") {
        herder.set_cluster_logger(&logger, &level).await?;
        return Ok(empty(204));
    }
    Ok(json(200, &herder.set_logger(&logger, &level)?))
}
