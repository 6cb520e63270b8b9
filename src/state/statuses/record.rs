//! Parses and writes records of the status topic.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use kafka::ConsumerRecord;

use super::{RunState, Status};

/// Header on our tombstones: the generation of the owner that removed the status.
pub(crate) const GENERATION_HEADER: &str = "tributary.generation";

/// Header on our statuses: revision of the last restart request that the instance had handled.
pub(crate) const RESTART_HEADER: &str = "tributary.restart";

const CONNECTOR: &str = "status-connector-";
const TASK: &str = "status-task-";
const TOPIC: &str = "status-topic-";
/// Between topic and connector; no topic has a colon in its name.
const OF_CONNECTOR: &str = ":connector-";

/// Record keys.
pub(crate) struct StatusKey;

impl StatusKey {
    /// Key of a connector, or of one of its tasks.
    pub(crate) fn instance(connector: &str, task: Option<u32>) -> String {
        match task {
            None => format!("{CONNECTOR}{connector}"),
            Some(task) => format!("{TASK}{connector}-{task}"),
        }
    }

    /// Key of a topic a connector has written to.
    pub(crate) fn topic(connector: &str, topic: &str) -> String {
        format!("{TOPIC}{topic}{OF_CONNECTOR}{connector}")
    }
}

/// A status as Kafka Connect's converter writes it, member by member.
pub(crate) fn encode(status: &Status) -> Vec<u8> {
    json(&WrittenStatus {
        state: status.state.word(),
        trace: status.trace.as_deref(),
        worker_id: &status.worker_id,
        generation: status.generation,
        version: is_up(status.state).then_some(env!("CARGO_PKG_VERSION")),
    })
}

/// The use of a topic as Kafka Connect's converter writes it.
pub(crate) fn encode_topic(connector: &str, task: u32, topic: &str, now_ms: i64) -> Vec<u8> {
    let topic = UsedTopic { name: topic, connector, task, discovered: now_ms };
    json(&TopicUse { topic })
}

/// Whether the class is loaded in this state, so that the record has its version.
fn is_up(state: RunState) -> bool {
    match state {
        RunState::Running | RunState::Paused | RunState::Stopped | RunState::Failed => true,
        RunState::Unassigned | RunState::Restarting => false,
    }
}

/// A parsed record.
pub(super) enum ParsedStatus {
    /// The status of a connector (`None`) or one of its tasks.
    Instance { name: String, task: Option<u32>, update: StatusUpdate },
    /// Whether a connector has written to a topic.
    Topic { topic: String, name: String, used: bool },
}

/// A status or its removal.
pub(super) enum StatusUpdate {
    Set(Status),
    /// Removed, by an owner with this generation or by another program.
    Removed(Option<i64>),
}

/// Parses a record, or returns why it cannot be parsed.
pub(super) fn parse(record: &ConsumerRecord) -> Result<ParsedStatus, &'static str> {
    let key = record.key.as_deref().ok_or("it has no key")?;
    let key = std::str::from_utf8(key).map_err(|_| "its key is not text")?;
    if let Some(name) = key.strip_prefix(CONNECTOR) {
        return Ok(ParsedStatus::Instance { name: name.to_owned(), task: None, update: update(record)? });
    }
    if let Some(rest) = key.strip_prefix(TASK) {
        // A name may contain dashes.
        let (name, task) = rest.rsplit_once('-').ok_or("its key has no task number")?;
        let task = task.parse().map_err(|_| "its key has no task number")?;
        return Ok(ParsedStatus::Instance {
            name: name.to_owned(),
            task: Some(task),
            update: update(record)?,
        });
    }
    let rest = key.strip_prefix(TOPIC).ok_or("its key has no known prefix")?;
    let (topic, name) = rest.split_once(OF_CONNECTOR).ok_or("its key has no connector")?;
    let used = match record.value.as_deref().map(serde_json::from_slice::<Value>) {
        None | Some(Ok(Value::Null)) => false,
        Some(Ok(Value::Object(members))) if members.get("topic").is_some_and(Value::is_object) => true,
        Some(_) => return Err("it has no topic"),
    };
    Ok(ParsedStatus::Topic { topic: topic.to_owned(), name: name.to_owned(), used })
}

fn update(record: &ConsumerRecord) -> Result<StatusUpdate, &'static str> {
    let number = |header: &str| {
        let (_, value) = record.headers.iter().find(|(name, _)| name == header)?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    let removed = || StatusUpdate::Removed(number(GENERATION_HEADER));
    let Some(value) = record.value.as_deref() else { return Ok(removed()) };
    let read: Option<Read> = serde_json::from_slice(value).map_err(|_| "its value is not a status")?;
    let Some(read) = read else { return Ok(removed()) };
    let state = read.state.parse().map_err(|_| "its state is unknown")?;
    let Read { trace, worker_id, generation, .. } = read;
    let handled_restart = number(RESTART_HEADER);
    Ok(StatusUpdate::Set(Status { state, trace, worker_id, generation, handled_restart }))
}

#[derive(Deserialize)]
struct Read {
    state: String,
    #[serde(default)]
    trace: Option<String>,
    worker_id: String,
    generation: i64,
}

/// Members in Kafka Connect's order.
#[derive(Serialize)]
struct WrittenStatus<'a> {
    state: &'a str,
    trace: Option<&'a str>,
    worker_id: &'a str,
    generation: i64,
    /// Version of the plugin, which is this program's for all our classes; Kafka Connect writes null if the class is not loaded.
    version: Option<&'a str>,
}

#[derive(Serialize)]
struct TopicUse<'a> {
    topic: UsedTopic<'a>,
}

#[derive(Serialize)]
struct UsedTopic<'a> {
    name: &'a str,
    connector: &'a str,
    task: u32,
    #[serde(rename = "discoverTimestamp")]
    discovered: i64,
}

/// Serializing text and numbers cannot fail.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
