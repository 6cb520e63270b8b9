//! The worker's state in Kafka, on real brokers: its topics, tails that lose nothing, and edits in turn.

mod arbiter;
mod cluster;
mod tails;
mod topics;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [topics::tests(), tails::tests(), arbiter::tests()].into_iter().flatten().collect()
}
