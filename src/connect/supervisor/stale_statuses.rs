//! Removes statuses of deleted connectors, and of tasks that a connector no longer has.
//!
//! The owner of the connector's partition removes them. It compares the topics instead of following events, so it also finds
//! what a crashed worker left behind, and statuses that a task wrote after its connector was deleted. Before it removes anything
//! it reads the config topic to its end: a status may arrive before the configuration it belongs to.

use std::{collections::BTreeSet, sync::Arc};

use super::InstanceId;
use crate::{
    config::connector::TargetState,
    state::{configs::Configs, statuses::Statuses, writer::StatusWriter},
};

/// A record to remove.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StaleStatus {
    /// The status of an instance, last reported under this generation.
    Status {
        /// The instance.
        id: InstanceId,
        /// The highest generation known.
        generation: i64,
    },
    /// A topic that a deleted connector has written to.
    Topic {
        /// Name of the connector.
        connector: Arc<str>,
        /// The topic.
        topic: String,
    },
}

/// Every stale record of the connectors that this worker owns.
pub(super) fn stale(
    statuses: &Statuses,
    configs: &Configs,
    owns: impl Fn(&InstanceId) -> bool,
) -> BTreeSet<StaleStatus> {
    let mut found = BTreeSet::new();
    let mut look = |name: &str, task: Option<u32>| {
        let id = InstanceId { connector: name.into(), task };
        if !exists(configs, name, task) && owns(&InstanceId { task: None, ..id.clone() }) {
            let generation = statuses.generation(name, task).unwrap_or_default();
            found.insert(StaleStatus::Status { id, generation });
        }
    };
    for name in statuses.names() {
        if statuses.connector(name).is_some() {
            look(name, None);
        }
        statuses.tasks(name).keys().for_each(|task| look(name, Some(*task)));
    }
    // The status is removed, but an ignored record comes after the removal and would reappear when the topic is compacted.
    statuses.shadowed().for_each(|(name, task)| look(name, task));
    for name in statuses.names().filter(|name| !exists(configs, name, None)) {
        let connector: Arc<str> = name.into();
        if owns(&InstanceId { connector: Arc::clone(&connector), task: None }) {
            let topics = statuses.topics(name).into_iter();
            found.extend(topics.map(|topic| StaleStatus::Topic {
                connector: Arc::clone(&connector),
                topic: topic.to_owned(),
            }));
        }
    }
    found
}

pub(super) fn remove<'a>(stale: impl IntoIterator<Item = &'a StaleStatus>, writer: &StatusWriter) {
    for record in stale {
        match record {
            StaleStatus::Status { id, generation } => writer.remove(&id.connector, id.task, *generation),
            StaleStatus::Topic { connector, topic } => writer.remove_topic(connector, topic),
        }
    }
}

fn exists(configs: &Configs, name: &str, task: Option<u32>) -> bool {
    let Some(connector) = configs.connectors().get(name) else { return false };
    match task {
        None => true,
        Some(task) => connector.target != TargetState::Stopped && (task as usize) < connector.tasks.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plugin::samples::properties,
        state::{TableState, configs, samples::received},
    };

    fn state<S: TableState>(records: &[(String, Option<String>)]) -> S {
        let mut state = S::default();
        for (offset, (key, value)) in (0..).zip(records) {
            state.apply(&received(offset, key, value.as_deref()));
        }
        state
    }

    /// A connector with `tasks` task configurations; none of them counts if it is stopped.
    fn configs(name: &str, target: TargetState, tasks: usize) -> Configs {
        let config = properties(&[("connector.class", "TestSource")]);
        let mut writes =
            vec![configs::connector(name, Some(&config)), configs::target_state(name, Some(target))];
        writes.extend(configs::tasks(name, &vec![config; tasks]));
        let text = |(key, value): configs::Write| (key, value.map(|value| value.to_string()));
        state(&writes.into_iter().map(text).collect::<Vec<_>>())
    }

    fn statuses(keys: &[&str]) -> Statuses {
        let value = |key: &str| match key.starts_with("status-topic") {
            true => r#"{"topic":{"name":"t","connector":"c","task":0,"discoverTimestamp":1}}"#,
            false => r#"{"state":"RUNNING","trace":null,"worker_id":"w:1","generation":7}"#,
        };
        state(&keys.iter().map(|key| ((*key).to_owned(), Some(value(key).to_owned()))).collect::<Vec<_>>())
    }

    fn stale_names(statuses: &Statuses, configs: &Configs) -> Vec<String> {
        let shown = |record: StaleStatus| match record {
            StaleStatus::Status { id, generation } => format!("{id} of {generation}"),
            StaleStatus::Topic { connector, topic } => format!("topic {topic} of {connector}"),
        };
        stale(statuses, configs, |_| true).into_iter().map(shown).collect()
    }

    const ALL: &[&str] =
        &["status-connector-c", "status-task-c-0", "status-task-c-1", "status-topic-t:connector-c"];

    #[test]
    fn deleted_connectors_and_surplus_tasks_are_stale() {
        let table = [
            (Configs::default(), &["connector c of 7", "task c-0 of 7", "task c-1 of 7", "topic t of c"][..]),
            (configs("c", TargetState::Running, 2), &[]),
            (configs("c", TargetState::Paused, 1), &["task c-1 of 7"]),
            (configs("c", TargetState::Stopped, 2), &["task c-0 of 7", "task c-1 of 7"]),
        ];

        for (configs, expected) in table {
            assert_eq!(stale_names(&statuses(ALL), &configs), expected);
        }
    }

    #[test]
    fn statuses_of_another_owner_stay() {
        let found = stale(&statuses(ALL), &Configs::default(), |id| &*id.connector != "c");

        assert!(found.is_empty(), "{found:?}");
    }
}
