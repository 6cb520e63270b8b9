//! What REST answers, as JSON: Kafka Connect's members, in its spelling.
//!
//! Members without a value are `null`, except `trace` and a plugin's `version`, which are left out. The states are Kafka
//! Connect's six and no others: tools refuse to read an answer with a word they do not know.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value};

use model::Moment;

use crate::state::{configs::Properties, statuses::RunState};

/// `GET /`.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    /// Kafka's version whose behaviour this is; tools switch features on and off by it.
    pub version: &'static str,
    /// What was built.
    pub commit: &'static str,
    /// The Kafka cluster; null when it did not say.
    pub kafka_cluster_id: Option<String>,
    /// Our own version.
    pub tributary_version: &'static str,
}

/// A task of a connector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskId {
    /// Name of the connector.
    pub connector: String,
    /// Number of the task.
    pub task: u32,
}

/// A connector: configuration and tasks.
#[derive(Debug, Clone, Serialize)]
pub struct Info {
    /// Name.
    pub name: String,
    /// Configuration, to the letter, with `name` in it.
    pub config: Arc<Properties>,
    /// Its tasks.
    pub tasks: Vec<TaskId>,
    /// `source`, or `unknown` where no class of this worker fits.
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// A connector: states.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Name.
    pub name: String,
    /// State of the connector itself.
    pub connector: ConnectorState,
    /// States of its tasks, by number.
    pub tasks: Vec<TaskState>,
    /// As in [`Info`].
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// State of a connector. Every member is text: a client in wide use decodes it as a map of texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectorState {
    /// State.
    pub state: &'static str,
    /// Who said so, as `host:port`.
    pub worker_id: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// How its subscriptions stand, where it has any and this worker knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<String>,
    /// How many gaps it has, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<String>,
}

/// State of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskState {
    /// Number.
    pub id: u32,
    /// State.
    pub state: &'static str,
    /// Who said so, as `host:port`.
    pub worker_id: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// What was asked for about one connector of a list.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Expanded {
    /// With `expand=info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<Info>,
    /// With `expand=status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// A task's configuration.
#[derive(Debug, Clone, Serialize)]
pub struct TaskInfo {
    /// Which.
    pub id: TaskId,
    /// Its configuration, references unresolved.
    pub config: Arc<Properties>,
}

/// Offsets of a connector, as read and as written.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Offsets {
    /// One of each partition.
    pub offsets: Vec<Offset>,
}

/// Where a connector is in one partition of its source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Offset {
    /// The class's own name for the partition.
    pub partition: Map<String, Value>,
    /// The class's own position in it; null resets.
    pub offset: Option<Map<String, Value>>,
}

/// A sentence.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    /// The sentence.
    pub message: String,
}

/// Topics of a connector, under its name.
pub type Topics = BTreeMap<String, TopicNames>;

/// Topics a connector writes to.
#[derive(Debug, Clone, Serialize)]
pub struct TopicNames {
    /// Names, sorted.
    pub topics: Vec<String>,
}

/// A class of anything that can be named in a configuration.
#[derive(Debug, Clone, Serialize)]
pub struct PluginInfo {
    /// Name.
    pub class: &'static str,
    /// Kafka Connect's word for the kind.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Version.
    pub version: &'static str,
}

/// Microseconds since 1970 as text.
pub(super) fn time(micros: i64) -> String {
    Moment::from_micros(micros).to_string()
}

/// Kafka Connect's word for a task's state. There is no STOPPED: a stopped connector has no tasks.
pub(super) fn task_state(state: RunState) -> &'static str {
    match state {
        RunState::Stopped => RunState::Unassigned.word(),
        other => other.word(),
    }
}
