//! Publish, then answer: a verified delivery goes in and comes out durable or refused, in time whatever Kafka does.
//!
//! ```text
//! take ─▶ part ─▶ queue ── direct ──▶ producer ── report ──▶ durable
//!                   │                    └─ late ─▶ spool (a copy) ─▶ durable; the late report removes the copy
//!                   └── behind ──▶ spool ─▶ durable;  drain ──▶ producer ── report ──▶ removed from the spool
//! ```
//!
//! | File | Step |
//! |---|---|
//! | `in_flight.rs` | lets the parts of a delivery into their queues, sees them through, answers |
//! | `dedup.rs` | repeated deliveries, by what this process has seen |
//! | `encode.rs` | the records of a part as bytes; dead letters |
//! | `lane_queue.rs` | the order of one queue: direct or behind |
//! | `producer.rs` | hands records to the current producer, collects its reports; topics to which Kafka takes no records, for `/health` |
//! | `drain.rs` | publishes what a queue has in the spool and in memory |
//!
//! - Durable means that Kafka has acknowledged it with all replicas, or that the spool has fsynced it. Nothing else is
//!   answered 200.
//! - After [`AnswerTimes::spool_after`] a part without a report gets a copy in the spool. [`Intake::take`] answers by
//!   [`AnswerTimes::answer_by`] at the latest: a delivery that neither Kafka nor the spool has confirmed by then gets
//!   [`DeliveryOutcome::Late`].
//! - A lane is one order of deliveries: a topic, a connector and one of 32 numbers that the key of a record is hashed to. It is the same
//!   in the spool and in memory, and has nothing to do with the partitions of Kafka. Each lane has one queue.
//! - Order per queue: the head of `lane_queue.rs` has the argument. After a crash the queues with entries in the spool start behind.
//! - What Kafka or the schema refuses permanently goes to the dead letters, with its bytes, and then counts as published.
//! - A delivery that was taken is never abandoned: its request completes it, and a task does once the request has its answer
//!   or its sender hangs up.
//! - Memory: `intake.memory.bytes` over all queues; above it queues go behind. Disk: the spool's limit, then
//!   [`DeliveryOutcome::Full`].
//!
//! On stop everything without a report is stored, then the producer gets the time that is left.

mod in_flight;

mod dedup;
mod encode;
mod lane_queue;
mod producer;

mod drain;
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

use futures::future::BoxFuture;
use parking_lot::RwLock;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SetOnce},
    time::{Instant, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use base::retry::BackoffPolicy;
use model::Moment;

use self::{dedup::Dedup, lane_queue::LaneQueue, producer::PublishErrors};
pub use self::{
    encode::{PublishReadiness, ReadyTopics},
    producer::{KafkaProducers, ProducerFactory, PublishError},
};
use super::delivery::{Delivery, DeliveryContent, DeliveryMemory, HeldMemory};
use crate::spool::{self, Lane, Spool};

/// Backoff after Kafka did not take a record.
const PUBLISH_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(50), longest: Duration::from_secs(2), total: None };
/// Drains that hold a permit. A batch without reports after `DRAIN_TURN` releases its permit, so more batches can be in memory.
const MAX_CONCURRENT_DRAINS: usize = 8;
/// How long a stop waits for reports. A reachable broker takes milliseconds.
const MAX_FLUSH_WAIT: Duration = Duration::from_secs(5);
/// Number of delivery ids that deduplication remembers.
const DEDUP_WINDOW: usize = 200_000;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// Kafka or the spool has it.
    Durable,
    /// The append to the spool failed and Kafka did not confirm in time, or the intake is stopping.
    Full,
    /// Neither Kafka nor the disk answered in time.
    Late,
}

/// Makes a verified delivery durable and returns the outcome. The time is when the head of its request arrived.
pub type Accept =
    Arc<dyn Fn(Delivery, DeliveryContent, Instant) -> BoxFuture<'static, DeliveryOutcome> + Send + Sync>;

/// How long deliveries may take, from the head of their request.
///
/// The provider waits five seconds for an answer. The receiver gives the body the first one and a half of them
/// ([`ReceiverOptions::body_time`](super::receiver::ReceiverOptions)). Kafka has until `spool_after`, one second after the latest end of the
/// body. The spool then has one and a half seconds until `answer_by`. The last second is left for the way of the answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerTimes {
    /// Time until the spool gets a copy, if Kafka has not reported.
    pub spool_after: Duration,
    /// Time until the answer is [`DeliveryOutcome::Late`] if neither Kafka nor the spool has confirmed.
    pub answer_by: Duration,
}

impl Default for AnswerTimes {
    fn default() -> Self {
        Self { spool_after: Duration::from_millis(2_500), answer_by: Duration::from_secs(4) }
    }
}

/// Takes deliveries; the module's head says how. Cheap to clone.
pub struct Intake<S: ProducerFactory>(Arc<IntakeState<S>>);

impl<S: ProducerFactory> Clone for Intake<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct IntakeState<S: ProducerFactory> {
    producers: producer::CurrentProducer<S>,
    spool: Spool,
    readiness: Arc<dyn PublishReadiness>,
    times: AnswerTimes,
    queues: RwLock<HashMap<Lane, Arc<NamedQueue>>>,
    numbers: AtomicU64,
    memory: Arc<DeliveryMemory>,
    dedup: Arc<Dedup>,
    publish_errors: PublishErrors,
    tasks: IntakeTasks,
}

/// The tasks of an intake, and what ends them.
struct IntakeTasks {
    /// [`MAX_CONCURRENT_DRAINS`] permits.
    drains: Semaphore,
    stopping: CancellationToken,
    /// Deliveries without a report are stored at once.
    stop_waiting_for_kafka: CancellationToken,
    /// Every delivery that is being completed, and every drain.
    tracker: TaskTracker,
    /// Where these run: a request that is cut off may end outside.
    runtime: Handle,
}

/// A queue and its lane.
struct NamedQueue {
    id: Lane,
    order: LaneQueue<QueuedPart>,
}

/// A part of a delivery, until it is published.
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
    /// Starts the intake. What the spool holds is published first.
    ///
    /// # Errors
    /// The spool is closed.
    pub async fn start(
        producers: S,
        spool: Spool,
        readiness: Arc<dyn PublishReadiness>,
        memory_bytes: usize,
        times: AnswerTimes,
    ) -> Result<Self, spool::Error> {
        let highest = spool.highest_sequence();
        let queues = spool.lanes().await?.into_iter().map(|state| {
            let queue = NamedQueue { id: state.lane.clone(), order: LaneQueue::new(Some(highest)) };
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

    /// Stores and answers every delivery without a report at once, from now on: a stop follows.
    pub fn stop_waiting_for_kafka(&self) {
        self.0.tasks.stop_waiting_for_kafka.cancel();
    }

    /// Stores what has no report, gives the producer until `until`, and ends. New deliveries are refused.
    pub async fn stop(self, until: Instant) {
        let shared = self.0;
        shared.tasks.stop_waiting_for_kafka.cancel();
        shared.tasks.stopping.cancel();
        shared.tasks.tracker.close();
        // Each has a copy by now or soon. Waiting for reports only saves duplicates.
        shared.producers.flush(until.min(Instant::now() + MAX_FLUSH_WAIT)).await;
        shared.producers.purge();
        if timeout_at(until + Duration::from_secs(1), shared.tasks.tracker.wait()).await.is_err() {
            tracing::warn!("some deliveries were left without a report");
        }
    }

    /// Number of queues whose deliveries go through the spool.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.0.queues.read().values().filter(|queue| queue.order.is_behind()).count()
    }

    /// Topics to which Kafka takes no records now.
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

/// The first sequence number: the microseconds since 1970. It is above all numbers that were ever used, also in databases that could
/// not be opened, because a worker takes fewer than one delivery a microsecond.
fn first_number() -> u64 {
    u64::try_from(Moment::now().micros()).unwrap_or_default()
}
