//! The store: fjall, a log-structured merge tree. No other module uses the crate.
//!
//! A commit is appended to a journal (64 MiB files, an XXH3 checksum per batch) and synced, then applied to a table in memory; one
//! background thread writes full tables to disk and merges them. From fjall's source (3.1.13), because it is not documented:
//!
//! - `SyncData` is one `fdatasync` of the journal before the batch becomes visible. New journals and tables are synced
//!   with their directory; a table is written out only after a sync of the journal.
//! - A failed write or sync of the journal *poisons* the database permanently, and so does a failure of the background thread: every
//!   later commit is refused. Entries in memory and in tables stay readable.
//! - On open, an incomplete batch at the end is cut off: it was never acknowledged. A complete batch with a wrong checksum is an
//!   error, although a power cut can leave one (pages reach the disk in any order): hence [`salvage`].
//! - A commit that finds four tables waiting to be written sleeps until there are fewer, endlessly if the background thread is
//!   dead. While tables have to be switched, every commit reports it to a queue of 1000 entries, on which the background thread
//!   itself can block. So tables are switched here, before either can happen, and the wait is ours: it has a limit, and poison
//!   ends it.
//! - A journal of more than 64 MB is replaced by a new one when tables are switched, and removed once its entries are in tables;
//!   until then every open reads it again.
//! - With two or more background threads, one spins while another merges. Hence one.
//! - A table has one filter, and above the third level one index, of up to a megabyte each. Below the first levels
//!   neither is kept in memory, and a cache of a few megabytes is divided into shards that are smaller than either, so that every
//!   lookup of a key would read both from disk. Hence filters are pinned in memory (ten bits per key), and the index is partitioned
//!   into blocks.
//! - Removed keys take disk space until a merge reaches them, and merged tables until the next switch of tables, after
//!   which no reader counts as using them; [`Database::compact`] does both.

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

use super::{Database, Error, Storage, StoreChange, Visitor};

/// Extension of journal files.
const JOURNAL_EXTENSION: &str = "jnl";
/// Name of the one keyspace.
const KEYSPACE: &str = "entries";
const TABLE_BYTES: u64 = 16 * 1024 * 1024;
const CACHE_TABLE_BYTES: u64 = TABLE_BYTES / 4;
/// Approximate size of merged tables. A merge holds a hash of each key in the table being written, and its index, until the table is
/// full: a dozen megabytes with small entries at fjall's own 64 MiB, which databases created with it keep, and which
/// [`Database::compact`] uses in any case.
const MERGED_TABLE_BYTES: u64 = 16 * 1024 * 1024;
/// Approximate memory per key besides its bytes; most of the cost of a removal.
const KEY_OVERHEAD_BYTES: usize = 96;
/// At this many tables' worth of bytes in memory a commit waits for the background thread.
const MAX_TABLES_IN_MEMORY: u64 = 4;
/// Maximum tables waiting to be written, besides the one being filled. fjall's own endless wait starts at four.
const MAX_SEALED_TABLES: usize = 2;
/// Maximum unmerged tables. fjall's own endless wait starts at thirty.
const MAX_UNMERGED_TABLES: usize = 20;
/// Time after which a commit that waits for the background thread fails.
const STALL_LIMIT: Duration = Duration::from_secs(20);
const STALL_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Cache of blocks, per database: the index blocks of some millions of keys. More is of little use: draining reads everything once,
/// and filters and the page cache speed up single lookups.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;
/// Maximum open tables: 4 GiB of data, and a part of the files that a worker opens besides its connections.
const MAX_OPEN_TABLES: usize = 256;
/// Bytes of journal above which a switch of tables starts a new one, if a write came first.
const JOURNAL_ROTATION_BYTES: u64 = 64_000_000;
/// A key below all real keys: deleting it is a write without effect.
const UNUSED_KEY: &[u8] = &[0];
/// Twice the minimum that fjall accepts.
const MAX_JOURNAL_BYTES: u64 = 128 * 1024 * 1024;

/// Opens fjall databases.
#[derive(Debug, Clone, Copy)]
pub struct Fjall {
    /// Bytes in memory at which a table is written to disk.
    table_bytes: u64,
}

impl Fjall {
    /// For a cache, with smaller tables: a slow disk delays its commits earlier. Batches of records wait for these commits,
    /// deliveries do not.
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

struct FjallDatabase {
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

fn open(store: Fjall, directory: &Path) -> Result<FjallDatabase, Error> {
    let is_long = directory.exists() && journal_bytes(directory) > JOURNAL_ROTATION_BYTES;
    let open = recover(store, directory)?;
    if is_long {
        // A switch of tables replaces the journal, but its length is only known after a write. If this fails, the next
        // commit fails too, and the database is still readable.
        drop(open.commit(vec![StoreChange::Delete(UNUSED_KEY.to_vec())], false));
    }
    // The size of the table that the journal filled is unknown, so it is written to disk, unless it is empty.
    open.entries.rotate_memtable().map_err(|error| translate("open the database", error))?;
    Ok(open)
}

/// Opens without writing tables to disk.
fn recover(store: Fjall, directory: &Path) -> Result<FjallDatabase, Error> {
    // fjall panics on some broken files.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let database = fjall::Database::builder(directory)
            .worker_threads(1)
            .cache_size(CACHE_BYTES)
            .max_cached_files(Some(MAX_OPEN_TABLES))
            .max_journaling_size(MAX_JOURNAL_BYTES)
            .open()?;
        // The size is never reached: tables are switched by `FjallDatabase::switch_tables`.
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(u64::MAX)
                .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(MERGED_TABLE_BYTES)))
                .filter_block_pinning_policy(PinningPolicy::all(true))
                .index_block_partitioning_policy(PartitioningPolicy::new([false, true]))
        };
        let entries = database.keyspace(KEYSPACE, options)?;
        Ok((database, entries))
    }));
    let (database, entries) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Err(translate("open the database", error)),
        Err(panic) => {
            return Err(Error::Broken { action: "open the database", source: panic_message(&*panic).into() });
        }
    };
    Ok(FjallDatabase { entries, database, in_memory: AtomicU64::new(0), table_bytes: store.table_bytes })
}

impl FjallDatabase {
    /// Waits until fjall would accept a commit without waiting itself.
    fn wait_for_room(&self) -> Result<(), Error> {
        let end = Instant::now() + STALL_LIMIT;
        while self.in_memory.load(Ordering::Relaxed) >= MAX_TABLES_IN_MEMORY * self.table_bytes
            || self.entries.sealed_memtable_count() > MAX_SEALED_TABLES
            || self.entries.l0_table_count() >= MAX_UNMERGED_TABLES
        {
            // Writes nothing; fails if the database is poisoned.
            self.database
                .persist(PersistMode::Buffer)
                .map_err(|error| translate("wait for the background thread", error))?;
            if Instant::now() > end {
                let source = io::Error::from(io::ErrorKind::TimedOut);
                return Err(Error::io("wait for the background thread", source));
            }
            thread::sleep(STALL_POLL_INTERVAL);
            self.switch_tables()?;
        }
        Ok(())
    }

    /// Hands a full table to the background thread, unless that is behind.
    fn switch_tables(&self) -> Result<(), Error> {
        if self.in_memory.load(Ordering::Relaxed) >= self.table_bytes
            && self.entries.sealed_memtable_count() < MAX_SEALED_TABLES
        {
            self.entries.rotate_memtable().map_err(|error| translate("switch tables", error))?;
            self.in_memory.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Database for FjallDatabase {
    fn commit(&self, changes: Vec<StoreChange>, durable: bool) -> Result<(), Error> {
        self.wait_for_room()?;
        let mode = if durable { PersistMode::SyncData } else { PersistMode::Buffer };
        if changes.is_empty() {
            return self.database.persist(mode).map_err(|error| translate("sync the journal", error));
        }
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), changes.len())
            .durability(Some(mode));
        let bytes = changes.iter().map(|change| change.bytes() + KEY_OVERHEAD_BYTES).sum::<usize>();
        for change in changes {
            match change {
                StoreChange::Put(key, value) => batch.insert(&self.entries, key, value),
                StoreChange::Delete(key) => batch.remove(&self.entries, key),
            }
        }
        batch.commit().map_err(|error| translate("commit to the journal", error))?;
        self.in_memory.fetch_add(bytes as u64, Ordering::Relaxed);
        // The commit succeeded; if this fails, the next one fails too.
        if let Err(error) = self.switch_tables() {
            tracing::debug!(error = %base::retry::ErrorChain(&error), "the store could not switch tables");
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
        // The latest removals must be in a table for the merge to see them; the background thread writes it.
        let failed = |error| translate("compact the database", error);
        self.entries.rotate_memtable().map_err(failed)?;
        let end = Instant::now() + STALL_LIMIT;
        while self.entries.sealed_memtable_count() > 0 && Instant::now() < end {
            self.database.persist(PersistMode::Buffer).map_err(failed)?;
            thread::sleep(STALL_POLL_INTERVAL);
        }
        self.entries.major_compact().map_err(failed)?;
        // An empty table is not switched.
        self.commit(vec![StoreChange::Delete(UNUSED_KEY.to_vec())], false)?;
        self.entries.rotate_memtable().map_err(failed).map(drop)
    }
}

/// Bytes of all journals, without unreadable ones.
fn journal_bytes(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let journals =
        files.filter(|file| file.path().extension().is_some_and(|extension| extension == JOURNAL_EXTENSION));
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

/// The message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;

    use super::*;

    /// Enough that neither their filter nor their index fits into a shard of the cache.
    const KEYS: u32 = 500_000;
    const LOOKED_UP: u32 = 500;

    fn key(number: u32) -> Vec<u8> {
        // Scattered, so that no two consecutive keys are neighbors.
        format!("{:08x}", number.wrapping_mul(0x9e37_79b1)).into_bytes()
    }

    /// A cache with all keys, each with a value of this many bytes.
    fn filled(directory: &Path, bytes: usize) -> Result<FjallDatabase, Error> {
        let open = open(Fjall::cache(), directory)?;
        for first in (0..KEYS).step_by(10_000) {
            let changes = (first..first + 10_000).map(|number| StoreChange::Put(key(number), vec![7; bytes]));
            open.commit(changes.collect(), false)?;
        }
        Ok(open)
    }

    /// Bytes that this thread has read from files, if the kernel counts them.
    fn bytes_read() -> Option<u64> {
        let told = fs::read_to_string("/proc/thread-self/io").ok()?;
        told.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
    }

    #[test]
    fn cache_writes_its_table_at_a_fourth_of_the_bytes() {
        let (home, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bytes = usize::try_from(CACHE_TABLE_BYTES).unwrap();
        let held = |open: FjallDatabase| {
            open.commit(vec![StoreChange::Put(b"a".to_vec(), vec![7; bytes])], false).unwrap();
            open.commit(vec![StoreChange::Put(b"b".to_vec(), vec![7])], false).unwrap();
            open.in_memory.load(Ordering::Relaxed)
        };

        assert!(held(open(Fjall::default(), home.path()).unwrap()) > CACHE_TABLE_BYTES);
        assert!(held(open(Fjall::cache(), cache.path()).unwrap()) < CACHE_TABLE_BYTES);
    }

    #[test]
    fn tables_are_merged_into_small_ones() {
        let home = tempfile::tempdir().unwrap();
        let open = filled(home.path(), 100).unwrap();
        // Switched tables stay in the first level until there are four, which are then merged into the next. A merge that is asked
        // for while another runs is left to the next switch.
        let (end, mut switch_at) = (Instant::now() + 3 * STALL_LIMIT, Instant::now() + STALL_LIMIT / 20);
        while open.entries.sealed_memtable_count() > 0 || open.entries.l0_table_count() >= 4 {
            assert!(Instant::now() < end, "{} tables are not merged", open.entries.l0_table_count());
            if Instant::now() > switch_at {
                switch_at = Instant::now() + STALL_LIMIT / 20;
                open.commit(vec![StoreChange::Put(key(0), vec![7; 100])], false).unwrap();
                open.entries.rotate_memtable().unwrap();
            }
            thread::sleep(STALL_POLL_INTERVAL);
        }

        let keyspaces = fs::read_dir(home.path().join("keyspaces")).unwrap().flatten();
        let tables = keyspaces.filter_map(|keyspace| fs::read_dir(keyspace.path().join("tables")).ok());
        let files = tables.flatten().flatten().filter_map(|file| file.metadata().ok());
        let sizes: Vec<u64> = files.map(|metadata| metadata.len()).collect();
        assert!(sizes.iter().sum::<u64>() > 3 * MERGED_TABLE_BYTES, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size < MERGED_TABLE_BYTES * 5 / 4), "{sizes:?}");
    }

    #[test]
    fn lookup_reads_few_blocks_however_many_keys_there_are() {
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
