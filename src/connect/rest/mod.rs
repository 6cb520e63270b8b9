//! Kafka Connect's REST API over the [`super::herder`], and our additions: declarations, subscriptions, gaps, snapshots,
//! certificates.
//!
//! ```text
//! request ─▶ guard (limits, origin, login, role) ─▶ route ─▶ Accept ─▶ body, name, query ─▶ herder ─▶ JSON
//!               └──────────── audit line, CORS, deadline, panics ◀───────────────────────────────┘
//! ```
//!
//! [`router`] has the paths; [`protect`] puts the guard around it and around everything merged with it (`/health`, `/metrics`).
//!
//! - Every error has the body `{"error_code", "message"}`, also for unknown paths, methods and unreadable bodies, and for a
//!   handler that panics. No error repeats the text of a panic or a configuration value that was refused, except `name` and
//!   `connector.class`: any other may be a misplaced secret.
//! - Callers that may not change connectors do not see text quoted from the provider (`quotes`).
//! - A path may end with a slash. Names in paths are percent-decoded. Unknown query parameters are ignored.
//! - Malformed requests get 400, also where Kafka Connect answers 500.
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

/// Limit for answering a request: common clients give up after ten seconds. The check of the login, the body and the herder's
/// operation each take at most what the steps before them left.
pub const DEADLINE: Duration = Duration::from_millis(9500);
/// The part of it that is reserved for the answer, so that the step that ran out of time can name itself.
const ANSWER_RESERVE: Duration = Duration::from_millis(500);

/// The answer to a method that the path does not have.
pub(crate) async fn not_allowed() -> Response {
    Refusal::new(405, "HTTP 405 Method Not Allowed").into_response()
}

#[cfg(test)]
mod tests;
