//! The config topic, in Kafka Connect's own keys and JSON.
//!
//! `connector-N` and `task-N-i` hold `{properties}`, `commit-N` `{tasks}` makes task configurations count, `target-state-N`
//! `{state, state.v2}`, `restart-connector-N` `{include-tasks, only-failed}` and `logger-cluster-NS` `{level}` are commands.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::Apply;
use crate::{config::connector::TargetState, kafka::Received};

/// A flat configuration, as written.
pub type Properties = BTreeMap<String, String>;

/// One connector.
#[derive(Debug, Clone)]
pub struct Connector {
    /// Its configuration, to the letter.
    pub config: Arc<Properties>,
    /// What it should be doing.
    pub target: TargetState,
    /// Task configurations in force: those of the last commit. Empty while it is stopped or not yet configured.
    pub tasks: Arc<[Properties]>,
    /// Offset of the configuration's record: which edit this is.
    pub revision: i64,
    /// Offset of the last task commit.
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

/// All of the topic.
#[derive(Debug, Default)]
pub struct Configs {
    connectors: BTreeMap<String, Connector>,
}

impl Configs {
    /// Every connector by name.
    #[must_use]
    pub fn connectors(&self) -> &BTreeMap<String, Connector> {
        &self.connectors
    }

    /// The last restart asked for of a connector.
    #[must_use]
    pub fn restart(&self, connector: &str) -> Option<&Restart> {
        todo!()
    }

    /// Cluster-wide log levels: logger, level, offset of the record.
    #[must_use]
    pub fn loggers(&self) -> &BTreeMap<String, (String, i64)> {
        todo!()
    }

    /// What the next commit of task configurations would have to wait for: task records that came without one.
    #[must_use]
    pub fn is_half_written(&self, connector: &str) -> bool {
        todo!()
    }
}

impl Apply for Configs {
    fn apply(&mut self, record: &Received) {
        todo!()
    }
}

/// A record to be written: key and value, `None` for a tombstone.
pub type Write = (String, Option<Value>);

/// `connector-N`.
#[must_use]
pub fn connector(name: &str, config: Option<&Properties>) -> Write {
    todo!()
}

/// `target-state-N`; STOPPED is written so that older readers see PAUSED.
#[must_use]
pub fn target_state(name: &str, state: Option<TargetState>) -> Write {
    todo!()
}

/// `task-N-i` for each, then `commit-N`.
#[must_use]
pub fn tasks(name: &str, tasks: &[Properties]) -> Vec<Write> {
    todo!()
}

/// `restart-connector-N`.
#[must_use]
pub fn restart(name: &str, include_tasks: bool, only_failed: bool, task: Option<u32>) -> Write {
    todo!()
}

/// `logger-cluster-NS`.
#[must_use]
pub fn logger(namespace: &str, level: &str) -> Write {
    todo!()
}
