//! Publish, then answer: a verified delivery goes in, and comes out durable or refused, in time whatever Kafka does.
//!
//! ```text
//! take ─▶ part ─▶ lane ── direct ──▶ producer ── report ──▶ durable
//!                  │                    └─ late ─▶ spool (a copy) ─▶ durable; the late report removes the copy
//!                  └── behind ──▶ spool ─▶ durable;  drain ──▶ producer ── report ──▶ removed from the spool
//! ```
//!
//! - Durable means that Kafka has acknowledged it with all replicas, or that the spool has fsynced it. Nothing else is
//!   answered 200.
//! - Whatever happens, [`Intake::take`] answers before [`Times::last`]: the report or the spool by [`Times::deadline`], and
//!   where not even the spool has an answer by then, [`Outcome::Late`].
//! - Order per lane: the head of `lane.rs` has the argument. After a crash the lanes that have something in the spool begin behind.
//! - What Kafka or the schema refuses for good goes to the dead letters, with its bytes, and counts as published then.
//! - A delivery that was taken is never abandoned: its request sees it through, and a task does once the request has its answer
//!   or its sender hangs up.
//! - In memory: `intake.memory.bytes` over all lanes; above it lanes go behind. On disk: the spool's limit, then
//!   [`Outcome::Full`].
//!
//! On stop everything without a report is stored, then the producer is given the time that is left.

mod drain;
mod in_flight;
mod partition_queue;
mod producer;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use parking_lot::RwLock;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SetOnce},
    time::{Instant, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use base::retry::Policy;
use model::Moment;

pub use self::producer::{Openings, Producers, Ready, Sinks, Trouble};
use self::{in_flight::Seen, partition_queue::Lane, producer::Troubles};
use super::delivery::{Delivery, Memory, Taken};
use crate::spool::{self, Spool};

/// Waits between tries to publish what Kafka does not take.
const PUBLISH_BACKOFF: Policy =
    Policy { first: Duration::from_millis(50), longest: Duration::from_secs(2), total: None };
/// Lanes that are drained at a time; each holds at most one batch in memory.
const DRAINS: usize = 8;
/// How long a stop waits for reports: a broker that is there takes milliseconds, and one that is not takes for ever.
const FLUSH: Duration = Duration::from_secs(5);
/// Ids of deliveries that are remembered.
const REMEMBERED: usize = 200_000;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Kafka or the spool has it.
    Durable,
    /// There is no room for it: not on disk, or the intake is stopping.
    Full,
    /// Neither Kafka nor the disk has answered in time.
    Late,
}

/// How long deliveries may take, from the head of their request.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Kafka's report is awaited until then; then the spool gets a copy.
    pub deadline: Duration,
    /// Then the answer is given, whatever is known.
    pub last: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(2_500), last: Duration::from_secs(4) }
    }
}

/// See the module's head. Cheap to clone.
pub struct Intake<S: Sinks>(Arc<Shared<S>>);

impl<S: Sinks> Clone for Intake<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Shared<S: Sinks> {
    sinks: producer::Current<S>,
    spool: Spool,
    openings: Arc<dyn Openings>,
    times: Times,
    lines: RwLock<HashMap<spool::Lane, Arc<Line>>>,
    numbers: AtomicU64,
    memory: Arc<Memory>,
    seen: Arc<Seen>,
    troubles: Troubles,
    drains: Semaphore,
    stopping: CancellationToken,
    /// Nobody waits for Kafka any more.
    hurry: CancellationToken,
    /// Every delivery that is seen through, and every drain.
    tasks: TaskTracker,
    /// Where these run: a request that is cut off may end outside.
    runtime: Handle,
}

/// A lane and its name.
struct Line {
    id: spool::Lane,
    lane: Lane<Item>,
}

/// A part of a delivery on its way.
struct Item {
    sequence: u64,
    delivery: Delivery,
    positions: Vec<u16>,
    /// Whether the spool has been given a copy.
    copied: AtomicBool,
    /// Kafka has it.
    published: SetOnce<()>,
    _memory: Taken,
}

impl<S: Sinks> Intake<S> {
    /// Takes deliveries from here on. What the spool holds is published first.
    ///
    /// # Errors
    /// The spool is closed.
    pub async fn start(
        sinks: S,
        spool: Spool,
        openings: Arc<dyn Openings>,
        memory_bytes: usize,
        times: Times,
    ) -> Result<Self, spool::Error> {
        let highest = spool.highest_sequence();
        let lines = spool.lanes().await?.into_iter().map(|state| {
            let line = Line { id: state.lane.clone(), lane: Lane::new(Some(highest)) };
            (state.lane, Arc::new(line))
        });
        let lines: HashMap<_, _> = lines.collect();
        let shared = Arc::new(Shared {
            sinks: producer::Current::new(sinks),
            numbers: AtomicU64::new((highest + 1).max(first_number())),
            spool,
            openings,
            times,
            lines: RwLock::new(lines),
            memory: Memory::new(memory_bytes),
            seen: Seen::new(REMEMBERED),
            troubles: Troubles::default(),
            drains: Semaphore::new(DRAINS),
            stopping: CancellationToken::new(),
            hurry: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
        });
        let behind: Vec<_> = shared.lines.read().values().cloned().collect();
        for line in behind {
            shared.ensure_drain(&line);
        }
        Ok(Self(shared))
    }

    /// From here on every delivery without a report is stored and answered at once: a stop is near.
    pub fn hurry(&self) {
        self.0.hurry.cancel();
    }

    /// Stores what has no report, gives the producer a while, `until` at the longest, and ends. Deliveries that come meanwhile are refused.
    pub async fn stop(self, until: Instant) {
        let shared = self.0;
        shared.hurry.cancel();
        shared.stopping.cancel();
        shared.tasks.close();
        // Each has a copy by now or soon. The producer gets a while to report, which saves duplicates; nothing is lost without.
        shared.sinks.flush(until.min(Instant::now() + FLUSH)).await;
        shared.sinks.purge();
        if timeout_at(until + Duration::from_secs(1), shared.tasks.wait()).await.is_err() {
            tracing::warn!("some deliveries were left without a report");
        }
    }

    /// Lanes whose deliveries go through the spool.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.0.lines.read().values().filter(|line| line.lane.is_behind()).count()
    }

    /// What Kafka does not take at the moment.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        self.0.troubles.all()
    }

    /// Bytes of deliveries in memory.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.0.memory.used()
    }
}

/// Numbers begin at the microseconds since 1970: above all that were ever given out, also in databases that could not be opened,
/// since nobody takes a delivery every microsecond.
fn first_number() -> u64 {
    u64::try_from(Moment::now().micros()).unwrap_or_default()
}
