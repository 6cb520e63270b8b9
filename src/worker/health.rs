//! `/health`, `/health/live`, `/health/ready` and `/metrics`: whether this worker does its work, not whether it exists.
//!
//! Path of data: the service tells its [`Phase`] and, once started, what it is made of; every question asks those parts.
//!
//! - `/health` has Kafka Connect's three words: 503 starting, 200 healthy, 500 unhealthy, always with the same body.
//! - Healthy is a worker that hears Kafka and is a member of its group: only then does anything run here. Until it is one for
//!   the first time it is starting, though the API answers by then.
//! - Where deliveries are received, the body says who is, what waits in the spool and what is wrong; the worker is unhealthy
//!   only once deliveries are refused.
//! - Where connectors name grants, the body says how each stands. One that needs a person makes no worker unhealthy: the tasks that
//!   use it say so, and deliveries are received all the same.
//! - Requests to the API that come while there is none wait for it up to [`PATIENCE`]; who then still has none is told why.

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
use crate::{config, connect::rest, state::State, webhooks::ingest};

/// How long a request waits for a worker that starts: what is left until [`rest::DEADLINE`] is enough for most answers.
const PATIENCE: Duration = Duration::from_millis(8000);

/// Kafka Connect's words.
const READY: &str = "Worker has completed startup and is ready to handle requests.";

/// Where a worker stands.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// It is not there yet, and this is what it waits for.
    Starting(String),
    /// It answers and works.
    Running,
    /// A part it cannot do without has ended, and so will it.
    Failed(String),
    /// It is going away.
    Stopping,
}

/// What the admin listeners know of their worker.
pub(super) struct Health {
    worker: Arc<config::Worker>,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Where it receives deliveries.
    ingest: OnceLock<ingest::IngestStatus>,
    inner: watch::Sender<Inner>,
}

struct Inner {
    phase: Phase,
    parts: Option<Parts>,
}

/// What a started worker is made of.
struct Parts {
    api: Router,
    /// What `/metrics` shows of it.
    scrape: Scrape,
}

impl Health {
    pub(super) fn new(worker: Arc<config::Worker>, metrics: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        let phase = Phase::Starting("connecting to Kafka".to_owned());
        let inner = watch::Sender::new(Inner { phase, parts: None });
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

    /// From here on the API is answered, and `/metrics` shows the worker too.
    pub(super) fn serve(&self, api: Router, scrape: Scrape) {
        self.inner.send_replace(Inner { phase: Phase::Running, parts: Some(Parts { api, scrape }) });
    }

    /// From here on deliveries are received.
    pub(super) fn receive(&self, ingest: ingest::IngestStatus) {
        // Started once, before anything else.
        self.ingest.set(ingest).ok();
    }

    /// The API, as soon as there is one; `None` where it does not come in time, or not at all.
    pub(super) async fn api(&self) -> Option<Router> {
        let mut changes = self.inner.subscribe();
        let settled = |inner: &Inner| inner.parts.is_some() || !matches!(inner.phase, Phase::Starting(_));
        // The sender lives as long as we do.
        timeout(PATIENCE, changes.wait_for(settled)).await.ok();
        self.inner.borrow().parts.as_ref().map(|parts| parts.api.clone())
    }

    /// The answer to everything else while there is no API.
    pub(super) fn not_yet(&self) -> Response {
        let (_, message) = self.verdict();
        let body = json!({ "error_code": 503, "message": message });
        (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
    }

    /// Kafka Connect's three words, and why.
    fn verdict(&self) -> (&'static str, String) {
        let inner = self.inner.borrow();
        match &inner.phase {
            Phase::Starting(what) => ("starting", format!("Worker is still starting up: {what}")),
            Phase::Failed(why) => ("unhealthy", format!("Worker is about to end: {why}")),
            Phase::Stopping => ("unhealthy", "Worker is shutting down".to_owned()),
            Phase::Running => match inner.parts.as_ref().map_or(Standing::Well, |parts| self.standing(parts))
            {
                Standing::Joining(what) => ("starting", format!("Worker is still starting up: {what}")),
                Standing::Troubled(trouble) => ("unhealthy", trouble),
                Standing::Well => match self.ingest.get().and_then(ingest::IngestStatus::refuses) {
                    Some(refusal) => ("unhealthy", refusal),
                    None => ("healthy", READY.to_owned()),
                },
            },
        }
    }

    /// What keeps a started worker from its work.
    fn standing(&self, parts: &Parts) -> Standing {
        // A session is how long the group itself would believe in a worker that says nothing.
        let longest = self.worker.group.session_timeout;
        let State { configs, offsets, statuses } = &parts.scrape.state;
        let silences = [configs.silent_for(), offsets.silent_for(), statuses.silent_for()];
        if let Some(silence) = silences.into_iter().flatten().max().filter(|silence| *silence > longest) {
            let seconds = silence.as_secs();
            return Standing::Troubled(format!("Kafka has not answered this worker for {seconds} s"));
        }
        parts.scrape.membership.outage().map_or(Standing::Well, |outage| Standing::of(outage, 2 * longest))
    }
}

/// How a started worker stands.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// It does its work.
    Well,
    /// It has not been a working member of its group yet.
    Joining(String),
    /// It was, and is not any more.
    Troubled(String),
}

impl Standing {
    /// `patience` is for lapses after the first: a moment without a lease is part of every rebalance, and the group takes a
    /// session to notice who is gone.
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
            Self::Troubled(format!("Nothing new can run here: for {seconds} s this worker {what}{reason}"))
        } else {
            Self::Well
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
    fn a_worker_is_starting_until_its_first_lease_and_troubled_only_by_a_long_lapse_after_it() {
        let outage = |seconds, is_first, reason: Option<&str>| MembershipOutage {
            lasted: Duration::from_secs(seconds),
            since: SystemTime::UNIX_EPOCH,
            reason: reason.map(str::to_owned),
            unclaimed: 0,
            joined: false,
            is_first,
        };
        let standing = |outage| Standing::of(outage, Duration::from_secs(12));

        let joining = standing(outage(0, true, None));
        let refused = standing(outage(60, true, Some("not authorized")));
        let moment = standing(outage(12, false, None));
        let long = standing(outage(13, false, None));

        assert_eq!(joining, Standing::Joining("for 0 s it is not a member of its group".to_owned()));
        assert!(
            matches!(&refused, Standing::Joining(told) if told.contains("not authorized")),
            "{refused:?}"
        );
        assert_eq!(moment, Standing::Well);
        assert!(matches!(&long, Standing::Troubled(told) if told.contains("13 s")), "{long:?}");
    }
}
