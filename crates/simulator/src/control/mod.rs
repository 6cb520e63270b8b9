//! `/_control`: what a test, a demo or a person at a terminal may do to the provider, and what is true now.
//!
//! It stands beside the provider's own routes and shares nothing with them: no key, no token. Answers are JSON; lists
//! that may be long are one JSON object a line, written as they are read. A refusal is 400 (or 404) with a `message`.

mod body;
mod truth;
mod webhooks;
mod world;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    response::Response,
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};

use self::body::{ControlError, ControlResult, done, parse, parse_or_default};
pub use self::truth::{PayrollTruth, RecordTruth, payroll, records};
use super::{Provider, clock::SECOND, knobs::Knobs, random::Guid};

/// The longest a call waits for deliveries to be done.
const LONGEST_WAIT: f64 = 600.0;

/// Routes under `/_control`.
pub fn router() -> Router<Arc<Provider>> {
    Router::new()
        .route("/_control", get(summary))
        .route("/_control/knobs", get(knobs).put(replace_knobs).patch(patch_knobs))
        .route("/_control/clock", get(clock).post(set_clock))
        .route("/_control/identity/rotate-keys", post(rotate_keys))
        .route("/_control/identity/revoke", post(revoke))
        .route("/_control/identity/grant", post(grant))
        .route("/_control/invoicing/grant", post(invoicing_grant))
        .route("/_control/deliveries/idle", post(wait_until_idle))
        .merge(webhooks::router())
        .merge(world::router())
        .merge(truth::router())
}

async fn summary(State(provider): State<Arc<Provider>>) -> Response {
    let (changes, seed) = {
        let world = provider.world();
        (world.changes(), world.seed())
    };
    done(&json!({
        "now": provider.clock.now().iso(),
        "seed": seed,
        "changes": changes,
        "deliveries": provider.deliveries.count(),
        "requests": provider.gateway.request_count(),
        "webhooks": provider.accounting.webhooks().len(),
        "hooks": provider.invoicing.hooks().len(),
    }))
}

async fn knobs(State(provider): State<Arc<Provider>>) -> ControlResult {
    Ok(done(&serde_json::to_value(provider.knobs().as_ref())?))
}

async fn replace_knobs(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let wanted: Knobs = parse(&body)?;
    wanted.validate()?;
    provider.turn_and_arm(|knobs| {
        *knobs = wanted;
        true
    });
    knobs(State(provider)).await
}

/// Turns the knobs that are named and leaves the others, as JSON Merge Patch (RFC 7396) has it; `null` sets one back to
/// its default. A patch that names `faults` has them begin again.
async fn patch_knobs(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let patch: Value = parse(&body)?;
    if !patch.is_object() {
        return Err(ControlError::bad(
            "a patch of the knobs is a JSON object, for example {\"changesPerSecond\": 5}",
        ));
    }
    // Read, merged and written under one lock, so that two patches at once both count.
    let mut refused = None;
    provider.turn_and_arm(|knobs| match merged(knobs, &patch) {
        Ok(wanted) => {
            *knobs = wanted;
            patch.get("faults").is_some()
        }
        Err(refusal) => {
            refused = Some(refusal);
            false
        }
    });
    match refused {
        Some(refusal) => Err(refusal),
        None => knobs(State(provider)).await,
    }
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
    /// Moves it, back when negative.
    advance_seconds: Option<f64>,
    /// Sets how far it is ahead.
    skew_seconds: Option<f64>,
}

async fn clock(State(provider): State<Arc<Provider>>) -> Response {
    done(&json!({ "now": provider.clock.now().iso() }))
}

async fn set_clock(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let change: ClockChange = parse(&body)?;
    match (change.advance_seconds, change.skew_seconds) {
        (Some(by), None) => provider.clock.advance(seconds(by)?),
        (None, Some(by)) => provider.clock.skew(seconds(by)?),
        _ => return Err(ControlError::bad("give either advanceSeconds or skewSeconds")),
    }
    Ok(clock(State(provider)).await)
}

/// A time a person may give: up to a century either way.
#[expect(clippy::cast_possible_truncation, reason = "a century of ticks fits")]
#[expect(clippy::cast_precision_loss, reason = "ten million fits")]
fn seconds(value: f64) -> Result<i64, ControlError> {
    const CENTURY: f64 = 100.0 * 366.0 * 86_400.0;
    if !(-CENTURY..=CENTURY).contains(&value) {
        return Err(ControlError::bad("give seconds, at most a century either way"));
    }
    Ok((value * SECOND as f64) as i64)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Rotation {
    /// Yes, unless it is said otherwise.
    keep_old: Option<bool>,
}

async fn rotate_keys(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let Rotation { keep_old } = parse_or_default(&body)?;
    let keep_old = keep_old.unwrap_or(true);
    provider.identity.rotate_keys(keep_old).map_err(|error| ControlError::bad(&error.to_string()))?;
    Ok(done(&json!({ "keepOld": keep_old })))
}

async fn revoke(State(provider): State<Arc<Provider>>) -> Response {
    provider.identity.revoke_all(provider.clock.now());
    done(&json!({ "revoked": true }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grant {
    /// Scope names, as the authorization request has them.
    scopes: Vec<String>,
}

async fn grant(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let wanted: Grant = parse(&body)?;
    let scopes: Vec<&str> = wanted.scopes.iter().map(String::as_str).collect();
    let (access, refresh) = provider.identity.grant(&scopes);
    Ok(done(&json!({ "accessToken": access, "refreshToken": refresh })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvoicingGrant {
    /// Number of the invoicing company, from 0, as `/_control/truth/hooks` tells it.
    company: u32,
}

/// A token of the invoicing API for a company, without the word `Bearer`, without a login.
async fn invoicing_grant(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let InvoicingGrant { company } = parse(&body)?;
    if company >= provider.settings.world.invoicing_companies {
        return Err(ControlError::missing(&format!("no invoicing company {company}")));
    }
    Ok(done(&json!({ "token": provider.invoicing.grant(company) })))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wait {
    /// A minute, unless it is said otherwise.
    seconds: Option<f64>,
}

/// Answers once every delivery and every echo has ended: `idle` says whether that was in time.
async fn wait_until_idle(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let Wait { seconds } = parse_or_default(&body)?;
    let seconds = seconds.unwrap_or(60.0);
    if !(0.0..=LONGEST_WAIT).contains(&seconds) {
        return Err(ControlError::bad(&format!("seconds is from 0 to {LONGEST_WAIT}")));
    }
    let limit = Duration::from_secs_f64(seconds);
    let all_done = async { tokio::join!(provider.deliveries.idle(), provider.invoicing.idle()) };
    let idle = tokio::time::timeout(limit, all_done).await.is_ok();
    Ok(done(&json!({ "idle": idle, "deliveries": provider.deliveries.count() })))
}

fn guid(text: &str) -> Result<Guid, ControlError> {
    Guid::parse(text).ok_or_else(|| ControlError::bad(&format!("{text:?} is no GUID")))
}

#[cfg(test)]
mod tests;
