//! The JSON answers of the API: Kafka Connect's members, in its spelling.
//!
//! Members without a value are `null`, except `trace`, `subscriptions`, `gaps` and the parts of a connector that were not requested,
//! which are left out. The states are exactly Kafka Connect's six: tools refuse an answer with an unknown state.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value};

use model::Moment;

use crate::state::{configs::Properties, statuses::RunState};

/// `GET /`.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    /// The Kafka version whose behavior this is; tools switch features on and off by it.
    pub version: &'static str,
    /// The commit of this build.
    pub commit: &'static str,
    /// The Kafka cluster; null if unknown.
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
    /// Configuration, unchanged, with `name` in it.
    pub config: Arc<Properties>,
    /// Its tasks.
    pub tasks: Vec<TaskId>,
    /// `source`, or `unknown` if this worker does not have the class.
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// A connector: states.
#[derive(Debug, Clone, Serialize)]
pub struct ConnectorStatus {
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

/// State of a connector. Every member is a string: a common client decodes it as a map of strings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectorState {
    /// State.
    pub state: &'static str,
    /// The worker that reported it, as `host:port`.
    pub worker_id: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Summary of its subscriptions, if it has any and this worker knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<String>,
    /// Summary of its gaps, under the same condition.
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
    /// The worker that reported it, as `host:port`.
    pub worker_id: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// The requested parts of one connector in a list.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Expanded {
    /// With `expand=info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<Info>,
    /// With `expand=status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ConnectorStatus>,
}

/// A task's configuration.
#[derive(Debug, Clone, Serialize)]
pub struct TaskInfo {
    /// Its id.
    pub id: TaskId,
    /// Its configuration, references unresolved.
    pub config: Arc<Properties>,
}

/// Offsets of a connector, in answers and requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ConnectorOffsets {
    /// One for each partition.
    pub offsets: Vec<Offset>,
}

/// The offset of one source partition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Offset {
    /// The partition, as its class writes it.
    pub partition: Map<String, Value>,
    /// The position in it, as its class writes it; null resets.
    pub offset: Option<Map<String, Value>>,
}

/// A message for people.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    /// The text.
    pub message: String,
}

/// Topics of a connector, under its name.
pub type Topics = BTreeMap<String, TopicNames>;

/// Topics a connector has written to.
#[derive(Debug, Clone, Serialize)]
pub struct TopicNames {
    /// Names, sorted.
    pub topics: Vec<String>,
}

/// A class that a configuration can name.
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
