//! `/connector-plugins`.

use axum::{Extension, extract::State, response::Response};

use super::{
    answer::{Refusal, json},
    request::{Body, Name, Query},
    security::Role,
};
use crate::worker::{herder::Herder, plugins::Depth};

pub(super) async fn list(State(herder): State<Herder>, query: Query) -> Response {
    json(200, &herder.plugins(query.flag("connectorsOnly", true)))
}

pub(super) async fn config(State(herder): State<Herder>, Name(plugin): Name) -> Result<Response, Refusal> {
    Ok(json(200, &herder.plugin_config(&plugin)?))
}

pub(super) async fn validate(
    State(herder): State<Herder>,
    Extension(role): Extension<Role>,
    Name(plugin): Name,
    body: Body,
) -> Result<Response, Refusal> {
    let depth = if role == Role::Administrator { Depth::Full } else { Depth::Form };
    Ok(json(200, &herder.validate(&plugin, body.config()?, depth).await?))
}
