//! Publishes what a lane has in memory and in the spool, in sequence, until nothing is left.
//!
//! One drain per lane, a few at a time. A batch is read, sent and awaited as a whole; only then is the next one read, so a
//! failure leaves nothing behind it in flight. What is published is removed from the spool, what failed is still there.
//! A lane whose partition does not answer keeps its batch and gives up its turn, so that other lanes continue. A drain that panics
//! is started again; records in memory stay in the lane until they are published.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures::FutureExt as _;
use tokio::{
    pin,
    time::{Duration, Instant, sleep},
};

use base::{
    failpoint,
    retry::{Backoff, Chain, Retry},
};

use super::{
    Item, Line, PUBLISH_BACKOFF, Shared,
    in_flight::InFlight,
    partition_queue::{Handed, Work},
    producer::{self, Report, Reports, Sinks},
};
use crate::{
    spool::{Batch, Entry},
    webhooks::delivery::{Delivery, topic_of},
};

/// Entries of one batch.
const BATCH: usize = 512;
/// Bytes of one batch, unless one entry alone is larger: every lane may have one in flight.
const BATCH_BYTES: usize = 256 << 10;
/// How long a batch may take before another lane gets its turn.
const TURN: Duration = Duration::from_secs(1);

/// Where a record of a batch comes from.
enum Source {
    Memory(Arc<Item>),
    Spool(Bytes),
}

/// How a batch ended.
enum End {
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
struct Sending<S: Sinks> {
    /// The producer's number.
    through: u64,
    /// The delivery's id.
    id: Option<String>,
    reports: Reports<S>,
    handed: Handed,
}

/// Records of a batch that were handed over.
struct Flying<S: Sinks> {
    sequence: u64,
    source: Source,
    delivery: Delivery,
    handed: Sending<S>,
}

impl<S: Sinks> Shared<S> {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn_on(task, &self.runtime));
    }

    /// Hands a part to the producer as it would be read now, to this producer where one is named. `None` where that cannot
    /// be done yet.
    fn send(&self, delivery: &Delivery, positions: &[u16], through: Option<u64>) -> Option<Sending<S>> {
        let ready = self.openings.ready(&delivery.context)?;
        let built = self.sinks.get().filter(|built| through.is_none_or(|number| number == built.number))?;
        let (id, content) = delivery.read_again(positions);
        let records = producer::records(&ready, delivery, content)?;
        let (reports, handed) = self.sinks.send(&built, records)?;
        Some(Sending { through: built.number, id, reports, handed })
    }

    /// Sees a record through that a drain has sent on its way back to direct. Its sender is answered by the spool, or by
    /// Kafka where that is sooner.
    fn watch(self: &Arc<Self>, line: &Arc<Line>, item: Arc<Item>, reports: Reports<S>) {
        let (shared, line) = (Arc::clone(self), Arc::clone(line));
        let mut sent = InFlight { shared, line, item, since: Instant::now(), answer: None };
        self.spawn(async move { sent.reported(reports.await).await });
    }

    pub(super) fn ensure_drain(self: &Arc<Self>, line: &Arc<Line>) {
        if line.lane.wants_drain() {
            self.spawn(run(Arc::clone(self), Arc::clone(line)));
        }
    }
}

/// Drains until the lane is direct again or the intake stops, whatever happens to a drain meanwhile: nobody else would see to
/// a lane to which nothing comes any more.
pub(super) async fn run<S: Sinks>(shared: Arc<Shared<S>>, line: Arc<Line>) {
    let mut backoff = Backoff::new(PUBLISH_BACKOFF, u64::from(line.id.number));
    // What a lane's lock holds is never left half changed.
    while AssertUnwindSafe(drain(&shared, &line)).catch_unwind().await.is_err() {
        let wait = backoff.next_wait(Retry::Later).unwrap_or(PUBLISH_BACKOFF.longest);
        tracing::error!(
            topic = &*line.id.topic,
            ?wait,
            "publishing from the spool has panicked and begins again"
        );
        if shared.stopping.run_until_cancelled(sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// Drains until the lane is direct again or the intake stops. A batch that was sent is seen through: its reports come at the
/// latest when the producer is told to give up.
async fn drain<S: Sinks>(shared: &Arc<Shared<S>>, line: &Arc<Line>) {
    let mut backoff = Backoff::new(PUBLISH_BACKOFF, u64::from(line.id.number));
    // After a failure one entry shows whether it has passed.
    let mut most = BATCH;
    loop {
        let send = |item: &Arc<Item>, through| {
            let handed = shared.send(&item.delivery, &item.positions, through)?;
            Some((handed.through, handed.reports, handed.handed))
        };
        let sent = |item: Arc<Item>, reports| shared.watch(line, item, reports);
        let work = shared.stopping.run_until_cancelled(line.lane.work(send, sent)).await;
        let Some(Some(work)) = work else { return };
        let end = batch(shared, line, work, most).await;
        most = BATCH;
        let wait = match end {
            End::Moved => {
                backoff = Backoff::new(PUBLISH_BACKOFF, u64::from(line.id.number));
                continue;
            }
            End::Idle => {
                shared.stopping.run_until_cancelled(line.lane.changed()).await;
                continue;
            }
            End::Stuck | End::Failed => backoff.next_wait(Retry::Later).unwrap_or(PUBLISH_BACKOFF.longest),
        };
        most = 1;
        shared.sinks.replace_if_over();
        tokio::select! {
            () = shared.openings.changed(), if matches!(end, End::Stuck) => {}
            () = sleep(wait) => {}
            () = shared.stopping.cancelled() => {}
        }
    }
}

async fn batch<S: Sinks>(shared: &Arc<Shared<S>>, line: &Arc<Line>, work: Work<Item>, most: usize) -> End {
    // Never closed.
    let turn = shared.drains.acquire().await;
    let Work { again, after, up_to } = work;
    if again.is_empty() && !shared.memory.has_room_to_drain() {
        return End::Stuck;
    }
    let read = if up_to > after {
        shared.spool.read(&line.id, Some(after), most, BATCH_BYTES).await
    } else {
        Ok(Batch::default())
    };
    let Batch { entries, more } = match read {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(topic = &*line.id.topic, error = %Chain(&error), "the spool cannot be read");
            return End::Failed;
        }
    };
    let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
    let _memory = shared.memory.take(bytes);
    // Beyond what was read nothing may be sent from memory either.
    let end = entries.last().filter(|_| more).map_or(up_to, |last| last.sequence.min(up_to));
    let sources = merge(entries, again, end);
    if sources.is_empty() {
        line.lane.drained(end);
        return if end > after { End::Moved } else { End::Idle };
    }

    let (sent, mut left) = hand_over(shared, line, sources);
    let stuck = !left.is_empty();
    let settled = settle(shared, line, sent);
    pin!(settled);
    let failed = tokio::select! {
        failed = settled.as_mut() => failed,
        () = sleep(TURN) => {
            drop(turn);
            settled.await
        }
    };
    let moved = failed.is_empty();
    left.extend(failed);
    let settled = left.keys().next().map_or(end, |first| first - 1);
    line.lane.drained(settled.min(end));
    match (moved, stuck) {
        (false, _) => End::Failed,
        (true, true) => End::Stuck,
        (true, false) => End::Moved,
    }
}

/// What is to be sent up to `end`. The copy in memory is the same and needs no reading.
fn merge(entries: Vec<Entry>, again: BTreeMap<u64, Arc<Item>>, end: u64) -> BTreeMap<u64, Source> {
    let spooled = entries.into_iter().map(|entry| (entry.sequence, Source::Spool(entry.payload)));
    let memory = again.into_iter().map(|(sequence, item)| (sequence, Source::Memory(item)));
    spooled.chain(memory).filter(|(sequence, _)| *sequence <= end).collect()
}

/// Hands a batch to one producer, in sequence, up to the first that cannot be sent now; that and all others are left.
fn hand_over<S: Sinks>(
    shared: &Arc<Shared<S>>,
    line: &Line,
    sources: BTreeMap<u64, Source>,
) -> (Vec<Flying<S>>, BTreeMap<u64, Source>) {
    let mut sent: Vec<Flying<S>> = Vec::with_capacity(sources.len());
    let mut left = BTreeMap::new();
    let mut sources = sources.into_iter();
    for (sequence, source) in sources.by_ref() {
        let (delivery, positions) = match &source {
            Source::Memory(item) => (item.delivery.clone(), item.positions.clone()),
            Source::Spool(payload) => match Delivery::from_entry(payload.clone()) {
                Ok(found) => found,
                Err(error) => {
                    // It stays where it is, for a version that can read it; the spool tells who has to know.
                    tracing::debug!(sequence, error = %Chain(&error), "an entry of the spool cannot be read");
                    shared.spool.disown(&line.id, sequence);
                    continue;
                }
            },
        };
        let through = sent.first().map(|first| first.handed.through);
        match shared.send(&delivery, &positions, through) {
            Some(handed) => {
                let whole = handed.handed == Handed::Whole;
                sent.push(Flying { sequence, source, delivery, handed });
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
async fn settle<S: Sinks>(
    shared: &Arc<Shared<S>>,
    line: &Line,
    sent: Vec<Flying<S>>,
) -> BTreeMap<u64, Source> {
    let mut failed = BTreeMap::new();
    for Flying { sequence, source, delivery, handed } in sent {
        let landed = match handed.reports.await {
            Report::Landed => {
                shared.landed(line, &delivery);
                true
            }
            Report::Refused(error) => shared.bury(&delivery, &error).await,
            Report::Again(error) => {
                shared.doubt(&delivery, topic_of(&line.id), &error);
                false
            }
        };
        if landed {
            failpoint::reach("spool.drained");
        }
        match (landed, source) {
            (true, Source::Memory(item)) => {
                shared.published(line, &item);
                line.lane.settled(sequence);
            }
            (true, Source::Spool(_)) => {
                shared.spool.remove(&line.id, sequence);
                if let Some(id) = handed.id {
                    shared.seen.remember(&delivery.context.connector, &id, &delivery.body);
                }
            }
            (false, source) => {
                failed.insert(sequence, source);
            }
        }
    }
    failed
}
