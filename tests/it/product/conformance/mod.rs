//! Does a worker answer as Kafka Connect does? The same checks for a real Connect and for any other worker.
//!
//! [`run`] takes a [`Subject`], which is an address and what no answer tells about the worker there, goes
//! through the table of [`checks`] in order, since each builds on what earlier ones left, and gives a
//! [`Report`] with every verdict. Checks 1 to 80 are Connect's REST API, 81 and 82 need a worker started with
//! basic authentication and a config provider, 83 to 85 replay what the usual tools send and hold the answers
//! against what those tools cannot do without.
//!
//! - Whatever a run makes is named after a prefix nobody else has and is removed at the end, also after
//!   failures: a run can be repeated on one worker. It changes the worker's log levels and puts back the root
//!   logger's.
//! - Nothing waits for a fixed time; what becomes visible later is asked for again until a deadline.
//! - A check that fails does not end the run. When the time is over, what was not reached has failed.
//!
//! `TRIBUTARY_CONFORMANCE_URL` and `TRIBUTARY_CONFORMANCE_CONFIG` (a file as [`Subject`] documents it) name a
//! worker to ask. [`ours`] starts the worker of this repository; `tests/peers/conformance/connect` asks Apache
//! Kafka Connect itself, with and without the settings that 81 and 82 need.

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

pub(crate) use report::Report;
use report::{Row, Verdict};
use scene::Scene;
pub(crate) use subject::Subject;

use crate::support::harness::Test;

/// For the checks of one run; an idle machine needs a quarter of it.
const LIMIT: Duration = Duration::from_secs(400);

pub(crate) fn tests() -> Vec<Test> {
    [address::tests(), kafka_connect::tests(), ours::tests(), tests::tests()].into_iter().flatten().collect()
}

/// Goes through all checks and cleans up.
pub(crate) async fn run(subject: &Subject) -> Report {
    let begun = Instant::now();
    let (rows, left_behind) = match Scene::new(subject) {
        Ok(scene) => (check_all(&scene, begun + LIMIT).await, scene.clean_up().await.err()),
        Err(fault) => (Vec::new(), Some(fault)),
    };
    Report { worker: subject.url.clone(), rows, left_behind, took: begun.elapsed() }
}

async fn check_all(scene: &Scene<'_>, deadline: Instant) -> Vec<Row> {
    let mut rows = Vec::new();
    for check in checks::all() {
        let verdict = if let Some(reason) = (check.left_out)(scene.subject) {
            Verdict::LeftOut(reason)
        } else {
            match tokio::time::timeout_at(deadline, (check.run)(scene)).await {
                Ok(Ok(())) => Verdict::Held,
                Ok(Err(fault)) => Verdict::Failed(fault),
                Err(_) => Verdict::Failed("the time for all checks is over".to_owned()),
            }
        };
        rows.push(Row { number: check.number, sentence: check.sentence, verdict });
    }
    rows
}
