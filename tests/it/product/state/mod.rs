//! The worker's state in Kafka, against real brokers: topics that are fit for it, tails that lose nothing, edits that
//! take turns.

mod arbiter;
mod ground;
mod tails;
mod topics;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [topics::tests(), tails::tests(), arbiter::tests()].into_iter().flatten().collect()
}
