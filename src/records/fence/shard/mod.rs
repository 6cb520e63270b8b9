//! The fence of one shard: get, put, restore.
//!
//! Each write is a job. Jobs run one at a time in call order, on blocking threads, and complete even if their future is dropped.

mod known;

use std::{
    collections::{HashMap, VecDeque},
    mem,
    ops::ControlFlow,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedMutexGuard, oneshot},
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use kafka::{
    Assignment, Consumer, ConsumerEvent, ConsumerOptions, ConsumerRecord, Kafka, ReadLimits, ReadToEnd,
    StartOffset,
};
use model::{Key, Stamp, Topic};

use super::{
    Error,
    cache::{FenceCache, OpenDatabase},
    record::{self, FenceRecord, ShardKeys, ShardMeta},
};
use crate::store::{self, StoreChange};

/// Entries per commit while restoring or removing.
const CHUNK_ENTRIES: usize = 2_000;
/// Bytes per commit while restoring; a single larger entry is allowed.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Bytes to fetch for the birth, which is the first record of a log.
const BIRTH_FETCH_BYTES: usize = 64 * 1024;

/// Result of a restoration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Number of records read.
    pub records: u64,
    /// Whether the partition was read from its start, not only from the last position.
    pub from_start: bool,
    /// Birth of the partition; `None` if it never had an owner. Then its owner writes a [`birth_record`](super::birth_record) first.
    pub birth: Option<String>,
}

/// Looks keys up in a fence without keeping it open, so that its next owner need not wait.
#[derive(Clone)]
pub struct FenceLookup(Weak<ShardStore>);

impl FenceLookup {
    /// Whether a record of this topic was ever published under this key; true for every key after the fence was dropped. Blocks for
    /// microseconds.
    ///
    /// # Errors
    /// The database failed.
    pub fn knows(&self, topic: Topic, key: &str) -> Result<bool, Error> {
        let Some(core) = self.0.upgrade() else { return Ok(true) };
        let entry = core.keys.entry((Key::fences_of(topic, None) + key).as_bytes());
        Ok(core.opened.with(|database| database.get(&entry))?.is_some())
    }
}

/// The newest published stamps of one shard. After a drop, the next fence of the shard opens once all puts are written.
pub struct ShardFence {
    core: Arc<ShardStore>,
    shard: i32,
}

impl ShardFence {
    pub(super) fn new(core: ShardStore, shard: i32) -> Self {
        Self { core: Arc::new(core), shard }
    }

    #[cfg(test)]
    pub(super) fn position(&self) -> Option<i64> {
        self.core.meta.lock().position
    }

    /// Reads the shard's partition of the fences topic from the position of this fence to the end. If the topic lacks that offset or
    /// was recreated, all entries are dropped and the partition is read from the start. A call that fails or is dropped may be
    /// repeated, and resumes if possible.
    ///
    /// # Errors
    /// Kafka did not deliver the records within `limit`, one of them cannot be parsed, or the database failed.
    pub async fn restore(&mut self, kafka: &Kafka, topic: &str, limit: Duration) -> Result<Restored, Error> {
        let source = FencePartition { kafka, topic, shard: self.shard, limit, end: Instant::now() + limit };
        // This job runs after all earlier ones.
        let meta = self.run(|core| {
            core.is_restored.store(false, Ordering::Release);
            Ok(core.meta.lock().clone())
        });
        if let ShardMeta { position: Some(position), birth: Some(birth), .. } = meta.await?
            && source.has_birth(&birth, position).await?
        {
            match self.read(&source, StartOffset::Offset(position), Some(&birth)).await {
                Ok(Some(records)) => return Ok(self.restored(records, false)),
                Ok(None) => {}
                Err(Error::Read { source, .. })
                    if matches!(*source, kafka::Error::OffsetOutOfRange { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.run(ShardStore::forget).await?;
        let records = self.read(&source, StartOffset::Earliest, None).await?.unwrap_or_default();
        Ok(self.restored(records, true))
    }

    /// The newest published stamp of a key; `key` comes from [`Key::fence`]. Blocks for microseconds.
    ///
    /// # Errors
    /// The database failed; the shard must be opened again.
    pub fn get(&self, key: &Key) -> Result<Option<Stamp>, Error> {
        let core = &self.core;
        let entry = core.keys.entry(key.as_str().as_bytes());
        let Some(value) = core.opened.with(|database| database.get(&entry))? else { return Ok(None) };
        serde_json::from_slice(&value).map(Some).map_err(|error| core.broken("read a stamp", error))
    }

    /// A lookup that does not keep the fence open.
    #[must_use]
    pub fn lookup(&self) -> FenceLookup {
        FenceLookup(Arc::downgrade(&self.core))
    }

    /// Stores the entries of a committed batch, and the offset after it ([`kafka::CommittedBatch::next_offset`]) if known. The write
    /// is queued when this returns, after all earlier puts, and happens even if the future is dropped. Call it within a runtime.
    ///
    /// # Errors
    /// The database failed; the shard must be opened again.
    pub fn put(
        &self,
        entries: Vec<(Key, Stamp)>,
        next_offset: Option<i64>,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.run(move |core| {
            let mut chunk = Chunk::default();
            for (key, stamp) in &entries {
                let (key, value) = record::record(key, stamp);
                chunk.add(key, Some(value));
            }
            core.apply(chunk, |position| {
                // Before the restoration, earlier entries may be missing.
                let is_restored = core.is_restored.load(Ordering::Acquire);
                position.map(|position| next_offset.filter(|_| is_restored).unwrap_or(position).max(position))
            })
        })
    }

    /// Number of keys with a stamp. Exact after the restoration.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.core.meta.lock().entries
    }

    /// Number of keys of a topic with a stamp.
    #[must_use]
    pub fn entries_of(&self, topic: Topic) -> u64 {
        self.core.meta.lock().topics.get(&topic.suffix()).copied().unwrap_or_default()
    }

    fn restored(&self, records: u64, from_start: bool) -> Restored {
        Restored { records, from_start, birth: self.core.meta.lock().birth.clone() }
    }

    /// Reads to the end and stores entries in chunks. Returns the number of records, or `None` if the partition has another birth than
    /// `expected`.
    async fn read(
        &self,
        source: &FencePartition<'_>,
        start: StartOffset,
        expected: Option<&str>,
    ) -> Result<Option<u64>, Error> {
        let mut reading = source.begin(start).await?;
        let mut records = 0;
        let mut chunk = Chunk::default();
        while let Some(received) = reading.next().await.map_err(|error| source.failed(error))? {
            records += 1;
            match source.parse(&received)? {
                FenceRecord::Entry(key, value) => chunk.add(key, value),
                FenceRecord::Birth(birth) if expected.is_some_and(|expected| expected != birth) => {
                    return Ok(None);
                }
                FenceRecord::Birth(birth) => chunk.birth = Some(birth),
                FenceRecord::Other => {}
            }
            if chunk.is_full() {
                let (chunk, next_offset) = (mem::take(&mut chunk), received.offset + 1);
                self.run(move |core| core.apply(chunk, |_| Some(next_offset))).await?;
            }
        }
        let end = reading.positions().get(&source.shard).copied();
        let last = self.run(move |core| {
            core.apply(chunk, |position| end.or(position))?;
            core.is_restored.store(true, Ordering::Release);
            Ok(())
        });
        last.await?;
        Ok(Some(records))
    }

    /// Queues a job and returns its result.
    fn run<T, F>(&self, job: F) -> impl Future<Output = Result<T, Error>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&ShardStore) -> Result<T, Error> + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let core = Arc::clone(&self.core);
        let job: Job = Box::new(move |core| drop(done.send(job(core))));
        core.jobs.lock().push_back(job);
        // One thread per job; each runs the oldest one.
        drop(spawn_blocking(move || core.run_oldest()));
        async move { outcome.await.unwrap_or(Err(Error::Stopped)) }
    }
}

type Job = Box<dyn FnOnce(&ShardStore) + Send>;

/// State that the fence shares with its jobs.
pub(super) struct ShardStore {
    keys: ShardKeys,
    opened: Arc<OpenDatabase>,
    /// As last committed.
    meta: Mutex<ShardMeta>,
    is_restored: AtomicBool,
    jobs: Mutex<VecDeque<Job>>,
    /// Held by the job that runs.
    turn: Mutex<()>,
    /// Held until the last job has finished.
    _claim: OwnedMutexGuard<()>,
}

impl ShardStore {
    /// Blocks.
    pub(super) fn open(
        cache: &FenceCache,
        keys: ShardKeys,
        claim: OwnedMutexGuard<()>,
    ) -> Result<Self, Error> {
        let load = || {
            let opened = cache.opened()?;
            let found = opened.with(|database| database.get(&keys.meta()))?;
            let broken = |error: serde_json::Error| {
                opened.fail(store::Error::Broken {
                    action: "read the metadata of a shard",
                    source: error.into(),
                })
            };
            let meta = found.map_or_else(|| Ok(ShardMeta::default()), |json| serde_json::from_slice(&json));
            let meta = meta.map_err(broken)?;
            Ok((opened, meta))
        };
        let loaded = match load() {
            // The failed database is reopened once, and recreated if it is corrupt.
            Err(Error::Store { source: Some(_), .. }) => load(),
            loaded => loaded,
        };
        let (opened, meta) = loaded?;
        Ok(Self {
            keys,
            opened,
            meta: Mutex::new(meta),
            is_restored: AtomicBool::new(false),
            jobs: Mutex::default(),
            turn: Mutex::default(),
            _claim: claim,
        })
    }

    fn run_oldest(&self) {
        let _turn = self.turn.lock();
        let oldest = self.jobs.lock().pop_front();
        if let Some(job) = oldest {
            job(self);
        }
    }

    /// Writes entries, counts, birth and position in one commit; `moved` derives the position from the current one.
    fn apply(&self, chunk: Chunk, moved: impl FnOnce(Option<i64>) -> Option<i64>) -> Result<(), Error> {
        let mut meta = self.meta.lock().clone();
        meta.position = moved(meta.position);
        if chunk.birth.is_some() {
            meta.birth = chunk.birth;
        }
        let mut changes = Vec::with_capacity(chunk.entries.len() + 1);
        for (key, value) in chunk.entries {
            let text = key;
            let key = self.keys.entry(&text);
            let was_there = self.opened.with(|database| database.get(&key))?.is_some();
            if was_there != value.is_some() {
                meta.count(&text, value.is_some());
            }
            changes.push(match value {
                Some(value) => StoreChange::Put(key, value.to_vec()),
                None => StoreChange::Delete(key),
            });
        }
        let json =
            serde_json::to_vec(&meta).map_err(|error| self.broken("write the metadata of a shard", error))?;
        changes.push(StoreChange::Put(self.keys.meta(), json));
        self.opened.commit(changes)?;
        *self.meta.lock() = meta;
        Ok(())
    }

    /// Removes all entries; the metadata first, so that a crash leaves no position.
    fn forget(&self) -> Result<(), Error> {
        *self.meta.lock() = ShardMeta::default();
        self.opened.commit(vec![StoreChange::Delete(self.keys.meta())])?;
        let (from, to) = self.keys.entries();
        loop {
            let mut removals = Vec::new();
            self.opened.with(|database| {
                database.visit(&from, &to, &mut |key, _| {
                    removals.push(StoreChange::Delete(key.to_vec()));
                    if removals.len() < CHUNK_ENTRIES {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })
            })?;
            if removals.is_empty() {
                return Ok(());
            }
            self.opened.commit(removals)?;
        }
    }

    fn broken(&self, action: &'static str, error: serde_json::Error) -> Error {
        self.opened.fail(store::Error::Broken { action, source: error.into() })
    }
}

/// Entries of one commit, the last per key.
#[derive(Default)]
struct Chunk {
    entries: HashMap<Bytes, Option<Bytes>>,
    bytes: usize,
    birth: Option<String>,
}

impl Chunk {
    fn add(&mut self, key: Bytes, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.entries.insert(key, value);
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= CHUNK_ENTRIES || self.bytes >= CHUNK_BYTES
    }
}

/// The partition from which a fence is restored.
struct FencePartition<'a> {
    kafka: &'a Kafka,
    topic: &'a str,
    shard: i32,
    limit: Duration,
    end: Instant,
}

impl FencePartition<'_> {
    async fn begin(&self, start: StartOffset) -> Result<ReadToEnd, Error> {
        let left = self.end.saturating_duration_since(Instant::now());
        let starts = [(self.shard, start)].into();
        let reading = ReadToEnd::begin(self.kafka, self.topic, &starts, &ReadLimits::up_to(left)).await;
        reading.map_err(|error| self.failed(error))
    }

    /// Whether the log still has this birth before the position. The birth is the first record, so this takes one fetch, or more if
    /// it was written later.
    async fn has_birth(&self, birth: &str, position: i64) -> Result<bool, Error> {
        let assignment =
            Assignment { topic: self.topic.into(), partition: self.shard, start: StartOffset::Earliest };
        let options = ConsumerOptions {
            prefetch_bytes: BIRTH_FETCH_BYTES,
            connect_limit: self.end.saturating_duration_since(Instant::now()),
            ..ConsumerOptions::default()
        };
        let look = async {
            let opened = Consumer::assign(self.kafka, vec![assignment], &options).await;
            let mut consumer = opened.map_err(|error| self.failed(error))?;
            while let ConsumerEvent::Record(received) =
                consumer.next().await.map_err(|error| self.failed(error))?
            {
                if received.offset >= position {
                    break;
                }
                if let FenceRecord::Birth(found) = self.parse(&received)? {
                    return Ok(found == birth);
                }
            }
            Ok(false)
        };
        timeout_at(self.end, look).await.unwrap_or_else(|_| {
            let action = format!("read the beginning of {} partition {}", self.topic, self.shard);
            Err(self.failed(kafka::Error::Deadline { action, limit: self.limit }))
        })
    }

    fn parse(&self, received: &ConsumerRecord) -> Result<FenceRecord, Error> {
        record::parse(received, self.shard).map_err(|source| Error::Record {
            topic: self.topic.to_owned(),
            partition: self.shard,
            offset: received.offset,
            source: Arc::new(source),
        })
    }

    fn failed(&self, source: kafka::Error) -> Error {
        Error::Read { topic: self.topic.to_owned(), partition: self.shard, source: Box::new(source) }
    }
}
