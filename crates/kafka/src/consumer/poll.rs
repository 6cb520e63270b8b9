//! The thread that polls librdkafka for one consumer.
//!
//! Every partition has its own queue, split off before the assignment, because rdkafka's wrapper reports neither the topic
//! of an end nor the partition of an error; with separate queues both are known. The thread sleeps until a queue has an
//! event, the caller has made space, or [`IDLE_WAIT`] has passed.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{Consumer as _, base_consumer::PartitionQueue},
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{BorrowedMessage, Headers},
};
use tokio::sync::{mpsc, oneshot};

use base::retry::Retry;

use super::{
    Assignment, BufferState, ConsumerEvent, ConsumerOptions, ConsumerRecord, Ends, Paused, StartOffset,
    TopicPartition,
    end_offsets::WATERMARK_LIMIT,
    query::{ConsumerClient, MIN_QUERY_TIMEOUT, check_partitions, serve_queued},
};
use crate::{
    Error, Kafka,
    client::Settings,
    context::ClientCallbacks,
    error::KafkaCause,
    role::{ClientRole, FetchOptions, Isolation},
    sys,
};

/// How often an idle reader serves log lines, statistics and token requests.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Records read from one partition before the next one's turn.
const RECORDS_PER_TURN: usize = 64;

/// The arguments of the thread.
pub(super) struct ReaderArgs {
    pub(super) kafka: Kafka,
    pub(super) options: ConsumerOptions,
    pub(super) assignments: Vec<Assignment>,
    pub(super) paused: Paused,
    pub(super) isolation: Isolation,
    /// Where to stop, for partitions that are read to an end.
    pub(super) ends: Ends,
    pub(super) events: mpsc::Sender<Result<ConsumerEvent, Error>>,
    pub(super) shared: Arc<BufferState>,
}

/// A running thread.
pub(super) struct RunningReader {
    /// The thread, to be unparked.
    pub(super) poller: Thread,
    pub(super) client: Weak<ConsumerClient>,
}

/// Opens the client, reports the result, and polls until the receiver is dropped.
pub(super) fn run(args: ReaderArgs, opened: oneshot::Sender<Result<RunningReader, Error>>) {
    match open(&args) {
        Err(error) => drop(opened.send(Err(error))),
        Ok(mut poller) => {
            let client = Arc::downgrade(&poller.client);
            if opened.send(Ok(RunningReader { poller: thread::current(), client })).is_ok() {
                // An error means that the receiver was dropped.
                poller.run().ok();
                // Otherwise the warnings of a short-lived reader would be lost.
                serve_queued(&poller.client);
            }
        }
    }
}

fn open(args: &ReaderArgs) -> Result<Poller, Error> {
    let ReaderArgs { kafka, options, assignments, ends, .. } = args;
    let fetch = FetchOptions {
        partitions: assignments.len(),
        bytes: options.prefetch_bytes,
        wait: options.fetch_wait,
    };
    let settings = Settings::new(kafka, &ClientRole::Consumer(Some(fetch), args.isolation))?;
    let thread = thread::current();
    let client: Arc<ConsumerClient> = settings.create_with((), |client: &mut ConsumerClient| {
        client.set_nonempty_callback(move || thread.unpark())
    })?;
    settings.hand_token(client.client())?;

    // Also avoids the 500 ms that an assignment on a new client would wait.
    let end = Instant::now() + options.connect_limit;
    let left = || end.saturating_duration_since(Instant::now()).max(MIN_QUERY_TIMEOUT);
    let places: Vec<TopicPartition> = assignments.iter().map(Assignment::topic_partition).collect();
    check_partitions(&client, &places, left)?;

    let mut list = TopicPartitionList::with_capacity(assignments.len());
    let mut sources = Vec::with_capacity(assignments.len());
    for assignment in assignments {
        let Assignment { topic, partition, start } = assignment;
        let (offset, position) = match start {
            StartOffset::Earliest => (Offset::Beginning, 0),
            StartOffset::Offset(offset) => (Offset::Offset(*offset), *offset),
            StartOffset::End => (Offset::End, 0),
        };
        let action = || format!("assign {topic} partition {partition}");
        let added = list.add_partition_offset(topic, *partition, offset);
        added.map_err(|error| Error::request(action(), error))?;
        let split = client.split_partition_queue(topic, *partition);
        let mut queue = split
            .ok_or_else(|| Error::request(action(), KafkaError::Subscription("no such partition".into())))?;
        let thread = thread::current();
        queue.set_nonempty_callback(move || thread.unpark());
        let place = assignment.topic_partition();
        let least = ends.get(&place).map(|(_, high)| *high);
        let paused = args.paused.get(&place).cloned().unwrap_or_default();
        sources.push(AssignedPartition { place, paused, queue, position, least, failed: false });
    }
    client.assign(&list).map_err(|error| Error::request("assign partitions", error))?;
    Ok(Poller { sources, client, events: args.events.clone(), shared: Arc::clone(&args.shared) })
}

/// A partition with its queue.
struct AssignedPartition {
    place: TopicPartition,
    paused: Arc<AtomicBool>,
    queue: PartitionQueue<ClientCallbacks>,
    /// The lowest offset the next record can have, for error messages.
    position: i64,
    /// The end before the first fetch, if it was queried. A new leader may report a lower one.
    least: Option<i64>,
    /// Its offset was out of range or its batch unreadable: later records must not be returned as the next ones.
    failed: bool,
}

/// The caller has dropped the consumer.
struct ReceiverGone;

/// Fields are dropped in this order: the queues borrow from the client.
struct Poller {
    sources: Vec<AssignedPartition>,
    client: Arc<ConsumerClient>,
    events: mpsc::Sender<Result<ConsumerEvent, Error>>,
    shared: Arc<BufferState>,
}

impl Poller {
    fn run(&mut self) -> Result<(), ReceiverGone> {
        loop {
            let mut is_busy = self.serve_client()?;
            for index in 0..self.sources.len() {
                is_busy |= self.serve_partition(index)?;
            }
            if !is_busy {
                thread::park_timeout(IDLE_WAIT);
            }
        }
    }

    /// Serves log lines, statistics, token requests and errors of no partition. Returns whether there were any.
    fn serve_client(&self) -> Result<bool, ReceiverGone> {
        match self.client.poll(Duration::ZERO) {
            Some(Err(error)) => {
                let error = Error::request("read from Kafka", error);
                // A reader joins no group; librdkafka only requires a group id.
                let is_group = matches!(&error, Error::Request { source, .. } if source.code() == Some(Code::GroupAuthorizationFailed));
                if !is_group {
                    self.report(error)?;
                }
                Ok(true)
            }
            _ if self.events.is_closed() => Err(ReceiverGone),
            // Every partition has its own queue, so no record arrives here.
            polled => Ok(polled.is_some()),
        }
    }

    /// Returns whether there was an event.
    fn serve_partition(&mut self, index: usize) -> Result<bool, ReceiverGone> {
        for taken in 0..RECORDS_PER_TURN {
            let source = &self.sources[index];
            if source.failed || source.paused.load(Ordering::Acquire) {
                return Ok(taken > 0);
            }
            let Some(room) = self.room()? else { return Ok(taken > 0) };
            let (topic, partition) = &source.place;
            match source.queue.poll(Duration::ZERO) {
                None => return Ok(taken > 0),
                Some(Ok(message)) => {
                    let record = received(Arc::clone(topic), &message);
                    let position = record.offset + 1;
                    self.shared.bytes.fetch_add(record.size(), Ordering::AcqRel);
                    room.send(Ok(ConsumerEvent::Record(record)));
                    drop(message);
                    self.sources[index].position = position;
                }
                // The leader will report the end again once it knows more.
                Some(Err(KafkaError::PartitionEOF(_)))
                    if source.least > sys::fetched_end(self.client.client(), topic, *partition) => {}
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    room.send(Ok(ConsumerEvent::End { topic: Arc::clone(topic), partition: *partition }));
                }
                Some(Err(error)) => {
                    drop(room);
                    self.fail(index, error)?;
                }
            }
        }
        Ok(true)
    }

    /// Space for one event; `None` if the buffer is full, and then the caller wakes us when there is space.
    fn room(&self) -> Result<Option<mpsc::Permit<'_, Result<ConsumerEvent, Error>>>, ReceiverGone> {
        for _ in 0..2 {
            let fits = self.shared.bytes.load(Ordering::Acquire) < self.shared.limit.max(1);
            match self.events.try_reserve() {
                Ok(room) if fits => return Ok(Some(room)),
                Err(mpsc::error::TrySendError::Closed(())) => return Err(ReceiverGone),
                // The caller may have made space before it saw that we wait: check once more.
                _ => self.shared.stalled.store(true, Ordering::Release),
            }
        }
        Ok(None)
    }

    fn fail(&mut self, index: usize, error: KafkaError) -> Result<(), ReceiverGone> {
        let AssignedPartition { place: (topic, partition), position, .. } = &self.sources[index];
        let code = KafkaCause::from(error.clone()).code();
        if matches!(code, Some(Code::BadMessage | Code::BadCompression)) {
            let action = format!("read {topic} partition {partition} at offset {position} or behind");
            self.sources[index].failed = true;
            return self.report(Error::request(action, error));
        }
        if !matches!(code, Some(Code::AutoOffsetReset | Code::OffsetOutOfRange)) {
            return self.report(Error::request(format!("read {topic} partition {partition}"), error));
        }
        let (low, high) =
            self.client.fetch_watermarks(topic, *partition, WATERMARK_LIMIT).unwrap_or((-1, -1));
        let (topic, partition, offset) = (Arc::clone(topic), *partition, *position);
        self.sources[index].failed = true;
        self.report(Error::OffsetOutOfRange { topic, partition, offset, low, high })
    }

    /// Reports an error to the caller, unless librdkafka recovers from it by itself.
    fn report(&self, error: Error) -> Result<(), ReceiverGone> {
        if error.retry() == Retry::Later {
            tracing::debug!(error = %error, "cannot read for now; librdkafka retries");
            return Ok(());
        }
        // Rare, and must reach the caller, so waiting for space is right.
        self.events.blocking_send(Err(error)).map_err(|_| ReceiverGone)
    }
}

fn received(topic: Arc<str>, message: &BorrowedMessage<'_>) -> ConsumerRecord {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        let owned = |value: Option<&[u8]>| value.map_or_else(Bytes::new, Bytes::copy_from_slice);
        headers.iter().map(|header| (header.key.to_owned(), owned(header.value))).collect()
    });
    ConsumerRecord {
        topic,
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(Bytes::copy_from_slice),
        value: message.payload().map(Bytes::copy_from_slice),
        headers,
        timestamp_ms: message.timestamp().to_millis(),
    }
}
