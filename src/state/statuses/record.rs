//! Records of the status topic: what they say, and how to write them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use kafka::ConsumerRecord;

use super::{RunState, Status};

/// Header on our tombstones: the generation that removed the status.
pub(crate) const GENERATION_HEADER: &str = "tributary.generation";

/// Header on our statuses: revision of the last restart that the instance had seen.
pub(crate) const RESTART_HEADER: &str = "tributary.restart";

const CONNECTOR: &str = "status-connector-";
const TASK: &str = "status-task-";
const TOPIC: &str = "status-topic-";
/// Between topic and connector; no topic has a colon in its name.
const OF_CONNECTOR: &str = ":connector-";

/// Keys.
pub(crate) struct Key;

impl Key {
    /// Of a connector, or of one of its tasks.
    pub(crate) fn instance(connector: &str, task: Option<u32>) -> String {
        match task {
            None => format!("{CONNECTOR}{connector}"),
            Some(task) => format!("{TASK}{connector}-{task}"),
        }
    }

    /// Of a topic a connector has written to.
    pub(crate) fn topic(connector: &str, topic: &str) -> String {
        format!("{TOPIC}{topic}{OF_CONNECTOR}{connector}")
    }
}

/// A status as Kafka Connect's converter writes it, member by member.
pub(crate) fn encode(status: &Status) -> Vec<u8> {
    json(&Written {
        state: status.state.word(),
        trace: status.trace.as_deref(),
        worker_id: &status.worker_id,
        generation: status.generation,
        version: is_up(status.state).then_some(env!("CARGO_PKG_VERSION")),
    })
}

/// The use of a topic as Kafka Connect's converter writes it.
pub(crate) fn encode_topic(connector: &str, task: u32, topic: &str, now_ms: i64) -> Vec<u8> {
    let topic = Topic { name: topic, connector, task, discovered: now_ms };
    json(&TopicUse { topic })
}

/// Whether the class is loaded in this state, so that it has a version.
fn is_up(state: RunState) -> bool {
    match state {
        RunState::Running | RunState::Paused | RunState::Stopped | RunState::Failed => true,
        RunState::Unassigned | RunState::Restarting => false,
    }
}

/// What a record says.
pub(super) enum Parsed {
    /// About a connector (`None`) or one of its tasks.
    Instance { name: String, task: Option<u32>, word: Word },
    /// Whether a connector has written to a topic.
    Topic { topic: String, name: String, used: bool },
}

/// What is said about an instance.
pub(super) enum Word {
    Is(Status),
    /// Removed, by an owner with this generation or by somebody else.
    Removed(Option<i64>),
}

/// What a record says, or why it cannot be understood.
pub(super) fn parse(record: &ConsumerRecord) -> Result<Parsed, &'static str> {
    let key = record.key.as_deref().ok_or("it has no key")?;
    let key = std::str::from_utf8(key).map_err(|_| "its key is no text")?;
    if let Some(name) = key.strip_prefix(CONNECTOR) {
        return Ok(Parsed::Instance { name: name.to_owned(), task: None, word: word(record)? });
    }
    if let Some(rest) = key.strip_prefix(TASK) {
        // A name may have dashes itself.
        let (name, task) = rest.rsplit_once('-').ok_or("its key names no task")?;
        let task = task.parse().map_err(|_| "its key names no task")?;
        return Ok(Parsed::Instance { name: name.to_owned(), task: Some(task), word: word(record)? });
    }
    let rest = key.strip_prefix(TOPIC).ok_or("its key is of no known kind")?;
    let (topic, name) = rest.split_once(OF_CONNECTOR).ok_or("its key names no connector")?;
    let used = match record.value.as_deref().map(serde_json::from_slice::<Value>) {
        None | Some(Ok(Value::Null)) => false,
        Some(Ok(Value::Object(members))) if members.get("topic").is_some_and(Value::is_object) => true,
        Some(_) => return Err("it has no topic"),
    };
    Ok(Parsed::Topic { topic: topic.to_owned(), name: name.to_owned(), used })
}

fn word(record: &ConsumerRecord) -> Result<Word, &'static str> {
    let number = |header: &str| {
        let (_, value) = record.headers.iter().find(|(name, _)| name == header)?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    let removed = || Word::Removed(number(GENERATION_HEADER));
    let Some(value) = record.value.as_deref() else { return Ok(removed()) };
    let read: Option<Read> = serde_json::from_slice(value).map_err(|_| "its value is no status")?;
    let Some(read) = read else { return Ok(removed()) };
    let state = read.state.parse().map_err(|_| "its state is none of those shown")?;
    let Read { trace, worker_id, generation, .. } = read;
    Ok(Word::Is(Status { state, trace, worker_id, generation, served: number(RESTART_HEADER) }))
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
struct Written<'a> {
    state: &'a str,
    trace: Option<&'a str>,
    worker_id: &'a str,
    generation: i64,
    /// Of the plugin, which for all of ours is this program's; Kafka Connect writes null for what is not loaded.
    version: Option<&'a str>,
}

#[derive(Serialize)]
struct TopicUse<'a> {
    topic: Topic<'a>,
}

#[derive(Serialize)]
struct Topic<'a> {
    name: &'a str,
    connector: &'a str,
    task: u32,
    #[serde(rename = "discoverTimestamp")]
    discovered: i64,
}

/// Neither text nor numbers can fail to be written.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
