//! The rig: real Kafka, a real registry and a bad network, for the tests of this binary.
//!
//! [`harness`] turns lists of functions into tests; [`shared`] holds the one cluster most of them use;
//! [`Broker`], [`Cluster`] and [`Registry`] are for tests that break what they use ([`breakable`] has a broker for
//! those that mend it again), [`command`] runs our binary, [`connect`] has a real Kafka Connect to compare with, [`tributary`] our own worker; [`Proxy`] breaks only the
//! network between. Every child is started by [`process`] and dies with the test run, however that ends.
//! [`login`] is `tributary auth login` and a person who plays along, [`browser`] a real browser without a window; [`secrets`] searches
//! what was written for what must not be, [`traced`] does so over a whole run. [`dice`] has the seed and the numbers of drawn tests, [`cycles`]
//! the number of times that a loop repeats.
//! [`lost`] is time that the machine took from a test, [`tries`] counts checks that are tried several times.
//! [`place`] is where a test publishes through the product, [`examples`] is what. `stage` has workers that the simulated provider delivers to,
//! [`scripted`] one that answers what it is told to.

pub(crate) mod breakable;
pub(crate) mod broker;
pub(crate) mod browser;
pub(crate) mod command;
pub(crate) mod connect;
// Unit tests have loops too.
#[path = "../../../src/cycles.rs"]
mod cycles;
pub(crate) mod dice;
pub(crate) mod drawn;
pub(crate) mod examples;
#[allow(dead_code, reason = "the unit tests use the rest")]
#[path = "../../../src/spool/tests/fault.rs"]
pub(crate) mod fault;
pub(crate) mod gate;
pub(crate) mod harness;
pub(crate) mod jars;
pub(crate) mod login;
pub(crate) mod lost;
pub(crate) mod place;
pub(crate) mod ports;
mod prepared;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod reader;
pub(crate) mod registry;
pub(crate) mod run_directory;
pub(crate) mod scripted;
pub(crate) mod secrets;
pub(crate) mod shared;
#[cfg(feature = "simulator")]
pub(crate) mod stage;
pub(crate) mod topics;
pub(crate) mod traced;
pub(crate) mod tributary;
pub(crate) mod tries;
pub(crate) mod visit;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use ::tributary::store;

pub(crate) use broker::{Broker, Cluster, Options};
pub(crate) use cycles::{cycles, parse_cycles, parse_seed};
pub(crate) use proxy::Proxy;
pub(crate) use registry::Registry;
pub(crate) use shared::Shared;

/// `provider.hosts.allowed` of test workers: the simulated provider on this machine, and the names of examples.
pub(crate) const ALLOWED_HOSTS: &str = "localhost,127.0.0.1,*.example.com";

/// The same as a policy.
pub(crate) fn allowed_hosts() -> ::provider::HostPolicy {
    ::provider::HostPolicy::listing(&ALLOWED_HOSTS.split(',').collect::<Vec<_>>())
}

/// A topic prefix nobody else uses: not a test beside this one, not an earlier run against the same outside
/// cluster.
pub(crate) fn prefix(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let run = run_directory::stamp();
    format!("{name}-{run}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Why the rig could not do what a test asked, with the end of the child's log where there is one.
#[derive(Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Error(pub(crate) String);

/// `unwrap` prints `Debug`; log lines should not arrive there as one escaped string.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a call into the rig answers.
pub(crate) type Result<T> = std::result::Result<T, Error>;
