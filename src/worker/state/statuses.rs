//! The status topic: `status-connector-N`, `status-task-N-i`, `status-topic-T:connector-N`, in Kafka Connect's JSON.
//!
//! A record whose `generation` is lower than the one known for its key is ignored: it comes from an owner that has been
//! replaced and does not know it yet.

use std::collections::BTreeMap;

use super::Apply;
use crate::kafka::Received;

/// The states Kafka Connect shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// It runs.
    Running,
    /// It waits to be resumed.
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

/// State of a connector or task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// State.
    pub state: RunState,
    /// Why it failed: `Kind: sentence`, then `Caused by: …` lines.
    pub trace: Option<String>,
    /// Who says so.
    pub worker_id: String,
    /// Claim of the partition it belongs to; higher is later.
    pub generation: i64,
}

/// All of the topic.
#[derive(Debug, Default)]
pub struct Statuses {}

impl Statuses {
    /// State of a connector.
    #[must_use]
    pub fn connector(&self, name: &str) -> Option<&Status> {
        todo!()
    }

    /// States of its tasks by number.
    #[must_use]
    pub fn tasks(&self, name: &str) -> BTreeMap<u32, &Status> {
        todo!()
    }

    /// Topics it has written to, since the last reset.
    #[must_use]
    pub fn topics(&self, name: &str) -> Vec<&str> {
        todo!()
    }
}

impl Apply for Statuses {
    fn apply(&mut self, record: &Received) {
        todo!()
    }
}
