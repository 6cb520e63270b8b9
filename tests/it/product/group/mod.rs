//! Partitions shared out by a group, against a real broker: all of them, each to one member, whoever comes, leaves, dies,
//! is frozen or loses its network; and never two that hold the same one.

mod failure;
mod member;
mod sharing;
mod work;

pub(crate) use member::{MEMBER, member};

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [sharing::tests(), failure::tests()].into_iter().flatten().collect()
}
