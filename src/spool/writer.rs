//! The only thread that writes: group commits, and maintenance between them.
//!
//! - A batch has at most one change a key. The newest database is written first, because an entry that moves there has to be
//!   durable before an older database forgets it.
//! - A failed database is not written to again. A fresh one takes over, at once the first time, then with backoff, up to
//!   `MAX_DATABASES`.
//! - A database without entries is removed with the disk it takes; the newest one too, once it has written `rotate_bytes`. One
//!   that is mostly removed entries is compacted. Separate threads do both.
//! - Free disk is read a few times a second, not with every append.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use base::{
    failpoint, metrics,
    retry::{Backoff, BackoffPolicy, ErrorChain, Retry},
};

use super::{
    Error, Foreign,
    directory::{LockedDirectory, disk_bytes},
    entry,
    state::{Generation, Key, Puts, SpoolCore, WriterOperation},
    time_of,
};
use crate::store::{self, Database, StoreChange};

/// Operations in one commit.
const BATCH_COUNT: usize = 1024;
/// Bytes of entries in one commit, unless one alone has more.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;
const TICK: Duration = Duration::from_millis(250);
/// How often disk use is measured, and a compaction considered.
const DISK_USE_INTERVAL: Duration = Duration::from_secs(10);
/// At this number a failed database gets no successor until others are drained.
const MAX_DATABASES: usize = 16;
/// A database is compacted when it takes this many times what it holds, and this many times `rotate_bytes`.
const WASTE_FACTOR: u64 = 4;
/// How long a drained database waits for its readers; then the next start removes it.
const READERS_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a drained database is checked for readers.
const READERS_POLL: Duration = Duration::from_millis(10);
const OPEN_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(100), longest: Duration::from_secs(30), total: None };

struct Writer {
    shared: Arc<SpoolCore>,
    directory: Arc<LockedDirectory>,
    backoff: Backoff,
    /// When a fresh database may be opened.
    open_at: Instant,
    tick_at: Instant,
    disk_use_at: Instant,
    /// Threads that remove or move aside drained databases.
    removals: Vec<JoinHandle<()>>,
    compaction: Option<JoinHandle<()>>,
}

/// Reports the end of the writer, also when it panics.
struct EndReport(Arc<SpoolCore>, CancellationToken);

impl Drop for EndReport {
    fn drop(&mut self) {
        self.0.gone();
        self.1.cancel();
    }
}

/// Starts the writer; `ended` is canceled when it is done and everything is closed.
pub(super) fn start(
    shared: Arc<SpoolCore>,
    directory: LockedDirectory,
    ended: CancellationToken,
) -> Result<(), Error> {
    let now = Instant::now();
    let mut writer = Writer {
        shared: Arc::clone(&shared),
        directory: Arc::new(directory),
        backoff: Backoff::new(OPEN_BACKOFF, now.elapsed().subsec_nanos().into()),
        open_at: now,
        tick_at: now,
        disk_use_at: now,
        removals: Vec::new(),
        compaction: None,
    };
    // So that the first append finds a writable database and a measured disk.
    writer.maintain();
    let run = move || {
        let _ended = EndReport(shared, ended);
        writer.run();
    };
    let spawned = thread::Builder::new().name("spool-writer".to_owned()).spawn(run);
    spawned.map(drop).map_err(|error| store::Error::io("start the spool's writer thread", error).into())
}

impl Writer {
    fn run(mut self) {
        while let Some(operations) = self.shared.take(BATCH_COUNT, BATCH_BYTES, TICK) {
            if !operations.is_empty() {
                self.process(operations);
            }
            if Instant::now() >= self.tick_at {
                self.maintain();
            }
        }
        let generations = std::mem::take(&mut self.shared.state().generations);
        for Generation { number, database, .. } in generations.iter().filter(|held| !held.failed) {
            // Removals are synced only with the next entry, or here.
            if let Err(error) = database.commit(Vec::new(), true) {
                tracing::error!(
                    database = number,
                    error = %ErrorChain(&error),
                    "spool could not sync while closing; removed entries may be published again"
                );
            }
        }
        drop(generations);
        for helper in self.removals.drain(..).chain(self.compaction.take()) {
            if helper.join().is_err() {
                tracing::error!("a thread that removed or compacted a database of the spool panicked");
            }
        }
    }

    /// Merges the operations, in order, into one change per key, writes them and answers.
    fn process(&mut self, operations: Vec<WriterOperation>) {
        let mut puts = Puts::new();
        let mut removals: BTreeMap<u64, Vec<Key>> = BTreeMap::new();
        let (mut bytes, mut removed) = (0, 0);
        let (mut waiting, mut disowned, mut asking) = (Vec::new(), Vec::new(), Vec::new());
        for operation in operations {
            match operation {
                WriterOperation::Append { entry, at, done } => {
                    bytes += entry.lane.size(&entry.payload);
                    puts.insert((entry.lane, entry.sequence), (entry.payload, at));
                    waiting.push(done);
                }
                WriterOperation::Remove { key, from } => {
                    puts.remove(&key);
                    removed += u64::from(!from.is_empty());
                    from.into_iter().for_each(|number| removals.entry(number).or_default().push(key.clone()));
                }
                WriterOperation::Disown(key) => disowned.push(key),
                WriterOperation::Lanes(answer) => asking.push(answer),
            }
        }
        let mut outcome = Ok(());
        if !puts.is_empty() || !removals.is_empty() {
            failpoint::reach("spool.before");
            outcome = self.commit(&puts, removals, &mut bytes);
            metrics::spool_changed(if outcome.is_ok() { puts.len() as u64 } else { 0 }, removed);
        }
        self.shared.state().waiting -= bytes;
        for done in waiting {
            // The entry is kept even if its caller no longer waits.
            drop(done.send(outcome.clone()));
        }
        for key in disowned {
            self.disown(&key);
        }
        for answer in asking {
            drop(answer.send(self.shared.state().lanes()));
        }
        if self.writable().is_err() {
            self.maintain();
        }
    }

    /// Writes the entries to the newest database, and the removals to those that have them.
    ///
    /// Once the entries are on disk, takes their bytes from those that wait: they never count twice against the limit.
    fn commit(
        &mut self,
        puts: &Puts,
        mut removals: BTreeMap<u64, Vec<Key>>,
        waiting: &mut u64,
    ) -> Result<(), Error> {
        let writable = self.writable();
        let place = |held: &Generation| (held.number, Arc::clone(&held.database), held.failed);
        let newest_first: Vec<_> = self.shared.state().generations.iter().rev().map(place).collect();
        let (nothing, mut puts_left) = (Puts::new(), Some(puts).filter(|_| writable.is_ok()));
        let mut outcome = if puts.is_empty() { Ok(()) } else { writable };
        for (number, database, has_failed) in newest_first {
            let puts = puts_left.take().unwrap_or(&nothing);
            let removed = removals.remove(&number).unwrap_or_default();
            if puts.is_empty() && removed.is_empty() {
                continue;
            }
            let size = |(lane, sequence): &Key| {
                let key = lane.key(*sequence);
                Some(key.len() + database.get(&key).ok()??.len())
            };
            let removed_bytes = removed.iter().filter_map(size).sum::<usize>() as u64;
            let written = if has_failed { Ok(0) } else { self.write(&*database, puts, &removed) };
            let mut state = self.shared.state();
            if let Some(held) = state.generation(number) {
                held.bytes = held.bytes.saturating_sub(removed_bytes);
                held.written += written.as_ref().copied().unwrap_or_default();
            }
            match written {
                Ok(_) => {
                    if !puts.is_empty() {
                        state.waiting -= std::mem::take(waiting);
                    }
                    for (older, key) in state.insert(number, puts) {
                        removals.entry(older).or_default().push(key);
                    }
                }
                Err(error) => {
                    drop(state);
                    let refusal = self.fail(number, error);
                    if !puts.is_empty() {
                        outcome = Err(refusal);
                    }
                }
            }
        }
        outcome
    }

    /// One commit, durable if it has entries. Returns the bytes written.
    fn write(&mut self, database: &dyn Database, puts: &Puts, removed: &[Key]) -> Result<u64, store::Error> {
        let put = |((lane, sequence), (payload, at)): (&Key, &(Bytes, u64))| {
            StoreChange::Put(lane.key(*sequence), entry::value(*at, payload))
        };
        let deleted = removed.iter().filter(|key| !puts.contains_key(key));
        let delete = |(lane, sequence): &Key| StoreChange::Delete(lane.key(*sequence));
        let changes: Vec<_> = puts.iter().map(put).chain(deleted.map(delete)).collect();
        let bytes = changes.iter().map(StoreChange::bytes).sum::<usize>() as u64;
        let start = Instant::now();
        database.commit(changes, !puts.is_empty())?;
        if !puts.is_empty() {
            metrics::spool_committed(start.elapsed());
            self.backoff.reset();
        }
        Ok(bytes)
    }

    /// Leaves an entry to a version that can read it: it is no longer read or counted, but its database is kept.
    fn disown(&self, key: &Key) {
        let numbers = self.shared.state().forget(key);
        for number in numbers {
            let place = |held: &mut Generation| (held.since, Arc::clone(&held.database));
            let Some((since, database)) = self.shared.state().generation(number).map(place) else { continue };
            let key = key.0.key(key.1);
            let value = database.get(&key).ok().flatten();
            let bytes = value.as_ref().map_or(0, |value| (key.len() + value.len()) as u64);
            let at = value.and_then(|value| Some(entry::parse_value(&value)?.0));
            let foreign = Foreign { entries: 1, bytes, since: Some(at.map_or(since, time_of)) };
            if let Some(held) = self.shared.state().generation(number) {
                held.bytes = held.bytes.saturating_sub(bytes);
                held.foreign = held.foreign.with(foreign);
            }
        }
        let foreign = self.shared.state().totals().foreign;
        self.shared.failures.send_if_modified(|failures| {
            let before = std::mem::replace(&mut failures.foreign, foreign);
            before != foreign
        });
    }

    /// Whether the newest database may be written to.
    fn writable(&self) -> Result<(), Error> {
        let state = self.shared.state();
        match state.generations.last() {
            Some(newest) if !newest.failed => Ok(()),
            _ => Err(state.refuses.clone().unwrap_or(Error::Closed)),
        }
    }

    /// Marks a database as failed, and returns the error for callers.
    fn fail(&mut self, number: u64, error: store::Error) -> Error {
        metrics::spool_failed();
        tracing::error!(
            database = %self.directory.folder(number).display(),
            error = %ErrorChain(&error),
            "spool database failed; it is not written to any more, and its entries are still published"
        );
        let refusal = Error::from(error);
        self.shared.failures.send_modify(|failures| failures.count += 1);
        let mut state = self.shared.state();
        let is_newest = state.generations.last().is_some_and(|newest| newest.number == number);
        if let Some(held) = state.generation(number) {
            held.failed = true;
        }
        drop(state);
        if is_newest && !self.postpone_opening().is_zero() {
            self.shared.state().refuses = Some(refusal.clone());
        }
        refusal
    }

    /// The first attempt to open a fresh database runs at once, and appends wait for it; further ones run after a backoff.
    fn postpone_opening(&mut self) -> Duration {
        let is_first = self.backoff.is_fresh();
        let wait = self.backoff.next_wait(Retry::Later).filter(|_| !is_first).unwrap_or_default();
        self.open_at = Instant::now() + wait;
        wait
    }

    fn maintain(&mut self) {
        let now = Instant::now();
        self.tick_at = now + TICK;
        self.removals.retain(|helper| !helper.is_finished());
        self.compaction.take_if(|helper| helper.is_finished());
        let free = self.shared.options.storage.free_bytes(self.directory.path()).ok();
        let mut state = self.shared.state();
        state.free_bytes = free.map(|free| free.saturating_sub(state.waiting));
        drop(state);
        self.take_over();
        self.retire();
        self.account();
        if now >= self.disk_use_at {
            self.disk_use_at = now + DISK_USE_INTERVAL;
            self.measure_disk_use();
        }
    }

    /// Opens a fresh database if none is writable, or if the newest is empty and has grown large.
    fn take_over(&mut self) {
        let options = &self.shared.options;
        let is_writable = self.writable().is_ok();
        let state = self.shared.state();
        let newest = state.generations.last();
        let is_worn = newest.is_some_and(|newest| newest.is_empty() && newest.written > options.rotate_bytes);
        let is_full = state.free_bytes.is_some_and(|free| free < options.reserve_bytes);
        let count = state.generations.len();
        drop(state);
        if (is_writable && !is_worn) || Instant::now() < self.open_at {
            return;
        }
        let opened = if count >= MAX_DATABASES {
            let source = io::Error::other("too many databases wait to be drained");
            Err(store::Error::io("open a fresh database", source).into())
        } else if is_full {
            Err(Error::DiskFull)
        } else {
            let created = self.directory.create(None, |data| options.storage.open(data));
            created.map_err(|error| {
                tracing::error!(error = %ErrorChain(&error), "spool cannot open a fresh database; it tries again");
                Error::from(error)
            })
        };
        match opened {
            Ok(fresh) => {
                tracing::info!(database = fresh.number, "spool writes to a fresh database");
                let mut state = self.shared.state();
                state.generations.push(fresh);
                state.refuses = None;
            }
            Err(error) => {
                self.postpone_opening();
                if !is_writable {
                    self.shared.state().refuses = Some(error);
                }
            }
        }
    }

    /// Removes databases without entries, all but the newest.
    fn retire(&mut self) {
        let mut state = self.shared.state();
        let newest = state.generations.len().saturating_sub(1);
        let drained: Vec<_> = state.generations.extract_if(..newest, |held| held.is_empty()).collect();
        drop(state);
        for generation in drained {
            let directory = Arc::clone(&self.directory);
            self.removals.extend(spawn("spool-removal", move || remove(generation, &directory)));
        }
    }

    /// Finds out when the oldest entry was appended, and sets the gauges.
    fn account(&self) {
        let oldest = |held: &Generation| Some((Arc::clone(&held.database), held.oldest()?));
        let keys: Vec<_> = self.shared.state().generations.iter().filter_map(oldest).collect();
        let at = |(database, key): &(Arc<dyn Database>, Vec<u8>)| {
            Some(entry::parse_value(&database.get(key).ok()??)?.0)
        };
        let found: Option<Vec<u64>> = keys.iter().map(at).collect();
        let mut state = self.shared.state();
        match found {
            Some(found) => state.oldest_at = found.into_iter().min(),
            // A failed lookup leaves the last known time: the age must not fall to 0 while entries wait.
            None => state.oldest_at = state.oldest_at.or_else(|| state.oldest_database()),
        }
        state.drop_stale_bytes();
        let totals = state.totals();
        drop(state);
        let bytes = totals.bytes + totals.foreign.bytes;
        metrics::spool_holds(totals.entries, bytes, totals.oldest_age.unwrap_or_default());
        metrics::spool_foreign(totals.foreign.entries);
    }

    /// Measures the disk, counts the databases that are not used, and compacts one that is mostly removed entries.
    fn measure_disk_use(&mut self) {
        if let Ok(bytes) = self.directory.disk_bytes() {
            metrics::spool_takes(bytes);
        }
        let aside = self.directory.aside();
        let mut state = self.shared.state();
        if let Ok(aside) = aside {
            state.outside.aside = aside;
        }
        metrics::spool_leaves_out(state.outside.unopened.len(), state.outside.aside.len());
        let place =
            |held: &Generation| (held.number, held.bytes + held.foreign.bytes, Arc::clone(&held.database));
        let in_use = state.generations.iter().filter(|held| !held.failed && !held.is_empty());
        let places: Vec<_> = in_use.map(place).collect();
        drop(state);
        if self.compaction.is_some() {
            return;
        }
        let floor = self.shared.options.rotate_bytes.saturating_mul(WASTE_FACTOR);
        let wasteful = places.into_iter().find(|(number, holds, _)| {
            let takes = disk_bytes(&self.directory.folder(*number));
            takes > floor && takes / WASTE_FACTOR > *holds
        });
        let Some((number, _, database)) = wasteful else { return };
        self.compaction = spawn("spool-compaction", move || {
            if let Err(error) = database.compact() {
                tracing::warn!(database = number, error = %ErrorChain(&error), "spool cannot compact a database");
            }
        });
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.inspect_err(|error| tracing::warn!(name, %error, "spool cannot start a thread")).ok()
}

/// Closes a drained database when its last reader has finished, and removes it; a damaged one is moved aside.
fn remove(generation: Generation, directory: &LockedDirectory) {
    let Generation { number, database, unreadable, .. } = generation;
    let end = Instant::now() + READERS_TIMEOUT;
    while Arc::strong_count(&database) > 1 {
        if Instant::now() >= end {
            tracing::warn!(
                database = number,
                "spool leaves a drained database to the next start: it is still read"
            );
            return;
        }
        thread::sleep(READERS_POLL);
    }
    drop(database);
    let removed = if unreadable > 0 {
        // Its gap is already recorded, but the folder has no mark of it: the next start reports it once more.
        directory.move_aside(number).map(|folder| {
            tracing::warn!(folder = %folder.display(), "spool moved a damaged database aside after draining it");
        })
    } else {
        directory.remove(&directory.folder(number))
    };
    if let Err(error) = removed {
        tracing::warn!(database = number, %error, "spool cannot remove or move aside a drained database; the next start tries again");
    }
}
