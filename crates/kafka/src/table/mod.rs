//! A compacted topic as a table in memory, the writer that decides on it, and the writer of what needs no decision.
//!
//! ```text
//! topic ──read committed──▶ follow (task) ──Apply──▶ Table<S>: a consistent snapshot, a signal for each change
//!   ▲                                                  │
//!   ├── one transaction ◀── FencedWriter::write ◀──────┘ decides on what is in the topic now
//!   └── single record ◀──── PlainWriter::write            a fact that only its writer states
//! ```
//!
//! - A snapshot is always complete: records of the first read go into a state that becomes visible when every partition has
//!   been read to its end.
//! - After a consumer failed for good, or its offset is gone because the topic was truncated or re-created, the topic is read from
//!   its start into a new state; readers see the previous one until that is complete.
//! - A write is recognized by its readers: the last record that it has in each partition carries its id ([`WriteMark`]).
//! - The task ends when the last clone of the table is dropped.
//!
//! On failure: a lost broker only delays, and [`Table::silent_for`] shows it; records that cannot be parsed are logged and skipped.

mod follow;
mod plain;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use model::EncodedRecord;

pub use self::{
    plain::PlainWriter,
    writer::{FencedWriter, LastWriteError, WriteError, WriterOptions},
};
use crate::{
    ConsumerRecord, Error, Kafka, OpenTransaction, ReadLimits, ShardProducer, StartOffset, TopicPartition,
    check_settings, read_to_end_from,
};

/// Header with the id of a write.
const WRITE_HEADER: &str = "tributary.write";
/// Writes whose ids a table remembers: far more than can happen between a commit and the search for it.
const REMEMBERED_WRITES: usize = 1024;
/// Interval between two checks that the broker answers.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit for such a check.
const PING_LIMIT: Duration = Duration::from_secs(2);
/// Time without an answer after which the broker counts as silent: one unanswered check, and some room.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// A transaction at least this old was left hanging; a younger one may belong to a healthy writer.
const HANGING_AGE: Duration = Duration::from_secs(1);

/// The state that a topic's records add up to.
pub trait TableState: Default + Send + Sync + 'static {
    /// Applies the next record of its partition. A record that cannot be parsed is logged and skipped; it never stops the table.
    fn apply(&mut self, record: &ConsumerRecord);

    /// The state before the first record, for a topic that has to be read again.
    #[must_use]
    fn blank(&self) -> Self {
        Self::default()
    }
}

/// A write as its readers recognize it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteMark {
    id: Bytes,
    /// Partitions of the table's topic that the write has records in.
    partitions: usize,
}

impl WriteMark {
    /// Marks records that are about to be written together: the last one in each partition of `topic` gets the id.
    pub fn put(records: &mut [EncodedRecord], topic: &str) -> Self {
        let id = write_id();
        let last: BTreeMap<i32, usize> = records
            .iter()
            .enumerate()
            .filter(|(_, record)| &*record.topic == topic)
            .map(|(index, record)| (record.partition, index))
            .collect();
        for index in last.values() {
            records[*index].headers.push((WRITE_HEADER, id.clone()));
        }
        Self { id, partitions: last.len() }
    }
}

/// An id that no other write has, in this process or another.
pub fn write_id() -> Bytes {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{:x}-{now:x}-{number}", std::process::id()).into()
}

/// The state, and the ids of the newest writes in it.
struct TableContents<S> {
    state: S,
    writes: VecDeque<Bytes>,
}

impl<S: TableState> TableContents<S> {
    fn new(state: S) -> Self {
        Self { state, writes: VecDeque::new() }
    }

    fn apply(&mut self, record: &ConsumerRecord) {
        self.state.apply(record);
        let Some((_, id)) = record.headers.iter().find(|(name, _)| name == WRITE_HEADER) else { return };
        if self.writes.len() == REMEMBERED_WRITES {
            self.writes.pop_front();
        }
        self.writes.push_back(id.clone());
    }

    fn has(&self, mark: &WriteMark) -> bool {
        self.writes.iter().filter(|id| **id == mark.id).count() >= mark.partitions
    }
}

/// A topic that is followed (read committed). Cheap to clone.
pub struct Table<S> {
    shared: Arc<SharedTable<S>>,
    task: Arc<AbortOnDropHandle<()>>,
}

impl<S> Clone for Table<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), task: Arc::clone(&self.task) }
    }
}

impl<S> fmt::Debug for Table<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("topic", &self.shared.topic).finish_non_exhaustive()
    }
}

impl<S: TableState> Table<S> {
    /// Starts to follow; [`Table::caught_up`] says when everything written before has been read. A broker that is away only
    /// delays it, then and later.
    ///
    /// # Errors
    /// The client cannot be built.
    pub async fn follow(kafka: &Kafka, topic: &str, partitions: i32) -> Result<Self, Error> {
        Self::follow_from(S::default(), kafka, topic, partitions).await
    }

    /// The same, with a state before the first record that is not the default.
    ///
    /// # Errors
    /// As [`Table::follow`].
    pub async fn follow_from(blank: S, kafka: &Kafka, topic: &str, partitions: i32) -> Result<Self, Error> {
        let checked = kafka.clone();
        let faults = tokio::task::spawn_blocking(move || check_settings(&checked)).await;
        if let Some(fault) = faults.unwrap_or_default().into_iter().next() {
            return Err(fault);
        }
        let partitions = partitions.max(1);
        let positions = (0..partitions).map(|partition| (partition, None)).collect();
        let shared = Arc::new(SharedTable {
            kafka: kafka.clone(),
            topic: topic.into(),
            contents: RwLock::new(TableContents::new(blank)),
            progress: watch::Sender::new(ReadProgress { caught_up: false, positions }),
            changes: watch::Sender::new(0),
            heard: Mutex::new(Instant::now()),
        });
        let task = tokio::spawn(follow::run(Arc::clone(&shared)));
        Ok(Self { shared, task: Arc::new(AbortOnDropHandle::new(task)) })
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &Arc<str> {
        &self.shared.topic
    }

    /// All of its partitions.
    #[must_use]
    pub fn places(&self) -> Vec<TopicPartition> {
        (0..self.partitions()).map(|partition| (Arc::clone(self.topic()), partition)).collect()
    }

    /// How many partitions it has, as far as they are followed.
    #[must_use]
    pub fn partitions(&self) -> i32 {
        // The count was one of these at first.
        i32::try_from(self.shared.progress.borrow().positions.len()).unwrap_or(i32::MAX)
    }

    /// Whether the topic is still followed: until a fault of the program ends that.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Reads the state. No record is applied meanwhile, so `look` should be quick.
    pub fn read<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        self.contents(|contents| look(&contents.state))
    }

    fn contents<T>(&self, look: impl FnOnce(&TableContents<S>) -> T) -> T {
        look(&self.shared.contents.read())
    }

    /// The id of the newest write that has been read.
    fn last_write(&self) -> Option<Bytes> {
        self.contents(|contents| contents.writes.back().cloned())
    }

    /// Waits until all of a committed write has been read.
    ///
    /// # Errors
    /// It was not within the limit.
    pub async fn read_back(&self, mark: &WriteMark, limit: Duration) -> Result<(), Error> {
        let mut changes = self.changes();
        // The sender lives as long as this table.
        let read = async {
            while !self.contents(|contents| contents.has(mark)) && changes.changed().await.is_ok() {}
        };
        let action = || format!("read {} back", self.topic());
        timeout(limit, read).await.map_err(|_| Error::Deadline { action: action(), limit })
    }

    /// A number that rises with every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Whether all partitions have been read to their end once.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.shared.progress.borrow().caught_up
    }

    /// Waits for that.
    pub async fn caught_up(&self) {
        self.progressed(|progress| progress.caught_up).await;
    }

    /// Waits until a record at this offset, or a later one, has been read.
    ///
    /// # Errors
    /// It was not within the limit.
    pub async fn read_past(&self, partition: i32, offset: i64, limit: Duration) -> Result<(), Error> {
        let action = || format!("read {} partition {partition} up to offset {offset}", self.shared.topic);
        let read = self.progressed(|progress| progress.is_past(partition, offset));
        timeout(limit, read).await.map_err(|_| Error::Deadline { action: action(), limit })
    }

    /// Finds what was committed until now and waits until that has been read.
    ///
    /// The end of a partition is no offset to wait for: markers of transactions and compaction leave holes before it. So
    /// another consumer reads on from where this one is, to the end, and tells the last record there really is.
    ///
    /// # Errors
    /// The broker did not answer, or the records did not come, within the limit.
    pub async fn read_to_end(&self, limit: Duration) -> Result<(), Error> {
        let all: Vec<i32> = (0..self.partitions()).collect();
        self.read_partitions_to_end(&all, ReadLimits::up_to(limit)).await
    }

    /// The same, for some partitions only: what is open in the others is no reason to wait.
    ///
    /// # Errors
    /// As [`Table::read_to_end`]; transactions that were not decided within their patience are told as such.
    pub async fn read_partitions_to_end(
        &self,
        partitions: &[i32],
        waits: ReadLimits<'_>,
    ) -> Result<(), Error> {
        let limit = waits.limit;
        let read = async {
            // Its own first end may have been reached before the call.
            self.caught_up().await;
            let mut positions = self.shared.progress.borrow().positions.clone();
            positions.retain(|partition, _| partitions.contains(partition));
            let last = match self.last_from(&positions, waits).await {
                // Behind the last record we have, yet before the first there is: the log was cut between them.
                Err(Error::OffsetOutOfRange { .. }) => {
                    let start = positions.into_keys().map(|partition| (partition, None)).collect();
                    self.last_from(&start, waits).await?
                }
                other => other?,
            };
            self.progressed(|progress| last.iter().all(|(one, offset)| progress.is_past(*one, *offset)))
                .await;
            Ok(())
        };
        let action = || format!("read {} to the end", self.shared.topic);
        timeout(limit, read).await.unwrap_or_else(|_| Err(Error::Deadline { action: action(), limit }))
    }

    /// Reads partitions to their end for the writer who has just taken the id they are written with, so that nothing of that
    /// id can be under way any more. What all the same stands open in them, or in the places it writes `also`, beyond the
    /// patience has been left hanging, if it is of this id: that is ended. What is somebody else's is waited for where it is
    /// read, and left alone elsewhere; to have lost patience with it harms nobody.
    ///
    /// Until this has succeeded nothing may be written: it would make visible what was left hanging in the same place.
    ///
    /// # Errors
    /// As [`Table::read_to_end`], or the id is another's by now.
    pub async fn read_settled(
        &self,
        producer: &mut ShardProducer,
        partitions: &[i32],
        waits: ReadLimits<'_>,
    ) -> Result<(), Error> {
        let limit = waits.limit;
        let end = Instant::now() + limit;
        let open = match self.read_partitions_to_end(partitions, waits).await {
            Err(Error::Undecided { open, .. }) => open,
            other => return other,
        };
        let places: Vec<TopicPartition> =
            open.iter().map(|one| (Arc::clone(&one.topic), one.partition)).collect();
        let left = || end.saturating_duration_since(Instant::now());
        let settled = timeout(left(), producer.settle(&places)).await;
        let action = || format!("end what was left open in {}", self.shared.topic);
        settled.unwrap_or_else(|_| Err(Error::Deadline { action: action(), limit }))?;
        let read = self.read_partitions_to_end(partitions, ReadLimits::up_to(left())).await;
        let id = producer.transactional_id();
        match &read {
            // Where a batch is missing or written twice after this, it began here.
            Ok(()) => {
                let is_old = |one: &&OpenTransaction| one.open_for.is_none_or(|age| age >= HANGING_AGE);
                let old: Vec<String> = open.iter().filter(is_old).map(ToString::to_string).collect();
                if !old.is_empty() {
                    tracing::warn!(
                        id,
                        open = old.join(", "),
                        "ended transactions that had been left hanging"
                    );
                }
            }
            Err(error) => tracing::debug!(id, %error, "transactions of others are open"),
        }
        read
    }

    /// How long nothing has been heard from the broker that should have been: `None` while all is well.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        let silent = self.shared.heard.lock().elapsed();
        (silent > SILENT_AFTER).then_some(silent)
    }

    /// The last record of each partition that has one behind its position.
    async fn last_from(
        &self,
        positions: &BTreeMap<i32, Option<i64>>,
        waits: ReadLimits<'_>,
    ) -> Result<BTreeMap<i32, i64>, Error> {
        let starts = positions
            .iter()
            .map(|(partition, position)| {
                (*partition, position.map_or(StartOffset::Earliest, StartOffset::Offset))
            })
            .collect();
        let mut last = BTreeMap::new();
        let each = |record: ConsumerRecord| {
            last.insert(record.partition, record.offset);
        };
        let SharedTable { kafka, topic, .. } = &*self.shared;
        read_to_end_from(kafka, topic, &starts, &waits, each).await?;
        Ok(last)
    }

    async fn progressed(&self, wanted: impl FnMut(&ReadProgress) -> bool) {
        // The sender lives as long as we do.
        self.shared.progress.subscribe().wait_for(wanted).await.ok();
    }
}

/// What the task writes and the clones read.
struct SharedTable<S> {
    kafka: Kafka,
    topic: Arc<str>,
    contents: RwLock<TableContents<S>>,
    /// How far `contents` has been read; changes after it.
    progress: watch::Sender<ReadProgress>,
    changes: watch::Sender<u64>,
    /// When the broker was last heard from.
    heard: Mutex<Instant>,
}

#[derive(Debug, Clone)]
struct ReadProgress {
    caught_up: bool,
    /// The offset behind the last record read, by partition; `None` where there was none.
    positions: BTreeMap<i32, Option<i64>>,
}

impl ReadProgress {
    fn is_past(&self, partition: i32, offset: i64) -> bool {
        self.positions.get(&partition).copied().flatten().is_some_and(|position| position > offset)
    }
}
