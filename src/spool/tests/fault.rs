//! A disk that fails, fills up or is slow on command: the product's store with injected faults. Unit tests, integration
//! tests and benchmarks share this file; each has the store as the module `store` beside it.

use std::{io, mem, ops::ControlFlow, path::Path, sync::Arc, thread, time::Duration};

use parking_lot::{Condvar, Mutex};

use super::store::{Database, Error, Fjall, Storage, StoreChange, Visitor};

/// The store with injected faults; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faulty(Arc<SpoolCore>);

/// Xorshift random numbers, reproducible by their seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Starts with this seed; 0 is replaced, because xorshift would stay at 0.
    #[must_use]
    pub(crate) const fn new(seed: u64) -> Self {
        Self(if seed == 0 { u64::MAX } else { seed })
    }

    /// The next number, below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The write fails: nothing of it is on disk.
    Write,
    /// The write succeeds and the sync fails: the changes are invisible until the database is opened again.
    Sync,
    /// The disk is full.
    NoSpace,
}

#[derive(Debug, Default)]
struct SpoolCore {
    state: Mutex<SpoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SpoolState {
    commits: Vec<Fault>,
    opens: usize,
    refusals: usize,
    salvages: usize,
    lookups: usize,
    refuses_lookups: bool,
    damage: Option<Vec<u8>>,
    delay: Duration,
    free: Option<u64>,
    held: bool,
    waiting: usize,
    durable: u64,
    opened: u64,
}

struct Wrapped {
    inner: Box<dyn Database>,
    faults: Faulty,
    /// As in the store: after a failed commit every other one is refused.
    poisoned: Mutex<bool>,
    /// Written and not synced; in the journal, in no table.
    unsynced: Mutex<Vec<StoreChange>>,
}

impl Faulty {
    /// The next commits fail in this way; each failure is final for its database.
    pub(crate) fn fail_commits(&self, faults: &[Fault]) {
        self.0.state.lock().commits = faults.iter().rev().copied().collect();
    }

    /// The next `count` attempts to open a database fail.
    pub(crate) fn fail_opens(&self, count: usize) {
        self.0.state.lock().opens = count;
    }

    /// The next `count` attempts to open a database are refused with `PermissionDenied`.
    pub(crate) fn refuse_opens(&self, count: usize) {
        self.0.state.lock().refusals = count;
    }

    /// The disk fills up at the end of the next `count` attempts to salvage a database.
    pub(crate) fn fill_up_at_salvage(&self, count: usize) {
        self.0.state.lock().salvages = count;
    }

    /// The next `count` lookups fail.
    pub(crate) fn fail_lookups(&self, count: usize) {
        let mut state = self.0.state.lock();
        (state.lookups, state.refuses_lookups) = (count, false);
    }

    /// The same, for a reason of the system that says nothing about the files.
    pub(crate) fn refuse_lookups(&self, count: usize) {
        let mut state = self.0.state.lock();
        (state.lookups, state.refuses_lookups) = (count, true);
    }

    /// Lookups that are still to fail.
    pub(crate) fn lookups_left(&self) -> usize {
        self.0.state.lock().lookups
    }

    /// Entries with this payload cannot be read any more, and iteration fails there.
    pub(crate) fn damage(&self, payload: Option<&[u8]>) {
        self.0.state.lock().damage = payload.map(<[u8]>::to_vec);
    }

    /// Every durable commit takes this much longer.
    pub(crate) fn slow_down(&self, delay: Duration) {
        self.0.state.lock().delay = delay;
    }

    /// The disk reports this many free bytes; `None` reports the real number.
    pub(crate) fn set_free_bytes(&self, free: Option<u64>) {
        self.0.state.lock().free = free;
    }

    /// Commits wait until [released](Self::release).
    pub(crate) fn hold(&self) {
        self.0.state.lock().held = true;
    }

    /// Continues the held commits.
    pub(crate) fn release(&self) {
        self.0.state.lock().held = false;
        self.0.changed.notify_all();
    }

    /// Waits until a commit is being held. Blocks; false after `limit`.
    #[must_use]
    pub(crate) fn wait_for_held(&self, limit: Duration) -> bool {
        let mut state = self.0.state.lock();
        self.0.changed.wait_while_for(&mut state, |state| state.waiting == 0, limit);
        state.waiting > 0
    }

    /// Durable commits so far.
    #[must_use]
    pub(crate) fn durable_commits(&self) -> u64 {
        self.0.state.lock().durable
    }

    /// Databases opened or created so far.
    #[must_use]
    pub(crate) fn opened(&self) -> u64 {
        self.0.state.lock().opened
    }

    fn wrap(&self, inner: Box<dyn Database>) -> Box<dyn Database> {
        self.0.state.lock().opened += 1;
        Box::new(Wrapped {
            inner,
            faults: self.clone(),
            poisoned: Mutex::default(),
            unsynced: Mutex::default(),
        })
    }
}

impl Storage for Faulty {
    fn open(&self, directory: &Path) -> Result<Box<dyn Database>, Error> {
        let mut state = self.0.state.lock();
        let (fails, refused) = (state.opens > 0, state.refusals > 0);
        state.opens = state.opens.saturating_sub(1);
        state.refusals = state.refusals.saturating_sub(1);
        drop(state);
        if fails {
            return Err(Error::io("open the database", io::Error::other("injected")));
        }
        if refused {
            return Err(Error::io("open the database", io::ErrorKind::PermissionDenied.into()));
        }
        Ok(self.wrap(Fjall::default().open(directory)?))
    }

    fn salvage(&self, from: &Path, to: &Path) -> Result<Box<dyn Database>, Error> {
        let salvaged = Fjall::default().salvage(from, to)?;
        let mut state = self.0.state.lock();
        if state.salvages > 0 {
            state.salvages -= 1;
            return Err(Error::io("copy the database", io::ErrorKind::StorageFull.into()));
        }
        drop(state);
        Ok(self.wrap(salvaged))
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        let injected = self.0.state.lock().free;
        injected.map_or_else(|| Fjall::default().free_bytes(directory), Ok)
    }
}

impl Wrapped {
    fn poison(&self, error: Error) -> Result<(), Error> {
        *self.poisoned.lock() = true;
        Err(error)
    }

    fn is_damaged(&self, value: &[u8]) -> bool {
        self.faults.0.state.lock().damage.as_ref().is_some_and(|damage| value.ends_with(damage))
    }

    /// Fails if a failed lookup was requested.
    fn lookup(&self) -> Result<(), Error> {
        let mut state = self.faults.0.state.lock();
        if state.lookups == 0 {
            return Ok(());
        }
        state.lookups -= 1;
        let kind = if state.refuses_lookups { io::ErrorKind::PermissionDenied } else { io::ErrorKind::Other };
        Err(Error::io("look an entry up", io::Error::new(kind, "injected")))
    }
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        let unsynced = mem::take(self.unsynced.get_mut());
        if !unsynced.is_empty() {
            drop(self.inner.commit(unsynced, true));
        }
    }
}

impl Database for Wrapped {
    fn commit(&self, changes: Vec<StoreChange>, durable: bool) -> Result<(), Error> {
        let shared = &self.faults.0;
        let mut state = self.faults.0.state.lock();
        state.waiting += 1;
        shared.changed.notify_all();
        shared.changed.wait_while(&mut state, |state| state.held);
        state.waiting -= 1;
        if *self.poisoned.lock() {
            return Err(Error::io("commit", io::Error::other("poisoned by an injected fault")));
        }
        let fault = state.commits.pop();
        state.durable += u64::from(durable);
        let delay = if durable { state.delay } else { Duration::ZERO };
        drop(state);
        thread::sleep(delay);
        match fault {
            None => self.inner.commit(changes, durable),
            Some(Fault::Write) => self.poison(Error::io("write", io::Error::other("injected"))),
            Some(Fault::NoSpace) => self.poison(Error::io("write", io::ErrorKind::StorageFull.into())),
            Some(Fault::Sync) => {
                *self.unsynced.lock() = changes;
                self.poison(Error::io("sync", io::Error::other("injected")))
            }
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.lookup()?;
        let value = self.inner.get(key)?;
        match value.as_ref().is_some_and(|value| self.is_damaged(value)) {
            true => Err(Error::io("read an entry", io::Error::other("injected"))),
            false => Ok(value),
        }
    }

    fn visit(&self, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), Error> {
        let mut is_damaged = false;
        self.inner.visit(from, to, &mut |key, value| {
            is_damaged = self.is_damaged(value);
            if is_damaged { ControlFlow::Break(()) } else { visit(key, value) }
        })?;
        if is_damaged { Err(Error::io("read entries", io::Error::other("injected"))) } else { Ok(()) }
    }

    fn compact(&self) -> Result<(), Error> {
        self.inner.compact()
    }
}
