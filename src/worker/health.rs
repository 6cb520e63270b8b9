//! `/health`, `/health/live`, `/health/ready` and `/metrics`: whether this worker does its work, not whether it exists.

use std::{
    fmt,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use axum::{
    Router,
    extract::State as Shared,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;

use super::{scrape::Scrape, state::State, supervisor::Handle};
use crate::config;

/// Where a worker stands.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// It is not there yet, and this is what it waits for.
    Starting(String),
    /// It answers and works.
    Running,
    /// It is going away.
    Stopping,
}

/// What the admin listeners know of their worker.
pub(super) struct Health {
    worker: Arc<config::Worker>,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// What the worker itself has to show, once it runs.
    scrape: OnceLock<Scrape>,
    inner: RwLock<Inner>,
}

struct Inner {
    phase: Phase,
    api: Option<Router>,
    state: Option<State>,
    handle: Option<Handle>,
}

impl Health {
    pub(super) fn new(worker: Arc<config::Worker>, metrics: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        let phase = Phase::Starting("connecting to Kafka".to_owned());
        Self {
            worker,
            metrics,
            scrape: OnceLock::new(),
            inner: RwLock::new(Inner { phase, api: None, state: None, handle: None }),
        }
    }

    pub(super) fn router(&self) -> Router<Arc<Self>> {
        Router::new()
            .route("/health", get(health))
            .route("/health/live", get(async || "alive"))
            .route("/health/ready", get(ready))
            .route("/metrics", get(metrics))
    }

    pub(super) fn set(&self, phase: Phase) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).phase = phase;
    }

    /// From here on the API is answered.
    pub(super) fn serve(&self, api: Router, state: State, handle: Handle) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        *inner = Inner { phase: Phase::Running, api: Some(api), state: Some(state), handle: Some(handle) };
    }

    /// From here on `/metrics` shows this too.
    pub(super) fn measure(&self, scrape: Scrape) {
        // A worker starts once, so there is never a second.
        self.scrape.set(scrape).ok();
    }

    pub(super) fn api(&self) -> Option<Router> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).api.clone()
    }

    /// The answer to everything else while there is no API.
    pub(super) fn not_yet(&self) -> Response {
        let (_, message) = self.verdict();
        let body = json!({ "error_code": 503, "message": message });
        (StatusCode::SERVICE_UNAVAILABLE, [(header::CONTENT_TYPE, "application/json")], body.to_string())
            .into_response()
    }

    /// Kafka Connect's three words, and why.
    fn verdict(&self) -> (&'static str, String) {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        match &inner.phase {
            Phase::Starting(what) => ("starting", format!("Worker is still starting up: {what}")),
            Phase::Stopping => ("unhealthy", "Worker is shutting down".to_owned()),
            Phase::Running => {
                // A session is how long the group itself would believe in a worker that says nothing.
                let longest = self.worker.group.session_timeout;
                let silent = inner.state.as_ref().and_then(|state| {
                    let tails =
                        [state.configs.silent_for(), state.offsets.silent_for(), state.statuses.silent_for()];
                    tails.into_iter().flatten().max().filter(|silence| *silence > longest)
                });
                match silent {
                    Some(silence) => {
                        let seconds = silence.as_secs();
                        ("unhealthy", format!("Kafka has not answered this worker for {seconds} s"))
                    }
                    None => (
                        "healthy",
                        "Worker has completed startup and is ready to handle requests.".to_owned(),
                    ),
                }
            }
        }
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("verdict", &self.verdict()).finish_non_exhaustive()
    }
}

async fn health(Shared(health): Shared<Arc<Health>>) -> Response {
    let (status, message) = health.verdict();
    let code = match status {
        "healthy" => StatusCode::OK,
        "starting" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let body = json!({ "status": status, "message": message });
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn ready(Shared(health): Shared<Arc<Health>>) -> Response {
    match health.verdict() {
        ("healthy", message) => (StatusCode::OK, message).into_response(),
        (_, message) => (StatusCode::SERVICE_UNAVAILABLE, message).into_response(),
    }
}

async fn metrics(Shared(health): Shared<Arc<Health>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let own = health.scrape.get().map(Scrape::text).unwrap_or_default();
    (kind, (health.metrics)() + &own).into_response()
}
