//! The public listener and its clients: the provider, strangers, and forgers.
//!
//! Clients write raw bytes over real connections; a sink records the deliveries that the receiver accepts. No Kafka: other tests show
//! what becomes of accepted deliveries.

mod content;
mod invoicing;
mod load;
mod rig;
mod secure;
mod shape;
mod sharing;
mod time;
mod trust;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        trust::tests(),
        invoicing::tests(),
        content::tests(),
        shape::tests(),
        sharing::tests(),
        time::tests(),
        load::tests(),
        secure::tests(),
    ];
    parts.into_iter().flatten().collect()
}
