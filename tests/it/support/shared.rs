//! The Kafka and the registry that most tests share: outside ones that the environment names, or started for the
//! first test that needs them.
//!
//! Also counts for the report at the end of the run: tests that used them, and tests that were left out and why.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Broker, Error, Options, Registry, Result, jars, run_directory};

const BOOTSTRAP: &str = "TRIBUTARY_TEST_BOOTSTRAP";
const REGISTRY: &str = "TRIBUTARY_TEST_REGISTRY";

/// Addresses of a Kafka and a registry that every test of the run may use and none may disturb.
pub(crate) struct Shared {
    bootstrap: String,
    registry: String,
    own: Option<Broker>,
    /// Held, not used: dropping it ends it.
    _own_registry: Option<Registry>,
}

impl Shared {
    /// What a client takes as `bootstrap.servers`.
    pub(crate) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// What a client takes as `schema.registry.url`.
    pub(crate) fn registry(&self) -> &str {
        &self.registry
    }
}

static SHARED: OnceLock<Result<Shared>> = OnceLock::new();

/// The shared cluster; the first caller starts it and the others wait.
pub(crate) fn get() -> Result<&'static Shared> {
    SHARED.get_or_init(start).as_ref().map_err(Clone::clone)
}

/// Freezes the shared broker while only disturbing tests run, which use others: its log cleaner would keep
/// scanning all partitions.
pub(crate) fn pause() {
    if let Some(broker) = own() {
        broker.pause().ok();
    }
}

/// Ends [`pause`].
pub(crate) fn resume() {
    if let Some(broker) = own() {
        broker.resume().ok();
    }
}

fn own() -> Option<&'static Broker> {
    SHARED.get()?.as_ref().ok()?.own.as_ref()
}

/// Why a test that shares the cluster cannot run here; `None` where it can.
pub(crate) fn missing() -> Option<&'static str> {
    if outside(BOOTSTRAP).is_some() && outside(REGISTRY).is_some() { None } else { jars::missing() }
}

fn start() -> Result<Shared> {
    let (bootstrap, registry) = (outside(BOOTSTRAP), outside(REGISTRY));
    if bootstrap.is_none() || registry.is_none() {
        jars::get()?;
    }
    // No test kills this broker, and a busy machine must not make its controller fence it.
    let patient = Options::default().property("broker.session.timeout.ms", "18000");
    // Tests that kill workers want their sessions short.
    let patient = patient.property("group.min.session.timeout.ms", "1500");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime =
        runtime.map_err(|error| Error(format!("start the shared cluster: build a runtime: {error}")))?;
    runtime.block_on(async {
        let (own_broker, own_registry) = tokio::try_join!(
            async { if bootstrap.is_some() { Ok(None) } else { Broker::start(patient).await.map(Some) } },
            async { if registry.is_some() { Ok(None) } else { Registry::start().await.map(Some) } },
        )?;
        Ok(Shared {
            bootstrap: bootstrap.or(own_broker.as_ref().map(Broker::bootstrap)).unwrap_or_default(),
            registry: registry.or(own_registry.as_ref().map(Registry::url)).unwrap_or_default(),
            own: own_broker,
            _own_registry: own_registry,
        })
    })
}

fn outside(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

struct Usage {
    shared: usize,
    own: usize,
    left_out: Vec<(String, &'static str)>,
}

/// A test uses the shared cluster.
pub(crate) fn note_use() {
    usage().shared += 1;
}

/// A test starts its own cluster.
pub(crate) fn note_own() {
    usage().own += 1;
}

/// A test is left out.
pub(crate) fn note_left_out(test: &str, reason: &'static str) {
    usage().left_out.push((test.to_owned(), reason));
}

/// The report about real Kafka at the end of a run; empty when no test needed it.
pub(crate) fn closing(failed: bool) -> String {
    let usage = usage();
    let mut text = String::new();
    if usage.shared + usage.own > 0 {
        let (kafka, registry) = (jars::kafka_version(), jars::registry_version());
        let used = match SHARED.get() {
            Some(Ok(shared)) => {
                let kafka =
                    outside(BOOTSTRAP).map_or(format!("Kafka {kafka}"), |_| format!("Kafka of {BOOTSTRAP}"));
                let registry = outside(REGISTRY)
                    .map_or(format!("Apicurio {registry}"), |_| format!("registry of {REGISTRY}"));
                format!(
                    "real {kafka} at {}, {registry} at {}: {} used it",
                    shared.bootstrap,
                    shared.registry,
                    tests(usage.shared)
                )
            }
            Some(Err(_)) => format!("real Kafka {kafka} did not start: {} needed it", tests(usage.shared)),
            None => format!("real Kafka {kafka}: no test used a shared one"),
        };
        text += &format!("{used}, {} started their own\n", tests(usage.own));
    }
    if let Some(path) = run_directory::path().filter(|_| failed) {
        text += &format!("logs of brokers and registries until the next run: {}\n", path.display());
    }
    if !usage.left_out.is_empty() {
        text += &left_out_block(&usage.left_out);
    }
    text
}

/// The loud part: which tests did not run, why, and what to install.
pub(crate) fn left_out_block(left_out: &[(String, &'static str)]) -> String {
    let line = "=".repeat(100);
    let mut text =
        format!("\n{line}\nLEFT OUT: {} that need a real Kafka did not run.\n\n", tests(left_out.len()));
    for (test, reason) in left_out {
        text += &format!("    {test}: {reason}\n");
    }
    text += &format!(
        "\nTo run them, install Java 17 or newer and Maven\n\
         (Debian: apt install openjdk-17-jre-headless maven, or default-jre-headless),\n\
         or point {BOOTSTRAP}=host:port and\n\
         {REGISTRY}=http://host:port/path at running ones.\n\
         Tests that kill brokers start their own and need Java in any case.\n\
         With CI set, leaving tests out is a failure.\n{line}\n"
    );
    text
}

fn tests(count: usize) -> String {
    if count == 1 { "1 test".to_owned() } else { format!("{count} tests") }
}

fn usage() -> MutexGuard<'static, Usage> {
    static USAGE: Mutex<Usage> = Mutex::new(Usage { shared: 0, own: 0, left_out: Vec::new() });
    USAGE.lock().unwrap_or_else(PoisonError::into_inner)
}
