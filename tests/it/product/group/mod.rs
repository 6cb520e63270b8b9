//! Partitions that a group assigns, on a real broker: every partition has one member, whichever member joins, leaves, dies, is frozen
//! or loses its network; and no two members ever hold the same one.

mod assigned;
mod failure;
mod member;
mod sharing;

pub(crate) use member::{MEMBER, member};

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [sharing::tests(), failure::tests()].into_iter().flatten().collect()
}
