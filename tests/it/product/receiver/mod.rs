//! The public listener against everybody who may reach it: the provider, strangers, and those who pretend.
//!
//! Over real connections and byte by byte, with a place for deliveries that remembers what got so far. No Kafka: what a
//! delivery becomes is held elsewhere.

mod content;
mod invoicing;
mod load;
mod rig;
mod secure;
mod shape;
mod time;
mod trust;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        trust::tests(),
        invoicing::tests(),
        content::tests(),
        shape::tests(),
        time::tests(),
        load::tests(),
        secure::tests(),
    ];
    parts.into_iter().flatten().collect()
}
