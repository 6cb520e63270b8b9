//! The config topic, in Kafka Connect's own keys and JSON.
//!
//! `connector-N` and `task-N-i` hold `{properties}`, `commit-N` `{tasks}` makes task configurations count, `target-state-N`
//! `{state, state.v2}`, `restart-connector-N` `{include-tasks, only-failed}` and `logger-cluster-NS` `{level}` are commands.
//! `declared-N` `{hash, file}` is ours: which content of which file the connector was last brought to.
//! `tributary-cluster` `{group.id, work.topic, work.partitions}` is ours and says which workers the topic belongs to.
//! `session-key` and `tasks-fencing-N` are Kafka Connect's own business: that they are there is all that is kept of them.
//!
//! - Task records count from the commit that follows them. A commit that misses one leaves the connector without tasks
//!   and *half-written*, until its owner writes them again.
//! - A connector exists while it has a configuration. Its target state and its tasks may stand before that in the log:
//!   Kafka Connect writes the state first, and compaction keeps an old commit before a new configuration.
//! - The tombstone of a configuration removes everything of that name, but for what a file has declared: that it was
//!   deleted since can be told only as long as the declaration is remembered.
//!
//! On failure: a record that cannot be understood is logged and left out.

mod record;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use record::{Key, Parsed};
pub use record::{Write, cluster, connector, declared, logger, restart, target_state, tasks};

use kafka::ConsumerRecord;

use super::TableState;
use crate::config::connector::TargetState;

/// A flat configuration, as written.
pub type Properties = BTreeMap<String, String>;

/// Restarts of one connector that are remembered, for those who look late.
const REMEMBERED_RESTARTS: usize = 32;

/// One connector.
#[derive(Debug, Clone)]
pub struct Connector {
    /// Its configuration, to the letter.
    pub config: Arc<Properties>,
    /// What it should be doing.
    pub target: TargetState,
    /// Task configurations in force: those of the last commit. Empty while it is stopped or not yet configured.
    pub tasks: Arc<[Arc<Properties>]>,
    /// Offset of the configuration's record: which edit this is.
    pub revision: i64,
    /// Offset of the last task commit; -1 while there is none that counts.
    pub task_revision: i64,
}

/// A restart that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// Offset of the request.
    pub revision: i64,
    /// Tasks too.
    pub include_tasks: bool,
    /// Only what has failed.
    pub only_failed: bool,
    /// One task alone (ours: Kafka Connect forwards these over REST).
    pub task: Option<u32>,
}

impl Restart {
    /// Whether it is about a connector (`None`) or one of its tasks.
    #[must_use]
    pub fn concerns(&self, task: Option<u32>) -> bool {
        match (self.task, task) {
            (Some(one), task) => task == Some(one),
            (None, None) => true,
            (None, Some(_)) => self.include_tasks,
        }
    }
}

/// What a connector was last brought to by a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// Of what the file said, not of its formatting.
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
    /// How many of those things are placed on: fixed for life, whatever the topic grows to.
    pub work_partitions: u32,
}

/// All of the topic.
#[derive(Debug, Clone, Default)]
pub struct Configs {
    connectors: BTreeMap<String, Connector>,
    /// All that is known of a name, whether or not it has a configuration yet.
    known: BTreeMap<String, Known>,
    loggers: BTreeMap<String, (String, i64)>,
    declared: BTreeMap<String, Declared>,
    cluster: Option<Cluster>,
    /// Keys of records that only Kafka Connect writes.
    connect: BTreeSet<String>,
}

impl Configs {
    /// Every connector by name.
    #[must_use]
    pub fn connectors(&self) -> &BTreeMap<String, Connector> {
        &self.connectors
    }

    /// When a connector was told to be in the state it should be in, in milliseconds since 1970 by the clock of who wrote that.
    /// The same on every worker; `None` where it was never set, or the time is unknown.
    #[must_use]
    pub fn target_since(&self, connector: &str) -> Option<i64> {
        self.known.get(connector)?.target_since
    }

    /// The last restarts asked for of a connector, oldest first: who looks only at the last may miss one before it.
    pub fn restarts(&self, connector: &str) -> impl DoubleEndedIterator<Item = &Restart> {
        self.known.get(connector).into_iter().flat_map(|known| &known.restarts)
    }

    /// Cluster-wide log levels: logger, level, offset of the record.
    #[must_use]
    pub fn loggers(&self) -> &BTreeMap<String, (String, i64)> {
        &self.loggers
    }

    /// Connectors that files have declared, by name; also those that were deleted since.
    #[must_use]
    pub fn declared(&self) -> &BTreeMap<String, Declared> {
        &self.declared
    }

    /// Whether task records stand without their commit, or a commit without all of its task records: the owner has to
    /// write them again.
    #[must_use]
    pub fn is_half_written(&self, connector: &str) -> bool {
        self.known.get(connector).is_some_and(|known| known.incomplete || !known.uncommitted.is_empty())
    }

    /// Which workers the topic belongs to, once the first of them has said so.
    #[must_use]
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// A key that only Kafka Connect itself writes.
    #[must_use]
    pub fn connect_key(&self) -> Option<&str> {
        self.connect.first().map(String::as_str)
    }

    /// Connectors of classes this worker does not know, with those: the topic then belongs to another cluster.
    #[must_use]
    pub fn foreign_classes(&self, known: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let class = |connector: &Connector| connector.config.get("connector.class").cloned();
        self.connectors
            .iter()
            .map(|(name, connector)| (name.clone(), class(connector).unwrap_or_default()))
            .filter(|(_, class)| !known(class))
            .collect()
    }

    /// What deletes a connector: tombstones for everything that stands in the topic under its name. Kafka Connect leaves
    /// task records and commits behind, which then look like those of a later connector of that name.
    #[must_use]
    pub fn deletion(&self, name: &str) -> Vec<Write> {
        let mut writes = vec![connector(name, None), target_state(name, None)];
        if let Some(known) = self.known.get(name) {
            writes.extend(known.task_records.iter().map(|number| (Key::task(name, *number), None)));
            writes.push((Key::commit(name), None));
            if !known.restarts.is_empty() {
                writes.push((Key::restart(name), None));
            }
        }
        writes
    }

    /// One above the highest task of a connector that has had a configuration since it was created; 0 if none has.
    #[must_use]
    pub fn highest_task(&self, name: &str) -> u32 {
        let last = self.known.get(name).and_then(|known| known.task_records.last());
        last.map_or(0, |last| last.saturating_add(1))
    }

    fn known(&mut self, name: &str) -> &mut Known {
        self.known.entry(name.to_owned()).or_default()
    }

    /// Takes over what has become of a name.
    fn show(&mut self, name: &str) {
        match self.known.get(name).and_then(Known::connector) {
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
                    Parsed::Cluster(cluster) => self.cluster = cluster,
                    Parsed::Connect(true) => drop(self.connect.insert(name.clone())),
                    Parsed::Connect(false) => drop(self.connect.remove(&name)),
                    Parsed::Connector(Some(config)) => {
                        self.known(&name).config = Some((Arc::new(config), offset));
                    }
                    // With its target state, tasks and restarts: a later connector of that name starts from scratch.
                    Parsed::Connector(None) => drop(self.known.remove(&name)),
                    Parsed::Target(Some(target)) => {
                        let known = self.known(&name);
                        if known.target != Some(target) {
                            known.target_since = record.timestamp_ms;
                        }
                        known.target = Some(target);
                    }
                    Parsed::Task(number, Some(config)) => {
                        let known = self.known(&name);
                        known.uncommitted.insert(number, Arc::new(config));
                        known.task_records.insert(number);
                    }
                    Parsed::Commit(Some(count)) => self.known(&name).commit(count, offset),
                    Parsed::Restart(Some(mut restart)) => {
                        restart.revision = offset;
                        let restarts = &mut self.known(&name).restarts;
                        if restarts.len() == REMEMBERED_RESTARTS {
                            restarts.pop_front();
                        }
                        restarts.push_back(restart);
                    }
                    Parsed::Logger(Some(level)) => drop(self.loggers.insert(name.clone(), (level, offset))),
                    Parsed::Logger(None) => drop(self.loggers.remove(&name)),
                    Parsed::Declared(Some(declared)) => drop(self.declared.insert(name.clone(), declared)),
                    Parsed::Declared(None) => drop(self.declared.remove(&name)),
                    // Of a name that is not known there is nothing to remove.
                    tombstone => {
                        if let Some(known) = self.known.get_mut(&name) {
                            known.remove(&tombstone);
                        }
                    }
                }
                self.show(&name);
            }
            Err(reason) => {
                tracing::warn!(topic = &*record.topic, offset, reason, "record of the config topic left out");
            }
        }
    }
}

/// Everything in the log under one name.
#[derive(Debug, Clone, Default)]
struct Known {
    config: Option<(Arc<Properties>, i64)>,
    target: Option<TargetState>,
    target_since: Option<i64>,
    /// Tasks that count, and the offset of their commit.
    tasks: Option<(Arc<[Arc<Properties>]>, i64)>,
    /// Task records that wait for their commit.
    uncommitted: BTreeMap<u32, Arc<Properties>>,
    /// The last commit missed some.
    incomplete: bool,
    /// Tasks that have a record. Numbers as they were written: nobody who can write one makes us write as many.
    task_records: BTreeSet<u32>,
    restarts: VecDeque<Restart>,
}

impl Known {
    fn connector(&self) -> Option<Connector> {
        let (config, revision) = self.config.clone()?;
        let target = self.target.unwrap_or(TargetState::Running);
        let (tasks, task_revision) = self.tasks.clone().unwrap_or_else(|| (Arc::default(), -1));
        let tasks = if target == TargetState::Stopped { Arc::default() } else { tasks };
        Some(Connector { config, target, tasks, revision, task_revision })
    }

    /// Compaction may leave records of tasks that a smaller set no longer has; that is no reason to refuse the set.
    fn commit(&mut self, count: u32, offset: i64) {
        let mut waiting = std::mem::take(&mut self.uncommitted);
        let tasks: Option<Arc<[_]>> = (0..count).map(|number| waiting.remove(&number)).collect();
        self.incomplete = tasks.is_none();
        self.tasks = tasks.map(|tasks| (tasks, offset));
    }

    fn remove(&mut self, tombstone: &Parsed) {
        match tombstone {
            Parsed::Target(_) => (self.target, self.target_since) = (None, None),
            Parsed::Task(number, _) => {
                self.uncommitted.remove(number);
                self.task_records.remove(number);
            }
            Parsed::Commit(_) => {
                (self.tasks, self.incomplete) = (None, false);
                self.uncommitted.clear();
            }
            Parsed::Restart(_) => self.restarts.clear(),
            _ => {}
        }
    }
}
