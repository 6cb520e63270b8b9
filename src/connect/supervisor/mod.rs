//! Runs what this worker owns: connectors and tasks, started, paused, restarted and stopped as the topics say.
//!
//! ```text
//! config topic ──▶ plan ◀── partitions held        what should run here, under which claim
//!                   │
//!                   ▼
//!                roster ── orders ──▶ keeper ──▶ body      one keeper per instance; the body is the class's code
//!                   │                   │
//!                 sweep                 └── voice ──▶ status topic
//! ```
//!
//! `duty` compares what should run with what does, at every change and several times a second. Nothing is remembered that
//! the topics do not say, so a worker that comes late, or comes back, does the same as one that has always been there.
//!
//! - A connector's instance keeps the task configurations in the config topic (`connector`); a task's runs the class's
//!   code (`task`). Both are kept by the same `keeper`, whose head says what becomes of failures and panics.
//! - Nothing is started on a partition before configs and statuses have been read to their end after its claim: the newest
//!   configuration and every command up to then are known, and served by the start itself. Offsets are the task's to read,
//!   once the transactional id is its own.
//! - Where something runs follows from its name and the cluster's own count of partitions, not from what the topic has
//!   today: two workers that counted differently would run it twice, or not at all.
//! - Of each task there is at most one instance on a worker; on two workers there may be two for a moment, of which the
//!   later has the higher claim. A partition that is given up ends its instances within their grace, and tells so; one that
//!   is lost, or whose lease has ended, ends them at once and without a word.
//! - A restart that was asked for is served once by every instance it concerns, and not by one that was started after it.
//! - Statuses of what no longer exists are removed by the connector's owner (`sweep`).
//!
//! On failure: without a broker leases end, and with them the instances; all of it comes back by itself. What cannot come
//! back, a fault in what it works with, ends it with an [`Error`].

mod connector;
mod duty;
mod handle;
mod keeper;
mod order;
mod place;
mod plan;
mod roster;
mod sweep;
mod task;
mod trace;
mod voice;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use base::retry::BackoffPolicy;
use kafka::Membership;

use self::duty::Duty;
pub use self::{
    handle::{Handle, Running, Startups},
    place::Id,
};
use super::arbiter::Arbiter;
use crate::{
    config,
    logins::access::ApiAccess,
    plugin::{Plugins, ReceiverFaults, Store},
    state::{State, ledger::Ledgers, writer::StatusWriter},
};

/// A supervisor ended by itself: something that it works with has a fault, of which the log has the words.
#[derive(Debug, thiserror::Error)]
#[error("what {does} has ended by itself")]
pub struct Error {
    does: &'static str,
}

/// What a supervisor needs.
#[derive(Debug)]
pub struct Parts {
    /// Classes.
    pub plugins: Plugins,
    /// The three tails.
    pub state: State,
    /// The way to the config topic, for task configurations.
    pub arbiter: Arbiter,
    /// The way to the status topic.
    pub statuses: StatusWriter,
    /// What this worker owns.
    pub membership: Membership,
    /// Partitions of the work topic among which everything is placed: the same number on every worker of the cluster, for
    /// ever. A topic that has grown since then has partitions that carry nothing.
    pub partitions: u32,
    /// Who this worker is in status records: `host:port`.
    pub worker_id: Arc<str>,
    /// The worker's configuration.
    pub worker: Arc<config::Worker>,
    /// What keeps connectors from being received on this worker, by name.
    pub faults: watch::Receiver<ReceiverFaults>,
    /// The provider's APIs.
    pub access: ApiAccess,
    /// What is known of subscriptions.
    pub ledgers: Ledgers,
    /// What tasks that write records use.
    pub store: Store,
    /// How patient it is.
    pub settings: Settings,
}

/// How patient a supervisor is.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long an instance may take to end (default 5 s, as in Kafka Connect); then it is aborted.
    pub task_grace: Duration,
    /// The same where a successor may be running already (default 500 ms).
    pub lost_grace: Duration,
    /// What becomes of failures.
    pub restarting: Restarting,
}

/// What becomes of failures.
#[derive(Debug, Clone, Copy)]
pub struct Restarting {
    /// Waits before the next start after a failure that passes (default 1 s, doubling up to 60 s, for ever).
    pub policy: BackoffPolicy,
    /// A run of this length (default 60 s) forgets the waits before it.
    pub healthy_after: Duration,
    /// Panics within the window after which an instance is still started again (default 3); one more fails it for good.
    pub panics: u32,
    /// That window (default 10 min).
    pub panic_window: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            task_grace: Duration::from_secs(5),
            lost_grace: Duration::from_millis(500),
            restarting: Restarting::default(),
        }
    }
}

impl Default for Restarting {
    fn default() -> Self {
        let policy =
            BackoffPolicy { first: Duration::from_secs(1), longest: Duration::from_secs(60), total: None };
        let (healthy_after, panic_window) = (Duration::from_secs(60), Duration::from_secs(600));
        Self { policy, healthy_after, panics: 3, panic_window }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Supervisor {
    parts: Parts,
    handle: Handle,
}

impl Supervisor {
    /// One that does nothing before it is run.
    pub fn new(parts: Parts) -> Self {
        Self { parts, handle: Handle::default() }
    }

    /// A view of what runs here, good before, during and after the run.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until cancelled, then ends all instances, tasks before connectors, and tells the status topic, all within
    /// `grace`. Leaving the group is the caller's, afterwards: others take over at once.
    ///
    /// A panic of its own is not caught here; those of connectors, tasks and their keepers are.
    ///
    /// # Errors
    /// It has ended by itself, in the same order, because it could no longer do its work: the worker should end too.
    pub async fn run(self, cancel: CancellationToken, grace: Duration) -> Result<(), Error> {
        let mut duty = Duty::new(self.parts, self.handle);
        let ended = duty.run(&cancel).await;
        duty.stop(grace).await;
        ended
    }
}
