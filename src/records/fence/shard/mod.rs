//! The fences of one shard: read, put, restored.
//!
//! Everything that writes is a job. Jobs wait in the order in which they were called for and run one at a time, each on a thread
//! that may block; nobody has to wait for one for it to be done.

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
    layout::{ShardKeys, ShardMeta},
    record::{self, FenceRecord},
};
use crate::store::{self, Change};

/// Entries in one commit of a restoration or removal, and their bytes unless one has more alone.
const CHUNK_ENTRIES: usize = 2_000;
const CHUNK_BYTES: usize = 1024 * 1024;
/// What is fetched to see how a log begins: its birth is the first record.
const BIRTH_FETCH_BYTES: usize = 64 * 1024;

/// What a restoration found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Records that were read and taken over.
    pub records: u64,
    /// Whether everything was read, not only what came since.
    pub from_start: bool,
    /// Of the partition; `None` if it has never been taken: its owner then writes a [`birth_record`](super::birth_record) before
    /// all else.
    pub birth: Option<String>,
}

/// Whether keys are known to a fence, for readers that may outlive it: this keeps no shard from its next owner.
#[derive(Clone)]
pub struct FenceLookup(Weak<ShardStore>);

impl FenceLookup {
    /// Whether a record of this topic was ever published under this key. A fence that is gone knows every key: nothing can be
    /// said against one. Blocks for microseconds.
    ///
    /// # Errors
    /// The store failed.
    pub fn knows(&self, topic: Topic, key: &str) -> Result<bool, Error> {
        let Some(core) = self.0.upgrade() else { return Ok(true) };
        let entry = core.keys.entry((Key::fences_of(topic, None) + key).as_bytes());
        Ok(core.opened.with(|database| database.get(&entry))?.is_some())
    }
}

/// The fences of one shard. See the module's head. Dropping it lets the next one have the shard once what was put is written.
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

    /// Reads the fences topic's partition of this shard to its end, from where this fence is good up to, and takes it over.
    /// Where the topic does not have that offset, or is not the one it was, everything is forgotten and read from the start. A
    /// call that is dropped or fails may be made again, and goes on where it can.
    ///
    /// # Errors
    /// Kafka did not give the records within `limit`, one of them cannot be understood, or the store failed.
    pub async fn restore(&mut self, kafka: &Kafka, topic: &str, limit: Duration) -> Result<Restored, Error> {
        let source = FencePartition { kafka, topic, shard: self.shard, limit, end: Instant::now() + limit };
        // From its turn on, no job is left that was called for before.
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

    /// The newest published stamp of a key; `key` is that of [`Key::fence`]. Blocks for microseconds.
    ///
    /// # Errors
    /// The store failed; the shard has to be taken anew.
    pub fn get(&self, key: &Key) -> Result<Option<Stamp>, Error> {
        let core = &self.core;
        let entry = core.keys.entry(key.as_str().as_bytes());
        let Some(value) = core.opened.with(|database| database.get(&entry))? else { return Ok(None) };
        serde_json::from_slice(&value).map(Some).map_err(|error| core.broken("read a stamp", error))
    }

    /// Looks keys up without holding the shard.
    #[must_use]
    pub fn lookup(&self) -> FenceLookup {
        FenceLookup(Arc::downgrade(&self.core))
    }

    /// Keeps what a committed batch has written, and the offset behind it ([`kafka::CommittedBatch::next_offset`]) if it is known.
    /// It is on its way by the time this returns, also if nobody waits for the future, and comes after what was put before.
    /// To be called within a runtime.
    ///
    /// # Errors
    /// The store failed; the shard has to be taken anew.
    pub fn put(
        &self,
        entries: Vec<(Key, Stamp)>,
        behind: Option<i64>,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.run(move |core| {
            let mut chunk = Chunk::default();
            for (key, stamp) in &entries {
                let (key, value) = record::record(key, stamp);
                chunk.add(key, Some(value));
            }
            core.apply(chunk, |position| {
                // Before the fence is restored, something below may be missing.
                let is_restored = core.is_restored.load(Ordering::Acquire);
                position.map(|position| behind.filter(|_| is_restored).unwrap_or(position).max(position))
            })
        })
    }

    /// How many keys have a stamp. Exact once restored.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.core.meta.lock().entries
    }

    /// How many keys of a topic have a stamp.
    #[must_use]
    pub fn entries_of(&self, topic: Topic) -> u64 {
        self.core.meta.lock().topics.get(&topic.suffix()).copied().unwrap_or_default()
    }

    fn restored(&self, records: u64, from_start: bool) -> Restored {
        Restored { records, from_start, birth: self.core.meta.lock().birth.clone() }
    }

    /// Reads to the end and takes over what comes, in chunks; how many records. `None` where it turns out that the partition has
    /// another birth than expected.
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
                let (chunk, behind) = (mem::take(&mut chunk), received.offset + 1);
                self.run(move |core| core.apply(chunk, |_| Some(behind))).await?;
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

    /// Has a job done, after those called for before.
    fn run<T, F>(&self, job: F) -> impl Future<Output = Result<T, Error>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&ShardStore) -> Result<T, Error> + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let core = Arc::clone(&self.core);
        let job: Job = Box::new(move |core| drop(done.send(job(core))));
        core.jobs.lock().push_back(job);
        // As many threads come as there are jobs, and each takes the oldest.
        drop(spawn_blocking(move || core.run_oldest()));
        async move { outcome.await.unwrap_or(Err(Error::Stopped)) }
    }
}

type Job = Box<dyn FnOnce(&ShardStore) + Send>;

/// What fence and jobs share.
pub(super) struct ShardStore {
    keys: ShardKeys,
    opened: Arc<OpenDatabase>,
    /// As in the store.
    meta: Mutex<ShardMeta>,
    is_restored: AtomicBool,
    jobs: Mutex<VecDeque<Job>>,
    /// Held by the job that runs.
    turn: Mutex<()>,
    /// Until the last job is done.
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
                    action: "read what is known of a shard",
                    source: error.into(),
                })
            };
            let meta = found.map_or_else(|| Ok(ShardMeta::default()), |json| serde_json::from_slice(&json));
            let meta = meta.map_err(broken)?;
            Ok((opened, meta))
        };
        let loaded = match load() {
            // What cannot be read is made anew, once.
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

    /// Writes entries, count, birth and the position that `moved` makes of the one there is, in one commit.
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
                Some(value) => Change::Put(key, value.to_vec()),
                None => Change::Delete(key),
            });
        }
        let json = serde_json::to_vec(&meta)
            .map_err(|error| self.broken("write what is known of a shard", error))?;
        changes.push(Change::Put(self.keys.meta(), json));
        self.opened.commit(changes)?;
        *self.meta.lock() = meta;
        Ok(())
    }

    /// Removes everything, what it is good for first.
    fn forget(&self) -> Result<(), Error> {
        *self.meta.lock() = ShardMeta::default();
        self.opened.commit(vec![Change::Delete(self.keys.meta())])?;
        let (from, to) = self.keys.entries();
        loop {
            let mut removals = Vec::new();
            self.opened.with(|database| {
                database.visit(&from, &to, &mut |key, _| {
                    removals.push(Change::Delete(key.to_vec()));
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

/// What one commit takes over: the last of each key.
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

/// The partition a fence is restored from.
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

    /// Whether the log is still the one that has this birth before the position. It is the first record there, so that this is
    /// one fetch; where it was written later, more.
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
