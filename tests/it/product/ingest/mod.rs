//! Ingest in worker processes with Kafka, a registry and a disk.
//!
//! The tests make and sign deliveries by the provider's documentation, send them over HTTPS, and read the topics. The tests of
//! `receiver` show how single requests are handled.

mod cluster;
pub(crate) mod delivery;
mod hidden;
mod living;
mod outage;
mod outcomes;
mod tenants;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [living::tests(), outage::tests(), outcomes::tests(), hidden::tests(), tenants::tests()]
        .into_iter()
        .flatten()
        .collect()
}
