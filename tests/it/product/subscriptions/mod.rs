//! Subscriptions that worker processes maintain at the simulated provider, on real Kafka.
//!
//! The tests compare the provider's webhooks ([`scene`]) and the state topic with the configuration.

mod changing;
mod crash;
mod drawn;
mod invoicing;
mod living;
mod load;
mod scene;
mod sharing;
mod takeover;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        living::tests(),
        drawn::tests(),
        invoicing::tests(),
        sharing::tests(),
        changing::tests(),
        takeover::tests(),
        crash::tests(),
        load::tests(),
    ];
    parts.into_iter().flatten().collect()
}
