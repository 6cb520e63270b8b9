//! `/admin/declarations`: connectors that files declare, and how they compare.

use axum::{extract::State, response::Response};

use super::answer::{Refusal, json};
use crate::worker::herder::Herder;

pub(super) async fn list(State(herder): State<Herder>) -> Result<Response, Refusal> {
    Ok(json(200, &herder.declarations().await?))
}
