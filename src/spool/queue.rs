//! What callers and the writer share: the queue between them, what may enter it, and the databases to read.
//!
//! One queue in the order of the calls, so that a removal is never overtaken by the append it is about. Entries are bounded
//! in bytes; removals by the entries there are, since each is about one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque, btree_map},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use tokio::sync::{oneshot, watch};

use base::metrics;

use super::{
    Error, Failures, Foreign, LaneState, Options, Outside, Room,
    entry::{Entry, Lane},
    generation::Generation,
};

/// Bytes that nearly every entry has less than.
const ORDINARY: u64 = 16 * 1024;

/// Answered when the entry is on disk.
pub(super) type Done = oneshot::Sender<Result<(), Error>>;

/// Something for the writer.
#[derive(Debug)]
pub(super) enum Operation {
    Append {
        entry: Entry,
        at: u64,
        done: Done,
    },
    Remove {
        lane: Lane,
        sequence: u64,
    },
    /// Nobody here can use the entry: it stays, and does not count.
    Disown {
        lane: Lane,
        sequence: u64,
    },
    /// Counts a damaged lane anew.
    Recount {
        number: u64,
        lane: Lane,
    },
    /// Asks what there is, all earlier operations done.
    Survey(oneshot::Sender<Vec<LaneState>>),
}

/// Sums over all databases, as of the last commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) entries: u64,
    pub(super) bytes: u64,
    /// Milliseconds since 1970.
    pub(super) oldest_at: Option<u64>,
    pub(super) highest: u64,
    pub(super) foreign: Foreign,
}

#[derive(Debug, Default)]
pub(super) struct State {
    queue: VecDeque<Operation>,
    /// Bytes of entries that wait or are being written.
    waiting: u64,
    /// Removals that are not in a database yet, and how many of each.
    removed: HashMap<Lane, BTreeMap<u64, u32>>,
    pub(super) sums: Sums,
    pub(super) outside: Outside,
    /// Highest sequence of any append, written or not.
    highest: u64,
    /// Free disk when last looked at, less what was taken in since.
    pub(super) free: Option<u64>,
    /// Why no entry is taken at the moment.
    pub(super) refuses: Option<Error>,
    closing: bool,
    /// The writer has ended.
    gone: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    /// All but the limit, which may change.
    pub(super) options: Options,
    limit: AtomicU64,
    state: Mutex<State>,
    /// The writer waits here.
    wake: Condvar,
    generations: RwLock<Vec<Arc<Generation>>>,
    pub(super) failures: watch::Sender<Failures>,
}

impl Shared {
    pub(super) fn new(options: Options) -> Self {
        metrics::spool_limited(options.limit_bytes);
        Self {
            limit: AtomicU64::new(options.limit_bytes),
            options,
            state: Mutex::default(),
            wake: Condvar::new(),
            generations: RwLock::default(),
            failures: watch::Sender::new(Failures::default()),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Oldest first.
    pub(super) fn generations(&self) -> Vec<Arc<Generation>> {
        self.generations.read().clone()
    }

    pub(super) fn set_generations(&self, generations: &[Arc<Generation>]) {
        *self.generations.write() = generations.to_vec();
    }

    /// Tells of what these cannot read, where that is more than was told.
    pub(super) fn tell_unreadable(&self, generations: &[Arc<Generation>]) {
        let unreadable = generations.iter().map(|generation| generation.unreadable()).sum();
        let damaged = generations.iter().filter(|generation| generation.is_damaged());
        let since = damaged.map(|generation| generation.since).min();
        self.failures.send_if_modified(|failures| {
            let is_more = unreadable > failures.unreadable;
            failures.unreadable = failures.unreadable.max(unreadable);
            failures.unreadable_since = [failures.unreadable_since, since].into_iter().flatten().min();
            is_more
        });
    }

    /// Queues the entry, or says why not.
    pub(super) fn append(&self, entry: Entry, at: u64, done: Done) -> Result<(), Error> {
        entry.lane.check()?;
        let size = entry.lane.size(&entry.payload);
        let mut state = self.state();
        state.admit(size, self.limit.load(Ordering::Relaxed), &self.options)?;
        state.waiting += size;
        state.highest = state.highest.max(entry.sequence);
        state.free = state.free.map(|free| free.saturating_sub(size));
        state.queue.push_back(Operation::Append { entry, at, done });
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
        metrics::spool_limited(bytes);
    }

    /// Why not even an ordinary entry would be taken right now.
    pub(super) fn refuses(&self) -> Option<Error> {
        self.state().admit(ORDINARY, self.limit.load(Ordering::Relaxed), &self.options).err()
    }

    /// Queues the removal and hides the entry from readers at once.
    pub(super) fn remove(&self, lane: Lane, sequence: u64) {
        let mut state = self.state();
        if state.gone {
            return;
        }
        *state.removed.entry(lane.clone()).or_default().entry(sequence).or_default() += 1;
        state.queue.push_back(Operation::Remove { lane, sequence });
        drop(state);
        self.wake.notify_one();
    }

    /// Queues a question or a duty; refused once the spool is closing.
    pub(super) fn ask(&self, operation: Operation) -> Result<(), Error> {
        let mut state = self.state();
        if state.closing || state.gone {
            return Err(Error::Closed);
        }
        state.queue.push_back(operation);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    pub(super) fn highest(&self) -> u64 {
        let state = self.state();
        state.highest.max(state.sums.highest)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state().closing
    }

    /// No more entries; the writer ends after what waits.
    pub(super) fn close(&self) {
        self.state().closing = true;
        self.wake.notify_one();
    }

    /// The writer has ended: whatever waits is refused by being dropped.
    pub(super) fn gone(&self) {
        let mut state = self.state();
        state.gone = true;
        let waiting = std::mem::take(&mut state.queue);
        drop(state);
        drop(waiting);
    }

    /// Removals of the lane that no database knows of yet. Taken before a database is read, so that what was removed
    /// earlier is either in here or gone from there.
    pub(super) fn removed(&self, lane: &Lane) -> BTreeSet<u64> {
        self.state().removed.get(lane).map(|removed| removed.keys().copied().collect()).unwrap_or_default()
    }

    /// For the writer: the next operations, at most `count` and `bytes` of entries but at least one; none when nothing
    /// came for `patience`, and `None` when all is done and the spool is closing.
    pub(super) fn take(&self, count: usize, bytes: u64, patience: Duration) -> Option<Vec<Operation>> {
        let mut state = self.state();
        self.wake.wait_while_for(&mut state, |state| state.queue.is_empty() && !state.closing, patience);
        if state.queue.is_empty() && state.closing {
            return None;
        }
        let mut taken = 0;
        let mut fitting = 0;
        for operation in state.queue.iter().take(count) {
            if let Operation::Append { entry, .. } = operation {
                taken += entry.lane.size(&entry.payload);
                if taken > bytes && fitting > 0 {
                    break;
                }
            }
            fitting += 1;
        }
        Some(state.queue.drain(..fitting).collect())
    }

    /// For the writer: these removals are in the databases, these bytes of entries written or refused.
    pub(super) fn settled<'a>(
        &self,
        removals: impl Iterator<Item = (&'a Lane, u64)>,
        bytes: u64,
        sums: Sums,
    ) {
        let mut state = self.state();
        for (lane, sequence) in removals {
            let Some(pending) = state.removed.get_mut(lane) else { continue };
            if let btree_map::Entry::Occupied(mut left) = pending.entry(sequence) {
                *left.get_mut() -= 1;
                if *left.get() == 0 {
                    left.remove();
                }
            }
            if pending.is_empty() {
                state.removed.remove(lane);
            }
        }
        state.waiting = state.waiting.saturating_sub(bytes);
        state.sums = sums;
    }
}

impl State {
    /// Bytes of entries that wait or are being written.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Whether the disk has less than the reserve.
    pub(super) fn is_below(&self, options: &Options) -> bool {
        self.free.is_some_and(|free| free < options.reserve_bytes)
    }

    fn admit(&self, size: u64, limit_bytes: u64, options: &Options) -> Result<(), Error> {
        if self.closing || self.gone {
            return Err(Error::Closed);
        }
        if let Some(reason) = &self.refuses {
            return Err(reason.clone());
        }
        if self.sums.bytes + self.sums.foreign.bytes + self.waiting + size > limit_bytes {
            return Err(Error::Full(Room::Limit));
        }
        if self.free.is_some_and(|free| free < options.reserve_bytes.saturating_add(size)) {
            return Err(Error::Full(Room::Disk));
        }
        // One alone is taken whatever its size, or it could never be.
        if self.waiting > 0 && self.waiting + size > options.queue_bytes {
            return Err(Error::Busy);
        }
        Ok(())
    }
}

/// Lanes over all databases.
pub(super) fn survey(generations: &[Arc<Generation>]) -> Vec<LaneState> {
    let mut lanes: HashMap<Lane, LaneState> = HashMap::new();
    for generation in generations {
        for (lane, tally) in generation.ledger().lanes() {
            let oldest_at = super::time_of(tally.oldest_at);
            let state = lanes.entry(lane.clone()).or_insert_with(|| LaneState {
                lane: lane.clone(),
                entries: 0,
                bytes: 0,
                oldest_sequence: tally.oldest,
                oldest_at,
            });
            state.entries += tally.entries;
            state.bytes += tally.bytes;
            state.oldest_sequence = state.oldest_sequence.min(tally.oldest);
            state.oldest_at = state.oldest_at.min(oldest_at);
        }
    }
    let mut lanes: Vec<_> = lanes.into_values().collect();
    lanes.sort_by(|one, other| one.lane.cmp(&other.lane));
    lanes
}

/// Sums over all databases.
pub(super) fn sum(generations: &[Arc<Generation>]) -> Sums {
    generations.iter().fold(Sums::default(), |sums, generation| {
        let ledger = generation.ledger();
        let oldest = ledger.lanes().map(|(_, tally)| tally.oldest_at).min();
        Sums {
            entries: sums.entries + ledger.entries(),
            bytes: sums.bytes + ledger.bytes(),
            oldest_at: [sums.oldest_at, oldest].into_iter().flatten().min(),
            highest: sums.highest.max(ledger.highest()),
            foreign: sums.foreign.with(generation.foreign()),
        }
    })
}
