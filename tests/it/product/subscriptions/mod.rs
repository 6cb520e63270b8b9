//! Subscriptions kept by workers as processes of their own, against the simulated provider, on real Kafka.
//!
//! Judged by what the provider has ([`scene`]) and by what stands in the state topic.

mod changing;
mod crash;
mod drawn;
mod invoicing;
mod living;
mod load;
mod scene;
mod takeover;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        living::tests(),
        drawn::tests(),
        invoicing::tests(),
        changing::tests(),
        takeover::tests(),
        crash::tests(),
        load::tests(),
    ];
    parts.into_iter().flatten().collect()
}
