//! Lists in the demo: all of them at the start, what a gap may have cost after it, and at the end the source against the topics.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::stage::{CONNECTOR, LOOK, RECORDS, Stage, accounting_gap};
use crate::cli::until;

/// A run as the worker reports it; null if it has not ended in time.
#[derive(Debug, Default)]
pub(super) struct Run(pub(super) Value);

impl Run {
    /// The number at a JSON pointer.
    pub(super) fn number(&self, pointer: &str) -> u64 {
        self.0.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Whether every list was read to its end, and proved complete.
    pub(super) fn is_certified(&self) -> bool {
        self.0["certified"] == true
    }

    /// How many records differ, by kind.
    pub(super) fn differences(&self) -> Option<&Map<String, Value>> {
        self.0["differences"].as_object().filter(|differences| !differences.is_empty())
    }
}

/// How the newest run stands, asked for again and again beside everything else.
pub(super) struct Runs {
    latest: watch::Receiver<Value>,
    _asking: AbortOnDropHandle<()>,
}

impl Runs {
    pub(super) fn latest(&self) -> Value {
        self.latest.borrow().clone()
    }
}

impl Stage {
    /// Looks at the newest run from here on.
    pub(super) fn follow_runs(&self) -> Runs {
        let (sender, latest) = watch::channel(Value::Null);
        let rest = self.rest.clone();
        let asking = tokio::spawn(async move {
            let all = ["connectors", RECORDS, "snapshots"];
            let newest = async || -> Option<Value> {
                let found = rest.get(&all, &[]).await.ok()?;
                let id = found["snapshots"][0]["id"].as_str()?;
                rest.get(&[&all[..], &[id]].concat(), &[]).await.ok()
            };
            loop {
                if let Some(run) = newest().await {
                    sender.send_replace(run);
                }
                sleep(LOOK).await;
            }
        });
        Runs { latest, _asking: AbortOnDropHandle::new(asking) }
    }

    /// Waits until the lists have been read that are read at the start.
    pub(super) async fn listed(&self, limit: Duration) -> Run {
        Run(timeout(limit, self.over("initial")).await.unwrap_or_default())
    }

    /// Compares the lists of accounting with what is published, until nothing differs or the time is up: a delivery that the provider
    /// had to repeat comes later. Payroll is compared by itself.
    pub(super) async fn compared(&self, limit: Duration) -> Run {
        let (end, mut number) = (Instant::now() + limit, 0);
        let mut before = Run::default();
        loop {
            number += 1;
            let id = format!("verify-{number}");
            let compared = async {
                let wanted = json!({ "id": id, "kind": "verify", "lists": ["customers", "accounts"] });
                self.request(&wanted).await;
                self.over(&id).await
            };
            let Ok(run) = timeout_at(end, compared).await else { return before };
            before = Run(run);
            if before.differences().is_none() {
                return before;
            }
        }
    }

    /// Waits until a gap was looked after. What became of it.
    pub(super) async fn repaired(&self, limit: Duration) -> Option<String> {
        let repaired = until(LOOK, async || {
            let path = ["connectors", CONNECTOR, "gaps"];
            let gaps = self.rest.get(&path, &[("all", "true".to_owned())]).await.ok()?;
            let state = accounting_gap(&gaps)?["state"].as_str()?;
            (state == "closed").then(|| state.to_owned())
        });
        timeout(limit, repaired).await.ok()
    }

    /// Waits until a run is over; how it stands.
    pub(super) async fn over(&self, run: &str) -> Value {
        let over = async || {
            let standing = self.ask(RECORDS, &["snapshots", run]).await;
            (standing["state"] == "ended").then_some(standing)
        };
        until(LOOK, over).await
    }
}
