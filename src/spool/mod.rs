//! The spool: deliveries that were accepted and are not in Kafka yet, kept on this disk.
//!
//! ```text
//! append ─┐                                    ┌─▶ newest database ─ fsync ─▶ every append of the batch returns
//! append ─┼─▶ one queue ─▶ writer ─ one batch ─┤                                 │
//! remove ─┘   in order     thread              └─▶ older databases: removals     ▼
//!    └────────────────────────────────────────────────────────────────────────▶ index: sequences by lane
//!                                                                                │
//! read (lane, after) ◀── entries by sequence ◀── databases, one lookup an entry ◀┘
//! ```
//!
//! A [`SpoolEntry`] has a [`Lane`] and a sequence, and is read back in that order. The spool knows nothing of Kafka or HTTP. Its
//! directory holds one or more databases of an embedded store; `directory.rs` has the layout, `store/fjall/` says what of
//! the store it relies on.
//!
//! Invariants:
//! - [`Spool::append`] returns `Ok` only after an fsync that covers the entry. All waiting entries go into one batch with one
//!   fsync; a single append does not wait for others.
//! - A removal hides the entry from readers at once, is written without a separate fsync, and wins over an append of the
//!   same entry that was called before it. An entry that comes back after a crash is a duplicate; none is lost.
//! - Memory grows by about two bytes an entry, for the index. The queue is bounded in bytes.
//! - Only databases whose entries are all removed, and those that never held one, are removed from disk.
//!
//! On failure:
//! - No room, by `limit_bytes`, the reserve of free disk or the system's answer: [`Error::LimitReached`] or
//!   [`Error::DiskFull`], before or instead of the acknowledgement.
//! - A write or fsync error is final for its database, because the system may have dropped the pages it could not write. The
//!   batch gets [`Error::Failed`], a fresh database takes over, and the failed one is still read and drained.
//! - A database that does not open is moved aside once a fresh one has what is readable in it. Entries may be missing, so
//!   [`OpenedSpool::moved_aside`] reports it at every start until [`UnusedDatabase::mark_recorded`]. One that cannot be opened now is
//!   left to the next start. Neither keeps the spool from opening.
//! - An entry that its reader cannot use is [disowned](Spool::disown): it stays on disk for a version that can, and the next
//!   start offers it again.
//! - An entry that cannot be read is left out, counted and logged; its database is moved aside when the rest is drained.
//! - A second process is refused.

mod directory;
mod entry;
mod error;
#[cfg(test)]
#[path = "tests/fault.rs"]
pub(crate) mod fault;
mod scan;
mod state;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    fmt, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base::metrics;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::{
    directory::OpenDirectory,
    state::{SpoolCore, WriterOperation},
};
pub use self::{
    entry::{Lane, SpoolEntry},
    error::Error,
};
use crate::store;

/// Where the spool is and how much it may hold.
#[derive(Debug, Clone)]
pub struct SpoolOptions {
    /// Created if it is missing. Nothing else may be in it.
    pub directory: PathBuf,
    /// Bytes of keys and values that may be held, until [`Spool::set_limit`]. The disk takes more: up to twice as much while
    /// they are written, and what removed entries took until they are compacted.
    pub limit_bytes: u64,
    /// Free bytes that the disk keeps; entries are refused below.
    pub reserve_bytes: u64,
    /// Bytes of entries that may wait for the writer.
    pub queue_bytes: u64,
    /// An empty database that has written this much is replaced by a fresh one, which frees the disk it takes.
    pub rotate_bytes: u64,
    /// The store; tests wrap it to inject faults.
    pub storage: Arc<dyn store::Storage>,
}

impl SpoolOptions {
    /// A limit of `limit_bytes` in this directory, and defaults: 256 MiB of free disk kept, 64 MiB in the queue.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        Self {
            directory: directory.into(),
            limit_bytes,
            reserve_bytes: 256 * 1024 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            rotate_bytes: 64 * 1024 * 1024,
            storage: Arc::new(store::Fjall::default()),
        }
    }
}

/// An open spool, and the databases that are not part of it.
#[derive(Debug)]
pub struct OpenedSpool {
    /// The spool.
    pub spool: Spool,
    /// Databases that did not open, now or at an earlier start, and whose gap is not recorded yet: acknowledged entries may be
    /// in them and nowhere else.
    pub moved_aside: Vec<UnusedDatabase>,
    /// Databases that could not be opened for reasons that say nothing about their files, as missing rights. The next start
    /// tries again.
    pub unopened: Vec<UnusedDatabase>,
}

/// A database that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedDatabase {
    /// Its directory.
    pub folder: PathBuf,
    /// A time no later than its first entry; 1970 if unknown.
    pub since: SystemTime,
}

impl UnusedDatabase {
    fn in_folder(folder: PathBuf) -> Self {
        Self { since: directory::since(&folder), folder }
    }

    /// Marks the gap of a database that was moved aside as recorded: later starts do not report it, even after a crash. Blocks.
    ///
    /// # Errors
    /// The mark cannot be written; the next start reports the database again.
    pub fn mark_recorded(&self) -> io::Result<()> {
        directory::mark_recorded(&self.folder)
    }
}

/// Folders of databases that an open spool does not use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outside {
    /// Those that could not be opened; a restart tries again.
    pub unopened: Vec<PathBuf>,
    /// Those that were moved aside, until they are removed by hand.
    pub aside: Vec<PathBuf>,
}

/// The open spool; clones are the same one. [Close](Self::close) it: dropping the last one does not wait for the writer.
#[derive(Clone)]
pub struct Spool(Arc<SpoolHandle>);

struct SpoolHandle {
    shared: Arc<SpoolCore>,
    ended: CancellationToken,
}

impl Drop for SpoolHandle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

/// Consecutive entries of a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpoolBatch {
    /// The entries.
    pub entries: Vec<SpoolEntry>,
    /// Whether the lane holds further entries.
    pub more: bool,
}

/// What a lane holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneState {
    /// The lane.
    pub lane: Lane,
    /// Entries in it.
    pub entries: u64,
    /// Sequence of the first.
    pub oldest_sequence: u64,
}

/// What all lanes hold together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Age of the oldest entry, at most a quarter of a second out of date; `None` if there is no entry.
    pub oldest_age: Option<Duration>,
    /// Disowned entries, which are not counted above.
    pub foreign: Foreign,
}

/// Disowned entries: they stay on disk and count only against the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// A time no later than the first append.
    pub since: Option<SystemTime>,
}

impl Foreign {
    fn with(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            bytes: self.bytes + other.bytes,
            since: [self.since, other.since].into_iter().flatten().min(),
        }
    }
}

/// Failures since the spool was opened.
#[derive(Debug, Clone, Default)]
pub struct SpoolFailures {
    /// Databases that could not be written to.
    pub count: u64,
    /// Stretches, of one entry or more, that were acknowledged and cannot be read: a gap. Also those found at open.
    pub unreadable: u64,
    /// A time no later than the first entry in those stretches.
    pub unreadable_since: Option<SystemTime>,
    /// Acknowledged entries that this version cannot use: a gap until one that can is started.
    pub foreign: Foreign,
}

impl Spool {
    /// Opens the spool and indexes what is in it. Blocks.
    ///
    /// # Errors
    /// The directory is in use or cannot be used at all. Broken databases in it are no error.
    pub fn open(options: SpoolOptions) -> Result<OpenedSpool, Error> {
        let OpenDirectory { directory, generations, moved_aside, unopened } = directory::open(&options)?;
        let folders = unopened.iter().map(|missing| missing.folder.clone()).collect();
        let outside = Outside { unopened: folders, aside: Vec::new() };
        let shared = Arc::new(SpoolCore::new(options, generations, outside));
        let ended = CancellationToken::new();
        writer::start(Arc::clone(&shared), directory, ended.clone())?;
        let spool = Self(Arc::new(SpoolHandle { shared, ended }));
        let Totals { entries, bytes, oldest_age, .. } = spool.totals();
        tracing::info!(entries, bytes, ?oldest_age, "spool is open");
        Ok(OpenedSpool { spool, moved_aside, unopened })
    }

    /// Queues the entry before it returns. The future resolves once the entry is on disk; dropping it does not cancel the write.
    /// The entry replaces one of the same lane and sequence, which must have the same size.
    ///
    /// # Errors
    /// [`Error::LimitReached`], [`Error::DiskFull`], [`Error::Busy`] and [`Error::Closed`] if the entry was not accepted,
    /// [`Error::Failed`] and [`Error::DiskFull`] if it could not be written.
    pub fn append(&self, entry: SpoolEntry) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let queued = self.0.shared.append(entry);
        async move { queued?.await.unwrap_or(Err(Error::Closed)) }
    }

    /// Removes the entry, also if its append is still in flight. Never waits; readers do not see the entry any more when this
    /// returns.
    pub fn remove(&self, lane: &Lane, sequence: u64) {
        self.0.shared.remove((lane.clone(), sequence));
    }

    /// Leaves the entry to a version that can use it: it stays on disk, is not read again before the next start, and is counted
    /// as [`Totals::foreign`]. Never waits.
    pub fn disown(&self, lane: &Lane, sequence: u64) {
        // A spool that is closing offers it again at the next start.
        drop(self.0.shared.ask(WriterOperation::Disown((lane.clone(), sequence))));
    }

    /// Entries of the lane with a sequence above `after`, in order: at most `most`, and with at most `bytes` of payload unless
    /// the first alone has more.
    ///
    /// # Errors
    /// [`Error::Closed`], and [`Error::Failed`] when the system refuses to read.
    pub async fn read(
        &self,
        lane: &Lane,
        after: Option<u64>,
        most: usize,
        bytes: usize,
    ) -> Result<SpoolBatch, Error> {
        let (shared, lane) = (Arc::clone(&self.0.shared), lane.clone());
        if !shared.state().holds(&lane)? {
            return Ok(SpoolBatch::default());
        }
        let read = tokio::task::spawn_blocking(move || shared.read(&lane, after, most, bytes));
        read.await.unwrap_or(Err(Error::Closed))
    }

    /// The lanes that hold entries, after all earlier calls have been processed.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn lanes(&self) -> Result<Vec<LaneState>, Error> {
        let (answer, lanes) = oneshot::channel();
        self.0.shared.ask(WriterOperation::Lanes(answer))?;
        lanes.await.map_err(|_| Error::Closed)
    }

    /// Sets the limit in bytes of keys and values. Existing entries stay.
    pub fn set_limit(&self, bytes: u64) {
        self.0.shared.state().limit_bytes = bytes;
        metrics::spool_limited(bytes);
    }

    /// Why an entry would be refused now: `None` while there is room for one of 16 KiB.
    #[must_use]
    pub fn refuses(&self) -> Option<Error> {
        self.0.shared.refuses()
    }

    /// Returns once the writer has ended, after [`Spool::close`] or because it panicked.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// The totals, from memory.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.0.shared.state().totals()
    }

    /// The databases that are not used. Their entries are not counted.
    #[must_use]
    pub fn outside(&self) -> Outside {
        self.0.shared.state().outside.clone()
    }

    /// The highest sequence found at open or appended since.
    #[must_use]
    pub fn highest_sequence(&self) -> u64 {
        self.0.shared.state().highest
    }

    /// Changes with each failure.
    #[must_use]
    pub fn failures(&self) -> watch::Receiver<SpoolFailures> {
        self.0.shared.failures.subscribe()
    }

    /// Refuses new entries, writes and syncs the waiting ones, ends the threads and unlocks the directory. Returns whether that
    /// finished within the limit; if not, it continues in the background.
    pub async fn close(&self, limit: Duration) -> bool {
        self.0.shared.close();
        tokio::time::timeout(limit, self.ended()).await.is_ok()
    }
}

/// Milliseconds since 1970.
fn milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The moment this many milliseconds after 1970, or 1970 if there is no such moment.
fn time_of(milliseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}
