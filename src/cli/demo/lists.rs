//! Lists in the demo: all of them at the start, what a gap may have cost after it, and at the end the source against the topics.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::stage::{LOOK, RECORDS, Stage, accounting_gap};

/// What is proved of the lists that are read at the start.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) is_certified: bool,
    pub(super) lists: u64,
    pub(super) certified: u64,
    pub(super) pages: u64,
    pub(super) rows: u64,
    pub(super) published: u64,
}

/// How every list compares with what is published.
#[derive(Debug)]
pub(super) struct Compared {
    /// Whether every list was read to its end, and proved complete.
    pub(super) is_certified: bool,
    pub(super) rows: u64,
    /// How many, by kind.
    pub(super) differences: Map<String, Value>,
}

impl Compared {
    pub(super) fn is_same(&self) -> bool {
        self.is_certified && self.differences.is_empty()
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
        let (client, all) = (self.client.clone(), format!("{}/connectors/{RECORDS}/snapshots", self.admin));
        let asking = tokio::spawn(async move {
            let ask = async |address: &str| -> Option<Value> {
                client.get(address).send().await.ok()?.json().await.ok()
            };
            loop {
                let newest =
                    ask(&all).await.and_then(|found| Some(found["snapshots"][0]["id"].as_str()?.to_owned()));
                if let Some(id) = newest
                    && let Some(run) = ask(&format!("{all}/{id}")).await
                {
                    sender.send_replace(run);
                }
                sleep(LOOK).await;
            }
        });
        Runs { latest, _asking: AbortOnDropHandle::new(asking) }
    }

    /// Waits until the lists have been read that are read at the start.
    pub(super) async fn listed(&self, limit: Duration) -> Listed {
        let run = timeout(limit, self.over("initial")).await.unwrap_or_default();
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        Listed {
            is_certified: run["certified"] == true,
            lists: number(&run["collections"]["total"]),
            certified: number(&run["collections"]["certified"]),
            pages: number(&run["pages"]),
            rows: number(&run["rows"]),
            published: number(&run["published"]),
        }
    }

    /// Compares the lists of accounting with what is published, until nothing differs or the time is up: a delivery that the provider
    /// had to repeat comes later. Payroll is compared by itself.
    pub(super) async fn compared(&self, limit: Duration) -> Compared {
        let (end, mut number) = (Instant::now() + limit, 0);
        let mut before = Compared { is_certified: false, rows: 0, differences: Map::new() };
        loop {
            number += 1;
            let id = format!("verify-{number}");
            let compared = async {
                self.post(
                    "snapshots",
                    &json!({ "id": id, "kind": "verify", "lists": ["customers", "accounts"] }),
                )
                .await;
                self.over(&id).await
            };
            let Ok(run) = timeout_at(end, compared).await else { return before };
            let differences = run["differences"].as_object().cloned().unwrap_or_default();
            let rows = run["rows"].as_u64().unwrap_or_default();
            before = Compared { is_certified: run["certified"] == true, rows, differences };
            if before.differences.is_empty() {
                return before;
            }
        }
    }

    /// Waits until a gap was looked after. What became of it.
    pub(super) async fn repaired(&self, limit: Duration) -> Option<String> {
        let repaired = async {
            loop {
                let gaps = self.ask("gaps?all=true").await;
                match accounting_gap(&gaps).and_then(|gap| gap["state"].as_str()) {
                    Some(state @ "closed") => return state.to_owned(),
                    _ => sleep(LOOK).await,
                }
            }
        };
        timeout(limit, repaired).await.ok()
    }

    /// Waits until a run is over; how it stands.
    pub(super) async fn over(&self, run: &str) -> Value {
        loop {
            let standing = self.ask_of(RECORDS, &format!("snapshots/{run}")).await;
            if standing["state"] == "ended" {
                return standing;
            }
            sleep(LOOK).await;
        }
    }
}
