//! The worker's state in Kafka, against real brokers: topics that are fit for it, tails that lose nothing, edits that are
//! arbitrated between workers.

mod arbiter;
mod editor;
mod ground;
mod tails;
mod topics;

pub(crate) use editor::{EDITOR, editor};

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [topics::tests(), tails::tests(), arbiter::tests()].into_iter().flatten().collect()
}
