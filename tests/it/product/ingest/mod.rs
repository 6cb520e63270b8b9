//! Ingest in whole workers: what only a worker with its Kafka, its registry and its disk shows.
//!
//! Deliveries are made and signed here, from the provider's words alone, and come in over HTTPS; what they became is read back
//! from the topics. How requests are treated is the receiver's own matter, and tested with it.

pub(crate) mod delivery;
mod hidden;
mod living;
mod outage;
mod place;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [living::tests(), outage::tests(), hidden::tests()].into_iter().flatten().collect()
}
