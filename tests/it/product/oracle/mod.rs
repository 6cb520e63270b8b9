//! Nothing acknowledged is lost: an oracle for everything that receives deliveries, and the tests that need one.
//!
//! ```text
//! senders ──signed deliveries──▶ receiver ──▶ topics ──▶ reader
//!    └── ledger: sent, answered, when ─────▶ judge ◀──────┘
//! ```
//!
//! [`delivery`] makes deliveries as the provider does, [`senders`] sends them, [`ledger`] remembers what was answered,
//! [`reader`] reads the topics, [`judge`] compares; none of them uses code of the product, and the benchmark of the receiver
//! uses the same files. [`histories`] tries the judge; [`kill`], [`places`] and [`in_time`] have it judge a [`worker`] on a [`stage`],
//! `disk` the receiver on a bad disk.

pub(crate) mod delivery;
#[cfg(feature = "simulator")]
mod disk;
mod histories;
mod in_time;
pub(crate) mod judge;
mod kill;
pub(crate) mod ledger;
mod places;
pub(crate) mod reader;
pub(crate) mod senders;
mod stage;
pub(crate) mod worker;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [
        histories::tests(),
        #[cfg(feature = "simulator")]
        disk::tests(),
        in_time::tests(),
        kill::tests(),
        places::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
