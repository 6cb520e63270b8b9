//! The task that reads the topic: all of it, then what is appended, and after a failure all of it again.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::{PING_INTERVAL, PING_LIMIT, SharedTable, TableContents, TableState};
use crate::{Assignment, Consumer, ConsumerEvent, ConsumerOptions, Error, StartOffset, murmur2};
use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};

/// Most events that are applied together.
const MAX_EVENTS: usize = 256;
/// Bytes a consumer may buffer: these topics are small, and there are several.
const BUFFER_BYTES: usize = 4 << 20;
/// Time limit for finding the topic, after which the consumer is replaced.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Waits between consumers that fail.
const FOLLOW_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(100), longest: Duration::from_secs(5), total: None };

/// Follows until the task is aborted.
pub(super) async fn run<S: TableState>(shared: Arc<SharedTable<S>>) {
    let mut backoff = Backoff::new(FOLLOW_BACKOFF, u64::from(murmur2(shared.topic.as_bytes())));
    loop {
        let Err(error) = read(&shared, &mut backoff).await;
        // One warning for an outage, however many attempts it takes.
        if backoff.is_fresh() {
            tracing::warn!(topic = &*shared.topic, error = %ErrorChain(&error), "reading the topic failed; reading it again from its start");
        } else {
            tracing::debug!(topic = &*shared.topic, error = %ErrorChain(&error), "reading the topic failed again");
        }
        // Permanent errors are retried too: an operator fixes them without restarting the worker.
        if let Some(wait) = backoff.next_wait(Retry::Later) {
            sleep(wait).await;
        }
    }
}

/// Reads the whole topic and follows it until an error.
///
/// Uses two consumers, because librdkafka's fetch wait is fixed per client: the first finds the end quickly, the second does
/// not fetch twenty times a second from an idle topic.
async fn read<S: TableState>(shared: &SharedTable<S>, backoff: &mut Backoff) -> Result<Infallible, Error> {
    let mut reading = TableReader::new(shared);
    let mut consumer = assign(&reading, ConsumerOptions::default().fetch_wait).await?;
    while !take(&mut reading, consumer.next().await, &mut consumer)? {}
    drop(consumer);
    backoff.reset();
    let consumer = assign(&reading, ConsumerOptions::FOLLOW_WAIT).await?;
    follow(&mut reading, consumer).await
}

/// A consumer that starts at the reader's positions.
async fn assign<S>(reading: &TableReader<'_, S>, fetch_wait: Duration) -> Result<Consumer, Error> {
    let shared = reading.shared;
    let assignments = reading.positions.iter().map(|(partition, position)| Assignment {
        topic: Arc::clone(&shared.topic),
        partition: *partition,
        start: position.map_or(StartOffset::Earliest, StartOffset::Offset),
    });
    let options = ConsumerOptions {
        buffer_bytes: BUFFER_BYTES,
        prefetch_bytes: BUFFER_BYTES,
        connect_limit: CONNECT_LIMIT,
        fetch_wait,
        ..ConsumerOptions::default()
    };
    let consumer = Consumer::assign(&shared.kafka, assignments.collect(), &options).await;
    consumer.inspect(|_| note_contact(shared))
}

/// Follows the topic until an error.
async fn follow<S: TableState>(
    reading: &mut TableReader<'_, S>,
    mut consumer: Consumer,
) -> Result<Infallible, Error> {
    let shared = reading.shared;
    let partitions: Vec<i32> = reading.positions.keys().copied().collect();

    let mut ask = interval(PING_INTERVAL);
    ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Each leader in turn; one that does not answer is pinged again.
    let mut turn = partitions.iter().copied().cycle();
    let mut asked = turn.next().unwrap_or_default();
    loop {
        let answer = consumer.ping(&shared.topic, asked, PING_LIMIT);
        let mut question = pin!(async {
            ask.tick().await;
            answer.await
        });
        loop {
            tokio::select! {
                event = consumer.next() => {
                    take(reading, event, &mut consumer)?;
                }
                answer = &mut question => {
                    match answer {
                        Ok(()) => {
                            note_contact(shared);
                            asked = turn.next().unwrap_or_default();
                        }
                        Err(error) => {
                            tracing::debug!(topic = &*shared.topic, %error, "no answer from the broker");
                        }
                    }
                    break;
                }
            }
        }
    }
}

/// Applies an event together with those already buffered, so that readers see as much of a transaction at once as possible.
/// True if that completed the state; an error after it is left to the next consumer.
fn take<S: TableState>(
    reading: &mut TableReader<'_, S>,
    first: Result<ConsumerEvent, Error>,
    consumer: &mut Consumer,
) -> Result<bool, Error> {
    note_contact(reading.shared);
    let (mut events, mut failed) = (Vec::new(), None);
    let mut next = Some(first);
    while let Some(event) = next.take() {
        match event {
            Ok(event) => events.push(event),
            Err(error) => failed = Some(error),
        }
        if failed.is_none() && events.len() < MAX_EVENTS {
            next = consumer.next().now_or_never();
        }
    }
    let is_whole = reading.apply(&events);
    failed.filter(|_| !is_whole).map_or(Ok(is_whole), Err)
}

fn note_contact<S>(shared: &SharedTable<S>) {
    *shared.heard.lock() = Instant::now();
}

/// Applies the events of a consumer.
pub(super) struct TableReader<'a, S> {
    shared: &'a SharedTable<S>,
    /// The state that is not visible yet, and the partitions whose end has not been reached.
    aside: Option<(TableContents<S>, BTreeSet<i32>)>,
    positions: BTreeMap<i32, Option<i64>>,
}

impl<'a, S: TableState> TableReader<'a, S> {
    pub(super) fn new(shared: &'a SharedTable<S>) -> Self {
        let partitions: BTreeSet<i32> = shared.progress.borrow().positions.keys().copied().collect();
        let positions = partitions.iter().map(|partition| (*partition, None)).collect();
        let blank = shared.contents.read().state.blank();
        Self { shared, aside: Some((TableContents::new(blank), partitions)), positions }
    }

    /// Applies events; true if that completed the state.
    pub(super) fn apply(&mut self, events: &[ConsumerEvent]) -> bool {
        let (mut records, mut ended) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                ConsumerEvent::Record(record) => records.push(record),
                ConsumerEvent::End { partition, .. } => ended.push(partition),
            }
        }
        self.positions.extend(records.iter().map(|record| (record.partition, Some(record.offset + 1))));
        let Some((contents, open)) = &mut self.aside else {
            if !records.is_empty() {
                let mut contents = self.shared.contents.write();
                records.iter().for_each(|record| contents.apply(record));
                drop(contents);
                self.publish(false);
            }
            return false;
        };
        records.iter().for_each(|record| contents.apply(record));
        open.retain(|partition| !ended.contains(&partition));
        if !open.is_empty() {
            return false;
        }
        if let Some((contents, _)) = self.aside.take() {
            *self.shared.contents.write() = contents;
        }
        self.publish(true);
        true
    }

    fn publish(&self, is_rebuilt: bool) {
        self.shared.progress.send_modify(|progress| {
            progress.caught_up = true;
            progress.positions.clone_from(&self.positions);
            if is_rebuilt {
                progress.ends.clear();
                progress.rebuilds += 1;
            }
        });
        self.shared.changes.send_modify(|changes| *changes += 1);
    }
}
