//! The interface of connector classes, and what a task is given.
//!
//! A [`Plugin`] describes its keys, checks configurations, divides a connector into tasks and runs one of them. The
//! supervisor calls it and decides, by the verdict of a [`Failure`], whether a task is started again by itself.
//!
//! - A class never sees resolved secrets before a task of its own runs: configurations pass through with their references.
//! - Answers and failures hold no value of a configuration.
//! - What a task writes to Kafka is fenced by a transactional id that names what is written; what it does elsewhere asks
//!   [`Tools::lease`] first. An older instance of the same task may still be running somewhere.

mod failure;
mod parts;
pub mod recorder;
mod resume;

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use self::{failure::Failure, recorder::Recorder};
pub(crate) use self::{
    failure::{no_access, unable},
    parts::first_ended,
};
use crate::{
    avro,
    config::{self, KeyDef, Providers, Validation},
    logins::access::ApiAccess,
    publish::LetterSigner,
    state::state_topic::StateTopics,
    state::{
        Table,
        configs::{Configs, Properties},
        offsets::{Edit, Offsets},
    },
};

/// Tasks of one connector, at most, whatever `tasks.max` allows. Each task that writes has a transactional client of its own
/// with about five threads, so one request could otherwise exhaust a worker; a task that has several shards loses nothing.
pub(crate) const MOST_TASKS: u32 = 128;

/// What keeps connectors from being received on this worker, by name.
pub type ReceiverFaults = Arc<BTreeMap<String, String>>;

/// How deep a validation looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// References are resolved and files are opened.
    Full,
    /// Nothing outside the configuration is read, so that the answer says nothing about secrets and files.
    Form,
}

impl Depth {
    pub(super) fn apply(self, providers: &Providers) -> Cow<'_, Providers> {
        match self {
            Self::Full => Cow::Borrowed(providers),
            Self::Form => Cow::Owned(providers.unresolved()),
        }
    }
}

/// A class of connectors.
#[async_trait]
pub trait Plugin: Send + Sync + fmt::Debug {
    /// Its name, as `connector.class` has it; a package before it and `Connector` after it make no difference.
    fn class(&self) -> &'static str;

    /// Its keys, its own first.
    fn definitions(&self) -> Vec<KeyDef>;

    /// Validates a configuration, whatever it holds.
    fn validate(&self, config: &Properties, depth: Depth) -> Validation;

    /// One configuration per task, at most as many as `tasks.max` says. References stay unresolved.
    ///
    /// # Errors
    /// The configuration cannot be used.
    fn task_configs(&self, name: &str, config: &Properties) -> Result<Vec<Properties>, Failure>;

    /// Runs one task until it is cancelled. It calls [`Task::started`] once it has all it needs to do its work; until then
    /// its state is not RUNNING. Panics are caught by the caller.
    ///
    /// # Errors
    /// Why it failed: the verdict decides whether it restarts automatically.
    async fn run(&self, task: Task) -> Result<(), Failure>;

    /// Transactional ids that must be taken before the offsets of a stopped connector are edited, so that no task left
    /// behind can write over the edit: of the tasks it has had as well as of those it would have.
    fn writers(&self, name: &str, config: &Properties, past: &Past) -> Vec<String>;

    /// Checks offsets that a request sets; `None` as an offset resets its partition.
    ///
    /// # Errors
    /// The partition or offset is none of this class's: what is expected.
    fn check_offsets(&self, offsets: &[Edit]) -> Result<(), String>;
}

/// What a running task is given.
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
    /// Notified once it has started.
    pub startup: Arc<Notify>,
    /// Notified each time it has come to rest.
    pub rest: Arc<Notify>,
}

impl Task {
    /// Says that it has started: it holds what it needs, and does its work from now on. Saying it again changes nothing.
    pub fn started(&self) {
        self.startup.notify_one();
    }

    /// Says that it waits, as it was asked to: it is PAUSED only from here on, when nothing it did before is under way any more.
    pub fn rests(&self) {
        self.rest.notify_one();
    }

    /// Waits while it shall wait, and says that it does; `false` if it shall end instead. `paused` is a clone of
    /// [`Task::paused`], of which everything has been seen then.
    pub async fn resumed(&self, paused: &mut watch::Receiver<bool>) -> bool {
        rest(&self.rest, paused, &self.cancel).await
    }
}

/// Notifies and waits as long as `paused` says so; `false` if it is cancelled before.
async fn rest(waits: &Notify, paused: &mut watch::Receiver<bool>, cancel: &CancellationToken) -> bool {
    while *paused.borrow_and_update() {
        waits.notify_one();
        tokio::select! {
            () = cancel.cancelled() => return false,
            // The sender is the supervisor, which outlives its tasks; without it no one resumes them.
            changed = paused.changed() => if changed.is_err() { return false },
        }
    }
    true
}

/// What a connector has left behind.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// One above the highest task that has had a configuration.
    pub tasks: u32,
    /// Partitions that have an offset.
    pub partitions: Vec<Map<String, Value>>,
}

/// What tasks share.
#[derive(Clone)]
pub struct Tools {
    /// How to reach Kafka.
    pub kafka: kafka::Kafka,
    /// Makes transactional producers; shared, so that not all tasks of a worker initialise one at the same moment.
    pub shards: kafka::ShardProducers,
    /// How references are resolved.
    pub providers: config::Providers,
    /// The worker's whole configuration.
    pub worker: Arc<config::Worker>,
    /// Whether this instance may act on the outside world right now.
    pub lease: kafka::Lease,
    /// Offsets stored by every connector. A task asks [`Task::stored_offsets`] for its own once it has taken its transactional
    /// id: until then the instance before it may commit others.
    pub offsets: Table<Offsets>,
    /// Every connector, for those that depend on another.
    pub configs: Table<Configs>,
    /// What keeps connectors from being received on this worker, by name.
    pub faults: watch::Receiver<ReceiverFaults>,
    /// The provider's APIs, and the grants that they take.
    pub access: ApiAccess,
    /// What is known of subscriptions.
    pub ledgers: StateTopics,
    /// What tasks that write records use.
    pub store: Store,
    /// Who this worker is: `host:port`.
    pub worker_id: Arc<str>,
    /// Reports that the task writes to a topic, for `GET /connectors/{name}/topics`. Cheap when repeated.
    pub uses_topic: Arc<dyn Fn(&str) + Send + Sync>,
    /// Records the task's measurements, for the metrics of Kafka Connect.
    pub recorder: Recorder,
}

/// What the tasks of a worker that write records use.
#[derive(Debug, Clone)]
pub struct Store {
    /// Schema ids.
    pub ids: avro::Ids,
    /// Topics.
    pub admin: kafka::Admin,
    /// Signs dead letters.
    pub signer: LetterSigner,
}

/// The classes of this worker, by name.
#[derive(Debug, Clone, Default)]
pub struct Plugins {
    classes: BTreeMap<&'static str, Arc<dyn Plugin>>,
}

impl Plugins {
    /// With these classes.
    pub fn new(classes: impl IntoIterator<Item = Arc<dyn Plugin>>) -> Self {
        Self { classes: classes.into_iter().map(|plugin| (plugin.class(), plugin)).collect() }
    }

    /// The class a `connector.class` means.
    pub fn find(&self, class: &str) -> Option<&Arc<dyn Plugin>> {
        self.classes.get(simple_name(class))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.classes.values()
    }
}

/// The name of a class without a package before it and `Connector` after it.
pub(crate) fn simple_name(class: &str) -> &str {
    let simple = class.trim().rsplit('.').next().unwrap_or_default();
    simple.strip_suffix("Connector").unwrap_or(simple)
}

/// A configuration gives no tasks. Its values are left out: they may be secrets written where none are expected.
pub(crate) fn unusable(problems: config::Problems) -> Failure {
    let message = format!("the configuration cannot be used: {}", lines(&problems).join(", "));
    Failure::permanent("InvalidConfiguration", message, "correct the configuration")
}

/// What is wrong with a configuration, without its values.
pub(crate) fn lines(problems: &config::Problems) -> Vec<String> {
    problems.iter().map(|problem| format!("{} {}; {}", problem.key, problem.rule, problem.remedy)).collect()
}

#[cfg(test)]
pub(crate) use crate::config::samples;

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn rest_lasts_until_it_is_resumed_cancelled_or_orphaned() {
        type End = fn(&mut Option<watch::Sender<bool>>, &CancellationToken);
        let ends: [(&str, End, bool); 3] = [
            ("resumed", |pause, _| pause.iter().for_each(|pause| pause.send(false).unwrap()), true),
            ("cancelled", |_, cancel| cancel.cancel(), false),
            ("alone", |pause, _| drop(pause.take()), false),
        ];
        for (name, end, runs_again) in ends {
            let (waits, cancel) = (Notify::new(), CancellationToken::new());
            let (pause, mut paused) = watch::channel(true);
            let mut pause = Some(pause);

            let (lasted, ()) = tokio::join!(rest(&waits, &mut paused, &cancel), async {
                waits.notified().await;
                end(&mut pause, &cancel);
            });

            assert_eq!(lasted, runs_again, "{name}");
        }
    }

    #[tokio::test]
    async fn task_that_is_not_paused_does_not_rest() {
        let (waits, cancel) = (Notify::new(), CancellationToken::new());
        let mut paused = watch::channel(false).1;

        assert!(rest(&waits, &mut paused, &cancel).await);
        assert!(waits.notified().now_or_never().is_none(), "it has rested");
    }
}
