//! `/health`, `/health/live`, `/health/ready` and `/metrics`: whether this worker does its work, not just whether it runs.
//!
//! The service sets its [`Phase`] and, once started, provides its parts; each request asks those parts.
//!
//! - `/health` has Kafka Connect's three words: 503 starting, 200 healthy, 500 unhealthy, always with the same body.
//! - A worker is healthy if it hears from Kafka and is a member of its group: only then does anything run here. Until its first
//!   membership it is starting, though the API already answers.
//! - A worker that receives deliveries shows its receivers, the contents of its spool and its problems. It is unhealthy only
//!   once it refuses deliveries.
//! - A worker whose connectors name grants shows the state of each. A grant that needs a person does not make it unhealthy: the
//!   tasks that use it say so, and deliveries are received regardless.
//! - API requests during start-up wait for the API up to [`API_WAIT`]; then they are refused with the reason.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State as Shared,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use serde_json::json;
use tokio::{sync::watch, time::timeout};

use kafka::MembershipOutage;

use super::scrape::Scrape;
use crate::{config, connect::rest, state::StateTables, webhooks::ingest};

/// How long a request waits for a worker that starts; most answers fit in the rest of [`rest::DEADLINE`].
const API_WAIT: Duration = Duration::from_millis(8000);

/// Kafka Connect's words.
const READY: &str = "Worker has completed startup and is ready to handle requests.";

/// The phase of a worker.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// It is starting and waits for this.
    Starting(String),
    /// It answers and works.
    Running,
    /// An essential part has ended, and the worker is about to.
    Failed(String),
    /// It is shutting down.
    Stopping,
}

/// The worker's state for the admin listeners.
pub(super) struct Health {
    worker: Arc<config::Worker>,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Its receivers of deliveries.
    ingest: OnceLock<ingest::IngestStatus>,
    inner: watch::Sender<HealthState>,
}

struct HealthState {
    phase: Phase,
    parts: Option<Parts>,
}

/// The parts of a started worker.
struct Parts {
    api: Router,
    /// Source of `/metrics`.
    scrape: Scrape,
}

impl Health {
    pub(super) fn new(worker: Arc<config::Worker>, metrics: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        let phase = Phase::Starting("connecting to Kafka".to_owned());
        let inner = watch::Sender::new(HealthState { phase, parts: None });
        Self { worker, metrics, ingest: OnceLock::new(), inner }
    }

    pub(super) fn router(&self) -> Router<Arc<Self>> {
        let routes: [(&str, MethodRouter<Arc<Self>>); 4] = [
            ("/health", get(health)),
            ("/health/live", get(async || "alive")),
            ("/health/ready", get(ready)),
            ("/metrics", get(metrics)),
        ];
        let mut router = Router::new();
        for (path, methods) in routes {
            router = router.route(&format!("{path}/"), methods.clone()).route(path, methods);
        }
        router.method_not_allowed_fallback(rest::not_allowed)
    }

    pub(super) fn set(&self, phase: Phase) {
        self.inner.send_modify(|inner| inner.phase = phase);
    }

    /// Makes the API answer, and `/metrics` show the worker.
    pub(super) fn serve(&self, api: Router, scrape: Scrape) {
        self.inner.send_replace(HealthState { phase: Phase::Running, parts: Some(Parts { api, scrape }) });
    }

    /// Makes `/health` show receivers.
    pub(super) fn receive(&self, ingest: ingest::IngestStatus) {
        // Called once, before anything else.
        self.ingest.set(ingest).ok();
    }

    /// Waits for the API; `None` if it does not come in time, or never will.
    pub(super) async fn api(&self) -> Option<Router> {
        let mut changes = self.inner.subscribe();
        let settled =
            |inner: &HealthState| inner.parts.is_some() || !matches!(inner.phase, Phase::Starting(_));
        // The sender lives as long as `self`.
        timeout(API_WAIT, changes.wait_for(settled)).await.ok();
        self.inner.borrow().parts.as_ref().map(|parts| parts.api.clone())
    }

    /// The answer to API requests while there is no API.
    pub(super) fn not_yet(&self) -> Response {
        let (_, message) = self.verdict();
        let body = json!({ "error_code": 503, "message": message });
        (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
    }

    /// Kafka Connect's word for the health, and the reason.
    fn verdict(&self) -> (&'static str, String) {
        let inner = self.inner.borrow();
        match &inner.phase {
            Phase::Starting(what) => ("starting", format!("Worker is still starting up: {what}")),
            Phase::Failed(why) => ("unhealthy", format!("Worker is about to end: {why}")),
            Phase::Stopping => ("unhealthy", "Worker is shutting down".to_owned()),
            Phase::Running => {
                match inner.parts.as_ref().map_or(WorkerState::Working, |parts| self.worker_state(parts)) {
                    WorkerState::Joining(what) => {
                        ("starting", format!("Worker is still starting up: {what}"))
                    }
                    WorkerState::Impaired(problem) => ("unhealthy", problem),
                    WorkerState::Working => match self.ingest.get().and_then(ingest::IngestStatus::refuses) {
                        Some(refusal) => ("unhealthy", refusal),
                        None => ("healthy", READY.to_owned()),
                    },
                }
            }
        }
    }

    /// What keeps a started worker from its work.
    fn worker_state(&self, parts: &Parts) -> WorkerState {
        // After a session timeout without a sign of life the group expels a worker as well.
        let longest = self.worker.group.session_timeout;
        let StateTables { configs, offsets, statuses } = &parts.scrape.state;
        let silences = [configs.silent_for(), offsets.silent_for(), statuses.silent_for()];
        if let Some(silence) = silences.into_iter().flatten().max().filter(|silence| *silence > longest) {
            let seconds = silence.as_secs();
            return WorkerState::Impaired(format!("Kafka has not answered this worker for {seconds} s"));
        }
        parts
            .scrape
            .membership
            .outage()
            .map_or(WorkerState::Working, |outage| WorkerState::of(outage, 2 * longest))
    }
}

/// How a started worker is doing.
#[derive(Debug, PartialEq, Eq)]
enum WorkerState {
    /// It does its work.
    Working,
    /// It has never been a working member of its group.
    Joining(String),
    /// It was, and is not any more.
    Impaired(String),
}

impl WorkerState {
    /// `patience` applies after the first membership: every rebalance has a moment without a lease, and the group takes a
    /// session timeout to notice a missing member.
    fn of(outage: MembershipOutage, patience: Duration) -> Self {
        let what = match (outage.joined, outage.unclaimed) {
            (false, _) => "is not a member of its group".to_owned(),
            (true, 0) => "has no lease on its partitions".to_owned(),
            (true, unclaimed) => format!("cannot claim {unclaimed} of its partitions"),
        };
        let reason = outage.reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let seconds = outage.lasted.as_secs();
        if outage.is_first {
            Self::Joining(format!("for {seconds} s it {what}{reason}"))
        } else if outage.lasted > patience {
            Self::Impaired(format!("Nothing new can run here: for {seconds} s this worker {what}{reason}"))
        } else {
            Self::Working
        }
    }
}

async fn health(Shared(health): Shared<Arc<Health>>) -> Response {
    let (status, message) = health.verdict();
    let code = match status {
        "healthy" => StatusCode::OK,
        "starting" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut body = json!({ "status": status, "message": message });
    if let Some(ingest) = health.ingest.get() {
        body["ingest"] = ingest.report();
    }
    let grants = health.inner.borrow().parts.as_ref().and_then(|parts| parts.scrape.access.grants().report());
    if let Some(grants) = grants {
        body["grants"] = grants;
    }
    (code, Json(body)).into_response()
}

async fn ready(Shared(health): Shared<Arc<Health>>) -> Response {
    match health.verdict() {
        ("healthy", message) => (StatusCode::OK, message).into_response(),
        (_, message) => (StatusCode::SERVICE_UNAVAILABLE, message).into_response(),
    }
}

async fn metrics(Shared(health): Shared<Arc<Health>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let scrape = health.inner.borrow().parts.as_ref().map(|parts| parts.scrape.clone());
    let own = scrape.as_ref().map(Scrape::text).unwrap_or_default();
    (kind, (health.metrics)() + &own).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn worker_is_starting_until_its_first_lease() {
        let outage = |seconds, is_first, reason: Option<&str>| MembershipOutage {
            lasted: Duration::from_secs(seconds),
            since: SystemTime::UNIX_EPOCH,
            reason: reason.map(str::to_owned),
            unclaimed: 0,
            joined: false,
            is_first,
        };
        let worker_state = |outage| WorkerState::of(outage, Duration::from_secs(12));

        let joining = worker_state(outage(0, true, None));
        let refused = worker_state(outage(60, true, Some("not authorized")));
        let moment = worker_state(outage(12, false, None));
        let long = worker_state(outage(13, false, None));

        assert_eq!(joining, WorkerState::Joining("for 0 s it is not a member of its group".to_owned()));
        assert!(
            matches!(&refused, WorkerState::Joining(reason) if reason.contains("not authorized")),
            "{refused:?}"
        );
        assert_eq!(moment, WorkerState::Working);
        assert!(matches!(&long, WorkerState::Impaired(reason) if reason.contains("13 s")), "{long:?}");
    }
}
