//! The classes of connectors a worker can run.

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::state::configs::Properties;
use crate::{
    config::{self, KeyDef, Validation},
    kafka,
    retry::Retry,
};

/// A class of connectors.
#[async_trait]
pub trait Plugin: Send + Sync + fmt::Debug {
    /// Its name, as `connector.class` has it; a package before it and `Connector` after it make no difference.
    fn class(&self) -> &'static str;

    /// Its keys, its own first.
    fn definitions(&self) -> Vec<KeyDef>;

    /// What there is to say about a configuration, whatever it holds.
    fn validate(&self, config: &Properties) -> Validation;

    /// One configuration per task, at most as many as `tasks.max` says. References stay unresolved.
    ///
    /// # Errors
    /// The configuration cannot be used.
    fn task_configs(&self, name: &str, config: &Properties) -> Result<Vec<Properties>, Failure>;

    /// Runs one task until it is cancelled. Panics are caught by the caller.
    ///
    /// # Errors
    /// Why it cannot go on: the verdict decides whether it is started again by itself.
    async fn run(&self, task: Task) -> Result<(), Failure>;

    /// Transactional ids that must be taken before the offsets of a stopped connector are edited, so that no task left
    /// behind can write over the edit.
    fn writers(&self, name: &str, config: &Properties) -> Vec<String>;

    /// Checks offsets that somebody wants to set; `None` as an offset resets its partition.
    ///
    /// # Errors
    /// The partition or offset is none of this class's: what is expected.
    fn check_offsets(
        &self,
        offsets: &[(Map<String, Value>, Option<Map<String, Value>>)],
    ) -> Result<(), String>;
}

/// Why a connector or task cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Kind of failure, as the first word of a trace: `ProviderRefused`.
    pub kind: &'static str,
    /// What was attempted and what came of it.
    pub message: String,
    /// What a person can do about it.
    pub remedy: Option<String>,
    /// Whether trying again may help.
    pub retry: Retry,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What a running task is given.
#[derive(Debug)]
pub struct Task {
    /// Name of the connector.
    pub connector: Arc<str>,
    /// Number of the task.
    pub number: u32,
    /// Its configuration, references unresolved.
    pub config: Arc<Properties>,
    /// Claim of the partition this instance runs by; higher than that of every instance before it.
    pub generation: i64,
    /// Ends it.
    pub cancel: CancellationToken,
    /// Whether it shall wait.
    pub paused: watch::Receiver<bool>,
    /// What it may use.
    pub tools: Tools,
}

/// What tasks share.
#[derive(Clone)]
pub struct Tools {
    /// How to reach Kafka.
    pub kafka: config::Kafka,
    /// How references are resolved.
    pub providers: config::Providers,
    /// The worker's whole configuration.
    pub worker: Arc<config::Worker>,
    /// Whether this instance may act on the outside world right now.
    pub lease: kafka::Lease,
    /// Offsets stored by this connector, read to the end before the task was started.
    pub offsets: super::state::Tail<super::state::offsets::Offsets>,
    /// Tells that the task writes to a topic, for `GET /connectors/{name}/topics`. Cheap when told again.
    pub uses_topic: Arc<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tools").finish_non_exhaustive()
    }
}

/// The classes of this worker, by name.
#[derive(Debug, Clone, Default)]
pub struct Plugins {
    classes: BTreeMap<&'static str, Arc<dyn Plugin>>,
}

impl Plugins {
    /// With these classes.
    #[must_use]
    pub fn new(classes: impl IntoIterator<Item = Arc<dyn Plugin>>) -> Self {
        Self { classes: classes.into_iter().map(|plugin| (plugin.class(), plugin)).collect() }
    }

    /// The class a `connector.class` means.
    #[must_use]
    pub fn find(&self, class: &str) -> Option<&Arc<dyn Plugin>> {
        let simple = class.trim().rsplit('.').next().unwrap_or_default();
        self.classes.get(simple.strip_suffix("Connector").unwrap_or(simple))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.classes.values()
    }
}
