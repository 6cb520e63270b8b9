//! The config topic, in Kafka Connect's keys and JSON.
//!
//! `connector-N` and `task-N-i` hold `{properties}`, `commit-N` `{tasks}` puts task configurations into force, `target-state-N`
//! `{state, state.v2}`, `restart-connector-N` `{include-tasks, only-failed}` and `logger-cluster-NS` `{level}` are commands.
//! `declared-N` `{hash, file}` is ours: the file content that was last applied to the connector.
//! `tributary-cluster` `{group.id, work.topic, work.partitions}` is ours: the workers that the topic belongs to.
//! `session-key` and `tasks-fencing-N` are Kafka Connect's own; only their presence is kept.
//!
//! - Task records count from the commit that follows them. A commit that misses one leaves the connector without tasks
//!   and *half-written*, until its owner writes them again.
//! - A connector exists while it has a configuration. Its target state and its tasks may come before that in the log:
//!   Kafka Connect writes the state first, and compaction keeps an old commit before a new configuration.
//! - The tombstone of a configuration removes everything of that name except its declaration: only with that can it be shown
//!   that a declared connector was deleted.
//!
//! On failure: a record that cannot be parsed is logged and skipped.

mod record;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use record::{ConfigRecordKey, ParsedConfig};
pub use record::{Write, cluster, connector, declared, logger, restart, target_state, tasks};

use kafka::ConsumerRecord;

use super::TableState;
use crate::config::connector::TargetState;

/// A flat configuration, as written.
pub type Properties = BTreeMap<String, String>;

/// Limit on the remembered restarts of one connector, for readers that look late.
const REMEMBERED_RESTARTS: usize = 32;

/// One connector.
#[derive(Debug, Clone)]
pub struct StoredConnector {
    /// Its configuration, unchanged.
    pub config: Arc<Properties>,
    /// Its target state.
    pub target: TargetState,
    /// Task configurations in force: those of the last commit. Empty while it is stopped or not configured yet.
    pub tasks: Arc<[Arc<Properties>]>,
    /// Offset of its `connector-N` record, which identifies the edit.
    pub revision: i64,
    /// Offset of its last `commit-N` record; -1 if none counts.
    pub task_revision: i64,
}

/// A requested restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// Offset of the request's record.
    pub revision: i64,
    /// Includes the tasks.
    pub include_tasks: bool,
    /// Only instances that have failed.
    pub only_failed: bool,
    /// Only this task (ours: Kafka Connect forwards these over REST).
    pub task: Option<u32>,
}

impl Restart {
    /// Whether it applies to a connector (`None`) or one of its tasks.
    #[must_use]
    pub fn concerns(&self, task: Option<u32>) -> bool {
        match (self.task, task) {
            (Some(one), task) => task == Some(one),
            (None, None) => true,
            (None, Some(_)) => self.include_tasks,
        }
    }
}

/// The file content that was last applied to a connector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// Hash of the file's content, not of its formatting.
    pub hash: String,
    /// Name of the file.
    pub file: String,
}

/// Which workers a config topic belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Their `group.id`.
    pub group: String,
    /// The topic whose partitions they share.
    pub work_topic: String,
    /// Partitions of it by which instances are placed: never changes, even if the topic grows.
    pub work_partitions: u32,
}

/// The state of the topic.
#[derive(Debug, Clone, Default)]
pub struct Configs {
    connectors: BTreeMap<String, StoredConnector>,
    /// Everything known of a name, with or without a configuration.
    known: BTreeMap<String, ConfigRecords>,
    loggers: BTreeMap<String, (String, i64)>,
    declared: BTreeMap<String, Declared>,
    cluster: Option<Cluster>,
    /// Keys of records that only Kafka Connect writes.
    connect: BTreeSet<String>,
}

impl Configs {
    /// Every connector by name.
    #[must_use]
    pub fn connectors(&self) -> &BTreeMap<String, StoredConnector> {
        &self.connectors
    }

    /// When a connector's target state was last changed, in milliseconds since 1970 by the clock of the writer. The same on every
    /// worker; `None` if it was never set, or the time is unknown.
    #[must_use]
    pub fn target_since(&self, connector: &str) -> Option<i64> {
        self.known.get(connector)?.target_since
    }

    /// The last restarts requested for a connector, oldest first: a reader that takes only the last one may miss an earlier one.
    pub fn restarts(&self, connector: &str) -> impl DoubleEndedIterator<Item = &Restart> {
        self.known.get(connector).into_iter().flat_map(|known| &known.restarts)
    }

    /// Cluster-wide log levels: logger, level, offset of the record.
    #[must_use]
    pub fn loggers(&self) -> &BTreeMap<String, (String, i64)> {
        &self.loggers
    }

    /// Connectors that files have declared, by name, including those that were deleted since.
    #[must_use]
    pub fn declared(&self) -> &BTreeMap<String, Declared> {
        &self.declared
    }

    /// Whether there are task records without their commit, or a commit without all of its task records: the owner has to write
    /// them again.
    #[must_use]
    pub fn is_half_written(&self, connector: &str) -> bool {
        self.known.get(connector).is_some_and(|known| known.incomplete || !known.uncommitted.is_empty())
    }

    /// The workers the topic belongs to, once the first of them has claimed it.
    #[must_use]
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// A key that only Kafka Connect itself writes.
    #[must_use]
    pub fn connect_key(&self) -> Option<&str> {
        self.connect.first().map(String::as_str)
    }

    /// Connectors of classes this worker does not know, with their class: the topic then belongs to another cluster.
    #[must_use]
    pub fn foreign_classes(&self, known: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let class = |connector: &StoredConnector| connector.config.get("connector.class").cloned();
        self.connectors
            .iter()
            .map(|(name, connector)| (name.clone(), class(connector).unwrap_or_default()))
            .filter(|(_, class)| !known(class))
            .collect()
    }

    /// The records that delete a connector: tombstones for everything in the topic under its name, except `declared-N`. Kafka
    /// Connect leaves task records and commits behind, which then look like those of a later connector of that name.
    #[must_use]
    pub fn deletion(&self, name: &str) -> Vec<Write> {
        let mut writes = vec![connector(name, None), target_state(name, None)];
        if let Some(known) = self.known.get(name) {
            writes
                .extend(known.task_records.iter().map(|number| (ConfigRecordKey::task(name, *number), None)));
            writes.push((ConfigRecordKey::commit(name), None));
            if !known.restarts.is_empty() {
                writes.push((ConfigRecordKey::restart(name), None));
            }
        }
        writes
    }

    /// The most tasks that a connector has had at a time since its creation: one above the highest number that has had a configuration.
    #[must_use]
    pub fn tasks_ever(&self, name: &str) -> u32 {
        let last = self.known.get(name).and_then(|known| known.task_records.last());
        last.map_or(0, |last| last.saturating_add(1))
    }

    fn known(&mut self, name: &str) -> &mut ConfigRecords {
        self.known.entry(name.to_owned()).or_default()
    }

    /// Updates the connector of a name.
    fn show(&mut self, name: &str) {
        match self.known.get(name).and_then(ConfigRecords::connector) {
            Some(connector) => drop(self.connectors.insert(name.to_owned(), connector)),
            None => drop(self.connectors.remove(name)),
        }
    }
}

impl TableState for Configs {
    fn apply(&mut self, record: &ConsumerRecord) {
        let offset = record.offset;
        match record::parse(record) {
            Ok((name, parsed)) => {
                match parsed {
                    ParsedConfig::Cluster(cluster) => self.cluster = cluster,
                    ParsedConfig::Connect(true) => drop(self.connect.insert(name.clone())),
                    ParsedConfig::Connect(false) => drop(self.connect.remove(&name)),
                    ParsedConfig::Connector(Some(config)) => {
                        self.known(&name).config = Some((Arc::new(config), offset));
                    }
                    // Includes its target state, tasks and restarts: a later connector of that name starts from scratch.
                    ParsedConfig::Connector(None) => drop(self.known.remove(&name)),
                    ParsedConfig::Target(Some(target)) => {
                        let known = self.known(&name);
                        if known.target != Some(target) {
                            known.target_since = record.timestamp_ms;
                        }
                        known.target = Some(target);
                    }
                    ParsedConfig::Task(number, Some(config)) => {
                        let known = self.known(&name);
                        known.uncommitted.insert(number, Arc::new(config));
                        known.task_records.insert(number);
                    }
                    ParsedConfig::Commit(Some(count)) => self.known(&name).commit(count, offset),
                    ParsedConfig::Restart(Some(mut restart)) => {
                        restart.revision = offset;
                        let restarts = &mut self.known(&name).restarts;
                        if restarts.len() == REMEMBERED_RESTARTS {
                            restarts.pop_front();
                        }
                        restarts.push_back(restart);
                    }
                    ParsedConfig::Logger(Some(level)) => {
                        drop(self.loggers.insert(name.clone(), (level, offset)))
                    }
                    ParsedConfig::Logger(None) => drop(self.loggers.remove(&name)),
                    ParsedConfig::Declared(Some(declared)) => {
                        drop(self.declared.insert(name.clone(), declared))
                    }
                    ParsedConfig::Declared(None) => drop(self.declared.remove(&name)),
                    // An unknown name has nothing to remove.
                    tombstone => {
                        if let Some(known) = self.known.get_mut(&name) {
                            known.remove(&tombstone);
                        }
                    }
                }
                self.show(&name);
            }
            Err(reason) => {
                tracing::warn!(
                    topic = &*record.topic,
                    offset,
                    reason,
                    "skipped a record of the config topic"
                );
            }
        }
    }
}

/// Everything in the log under one name.
#[derive(Debug, Clone, Default)]
struct ConfigRecords {
    config: Option<(Arc<Properties>, i64)>,
    target: Option<TargetState>,
    target_since: Option<i64>,
    /// Tasks in force, and the offset of their commit.
    tasks: Option<(Arc<[Arc<Properties>]>, i64)>,
    /// Task records that wait for their commit.
    uncommitted: BTreeMap<u32, Arc<Properties>>,
    /// The last commit missed some task records.
    incomplete: bool,
    /// Tasks with a record. A set, not a range: a record with a huge number must not make us write as many tombstones.
    task_records: BTreeSet<u32>,
    restarts: VecDeque<Restart>,
}

impl ConfigRecords {
    fn connector(&self) -> Option<StoredConnector> {
        let (config, revision) = self.config.clone()?;
        let target = self.target.unwrap_or(TargetState::Running);
        let (tasks, task_revision) = self.tasks.clone().unwrap_or_else(|| (Arc::default(), -1));
        let tasks = if target == TargetState::Stopped { Arc::default() } else { tasks };
        Some(StoredConnector { config, target, tasks, revision, task_revision })
    }

    /// Ignores records of higher tasks, which compaction may leave from a larger set.
    fn commit(&mut self, count: u32, offset: i64) {
        let mut waiting = std::mem::take(&mut self.uncommitted);
        let tasks: Option<Arc<[_]>> = (0..count).map(|number| waiting.remove(&number)).collect();
        self.incomplete = tasks.is_none();
        self.tasks = tasks.map(|tasks| (tasks, offset));
    }

    fn remove(&mut self, tombstone: &ParsedConfig) {
        match tombstone {
            ParsedConfig::Target(_) => (self.target, self.target_since) = (None, None),
            ParsedConfig::Task(number, _) => {
                self.uncommitted.remove(number);
                self.task_records.remove(number);
            }
            ParsedConfig::Commit(_) => {
                (self.tasks, self.incomplete) = (None, false);
                self.uncommitted.clear();
            }
            ParsedConfig::Restart(_) => self.restarts.clear(),
            _ => {}
        }
    }
}
