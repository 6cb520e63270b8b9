//! `/_control`: what a test, a demo or a person at a terminal may do to the provider, and what is true now.
//!
//! It is served beside the provider's own routes and needs neither key nor token. Answers are JSON; lists that may be long
//! have one JSON object per line. An error is 400 or 404 with a `message`.

mod truth;

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub use self::truth::{RecordTruth, records};
use super::{
    InvalidSetting, SimulatedProvider, answer::json_answer, clock::SECOND, knobs::Knobs, random::Guid,
};

/// Changes of the world in one call.
const MAX_STEPS: u64 = 1_000_000;

/// Routes under `/_control`.
pub fn router() -> Router<Arc<SimulatedProvider>> {
    Router::new()
        .route("/_control", get(summary))
        .route("/_control/knobs", get(knobs).put(replace_knobs).patch(patch_knobs))
        .route("/_control/clock", get(clock).post(set_clock))
        .route("/_control/step", post(step))
        .route("/_control/webhooks/{id}/disable", post(disable_webhook))
        .merge(truth::router())
}

type ControlResult = Result<Response, ControlError>;

/// A call that was not understood, or names something that does not exist.
#[derive(Debug)]
struct ControlError {
    status: u16,
    message: String,
}

impl ControlError {
    fn bad_request(message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into() }
    }
}

impl From<serde_json::Error> for ControlError {
    fn from(error: serde_json::Error) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<Vec<InvalidSetting>> for ControlError {
    fn from(invalid: Vec<InvalidSetting>) -> Self {
        Self::bad_request(invalid.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        json_answer(self.status, &json!({ "message": self.message }))
    }
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ControlError> {
    Ok(serde_json::from_slice(body)?)
}

async fn summary(State(provider): State<Arc<SimulatedProvider>>) -> Response {
    let (changes, seed) = {
        let world = provider.world();
        (world.changes(), world.seed())
    };
    json_answer(
        200,
        &json!({
            "now": provider.clock.now().iso(),
            "seed": seed,
            "changes": changes,
            "deliveries": provider.deliveries.count(),
            "requests": provider.gateway.request_count(),
            "webhooks": provider.accounting.webhooks().len(),
            "hooks": provider.invoicing.hooks().len(),
        }),
    )
}

async fn knobs(State(provider): State<Arc<SimulatedProvider>>) -> Response {
    json_answer(200, &*provider.knobs())
}

async fn replace_knobs(State(provider): State<Arc<SimulatedProvider>>, body: Bytes) -> ControlResult {
    let wanted: Knobs = parse(&body)?;
    wanted.validate()?;
    provider.turn_knobs(|knobs| {
        *knobs = wanted;
        true
    });
    Ok(knobs(State(provider)).await)
}

/// Changes the knobs that are named, as JSON Merge Patch (RFC 7396) does; `null` restores a default. A patch that names
/// `faults` restarts their counts.
async fn patch_knobs(State(provider): State<Arc<SimulatedProvider>>, body: Bytes) -> ControlResult {
    let patch: Value = parse(&body)?;
    if !patch.is_object() {
        return Err(ControlError::bad_request(
            "a patch of the knobs is a JSON object, for example {\"changesPerSecond\": 5}",
        ));
    }
    // Read, merged and written under one lock, so that of two concurrent patches neither is lost.
    let mut result = Ok(());
    provider.turn_knobs(|knobs| match merged(knobs, &patch) {
        Ok(wanted) => {
            *knobs = wanted;
            patch.get("faults").is_some()
        }
        Err(error) => {
            result = Err(error);
            false
        }
    });
    result?;
    Ok(knobs(State(provider)).await)
}

fn merged(knobs: &Knobs, patch: &Value) -> Result<Knobs, ControlError> {
    let mut value = serde_json::to_value(knobs)?;
    merge(&mut value, patch);
    let wanted: Knobs = serde_json::from_value(value)?;
    wanted.validate()?;
    Ok(wanted)
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    if let Value::Object(target) = target {
        for (name, wanted) in patch {
            if wanted.is_null() {
                target.remove(name);
            } else {
                merge(target.entry(name).or_insert(Value::Null), wanted);
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClockChange {
    /// Advances the clock; negative sets it back.
    advance_seconds: Option<f64>,
    /// Sets how far the clock is ahead of its base.
    skew_seconds: Option<f64>,
}

async fn clock(State(provider): State<Arc<SimulatedProvider>>) -> Response {
    json_answer(200, &json!({ "now": provider.clock.now().iso() }))
}

async fn set_clock(State(provider): State<Arc<SimulatedProvider>>, body: Bytes) -> ControlResult {
    let change: ClockChange = parse(&body)?;
    match (change.advance_seconds, change.skew_seconds) {
        (Some(by), None) => provider.clock.advance(ticks(by)?),
        (None, Some(by)) => provider.clock.skew(ticks(by)?),
        _ => return Err(ControlError::bad_request("give either advanceSeconds or skewSeconds")),
    }
    Ok(clock(State(provider)).await)
}

#[expect(clippy::cast_possible_truncation, reason = "a century of ticks fits")]
#[expect(clippy::cast_precision_loss, reason = "ten million fits")]
fn ticks(seconds: f64) -> Result<i64, ControlError> {
    const CENTURY: f64 = 100.0 * 366.0 * 86_400.0;
    if !(-CENTURY..=CENTURY).contains(&seconds) {
        return Err(ControlError::bad_request("give seconds, at most a century either way"));
    }
    Ok((seconds * SECOND as f64) as i64)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    changes: u64,
}

async fn step(State(provider): State<Arc<SimulatedProvider>>, body: Bytes) -> ControlResult {
    let steps: Steps = parse(&body)?;
    if steps.changes > MAX_STEPS {
        return Err(ControlError::bad_request(format!("changes is at most {MAX_STEPS} per call")));
    }
    provider.step(steps.changes).await;
    let total = provider.world().changes();
    Ok(json_answer(200, &json!({ "changes": total })))
}

/// Disables a webhook, as the provider does after failed deliveries.
async fn disable_webhook(
    State(provider): State<Arc<SimulatedProvider>>,
    Path(id): Path<String>,
) -> ControlResult {
    let webhook =
        Guid::parse(&id).ok_or_else(|| ControlError::bad_request(format!("{id:?} is not a GUID")))?;
    if !provider.accounting.disable(webhook) {
        return Err(ControlError { status: 404, message: format!("there is no active webhook {id}") });
    }
    Ok(json_answer(200, &json!({ "webhook": id, "act": "disable" })))
}
