//! Lists in the demo: all of them at the start, what a gap may have cost after it, and at the end the source against the topics.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::stage::{LOOK, RECORDS, Stage};

impl Stage {
    /// Waits until the lists have been read that are read at the start. In one line, what is proved of them; whether all is.
    pub(super) async fn listed(&self, limit: Duration) -> (bool, String) {
        let run = timeout(limit, self.over("initial")).await.unwrap_or_default();
        let holds = run["certified"] == true;
        let Numbers { lists, certified, pages, rows, published } = Numbers::of(&run);
        let told = format!(
            "snapshot: {certified} of {lists} lists certified complete, {rows} rows on {pages} pages, {published} records published"
        );
        (holds, told)
    }

    /// Compares every list with what is published, until nothing differs or the time is up: a delivery that the provider had to repeat
    /// comes later. In one line, what differs; whether nothing does.
    pub(super) async fn compared(&self, limit: Duration) -> (bool, String) {
        let (end, mut number) = (Instant::now() + limit, 0);
        let (run, differences) = loop {
            number += 1;
            let id = format!("verify-{number}");
            let compared = async {
                self.post("snapshots", &json!({ "id": id, "kind": "verify" })).await;
                self.over(&id).await
            };
            let run = timeout_at(end, compared).await.unwrap_or_default();
            let differences = run["differences"].as_object().cloned().unwrap_or_default();
            if run.is_null() || differences.is_empty() {
                break (run, differences);
            }
        };
        let holds = run["certified"] == true && differences.is_empty();
        let told = match (holds, run["certified"] == true) {
            (true, _) => "nothing differs".to_owned(),
            (false, true) => format!("differences: {}", Value::Object(differences)),
            (false, false) => "it did not come to its end".to_owned(),
        };
        (holds, format!("verified, source against topics: {} rows compared, {told}", run["rows"]))
    }

    /// Waits until a gap was looked after. What became of it.
    pub(super) async fn repaired(&self, limit: Duration) -> Option<String> {
        let repaired = async {
            loop {
                let gaps = self.ask("gaps?all=true").await;
                let gap = gaps.as_array().and_then(|gaps| gaps.first()).cloned().unwrap_or_default();
                match gap["state"].as_str() {
                    Some(state @ ("closed" | "repaired-known")) => return state.to_owned(),
                    _ => sleep(LOOK).await,
                }
            }
        };
        timeout(limit, repaired).await.ok()
    }

    /// Waits until a run is over; how it stands.
    async fn over(&self, run: &str) -> Value {
        loop {
            let standing = self.ask_of(RECORDS, &format!("snapshots/{run}")).await;
            if standing["state"] == "ended" {
                return standing;
            }
            sleep(LOOK).await;
        }
    }
}

#[derive(Default)]
struct Numbers {
    lists: u64,
    certified: u64,
    pages: u64,
    rows: u64,
    published: u64,
}

impl Numbers {
    fn of(run: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        Self {
            lists: number(&run["collections"]["total"]),
            certified: number(&run["collections"]["certified"]),
            pages: number(&run["pages"]),
            rows: number(&run["rows"]),
            published: number(&run["published"]),
        }
    }
}
