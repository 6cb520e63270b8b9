//! The thread that polls librdkafka for one consumer.
//!
//! Every partition has a queue of its own, split off before the assignment, because librdkafka's wrapper tells neither the
//! topic of an end nor the partition of an error; on its own queue both are known. The thread sleeps until a queue has
//! something, the caller has made room, or [`IDLE`] has passed.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, base_consumer::PartitionQueue},
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{BorrowedMessage, Headers},
};
use tokio::sync::{mpsc, oneshot};

use base::retry::Retry;

use super::{AskEnds, Assignment, Ends, Event, Options, Paused, Place, Received, Shared, Start};
use crate::{
    Error, Kafka, OpenTransaction,
    client::{Settings, in_steps, on_closing_thread},
    context::Context,
    error::Cause,
    role::{Fetch, Role, Sight},
    sys::{self, Topic},
};

/// How often log lines, statistics and token requests are served when nothing else happens.
const IDLE: Duration = Duration::from_millis(100);
/// Records taken from one partition before the next has its turn.
const TURN: usize = 64;
/// Events served at once at most, when the reason of a failed start or the last log lines may be among them.
const QUEUED_EVENTS: usize = 10_000;
/// The most we ask for a partition's offsets once its position has turned out to be out of range.
const WATERMARK_LIMIT: Duration = Duration::from_secs(5);

/// The least time a question gets.
const SHORTEST: Duration = Duration::from_millis(1);
/// The most it may take to find out how old an open transaction is.
const LOOK_LIMIT: Duration = Duration::from_millis(500);
/// Open transactions whose age is looked up.
const LOOKED_AT: usize = 4;
/// The most of a limit that is kept for telling what has been waited for in vain.
const TELLING: Duration = Duration::from_secs(3);
/// Wait between two questions whether transactions have been decided.
const BETWEEN_ASKING: Duration = Duration::from_millis(20);

/// What the thread is to do.
pub(super) struct Order {
    pub(super) kafka: Kafka,
    pub(super) options: Options,
    pub(super) assignments: Vec<Assignment>,
    pub(super) paused: Paused,
    pub(super) sight: Sight,
    pub(super) ends: AskEnds,
    pub(super) events: mpsc::Sender<Result<Event, Error>>,
    pub(super) shared: Arc<Shared>,
}

/// A running thread.
pub(super) struct Opened {
    /// To be unparked.
    pub(super) poller: Thread,
    pub(super) client: Weak<Client>,
    pub(super) ends: Ends,
}

/// Opens the client, reports how that went, and polls until the caller has gone.
pub(super) fn run(order: Order, opened: oneshot::Sender<Result<Opened, Error>>) {
    match open(&order) {
        Err(error) => drop(opened.send(Err(error))),
        Ok((mut poller, ends)) => {
            let client = Arc::downgrade(&poller.client);
            if opened.send(Ok(Opened { poller: thread::current(), client, ends })).is_ok() {
                // An error says that the caller is gone.
                poller.run().ok();
                // A reader that lives shortly would otherwise take its warnings along.
                serve_queued(&poller.client);
            }
        }
    }
}

/// What reads.
pub(crate) type Client<R = ()> = BaseConsumer<Context<R>>;

/// Asks the leader of a partition for its offsets.
pub(super) fn ask(client: &Client, topic: &str, partition: i32, limit: Duration) -> Result<(), Error> {
    ask_patiently(limit, |left| {
        let answered = client.fetch_watermarks(topic, partition, left).map(drop);
        answered.map_err(|error| (format!("{topic} partition {partition}"), error))
    })
}

/// Asks for offsets. A broker that has just come back may not know the partition for a moment: it is asked again for a while. `ask` gets
/// the time it may take, and names the partition it failed for.
fn ask_patiently<T>(
    limit: Duration,
    ask: impl Fn(Duration) -> Result<T, (String, KafkaError)>,
) -> Result<T, Error> {
    let begun = Instant::now();
    let (end, patient) = (begun + limit, begun + limit.min(WATERMARK_LIMIT));
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let (place, error) = match ask(left.max(SHORTEST)) {
            Ok(found) => return Ok(found),
            Err(failed) => failed,
        };
        let passes = matches!(
            error.rdkafka_error_code(),
            Some(
                Code::UnknownPartition
                    | Code::UnknownTopicOrPartition
                    | Code::LeaderNotAvailable
                    | Code::NotLeaderForPartition
            )
        );
        if !passes || Instant::now() >= patient {
            return Err(Error::request(format!("ask for the offsets of {place}"), error));
        }
        thread::sleep(IDLE);
    }
}

fn open(order: &Order) -> Result<(Poller, Ends), Error> {
    let Order { kafka, options, assignments, .. } = order;
    let fetch =
        Fetch { partitions: assignments.len(), bytes: options.prefetch_bytes, wait: options.fetch_wait };
    let settings = Settings::new(kafka, &Role::Consumer(Some(fetch), order.sight))?;
    let thread = thread::current();
    let client: Arc<Client> = settings
        .create_with((), |client: &mut Client| client.set_nonempty_callback(move || thread.unpark()))?;
    settings.hand_token(client.client())?;

    // Also saves the half second an assignment on a fresh client would wait.
    let end = Instant::now() + options.connect_limit;
    let left = || end.saturating_duration_since(Instant::now()).max(SHORTEST);
    let mut places: Vec<Place> = assignments.iter().map(Assignment::place).collect();
    check_places(&client, &places, left)?;
    let ends = match &order.ends {
        AskEnds::No => Ends::new(),
        AskEnds::Now => ask_all(&client, &places, left)?,
        AskEnds::Decided { also, patience } => {
            places.extend(also.iter().cloned());
            decided_ends(order, &client, &places, *patience, left)?
        }
    };

    let mut list = TopicPartitionList::with_capacity(assignments.len());
    let mut sources = Vec::with_capacity(assignments.len());
    for assignment in assignments {
        let Assignment { topic, partition, start } = assignment;
        let (offset, position) = match start {
            Start::Earliest => (Offset::Beginning, 0),
            Start::Offset(offset) => (Offset::Offset(*offset), *offset),
            Start::End => (Offset::End, 0),
        };
        let action = || format!("assign {topic} partition {partition}");
        let added = list.add_partition_offset(topic, *partition, offset);
        added.map_err(|error| Error::request(action(), error))?;
        let split = client.split_partition_queue(topic, *partition);
        let mut queue = split
            .ok_or_else(|| Error::request(action(), KafkaError::Subscription("no such partition".into())))?;
        let thread = thread::current();
        queue.set_nonempty_callback(move || thread.unpark());
        let place = assignment.place();
        let least = ends.get(&place).map(|(_, high)| *high);
        let paused = order.paused.get(&place).cloned().unwrap_or_default();
        sources.push(Source { place, paused, queue, position, least, failed: false });
    }
    client.assign(&list).map_err(|error| Error::request("assign partitions", error))?;
    Ok((Poller { sources, client, events: order.events.clone(), shared: Arc::clone(&order.shared) }, ends))
}

/// Creates a consumer for queries, with its token. Its queue is only polled when a query fails and by [`close`].
pub(crate) fn create(kafka: &Kafka, role: &Role) -> Result<Arc<Client>, Error> {
    let settings = Settings::new(kafka, role)?;
    let client: Arc<Client> = settings.create(())?;
    settings.hand_token(client.client())?;
    Ok(client)
}

/// Closes a consumer made by [`create`], after logging the lines in its queue.
pub(crate) fn close(client: Arc<Client>) {
    on_closing_thread(move || {
        serve_queued(&client);
        drop(client);
    });
}

/// The first offset each partition has, and the one behind the last record that is seen.
pub(super) fn ends(kafka: &Kafka, places: &[Place], sight: Sight, limit: Duration) -> Result<Ends, Error> {
    let client = create(kafka, &Role::Query(sight))?;
    let end = Instant::now() + limit;
    let left = || end.saturating_duration_since(Instant::now()).max(SHORTEST);
    let ends = check_places(&client, places, left).and_then(|()| ask_all(&client, places, left));
    close(client);
    ends
}

/// The first offset of each partition, and the one behind the last record that is seen, with two requests to each of their
/// leaders.
fn ask_all(client: &Client, places: &[Place], left: impl Fn() -> Duration) -> Result<Ends, Error> {
    in_steps(left(), |step| {
        ask_patiently(step, |limit| {
            let first = ask_offsets(client, places, Offset::Beginning, limit)?;
            let next = ask_offsets(client, places, Offset::End, limit)?;
            let both = first.into_iter().zip(next).map(|((place, first), (_, next))| (place, (first, next)));
            Ok(both.collect())
        })
    })
}

/// The offset of each partition that is named by its beginning or its end.
fn ask_offsets(
    client: &Client,
    places: &[Place],
    which: Offset,
    limit: Duration,
) -> Result<BTreeMap<Place, i64>, (String, KafkaError)> {
    let named = |(topic, partition): &Place| format!("{topic} partition {partition}");
    let mut asked = TopicPartitionList::with_capacity(places.len());
    for place in places {
        let added = asked.add_partition_offset(&place.0, place.1, which);
        added.map_err(|error| (named(place), error))?;
    }
    let all = || places.iter().map(named).collect::<Vec<_>>().join(", ");
    let answered = client.offsets_for_times(asked, limit).map_err(|error| (all(), error))?;
    let found = answered.elements();
    let one = |place: &Place| {
        let element = found.iter().find(|one| one.partition() == place.1 && one.topic() == &*place.0);
        let offset = match element {
            None => Err(KafkaError::OffsetFetch(Code::UnknownPartition)),
            Some(element) => element.error().and_then(|()| {
                let offset = element.offset().to_raw().filter(|offset| *offset >= 0);
                offset.ok_or(KafkaError::OffsetFetch(Code::NoOffset))
            }),
        };
        offset.map(|offset| (place.clone(), offset)).map_err(|error| (named(place), error))
    };
    places.iter().map(one).collect()
}

/// The ends, once they are behind everything that was in the log before this call. What is committed behind a transaction
/// that is still open cannot be read yet, and the broker then tells an end before it.
fn decided_ends(
    order: &Order,
    client: &Client,
    places: &[Place],
    patience: Duration,
    left: impl Fn() -> Duration,
) -> Result<Ends, Error> {
    // Without metadata first: a broker that has just come back may not know its partitions yet, and the offsets are asked for patiently.
    let asking = create(&order.kafka, &Role::Query(Sight::All))?;
    let last = ask_all(&asking, places, &left);
    close(asking);
    let last = last?;
    let telling = (order.options.connect_limit / 4).min(TELLING);
    let begun = Instant::now();
    loop {
        let ends = ask_all(client, places, &left)?;
        let open: Vec<(&Place, i64)> = ends
            .iter()
            .filter(|(place, (_, end))| last.get(*place).is_some_and(|(_, last)| end < last))
            .map(|(place, (_, end))| (place, *end))
            .collect();
        if open.is_empty() {
            return Ok(ends);
        }
        let waited = begun.elapsed();
        if waited >= patience || left() <= telling || order.events.is_closed() {
            let look = |at: usize| if at < LOOKED_AT { LOOK_LIMIT.min(left()) } else { Duration::ZERO };
            let looking = create(&order.kafka, &Role::Consumer(None, Sight::All))?;
            // An assignment on a fresh client would wait half a second. Without an answer the ages are not told.
            check_places(&looking, places, || LOOK_LIMIT.min(left())).ok();
            let open = open.into_iter().enumerate();
            let open = open.map(|(at, (place, end))| open_transaction(&looking, place, end, look(at)));
            let open = open.collect();
            close(looking);
            return Err(Error::Undecided { open, waited });
        }
        thread::sleep(BETWEEN_ASKING.min(left()));
    }
}

/// What there is to say about the transaction that is open from this offset on. Its age is that of its first record, which
/// only this client sees.
fn open_transaction(asking: &Client, place: &Place, offset: i64, limit: Duration) -> OpenTransaction {
    let (topic, partition) = place;
    let end = Instant::now() + limit;
    let mut list = TopicPartitionList::with_capacity(1);
    let assigned = list
        .add_partition_offset(topic, *partition, Offset::Offset(offset))
        .and_then(|()| asking.assign(&list));
    let mut open_for = None;
    while assigned.is_ok() && open_for.is_none() && Instant::now() < end {
        // Compaction takes no record of an open transaction, so it is the first from there on.
        let Some(Ok(record)) = asking.poll(end.saturating_duration_since(Instant::now())) else { continue };
        // One of the partition before may still be on its way.
        if record.partition() == *partition && record.topic() == &**topic {
            let written = record.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
            let written = written.map(|millis| UNIX_EPOCH + Duration::from_millis(millis));
            open_for = Some(written.and_then(|written| SystemTime::now().duration_since(written).ok()));
        }
    }
    OpenTransaction { topic: Arc::clone(topic), partition: *partition, offset, open_for: open_for.flatten() }
}

/// Checks that each topic and partition exists.
fn check_places(client: &Client, places: &[Place], left: impl Fn() -> Duration) -> Result<(), Error> {
    let mut names: Vec<&str> = places.iter().map(|(topic, _)| &**topic).collect();
    names.sort_unstable();
    names.dedup();
    let found = find_topics(client, &names, left())?;
    for (topic, partition) in places {
        if !known(topic, found.get(&**topic).map(Result::as_ref))?.partitions.contains(partition) {
            let action = format!("find partition {partition} of topic {topic}");
            return Err(Error::request(action, KafkaError::MetadataFetch(Code::UnknownPartition)));
        }
    }
    Ok(())
}

/// Reads the metadata of a topic, which must exist. To be called before anybody else polls the client.
pub(crate) fn find_topic<R>(client: &Client<R>, name: &str, limit: Duration) -> Result<Topic, Error>
where
    Context<R>: ConsumerContext,
{
    known(name, find_topics(client, &[name], limit)?.remove(name))
}

/// What is known of a topic, or the error if that is nothing.
fn known<T, C: Borrow<Code>>(name: &str, found: Option<Result<T, C>>) -> Result<T, Error> {
    let found = found.map_or(Err(Code::UnknownTopic), |found| found.map_err(|code| *code.borrow()));
    found.map_err(|code| Error::request(format!("find topic {name}"), KafkaError::MetadataFetch(code)))
}

/// Reads the metadata of topics with one request: for each what the broker tells of it. To be called before anybody else polls the client.
/// A broker that is starting may answer that it knows neither brokers nor topics: it is asked again.
pub(crate) fn find_topics<R>(
    client: &Client<R>,
    names: &[&str],
    limit: Duration,
) -> Result<BTreeMap<String, Result<Topic, Code>>, Error>
where
    Context<R>: ConsumerContext,
{
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let action = || match names {
        [name] => format!("find topic {name}"),
        several => format!("find topics {}", several.join(", ")),
    };
    in_steps(limit, |step| {
        sys::find_topics(client.client(), names, step).map_err(|error| {
            // The reason may be in the queue, which has not been polled yet.
            serve_queued(client);
            client.context().failed(action(), error)
        })
    })
}

/// A partition with its queue.
struct Source {
    place: Place,
    paused: Arc<AtomicBool>,
    queue: PartitionQueue<Context>,
    /// The next offset we expect at the earliest, for error messages.
    position: i64,
    /// Where the end was before the first fetch, if it was asked for. A leader that is new to it may report an earlier one.
    least: Option<i64>,
    /// Its offset was out of range, or what stands there cannot be read: nothing behind it may be taken for the next.
    failed: bool,
}

/// The caller is gone.
struct Closed;

/// Fields are dropped in this order: the queues belong to the client.
struct Poller {
    sources: Vec<Source>,
    client: Arc<Client>,
    events: mpsc::Sender<Result<Event, Error>>,
    shared: Arc<Shared>,
}

impl Poller {
    fn run(&mut self) -> Result<(), Closed> {
        loop {
            let mut is_busy = self.serve_client()?;
            for index in 0..self.sources.len() {
                is_busy |= self.serve_partition(index)?;
            }
            if !is_busy {
                thread::park_timeout(IDLE);
            }
        }
    }

    /// Serves log lines, statistics, token requests and errors that belong to no partition. Returns whether there were any.
    fn serve_client(&self) -> Result<bool, Closed> {
        match self.client.poll(Duration::ZERO) {
            Some(Err(error)) => {
                let error = Error::request("read from Kafka", error);
                // A reader joins no group: librdkafka's protocol only requires a name.
                let is_group = matches!(&error, Error::Request { source, .. } if source.code() == Some(Code::GroupAuthorizationFailed));
                if !is_group {
                    self.report(error)?;
                }
                Ok(true)
            }
            _ if self.events.is_closed() => Err(Closed),
            // Every partition has a queue of its own, so no record comes this way.
            polled => Ok(polled.is_some()),
        }
    }

    /// Returns whether there was anything to take.
    fn serve_partition(&mut self, index: usize) -> Result<bool, Closed> {
        for taken in 0..TURN {
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
                    room.send(Ok(Event::Record(record)));
                    drop(message);
                    self.sources[index].position = position;
                }
                // Another end is reported once more is known.
                Some(Err(KafkaError::PartitionEOF(_)))
                    if source.least > sys::fetched_end(self.client.client(), topic, *partition) => {}
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    room.send(Ok(Event::End { topic: Arc::clone(topic), partition: *partition }));
                }
                Some(Err(error)) => {
                    drop(room);
                    self.fail(index, error)?;
                }
            }
        }
        Ok(true)
    }

    /// A place for one event; `None` when there is none, and then the caller wakes us when there is.
    fn room(&self) -> Result<Option<mpsc::Permit<'_, Result<Event, Error>>>, Closed> {
        for _ in 0..2 {
            let fits = self.shared.bytes.load(Ordering::Acquire) < self.shared.limit.max(1);
            match self.events.try_reserve() {
                Ok(room) if fits => return Ok(Some(room)),
                Err(mpsc::error::TrySendError::Closed(())) => return Err(Closed),
                // The caller may have made room before it could know that we wait: look once more.
                _ => self.shared.stalled.store(true, Ordering::Release),
            }
        }
        Ok(None)
    }

    fn fail(&mut self, index: usize, error: KafkaError) -> Result<(), Closed> {
        let Source { place: (topic, partition), position, .. } = &self.sources[index];
        let code = Cause::from(error.clone()).code();
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

    /// Tells the caller, unless librdkafka mends it by itself.
    fn report(&self, error: Error) -> Result<(), Closed> {
        if error.retry() == Retry::Later {
            tracing::debug!(error = %error, "reading is held up");
            return Ok(());
        }
        // Rare, and the caller has to know: waiting for room here is right.
        self.events.blocking_send(Err(error)).map_err(|_| Closed)
    }
}

/// Serves the events in the client's own queue, log lines above all, one a poll. A poll does not tell an event from an empty queue.
fn serve_queued(client: &BaseConsumer<impl ConsumerContext>) {
    for _ in 0..QUEUED_EVENTS {
        if !sys::has_events(client.client()) {
            return;
        }
        drop(client.poll(Duration::ZERO));
    }
}

fn received(topic: Arc<str>, message: &BorrowedMessage<'_>) -> Received {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        let owned = |value: Option<&[u8]>| value.map_or_else(Bytes::new, Bytes::copy_from_slice);
        headers.iter().map(|header| (header.key.to_owned(), owned(header.value))).collect()
    });
    Received {
        topic,
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(Bytes::copy_from_slice),
        value: message.payload().map(Bytes::copy_from_slice),
        headers,
        timestamp_ms: message.timestamp().to_millis(),
    }
}
