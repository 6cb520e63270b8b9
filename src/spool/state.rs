//! State shared by callers, readers and the writer: the queue, the index of the databases, and admission.
//!
//! The index holds the sequences of each lane, about two bytes an entry, and decides what a reader sees: an entry is in it from
//! the commit of its append until its removal. There is one queue, in the order of the calls, so that a removal never
//! overtakes the append before it. Entries in the queue are bounded in bytes, removals by the number of entries.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use roaring::RoaringTreemap;
use tokio::sync::{oneshot, watch};

use base::metrics;

use super::{
    Error, Foreign, Lane, LaneState, Outside, SpoolBatch, SpoolEntry, SpoolFailures, SpoolOptions, Totals,
    entry, milliseconds, scan::scan,
};
use crate::store::Database;

/// Size that decides whether there is room; nearly all entries are smaller.
const ORDINARY_BYTES: u64 = 16 * 1024;

/// Lane and sequence: what identifies an entry.
pub(super) type Key = (Lane, u64);

/// Entries to write: payload, and the time of the append in milliseconds since 1970.
pub(super) type Puts = HashMap<Key, (Bytes, u64)>;

/// A task of the writer.
pub(super) enum WriterOperation {
    Append {
        entry: SpoolEntry,
        /// Milliseconds since 1970.
        at: u64,
        done: oneshot::Sender<Result<(), Error>>,
    },
    Remove {
        key: Key,
        /// Numbers of the databases whose index had it.
        from: Vec<u64>,
    },
    Disown(Key),
    /// Requests the state of the lanes after all earlier operations.
    Lanes(oneshot::Sender<Vec<LaneState>>),
}

/// An entry that could not be read.
struct Damaged {
    /// Its position among the entries of the read.
    position: usize,
    /// Of its database.
    number: u64,
    sequence: u64,
}

/// One database, and an index of the entries that were not removed from it.
pub(super) struct Generation {
    pub(super) number: u64,
    /// A time no later than the first entry.
    pub(super) since: SystemTime,
    pub(super) database: Arc<dyn Database>,
    /// Sequences by lane; no lane is empty.
    lanes: HashMap<Lane, RoaringTreemap>,
    entries: u64,
    /// Of keys and values. Includes those of removed entries until the removal is written, and of entries that cannot be read.
    pub(super) bytes: u64,
    pub(super) foreign: Foreign,
    /// A commit failed: it is not written to any more. Removals from it are lost at a restart.
    pub(super) failed: bool,
    /// Stretches that cannot be read. With any it is moved aside instead of removed.
    pub(super) unreadable: u64,
    /// Bytes committed since it was created; for a reopened one, its bytes on disk at that time and all committed since.
    pub(super) written: u64,
}

#[derive(Default)]
pub(super) struct SpoolState {
    /// Oldest first. The last is written to unless it has failed.
    pub(super) generations: Vec<Generation>,
    pub(super) queue: VecDeque<WriterOperation>,
    /// Bytes of entries that wait for the writer or are being written.
    pub(super) waiting: u64,
    pub(super) limit_bytes: u64,
    /// Highest sequence found at open or appended since.
    pub(super) highest: u64,
    /// When the oldest entry was appended, as of the last measurement, in milliseconds since 1970.
    pub(super) oldest_at: Option<u64>,
    pub(super) outside: Outside,
    /// Free disk as of the last measurement, less the entries accepted since.
    pub(super) free_bytes: Option<u64>,
    /// Why no entry is accepted at the moment.
    pub(super) refuses: Option<Error>,
    stage: SpoolStage,
}

#[derive(Default, PartialEq, Eq)]
enum SpoolStage {
    #[default]
    Open,
    /// Refuses new entries; the writer writes what is queued.
    Closing,
    /// The writer has ended.
    Closed,
}

pub(super) struct SpoolCore {
    pub(super) options: SpoolOptions,
    state: Mutex<SpoolState>,
    /// The writer waits here.
    wake: Condvar,
    pub(super) failures: watch::Sender<SpoolFailures>,
}

impl Generation {
    /// Indexes the entries of an open database.
    pub(super) fn new(number: u64, database: Box<dyn Database>, since: SystemTime, written: u64) -> Self {
        let mut generation = Self {
            number,
            since,
            database: Arc::from(database),
            lanes: HashMap::new(),
            entries: 0,
            bytes: 0,
            foreign: Foreign::default(),
            failed: false,
            unreadable: 0,
            written,
        };
        let database = Arc::clone(&generation.database);
        generation.unreadable =
            scan(&*database, &mut |lane, sequence, size| generation.insert(&(lane, sequence), size));
        generation
    }

    /// An entry that replaces one of the same key has the same size.
    fn insert(&mut self, (lane, sequence): &Key, size: u64) {
        if self.lanes.entry(lane.clone()).or_default().insert(*sequence) {
            self.entries += 1;
            self.bytes += size;
        }
    }

    /// Takes the entry out of the index, and returns whether it was in it.
    fn remove(&mut self, (lane, sequence): &Key) -> bool {
        let Some(sequences) = self.lanes.get_mut(lane) else { return false };
        let removed = sequences.remove(*sequence);
        if sequences.is_empty() {
            self.lanes.remove(lane);
        }
        self.entries -= u64::from(removed);
        removed
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Whether it may be removed: entries of other versions have to stay.
    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0 && self.foreign.entries == 0
    }

    /// Key of the entry with the lowest sequence, which is the oldest.
    pub(super) fn oldest(&self) -> Option<Vec<u8>> {
        let firsts = self.lanes.iter().filter_map(|(lane, sequences)| Some((sequences.min()?, lane)));
        firsts.min().map(|(sequence, lane)| lane.key(sequence))
    }
}

impl SpoolState {
    fn is_closing(&self) -> bool {
        self.stage != SpoolStage::Open
    }

    pub(super) fn generation(&mut self, number: u64) -> Option<&mut Generation> {
        self.generations.iter_mut().find(|generation| generation.number == number)
    }

    /// Takes the entry out of every index, and returns the numbers of the databases that have it.
    pub(super) fn forget(&mut self, key: &Key) -> Vec<u64> {
        let held = self.generations.iter_mut().filter_map(|held| held.remove(key).then_some(held.number));
        held.collect()
    }

    /// Indexes entries that this database has on disk now, and returns keys that older ones have, too.
    pub(super) fn insert(&mut self, number: u64, puts: &Puts) -> Vec<(u64, Key)> {
        let mut older = Vec::new();
        if puts.is_empty() {
            return older;
        }
        for (key, (payload, _)) in puts {
            for held in &mut self.generations {
                if held.number == number {
                    held.insert(key, key.0.size(payload));
                } else if held.remove(key) {
                    older.push((held.number, key.clone()));
                }
            }
        }
        // Removals that were queued during the write did not find these entries.
        let mut queue = std::mem::take(&mut self.queue);
        for operation in &mut queue {
            match operation {
                WriterOperation::Remove { key, from } if puts.contains_key(key) => {
                    from.extend(self.forget(key))
                }
                _ => {}
            }
        }
        self.queue = queue;
        older
    }

    /// A time no later than the first entry of any database that has one.
    pub(super) fn oldest_database(&self) -> Option<u64> {
        let held = self.generations.iter().filter(|held| held.entries > 0);
        held.map(|held| milliseconds(held.since)).min()
    }

    /// Clears the bytes of databases without entries: removals whose lookup failed, and damage, subtract nothing.
    pub(super) fn drop_stale_bytes(&mut self) {
        let queue = &self.queue;
        let is_removed_from = |number| {
            queue
                .iter()
                .any(|one| matches!(one, WriterOperation::Remove { from, .. } if from.contains(&number)))
        };
        for held in self.generations.iter_mut().filter(|held| held.entries == 0 && held.bytes > 0) {
            if !is_removed_from(held.number) {
                held.bytes = 0;
            }
        }
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for generation in &self.generations {
            totals.entries += generation.entries;
            totals.bytes += generation.bytes;
            totals.foreign = totals.foreign.with(generation.foreign);
        }
        let oldest_at = self.oldest_at.filter(|_| totals.entries > 0);
        totals.oldest_age =
            oldest_at.map(|at| Duration::from_millis(milliseconds(SystemTime::now()).saturating_sub(at)));
        totals
    }

    pub(super) fn lanes(&self) -> Vec<LaneState> {
        let mut lanes: BTreeMap<&Lane, LaneState> = BTreeMap::new();
        for (lane, sequences) in self.generations.iter().flat_map(|generation| &generation.lanes) {
            let oldest = sequences.min().unwrap_or_default();
            let empty = || LaneState { lane: lane.clone(), entries: 0, oldest_sequence: oldest };
            let state = lanes.entry(lane).or_insert_with(empty);
            state.entries += sequences.len();
            state.oldest_sequence = state.oldest_sequence.min(oldest);
        }
        lanes.into_values().collect()
    }

    /// Whether the lane has entries.
    pub(super) fn holds(&self, lane: &Lane) -> Result<bool, Error> {
        if self.is_closing() {
            return Err(Error::Closed);
        }
        Ok(self.generations.iter().any(|generation| generation.lanes.contains_key(lane)))
    }

    /// Sequences of the lane above `after`, at most `most`, each with the newest database that has it.
    fn find(&self, lane: &Lane, after: Option<u64>, most: usize) -> BTreeMap<u64, (u64, Arc<dyn Database>)> {
        let Some(from) = after.map_or(Some(0), |after| after.checked_add(1)) else { return BTreeMap::new() };
        let mut found = BTreeMap::new();
        for generation in &self.generations {
            let Some(sequences) = generation.lanes.get(lane) else { continue };
            let mut sequences = sequences.iter();
            sequences.advance_to(from);
            let place = || (generation.number, Arc::clone(&generation.database));
            found.extend(sequences.take(most).map(|sequence| (sequence, place())));
        }
        while found.len() > most {
            found.pop_last();
        }
        found
    }

    /// Checks that an entry of this size fits.
    fn admit(&self, size: u64, options: &SpoolOptions) -> Result<(), Error> {
        if self.is_closing() {
            return Err(Error::Closed);
        }
        if let Some(reason) = &self.refuses {
            return Err(reason.clone());
        }
        let Totals { bytes, foreign, .. } = self.totals();
        if bytes + foreign.bytes + self.waiting + size > self.limit_bytes {
            return Err(Error::LimitReached);
        }
        if self.free_bytes.is_some_and(|free| free < options.reserve_bytes.saturating_add(size)) {
            return Err(Error::DiskFull);
        }
        // A single entry is accepted at any size.
        if self.waiting > 0 && self.waiting + size > options.queue_bytes {
            return Err(Error::Busy);
        }
        Ok(())
    }
}

impl SpoolCore {
    pub(super) fn new(options: SpoolOptions, generations: Vec<Generation>, outside: Outside) -> Self {
        let limit_bytes = options.limit_bytes;
        metrics::spool_limited(limit_bytes);
        let sequences = generations.iter().flat_map(|generation| generation.lanes.values());
        let highest = sequences.filter_map(RoaringTreemap::max).max().unwrap_or_default();
        let shared = Self {
            state: Mutex::new(SpoolState {
                generations,
                limit_bytes,
                highest,
                outside,
                ..SpoolState::default()
            }),
            options,
            wake: Condvar::new(),
            failures: watch::Sender::default(),
        };
        for Generation { number, since, unreadable, .. } in &shared.state().generations {
            shared.report_unreadable(*number, *unreadable, *since);
        }
        shared
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SpoolState> {
        self.state.lock()
    }

    /// Queues the entry. The receiver answers when it is on disk.
    pub(super) fn append(&self, entry: SpoolEntry) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        entry.lane.check()?;
        let size = entry.lane.size(&entry.payload);
        let (done, outcome) = oneshot::channel();
        let mut state = self.state();
        state.admit(size, &self.options)?;
        state.waiting += size;
        state.highest = state.highest.max(entry.sequence);
        state.free_bytes = state.free_bytes.map(|free| free.saturating_sub(size));
        self.push(state, WriterOperation::Append { entry, at: milliseconds(SystemTime::now()), done });
        Ok(outcome)
    }

    /// Hides the entry from readers and queues its removal.
    pub(super) fn remove(&self, key: Key) {
        let mut state = self.state();
        if state.stage != SpoolStage::Closed {
            let from = state.forget(&key);
            self.push(state, WriterOperation::Remove { key, from });
        }
    }

    /// Queues an operation; refused once the spool is closing.
    pub(super) fn ask(&self, operation: WriterOperation) -> Result<(), Error> {
        let state = self.state();
        if state.is_closing() {
            return Err(Error::Closed);
        }
        self.push(state, operation);
        Ok(())
    }

    fn push(&self, mut state: MutexGuard<'_, SpoolState>, operation: WriterOperation) {
        state.queue.push_back(operation);
        drop(state);
        self.wake.notify_one();
    }

    /// Why an ordinary entry would be refused now.
    pub(super) fn refuses(&self) -> Option<Error> {
        self.state().admit(ORDINARY_BYTES, &self.options).err()
    }

    /// Refuses new entries; the writer ends after the waiting operations.
    pub(super) fn close(&self) {
        let mut state = self.state();
        if state.stage == SpoolStage::Open {
            state.stage = SpoolStage::Closing;
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Called when the writer has ended: dropping the waiting operations refuses them.
    pub(super) fn gone(&self) {
        let mut state = self.state();
        state.stage = SpoolStage::Closed;
        let waiting = std::mem::take(&mut state.queue);
        drop(state);
        drop(waiting);
    }

    /// The next operations, at most `count` and `bytes` of entries but at least one; an empty list after `timeout`, and
    /// `None` when the spool is closing and the queue is empty.
    pub(super) fn take(&self, count: usize, bytes: u64, timeout: Duration) -> Option<Vec<WriterOperation>> {
        let mut state = self.state();
        self.wake.wait_while_for(&mut state, |state| state.queue.is_empty() && !state.is_closing(), timeout);
        if state.queue.is_empty() && state.is_closing() {
            return None;
        }
        let (mut taken, mut fitting) = (0, 0);
        for operation in state.queue.iter().take(count) {
            if let WriterOperation::Append { entry, .. } = operation {
                taken += entry.lane.size(&entry.payload);
                if taken > bytes && fitting > 0 {
                    break;
                }
            }
            fitting += 1;
        }
        Some(state.queue.drain(..fitting).collect())
    }

    /// Entries of the lane above `after`, in order, as [`super::Spool::read`] returns them.
    pub(super) fn read(
        &self,
        lane: &Lane,
        after: Option<u64>,
        most: usize,
        bytes: usize,
    ) -> Result<SpoolBatch, Error> {
        loop {
            let found = self.state().find(lane, after, most.saturating_add(1));
            let mut batch = SpoolBatch { entries: Vec::new(), more: found.len() > most };
            let (mut read, mut damaged) = (0, Vec::new());
            for (position, (sequence, (number, database))) in found.into_iter().take(most).enumerate() {
                let value = match database.get(&lane.key(sequence)) {
                    Err(error) if error.is_passing() => return Err(error.into()),
                    value => value.ok().flatten(),
                };
                let Some(payload) = value.and_then(entry::payload) else {
                    damaged.push(Damaged { position, number, sequence });
                    continue;
                };
                read += payload.len();
                if read > bytes && !batch.entries.is_empty() {
                    batch.more = true;
                    break;
                }
                batch.entries.push(SpoolEntry { lane: lane.clone(), sequence, payload });
            }
            self.leave_out(lane, &damaged);
            if damaged.is_empty() || !batch.entries.is_empty() {
                return Ok(batch);
            }
        }
    }

    /// Removes unreadable entries from the index, unless they were removed meanwhile. Neighbors are one stretch.
    fn leave_out(&self, lane: &Lane, damaged: &[Damaged]) {
        let is_next =
            |one: &Damaged, next: &Damaged| one.number == next.number && one.position + 1 == next.position;
        for stretch in damaged.chunk_by(is_next) {
            let number = stretch[0].number;
            let mut state = self.state();
            let Some(generation) = state.generation(number) else { continue };
            let removed =
                stretch.iter().filter(|one| generation.remove(&(lane.clone(), one.sequence))).count();
            if removed > 0 {
                generation.unreadable += 1;
                let since = generation.since;
                drop(state);
                self.report_unreadable(number, 1, since);
            }
        }
    }

    fn report_unreadable(&self, database: u64, stretches: u64, since: SystemTime) {
        if stretches == 0 {
            return;
        }
        metrics::spool_unreadable(stretches);
        tracing::error!(
            database,
            stretches,
            "spool has entries that cannot be read; the others are published, and the database is kept"
        );
        self.failures.send_modify(|failures| {
            failures.unreadable += stretches;
            failures.unreadable_since = [failures.unreadable_since, Some(since)].into_iter().flatten().min();
        });
    }
}
