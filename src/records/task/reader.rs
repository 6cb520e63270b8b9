//! Reads the event topics of all shards of a task with one consumer, and hands each event to its shard.
//!
//! - Events of a partition are passed on in offset order. While the inbox of a shard is nearly full, its partitions are paused.
//! - If the broker no longer has the next offset, the shard gets a gap instead, and reading continues at the first offset there is.
//!
//! On failure: while the schema registry is unavailable, the reader waits with the event in hand, so that order holds. An event that
//! cannot be decoded goes to its shard, which writes a dead letter.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, BackoffPolicy, ErrorChain};
use kafka::{Assignment, Consumer, ConsumerOptions, ConsumerRecord, StartOffset};
use model::{AccountingEvent, AccountingResource, GapCause, Origin, SchemaKind, Topic};

use super::{Shared, now, shard::Shard};
use crate::{
    plugin::Failure,
    publish::Original,
    records::schedule::{Event, GapFound, ReadRequest, Source},
};

/// Events in the inbox of a shard.
const INBOX: usize = 512;
/// Free places in an inbox below which its partitions are paused: events that were fetched before the pause still arrive.
const RESERVE: usize = FETCHED + 44;
/// Events that the consumer buffers.
const FETCHED: usize = 256;
/// Backoff while the schema registry is unavailable.
const REGISTRY: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(200), longest: Duration::from_secs(10), total: None };
/// How often paused shards are checked for free places.
const LOOK: Duration = Duration::from_millis(20);

/// What the reader hands to a shard: an event, or what replaces lost ones.
#[derive(Debug)]
pub(super) struct Input {
    /// The resource of its event topic.
    pub(super) resource: AccountingResource,
    /// The next offset: the one after the event.
    pub(super) next: i64,
    pub(super) request: ReadRequest,
    pub(super) event: Event,
}

/// For each shard: when Kafka received the event that the reader is decoding. Its shard does not know it yet, but it counts toward
/// the lag of the shard, because decoding may wait for the schema registry.
#[derive(Debug)]
pub(super) struct InHand(BTreeMap<i32, AtomicI64>);

impl InHand {
    /// No event. Later than every timestamp.
    const NOTHING: i64 = i64::MAX;

    pub(super) fn of(shards: &[i32]) -> Self {
        Self(shards.iter().map(|shard| (*shard, AtomicI64::new(Self::NOTHING))).collect())
    }

    /// When Kafka received the event of a shard, in microseconds since 1970.
    pub(super) fn of_shard(&self, shard: i32) -> Option<i64> {
        let came_at = self.0.get(&shard)?.load(Ordering::Relaxed);
        (came_at != Self::NOTHING).then_some(came_at)
    }

    fn take(&self, shard: i32, came_at: i64) {
        if let Some(place) = self.0.get(&shard) {
            place.store(came_at, Ordering::Relaxed);
        }
    }

    fn hand_on(&self, shard: i32) {
        self.take(shard, Self::NOTHING);
    }
}

/// A partition of an event topic: its resource and shard.
type EventPartition = (AccountingResource, i32);

/// Reads the event topics of all shards of a task.
pub(super) struct Reader {
    shared: Arc<Shared>,
    inboxes: BTreeMap<i32, mpsc::Sender<Input>>,
    /// Next offset of each partition.
    positions: BTreeMap<EventPartition, StartOffset>,
    topics: BTreeMap<Arc<str>, AccountingResource>,
    /// Shards whose partitions are paused.
    paused: Vec<i32>,
}

impl Reader {
    /// A reader for these shards, and the inbox of each.
    pub(super) fn new(shared: Arc<Shared>, shards: &[Shard]) -> (Self, Vec<mpsc::Receiver<Input>>) {
        let mut heard = Vec::new();
        let (mut inboxes, mut positions) = (BTreeMap::new(), BTreeMap::new());
        for shard in shards {
            let (sender, receiver) = mpsc::channel(INBOX);
            inboxes.insert(shard.number(), sender);
            heard.push(receiver);
            positions
                .extend(shard.starts().iter().map(|(resource, start)| ((*resource, shard.number()), *start)));
        }
        let topic = |resource| shared.output.preparer.topic_name(Topic::AccountingEvents(resource));
        let resources = &shared.source.enrich_resources;
        let topics = resources.iter().map(|resource| (topic(*resource), *resource)).collect();
        (Self { shared, inboxes, positions, topics, paused: Vec::new() }, heard)
    }

    /// Reads until it is cancelled.
    ///
    /// # Errors
    /// Kafka refuses the read, or a shard has ended.
    pub(super) async fn run(mut self, cancel: CancellationToken) -> Result<(), Failure> {
        if self.positions.is_empty() {
            cancel.cancelled().await;
            return Ok(());
        }
        cancel.run_until_cancelled(self.read()).await.unwrap_or(Ok(()))
    }

    async fn read(&mut self) -> Result<(), Failure> {
        loop {
            let mut consumer = self.consumer().await?;
            // Created outside the loop: a timer that restarts with every record would not fire without a pause between records.
            let mut look = interval(LOOK);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let error = loop {
                let next = tokio::select! {
                    next = consumer.next() => next,
                    _ = look.tick(), if !self.paused.is_empty() => {
                        self.resume(&consumer);
                        continue;
                    }
                };
                match next {
                    Ok(kafka::ConsumerEvent::Record(record)) => self.hand_over(record, &consumer).await?,
                    Ok(kafka::ConsumerEvent::End { .. }) => {}
                    Err(error) => break error,
                }
            };
            consumer.stop().await;
            self.paused.clear();
            match error {
                kafka::Error::OffsetOutOfRange { ref topic, partition, offset, .. } => {
                    self.lost(topic, partition, offset).await?;
                }
                error => return Err(Failure::kafka("read events", error)),
            }
        }
    }

    async fn consumer(&self) -> Result<Consumer, Failure> {
        let assignment = |((resource, shard), start): (&EventPartition, &StartOffset)| Assignment {
            topic: self.shared.output.preparer.topic_name(Topic::AccountingEvents(*resource)),
            partition: *shard,
            start: *start,
        };
        let assignments = self.positions.iter().map(assignment).collect();
        let options = ConsumerOptions {
            buffer_records: FETCHED,
            fetch_wait: ConsumerOptions::RESUME_WAIT,
            ..ConsumerOptions::default()
        };
        let assigned = Consumer::assign(&self.shared.task.tools.kafka, assignments, &options).await;
        assigned.map_err(|error| Failure::kafka("read events", error))
    }

    async fn hand_over(&mut self, record: ConsumerRecord, consumer: &Consumer) -> Result<(), Failure> {
        let Some(&resource) = self.topics.get(&record.topic) else { return Ok(()) };
        let (shard, next) = (record.partition, record.offset + 1);
        self.positions.insert((resource, shard), StartOffset::Offset(next));
        let came_at = record.timestamp_ms.map_or_else(now, |millis| millis.saturating_mul(1_000));
        self.shared.events.in_hand.take(shard, came_at);
        let decoded = self.decode(&record).await;
        let event = Arc::new(source(record, &decoded));
        let request = match decoded {
            Ok(event) => self.placed(ReadRequest::of(event), shard),
            Err(message) => ReadRequest::Unusable("avro::Error", message),
        };
        self.send(shard, Input { resource, next, request, event }).await?;
        self.shared.events.in_hand.hand_on(shard);
        let is_low = self.inboxes.get(&shard).is_some_and(|inbox| inbox.capacity() < RESERVE);
        if is_low && !self.paused.contains(&shard) {
            for topic in self.topics.keys() {
                consumer.pause(topic, shard);
            }
            self.paused.push(shard);
        }
        Ok(())
    }

    /// Rejects an event in another partition than that of its company: two shards would write the same key.
    fn placed(&self, request: ReadRequest, shard: i32) -> ReadRequest {
        let ReadRequest::Wanted(wanted) = &request else { return request };
        let own = self.shared.shard_of(&wanted.subject.key());
        if own == shard {
            return request;
        }
        let what =
            format!("the event is in partition {shard}, and events of its company belong in partition {own}");
        ReadRequest::Unusable("enrich::Misplaced", what)
    }

    async fn send(&self, shard: i32, input: Input) -> Result<(), Failure> {
        let Some(inbox) = self.inboxes.get(&shard) else { return Ok(()) };
        // The shard reports its own failure.
        inbox.send(input).await.map_err(|_| Failure::retryable("Ended", format!("shard {shard} has ended")))
    }

    fn resume(&mut self, consumer: &Consumer) {
        let (inboxes, topics) = (&self.inboxes, &self.topics);
        self.paused.retain(|shard| {
            let has_room = inboxes.get(shard).is_none_or(|inbox| inbox.capacity() > INBOX - 64);
            if has_room {
                for topic in topics.keys() {
                    consumer.resume(topic, *shard);
                }
            }
            !has_room
        });
    }

    /// Decodes an event; an error says why it is unusable.
    async fn decode(&self, record: &ConsumerRecord) -> Result<AccountingEvent, String> {
        let Some(value) = &record.value else { return Err("the event has no value".to_owned()) };
        let mut backoff = Backoff::new(REGISTRY, record.offset.unsigned_abs());
        loop {
            let decoded = self.shared.events.decoder.decode_as(SchemaKind::AccountingEvent, value).await;
            let error = match decoded {
                Ok((_, event)) => return Ok(event),
                Err(error) => error,
            };
            match backoff.next_wait(error.retry()) {
                Some(wait) => {
                    tracing::warn!(error = %ErrorChain(&error), ?wait, "events wait for their schema");
                    sleep(wait).await;
                }
                None => return Err(ErrorChain(&error).to_string()),
            }
        }
    }

    /// Handles an offset that the topic no longer has: passes a gap to the shard, and moves to the first offset there is.
    async fn lost(&mut self, topic: &Arc<str>, partition: i32, offset: i64) -> Result<(), Failure> {
        let Some(&resource) = self.topics.get(topic) else { return Ok(()) };
        let kafka = &self.shared.task.tools.kafka;
        let limit = Duration::from_secs(30);
        let marks = kafka::watermarks(kafka, topic, &[partition], limit).await;
        let marks = marks.map_err(|error| Failure::kafka("find where events begin", error))?;
        let (low, high) = marks.get(&partition).copied().unwrap_or((0, 0));
        if (low..=high).contains(&offset) {
            // The topic has the offset after all, for example after a change of leaders.
            return Ok(());
        }
        let next = low;
        tracing::error!(%topic, partition, offset, low, high, "events were removed from their topic before they were read; opening a gap");
        let gap = GapFound {
            cause: GapCause::Retention,
            resource,
            company: None,
            from: 0,
            detail: format!(
                "{topic} partition {partition}: offset {offset} was to be read, but the partition has {low} to {high}"
            ),
        };
        let original =
            Original { place: Some((topic.to_string(), partition, offset)), ..Original::default() };
        let origin = Origin::Enrichment;
        let at = now();
        let source =
            Source { original, id: String::new(), trace: None, received_at: at, happened_at: at, origin };
        self.positions.insert((resource, partition), StartOffset::Offset(next));
        let (request, event) = (ReadRequest::Lost(gap), Arc::new(source));
        self.send(partition, Input { resource, next, request, event }).await
    }
}

/// The parts of a record that the shard keeps.
fn source(record: ConsumerRecord, event: &Result<AccountingEvent, String>) -> Source {
    let header = |name: &str| {
        let found = record.headers.iter().find(|(known, _)| known == name);
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    };
    let place = (record.topic.to_string(), record.partition, record.offset);
    let id = header("tributary.id").map(str::to_owned);
    let id = id.unwrap_or_else(|| format!("{}/{}/{}", place.0, place.1, place.2));
    let trace = header("traceparent").and_then(|trace| trace.parse().ok());
    let (received_at, happened_at) = match event {
        Ok(event) => (event.received_at, event.happened_at()),
        Err(_) => {
            let at = record.timestamp_ms.unwrap_or_default().saturating_mul(1_000);
            (at, at)
        }
    };
    let original = Original {
        key: record.key.clone().unwrap_or_default(),
        value: record.value.clone().unwrap_or_default(),
        place: Some(place),
    };
    Source { original, id, trace, received_at, happened_at, origin: Origin::Enrichment }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_in_hand_is_known_until_its_shard_has_it() {
        let in_hand = InHand::of(&[0, 3]);
        assert_eq!(in_hand.of_shard(3), None);

        in_hand.take(3, 5);
        in_hand.take(7, 5);
        assert_eq!([0, 3, 7].map(|shard| in_hand.of_shard(shard)), [None, Some(5), None]);

        in_hand.hand_on(3);
        assert_eq!(in_hand.of_shard(3), None);
    }
}
