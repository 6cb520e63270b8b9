//! A compacted topic as an in-memory table, a transactional writer that decides on it, and a plain writer.
//!
//! ```text
//! topic ──read committed──▶ follow (task) ──Apply──▶ Table<S>: a consistent snapshot, a signal for each change
//!   ▲                                                  │
//!   ├── one transaction ◀── FencedWriter::write ◀──────┘ decides on the topic's current content
//!   └── single record ◀──── PlainWriter::write            under a key that only this writer uses
//! ```
//!
//! - A snapshot is always complete: the first read builds a state that becomes visible once every partition has been read to
//!   its end.
//! - After a consumer fails permanently, or its offset is gone because the topic was truncated or re-created, the topic is read
//!   from its start into a new state; readers see the previous one until the new one is complete.
//! - A table recognizes a write: its last record in each partition carries the write's id ([`WriteMark`]).
//! - The task ends when the last clone of the table is dropped.
//!
//! On failure: a lost broker only delays, and [`Table::silent_for`] shows it; unparsable records are logged and skipped.

mod follow;
mod plain;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::{BTreeMap, VecDeque},
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

/// Header with a write's id.
const WRITE_HEADER: &str = "tributary.write";
/// How many write ids a table remembers: far more than there can be between a commit and the search for it.
const REMEMBERED_WRITES: usize = 1024;
/// Interval of checks that the broker answers.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit of such a check.
const PING_LIMIT: Duration = Duration::from_secs(2);
/// Time without an answer after which the broker counts as silent: one unanswered check and some margin.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// Transactions at least this old are logged as hanging; younger ones may belong to a healthy writer.
const HANGING_AGE: Duration = Duration::from_secs(1);

/// The state built from a topic's records.
pub trait TableState: Default + Send + Sync + 'static {
    /// Applies the next record of its partition. A record that cannot be parsed is logged and skipped; it never stops the table.
    fn apply(&mut self, record: &ConsumerRecord);

    /// The state before the first record, for reading the topic again.
    #[must_use]
    fn blank(&self) -> Self {
        Self::default()
    }
}

/// Identifies a write in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteMark {
    id: Bytes,
    /// Partitions of the table's topic that the write has records in.
    partitions: usize,
}

impl WriteMark {
    /// Marks the records of one write: the last one in each partition of `topic` gets the id.
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

/// A write id, unique across processes.
pub fn write_id() -> Bytes {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{:x}-{now:x}-{number}", std::process::id()).into()
}

/// The state and the ids of its latest writes.
struct TableContents<S> {
    state: S,
    /// Write id and partition. A record that is written again, as settling a hanging transaction does, counts once.
    writes: VecDeque<(Bytes, i32)>,
}

impl<S: TableState> TableContents<S> {
    fn new(state: S) -> Self {
        Self { state, writes: VecDeque::new() }
    }

    fn apply(&mut self, record: &ConsumerRecord) {
        self.state.apply(record);
        let Some((_, id)) = record.headers.iter().find(|(name, _)| name == WRITE_HEADER) else { return };
        let write = (id.clone(), record.partition);
        if self.writes.contains(&write) {
            return;
        }
        if self.writes.len() == REMEMBERED_WRITES {
            self.writes.pop_front();
        }
        self.writes.push_back(write);
    }

    fn has(&self, mark: &WriteMark) -> bool {
        self.writes.iter().filter(|(id, _)| *id == mark.id).count() >= mark.partitions
    }
}

/// A followed topic (read committed). Cheap to clone.
pub struct Table<S> {
    shared: Arc<SharedTable<S>>,
    task: Arc<AbortOnDropHandle<()>>,
}

impl<S> Clone for Table<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), task: Arc::clone(&self.task) }
    }
}

opaque_debug!(Table<S>);

impl<S: TableState> Table<S> {
    /// Starts to follow; [`Table::caught_up`] limits until everything written before has been read. An unreachable broker only
    /// delays.
    ///
    /// # Errors
    /// The client cannot be built.
    pub async fn follow(kafka: &Kafka, topic: &str, partitions: i32) -> Result<Self, Error> {
        Self::follow_from(S::default(), kafka, topic, partitions).await
    }

    /// As [`Table::follow`], with another state before the first record.
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
            progress: watch::Sender::new(ReadProgress { positions, ..ReadProgress::default() }),
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
    pub fn topic_partitions(&self) -> Vec<TopicPartition> {
        (0..self.partitions()).map(|partition| (Arc::clone(self.topic()), partition)).collect()
    }

    /// How many partitions are followed.
    #[must_use]
    pub fn partitions(&self) -> i32 {
        // The count came from an `i32`.
        i32::try_from(self.shared.progress.borrow().positions.len()).unwrap_or(i32::MAX)
    }

    /// Whether the topic is still followed; only a panic ends that.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Reads the state. Blocks the application of records, so `look` should be quick.
    pub fn read<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        self.contents(|contents| look(&contents.state))
    }

    fn contents<T>(&self, look: impl FnOnce(&TableContents<S>) -> T) -> T {
        look(&self.shared.contents.read())
    }

    /// The id of the last write that has been read.
    fn last_write(&self) -> Option<Bytes> {
        self.contents(|contents| contents.writes.back().map(|(id, _)| id.clone()))
    }

    /// Waits until all of a committed write has been read.
    ///
    /// # Errors
    /// It was not read within the limit.
    pub async fn read_back(&self, mark: &WriteMark, limit: Duration) -> Result<(), Error> {
        let mut changes = self.changes();
        // The sender lives as long as this table.
        let read = async {
            while !self.contents(|contents| contents.has(mark)) && changes.changed().await.is_ok() {}
        };
        let action = || format!("read {} back", self.topic());
        timeout(limit, read).await.map_err(|_| Error::Deadline { action: action(), limit })
    }

    /// A counter of changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Whether all partitions have been read to their end.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.shared.progress.borrow().caught_up
    }

    /// Waits for that.
    pub async fn caught_up(&self) {
        self.progressed(|progress| progress.caught_up).await;
    }

    /// Waits until the record at this offset, or a later one, has been read.
    ///
    /// # Errors
    /// It was not read within the limit.
    pub async fn read_past(&self, partition: i32, offset: i64, limit: Duration) -> Result<(), Error> {
        let action = || format!("read {} partition {partition} up to offset {offset}", self.shared.topic);
        let read = self.progressed(|progress| progress.is_past(partition, offset));
        timeout(limit, read).await.map_err(|_| Error::Deadline { action: action(), limit })
    }

    /// Waits until everything committed before the call has been read.
    ///
    /// The end offset of a partition cannot be waited for: transaction markers and compaction leave holes before it. So another
    /// consumer reads from this one's position, or from where the last call ended, and returns the offset of the last actual
    /// record. If nothing was written since the last call, there is no consumer.
    ///
    /// # Errors
    /// The broker did not answer, or the records did not arrive, within the limit.
    pub async fn read_to_end(&self, limit: Duration) -> Result<(), Error> {
        let all: Vec<i32> = (0..self.partitions()).collect();
        self.read_partitions_to_end(&all, ReadLimits::up_to(limit)).await
    }

    /// As [`Table::read_to_end`], for some partitions: open transactions in the others are not waited for.
    ///
    /// # Errors
    /// As [`Table::read_to_end`]; [`Error::Undecided`] if transactions stay open.
    pub async fn read_partitions_to_end(
        &self,
        partitions: &[i32],
        limits: ReadLimits<'_>,
    ) -> Result<(), Error> {
        let limit = limits.limit;
        let read = async {
            // The first read may have ended before the call.
            self.caught_up().await;
            let (starts, rebuilds) = {
                let progress = self.shared.progress.borrow();
                (progress.starts(partitions), progress.rebuilds)
            };
            let (last, ends) = match self.last_from(&starts, limits).await {
                // The log was truncated past our position.
                Err(Error::OffsetOutOfRange { .. }) => {
                    self.note(|progress| {
                        progress.ends.retain(|partition, _| !starts.contains_key(partition))
                    });
                    let start = starts.into_keys().map(|partition| (partition, None)).collect();
                    self.last_from(&start, limits).await?
                }
                other => other?,
            };
            self.progressed(|progress| last.iter().all(|(one, offset)| progress.is_past(*one, *offset)))
                .await;
            self.note(|progress| progress.reach(ends, rebuilds));
            Ok(())
        };
        let action = || format!("read {} to the end", self.shared.topic);
        timeout(limit, read).await.unwrap_or_else(|_| Err(Error::Deadline { action: action(), limit }))
    }

    /// Reads partitions to their end for a writer that has just taken its transactional id, so that no earlier transaction of the
    /// id can still be in progress. A transaction that stays open longer than `transaction_wait`, in these partitions or in those in
    /// `other_partitions`, hangs if it is of this id, and is ended. Transactions of other ids are waited for in the partitions that are read
    /// and ignored in the others; settling does not affect them.
    ///
    /// Nothing may be written before this has succeeded: a commit would make hanging records in the same partition visible.
    ///
    /// # Errors
    /// As [`Table::read_to_end`], or another owner has taken the id.
    pub async fn read_settled(
        &self,
        producer: &mut ShardProducer,
        partitions: &[i32],
        limits: ReadLimits<'_>,
    ) -> Result<(), Error> {
        let limit = limits.limit;
        let end = Instant::now() + limit;
        let open = match self.read_partitions_to_end(partitions, limits).await {
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
            // If a batch is missing or duplicated later, this is where it started.
            Ok(()) => {
                let is_old = |one: &&OpenTransaction| one.open_for.is_none_or(|age| age >= HANGING_AGE);
                let old: Vec<String> = open.iter().filter(is_old).map(ToString::to_string).collect();
                if !old.is_empty() {
                    tracing::warn!(id, open = old.join(", "), "ended hanging transactions of this id");
                }
            }
            Err(error) => tracing::debug!(id, %error, "transactions of others are open"),
        }
        read
    }

    /// How long the broker has not answered; `None` while it answers.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        let silent = self.shared.heard.lock().elapsed();
        (silent > SILENT_AFTER).then_some(silent)
    }

    /// The offset of the last record of each partition, if there is one after its start, and the end of each partition.
    async fn last_from(
        &self,
        starts: &BTreeMap<i32, Option<i64>>,
        limits: ReadLimits<'_>,
    ) -> Result<(BTreeMap<i32, i64>, BTreeMap<i32, i64>), Error> {
        let starts = starts
            .iter()
            .map(|(partition, start)| (*partition, start.map_or(StartOffset::Earliest, StartOffset::Offset)))
            .collect();
        let mut last = BTreeMap::new();
        let each = |record: ConsumerRecord| {
            last.insert(record.partition, record.offset);
        };
        let SharedTable { kafka, topic, .. } = &*self.shared;
        let ends = read_to_end_from(kafka, topic, &starts, &limits, each).await?;
        Ok((last, ends))
    }

    /// Changes the progress without waking those who wait for records.
    fn note(&self, change: impl FnOnce(&mut ReadProgress)) {
        self.shared.progress.send_if_modified(|progress| {
            change(progress);
            false
        });
    }

    async fn progressed(&self, wanted: impl FnMut(&ReadProgress) -> bool) {
        // The sender lives as long as we do.
        self.shared.progress.subscribe().wait_for(wanted).await.ok();
    }
}

/// Written by the task, read by the clones.
struct SharedTable<S> {
    kafka: Kafka,
    topic: Arc<str>,
    contents: RwLock<TableContents<S>>,
    /// How far `contents` has been read; updated after it.
    progress: watch::Sender<ReadProgress>,
    changes: watch::Sender<u64>,
    /// When the broker last answered.
    heard: Mutex<Instant>,
}

#[derive(Debug, Clone, Default)]
struct ReadProgress {
    caught_up: bool,
    /// The offset after the last record read, by partition; `None` before the first.
    positions: BTreeMap<i32, Option<i64>>,
    /// Ends up to which every record is in the state, by partition. Transaction markers put them after the positions.
    ends: BTreeMap<i32, i64>,
    /// How often the state was replaced.
    rebuilds: u64,
}

impl ReadProgress {
    /// Where a read to the end of these partitions starts; `None` at the first record.
    fn starts(&self, partitions: &[i32]) -> BTreeMap<i32, Option<i64>> {
        let known = self.positions.iter().filter(|(partition, _)| partitions.contains(partition));
        known.map(|(one, position)| (*one, (*position).max(self.ends.get(one).copied()))).collect()
    }

    /// Notes the ends that a read has reached, unless the state was replaced since its start: the new state may be that of
    /// another topic with the same name.
    fn reach(&mut self, ends: BTreeMap<i32, i64>, rebuilds: u64) {
        if self.rebuilds != rebuilds {
            return;
        }
        for (partition, end) in ends {
            let known = self.ends.entry(partition).or_insert(end);
            *known = end.max(*known);
        }
    }

    fn is_past(&self, partition: i32, offset: i64) -> bool {
        self.positions.get(&partition).copied().flatten().is_some_and(|position| position > offset)
    }
}
