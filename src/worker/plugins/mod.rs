//! The classes of connectors a worker can run.
//!
//! A [`Plugin`] describes its keys, checks configurations, divides a connector into tasks and runs one of them. The
//! supervisor calls it and decides, by the verdict of a [`Failure`], whether a task is started again by itself.
//!
//! - A class never sees resolved secrets before a task of its own runs: configurations pass through with their references.
//! - Answers and failures hold no value of a configuration.
//! - What a task writes to Kafka is fenced by a transactional id that names what is written; what it does elsewhere asks
//!   [`Tools::lease`] first. An older instance of the same task may still be running somewhere.

mod failure;
mod record;
pub mod recorder;
mod resume;
mod sources;
pub mod stream;
mod test_source;
mod webhook;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

pub(in crate::worker) use self::webhook::{no_access, unable};
pub use self::{
    failure::Failure, record::RecordSource, recorder::Recorder, test_source::TestSource,
    webhook::WebhookSource,
};
use super::{
    access::Access,
    ingest::Faults,
    ledger::Ledgers,
    records::Store,
    state::{
        Tail,
        configs::{Configs, Properties},
        offsets::{Edit, Offsets},
    },
};
use crate::config::{self, KeyDef, Providers, Validation};

/// Tasks of one connector, at most, whatever `tasks.max` allows. Each task that writes has a transactional client of its own
/// with about five threads, so one request could otherwise exhaust a worker; a task that has several shards loses nothing.
pub(in crate::worker) const MOST_TASKS: u32 = 128;

/// Environment variable that, set to `true`, gives a worker the class [`TestSource`].
pub const TEST_PLUGINS: &str = "TRIBUTARY_TEST_PLUGINS";

/// How deep a validation looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// References are resolved and files are opened.
    Full,
    /// Nothing outside the configuration is read, so that the answer says nothing about secrets and files.
    Form,
}

impl Depth {
    fn apply(self, providers: &Providers) -> Cow<'_, Providers> {
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

    /// Runs one task until it is cancelled. It tells [`Task::started`] once it has all it needs to do its work; until then
    /// nobody is shown that it runs. Panics are caught by the caller.
    ///
    /// # Errors
    /// Why it cannot go on: the verdict decides whether it is started again by itself.
    async fn run(&self, task: Task) -> Result<(), Failure>;

    /// Transactional ids that must be taken before the offsets of a stopped connector are edited, so that no task left
    /// behind can write over the edit: of the tasks it has had as well as of those it would have.
    fn writers(&self, name: &str, config: &Properties, past: &Past) -> Vec<String>;

    /// Checks offsets that somebody wants to set; `None` as an offset resets its partition.
    ///
    /// # Errors
    /// The partition or offset is none of this class's: what is expected.
    fn check_offsets(&self, offsets: &[Edit]) -> Result<(), String>;
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
    /// Where it tells that it has started.
    pub startup: Startup,
    /// Where it tells that it waits.
    pub rest: Rest,
}

impl Task {
    /// Tells that it has started: it holds what it needs, and does its work from now on. Told again it changes nothing.
    pub fn started(&self) {
        self.startup.tell();
    }

    /// Tells that it has seen that it shall wait, and does: it is PAUSED only from here on, since nothing it did before is
    /// under way any more.
    pub fn rests(&self) {
        self.rest.tell();
    }

    /// Waits while it shall wait, and tells that it does; `false` if it shall end instead. `paused` is a clone of
    /// [`Task::paused`], of which everything has been seen then.
    pub async fn resumed(&self, paused: &mut watch::Receiver<bool>) -> bool {
        self.rest.lasts(paused, &self.cancel).await
    }
}

/// Tells that a task waits, each time anew.
#[derive(Debug)]
pub struct Rest(watch::Sender<()>);

impl Rest {
    /// One, and where it is heard.
    pub fn new() -> (Self, watch::Receiver<()>) {
        let (told, heard) = watch::channel(());
        (Self(told), heard)
    }

    /// Tells it.
    pub fn tell(&self) {
        self.0.send_replace(());
    }

    /// Tells it and waits, as long as `paused` says so; `false` if it is cancelled before.
    async fn lasts(&self, paused: &mut watch::Receiver<bool>, cancel: &CancellationToken) -> bool {
        while *paused.borrow_and_update() {
            self.tell();
            tokio::select! {
                () = cancel.cancelled() => return false,
                // The sender is the supervisor, which outlives its tasks; without it nobody resumes.
                changed = paused.changed() => if changed.is_err() { return false },
            }
        }
        true
    }
}

/// Tells once that something has started.
#[derive(Debug)]
pub struct Startup(Mutex<Option<oneshot::Sender<()>>>);

impl Startup {
    /// One, and where it is heard.
    pub fn new() -> (Self, oneshot::Receiver<()>) {
        let (started, heard) = oneshot::channel();
        (Self(Mutex::new(Some(started))), heard)
    }

    /// Tells it.
    pub fn tell(&self) {
        let started = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Nobody listens to a start that has been given up.
        started.map(|started| started.send(()).ok());
    }
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
    pub shards: kafka::Shards,
    /// How references are resolved.
    pub providers: config::Providers,
    /// The worker's whole configuration.
    pub worker: Arc<config::Worker>,
    /// Whether this instance may act on the outside world right now.
    pub lease: kafka::Lease,
    /// Offsets stored by every connector. A task asks [`Task::stored_offsets`] for its own once it has taken its transactional
    /// id: until then the instance before it may commit others.
    pub offsets: Tail<Offsets>,
    /// Every connector, for those that depend on another.
    pub configs: Tail<Configs>,
    /// What keeps connectors from being received on this worker, by name.
    pub faults: watch::Receiver<Faults>,
    /// The provider's APIs, and the grants that they take.
    pub access: Access,
    /// What is known of subscriptions.
    pub ledgers: Ledgers,
    /// What tasks that write records use.
    pub store: Store,
    /// Who this worker is: `host:port`.
    pub worker_id: Arc<str>,
    /// Tells that the task writes to a topic, for `GET /connectors/{name}/topics`. Cheap when told again.
    pub uses_topic: Arc<dyn Fn(&str) + Send + Sync>,
    /// What the task tells its measurements to, for the metrics of Kafka Connect.
    pub recorder: Recorder,
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
    /// The classes of a worker; [`TestSource`] is among them only where that is asked for ([`TEST_PLUGINS`]).
    pub fn of(worker: &config::Worker, with_test_source: bool) -> Self {
        let mut classes: Vec<Arc<dyn Plugin>> = vec![
            Arc::new(WebhookSource::new(worker.providers.clone())),
            Arc::new(RecordSource::new(worker.providers.clone())),
        ];
        if with_test_source {
            classes.push(Arc::new(TestSource::new(worker.providers.clone(), &worker.group.id)));
        }
        Self::new(classes)
    }

    /// With these classes.
    pub fn new(classes: impl IntoIterator<Item = Arc<dyn Plugin>>) -> Self {
        Self { classes: classes.into_iter().map(|plugin| (plugin.class(), plugin)).collect() }
    }

    /// The class a `connector.class` means.
    pub fn find(&self, class: &str) -> Option<&Arc<dyn Plugin>> {
        let simple = class.trim().rsplit('.').next().unwrap_or_default();
        self.classes.get(simple.strip_suffix("Connector").unwrap_or(simple))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.classes.values()
    }
}

/// A configuration gives no tasks. Its values are left out: they may be secrets written where none are expected.
pub(in crate::worker) fn unusable(problems: config::Problems) -> Failure {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| format!("{} {}; {}", problem.key, problem.rule, problem.remedy))
        .collect();
    let message = format!("the configuration cannot be used: {}", lines.join(", "));
    Failure::permanent("InvalidConfiguration", message, "correct the configuration")
}

#[cfg(test)]
pub(crate) mod samples;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_found_with_and_without_package_and_suffix_and_the_test_class_only_on_request() {
        let worker = samples::worker();

        for name in ["WebhookSource", "io.tributary.RecordSource", "RecordSourceConnector"] {
            assert!(Plugins::of(&worker, false).find(name).is_some(), "{name}");
        }
        assert!(Plugins::of(&worker, false).find("TestSource").is_none());
        assert!(Plugins::of(&worker, true).find("TestSource").is_some());
    }

    #[tokio::test]
    async fn a_rest_is_told_and_lasts_until_it_is_resumed_cancelled_or_nobody_can_resume_it() {
        type End = fn(&mut Option<watch::Sender<bool>>, &CancellationToken);
        let ends: [(&str, End, bool); 3] = [
            ("resumed", |pause, _| pause.iter().for_each(|pause| pause.send(false).unwrap()), true),
            ("cancelled", |_, cancel| cancel.cancel(), false),
            ("alone", |pause, _| drop(pause.take()), false),
        ];
        for (name, end, goes_on) in ends {
            let ((rest, mut told), cancel) = (Rest::new(), CancellationToken::new());
            let (pause, mut paused) = watch::channel(true);
            let mut pause = Some(pause);

            let (lasted, ()) = tokio::join!(rest.lasts(&mut paused, &cancel), async {
                told.changed().await.unwrap();
                end(&mut pause, &cancel);
            });

            assert_eq!(lasted, goes_on, "{name}");
        }
    }

    #[tokio::test]
    async fn who_is_not_paused_goes_on_at_once_although_nobody_could_pause_it_any_more() {
        let ((rest, told), cancel) = (Rest::new(), CancellationToken::new());
        let mut paused = watch::channel(false).1;

        assert!(rest.lasts(&mut paused, &cancel).await);
        assert!(!told.has_changed().unwrap(), "it has not rested");
    }

    #[test]
    fn every_class_answers_every_validation_with_whole_entries_and_no_secret() {
        let inputs: [&[(&str, &str)]; 4] = [
            &[],
            &[("connector.class", "TestSource"), ("topics", "none")],
            &[("", ""), ("x", "${"), ("tasks.max", "zero"), ("name", "\u{7}")],
            &[("secret", "hunter2"), ("accounting.secret", "hunter2"), ("sercet", "hunter2")],
        ];

        for plugin in Plugins::of(&samples::worker(), true).iter() {
            for input in inputs {
                let answer = plugin.validate(&samples::properties(input), Depth::Full);

                let told = serde_json::to_string(&answer).unwrap();
                assert!(answer.error_count > 0, "{}: {input:?}", plugin.class());
                assert!(!told.contains("hunter2"), "{told}");
            }
            let defined: Vec<String> = plugin.definitions().into_iter().map(|key| key.name).collect();
            for name in ["name", "connector.class", "tasks.max"] {
                assert!(defined.iter().any(|key| key == name), "{} has no {name}", plugin.class());
            }
        }
    }
}
