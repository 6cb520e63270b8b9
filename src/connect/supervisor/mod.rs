//! Runs the connectors and tasks that this worker owns: starts, pauses, restarts and stops them as the topics say.
//!
//! ```text
//! config topic ──▶ plan ◀── owned partitions       which instances should run here, under which claim
//!                   │
//!                   ▼
//!               instances ── desired state ──▶ instance_runner ──▶ body: connector | task     one runner per instance
//!                                                 │
//!                                                 └── status_reporter ──▶ status topic
//!                                                                              ▲
//! tables of the config and status topics ──▶ stale_statuses ──removals─────────┘
//! ```
//!
//! `reconcile_loop` compares the plan with what runs, at every change and several times a second. All state is in the topics, so
//! a worker that joins late or comes back behaves like one that was always there.
//!
//! Words for a partition of the work topic, and for an instance:
//!
//! | word | meaning |
//! |---|---|
//! | claim | offset of the record that this worker wrote when the partition was assigned; statuses call it `generation` |
//! | lease | until when the group cannot reassign this worker's partitions |
//! | owned | assigned and claimed; a commit after the claim has succeeded |
//! | ready | owned, and the topics were read to their end since |
//! | held | ready, and the lease runs |
//! | body | the code that an instance runs: `connector` or `task` |
//!
//! - A connector's instance keeps the task configurations in the config topic up to date (`connector`); a task's instance runs
//!   the class's code (`task`). An `instance_runner` runs both; its head describes failures and panics.
//! - Nothing starts on a partition until this worker has read the config and status topics to their end after it claimed the
//!   partition. So an instance starts with the newest configuration, and requests to restart it that came before count as
//!   handled. A task reads its offsets later, once it holds its transactional id.
//! - Placement follows from the name and the partition count in the cluster's record, not from the topic's current count: two
//!   workers with different counts would run an instance twice, or not at all.
//! - A worker runs at most one instance of each task. Two workers may overlap for a moment; the later one has the higher claim.
//!   When a partition is revoked, its instances end within their grace period and report UNASSIGNED. When it is lost, or its lease
//!   has expired, they are cancelled within 250 ms, aborted `lost_grace` later, and do not report UNASSIGNED.
//! - Each instance acts on a restart request at most once; requests from before its start count as handled.
//! - The connector's owner removes statuses of deleted connectors and tasks (`stale_statuses`).
//!
//! On failure: without a broker the leases expire and the instances end; all of it recovers automatically. A fatal error in a
//! component that it depends on ends the supervisor with an [`Error`].
//!
//! | file | job |
//! |---|---|
//! | `instance_id` | a connector or a task, and the partition it belongs to |
//! | `plan` | which instances should run here, and why one ends |
//! | `desired_state` | the state that an instance should reach: configuration, target, restarts, end |
//! | `reconcile_loop` | compares the plan with what runs; keeps the status topic right |
//! | `instances` | the instances of this worker, from start to end |
//! | `instance_runner` | runs one instance: starts, watches, restarts and ends its body |
//! | `connector` | the body of a connector: keeps its task configurations up to date |
//! | `task` | the body of a task: the code of its class |
//! | `status_reporter` | reports the state of one instance to the status topic |
//! | `stale_statuses` | removes statuses of deleted connectors and tasks |
//! | `handle` | what runs here, for health, metrics and REST |
//! | `trace` | failures as the status topic shows them |

mod instance_id;
mod plan;

mod desired_state;
mod reconcile_loop;

mod instances;

mod instance_runner;

mod connector;
mod task;

mod status_reporter;

mod stale_statuses;

mod handle;
mod trace;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use base::retry::BackoffPolicy;
use kafka::Membership;

use self::reconcile_loop::ReconcileLoop;
pub use self::{
    handle::{RunningInstance, Startups, SupervisorHandle},
    instance_id::InstanceId,
};
use super::config_writer::ConfigWriter;
use crate::{
    plugin::{Plugins, Tools},
    state::{StateTables, writer::StatusWriter},
};

/// The supervisor ended because a component that it depends on stopped; the log says why.
#[derive(Debug, thiserror::Error)]
#[error("the component that {does} has ended unexpectedly")]
pub struct Error {
    does: &'static str,
}

/// Dependencies of a [`Supervisor`].
#[derive(Debug)]
pub struct SupervisorParts {
    /// Classes.
    pub plugins: Plugins,
    /// Tables of the config, offset and status topics.
    pub state: StateTables,
    /// Writes task configurations to the config topic.
    pub config_writer: ConfigWriter,
    /// Writes the status topic.
    pub statuses: StatusWriter,
    /// The partitions this worker owns.
    pub membership: Membership,
    /// Partitions of the work topic among which everything is placed: the same number on every worker of the
    /// cluster, and it never changes. Partitions that were added to the topic later carry nothing.
    pub partitions: u32,
    /// Clients and tables for tasks.
    pub tools: Tools,
    /// Time limits and restart policy.
    pub settings: Settings,
}

/// Time limits and restart policy of a supervisor.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long an instance may take to end (default 5 s, as in Kafka Connect); then it is aborted.
    pub task_grace: Duration,
    /// The same if another worker may already run the instance (default 500 ms).
    pub lost_grace: Duration,
    /// When failed instances restart.
    pub restarting: RestartPolicy,
}

/// When failed instances restart.
#[derive(Debug, Clone, Copy)]
pub struct RestartPolicy {
    /// Backoff between restarts after retryable failures (default 1 s, doubling up to 60 s, without a limit).
    pub policy: BackoffPolicy,
    /// A run of this length (default 60 s) resets the backoff.
    pub healthy_after: Duration,
    /// Panics within the window after which an instance still restarts (default 3); one more makes it FAILED.
    pub panics: u32,
    /// That window (default 10 min).
    pub panic_window: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            task_grace: Duration::from_secs(5),
            lost_grace: Duration::from_millis(500),
            restarting: RestartPolicy::default(),
        }
    }
}

impl Default for RestartPolicy {
    fn default() -> Self {
        let policy =
            BackoffPolicy { first: Duration::from_secs(1), longest: Duration::from_secs(60), total: None };
        let (healthy_after, panic_window) = (Duration::from_secs(60), Duration::from_secs(600));
        Self { policy, healthy_after, panics: 3, panic_window }
    }
}

/// Runs the connectors and tasks of the owned partitions.
#[derive(Debug)]
pub struct Supervisor {
    parts: SupervisorParts,
    handle: SupervisorHandle,
}

impl Supervisor {
    /// Does nothing until [`Supervisor::run`].
    pub fn new(parts: SupervisorParts) -> Self {
        Self { parts, handle: SupervisorHandle::default() }
    }

    /// A view of what runs here, good before, during and after the run.
    pub fn handle(&self) -> SupervisorHandle {
        self.handle.clone()
    }

    /// Runs until cancelled, then ends all instances, tasks before connectors, and reports it to the status topic,
    /// all within `grace`. Afterwards the caller leaves the group, so that other workers take over at once.
    ///
    /// Catches panics of connectors, tasks and their runners, but not its own.
    ///
    /// # Errors
    /// A component that it depends on stopped. It has ended its instances in the same order; the worker should end too.
    pub async fn run(self, cancel: CancellationToken, grace: Duration) -> Result<(), Error> {
        let mut reconcile_loop = ReconcileLoop::new(self.parts, self.handle);
        let ended = reconcile_loop.run(&cancel).await;
        reconcile_loop.stop(grace).await;
        ended
    }
}
