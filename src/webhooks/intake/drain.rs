//! Publishes what a lane has in memory and in the spool, in sequence, until nothing is left.
//!
//! One drain per lane, a few at a time. A batch is read, sent and awaited as a whole; only then is the next one read, so a
//! failure leaves nothing behind it in flight. What is published is removed from the spool, what failed is still there.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tokio::time::sleep;

use super::{
    AGAIN, Item, Line, Sent, Shared,
    lane::Work,
    sinks::{Report, Sinks},
};
use crate::{
    retry::{Backoff, Chain, Retry},
    spool::Batch,
    webhooks::delivery::Delivery,
};

/// Entries of one batch.
const BATCH: usize = 512;
/// Bytes of one batch, unless one entry alone is larger.
const BATCH_BYTES: usize = 1 << 20;

/// Where a record of a batch comes from.
enum Source {
    Memory(Arc<Item>),
    Spool(Bytes),
}

/// How a batch ended.
enum End {
    /// Something was published, or found not to be there.
    Moved,
    /// Nothing can be done now; something has to change first.
    Stuck,
    /// Kafka did not take it.
    Failed,
}

/// Drains until the lane is direct again or the intake stops.
pub(super) async fn run<S: Sinks>(shared: Arc<Shared<S>>, line: Arc<Line>) {
    let stopping = shared.stopping.clone();
    stopping.run_until_cancelled(drain(&shared, &line)).await;
}

async fn drain<S: Sinks>(shared: &Arc<Shared<S>>, line: &Arc<Line>) {
    let mut backoff = Backoff::new(AGAIN, u64::from(line.id.number));
    loop {
        let send = |item: &Arc<Item>| shared.send(&item.delivery, &item.positions);
        let sent = |item: Arc<Item>, sent| shared.watch(line, item, sent);
        let Some(work) = line.lane.work(send, sent).await else { return };
        // Never closed.
        let permit = shared.drains.acquire().await;
        let end = batch(shared, line, work).await;
        drop(permit);
        match end {
            End::Moved => backoff = Backoff::new(AGAIN, u64::from(line.id.number)),
            End::Stuck => {
                let wait = backoff.next_wait(Retry::Later).unwrap_or(AGAIN.longest);
                tokio::select! {
                    () = line.lane.changed() => {}
                    () = shared.openings.changed() => {}
                    () = sleep(wait) => {}
                }
            }
            End::Failed => {
                shared.sinks.replace_if_over();
                sleep(backoff.next_wait(Retry::Later).unwrap_or(AGAIN.longest)).await;
            }
        }
    }
}

async fn batch<S: Sinks>(shared: &Arc<Shared<S>>, line: &Arc<Line>, work: Work<Item>) -> End {
    let Work { again, after, up_to } = work;
    let read = if up_to > after {
        shared.spool.read(&line.id, Some(after), BATCH, BATCH_BYTES).await
    } else {
        Ok(Batch::default())
    };
    let Batch { entries, more } = match read {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(topic = &*line.id.topic, error = %Chain(&error), "the spool cannot be read");
            line.lane.give_back(again);
            return End::Failed;
        }
    };
    // Beyond what was read nothing may be sent from memory either.
    let end = entries.last().filter(|_| more).map_or(up_to, |last| last.sequence.min(up_to));
    let mut batch: BTreeMap<u64, Source> = BTreeMap::new();
    batch.extend(
        entries
            .into_iter()
            .filter(|entry| entry.sequence <= end)
            .map(|entry| (entry.sequence, Source::Spool(entry.payload))),
    );
    // The copy in memory is the same and needs no reading.
    batch.extend(again.into_iter().map(|(sequence, item)| (sequence, Source::Memory(item))));
    if batch.is_empty() {
        line.lane.drained(end);
        return if end > after { End::Moved } else { End::Stuck };
    }

    let mut sent = Vec::with_capacity(batch.len());
    let mut left = BTreeMap::new();
    let mut batch = batch.into_iter();
    for (sequence, source) in batch.by_ref() {
        let delivery = match &source {
            Source::Memory(item) => Some((item.delivery.clone(), item.positions.clone())),
            Source::Spool(payload) => match Delivery::from_entry(payload.clone()) {
                Ok(found) => Some(found),
                Err(error) => {
                    // It stays where it is, for a version that can read it.
                    tracing::error!(sequence, error = %Chain(&error), "an entry of the spool cannot be read");
                    None
                }
            },
        };
        let Some((delivery, positions)) = delivery else { continue };
        match shared.send(&delivery, &positions) {
            Some(reports) => sent.push((sequence, source, delivery, reports)),
            None => {
                left.insert(sequence, source);
                break;
            }
        }
    }
    left.extend(batch);
    let mut failed = None;
    for (sequence, source, delivery, reports) in sent {
        let landed = match reports {
            Sent::Flying(reports) => match reports.all().await {
                Report::Landed => true,
                Report::Refused(error) => shared.try_bury(&delivery, &error).await,
                Report::Again(error) => {
                    tracing::warn!(topic = &*line.id.topic, error = %Chain(&error), "the spool cannot be published");
                    false
                }
            },
            Sent::Refused(error) => shared.try_bury(&delivery, &error).await,
        };
        match (landed, source) {
            (true, Source::Memory(item)) => shared.published(line, &item),
            (true, Source::Spool(_)) => shared.spool.remove(&line.id, sequence),
            (false, source) => {
                failed = failed.or(Some(sequence));
                left.insert(sequence, source);
            }
        }
    }
    let settled = left.keys().next().map_or(end, |first| first - 1);
    line.lane.drained(settled.min(end));
    let stuck = failed.is_none() && !left.is_empty();
    let again = left.into_iter().filter_map(|(sequence, source)| match source {
        Source::Memory(item) => Some((sequence, item)),
        Source::Spool(_) => None,
    });
    line.lane.give_back(again.collect());
    match (failed, stuck) {
        (Some(_), _) => End::Failed,
        (None, true) => End::Stuck,
        (None, false) => End::Moved,
    }
}
