//! Tests of the rig itself, which all other tests depend on.

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
