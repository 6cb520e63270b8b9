//! Connectors and tasks when people edit them and when workers die.
//!
//! A worker here is everything but the REST API: state topics, arbiter, group and supervisor. `alone` has one in this process,
//! `together` has several processes that are stopped, killed and frozen. In `failing` tasks fail, in `outage` the broker is away,
//! `odd` tampers with the topics, and `hanging` leaves transactions open.

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
