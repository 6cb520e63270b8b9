//! The spool: what was accepted and is not in Kafka yet, kept on this disk.
//!
//! ```text
//! append ─┐                                    ┌─▶ newest database ─ fsync ─▶ every append of the batch answers
//! append ─┼─▶ one queue ─▶ writer ─ one batch ─┤
//! remove ─┘   in order     thread              └─▶ older databases, removals only
//!                                                        │
//! read (lane, after) ◀── entries by sequence ◀───────────┴── all databases, less what was removed meanwhile
//! ```
//!
//! An [`Entry`] has a [`Lane`] and a sequence, and is read back in that order. It knows nothing of Kafka or HTTP. A
//! directory holds one or more databases of an embedded store (`store/fjall/` says what of it we rely on); `directory.rs` has
//! the layout.
//!
//! Invariants:
//! - [`Spool::append`] answers `Ok` only after an fsync that covers the entry. Whatever waits goes into one batch with one
//!   fsync; nothing waits for company.
//! - A removal counts for readers at once, is written without an fsync of its own, and wins over an append of the same
//!   entry that was called before it. What comes back after a crash is a duplicate, never a gap.
//! - Memory grows with lanes, not with entries; the queue is bounded in bytes.
//! - Nothing is removed from disk but databases whose entries are all gone, and what never held one.
//!
//! On failure:
//! - No room, by `limit_bytes`, the reserve of free disk or the system's word: [`Error::Full`], before or instead of the
//!   acknowledgement.
//! - A write or fsync error is final for its database (the system may have dropped the pages it could not write): its
//!   batch gets [`Error::Failed`], a fresh database takes over, the failed one is still read and drained;
//!   [`Spool::failures`] tells.
//! - A database that does not open is set aside once what can be salvaged is in a fresh one; [`Opened::moved_aside`] tells of
//!   it at every start until it is [told](Missing::told), since something may be missing. One that cannot be opened now is left
//!   to the next start. Neither is a reason not to start.
//! - An entry that its reader cannot use is [disowned](Spool::disown): it stays on disk, for a version that can, and counts as
//!   what it is. The next start offers it again.
//! - An entry that cannot be read is left out, counted and logged; its database is set aside when the rest is drained.
//! - A second process is refused.

mod batch;
mod directory;
mod entry;
mod error;
#[cfg(test)]
#[path = "tests/fault.rs"]
pub(crate) mod fault;
mod generation;
mod ledger;
mod opening;
mod queue;
mod scan;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::{
    entry::{Entry, Lane},
    error::{Error, Room},
};
use self::{
    generation::Most,
    queue::{Operation, Shared},
};
use crate::store::{self, Fjall, Storage};

/// Where the spool is and how much it may hold.
#[derive(Debug, Clone)]
pub struct Options {
    /// Created where missing; nobody else's.
    pub directory: PathBuf,
    /// Bytes of keys and values that may be held, until [`Spool::set_limit`] says otherwise. The disk takes more: up to twice as much while it is written, and what
    /// removed entries took until they are compacted.
    pub limit_bytes: u64,
    /// Free bytes that the disk keeps; entries are refused below.
    pub reserve_bytes: u64,
    /// Bytes of entries that may wait for the writer.
    pub queue_bytes: u64,
    /// An empty database that has written this much is replaced by a fresh one, which frees the disk it takes.
    pub rotate_bytes: u64,
    /// The store; another than the default is for tests.
    pub storage: Arc<dyn Storage>,
}

impl Options {
    /// Room for `limit_bytes` in this directory, all else by default: 256 MiB of free disk kept, 64 MiB in the queue.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        Self {
            directory: directory.into(),
            limit_bytes,
            reserve_bytes: 256 * 1024 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            rotate_bytes: 64 * 1024 * 1024,
            storage: Arc::new(Fjall::default()),
        }
    }
}

/// A spool that is open, and what that took.
#[derive(Debug)]
pub struct Opened {
    /// The spool.
    pub spool: Spool,
    /// Databases that did not open, now or at an earlier start, and are not told of yet. Acknowledged entries may be in them
    /// and nowhere else: a gap.
    pub moved_aside: Vec<Missing>,
    /// Databases that could not be opened for reasons that are not theirs, as a full disk or missing rights. They stay
    /// where they are, and the next start tries again.
    pub unopened: Vec<Missing>,
}

/// A database that takes no part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Where it is.
    pub folder: PathBuf,
    /// No entry in it was appended before; 1970 where nothing tells.
    pub since: SystemTime,
}

impl Missing {
    fn in_folder(folder: PathBuf) -> Self {
        Self { since: directory::since(&folder), folder }
    }

    /// Whoever has to know of a database that was moved aside does, also after a crash: later starts do not tell of it again.
    /// Blocks.
    ///
    /// # Errors
    /// That cannot be written down; the next start tells again.
    pub fn told(&self) -> io::Result<()> {
        directory::mark_told(&self.folder)
    }
}

/// The folders of databases that take no part in an open spool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outside {
    /// Those that could not be opened; a restart tries again.
    pub unopened: Vec<PathBuf>,
    /// Those that were moved aside, whether told of or not, until somebody removes them.
    pub aside: Vec<PathBuf>,
}

/// The open spool; clones are the same one. [Close](Self::close) it: dropping the last one only tells the writer to end.
#[derive(Debug, Clone)]
pub struct Spool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    ended: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Entries of a lane, in order and without a gap among what the lane holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether the lane holds others behind them.
    pub more: bool,
}

/// What a lane holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneState {
    /// The lane.
    pub lane: Lane,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Sequence of the first.
    pub oldest_sequence: u64,
    /// When the one that is here longest was appended; no later than that.
    pub oldest_at: SystemTime,
}

/// What all lanes hold together, as of the last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// How long the oldest is here, to about a second; none if there is none.
    pub oldest_age: Option<Duration>,
    /// What is not counted above, because nobody here can use it.
    pub foreign: Foreign,
}

/// Entries that were disowned: they stay, and count against the limit alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// None was appended before.
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

/// What failed since the spool was opened.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    /// Databases that could not be written to.
    pub count: u64,
    /// The latest of them.
    pub last: Option<Failure>,
    /// Stretches, of one entry or more, that were acknowledged and cannot be read: a gap. Also those found at open.
    pub unreadable: u64,
    /// Nothing in those stretches was appended before; none without any.
    pub unreadable_since: Option<SystemTime>,
    /// Entries that were acknowledged and that nobody here can use: a gap until a version that can is started.
    pub foreign: Foreign,
}

/// A database that is not written to any more.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Where it is.
    pub database: PathBuf,
    /// What happened.
    pub cause: Arc<store::Error>,
}

impl Spool {
    /// Opens the spool and counts what is in it. Blocks: call it on a thread that may, before anything is served.
    ///
    /// # Errors
    /// The directory is in use or cannot be used at all; never because of what is in it.
    pub fn open(options: Options) -> Result<Opened, Error> {
        let found = opening::open(&options)?;
        let shared = Arc::new(Shared::new(options));
        shared.tell_unreadable(&found.generations);
        shared.state().outside.unopened =
            found.unopened.iter().map(|missing| missing.folder.clone()).collect();
        shared.set_generations(&found.generations);
        let ended = CancellationToken::new();
        writer::start(Arc::clone(&shared), found.directory, found.generations, ended.clone())?;
        let spool = Self(Arc::new(Inner { shared, ended }));
        let Totals { entries, bytes, oldest_age, .. } = spool.totals();
        tracing::info!(entries, bytes, ?oldest_age, "spool is open");
        Ok(Opened { spool, moved_aside: found.moved_aside, unopened: found.unopened })
    }

    /// Keeps the entry. It is queued by the time this returns, and is written also if nobody waits for the future, which
    /// resolves once it is on disk. An entry of the same lane and sequence is replaced.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Busy`] and [`Error::Closed`] when it was not taken, [`Error::Failed`] and
    /// [`Error::Full`] when it could not be written.
    pub fn append(&self, entry: Entry) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (done, outcome) = oneshot::channel();
        let queued = self.0.shared.append(entry, now(), done);
        async move {
            queued?;
            outcome.await.unwrap_or(Err(Error::Closed))
        }
    }

    /// Forgets the entry, whether or not it is there or still being appended. Never waits; readers do not see it any more
    /// by the time this returns.
    pub fn remove(&self, lane: &Lane, sequence: u64) {
        self.0.shared.remove(lane.clone(), sequence);
    }

    /// Leaves the entry to a version that can use it: it stays on disk, is not read again before the next start, and is counted
    /// as [`Totals::foreign`]. Never waits.
    pub fn disown(&self, lane: &Lane, sequence: u64) {
        // A spool that is closing offers it again at the next start.
        drop(self.0.shared.ask(Operation::Disown { lane: lane.clone(), sequence }));
    }

    /// Entries of the lane with a sequence above `after`, in order: at most `most`, and no more `bytes` of payload than
    /// that unless the first alone has more.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn read(
        &self,
        lane: &Lane,
        after: Option<u64>,
        most: usize,
        bytes: usize,
    ) -> Result<Batch, Error> {
        let shared = Arc::clone(&self.0.shared);
        if shared.is_closing() {
            return Err(Error::Closed);
        }
        if shared.generations().iter().all(|generation| generation.ledger().lane(lane).is_none()) {
            return Ok(Batch::default());
        }
        let lane = lane.clone();
        let most = Most { entries: most, bytes };
        let read = tokio::task::spawn_blocking(move || read(&shared, &lane, after, most));
        read.await.map_err(|_| Error::Closed)
    }

    /// The lanes that hold something, after everything that was called before.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn lanes(&self) -> Result<Vec<LaneState>, Error> {
        let (answer, lanes) = oneshot::channel();
        self.0.shared.ask(Operation::Survey(answer))?;
        lanes.await.map_err(|_| Error::Closed)
    }

    /// From now on so many bytes of keys and values may be held. What is held already stays, also where it is more.
    pub fn set_limit(&self, bytes: u64) {
        self.0.shared.set_limit(bytes);
    }

    /// Why nothing would be taken right now: `None` while there is room for an ordinary entry.
    #[must_use]
    pub fn refuses(&self) -> Option<Error> {
        self.0.shared.refuses()
    }

    /// Returns once the writer has ended, by [`Spool::close`] or by a fault of the program.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// What is held, from memory.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let sums = self.0.shared.state().sums;
        Totals {
            entries: sums.entries,
            bytes: sums.bytes,
            oldest_age: sums.oldest_at.map(|at| Duration::from_millis(now().saturating_sub(at))),
            foreign: sums.foreign,
        }
    }

    /// The databases that take no part. Entries of those that were not opened are in no sum.
    #[must_use]
    pub fn outside(&self) -> Outside {
        self.0.shared.state().outside.clone()
    }

    /// No entry that was found at open or appended since has a higher sequence.
    #[must_use]
    pub fn highest_sequence(&self) -> u64 {
        self.0.shared.highest()
    }

    /// What failed: changes with each failure.
    #[must_use]
    pub fn failures(&self) -> watch::Receiver<Failures> {
        self.0.shared.failures.subscribe()
    }

    /// Takes nothing more, writes and syncs what waits, ends the threads and unlocks the directory. Returns whether that
    /// was done within the limit; if not, it goes on.
    pub async fn close(&self, limit: Duration) -> bool {
        self.0.shared.close();
        tokio::time::timeout(limit, self.0.ended.cancelled()).await.is_ok()
    }
}

/// Merges what the databases have; the newest copy of an entry counts. Where one of them has more than it gave, what the
/// others have beyond its last would leave a gap.
fn read(shared: &Shared, lane: &Lane, after: Option<u64>, most: Most) -> Batch {
    let removed = shared.removed(lane);
    let mut merged = BTreeMap::new();
    let mut end = None;
    for generation in shared.generations() {
        let found = generation.read(lane, after, most, &removed);
        if found.needs_recount {
            // The spool may be closing; the next start counts anyway.
            drop(shared.ask(Operation::Recount { number: generation.number, lane: lane.clone() }));
        }
        if let Some(last) = found.entries.last().filter(|_| found.more) {
            end = Some(end.map_or(last.sequence, |end: u64| end.min(last.sequence)));
        }
        merged.extend(found.entries.into_iter().map(|entry| (entry.sequence, entry)));
    }
    let found = merged.len();
    let mut entries = Vec::with_capacity(found.min(most.entries));
    let mut bytes = 0;
    for entry in merged
        .into_values()
        .take(most.entries)
        .take_while(|entry| end.is_none_or(|end| entry.sequence <= end))
    {
        bytes += entry.payload.len();
        if bytes > most.bytes && !entries.is_empty() {
            break;
        }
        entries.push(entry);
    }
    let more = end.is_some() || entries.len() < found;
    Batch { entries, more }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The moment this many milliseconds after 1970; a nonsensical one is its beginning.
fn time_of(milliseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}
