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
mod quotes;
mod request;
mod routes;
mod security;

use std::time::Duration;

use axum::response::{IntoResponse as _, Response};

use self::answer::Refusal;
pub use self::{
    routes::router,
    security::{Security, SecurityError, protect},
};

/// When a request is answered at the latest: clients in wide use give up after ten seconds.
pub const DEADLINE: Duration = Duration::from_millis(9500);

/// The answer to a method that a path does not have.
pub(crate) async fn not_allowed() -> Response {
    Refusal::new(405, "HTTP 405 Method Not Allowed").into_response()
}

#[cfg(test)]
mod tests;
