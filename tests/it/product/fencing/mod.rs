//! One writer per shard, on a real broker: a writer that lost its shard cannot write, wherever it was frozen or killed, and no record
//! of an uncommitted batch is ever visible in any of its topics.

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
