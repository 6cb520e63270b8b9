//! Reads assigned partitions, committed records only; [`read_range`] can also read uncommitted ones, to decide about their
//! transactions.
//!
//! One thread per consumer ([`poll`]) polls librdkafka and sends records in order through a channel bounded in records and
//! bytes; [`Consumer::next`] receives them. When the channel is full the thread stops polling, librdkafka's bounded prefetch
//! fills up, and fetching stops.
//!
//! - There is no consumer group: partitions are assigned by the caller, and offsets are stored with the records they belong
//!   to.
//! - Records of open or aborted transactions are never returned.
//! - [`ConsumerEvent::End`] means that everything readable at some moment after the assignment has been returned. Records
//!   committed behind an open transaction are not readable; [`read_to_end`] waits for them. Do not wait for "the last
//!   offset": transaction markers and compaction leave holes, so no record may ever have it.
//! - An offset that the broker no longer has is [`Error::OffsetOutOfRange`], never a silent jump; that partition then stops.
//!   A damaged batch stops its partition too.
//!
//! On failure: lost brokers only delay; permanent errors (no such topic, no permission) are returned by [`Consumer::next`],
//! which may be called again.

mod client_pool;
mod end_offsets;
mod poll;
mod query;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

pub(super) use client_pool::ask;
pub use end_offsets::offsets_since;
pub(super) use query::{find_topic, find_topics};

use crate::{
    Error, Kafka,
    client::{blocking, start_thread},
    role::{ClientRole, Isolation},
};

/// Limits of a consumer.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// Records that may be buffered (default 1024, at least 1).
    pub buffer_records: usize,
    /// Bytes of records that may be buffered (default 16 MiB). A larger record still passes, alone.
    pub buffer_bytes: usize,
    /// Bytes librdkafka may fetch ahead, over all partitions (default 16 MiB).
    pub prefetch_bytes: usize,
    /// How long the broker waits for records before it returns an empty fetch (default 10 ms). The end of a partition is
    /// reported one such wait after its last record. An idle reader fetches again after each wait, so the default suits readers
    /// that stop at the end; others use [`ConsumerOptions::FOLLOW_WAIT`] or [`ConsumerOptions::RESUME_WAIT`].
    pub fetch_wait: Duration,
    /// Time limit for finding the topics (default 30 s).
    pub connect_limit: Duration,
}

impl ConsumerOptions {
    /// For readers that follow a topic. New records arrive at once; only the ends of partitions are reported later.
    pub const FOLLOW_WAIT: Duration = Duration::from_millis(500);
    /// For readers that pause partitions: a resumed partition waits at most this long for its next record.
    pub const RESUME_WAIT: Duration = Duration::from_millis(250);
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            buffer_records: 1024,
            buffer_bytes: 16 << 20,
            prefetch_bytes: 16 << 20,
            fetch_wait: Duration::from_millis(10),
            connect_limit: Duration::from_secs(30),
        }
    }
}

/// Where reading a partition starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartOffset {
    /// At the first record the broker has.
    Earliest,
    /// At this offset, which the broker must have.
    Offset(i64),
    /// After the last record.
    End,
}

/// A partition to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// First offset.
    pub start: StartOffset,
}

impl Assignment {
    fn topic_partition(&self) -> TopicPartition {
        (Arc::clone(&self.topic), self.partition)
    }
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerRecord {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Key, if it has one.
    pub key: Option<Bytes>,
    /// Value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers in order; one without a value has an empty value here.
    pub headers: Vec<(String, Bytes)>,
    /// Milliseconds since 1970, if it has one.
    pub timestamp_ms: Option<i64>,
}

impl ConsumerRecord {
    /// Bytes in memory.
    fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + headers
    }
}

/// What a consumer returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerEvent {
    /// A record.
    Record(ConsumerRecord),
    /// The end of a partition was reached; repeated each time it is reached again.
    End {
        /// Topic.
        topic: Arc<str>,
        /// Partition.
        partition: i32,
    },
}

/// See the module's head. Its thread ends soon after it is dropped; [`Consumer::stop`] waits for that.
pub struct Consumer {
    events: mpsc::Receiver<Result<ConsumerEvent, Error>>,
    shared: Arc<BufferState>,
    paused: Paused,
    poller: thread::Thread,
    client: Weak<query::ConsumerClient>,
    ended: oneshot::Receiver<()>,
}

impl Consumer {
    /// Connects, finds the topics and starts to read. Each partition may be named once.
    pub async fn assign(
        kafka: &Kafka,
        assignments: Vec<Assignment>,
        options: &ConsumerOptions,
    ) -> Result<Self, Error> {
        Self::open(kafka, assignments, options, Isolation::ReadCommitted, Ends::new()).await
    }

    /// The next record or end, in order within each partition. Cancel safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Result<ConsumerEvent, Error> {
        let Some(event) = self.events.recv().await else {
            return Err(Error::Stopped { action: "read from Kafka".into() });
        };
        if let Ok(ConsumerEvent::Record(record)) = &event {
            self.shared.bytes.fetch_sub(record.size(), Ordering::AcqRel);
        }
        // Only a thread that found the buffer full needs to be woken.
        if self.shared.stalled.swap(false, Ordering::AcqRel) {
            self.poller.unpark();
        }
        event
    }

    /// Stops returning records of a partition until it is resumed, except those already buffered. `false` if the partition is
    /// not assigned.
    pub fn pause(&self, topic: &str, partition: i32) -> bool {
        self.set_paused(topic, partition, true)
    }

    /// Resumes a partition where it was paused, without reading anything twice.
    pub fn resume(&self, topic: &str, partition: i32) -> bool {
        self.set_paused(topic, partition, false)
    }

    /// Checks that the leader of a partition answers, over the connections used for reading. At the end of its partitions a
    /// consumer receives nothing until something is written; this distinguishes that from a lost broker.
    pub fn ping(
        &self,
        topic: &str,
        partition: i32,
        limit: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (client, topic) = (Weak::clone(&self.client), topic.to_owned());
        async move {
            let action = format!("ask for the offsets of {topic} partition {partition}");
            let stopped = Error::Stopped { action: action.clone() };
            let ask = move || {
                let client = client.upgrade().ok_or(stopped)?;
                end_offsets::ask_leader(&client, &topic, partition, limit)
            };
            blocking(&action, ask).await?
        }
    }

    /// Stops reading and waits until the client is closed.
    pub async fn stop(mut self) {
        self.events.close();
        self.poller.unpark();
        // An error means that the thread has already ended.
        (&mut self.ended).await.ok();
    }

    async fn open(
        kafka: &Kafka,
        assignments: Vec<Assignment>,
        options: &ConsumerOptions,
        isolation: Isolation,
        ends: Ends,
    ) -> Result<Self, Error> {
        let (sender, events) = mpsc::channel(options.buffer_records.max(1));
        let shared = Arc::new(BufferState { limit: options.buffer_bytes, ..BufferState::default() });
        let paused: Paused =
            assignments.iter().map(|assignment| (assignment.topic_partition(), Arc::default())).collect();
        let (end, ended) = oneshot::channel();
        let args = poll::ReaderArgs {
            kafka: kafka.clone(),
            options: options.clone(),
            assignments,
            paused: paused.clone(),
            isolation,
            ends,
            events: sender,
            shared: Arc::clone(&shared),
        };
        let run = move |opened| {
            poll::run(args, opened);
            // The receiver may have been dropped.
            end.send(()).ok();
        };
        let poll::RunningReader { poller, client } =
            start_thread("kafka-consumer", "start to read from Kafka", run).await??;
        Ok(Self { events, shared, paused, poller, client, ended })
    }

    fn set_paused(&self, topic: &str, partition: i32, paused: bool) -> bool {
        let Some(known) = self.paused.get(&(topic.into(), partition)) else { return false };
        known.store(paused, Ordering::Release);
        self.poller.unpark();
        true
    }
}

opaque_debug!(Consumer);

impl Drop for Consumer {
    fn drop(&mut self) {
        // The thread sees the closed channel and closes the client, which blocks.
        self.events.close();
        self.poller.unpark();
    }
}

/// Reads partitions of a topic from the start to the current end, passes each record to `each`, and returns the offset up
/// to which each partition was read. Meant for compacted topics, whose content is the last record of each key.
///
/// Reads everything committed before the call. An open transaction hides what other writers committed behind it, so this
/// waits until the transactions that were open at the call have ended: for a dead writer at most its
/// `transaction.timeout.ms`, unless its successor ends them first.
pub async fn read_to_end(
    kafka: &Kafka,
    topic: &str,
    partitions: &[i32],
    limit: Duration,
    each: impl FnMut(ConsumerRecord),
) -> Result<BTreeMap<i32, i64>, Error> {
    let starts = partitions.iter().map(|partition| (*partition, StartOffset::Earliest)).collect();
    read_to_end_from(kafka, topic, &starts, &ReadLimits::up_to(limit), each).await
}

/// A partition of a topic.
pub type TopicPartition = (Arc<str>, i32);

/// What a read to the end waits for, and how long.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits<'a> {
    /// Partitions that are not read but whose open transactions must have ended too.
    pub other_partitions: &'a [TopicPartition],
    /// How long to wait for open transactions once Kafka answers; then they are returned as [`Error::Undecided`].
    pub transaction_wait: Duration,
    /// Time limit of the whole read.
    pub limit: Duration,
}

impl ReadLimits<'_> {
    /// Waits only for the partitions that are read, as long as the limit allows.
    #[must_use]
    pub fn up_to(limit: Duration) -> Self {
        Self { other_partitions: &[], transaction_wait: limit, limit }
    }
}

/// As [`read_to_end`], with a start offset per partition and explicit limits.
pub async fn read_to_end_from(
    kafka: &Kafka,
    topic: &str,
    starts: &BTreeMap<i32, StartOffset>,
    limits: &ReadLimits<'_>,
    each: impl FnMut(ConsumerRecord),
) -> Result<BTreeMap<i32, i64>, Error> {
    ReadToEnd::begin(kafka, topic, starts, limits).await?.drain(each).await
}

/// [`read_to_end_from`] record by record, for callers that need time between records: the buffer is bounded, and fetching
/// stops while it is full.
pub struct ReadToEnd {
    /// `None` if there is nothing to read.
    consumer: Option<Consumer>,
    /// Partitions whose end has not been reached.
    open: BTreeSet<TopicPartition>,
    positions: BTreeMap<i32, i64>,
    end: Instant,
    /// The error returned when the time limit passes.
    late: Error,
}

impl ReadToEnd {
    /// Finds the ends, which may wait for open transactions, and starts to read.
    ///
    /// # Errors
    /// A partition does not exist or cannot be read now, or a transaction stays open.
    pub async fn begin(
        kafka: &Kafka,
        topic: &str,
        starts: &BTreeMap<i32, StartOffset>,
        limits: &ReadLimits<'_>,
    ) -> Result<Self, Error> {
        let partitions: BTreeSet<i32> = starts.keys().copied().collect();
        let action = format!("read {topic} partitions {partitions:?} to the end");
        let topic: Arc<str> = topic.into();
        let starts = starts.iter().map(|(partition, start)| ((Arc::clone(&topic), *partition), *start));
        let starts: BTreeMap<TopicPartition, StartOffset> = starts.collect();
        let ends = decided_ends(kafka, starts.keys().cloned().collect(), limits);
        Self::open(kafka, starts, Isolation::ReadCommitted, ends, action, limits.limit).await
    }

    async fn open(
        kafka: &Kafka,
        starts: BTreeMap<TopicPartition, StartOffset>,
        isolation: Isolation,
        ends: impl Future<Output = Result<Ends, Error>>,
        action: String,
        limit: Duration,
    ) -> Result<Self, Error> {
        let end = Instant::now() + limit;
        let late = Error::Deadline { action, limit };
        let ends = timeout_at(end, ends).await.unwrap_or_else(|_| Err(late.clone()))?;
        // The end reported before the first fetch: all records below it arrive before the end event.
        let positions = starts.keys().filter_map(|place| Some((place.1, ends.get(place)?.1))).collect();
        let has_records = |(place, start): &(TopicPartition, StartOffset)| match (start, ends.get(place)) {
            (StartOffset::Earliest, Some((first, next))) => first < next,
            (StartOffset::Offset(offset), Some((_, next))) => offset != next,
            (StartOffset::End, Some(_)) => false,
            (_, None) => true,
        };
        let starts: Vec<(TopicPartition, StartOffset)> = starts.into_iter().filter(has_records).collect();
        let open: BTreeSet<TopicPartition> = starts.iter().map(|(place, _)| place.clone()).collect();
        let assignment = |((topic, partition), start)| Assignment { topic, partition, start };
        let assignments: Vec<Assignment> = starts.into_iter().map(assignment).collect();
        let consumer = if assignments.is_empty() {
            None
        } else {
            let connect_limit = end.saturating_duration_since(Instant::now());
            let options = ConsumerOptions { connect_limit, ..ConsumerOptions::default() };
            let opened = timeout_at(end, Consumer::open(kafka, assignments, &options, isolation, ends)).await;
            Some(opened.unwrap_or_else(|_| Err(late.clone()))?)
        };
        Ok(Self { consumer, open, positions, end, late })
    }

    /// The next record; `None` after the last. Cancel safe: a dropped call loses nothing.
    ///
    /// # Errors
    /// The offset is not in the log, its batch cannot be read, or the time limit has passed.
    pub async fn next(&mut self) -> Result<Option<ConsumerRecord>, Error> {
        let Some(consumer) = &mut self.consumer else { return Ok(None) };
        while !self.open.is_empty() {
            let event = timeout_at(self.end, consumer.next()).await;
            match event.unwrap_or_else(|_| Err(self.late.clone()))? {
                ConsumerEvent::End { topic, partition } => drop(self.open.remove(&(topic, partition))),
                ConsumerEvent::Record(record) => {
                    let position = self.positions.entry(record.partition).or_default();
                    *position = (*position).max(record.offset + 1);
                    return Ok(Some(record));
                }
            }
        }
        Ok(None)
    }

    /// Passes the remaining records to `each`; returns how far each partition was read.
    async fn drain(mut self, mut each: impl FnMut(ConsumerRecord)) -> Result<BTreeMap<i32, i64>, Error> {
        while let Some(record) = self.next().await? {
            each(record);
        }
        Ok(self.positions)
    }

    /// How far each partition has been read, once `next` has returned `None`; before that, how far it will be read at least.
    #[must_use]
    pub fn positions(&self) -> &BTreeMap<i32, i64> {
        &self.positions
    }
}

opaque_debug!(ReadToEnd);

/// The first offset of each partition of a topic, and the offset after its last committed record.
pub async fn watermarks(
    kafka: &Kafka,
    topic: &str,
    partitions: &[i32],
    limit: Duration,
) -> Result<BTreeMap<i32, (i64, i64)>, Error> {
    let topic: Arc<str> = topic.into();
    let places: Vec<TopicPartition> =
        partitions.iter().map(|partition| (Arc::clone(&topic), *partition)).collect();
    let found = watermarks_of(kafka, &places, limit).await?;
    Ok(found.into_iter().map(|((_, partition), watermarks)| (partition, watermarks)).collect())
}

/// As [`watermarks`], for partitions of any topics.
pub async fn watermarks_of(
    kafka: &Kafka,
    places: &[TopicPartition],
    limit: Duration,
) -> Result<BTreeMap<TopicPartition, (i64, i64)>, Error> {
    ends(kafka, places, Isolation::ReadCommitted, limit).await
}

/// The first offset of each partition, and the offset after its last visible record.
pub(super) async fn ends(
    kafka: &Kafka,
    places: &[TopicPartition],
    isolation: Isolation,
    limit: Duration,
) -> Result<Ends, Error> {
    if places.is_empty() {
        return Ok(Ends::new());
    }
    let (kafka, places) = (kafka.clone(), places.to_vec());
    blocking("ask for the ends of partitions", move || end_offsets::ends(&kafka, &places, isolation, limit))
        .await?
}

/// Where these partitions end once every transaction before their ends, and before those of the other partitions, has
/// ended.
async fn decided_ends(
    kafka: &Kafka,
    mut places: Vec<TopicPartition>,
    limits: &ReadLimits<'_>,
) -> Result<Ends, Error> {
    places.extend_from_slice(limits.other_partitions);
    if places.is_empty() {
        return Ok(Ends::new());
    }
    let (kafka, transaction_wait, limit) = (kafka.clone(), limits.transaction_wait, limits.limit);
    let dropped = CancellationToken::new();
    let _guard = dropped.clone().drop_guard();
    let ask = move || {
        end_offsets::decided_ends(&kafka, &places, transaction_wait, limit, || dropped.is_cancelled())
    };
    blocking("ask for the ends of partitions", ask).await?
}

/// Whether Kafka knows this partition, with or without a leader.
pub(super) async fn exists(kafka: &Kafka, place: &TopicPartition, limit: Duration) -> Result<bool, Error> {
    let (kafka, (topic, partition)) = (kafka.clone(), place.clone());
    let ask = move || {
        client_pool::ask(&kafka, &ClientRole::Query(Isolation::ReadCommitted), |client| {
            match find_topic(client, &topic, limit) {
                Ok(found) => Ok(found.partitions.contains(&partition)),
                Err(error) if error.lacks_topic() => Ok(false),
                Err(error) => Err(error),
            }
        })
    };
    blocking("ask for a partition", ask).await?
}

/// Reads the visible records of partitions from these offsets to their current ends.
pub(super) async fn read_range(
    kafka: &Kafka,
    starts: BTreeMap<TopicPartition, i64>,
    isolation: Isolation,
    limit: Duration,
    each: impl FnMut(ConsumerRecord),
) -> Result<(), Error> {
    let places: Vec<TopicPartition> = starts.keys().cloned().collect();
    let deadline = Instant::now() + limit;
    let ends = ends(kafka, &places, isolation, limit).await?;
    // Behind the first open transaction nothing is visible, and no end would ever be reported.
    let has_visible = |(place, start): &(TopicPartition, i64)| {
        isolation == Isolation::ReadUncommitted || ends.get(place).is_none_or(|(_, end)| start < end)
    };
    let starts = starts.into_iter().filter(has_visible);
    let starts = starts.map(|(place, offset)| (place, StartOffset::Offset(offset))).collect();
    let ends = std::future::ready(Ok(ends));
    let action = "read partitions to their current ends".to_owned();
    let limit = deadline.saturating_duration_since(Instant::now());
    ReadToEnd::open(kafka, starts, isolation, ends, action, limit).await?.drain(each).await.map(drop)
}

/// First and end offset by partition.
type Ends = BTreeMap<TopicPartition, (i64, i64)>;

/// The partitions that are read, each with its pause flag.
type Paused = BTreeMap<TopicPartition, Arc<AtomicBool>>;

/// Fill level of the buffer between thread and caller.
#[derive(Debug, Default)]
struct BufferState {
    /// Bytes that are buffered.
    bytes: AtomicUsize,
    /// Bytes that may be buffered.
    limit: usize,
    /// The thread found the buffer full and waits for space.
    stalled: AtomicBool,
}

#[cfg(test)]
mod tests;
