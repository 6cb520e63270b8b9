//! Lists in the demo: a full read at the start, the repair of the gap, and the verification at the end.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::system::{CONNECTOR, DemoSystem, POLL_INTERVAL, RECORDS, accounting_gap};
use crate::cli::poll_until;

/// A run as the worker reports it; null if it has not finished in time.
#[derive(Debug, Default)]
pub(super) struct ListRun(pub(super) Value);

impl ListRun {
    /// The number at a JSON pointer.
    pub(super) fn number(&self, pointer: &str) -> u64 {
        self.0.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Whether every list is proved complete.
    pub(super) fn is_certified(&self) -> bool {
        self.0["certified"] == true
    }

    /// Numbers of differing records, by kind.
    pub(super) fn differences(&self) -> Option<&Map<String, Value>> {
        self.0["differences"].as_object().filter(|differences| !differences.is_empty())
    }
}

impl DemoSystem {
    /// The newest run; null if there is none.
    pub(super) async fn newest_run(&self) -> Value {
        let all = self.ask(RECORDS, &["snapshots"]).await;
        match all["snapshots"][0]["id"].as_str() {
            Some(id) => self.ask(RECORDS, &["snapshots", id]).await,
            None => Value::Null,
        }
    }

    /// Verifies the accounting lists repeatedly, until nothing differs or the time limit: repeated deliveries arrive later. Payroll is
    /// verified separately.
    pub(super) async fn compared(&self, limit: Duration) -> ListRun {
        let (end, mut number) = (Instant::now() + limit, 0);
        let mut before = ListRun::default();
        loop {
            number += 1;
            let id = format!("verify-{number}");
            let compared = async {
                let wanted = json!({ "id": id, "kind": "verify", "lists": ["customers", "accounts"] });
                self.request(&wanted).await;
                self.over(&id).await
            };
            let Ok(run) = timeout_at(end, compared).await else { return before };
            before = ListRun(run);
            if before.differences().is_none() {
                return before;
            }
        }
    }

    /// Waits until the gap is closed and returns its state.
    pub(super) async fn repaired(&self) -> String {
        let closed = async || {
            let path = ["connectors", CONNECTOR, "gaps"];
            let gaps = self.rest.get(&path, &[("all", "true".to_owned())]).await.ok()?;
            let state = accounting_gap(&gaps)?["state"].as_str()?;
            (state == "closed").then(|| state.to_owned())
        };
        poll_until(POLL_INTERVAL, closed).await
    }

    /// Waits until a run has ended and returns it.
    pub(super) async fn over(&self, run: &str) -> Value {
        let over = async || {
            let standing = self.ask(RECORDS, &["snapshots", run]).await;
            (standing["state"] == "ended").then_some(standing)
        };
        poll_until(POLL_INTERVAL, over).await
    }
}
