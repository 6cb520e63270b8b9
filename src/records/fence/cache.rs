//! The database of the shard fences: opened on first use, and closed after a failure.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

use base::{durable, retry::ErrorChain};

use super::Error;
use crate::store::{self, Database, Storage, StoreChange};

/// How long to wait until the previous user of the directory has closed the database.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to try during [`CLOSE_TIMEOUT`].
const CLOSE_POLL: Duration = Duration::from_millis(20);
const FREE_SPACE: &str = "free disk space; the directory may be deleted while no worker uses it";
const GRANT_ACCESS: &str =
    "let the worker write there and open files, or delete the directory while no worker uses it";
const SEPARATE_DIRECTORIES: &str =
    "another process has the database open; set a separate state.dir for each worker";
const DELETE: &str = "delete the directory while no worker uses it; its contents are restored from Kafka";

/// One database for all shards of a worker.
#[derive(Debug)]
pub(super) struct FenceCache {
    directory: PathBuf,
    storage: Arc<dyn Storage>,
    open: Mutex<Option<Arc<OpenDatabase>>>,
}

/// An open database. After a failure it stays unusable.
pub(super) struct OpenDatabase {
    directory: PathBuf,
    /// `None` after it was closed, while some fences still refer to it.
    database: RwLock<Option<Box<dyn Database>>>,
    /// Serializes commits: concurrent ones may make the store wait for itself forever.
    committing: Mutex<()>,
    failed: AtomicBool,
    /// Its contents cannot be trusted.
    broken: AtomicBool,
}

impl FenceCache {
    pub(super) fn new(directory: PathBuf, storage: Arc<dyn Storage>) -> Self {
        Self { directory, storage, open: Mutex::default() }
    }

    /// Returns the database, and reopens it after a failure. Blocks.
    pub(super) fn opened(&self) -> Result<Arc<OpenDatabase>, Error> {
        let mut open = self.open.lock();
        if let Some(opened) = &*open {
            if !opened.failed.load(Ordering::Acquire) {
                return Ok(Arc::clone(opened));
            }
            opened.close();
            if opened.broken.load(Ordering::Acquire) {
                self.remove().map_err(|source| self.cannot_open(source))?;
            }
        }
        *open = None;
        let database = self.open_or_recreate().map_err(|source| self.cannot_open(source))?;
        Ok(Arc::clone(open.insert(Arc::new(OpenDatabase {
            directory: self.directory.clone(),
            database: RwLock::new(Some(database)),
            committing: Mutex::default(),
            failed: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }))))
    }

    fn open_or_recreate(&self) -> Result<Box<dyn Database>, store::Error> {
        let error = match self.open_now() {
            Err(error @ store::Error::Broken { .. }) if self.directory.is_dir() => error,
            opened => return opened,
        };
        let directory = self.directory.display();
        tracing::warn!(%directory, error = %ErrorChain(&error), "cannot open the fence database; deleting it, to restore fences from Kafka");
        self.remove()?;
        self.open_now()
    }

    fn open_now(&self) -> Result<Box<dyn Database>, store::Error> {
        durable::private_tree(&self.directory)
            .map_err(|error| store::Error::io("keep other users out of the directory", error))?;
        let end = Instant::now() + CLOSE_TIMEOUT;
        loop {
            match self.storage.open(&self.directory) {
                Err(store::Error::Locked) if Instant::now() < end => thread::sleep(CLOSE_POLL),
                opened => return opened,
            }
        }
    }

    fn remove(&self) -> Result<(), store::Error> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(store::Error::io("remove the database", error))
            }
            _ => Ok(()),
        }
    }

    fn cannot_open(&self, source: store::Error) -> Error {
        let remedy = match &source {
            store::Error::NoSpace(_) => FREE_SPACE,
            store::Error::Locked => SEPARATE_DIRECTORIES,
            store::Error::Refused { .. } => GRANT_ACCESS,
            store::Error::Broken { .. } => DELETE,
        };
        Error::Open { directory: self.directory.clone(), remedy, source: Arc::new(source) }
    }
}

impl OpenDatabase {
    /// Runs `using` on the database. Any error makes the database unusable.
    pub(super) fn with<T>(
        &self,
        using: impl FnOnce(&dyn Database) -> Result<T, store::Error>,
    ) -> Result<T, Error> {
        let failed = || Error::Store { directory: self.directory.clone(), source: None };
        // Checked before the lock: `close` waits for readers and would block new ones.
        if self.failed.load(Ordering::Acquire) {
            return Err(failed());
        }
        let database = self.database.read();
        let database = database.as_deref().ok_or_else(failed)?;
        using(database).map_err(|source| self.fail(source))
    }

    /// Commits atomically. Not synced: entries lost in a machine crash are read from Kafka again.
    pub(super) fn commit(&self, changes: Vec<StoreChange>) -> Result<(), Error> {
        self.with(|database| {
            let _one = self.committing.lock();
            database.commit(changes, false)
        })
    }

    /// Marks the database as failed.
    pub(super) fn fail(&self, source: store::Error) -> Error {
        if matches!(source, store::Error::Broken { .. }) {
            self.broken.store(true, Ordering::Release);
        }
        if !self.failed.swap(true, Ordering::AcqRel) {
            let directory = self.directory.display();
            tracing::warn!(%directory, error = %ErrorChain(&source), "the fence database failed; its shards must be opened again");
        }
        Error::Store { directory: self.directory.clone(), source: Some(Arc::new(source)) }
    }

    fn close(&self) {
        drop(self.database.write().take());
    }
}

impl std::fmt::Debug for OpenDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenDatabase").field("directory", &self.directory).finish_non_exhaustive()
    }
}
