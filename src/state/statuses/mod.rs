//! The status topic: `status-connector-N`, `status-task-N-i`, `status-topic-T:connector-N`, in Kafka Connect's JSON.
//!
//! - A record whose `generation` is lower than the one known for its key is ignored: it comes from a replaced owner that does not
//!   know it yet. But it is the last record in the log, and after compaction the only one: [`Statuses::shadowed`] returns
//!   such keys, so that their owner writes again.
//! - Our tombstones carry the generation in a header and obey the same rule. The generation stays known, so that a late record of
//!   an earlier owner does not bring a deleted connector back. A tombstone without that header, as Kafka Connect and people
//!   write it, also forgets the generation. So does an owner that finds a higher generation than its own, which exists only
//!   after the work topic was recreated or another program wrote here.
//!
//! On failure: a record that cannot be parsed is logged and skipped.

mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use strum::{EnumString, IntoStaticStr, VariantArray};

pub(super) use record::{GENERATION_HEADER, RESTART_HEADER, StatusKey, encode, encode_topic};
use record::{ParsedStatus, StatusUpdate};

use kafka::ConsumerRecord;

use super::TableState;

/// Limit on the removed instances whose generation is remembered: enough for all late records.
const MAX_REMEMBERED: usize = 4096;

/// The states Kafka Connect shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum RunState {
    /// It runs.
    Running,
    /// It has paused.
    Paused,
    /// It is stopped; connectors only.
    Stopped,
    /// It needs a person.
    Failed,
    /// No worker runs it.
    Unassigned,
    /// It is being restarted.
    Restarting,
}

impl RunState {
    /// Kafka Connect's word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// State of a connector or task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// State.
    pub state: RunState,
    /// Why it failed: `Kind: sentence`, then `Caused by: …` lines.
    pub trace: Option<String>,
    /// The worker that reported it.
    pub worker_id: String,
    /// Claim of the partition it belongs to; a higher one is later.
    pub generation: i64,
    /// Revision of the last restart request that it had handled, -1 for none; `None` if another program or an earlier version wrote
    /// the status.
    pub handled_restart: Option<i64>,
}

/// The state of the topic.
#[derive(Debug, Default)]
pub struct Statuses {
    connectors: BTreeMap<String, ConnectorInstances>,
    /// Removed instances, oldest first, to bound their number.
    removed: VecDeque<(String, Option<u32>)>,
}

impl Statuses {
    /// State of a connector.
    #[must_use]
    pub fn connector(&self, name: &str) -> Option<&Status> {
        self.of(name, None)
    }

    /// State of a connector, or of one of its tasks.
    #[must_use]
    pub fn of(&self, name: &str, task: Option<u32>) -> Option<&Status> {
        self.connectors.get(name)?.of(task)?.status.as_ref()
    }

    /// States of its tasks by number.
    #[must_use]
    pub fn tasks(&self, name: &str) -> BTreeMap<u32, &Status> {
        let tasks = self.connectors.get(name).into_iter().flat_map(|instances| &instances.instances);
        tasks.filter_map(|(task, instance)| Some(((*task)?, instance.status.as_ref()?))).collect()
    }

    /// Topics it has written to, since the last reset.
    #[must_use]
    pub fn topics(&self, name: &str) -> Vec<&str> {
        let topics = self.connectors.get(name).into_iter().flat_map(|instances| &instances.topics);
        topics.map(String::as_str).collect()
    }

    /// Connectors with a status or topic, except removed ones.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.connectors.iter().filter(|(_, instances)| instances.is_shown()).map(|(name, _)| name.as_str())
    }

    /// The highest generation known for a connector or one of its tasks; lower ones are ignored.
    #[must_use]
    pub fn generation(&self, name: &str, task: Option<u32>) -> Option<i64> {
        self.connectors.get(name)?.of(task)?.generation
    }

    /// Connectors (`None`) and tasks whose last record in the log was ignored.
    pub fn shadowed(&self) -> impl Iterator<Item = (&str, Option<u32>)> {
        self.connectors.iter().flat_map(|(name, instances)| {
            let shadowed = instances.instances.iter().filter(|(_, instance)| instance.shadowed);
            shadowed.map(|(task, _)| (name.as_str(), *task))
        })
    }

    fn apply_update(&mut self, name: String, task: Option<u32>, update: StatusUpdate) {
        let instances = self.connectors.entry(name.clone()).or_default();
        let instance = instances.instances.entry(task).or_default();
        let generation = match &update {
            StatusUpdate::Set(status) => Some(status.generation),
            StatusUpdate::Removed(generation) => *generation,
        };
        instance.shadowed =
            generation.is_some_and(|new| instance.generation.is_some_and(|known| new < known));
        if instance.shadowed {
            return;
        }
        instance.generation = generation;
        match update {
            StatusUpdate::Set(status) => instance.status = Some(status),
            StatusUpdate::Removed(generation) => {
                instance.status = None;
                if generation.is_none() {
                    instances.instances.remove(&task);
                    self.drop_empty(&name);
                } else {
                    self.remember_removed(name, task);
                }
            }
        }
    }

    fn remember_removed(&mut self, name: String, task: Option<u32>) {
        self.removed.push_back((name, task));
        while self.removed.len() > MAX_REMEMBERED
            && let Some((name, task)) = self.removed.pop_front()
        {
            if let Some(instances) = self.connectors.get_mut(&name)
                && instances.of(task).is_some_and(|instance| instance.status.is_none())
            {
                instances.instances.remove(&task);
            }
            self.drop_empty(&name);
        }
    }

    fn drop_empty(&mut self, name: &str) {
        if self.connectors.get(name).is_some_and(ConnectorInstances::is_empty) {
            self.connectors.remove(name);
        }
    }
}

impl TableState for Statuses {
    fn apply(&mut self, record: &ConsumerRecord) {
        match record::parse(record) {
            Ok(ParsedStatus::Instance { name, task, update }) => self.apply_update(name, task, update),
            Ok(ParsedStatus::Topic { topic, name, used: true }) => {
                self.connectors.entry(name).or_default().topics.insert(topic);
            }
            Ok(ParsedStatus::Topic { topic, name, used: false }) => {
                if let Some(instances) = self.connectors.get_mut(&name) {
                    instances.topics.remove(&topic);
                    self.drop_empty(&name);
                }
            }
            Err(reason) => {
                let (topic, offset) = (&*record.topic, record.offset);
                tracing::warn!(topic, offset, reason, "skipped a record of the status topic");
            }
        }
    }
}

/// What is known of a connector (`None`) and its tasks.
#[derive(Debug, Default)]
struct ConnectorInstances {
    instances: BTreeMap<Option<u32>, InstanceState>,
    topics: BTreeSet<String>,
}

impl ConnectorInstances {
    fn of(&self, task: Option<u32>) -> Option<&InstanceState> {
        self.instances.get(&task)
    }

    fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.topics.is_empty()
    }

    fn is_shown(&self) -> bool {
        !self.topics.is_empty() || self.instances.values().any(|instance| instance.status.is_some())
    }
}

#[derive(Debug, Default)]
struct InstanceState {
    /// `None` once it was removed.
    status: Option<Status>,
    generation: Option<i64>,
    /// The last record in the log was ignored.
    shadowed: bool,
}
