//! Runs what this worker owns: connectors and tasks, started, paused, restarted and stopped as the topics say.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    arbiter::Arbiter,
    plugins::{Plugins, Tools},
    state::State,
};
use crate::{config, kafka::Membership};

/// What it needs.
#[derive(Debug)]
pub struct Supervisor {
    /// Classes.
    pub plugins: Plugins,
    /// The three tails.
    pub state: State,
    /// The way to the config topic, for task configurations.
    pub arbiter: Arbiter,
    /// What this worker owns.
    pub membership: Membership,
    /// Who this worker is in status records: `host:port`.
    pub worker_id: Arc<str>,
    /// What tasks may use.
    pub tools: Tools,
    /// The worker's configuration.
    pub worker: Arc<config::Worker>,
}

impl Supervisor {
    /// Runs until cancelled, then stops all instances in order within `grace` and tells the status topic.
    pub async fn run(self, cancel: CancellationToken, grace: Duration) {
        todo!()
    }
}
