//! One writer per shard, against a real broker: who has lost its shard cannot write, wherever it was frozen or killed,
//! and of a batch that was not committed nothing is ever visible in any of its topics.

mod failure;
mod open;
mod shard;
mod takeover;
mod writer;

pub(crate) use writer::{WRITER, writer};

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [takeover::tests(), failure::tests(), open::tests()].into_iter().flatten().collect()
}
