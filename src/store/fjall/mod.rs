//! The one store there is: fjall, a log-structured merge tree. Nobody else names the crate.
//!
//! A commit is appended to a journal (64 MiB files, an XXH3 checksum a batch) and synced, then applied to a table in
//! memory; full tables are written out by one background thread, which also merges them. Read in its source (3.1.13),
//! where the documentation is silent:
//!
//! - `SyncData` is one `fdatasync` of the journal before the batch becomes visible. New journals and tables are synced
//!   with their directory; a table is written out only after a sync of the journal.
//! - A journal that fails to write or to sync *poisons* the database for good, and so does a failure of the background
//!   thread: every later commit is refused. What is in memory and in tables stays readable.
//! - On open, a batch without its end is cut off: it was never acknowledged. A batch with its end but a wrong checksum is
//!   an error, although a power cut can leave one (pages reach the disk in any order): hence [`salvage`].
//! - A commit that finds four tables waiting to be written sleeps until there are fewer, for ever if the background thread
//!   is dead; and when the tables are to be switched it says so with every commit, into a queue of 1000 on which the
//!   background thread itself can then block. So the switching is done here, before either can happen, and the wait is
//!   ours: with a limit, and ended by the poison.
//! - A journal of more than 64 MB is succeeded by a new one when tables are switched, and removed once its entries are in
//!   tables; until then every open reads it again.
//! - With two or more background threads one of them spins while another merges. Hence one.
//! - A table has one filter, and above the third level one index, of up to a megabyte each. Neither is kept at hand below the
//!   first levels, and a cache of a few megabytes is cut into shards that are smaller than either: so a look at one key read
//!   both from the disk, every time. Hence filters are kept in memory (ten bits a key), and the index is cut into blocks.
//! - Removed keys take disk until a merge meets them, and merged tables until the next switch of tables, which forgets
//!   who might still read them; [`Database::compact`] does both.

mod salvage;

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fjall::{
    KeyspaceCreateOptions, PersistMode,
    compaction::Leveled,
    config::{PartitioningPolicy, PinningPolicy},
};

use super::{Change, Database, Error, Storage, Visitor};

/// Ending of the store's journals.
const JOURNAL: &str = "jnl";
/// Name of the one keyspace.
const ENTRIES: &str = "entries";
const TABLE_BYTES: u64 = 16 * 1024 * 1024;
const CACHE_TABLE_BYTES: u64 = TABLE_BYTES / 4;
/// Tables are merged into ones of about this size. Whoever merges holds a hash of each key in the table that is being written, and its
/// index, until that is full: a dozen megabytes with small entries and the store's own 64 MiB, which databases that were made with
/// it keep, and [`Database::compact`] takes in any case.
const MERGED_BYTES: u64 = 16 * 1024 * 1024;
/// About what a key costs in memory besides its own bytes; most of what a removal does.
const NODE_BYTES: usize = 96;
/// So many times the bytes of a table in memory, and a commit waits for the background thread.
const MOST_TABLES_IN_MEMORY: u64 = 4;
/// Tables waiting to be written, besides the one being filled. The store's own, endless, wait begins at four.
const MOST_WAITING: usize = 2;
/// Tables not merged yet. The store's own, endless, wait begins at thirty.
const MOST_UNMERGED: usize = 20;
/// How long a commit waits for the background thread before the database counts as broken.
const LONGEST_STALL: Duration = Duration::from_secs(20);
const STALL_STEP: Duration = Duration::from_millis(2);
/// Blocks kept in memory, all databases each: those of the index for some millions of keys. Draining reads everything once, and
/// single entries are looked up behind filters and the system's own cache, so more is of little use.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;
/// Tables kept open: 4 GiB of them, and a part of the files that a worker has besides its connections.
const OPEN_TABLES: usize = 256;
/// Bytes of journal above which the store begins a new one, if asked after a write.
const LONG_JOURNAL: u64 = 64_000_000;
/// Below all keys there are, so that it can be deleted when something has to be written.
const NO_KEY: &[u8] = &[0];
/// Twice the least that the store accepts.
const JOURNAL_BYTES: u64 = 128 * 1024 * 1024;

/// The product's store.
#[derive(Debug, Clone, Copy)]
pub struct Fjall {
    /// Bytes in memory that are then written out as a table.
    table_bytes: u64,
}

impl Fjall {
    /// For what is a cache of something else, with smaller tables: a disk that falls behind holds up its commits earlier. Batches
    /// of records wait for those, deliveries do not.
    #[must_use]
    pub const fn cache() -> Self {
        Self { table_bytes: CACHE_TABLE_BYTES }
    }
}

impl Default for Fjall {
    fn default() -> Self {
        Self { table_bytes: TABLE_BYTES }
    }
}

struct Open {
    entries: fjall::Keyspace,
    database: fjall::Database,
    /// Bytes committed since the table in memory was switched.
    in_memory: AtomicU64,
    table_bytes: u64,
}

impl Storage for Fjall {
    fn open(&self, directory: &Path) -> Result<Box<dyn Database>, Error> {
        open(*self, directory).map(|open| Box::new(open) as Box<dyn Database>)
    }

    fn salvage(&self, from: &Path, to: &Path) -> Result<Box<dyn Database>, Error> {
        salvage::salvage(*self, from, to).map(|open| Box::new(open) as Box<dyn Database>)
    }

    #[cfg(target_os = "linux")]
    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(directory)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    #[cfg(not(target_os = "linux"))]
    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn open(store: Fjall, directory: &Path) -> Result<Open, Error> {
    let is_long = directory.exists() && journal_bytes(directory) > LONG_JOURNAL;
    let open = recover(store, directory)?;
    if is_long {
        // It is replaced when tables are switched, but its length is known only once it was written to. Should this
        // fail, so will the next commit, and what is here can be read all the same.
        drop(open.commit(vec![Change::Delete(NO_KEY.to_vec())], false));
    }
    // How much the journal has put into memory is not told, so it is written out; nothing is not.
    open.entries.rotate_memtable().map_err(|error| translate("open the database", error))?;
    Ok(open)
}

/// Opens without writing anything out.
fn recover(store: Fjall, directory: &Path) -> Result<Open, Error> {
    // It asserts what it reads of broken files here and there.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let database = fjall::Database::builder(directory)
            .worker_threads(1)
            .cache_size(CACHE_BYTES)
            .max_cached_files(Some(OPEN_TABLES))
            .max_journaling_size(JOURNAL_BYTES)
            .open()?;
        // The size is never reached: tables are switched by `Open::switch_tables`.
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(u64::MAX)
                .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(MERGED_BYTES)))
                .filter_block_pinning_policy(PinningPolicy::all(true))
                .index_block_partitioning_policy(PartitioningPolicy::new([false, true]))
        };
        let entries = database.keyspace(ENTRIES, options)?;
        Ok((database, entries))
    }));
    let (database, entries) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Err(translate("open the database", error)),
        Err(panic) => {
            return Err(Error::Broken { action: "open the database", source: told(&*panic).into() });
        }
    };
    Ok(Open { entries, database, in_memory: AtomicU64::new(0), table_bytes: store.table_bytes })
}

impl Open {
    /// Waits until the store would take a commit without a wait of its own.
    fn wait_for_room(&self) -> Result<(), Error> {
        let end = Instant::now() + LONGEST_STALL;
        while self.in_memory.load(Ordering::Relaxed) >= MOST_TABLES_IN_MEMORY * self.table_bytes
            || self.entries.sealed_memtable_count() > MOST_WAITING
            || self.entries.l0_table_count() >= MOST_UNMERGED
        {
            // Nothing to write: it only tells whether the database is poisoned.
            self.database
                .persist(PersistMode::Buffer)
                .map_err(|error| translate("wait for the background thread", error))?;
            if Instant::now() > end {
                let source = io::Error::from(io::ErrorKind::TimedOut);
                return Err(Error::io("wait for the background thread", source));
            }
            thread::sleep(STALL_STEP);
            self.switch_tables()?;
        }
        Ok(())
    }

    /// Hands a full table to the background thread, unless that is far behind.
    fn switch_tables(&self) -> Result<(), Error> {
        if self.in_memory.load(Ordering::Relaxed) >= self.table_bytes
            && self.entries.sealed_memtable_count() < MOST_WAITING
        {
            self.entries.rotate_memtable().map_err(|error| translate("switch tables", error))?;
            self.in_memory.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Database for Open {
    fn commit(&self, changes: Vec<Change>, durable: bool) -> Result<(), Error> {
        self.wait_for_room()?;
        let mode = if durable { PersistMode::SyncData } else { PersistMode::Buffer };
        if changes.is_empty() {
            return self.database.persist(mode).map_err(|error| translate("sync the journal", error));
        }
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), changes.len())
            .durability(Some(mode));
        let bytes = changes.iter().map(|change| change.bytes() + NODE_BYTES).sum::<usize>();
        for change in changes {
            match change {
                Change::Put(key, value) => batch.insert(&self.entries, key, value),
                Change::Delete(key) => batch.remove(&self.entries, key),
            }
        }
        batch.commit().map_err(|error| translate("commit to the journal", error))?;
        self.in_memory.fetch_add(bytes as u64, Ordering::Relaxed);
        // The commit stands; if this fails the next one will say so.
        if let Err(error) = self.switch_tables() {
            tracing::debug!(error = %base::retry::Chain(&error), "the store could not switch tables");
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = self.entries.get(key).map_err(|error| translate("look up an entry", error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn visit(&self, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), Error> {
        for found in self.entries.range(from..to) {
            let (key, value) = found.into_inner().map_err(|error| translate("read entries", error))?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn compact(&self) -> Result<(), Error> {
        // What was removed last must be in a table to be met by the merge; the background thread writes it.
        let failed = |error| translate("compact the database", error);
        self.entries.rotate_memtable().map_err(failed)?;
        let end = Instant::now() + LONGEST_STALL;
        while self.entries.sealed_memtable_count() > 0 && Instant::now() < end {
            self.database.persist(PersistMode::Buffer).map_err(failed)?;
            thread::sleep(STALL_STEP);
        }
        self.entries.major_compact().map_err(failed)?;
        // Without anything in memory there is no switch.
        self.commit(vec![Change::Delete(NO_KEY.to_vec())], false)?;
        self.entries.rotate_memtable().map_err(failed).map(drop)
    }
}

/// Bytes of journals; those that cannot be looked at count nothing.
fn journal_bytes(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let journals = files.filter(|file| file.path().extension().is_some_and(|extension| extension == JOURNAL));
    journals.filter_map(|journal| journal.metadata().ok()).map(|metadata| metadata.blocks() * 512).sum()
}

fn translate(action: &'static str, error: fjall::Error) -> Error {
    match error {
        fjall::Error::Locked => Error::Locked,
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            Error::io(action, source)
        }
        source => Error::Broken { action, source: source.into() },
    }
}

/// What a panic said.
fn told(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;

    use super::*;

    /// So many that neither their filter nor their index fits a shard of the cache.
    const KEYS: u32 = 500_000;
    const LOOKED_UP: u32 = 500;

    fn key(number: u32) -> Vec<u8> {
        // One behind the other as they are drawn, none beside the other.
        format!("{:08x}", number.wrapping_mul(0x9e37_79b1)).into_bytes()
    }

    /// A cache with all keys, each with a value of so many bytes.
    fn filled(directory: &Path, bytes: usize) -> Result<Open, Error> {
        let open = open(Fjall::cache(), directory)?;
        for first in (0..KEYS).step_by(10_000) {
            let changes = (first..first + 10_000).map(|number| Change::Put(key(number), vec![7; bytes]));
            open.commit(changes.collect(), false)?;
        }
        Ok(open)
    }

    /// What this thread has read of files, as the kernel counts it, if it does.
    fn bytes_read() -> Option<u64> {
        let told = fs::read_to_string("/proc/thread-self/io").ok()?;
        told.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
    }

    #[test]
    fn a_cache_writes_its_table_out_at_a_fourth_of_the_bytes() {
        let (home, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bytes = usize::try_from(CACHE_TABLE_BYTES).unwrap();
        let held = |open: Open| {
            open.commit(vec![Change::Put(b"a".to_vec(), vec![7; bytes])], false).unwrap();
            open.commit(vec![Change::Put(b"b".to_vec(), vec![7])], false).unwrap();
            open.in_memory.load(Ordering::Relaxed)
        };

        assert!(held(open(Fjall::default(), home.path()).unwrap()) > CACHE_TABLE_BYTES);
        assert!(held(open(Fjall::cache(), cache.path()).unwrap()) < CACHE_TABLE_BYTES);
    }

    #[test]
    fn tables_are_merged_into_ones_that_are_small() {
        let home = tempfile::tempdir().unwrap();
        let open = filled(home.path(), 100).unwrap();
        // What was switched lies in the first level until there are four of them, and is merged into the next then.
        let end = Instant::now() + LONGEST_STALL;
        while open.entries.sealed_memtable_count() > 0 || open.entries.l0_table_count() >= 4 {
            assert!(Instant::now() < end, "{} tables are not merged", open.entries.l0_table_count());
            thread::sleep(STALL_STEP);
        }

        let keyspaces = fs::read_dir(home.path().join("keyspaces")).unwrap().flatten();
        let tables = keyspaces.filter_map(|keyspace| fs::read_dir(keyspace.path().join("tables")).ok());
        let files = tables.flatten().flatten().filter_map(|file| file.metadata().ok());
        let sizes: Vec<u64> = files.map(|metadata| metadata.len()).collect();
        assert!(sizes.iter().sum::<u64>() > 3 * MERGED_BYTES, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size < MERGED_BYTES * 5 / 4), "{sizes:?}");
    }

    #[test]
    fn a_look_at_one_key_reads_a_few_blocks_however_many_keys_there_are() {
        let home = tempfile::tempdir().unwrap();
        let open = filled(home.path(), 8).unwrap();
        open.compact().unwrap();

        let before = bytes_read();
        for number in 0..LOOKED_UP {
            assert_eq!(open.get(&key(number)).unwrap(), Some(vec![7; 8]));
        }

        let (Some(before), Some(after)) = (before, bytes_read()) else { return };
        let each = (after - before) / u64::from(LOOKED_UP);
        assert!(each < 32 * 1024, "{each} bytes a key");
    }
}
