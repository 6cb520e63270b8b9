//! The oracle that finds lost acknowledged deliveries, and the tests that use it.
//!
//! ```text
//! senders ──signed deliveries──▶ receiver ──▶ topics ──▶ reader
//!    └── ledger: sent, answered, when ─────▶ judge ◀──────┘
//! ```
//!
//! [`delivery`] makes deliveries as the provider does, [`senders`] sends them, [`ledger`] records the answers, [`reader`] reads the
//! topics, [`judge`] compares both sides. None of these uses code of the product, and the receiver's benchmark uses the same files.
//! [`histories`] tests the judge; [`kill`], [`failpoints`] and [`in_time`] have it judge a [`worker`] on a [`stage`], [`disk`] the
//! receiver on a bad disk.

pub(crate) mod delivery;
mod disk;
mod failpoints;
mod histories;
mod in_time;
pub(crate) mod judge;
mod kill;
pub(crate) mod ledger;
pub(crate) mod reader;
pub(crate) mod senders;
mod stage;
pub(crate) mod worker;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [histories::tests(), disk::tests(), in_time::tests(), kill::tests(), failpoints::tests()]
        .into_iter()
        .flatten()
        .collect()
}
