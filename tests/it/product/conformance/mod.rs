//! Whether a worker answers as Kafka Connect does: the same checks for a real Connect and for any other worker.
//!
//! [`run`] takes a [`Subject`], which is an address and the facts about the worker that its answers do not show. It makes the
//! [`checks`] in order, since each builds on earlier ones, and returns a [`ConformanceReport`] with every result. Checks 1 to 80 are Connect's
//! REST API, 81 and 82 need a worker with basic authentication and a config provider, and 83 to 85 replay the requests of common
//! tools and check what those tools need from the answers.
//!
//! - A run names its connectors with a unique prefix and removes them at the end, also after failures, so it can be repeated on one
//!   worker. It changes the worker's log levels and restores the root logger's.
//! - No check waits for a fixed time: it repeats a request until a deadline.
//! - A check that fails does not end the run. When the time is over, the remaining checks fail.
//!
//! `TRIBUTARY_CONFORMANCE_URL` and `TRIBUTARY_CONFORMANCE_CONFIG` (a file as [`Subject`] documents it) name a worker to check.
//! [`ours`] starts the worker of this repository; `tests/peers/conformance/connect` checks Apache Kafka Connect itself, with and
//! without the settings that 81 and 82 need.

mod address;
mod checks;
mod client;
mod kafka_connect;
mod ours;
mod report;
mod scene;
mod shape;
mod shapes;
mod subject;
mod tests;
mod tools;

use std::time::Duration;

use tokio::time::Instant;

pub(crate) use report::ConformanceReport;
use report::{CheckResult, CheckRow};
use scene::CheckScene;
pub(crate) use subject::Subject;

use crate::support::harness::Test;

/// Limit for the checks of one run; an idle machine needs a quarter of it.
const LIMIT: Duration = Duration::from_secs(400);

pub(crate) fn tests() -> Vec<Test> {
    [address::tests(), kafka_connect::tests(), ours::tests(), tests::tests()].into_iter().flatten().collect()
}

/// Makes all checks and cleans up.
pub(crate) async fn run(subject: &Subject) -> ConformanceReport {
    let begun = Instant::now();
    let (rows, left_behind) = match CheckScene::new(subject) {
        Ok(scene) => (check_all(&scene, begun + LIMIT).await, scene.clean_up().await.err()),
        Err(fault) => (Vec::new(), Some(fault)),
    };
    ConformanceReport { worker: subject.url.clone(), rows, left_behind, took: begun.elapsed() }
}

async fn check_all(scene: &CheckScene<'_>, deadline: Instant) -> Vec<CheckRow> {
    let mut rows = Vec::new();
    for check in checks::all() {
        let result = if let Some(reason) = (check.left_out)(scene.subject) {
            CheckResult::LeftOut(reason)
        } else {
            match tokio::time::timeout_at(deadline, (check.run)(scene)).await {
                Ok(Ok(())) => CheckResult::Held,
                Ok(Err(fault)) => CheckResult::Failed(fault),
                Err(_) => CheckResult::Failed("the time for all checks is over".to_owned()),
            }
        };
        rows.push(CheckRow { number: check.number, sentence: check.sentence, result });
    }
    rows
}
