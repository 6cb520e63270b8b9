//! One database of the spool with what is known about it.
//!
//! Only the writer changes it. Once it has *failed* nothing is committed to it any more: removals are remembered in memory
//! and hide what it still holds, and after a restart, which opens it afresh, come back as duplicates. Once *damaged* it is
//! set aside instead of removed when nothing readable is left.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    ops::ControlFlow,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::SystemTime,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use base::{metrics, retry::ErrorChain};

use super::{
    Foreign,
    entry::{Entry, Lane},
    ledger::Ledger,
    scan::{scan_all, scan_lane},
};
use crate::store::{Database, Error};

/// Removed sequences by lane.
pub(super) type Removed = HashMap<Lane, BTreeSet<u64>>;

pub(super) struct Generation {
    pub(super) number: u64,
    /// No entry in it was appended before.
    pub(super) since: SystemTime,
    database: Box<dyn Database>,
    ledger: Mutex<Ledger>,
    failed: AtomicBool,
    /// Lanes whose ledger leaves out what cannot be read.
    damage: Mutex<HashSet<Lane>>,
    /// Lanes whose ledger may count what is not there.
    doubted: Mutex<HashSet<Lane>>,
    /// Stretches that cannot be read.
    unreadable: AtomicU64,
    hidden: Mutex<Removed>,
    /// What is hidden because nobody here can use it.
    foreign: Mutex<Foreign>,
    /// Bytes committed since it was created, or those it took on disk when it was opened and all since.
    written: AtomicU64,
}

/// What a read found in one database.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    /// Whether there are others behind them.
    pub(super) more: bool,
    /// Whether the lane has damage that its ledger does not know of.
    pub(super) needs_recount: bool,
}

/// How much a read may return; one entry is returned whatever its size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    pub(super) entries: usize,
    pub(super) bytes: usize,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("number", &self.number)
            .field("failed", &self.has_failed())
            .field("damaged", &self.is_damaged())
            .finish_non_exhaustive()
    }
}

impl Generation {
    /// Takes over an open database, which takes this much disk and entries since then, and counts what is in it.
    pub(super) fn new(number: u64, database: Box<dyn Database>, takes: u64, since: SystemTime) -> Self {
        let mut ledger = Ledger::default();
        let unreadable = scan_all(&*database, &mut |seen| {
            ledger.add(seen.lane, seen.sequence, seen.size, seen.at);
            ControlFlow::Continue(())
        });
        // Already without what cannot be read.
        let counted = ledger.lanes().filter(|_| unreadable > 0).map(|(lane, _)| lane.clone()).collect();
        let generation = Self {
            number,
            since,
            database,
            written: AtomicU64::new(takes),
            ledger: Mutex::new(ledger),
            failed: AtomicBool::new(false),
            damage: Mutex::new(counted),
            doubted: Mutex::default(),
            unreadable: AtomicU64::new(0),
            hidden: Mutex::default(),
            foreign: Mutex::default(),
        };
        generation.report(unreadable, None);
        generation
    }

    pub(super) fn database(&self) -> &dyn Database {
        &*self.database
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Whether it may go: what nobody here can use has to stay.
    pub(super) fn is_empty(&self) -> bool {
        self.ledger().entries() == 0 && self.foreign().entries == 0
    }

    pub(super) fn foreign(&self) -> Foreign {
        *self.foreign.lock()
    }

    /// Bytes of keys and values it has to keep.
    pub(super) fn holds(&self) -> u64 {
        self.ledger().bytes() + self.foreign().bytes
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.unreadable() > 0
    }

    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Acquire)
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Size of key and value of the entry, if it is here and not hidden.
    pub(super) fn find(&self, lane: &Lane, sequence: u64, key: &[u8]) -> Result<Option<u64>, Error> {
        // Most removals of most databases end here.
        let tally = self.ledger().lane(lane);
        if tally.is_none_or(|tally| sequence < tally.oldest || sequence > tally.highest)
            || self.hidden.lock().get(lane).is_some_and(|hidden| hidden.contains(&sequence))
        {
            return Ok(None);
        }
        Ok(self.database.size(key)?.map(|value| value + key.len() as u64))
    }

    /// An entry of the lane could not be looked up: what its ledger says is not to be relied on until it is counted anew.
    pub(super) fn doubt(&self, lane: &Lane, error: &Error) {
        if self.doubted.lock().insert(lane.clone()) {
            tracing::warn!(
                database = self.number,
                topic = &*lane.topic,
                error = %ErrorChain(error),
                "spool could not look an entry up; its lane is counted anew"
            );
        }
    }

    /// Counts the lanes anew that are in doubt, and gives back whether there were any. For the writer alone.
    pub(super) fn recount_doubted(&self) -> bool {
        let doubted = std::mem::take(&mut *self.doubted.lock());
        for lane in &doubted {
            self.recount(lane);
        }
        !doubted.is_empty()
    }

    /// Leaves an entry, if it is here, to a version that can use it: it is not read and not counted any more, and keeps its
    /// database. For the writer alone.
    pub(super) fn disown(&self, lane: &Lane, sequence: u64) {
        let Some(tally) = self.ledger().lane(lane) else { return };
        let size = match self.find(lane, sequence, &lane.key(sequence)) {
            Ok(Some(size)) => size,
            Ok(None) => return,
            Err(error) => {
                self.doubt(lane, &error);
                0
            }
        };
        self.hide(lane, sequence);
        if size > 0 {
            self.ledger().subtract(lane, sequence, size);
        }
        let mut foreign = self.foreign.lock();
        *foreign =
            foreign.with(Foreign { entries: 1, bytes: size, since: Some(super::time_of(tally.oldest_at)) });
    }

    /// Hides an entry that cannot be removed.
    pub(super) fn hide(&self, lane: &Lane, sequence: u64) {
        self.hidden.lock().entry(lane.clone()).or_default().insert(sequence);
    }

    /// Entries of the lane above `after`, in order, without those in `without`.
    pub(super) fn read(&self, lane: &Lane, after: Option<u64>, most: Most, without: &BTreeSet<u64>) -> Found {
        let from = match after {
            Some(u64::MAX) => return Found::default(),
            Some(after) => after + 1,
            None => 0,
        };
        let Some(tally) = self.ledger().lane(lane) else { return Found::default() };
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut more = false;
        let unreadable = scan_lane(&*self.database, lane, from.max(tally.oldest), &mut |seen| {
            let hidden = self.hidden.lock().get(lane).is_some_and(|hidden| hidden.contains(&seen.sequence));
            if hidden || without.contains(&seen.sequence) {
                return ControlFlow::Continue(());
            }
            let over = bytes + seen.payload.len() > most.bytes && !entries.is_empty();
            if over || entries.len() >= most.entries {
                more = true;
                return ControlFlow::Break(());
            }
            bytes += seen.payload.len();
            let payload = Bytes::copy_from_slice(seen.payload);
            entries.push(Entry { lane: lane.clone(), sequence: seen.sequence, payload });
            ControlFlow::Continue(())
        });
        let is_new = unreadable > 0 && !self.damage.lock().contains(lane);
        let needs_recount = unreadable > 0 && (is_new || entries.is_empty());
        Found { entries, more, needs_recount }
    }

    /// Looks up the oldest entry of the lane if the ledger only knows a bound; one whose removal is still to be written counts,
    /// or the removal would not look for it. For the writer alone.
    pub(super) fn settle(&self, lane: &Lane) {
        let Some(tally) = self.ledger().lane(lane).filter(|tally| !tally.exact) else { return };
        let mut oldest = None;
        scan_lane(&*self.database, lane, tally.oldest, &mut |seen| {
            let hidden = self.hidden.lock().get(lane).is_some_and(|hidden| hidden.contains(&seen.sequence));
            if hidden {
                return ControlFlow::Continue(());
            }
            oldest = Some((seen.sequence, seen.at));
            ControlFlow::Break(())
        });
        if let Some((sequence, at)) = oldest {
            self.ledger().settle(lane, sequence, at);
        }
    }

    /// Counts a lane anew: what cannot be read does not count. For the writer alone.
    pub(super) fn recount(&self, lane: &Lane) {
        let mut counted = Ledger::default();
        let unreadable = scan_lane(&*self.database, lane, 0, &mut |seen| {
            if !self.hidden.lock().get(lane).is_some_and(|hidden| hidden.contains(&seen.sequence)) {
                counted.add(lane, seen.sequence, seen.size, seen.at);
            }
            ControlFlow::Continue(())
        });
        self.ledger().replace(lane, &counted);
        if unreadable > 0 && self.damage.lock().insert(lane.clone()) {
            self.report(unreadable, Some(lane));
        }
    }

    fn report(&self, unreadable: u64, lane: Option<&Lane>) {
        if unreadable == 0 {
            return;
        }
        self.unreadable.fetch_add(unreadable, Ordering::AcqRel);
        metrics::spool_unreadable(unreadable);
        let topic = lane.map(|lane| &*lane.topic);
        tracing::error!(
            database = self.number,
            topic,
            stretches = unreadable,
            "spool has entries that cannot be read; the rest goes on and the database will be kept"
        );
    }
}
