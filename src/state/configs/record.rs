//! Parses and writes records of the config topic.

use serde_json::{Map, Value, json};

use kafka::ConsumerRecord;

use super::{Cluster, Declared, Properties, Restart};
use crate::config::connector::TargetState;

/// A record to write: key and value, `None` for a tombstone.
pub type Write = (String, Option<Value>);

/// `connector-N`.
#[must_use]
pub fn connector(name: &str, config: Option<&Properties>) -> Write {
    (format!("{CONNECTOR}{name}"), config.map(properties))
}

/// `target-state-N`; STOPPED is written so that older readers see PAUSED.
#[must_use]
pub fn target_state(name: &str, state: Option<TargetState>) -> Write {
    let value = state.map(|state| {
        let (older, state) = match state {
            TargetState::Running => ("STARTED", "STARTED"),
            TargetState::Paused => ("PAUSED", "PAUSED"),
            TargetState::Stopped => ("PAUSED", "STOPPED"),
        };
        json!({ "state": older, "state.v2": state })
    });
    (format!("{TARGET_STATE}{name}"), value)
}

/// `task-N-i` for each, then `commit-N`.
#[must_use]
pub fn tasks(name: &str, tasks: &[Properties]) -> Vec<Write> {
    let each = (0_u32..)
        .zip(tasks)
        .map(|(number, config)| (ConfigRecordKey::task(name, number), Some(properties(config))));
    each.chain([(ConfigRecordKey::commit(name), Some(json!({ "tasks": tasks.len() })))]).collect()
}

/// `restart-connector-N`.
#[must_use]
pub fn restart(name: &str, include_tasks: bool, only_failed: bool, task: Option<u32>) -> Write {
    let mut value = json!({ "include-tasks": include_tasks, "only-failed": only_failed });
    if let (Some(task), Value::Object(members)) = (task, &mut value) {
        members.insert("task".into(), task.into());
    }
    (ConfigRecordKey::restart(name), Some(value))
}

/// `logger-cluster-NS`.
#[must_use]
pub fn logger(namespace: &str, level: &str) -> Write {
    (format!("{LOGGER}{namespace}"), Some(json!({ "level": level })))
}

/// `declared-N`, which is ours: the file content that was last applied to the connector.
#[must_use]
pub fn declared(name: &str, declared: Option<&Declared>) -> Write {
    let value = declared.map(|declared| json!({ "hash": declared.hash, "file": declared.file }));
    (format!("{DECLARED}{name}"), value)
}

/// `tributary-cluster`.
#[must_use]
pub fn cluster(cluster: &Cluster) -> Write {
    let Cluster { group, work_topic, work_partitions } = cluster;
    let value = json!({ GROUP: group, WORK_TOPIC: work_topic, WORK_PARTITIONS: work_partitions });
    (CLUSTER.to_owned(), Some(value))
}

const CONNECTOR: &str = "connector-";
const TASK: &str = "task-";
const COMMIT: &str = "commit-";
const TARGET_STATE: &str = "target-state-";
const RESTART: &str = "restart-connector-";
const LOGGER: &str = "logger-cluster-";
const DECLARED: &str = "declared-";
/// Kafka Connect's own: the key that signs internal requests, and the count of producers to fence.
const SESSION_KEY: &str = "session-key";
const FENCING: &str = "tasks-fencing-";
/// Ours: the workers the topic belongs to.
const CLUSTER: &str = "tributary-cluster";
const GROUP: &str = "group.id";
const WORK_TOPIC: &str = "work.topic";
const WORK_PARTITIONS: &str = "work.partitions";

/// Keys that are built in more than one place.
pub(super) struct ConfigRecordKey;

impl ConfigRecordKey {
    pub(super) fn task(name: &str, number: u32) -> String {
        format!("{TASK}{name}-{number}")
    }

    pub(super) fn commit(name: &str) -> String {
        format!("{COMMIT}{name}")
    }

    pub(super) fn restart(name: &str) -> String {
        format!("{RESTART}{name}")
    }
}

/// A parsed record about the name in its key; `None` for a tombstone.
pub(super) enum ParsedConfig {
    Connector(Option<Properties>),
    Target(Option<TargetState>),
    Task(u32, Option<Properties>),
    Commit(Option<u32>),
    /// Its revision is the record's offset, set later.
    Restart(Option<Restart>),
    Logger(Option<String>),
    Declared(Option<Declared>),
    /// About the whole topic; the name is the key.
    Cluster(Option<Cluster>),
    /// A record that only Kafka Connect writes, by its key; false for a tombstone.
    Connect(bool),
}

/// The name and the parsed record, or why it cannot be parsed. Reasons contain no values: configurations may hold secrets.
pub(super) fn parse(record: &ConsumerRecord) -> Result<(String, ParsedConfig), &'static str> {
    let key = record.key.as_deref().ok_or("it has no key")?;
    let key = std::str::from_utf8(key).map_err(|_| "its key is not text")?;
    if key == SESSION_KEY || key.starts_with(FENCING) {
        return Ok((key.to_owned(), ParsedConfig::Connect(record.value.is_some())));
    }
    let value = match record.value.as_deref() {
        None => None,
        // Kafka Connect writes both; a JSON null is its other tombstone.
        Some(bytes) => match serde_json::from_slice(bytes).map_err(|_| "its value is not JSON")? {
            Value::Null => None,
            Value::Object(members) => Some(members),
            _ => return Err("its value is not an object"),
        },
    };
    let value = value.as_ref();
    let (name, parsed) = if let Some(name) = key.strip_prefix(CONNECTOR) {
        (name, ParsedConfig::Connector(value.map(read_properties).transpose()?))
    } else if let Some(name) = key.strip_prefix(TARGET_STATE) {
        (name, ParsedConfig::Target(value.map(read_target).transpose()?))
    } else if let Some(name) = key.strip_prefix(COMMIT) {
        (name, ParsedConfig::Commit(value.map(read_count).transpose()?))
    } else if let Some(rest) = key.strip_prefix(TASK) {
        // A name may contain dashes.
        let (name, number) = rest.rsplit_once('-').ok_or("its key has no task number")?;
        let number = number.parse().map_err(|_| "its key has no task number")?;
        (name, ParsedConfig::Task(number, value.map(read_properties).transpose()?))
    } else if let Some(name) = key.strip_prefix(RESTART) {
        (name, ParsedConfig::Restart(value.map(read_restart)))
    } else if let Some(name) = key.strip_prefix(LOGGER) {
        (name, ParsedConfig::Logger(value.map(read_level).transpose()?))
    } else if let Some(name) = key.strip_prefix(DECLARED) {
        (name, ParsedConfig::Declared(value.map(read_declared).transpose()?))
    } else if key == CLUSTER {
        (key, ParsedConfig::Cluster(value.map(read_cluster).transpose()?))
    } else {
        return Err("its key has no known prefix");
    };
    Ok((name.to_owned(), parsed))
}

fn properties(config: &Properties) -> Value {
    json!({ "properties": config })
}

fn read_properties(members: &Map<String, Value>) -> Result<Properties, &'static str> {
    let found = members.get("properties").and_then(Value::as_object).ok_or("it has no properties")?;
    found
        .iter()
        .map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect::<Option<Properties>>()
        .ok_or("a property is not text")
}

fn read_target(members: &Map<String, Value>) -> Result<TargetState, &'static str> {
    let state = members.get("state.v2").or_else(|| members.get("state"));
    match state.and_then(Value::as_str) {
        Some("STARTED") => Ok(TargetState::Running),
        Some("PAUSED") => Ok(TargetState::Paused),
        Some("STOPPED") => Ok(TargetState::Stopped),
        _ => Err("it has no known target state"),
    }
}

fn read_count(members: &Map<String, Value>) -> Result<u32, &'static str> {
    let count = members.get("tasks").and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
    count.ok_or("it has no count of tasks")
}

/// Missing members count as false, as in Kafka Connect.
fn read_restart(members: &Map<String, Value>) -> Restart {
    let flag = |key: &str| members.get(key).and_then(Value::as_bool).unwrap_or(false);
    let task = members.get("task").and_then(Value::as_u64).and_then(|task| u32::try_from(task).ok());
    Restart { revision: -1, include_tasks: flag("include-tasks"), only_failed: flag("only-failed"), task }
}

fn read_level(members: &Map<String, Value>) -> Result<String, &'static str> {
    members.get("level").and_then(Value::as_str).map(str::to_owned).ok_or("it has no level")
}

fn read_declared(members: &Map<String, Value>) -> Result<Declared, &'static str> {
    let text = |key: &str| members.get(key).and_then(Value::as_str).map(str::to_owned);
    Ok(Declared {
        hash: text("hash").ok_or("it has no hash")?,
        file: text("file").ok_or("it names no file")?,
    })
}

fn read_cluster(members: &Map<String, Value>) -> Result<Cluster, &'static str> {
    let text = |key: &str| members.get(key).and_then(Value::as_str).map(str::to_owned);
    let count = members.get(WORK_PARTITIONS).and_then(Value::as_u64);
    let count = count.and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
    Ok(Cluster {
        group: text(GROUP).ok_or("it has no group")?,
        work_topic: text(WORK_TOPIC).ok_or("it has no work topic")?,
        work_partitions: count.ok_or("it has no count of partitions")?,
    })
}
