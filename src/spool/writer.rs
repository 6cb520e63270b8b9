//! The one thread that writes: group commits, and between them what keeps the spool healthy.
//!
//! - A database that fails is never written to again; a fresh one takes over, at once the first time, then after growing
//!   waits, as long as there are not too many.
//! - A database whose entries are all gone is removed with the disk it takes; the newest one too, once that is worth a
//!   fresh one. One that is mostly removed entries is compacted. Both on threads of their own.
//! - Free disk is looked at a few times a second, so that an append need not.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use tokio_util::sync::CancellationToken;

use base::{
    failpoint, metrics,
    retry::{Backoff, BackoffPolicy, ErrorChain, Retry},
};

use super::{
    Error, Failure, Room,
    batch::{Batch, refusal},
    directory::Directory,
    generation::Generation,
    queue::{self, Operation, Shared},
};
use crate::store;

/// Operations in one commit.
const BATCH_COUNT: usize = 1024;
/// Bytes of entries in one commit, unless one alone has more.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;
/// How often free disk and databases are looked after.
const TICK: Duration = Duration::from_millis(250);
/// How often the oldest entries are looked up and gauges set.
const GAUGES: Duration = Duration::from_secs(1);
/// How often disk use is measured, and a compaction considered.
const DISK: Duration = Duration::from_secs(10);
/// Databases beside each other; beyond it a failed one gets no successor until others are drained.
const MOST_DATABASES: usize = 16;
/// A database is compacted when it takes this many times what it holds, and this many times the size worth a fresh one.
const WASTE: u64 = 4;
/// How long a drained database may still be read from before its removal is left to the next start.
const LONGEST_READ: Duration = Duration::from_secs(30);
/// Waits between attempts to open a fresh database.
const REOPEN: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(100), longest: Duration::from_secs(30), total: None };

pub(super) struct Writer {
    shared: Arc<Shared>,
    directory: Arc<Directory>,
    /// Oldest first; the last is written to unless it has failed.
    generations: Vec<Arc<Generation>>,
    backoff: Backoff,
    /// When a fresh database may be opened.
    reopen_at: Instant,
    tick_at: Instant,
    gauges_at: Instant,
    disk_at: Instant,
    janitors: Vec<JoinHandle<()>>,
    compaction: Option<JoinHandle<()>>,
}

/// Says that the writer has ended, however it did.
struct Ended(Arc<Shared>, CancellationToken);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.gone();
        self.1.cancel();
    }
}

/// Starts the writer; `ended` is cancelled when it is done and everything closed.
pub(super) fn start(
    shared: Arc<Shared>,
    directory: Directory,
    generations: Vec<Arc<Generation>>,
    ended: CancellationToken,
) -> Result<(), Error> {
    let now = Instant::now();
    let mut writer = Writer {
        directory: Arc::new(directory),
        generations,
        backoff: Backoff::new(REOPEN, now.elapsed().subsec_nanos().into()),
        reopen_at: now,
        tick_at: now,
        gauges_at: now,
        disk_at: now,
        janitors: Vec::new(),
        compaction: None,
        shared: Arc::clone(&shared),
    };
    // Appends find a writable database, the sums and the free disk from the first moment on.
    writer.look_after();
    let run = move || {
        let guard = Ended(shared, ended);
        writer.run();
        drop(guard);
    };
    thread::Builder::new()
        .name("spool-writer".to_owned())
        .spawn(run)
        .map_err(|error| Error::Thread(Arc::new(error)))?;
    Ok(())
}

impl Writer {
    fn run(mut self) {
        while let Some(operations) = self.shared.take(BATCH_COUNT, BATCH_BYTES, TICK) {
            if !operations.is_empty() {
                self.process(operations);
            }
            if Instant::now() >= self.tick_at {
                self.look_after();
            }
        }
        for generation in self.generations.iter().filter(|generation| !generation.has_failed()) {
            // Removals are not durable on their own; at the end they may as well be.
            if let Err(error) = generation.database().commit(Vec::new(), true) {
                tracing::error!(
                    database = generation.number,
                    error = %ErrorChain(&error),
                    "spool could not sync at its end; removed entries may come back as duplicates"
                );
            }
        }
        self.shared.set_generations(&[]);
        self.generations.clear();
        for thread in self.janitors.drain(..).chain(self.compaction.take()) {
            if thread.join().is_err() {
                tracing::error!("a thread that looked after the spool has panicked");
            }
        }
    }

    fn process(&mut self, operations: Vec<Operation>) {
        let (mut batch, others) = Batch::fold(operations);
        if !batch.plans.is_empty() {
            failpoint::reach("spool.before");
            let outcome = batch.write(&self.generations, self.writable());
            metrics::spool_changed(outcome.appended, outcome.removed);
            if let Some(elapsed) = outcome.committed {
                metrics::spool_committed(elapsed);
                self.backoff.reset();
            }
            for (position, error) in &outcome.failed {
                self.failed(*position, error);
            }
            let removals =
                batch.plans.iter().flat_map(|plan| (0..plan.removals).map(|_| (&plan.lane, plan.sequence)));
            self.shared.settled(removals, batch.bytes, queue::sum(&self.generations));
            for plan in batch.plans {
                for done in plan.done {
                    // Whoever waited may have gone: the entry stands all the same.
                    drop(done.send(plan.error.clone().map_or(Ok(()), Err)));
                }
            }
            if !outcome.failed.is_empty() {
                self.look_after();
            }
        }
        for operation in others {
            self.answer(operation);
        }
    }

    fn answer(&mut self, operation: Operation) {
        match operation {
            Operation::Survey(answer) => {
                self.settle();
                drop(answer.send(queue::survey(&self.generations)));
            }
            Operation::Disown { lane, sequence } => {
                for generation in &self.generations {
                    generation.disown(&lane, sequence);
                }
                self.account();
                let foreign = self.shared.state().sums.foreign;
                self.shared.failures.send_if_modified(|failures| {
                    let is_new = failures.foreign != foreign;
                    failures.foreign = foreign;
                    is_new
                });
            }
            Operation::Recount { number, lane } => {
                for generation in self.generations.iter().filter(|generation| generation.number == number) {
                    generation.recount(&lane);
                }
                self.shared.tell_unreadable(&self.generations);
                self.account();
            }
            Operation::Append { .. } | Operation::Remove { .. } => {}
        }
    }

    /// Whether the last database may be written to.
    fn writable(&self) -> Result<(), Error> {
        match self.generations.last() {
            Some(generation) if !generation.has_failed() => Ok(()),
            _ => Err(self.shared.state().refuses.clone().unwrap_or(Error::Closed)),
        }
    }

    fn failed(&mut self, position: usize, error: &Arc<store::Error>) {
        let generation = &self.generations[position];
        let path = self.directory.data(generation.number);
        metrics::spool_failed();
        tracing::error!(
            database = %path.display(),
            error = %ErrorChain(error),
            "spool database failed: nothing more is written to it, what it holds is still read"
        );
        self.shared.failures.send_modify(|failures| {
            failures.count += 1;
            failures.last = Some(Failure { database: path, cause: Arc::clone(error) });
        });
        if position + 1 == self.generations.len() && !self.postpone_opening().is_zero() {
            self.shared.state().refuses = Some(refusal(error));
        }
    }

    /// The first attempt to open a fresh database is at once, and appends wait for it; further ones are after a wait.
    fn postpone_opening(&mut self) -> Duration {
        let is_first = self.backoff.is_fresh();
        let wait = self.backoff.next_wait(Retry::Later).filter(|_| !is_first).unwrap_or_default();
        self.reopen_at = Instant::now() + wait;
        wait
    }

    fn look_after(&mut self) {
        let now = Instant::now();
        self.tick_at = now + TICK;
        self.look_at_free_disk();
        self.take_over();
        self.retire();
        if now >= self.gauges_at {
            self.gauges_at = now + GAUGES;
            self.settle();
        }
        self.account();
        if now >= self.disk_at {
            self.disk_at = now + DISK;
            self.look_at_disk_use();
        }
    }

    fn look_at_free_disk(&self) {
        let free = self.shared.options.storage.free_bytes(self.directory.path());
        let mut state = self.shared.state();
        state.free = free.ok().map(|free| free.saturating_sub(state.waiting()));
    }

    /// Opens a fresh database where none can be written to, or where the newest is empty and has grown large.
    fn take_over(&mut self) {
        let is_writable = self.writable().is_ok();
        let is_worn = self
            .generations
            .last()
            .is_some_and(|newest| newest.is_empty() && newest.written() > self.shared.options.rotate_bytes);
        let is_full = self.shared.state().is_below(&self.shared.options);
        if (is_writable && !is_worn) || Instant::now() < self.reopen_at {
            return;
        }
        let refusal = if self.generations.len() >= MOST_DATABASES {
            let source = io::Error::other("too many databases wait to be drained").into();
            refusal(&Arc::new(store::Error::Broken { action: "open a fresh database", source }))
        } else if is_full {
            Error::Full(Room::Disk)
        } else {
            match self.open_fresh() {
                Ok(generation) => {
                    tracing::info!(database = generation.number, "spool writes to a fresh database");
                    self.generations.push(Arc::new(generation));
                    self.shared.set_generations(&self.generations);
                    self.shared.state().refuses = None;
                    return;
                }
                Err(error) => {
                    tracing::error!(error = %ErrorChain(&error), "spool could not open a fresh database");
                    refusal(&Arc::new(error))
                }
            }
        };
        self.postpone_opening();
        if !is_writable {
            self.shared.state().refuses = Some(refusal);
        }
    }

    fn open_fresh(&self) -> Result<Generation, store::Error> {
        let failed = |error| store::Error::io("open a fresh database", error);
        let number = self.directory.next_number().map_err(|error| failed(io::Error::other(error)))?;
        let opened = self.directory.create(number).map_err(failed).and_then(|data| {
            let database = self.shared.options.storage.open(&data)?;
            self.directory.ready(number).map_err(failed)?;
            Ok(Generation::new(number, database, 0, SystemTime::now()))
        });
        // It never held anything; the next start would remove it, too.
        opened.inspect_err(|_| drop(self.directory.remove(number)))
    }

    /// Removes databases that hold nothing any more.
    fn retire(&mut self) {
        self.janitors.retain(|janitor| !janitor.is_finished());
        let newest = self.generations.last().map(|newest| newest.number);
        let (retired, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.generations)
            .into_iter()
            .partition(|generation| Some(generation.number) != newest && generation.is_empty());
        self.generations = kept;
        if retired.is_empty() {
            return;
        }
        self.shared.set_generations(&self.generations);
        for generation in retired {
            let directory = Arc::clone(&self.directory);
            let janitor = thread::Builder::new().name("spool-janitor".to_owned());
            match janitor.spawn(move || remove(generation, &directory)) {
                Ok(janitor) => self.janitors.push(janitor),
                Err(error) => tracing::warn!(%error, "spool leaves a drained database to the next start"),
            }
        }
    }

    /// Counts anew what is in doubt, and looks up the oldest entries where only a bound is known.
    fn settle(&self) {
        for generation in &self.generations {
            if generation.recount_doubted() {
                self.shared.tell_unreadable(&self.generations);
            }
            let unsettled: Vec<_> = generation
                .ledger()
                .lanes()
                .filter(|(_, tally)| !tally.exact)
                .map(|(lane, _)| lane.clone())
                .collect();
            for lane in unsettled {
                generation.settle(&lane);
            }
        }
    }

    fn account(&self) {
        let sums = queue::sum(&self.generations);
        self.shared.state().sums = sums;
        let age = sums.oldest_at.map(|at| Duration::from_millis(super::now().saturating_sub(at)));
        metrics::spool_holds(sums.entries, sums.bytes + sums.foreign.bytes, age.unwrap_or_default());
        metrics::spool_foreign(sums.foreign.entries);
    }

    /// Counts what takes no part; people take away what lies aside.
    fn look_aside(&self) {
        let aside = self.directory.aside();
        let mut state = self.shared.state();
        if let Ok(aside) = aside {
            state.outside.aside = aside;
        }
        metrics::spool_leaves_out(state.outside.unopened.len(), state.outside.aside.len());
    }

    fn look_at_disk_use(&mut self) {
        if let Ok(bytes) = self.directory.disk_bytes() {
            metrics::spool_takes(bytes);
        }
        self.look_aside();
        if self.compaction.as_ref().is_some_and(|compaction| !compaction.is_finished()) {
            return;
        }
        let floor = self.shared.options.rotate_bytes.saturating_mul(WASTE);
        let wasteful = self.generations.iter().find(|generation| {
            let holds = generation.holds();
            let takes = self.directory.disk_bytes_of(generation.number).unwrap_or_default();
            !generation.has_failed() && holds > 0 && takes > floor && takes / WASTE > holds
        });
        let Some(generation) = wasteful.cloned() else { return };
        let compact = move || {
            if let Err(error) = generation.database().compact() {
                tracing::warn!(database = generation.number, error = %ErrorChain(&error), "spool compaction failed");
            }
        };
        self.compaction = thread::Builder::new().name("spool-compaction".to_owned()).spawn(compact).ok();
    }
}

/// Closes a drained database once nobody reads from it, and removes it; a damaged one is set aside.
fn remove(mut generation: Arc<Generation>, directory: &Directory) {
    let end = Instant::now() + LONGEST_READ;
    let generation = loop {
        match Arc::try_unwrap(generation) {
            Ok(alone) => break alone,
            Err(shared) if Instant::now() < end => generation = shared,
            Err(_) => {
                tracing::warn!("spool leaves a drained database to the next start: it is still being read");
                return;
            }
        }
        thread::sleep(Duration::from_millis(10));
    };
    let (number, is_damaged) = (generation.number, generation.is_damaged());
    drop(generation);
    if is_damaged {
        // Its gap is open or about to be; only whoever keeps it knows, so the next start tells of it once more.
        match directory.move_aside(number) {
            Ok(path) => tracing::warn!(path = %path.display(), "spool set a damaged database aside"),
            Err(error) => tracing::warn!(%error, "spool could not set a damaged database aside"),
        }
    } else if let Err(error) = directory.remove(number) {
        tracing::warn!(database = number, %error, "spool could not remove a drained database");
    }
}
