//! Kafka Connect's REST API over the [`super::herder`], and what is ours beside it: declarations, subscriptions,
//! gaps, snapshots, certificates.
//!
//! ```text
//! request ─▶ guard (limits, origin, who, role) ─▶ route ─▶ Accept ─▶ body, name, query ─▶ herder ─▶ JSON
//!               └──────────── audit line, CORS, deadline, panics ◀───────────────────────────────┘
//! ```
//!
//! [`router`] knows the paths; [`protect`] puts the guard around it and whatever was merged with it (`/health`,
//! `/metrics`).
//!
//! - Every answer that is not a success has the body `{"error_code", "message"}`, also for paths, methods and bodies nobody
//!   understands and for a handler that panics. No answer repeats a value of a configuration or the text of a panic.
//! - Callers that may not change connectors do not see the provider's own words (`quotes`).
//! - A path may end with a slash. Names in paths are percent-decoded. Unknown query parameters are ignored.
//! - Where Kafka Connect answers 500 to a request that is malformed, this answers 400.
//! - Every answer comes within [`DEADLINE`].

mod answer;
mod connectors;
mod declarations;
mod loggers;
mod plugins;
mod quotes;
mod request;
mod security;
mod snapshots;
mod subscriptions;

use std::time::Duration;

use axum::{
    Router,
    extract::State,
    middleware::from_fn,
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, delete, get, post, put},
};

use base::metrics;

pub use self::security::{Security, SecurityError, protect};
use self::{
    answer::{Refusal, json},
    request::acceptable,
};
use super::herder::Herder;

/// When a request is answered at the latest: clients in wide use give up after ten seconds.
pub const DEADLINE: Duration = Duration::from_millis(9500);

/// The paths of the API.
pub fn router(herder: Herder) -> Router {
    let routes: [(&str, MethodRouter<Herder>); 34] = [
        ("/connectors", get(connectors::list).post(connectors::create)),
        ("/connectors/{name}", get(connectors::info).delete(connectors::delete)),
        (
            "/connectors/{name}/config",
            get(connectors::config).put(connectors::put_config).patch(connectors::patch_config),
        ),
        ("/connectors/{name}/status", get(connectors::status)),
        ("/connectors/{name}/tasks", get(connectors::tasks)),
        ("/connectors/{name}/tasks-config", get(connectors::task_configs)),
        ("/connectors/{name}/tasks/{task}/status", get(connectors::task_status)),
        ("/connectors/{name}/tasks/{task}/restart", post(connectors::restart_task)),
        ("/connectors/{name}/restart", post(connectors::restart)),
        ("/connectors/{name}/pause", put(connectors::pause)),
        ("/connectors/{name}/resume", put(connectors::resume)),
        ("/connectors/{name}/stop", put(connectors::stop)),
        ("/connectors/{name}/topics", get(connectors::topics)),
        ("/connectors/{name}/topics/reset", put(connectors::reset_topics)),
        (
            "/connectors/{name}/offsets",
            get(connectors::offsets)
                .patch(connectors::alter_offsets)
                .merge(delete(connectors::reset_offsets)),
        ),
        ("/connectors/{name}/subscriptions", get(subscriptions::list)),
        ("/connectors/{name}/subscriptions/plan", get(subscriptions::plan)),
        ("/connectors/{name}/subscriptions/apply", post(subscriptions::apply)),
        ("/connectors/{name}/subscriptions/remove", post(subscriptions::remove)),
        ("/connectors/{name}/gaps", get(subscriptions::gaps)),
        ("/connectors/{name}/gaps/accept", post(subscriptions::accept_gap)),
        ("/connectors/{name}/snapshots", get(snapshots::list).post(snapshots::start)),
        ("/connectors/{name}/snapshots/{run}", get(snapshots::one)),
        ("/connectors/{name}/snapshots/{run}/pause", put(snapshots::pause)),
        ("/connectors/{name}/snapshots/{run}/resume", put(snapshots::resume)),
        ("/connectors/{name}/snapshots/{run}/stop", put(snapshots::stop)),
        ("/connectors/{name}/certificates", get(snapshots::certificates)),
        ("/connector-plugins", get(plugins::list)),
        ("/connector-plugins/{plugin}/config", get(plugins::config)),
        ("/connector-plugins/{plugin}/config/validate", put(plugins::validate)),
        ("/admin/declarations", get(declarations::list)),
        ("/admin/loggers", get(loggers::list)),
        ("/admin/loggers/{logger}", get(loggers::one).put(loggers::set)),
        ("/", get(server)),
    ];
    let mut router = Router::new();
    for (path, methods) in routes {
        debug_assert!(metrics::knows_route(path), "{path} is not counted");
        if path != "/" {
            router = router.route(&format!("{path}/"), methods.clone());
        }
        router = router.route(path, methods);
    }
    router
        .route_layer(from_fn(acceptable))
        .route_layer(from_fn(security::noted))
        .method_not_allowed_fallback(not_allowed)
        .fallback(async || Refusal::no_path())
        .with_state(herder)
}

/// The answer to a method that a path does not have.
pub(super) async fn not_allowed() -> Response {
    Refusal::not_allowed().into_response()
}

async fn server(State(herder): State<Herder>) -> Response {
    json(200, &herder.server())
}

#[cfg(test)]
mod tests;
