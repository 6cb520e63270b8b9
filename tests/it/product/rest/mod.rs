//! The REST API over HTTP on real Kafka: statuses, messages and JSON as in Kafka Connect, from one worker and from two.

mod connectors;
mod edits;
mod failpoints;
mod fuzz;
mod offsets;
mod outage;
mod plugin;
mod requests;
mod snapshots;
mod subscriptions;
pub(crate) mod worker;

use self::worker::SECRET;
pub(crate) use self::worker::log_levels;
use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        connectors::tests(),
        edits::tests(),
        fuzz::tests(),
        offsets::tests(),
        outage::tests(),
        failpoints::tests(),
        requests::tests(),
        snapshots::tests(),
        subscriptions::tests(),
    ];
    parts.into_iter().flatten().collect()
}

/// Whether an answer shows the secret, which only the echo of a configuration may do.
fn shows_secret(answer: &worker::Answer) -> bool {
    answer.body.to_string().contains(SECRET)
}
