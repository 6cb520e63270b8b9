//! The operations of the REST API, without HTTP: reads are answered from the tables, writes go to one of three topics.
//!
//! ```text
//! read            ──▶ tables (configs, statuses, offsets, {prefix}.state) ──▶ shapes
//! change          ──▶ validated by the class ──▶ config writer: decided on the newest state, written, read back ──▶ shapes
//! run, command,
//! accepted gap    ──▶ RunStore, SubscriptionStore: one record in {prefix}.state, read back ──▶ shapes
//! reset of topics ──▶ status writer: tombstones in the status topic, read back
//! ```
//!
//! - Most reads do not call Kafka: while the broker is unreachable they answer from what was read before. Certificates are read
//!   from their topic at each request, and a plan of subscriptions asks the provider.
//! - A change is decided on the config topic's current state; one that replaces what its caller has seen (a configuration,
//!   offsets) first reads that topic to its end (`newest`). Of two edits of one configuration that overlap in time, one
//!   succeeds and the other is [`Error::Stale`]; edits one after the other, on any workers, both succeed.
//! - The next read on this worker sees the change.
//! - A connector has a status as soon as it has a configuration: UNASSIGNED until its owner reports another one, so lists
//!   never lack a connector. Its tasks are those of its configuration, regardless of older records in the status topic.
//! - Instances that this worker ended because its lease expired are UNASSIGNED in its answers, although it can update the
//!   topic only once Kafka is back.
//! - Every operation ends within the time of its request, done or not, and takes at most [`OPERATION_LIMIT`]. Before that limit starts
//!   to run, pause, resume, stop, restart, delete and a cluster-wide log level wait up to 5 s for a worker that is starting.
//! - Operations that need a thread or a Kafka client wait for one (`limits`), so that many requests at once use a bounded number of
//!   both.
//!
//! On failure an [`Error`] has Kafka Connect's status and text.
//!
//! | file | job |
//! |---|---|
//! | `limits` | time of an operation; threads and Kafka clients that all operations share |
//! | `edit` | create, configure, pause, resume, stop, restart and delete a connector |
//! | `classes` | connector classes: their keys, their verdict on a configuration, parsed configurations |
//! | `declarations` | connectors that files declare, and how they differ from their files |
//! | `offsets` | offsets and topics of a connector: read, altered, reset |
//! | `subscription_api` | subscriptions and gaps of a webhook connector |
//! | `runs` | runs and certificates of a connector that reads lists |
//! | `loggers` | log levels of this worker and of all workers |
//! | `shapes` | the JSON of the answers |
//! | `error` | why an operation failed, with status and text |

mod limits;

mod edit;

mod classes;
mod declarations;
mod offsets;

mod subscription_api;

mod runs;

mod loggers;
mod shapes;

mod error;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

pub(super) use self::limits::{TimeBudget, handle_until};
pub use self::{
    declarations::{Declaration, DeclarationInfo, DeclarationOutcome, Drift, Sighting},
    edit::Patch,
    error::Error,
    loggers::LoggerLevel,
    runs::{
        CertificateFilter, CertificateQuery, CertificatesInfo, ConnectorRuns, FoundCertificates,
        ListAwaitingLogin, RequestedRun, RunDetail, RunInfo, RunRequest, RunStore, RunTimes, RunsInfo,
    },
    shapes::{
        ConnectorOffsets, ConnectorState, ConnectorStatus, Expanded, Info, Message, Offset, PluginInfo,
        ServerInfo, TaskId, TaskInfo, TaskState, TopicNames, Topics,
    },
    subscription_api::{
        ContactInfo, GapInfo, NoteInfo, PlanInfo, RepairInfo, StartInfo, StartedInfo, StepInfo,
        SubscribedInfo, SubscriptionCommandInfo, SubscriptionInfo, SubscriptionParts, SubscriptionStore,
        SubscriptionsInfo,
    },
};
use self::{limits::Limits, loggers::Followed, runs::RunRequestLock, shapes::task_state};
use super::{config_writer::ConfigWriter, supervisor::SupervisorHandle};
use crate::{
    config,
    plugin::Plugins,
    state::{
        StateTables,
        configs::{Configs, Properties, Restart, StoredConnector},
        statuses::{RunState, Status as StatusRecord, Statuses},
        writer::StatusWriter,
    },
    telemetry::Filters,
};

/// Limit for an operation. A request whose login or body was slow leaves less: all of it is answered within `rest::DEADLINE`.
pub const OPERATION_LIMIT: Duration = Duration::from_secs(7);
/// How long a request waits for a worker that is starting.
const START_WAIT: Duration = Duration::from_secs(5);
/// How long reading what other workers have written may take, while Kafka is healthy.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Limit on the bytes of a record that an edit writes. It is the lowest maximum message size of a topic, less room for the
/// record's key, its batch, and what a class adds for its tasks.
const MAX_RECORD_BYTES: usize = kafka::MIN_MAX_MESSAGE_BYTES as usize - (64 << 10);

/// The Kafka release whose REST API this implements.
const KAFKA_VERSION: &str = "4.3.1-tributary";

/// Dependencies of a [`Herder`].
pub struct HerderParts {
    /// Tables of the config, offset and status topics.
    pub state: StateTables,
    /// Writers of these topics.
    pub writers: HerderWriters,
    /// Classes.
    pub plugins: Plugins,
    /// How references in configurations are resolved.
    pub providers: config::Providers,
    /// Log levels of this process.
    pub loggers: Arc<Filters>,
    /// This worker.
    pub identity: WorkerIdentity,
    /// What runs on this worker, for answers while Kafka is unreachable.
    pub running: SupervisorHandle,
    /// Source of subscriptions and gaps; `None` if this worker follows no state topic.
    pub subscriptions: Option<SubscriptionParts>,
    /// Source of runs and certificates; `None` if this worker follows no state topic.
    pub snapshots: Option<Arc<dyn RunStore>>,
}

/// The writers of a [`Herder`].
pub struct HerderWriters {
    /// Writes the config topic.
    pub configs: ConfigWriter,
    /// Writes the status topic.
    pub statuses: StatusWriter,
    /// Takes over transactional ids, so that tasks on frozen workers cannot write.
    pub shards: kafka::ShardProducers,
}

/// Which worker answers.
pub struct WorkerIdentity {
    /// Its id in status records: `host:port`.
    pub worker_id: String,
    /// The URL of its API, as in `http://host:port`, for `Location` headers.
    pub url: String,
    /// The Kafka cluster's id, if the broker reported it.
    pub cluster_id: Option<String>,
}

/// The operations of the API. Cheap to clone.
#[derive(Clone)]
pub struct Herder {
    parts: Arc<HerderParts>,
    followed: Arc<Followed>,
    /// Files that declare connectors, as this worker sees them.
    sightings: Arc<watch::Sender<Option<Arc<[Sighting]>>>>,
    limits: Arc<Limits>,
    run_requests: RunRequestLock,
}

/// The commit of this build if known, else the version.
const REVISION: &str = {
    let commit = env!("TRIBUTARY_REVISION");
    if commit.is_empty() { env!("CARGO_PKG_VERSION") } else { commit }
};

impl Herder {
    /// Nothing happens before an operation is called.
    pub fn new(parts: HerderParts) -> Self {
        Self {
            parts: Arc::new(parts),
            followed: Arc::default(),
            sightings: Arc::default(),
            limits: Arc::default(),
            run_requests: Arc::default(),
        }
    }

    /// Version and cluster.
    pub fn server(&self) -> ServerInfo {
        ServerInfo {
            version: KAFKA_VERSION,
            commit: REVISION,
            kafka_cluster_id: self.parts.identity.cluster_id.clone(),
            tributary_version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// The URL of this worker's API.
    pub fn url(&self) -> &str {
        &self.parts.identity.url
    }

    /// Names of all connectors.
    ///
    /// # Errors
    /// The worker is starting.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        self.ready().await?;
        Ok(self.parts.state.configs.read(|configs| configs.connectors().keys().cloned().collect()))
    }

    /// All connectors, each with the requested parts.
    ///
    /// # Errors
    /// The worker is starting.
    pub async fn expanded(&self, info: bool, status: bool) -> Result<BTreeMap<String, Expanded>, Error> {
        self.ready().await?;
        let state = &self.parts.state;
        let all: Vec<_> = state.configs.read(|configs| {
            state.statuses.read(|statuses| {
                let each = configs.connectors().iter().map(|(name, connector)| {
                    let info = info.then(|| self.info_of(name, connector));
                    let status = status.then(|| self.status_of(name, configs, connector, statuses));
                    (name.clone(), Arc::clone(&connector.config), Expanded { info, status })
                });
                each.collect()
            })
        });
        // After the locks are released: state topics have their own locks.
        let with_subscriptions = all.into_iter().map(|(name, config, mut expanded)| {
            if let Some(status) = &mut expanded.status {
                self.add_subscriptions(status, &config);
            }
            (name, expanded)
        });
        Ok(with_subscriptions.collect())
    }

    /// A connector.
    ///
    /// # Errors
    /// There is none, or the worker is starting.
    pub async fn info(&self, name: &str) -> Result<Info, Error> {
        let connector = self.connector(name).await?;
        Ok(self.info_of(name, &connector))
    }

    /// A connector's configuration, unchanged.
    ///
    /// # Errors
    /// As [`Herder::info`].
    pub async fn config(&self, name: &str) -> Result<Arc<Properties>, Error> {
        Ok(self.connector(name).await?.config)
    }

    /// A connector's state.
    ///
    /// # Errors
    /// As [`Herder::info`].
    pub async fn status(&self, name: &str) -> Result<ConnectorStatus, Error> {
        self.ready().await?;
        self.known_status(name)
            .ok_or_else(|| Error::NotFound(format!("No status found for connector {name}")))
    }

    /// The configurations of its tasks.
    ///
    /// # Errors
    /// As [`Herder::info`].
    pub async fn tasks(&self, name: &str) -> Result<Vec<TaskInfo>, Error> {
        let connector = self.connector(name).await?;
        let infos = connector.tasks.iter().zip(0..).map(|(config, task)| TaskInfo {
            id: TaskId { connector: name.to_owned(), task },
            config: Arc::clone(config),
        });
        Ok(infos.collect())
    }

    /// The state of one task.
    ///
    /// # Errors
    /// There is no such task, or the worker is starting.
    pub async fn task_status(&self, name: &str, task: u32) -> Result<TaskState, Error> {
        self.ready().await?;
        self.known_status(name)
            .and_then(|status| status.tasks.into_iter().find(|state| state.id == task))
            .ok_or_else(|| Error::NotFound(format!("No status found for task {name}-{task}")))
    }

    /// Topics the connector has written to; none for an unknown connector.
    ///
    /// # Errors
    /// The worker is starting.
    pub async fn topics(&self, name: &str) -> Result<Topics, Error> {
        self.ready().await?;
        let mut topics = self.known_topics(name);
        topics.sort_unstable();
        Ok(BTreeMap::from([(name.to_owned(), TopicNames { topics })]))
    }

    /// Waits until the tables have been read to their end once: until then, a missing connector may exist.
    async fn ready(&self) -> Result<(), Error> {
        let state = &self.parts.state;
        if state.behind().is_some() {
            timeout(TimeBudget::start().at_most(START_WAIT).left(), state.caught_up()).await.ok();
        }
        state.behind().map_or(Ok(()), |topic| Err(Error::Starting { topic }))
    }

    async fn connector(&self, name: &str) -> Result<StoredConnector, Error> {
        self.ready().await?;
        self.known(name).ok_or_else(|| Error::no_connector(name))
    }

    fn known(&self, name: &str) -> Option<StoredConnector> {
        self.parts.state.configs.read(|configs| configs.connectors().get(name).cloned())
    }

    fn known_topics(&self, name: &str) -> Vec<String> {
        let statuses = &self.parts.state.statuses;
        statuses.read(|statuses| statuses.topics(name).into_iter().map(str::to_owned).collect())
    }

    fn known_status(&self, name: &str) -> Option<ConnectorStatus> {
        let (mut status, config) = self.parts.state.configs.read(|configs| {
            let connector = configs.connectors().get(name)?;
            let status =
                self.parts.state.statuses.read(|statuses| self.status_of(name, configs, connector, statuses));
            Some((status, Arc::clone(&connector.config)))
        })?;
        self.add_subscriptions(&mut status, &config);
        Some(status)
    }

    fn info_of(&self, name: &str, connector: &StoredConnector) -> Info {
        let count = u32::try_from(connector.tasks.len()).unwrap_or(u32::MAX);
        Info {
            name: name.to_owned(),
            config: Arc::clone(&connector.config),
            tasks: (0..count).map(|task| TaskId { connector: name.to_owned(), task }).collect(),
            kind: self.kind(&connector.config),
        }
    }

    fn status_of(
        &self,
        name: &str,
        configs: &Configs,
        connector: &StoredConnector,
        statuses: &Statuses,
    ) -> ConnectorStatus {
        let unassigned = || (RunState::Unassigned, self.parts.identity.worker_id.clone(), None);
        let state_of = |task: Option<u32>| match statuses.of(name, task) {
            // This worker ended the instance and could not update the topic.
            Some(status) if self.parts.running.ended(name, task, status) => unassigned(),
            Some(status) => {
                let trace = status.trace.clone().filter(|trace| !trace.is_empty());
                let is_old = configs.restarts(name).any(|restart| precedes(status, restart, task));
                let state = if is_old { RunState::Restarting } else { status.state };
                (state, status.worker_id.clone(), trace)
            }
            None => unassigned(),
        };
        let (state, worker_id, trace) = state_of(None);
        let tasks = (0..).zip(connector.tasks.iter()).map(|(id, _)| {
            let (state, worker_id, trace) = state_of(Some(id));
            TaskState { id, state: task_state(state), worker_id, trace }
        });
        ConnectorStatus {
            name: name.to_owned(),
            connector: ConnectorState {
                state: state.word(),
                worker_id,
                trace,
                subscriptions: None,
                gaps: None,
            },
            tasks: tasks.collect(),
            kind: self.kind(&connector.config),
        }
    }

    fn kind(&self, config: &Properties) -> &'static str {
        let class = config.get(CLASS).and_then(|class| self.parts.plugins.find(class));
        if class.is_some() { "source" } else { "unknown" }
    }
}

/// Whether a status is older than a restart that its instance has not handled yet: the owner may read the restart after the
/// caller who requested it.
fn precedes(status: &StatusRecord, restart: &Restart, task: Option<u32>) -> bool {
    let is_chosen = !restart.only_failed || status.state == RunState::Failed;
    status.state != RunState::Unassigned
        && is_chosen
        && restart.concerns(task)
        && status.handled_restart.is_some_and(|handled| handled < restart.revision)
}

/// The key that names a connector's class.
const CLASS: &str = "connector.class";
/// The key that names a connector.
const NAME: &str = "name";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_from_before_a_restart_is_not_shown() {
        let restart = Restart { revision: 7, include_tasks: true, only_failed: false, task: None };
        let failed_only = Restart { only_failed: true, ..restart.clone() };
        let one_task = Restart { task: Some(1), include_tasks: false, ..restart.clone() };
        let alone = Restart { include_tasks: false, ..restart.clone() };
        for (state, handled_restart, restart, task, is_old) in [
            (RunState::Running, Some(-1), &restart, None, true),
            (RunState::Running, Some(6), &restart, Some(0), true),
            (RunState::Running, Some(7), &restart, Some(0), false),
            (RunState::Paused, Some(6), &restart, None, true),
            (RunState::Running, Some(6), &alone, Some(0), false),
            (RunState::Running, Some(6), &one_task, Some(1), true),
            (RunState::Running, Some(6), &one_task, Some(0), false),
            (RunState::Running, Some(6), &failed_only, Some(0), false),
            (RunState::Failed, Some(6), &failed_only, Some(0), true),
            // No worker would act on it.
            (RunState::Unassigned, Some(6), &restart, None, false),
            // Another program does not say what it has handled.
            (RunState::Running, None, &restart, None, false),
        ] {
            let status =
                StatusRecord { state, trace: None, worker_id: "w:1".into(), generation: 3, handled_restart };

            assert_eq!(precedes(&status, restart, task), is_old, "{status:?} {restart:?} {task:?}");
        }
    }
}
