//! The interface of connector classes, and what their tasks may use.
//!
//! A [`Plugin`] describes its keys, checks configurations, generates the task configurations of a connector and runs one task. The
//! supervisor calls it and decides by [`Failure::retry`] whether a task restarts automatically.
//!
//! - Topics, task configurations and answers keep references. Validation with [`Depth::Full`], parsing, and running tasks resolve
//!   them in memory.
//! - A refused value may be a misplaced secret: answers and failures repeat none, except `name` and `connector.class`.
//! - Writes to Kafka are fenced by a transactional id that names what is written; actions elsewhere check [`TaskPermission::lease`]
//!   first. An older instance of the same task may still be running on another worker.
//!
//! | file | job |
//! |---|---|
//! | `mod` | [`Plugin`], the context of a [`Task`], and the [`Tools`] that tasks share |
//! | `failure` | why a connector or task failed, and whether a retry can help |
//! | `start_offsets` | where a task resumes: its stored offsets |
//! | `recorder` | measurements of a task, for the metrics of Kafka Connect |
//! | `background_tasks` | waits for the first of several background tasks to end |

mod background_tasks;
mod failure;
pub mod recorder;
mod start_offsets;

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    background_tasks::first_ended,
    failure::{no_access, unable},
};
pub use self::{failure::Failure, recorder::Recorder};
use crate::{
    avro,
    config::{self, KeyDef, Providers, Validation},
    logins::access::ApiAccess,
    publish::LetterSigner,
    state::state_topic::StateTopics,
    state::{
        Table,
        configs::{Configs, Properties},
        offsets::{OffsetEdit, SourceOffsets},
    },
};

/// Limit on the tasks of one connector, whatever `tasks.max` allows. Each task that writes has a transactional client with
/// about five threads, so one request could otherwise exhaust a worker. A task can own several shards, so nothing is lost.
pub(crate) const MOST_TASKS: u32 = 128;

/// Why this worker cannot receive for a connector, by connector name.
pub type ReceiverFaults = Arc<BTreeMap<String, String>>;

/// How thorough a validation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// References are resolved and files are opened.
    Full,
    /// Only the configuration is read, so that the answer reveals nothing about secrets and files.
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
    /// Its name in `connector.class`, without a package before it and `Connector` after it.
    fn class(&self) -> &'static str;

    /// Its keys; the class's own come first.
    fn definitions(&self) -> Vec<KeyDef>;

    /// Validates any configuration.
    fn validate(&self, config: &Properties, depth: Depth) -> Validation;

    /// One configuration per task, at most `tasks.max`. References stay unresolved.
    ///
    /// # Errors
    /// The configuration cannot be used.
    fn task_configs(&self, name: &str, config: &Properties) -> Result<Vec<Properties>, Failure>;

    /// Runs one task until it is cancelled. The task calls [`Task::started`] once it has everything it needs; until then it is
    /// not RUNNING. The caller catches panics.
    ///
    /// # Errors
    /// Why it failed; [`Failure::retry`] decides whether it restarts automatically.
    async fn run(&self, task: Task) -> Result<(), Failure>;

    /// Transactional ids to take before the offsets of a stopped connector are edited, so that no task on a frozen worker can
    /// overwrite the edit: those of past tasks as well as of those it would have now.
    fn transactional_ids(&self, name: &str, config: &Properties, past: &Past) -> Vec<String>;

    /// Checks offsets that a request sets; `None` as an offset resets its partition.
    ///
    /// # Errors
    /// The class does not use such a partition or offset; the text says what is expected.
    fn check_offsets(&self, offsets: &[OffsetEdit]) -> Result<(), String>;
}

/// The context of a running task.
pub struct Task {
    /// Name of the connector.
    pub connector: Arc<str>,
    /// Number of the task.
    pub number: u32,
    /// Its configuration, references unresolved.
    pub config: Arc<Properties>,
    /// Claim of the partition that this instance runs under; higher than that of every earlier instance.
    pub generation: i64,
    /// Ends the task.
    pub cancel: CancellationToken,
    /// Whether the task should pause.
    pub paused: watch::Receiver<bool>,
    /// Clients and tables it may use.
    pub tools: Tools,
    /// Whether it may still work.
    pub permission: TaskPermission,
    /// Records its measurements, for the metrics of Kafka Connect.
    pub recorder: Recorder,
    /// Takes its reports.
    pub reports: TaskReports,
}

/// Whether an instance may still work.
#[derive(Clone)]
pub struct TaskPermission {
    /// Whether it may act on the outside world right now.
    pub lease: kafka::Lease,
    /// Whether the config topic still has the task.
    pub is_wanted: WantedCheck,
}

/// Reads the config topic to its end and returns whether it still has a task.
pub type WantedCheck = Arc<dyn Fn() -> BoxFuture<'static, Result<bool, kafka::Error>> + Send + Sync>;

/// Where a task reports what it does.
pub struct TaskReports {
    /// Notified once the task has started.
    pub startup: Arc<Notify>,
    /// Notified each time the task has paused.
    pub pause_reached: Arc<Notify>,
    /// Called with each topic that the task writes to.
    pub uses_topic: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Task {
    /// Reports that the task has started: it has what it needs, and works from now on. May be called again.
    pub fn started(&self) {
        self.reports.startup.notify_one();
    }

    /// Reports that the task has paused. It is PAUSED only from here on, when nothing is in flight any more.
    pub fn report_paused(&self) {
        self.reports.pause_reached.notify_one();
    }

    /// Reports that the task writes to a topic, for `GET /connectors/{name}/topics`. Repeating it is cheap.
    pub fn uses_topic(&self, topic: &str) {
        (self.reports.uses_topic)(topic);
    }

    /// Reports the pause and waits while the task should pause; `false` if it should end instead. `paused` is a clone of
    /// [`Task::paused`]; its value is marked as seen.
    pub async fn wait_while_paused(&self, paused: &mut watch::Receiver<bool>) -> bool {
        wait_while_paused(&self.reports.pause_reached, paused, &self.cancel).await
    }
}

/// Notifies and waits while `paused` is true; `false` if it is cancelled.
async fn wait_while_paused(
    pause_reached: &Notify,
    paused: &mut watch::Receiver<bool>,
    cancel: &CancellationToken,
) -> bool {
    while *paused.borrow_and_update() {
        pause_reached.notify_one();
        tokio::select! {
            () = cancel.cancelled() => return false,
            // The sender is the supervisor, which outlives its tasks; without it no one resumes them.
            changed = paused.changed() => if changed.is_err() { return false },
        }
    }
    true
}

/// Traces of a connector's earlier tasks.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// One above the highest task that has had a configuration.
    pub tasks: u32,
    /// Partitions that have an offset.
    pub partitions: Vec<Map<String, Value>>,
}

/// Clients and tables that the tasks of a worker share.
#[derive(Debug, Clone)]
pub struct Tools {
    /// How to reach Kafka.
    pub kafka: kafka::Kafka,
    /// Makes transactional producers; shared, so that the tasks of a worker do not all initialize one at the same moment.
    pub shards: kafka::ShardProducers,
    /// The worker's whole configuration.
    pub worker: Arc<config::Worker>,
    /// Offsets of all connectors. A task gets its own from [`Task::stored_offsets`] once it has taken its transactional id: until
    /// then the instance before it may still commit.
    pub offsets: Table<SourceOffsets>,
    /// Every connector, for classes that depend on another connector.
    pub configs: Table<Configs>,
    /// Why this worker cannot receive for a connector, by connector name.
    pub faults: watch::Receiver<ReceiverFaults>,
    /// The provider's APIs, and the grants that they take.
    pub access: ApiAccess,
    /// Tables of the topics that hold subscriptions, gaps and runs.
    pub state_topics: StateTopics,
    /// Clients for tasks that write records.
    pub record_writing: RecordWriting,
    /// This worker's id: `host:port`.
    pub worker_id: Arc<str>,
}

/// Shared clients for tasks that write records: schema ids, topic creation, signatures of dead letters.
#[derive(Debug, Clone)]
pub struct RecordWriting {
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
    /// A set of these classes, by [`Plugin::class`].
    pub fn new(classes: impl IntoIterator<Item = Arc<dyn Plugin>>) -> Self {
        Self { classes: classes.into_iter().map(|plugin| (plugin.class(), plugin)).collect() }
    }

    /// The class that a `connector.class` names.
    pub fn find(&self, class: &str) -> Option<&Arc<dyn Plugin>> {
        self.classes.get(simple_name(class))
    }

    /// All classes, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.classes.values()
    }
}

/// The name of a class without a package before it and `Connector` after it.
pub(crate) fn simple_name(class: &str) -> &str {
    let simple = class.trim().rsplit('.').next().unwrap_or_default();
    simple.strip_suffix("Connector").unwrap_or(simple)
}

/// The failure for an invalid configuration. Leaves out its values: secrets may be where none are expected.
pub(crate) fn unusable(problems: config::Problems) -> Failure {
    let message = format!("the configuration cannot be used: {}", lines(&problems).join(", "));
    Failure::permanent("InvalidConfiguration", message, "correct the configuration")
}

/// The problems of a configuration, without its values.
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
    async fn pause_lasts_until_it_is_resumed_cancelled_or_orphaned() {
        type End = fn(&mut Option<watch::Sender<bool>>, &CancellationToken);
        let ends: [(&str, End, bool); 3] = [
            ("resumed", |pause, _| pause.iter().for_each(|pause| pause.send(false).unwrap()), true),
            ("cancelled", |_, cancel| cancel.cancel(), false),
            ("alone", |pause, _| drop(pause.take()), false),
        ];
        for (name, end, runs_again) in ends {
            let (pause_reached, cancel) = (Notify::new(), CancellationToken::new());
            let (pause, mut paused) = watch::channel(true);
            let mut pause = Some(pause);

            let (lasted, ()) = tokio::join!(wait_while_paused(&pause_reached, &mut paused, &cancel), async {
                pause_reached.notified().await;
                end(&mut pause, &cancel);
            });

            assert_eq!(lasted, runs_again, "{name}");
        }
    }

    #[tokio::test]
    async fn task_that_is_not_paused_does_not_wait() {
        let (pause_reached, cancel) = (Notify::new(), CancellationToken::new());
        let mut paused = watch::channel(false).1;

        assert!(wait_while_paused(&pause_reached, &mut paused, &cancel).await);
        assert!(pause_reached.notified().now_or_never().is_none(), "it has paused");
    }
}
