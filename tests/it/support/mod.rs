//! The rig: real Kafka, a real registry and a bad network, for the tests of this binary.
//!
//! | module | has |
//! |---|---|
//! | [`harness`] | the tests as lists of functions, their kinds and limits |
//! | [`shared`] | the Kafka and the registry that most tests share |
//! | [`broker`], [`registry`] | brokers and registries that a test starts and breaks |
//! | [`breakable`] | brokers that tests break one after the other, healed before each test |
//! | [`proxy`] | a TCP proxy that stalls, slows or cuts the network |
//! | [`process`] | child processes, which die with the test run however it ends |
//! | [`command`] | our binary as a command |
//! | [`tributary`] | our worker as a process |
//! | [`stage`] | workers that receive deliveries from the simulated provider |
//! | [`scripted`] | a worker with scripted answers |
//! | [`connect`] | a real Kafka Connect to compare with |
//! | [`login`], [`browser`] | `tributary auth login` with a simulated person, and with a real browser |
//! | [`secrets`], [`traced`] | the search for secrets in texts and files, and in all logs of a run |
//! | [`dice`], [`drawn`], [`cycles`] | seeds and random numbers, drawn providers, repetitions of a loop |
//! | [`lost`] | time that a busy machine took from a test |
//! | [`tries`] | the count of checks that pass only after a retry |
//! | [`place`], [`examples`] | a prefix to publish to through the product, and records of every kind |

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
pub(crate) mod stage;
pub(crate) mod topics;
pub(crate) mod traced;
pub(crate) mod tributary;
pub(crate) mod tries;
pub(crate) mod visit;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ::tributary::{config, store};

pub(crate) use broker::{Broker, Cluster, Options};
pub(crate) use cycles::{cycles, parse_cycles, parse_seed};
pub(crate) use proxy::Proxy;
pub(crate) use registry::Registry;
pub(crate) use shared::Shared;

/// `provider.hosts.allowed` of test workers: the simulated provider on this machine, and the names of examples.
pub(crate) const ALLOWED_HOSTS: &str = "localhost,127.0.0.1,*.example.com";

/// [`ALLOWED_HOSTS`] as a policy.
pub(crate) fn allowed_hosts() -> ::provider::HostPolicy {
    ::provider::HostPolicy::listing(&ALLOWED_HOSTS.split(',').collect::<Vec<_>>())
}

/// A topic prefix that no other test and no earlier run on the same outside cluster uses.
pub(crate) fn prefix(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let run = run_directory::stamp();
    format!("{name}-{run}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The configuration of a worker of `group`, whose topics are named after it, with these numbers of partitions by topic, and with
/// these settings by environment variable.
pub(crate) fn worker_config(
    bootstrap: &str,
    group: &str,
    partitions: [(&str, usize); 4],
    more: &[(&str, &str)],
) -> Arc<config::Worker> {
    let mut settings = vec![
        ("CONNECT_BOOTSTRAP_SERVERS".to_owned(), bootstrap.to_owned()),
        ("CONNECT_GROUP_ID".to_owned(), group.to_owned()),
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL".to_owned(), "http://127.0.0.1:1".to_owned()),
    ];
    for (topic, partitions) in [("CONFIG", 1)].into_iter().chain(partitions) {
        let key = |rest: &str| format!("CONNECT_{topic}_STORAGE_{rest}");
        settings.push((key("TOPIC"), format!("{group}-{}", topic.to_lowercase())));
        settings.push((key("REPLICATION_FACTOR"), "1".to_owned()));
        if topic != "CONFIG" {
            settings.push((key("PARTITIONS"), partitions.to_string()));
        }
    }
    settings.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let environment = settings.into_iter().map(|(key, value)| (key.into(), value.into()));
    Arc::new(config::Worker::load(None, environment).unwrap().config)
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

/// The result of a call into the rig.
pub(crate) type Result<T> = std::result::Result<T, Error>;
