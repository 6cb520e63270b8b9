//! Connectors and tasks on real workers: what becomes of them when people change them and when workers die.
//!
//! A worker is everything but the REST API: state topics, arbiter, group and supervisor. `alone` has one inside this
//! process, `together` several in processes of their own, to be stopped, killed and frozen; `outage` takes the broker away,
//! `odd` does to the topics what nobody should, `hanging` leaves transactions open in them.

mod alone;
mod cluster;
mod failing;
mod hanging;
mod odd;
mod outage;
mod together;
mod worker;

use crate::support::harness::Test;

pub(crate) use worker::{WORKER, worker};

pub(crate) fn tests() -> Vec<Test> {
    [alone::tests(), failing::tests(), hanging::tests(), odd::tests(), outage::tests(), together::tests()]
        .into_iter()
        .flatten()
        .collect()
}
