//! Publishes what a queue has in memory and in the spool, in sequence, until nothing is left.
//!
//! One drain for each queue, a few at a time. A batch is read, sent and awaited as a whole before the next one is read, so a
//! failure leaves nothing behind it in flight. What is published is removed from the spool; what failed stays there.
//! A queue one of whose Kafka partitions does not answer keeps its batch and yields its turn, so that others continue. A drain that panics
//! is restarted; records in memory stay in the queue until they are published.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures::FutureExt as _;
use tokio::{
    pin,
    time::{Duration, Instant, sleep},
};

use base::{
    failpoint,
    retry::{Backoff, ErrorChain, Retry},
};

use super::{
    IntakeState, NamedQueue, PUBLISH_BACKOFF, QueuedPart, encode,
    in_flight::InFlight,
    lane_queue::{DrainWork, Handed},
    producer::{PartReport, PendingReports, ProducerFactory},
};
use crate::{
    spool::{SpoolBatch, SpoolEntry},
    webhooks::delivery::{Delivery, topic_of},
};

/// Entries of one batch.
const MAX_BATCH_ENTRIES: usize = 512;
/// Bytes of one batch, unless one entry alone is larger: every queue may have one in flight.
const MAX_BATCH_BYTES: usize = 256 << 10;
/// How long a batch may take before another queue gets its turn.
const DRAIN_TURN: Duration = Duration::from_secs(1);

/// Where a record of a batch comes from.
enum DrainedFrom {
    Memory(Arc<QueuedPart>),
    Spool(Bytes),
}

/// How a batch ended.
enum BatchEnd {
    /// Something was published, or found not to be there.
    Moved,
    /// There is nothing to publish yet.
    Idle,
    /// It cannot be published now: its connector is not ready, or there is no room.
    Stuck,
    /// Kafka did not take it.
    Failed,
}

/// A part that was handed to a producer.
struct Sending<S: ProducerFactory> {
    /// The producer's number.
    producer: u64,
    /// The delivery's id.
    id: Option<String>,
    reports: PendingReports<S>,
    handed: Handed,
}

/// Records of a batch that were handed over.
struct SentRecord<S: ProducerFactory> {
    sequence: u64,
    source: DrainedFrom,
    delivery: Delivery,
    handed: Sending<S>,
}

impl<S: ProducerFactory> IntakeState<S> {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.tracker.spawn_on(task, &self.tasks.runtime));
    }

    /// Hands a part to the producer as it would be read now, to this producer where one is named. `None` where that cannot
    /// be done yet.
    fn send(&self, delivery: &Delivery, positions: &[u16], producer: Option<u64>) -> Option<Sending<S>> {
        let ready = self.readiness.ready(&delivery.context)?;
        let built =
            self.producers.get().filter(|built| producer.is_none_or(|number| number == built.number))?;
        let (id, content) = delivery.read_again(positions);
        let records = encode::records(&ready, delivery, content)?;
        let (reports, handed) = self.producers.send(&built, records)?;
        Some(Sending { producer: built.number, id, reports, handed })
    }

    /// Follows a record that the drain sent to make the queue direct again. Its sender is answered by the spool, or by Kafka if that
    /// is sooner.
    fn watch(self: &Arc<Self>, queue: &Arc<NamedQueue>, queued: Arc<QueuedPart>, reports: PendingReports<S>) {
        let (shared, queue) = (Arc::clone(self), Arc::clone(queue));
        let mut sent = InFlight { shared, queue, queued, since: Instant::now(), answer: None };
        self.spawn(async move { sent.reported(reports.await).await });
    }

    pub(super) fn ensure_drain(self: &Arc<Self>, queue: &Arc<NamedQueue>) {
        if queue.order.wants_drain() {
            self.spawn(run(Arc::clone(self), Arc::clone(queue)));
        }
    }
}

/// Drains until the queue is direct again or the intake stops, and restarts a drain that panics: nothing else would drain a queue
/// without new records.
async fn run<S: ProducerFactory>(shared: Arc<IntakeState<S>>, queue: Arc<NamedQueue>) {
    let mut backoff = Backoff::new(PUBLISH_BACKOFF, u64::from(queue.id.number));
    // What a queue's lock holds is never left half changed.
    while AssertUnwindSafe(drain(&shared, &queue)).catch_unwind().await.is_err() {
        let wait = backoff.next_wait(Retry::Later).unwrap_or(PUBLISH_BACKOFF.longest);
        tracing::error!(topic = &*queue.id.topic, ?wait, "the drain panicked; restarting it");
        if shared.tasks.stopping.run_until_cancelled(sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// Drains until the queue is direct again or the intake stops. A batch that was sent is awaited: its reports come at the latest when
/// the producer is purged.
async fn drain<S: ProducerFactory>(shared: &Arc<IntakeState<S>>, queue: &Arc<NamedQueue>) {
    let mut backoff = Backoff::new(PUBLISH_BACKOFF, u64::from(queue.id.number));
    // After a failure one entry shows whether it has passed.
    let mut most = MAX_BATCH_ENTRIES;
    loop {
        let send = |queued: &Arc<QueuedPart>, producer| {
            let handed = shared.send(&queued.delivery, &queued.positions, producer)?;
            Some((handed.producer, handed.reports, handed.handed))
        };
        let sent = |queued: Arc<QueuedPart>, reports| shared.watch(queue, queued, reports);
        let work = shared.tasks.stopping.run_until_cancelled(queue.order.work(send, sent)).await;
        let Some(Some(work)) = work else { return };
        let end = batch(shared, queue, work, most).await;
        most = MAX_BATCH_ENTRIES;
        let wait = match end {
            BatchEnd::Moved => {
                backoff = Backoff::new(PUBLISH_BACKOFF, u64::from(queue.id.number));
                continue;
            }
            BatchEnd::Idle => {
                shared.tasks.stopping.run_until_cancelled(queue.order.changed()).await;
                continue;
            }
            BatchEnd::Stuck | BatchEnd::Failed => {
                backoff.next_wait(Retry::Later).unwrap_or(PUBLISH_BACKOFF.longest)
            }
        };
        most = 1;
        shared.producers.replace_if_failed();
        tokio::select! {
            () = shared.readiness.changed(), if matches!(end, BatchEnd::Stuck) => {}
            () = sleep(wait) => {}
            () = shared.tasks.stopping.cancelled() => {}
        }
    }
}

async fn batch<S: ProducerFactory>(
    shared: &Arc<IntakeState<S>>,
    queue: &Arc<NamedQueue>,
    work: DrainWork<QueuedPart>,
    most: usize,
) -> BatchEnd {
    // Never closed.
    let turn = shared.tasks.drains.acquire().await;
    let DrainWork { again, after, up_to } = work;
    if again.is_empty() && !shared.memory.has_room_to_drain() {
        return BatchEnd::Stuck;
    }
    let read = if up_to > after {
        shared.spool.read(&queue.id, Some(after), most, MAX_BATCH_BYTES).await
    } else {
        Ok(SpoolBatch::default())
    };
    let SpoolBatch { entries, more } = match read {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(topic = &*queue.id.topic, error = %ErrorChain(&error), "the spool cannot be read");
            return BatchEnd::Failed;
        }
    };
    let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
    let _memory = shared.memory.take(bytes);
    // Beyond what was read nothing may be sent from memory either.
    let end = entries.last().filter(|_| more).map_or(up_to, |last| last.sequence.min(up_to));
    let sources = merge(entries, again, end);
    if sources.is_empty() {
        queue.order.drained(end);
        return if end > after { BatchEnd::Moved } else { BatchEnd::Idle };
    }

    let (sent, mut left) = hand_over(shared, queue, sources);
    let stuck = !left.is_empty();
    let settled = settle(shared, queue, sent);
    pin!(settled);
    let failed = tokio::select! {
        failed = settled.as_mut() => failed,
        () = sleep(DRAIN_TURN) => {
            drop(turn);
            settled.await
        }
    };
    let moved = failed.is_empty();
    left.extend(failed);
    let settled = left.keys().next().map_or(end, |first| first - 1);
    queue.order.drained(settled.min(end));
    match (moved, stuck) {
        (false, _) => BatchEnd::Failed,
        (true, true) => BatchEnd::Stuck,
        (true, false) => BatchEnd::Moved,
    }
}

/// What is to be sent up to `end`. The copy in memory is the same and needs no reading.
fn merge(
    entries: Vec<SpoolEntry>,
    again: BTreeMap<u64, Arc<QueuedPart>>,
    end: u64,
) -> BTreeMap<u64, DrainedFrom> {
    let spooled = entries.into_iter().map(|entry| (entry.sequence, DrainedFrom::Spool(entry.payload)));
    let memory = again.into_iter().map(|(sequence, queued)| (sequence, DrainedFrom::Memory(queued)));
    spooled.chain(memory).filter(|(sequence, _)| *sequence <= end).collect()
}

/// Hands a batch to one producer, in sequence, up to the first that cannot be sent now; that and all others are left.
fn hand_over<S: ProducerFactory>(
    shared: &Arc<IntakeState<S>>,
    queue: &NamedQueue,
    sources: BTreeMap<u64, DrainedFrom>,
) -> (Vec<SentRecord<S>>, BTreeMap<u64, DrainedFrom>) {
    let mut sent: Vec<SentRecord<S>> = Vec::with_capacity(sources.len());
    let mut left = BTreeMap::new();
    let mut sources = sources.into_iter();
    for (sequence, source) in sources.by_ref() {
        let (delivery, positions) = match &source {
            DrainedFrom::Memory(queued) => (queued.delivery.clone(), queued.positions.clone()),
            DrainedFrom::Spool(payload) => match Delivery::from_entry(payload.clone()) {
                Ok(found) => found,
                Err(error) => {
                    // It stays in the spool for a version that can read it; the spool reports it.
                    tracing::debug!(sequence, error = %ErrorChain(&error), "an entry of the spool cannot be read");
                    shared.spool.disown(&queue.id, sequence);
                    continue;
                }
            },
        };
        let producer = sent.first().map(|first| first.handed.producer);
        match shared.send(&delivery, &positions, producer) {
            Some(handed) => {
                let whole = handed.handed == Handed::Whole;
                sent.push(SentRecord { sequence, source, delivery, handed });
                if !whole {
                    break;
                }
            }
            None => {
                left.insert(sequence, source);
                break;
            }
        }
    }
    left.extend(sources);
    (sent, left)
}

/// Waits for all reports, and returns what has to be sent again.
async fn settle<S: ProducerFactory>(
    shared: &Arc<IntakeState<S>>,
    queue: &NamedQueue,
    sent: Vec<SentRecord<S>>,
) -> BTreeMap<u64, DrainedFrom> {
    let mut failed = BTreeMap::new();
    for SentRecord { sequence, source, delivery, handed } in sent {
        let acknowledged = match handed.reports.await {
            PartReport::Acknowledged => {
                shared.clear_publish_error(queue, &delivery);
                true
            }
            PartReport::Refused(error) => shared.write_dead_letter(&delivery, &error).await,
            PartReport::Again(error) => {
                shared.recheck(&delivery, topic_of(&queue.id), &error);
                false
            }
        };
        if acknowledged {
            failpoint::reach("spool.drained");
        }
        match (acknowledged, source) {
            (true, DrainedFrom::Memory(queued)) => {
                shared.published(queue, &queued);
                queue.order.settled(sequence);
            }
            (true, DrainedFrom::Spool(_)) => {
                shared.spool.remove(&queue.id, sequence);
                if let Some(id) = handed.id {
                    shared.dedup.remember(&delivery.context.connector, &id, &delivery.body);
                }
            }
            (false, source) => {
                failed.insert(sequence, source);
            }
        }
    }
    failed
}
