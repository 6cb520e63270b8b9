//! The rig, tried on itself: what other tests build on must not be what fails them.

mod brokers;
mod client;
mod harness;
mod lost;
mod processes;
mod proxy;
mod secrets;

pub(crate) use processes::{SLEEPER, sleeper};

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        harness::tests(),
        lost::tests(),
        processes::tests(),
        proxy::tests(),
        secrets::tests(),
        brokers::tests(),
    ];
    parts.into_iter().flatten().collect()
}
