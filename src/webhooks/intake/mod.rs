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
//!   where not even the spool has an answer by then, [`DeliveryOutcome::Late`].
//! - Order per lane: the head of `lane.rs` has the argument. After a crash the lanes that have something in the spool begin behind.
//! - What Kafka or the schema refuses for good goes to the dead letters, with its bytes, and counts as published then.
//! - A delivery that was taken is never abandoned: its request sees it through, and a task does once the request has its answer
//!   or its sender hangs up.
//! - In memory: `intake.memory.bytes` over all lanes; above it lanes go behind. On disk: the spool's limit, then
//!   [`DeliveryOutcome::Full`].
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

pub use self::producer::{KafkaProducers, ProducerFactory, PublishError, Readiness, ReadyTopics};
use self::{in_flight::Dedup, partition_queue::PartitionQueue, producer::PublishErrors};
use super::delivery::{Delivery, DeliveryMemory, HeldMemory};
use crate::spool::{self, Lane as SpoolKey, Spool};

/// Waits between tries to publish what Kafka does not take.
const PUBLISH_BACKOFF: Policy =
    Policy { first: Duration::from_millis(50), longest: Duration::from_secs(2), total: None };
/// Lanes that are drained at a time; each holds at most one batch in memory.
const MAX_CONCURRENT_DRAINS: usize = 8;
/// How long a stop waits for reports: a broker that is there takes milliseconds, and one that is not takes for ever.
const MAX_FLUSH_WAIT: Duration = Duration::from_secs(5);
/// Ids of deliveries that are remembered.
const DEDUP_WINDOW: usize = 200_000;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
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
pub struct Intake<S: ProducerFactory>(Arc<IntakeState<S>>);

impl<S: ProducerFactory> Clone for Intake<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct IntakeState<S: ProducerFactory> {
    producers: producer::CurrentProducer<S>,
    spool: Spool,
    readiness: Arc<dyn Readiness>,
    times: Times,
    queues: RwLock<HashMap<SpoolKey, Arc<NamedQueue>>>,
    numbers: AtomicU64,
    memory: Arc<DeliveryMemory>,
    dedup: Arc<Dedup>,
    publish_errors: PublishErrors,
    tasks: IntakeTasks,
}

/// The tasks of an intake, and what ends them.
struct IntakeTasks {
    /// Drains that may publish at a time.
    drains: Semaphore,
    stopping: CancellationToken,
    /// Nobody waits for Kafka any more.
    stop_waiting_for_kafka: CancellationToken,
    /// Every delivery that is being completed, and every drain.
    tracker: TaskTracker,
    /// Where these run: a request that is cut off may end outside.
    runtime: Handle,
}

/// A lane and its name.
struct NamedQueue {
    id: SpoolKey,
    order: PartitionQueue<QueuedPart>,
}

/// A part of a delivery on its way.
struct QueuedPart {
    sequence: u64,
    delivery: Delivery,
    positions: Vec<u16>,
    /// Whether the spool has been given a copy.
    copied: AtomicBool,
    /// Kafka has it.
    published: SetOnce<()>,
    _memory: HeldMemory,
}

impl<S: ProducerFactory> Intake<S> {
    /// Takes deliveries from here on. What the spool holds is published first.
    ///
    /// # Errors
    /// The spool is closed.
    pub async fn start(
        producers: S,
        spool: Spool,
        readiness: Arc<dyn Readiness>,
        memory_bytes: usize,
        times: Times,
    ) -> Result<Self, spool::Error> {
        let highest = spool.highest_sequence();
        let queues = spool.lanes().await?.into_iter().map(|state| {
            let queue = NamedQueue { id: state.lane.clone(), order: PartitionQueue::new(Some(highest)) };
            (state.lane, Arc::new(queue))
        });
        let queues: HashMap<_, _> = queues.collect();
        let shared = Arc::new(IntakeState {
            producers: producer::CurrentProducer::new(producers),
            numbers: AtomicU64::new((highest + 1).max(first_number())),
            spool,
            readiness,
            times,
            queues: RwLock::new(queues),
            memory: DeliveryMemory::new(memory_bytes),
            dedup: Dedup::new(DEDUP_WINDOW),
            publish_errors: PublishErrors::default(),
            tasks: IntakeTasks {
                drains: Semaphore::new(MAX_CONCURRENT_DRAINS),
                stopping: CancellationToken::new(),
                stop_waiting_for_kafka: CancellationToken::new(),
                tracker: TaskTracker::new(),
                runtime: Handle::current(),
            },
        });
        let behind: Vec<_> = shared.queues.read().values().cloned().collect();
        for queue in behind {
            shared.ensure_drain(&queue);
        }
        Ok(Self(shared))
    }

    /// From here on every delivery without a report is stored and answered at once: a stop is near.
    pub fn stop_waiting_for_kafka(&self) {
        self.0.tasks.stop_waiting_for_kafka.cancel();
    }

    /// Stores what has no report, gives the producer a while, `until` at the longest, and ends. Deliveries that come meanwhile are refused.
    pub async fn stop(self, until: Instant) {
        let shared = self.0;
        shared.tasks.stop_waiting_for_kafka.cancel();
        shared.tasks.stopping.cancel();
        shared.tasks.tracker.close();
        // Each has a copy by now or soon. The producer gets a while to report, which saves duplicates; nothing is lost without.
        shared.producers.flush(until.min(Instant::now() + MAX_FLUSH_WAIT)).await;
        shared.producers.purge();
        if timeout_at(until + Duration::from_secs(1), shared.tasks.tracker.wait()).await.is_err() {
            tracing::warn!("some deliveries were left without a report");
        }
    }

    /// Lanes whose deliveries go through the spool.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.0.queues.read().values().filter(|queue| queue.order.is_behind()).count()
    }

    /// What Kafka does not take at the moment.
    #[must_use]
    pub fn publish_errors(&self) -> Vec<PublishError> {
        self.0.publish_errors.all()
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
