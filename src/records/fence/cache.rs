//! The database behind the shard fences: opened when it is first needed, and given up when it fails.

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
use crate::store::{self, Change, Database, Storage};

/// How long a database of ours may take to be closed by whoever had the directory before us.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_POLL: Duration = Duration::from_millis(20);
const FREE_SPACE: &str = "free some of the disk; the directory may be deleted while no worker uses it";
const GRANT_ACCESS: &str =
    "let the worker write there and open files, or delete the directory while no worker uses it";
const SEPARATE_DIRECTORIES: &str = "another process has them open: give each worker a state.dir of its own";
const DELETE: &str = "delete the directory while no worker uses it: all that is in it is in Kafka as well";

/// One database for all shards of a worker.
#[derive(Debug)]
pub(super) struct FenceCache {
    directory: PathBuf,
    storage: Arc<dyn Storage>,
    open: Mutex<Option<Arc<OpenDatabase>>>,
}

/// A database, until it fails.
pub(super) struct OpenDatabase {
    directory: PathBuf,
    /// `None` once it is closed, for whoever has not noticed yet that it failed.
    database: RwLock<Option<Box<dyn Database>>>,
    /// Held by whoever commits: the store keeps out of its own endless waits only if one does at a time.
    committing: Mutex<()>,
    failed: AtomicBool,
    /// What is in it cannot be trusted.
    broken: AtomicBool,
}

impl FenceCache {
    pub(super) fn new(directory: PathBuf, storage: Arc<dyn Storage>) -> Self {
        Self { directory, storage, open: Mutex::default() }
    }

    /// The database; another one if it has failed. Blocks.
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
        tracing::warn!(%directory, error = %ErrorChain(&error), "fences cannot be opened: removed, to be read from Kafka again");
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
    /// Uses the database; an error of it is its last.
    pub(super) fn with<T>(
        &self,
        using: impl FnOnce(&dyn Database) -> Result<T, store::Error>,
    ) -> Result<T, Error> {
        let failed = || Error::Store { directory: self.directory.clone(), source: None };
        // Asked first: whoever closes it waits for those who use it, and nobody shall wait for that.
        if self.failed.load(Ordering::Acquire) {
            return Err(failed());
        }
        let database = self.database.read();
        let database = database.as_deref().ok_or_else(failed)?;
        using(database).map_err(|source| self.fail(source))
    }

    /// All changes or none. Not synced: what a crash of the machine takes is read from Kafka again.
    pub(super) fn commit(&self, changes: Vec<Change>) -> Result<(), Error> {
        self.with(|database| {
            let _one = self.committing.lock();
            database.commit(changes, false)
        })
    }

    /// Gives the database up.
    pub(super) fn fail(&self, source: store::Error) -> Error {
        if matches!(source, store::Error::Broken { .. }) {
            self.broken.store(true, Ordering::Release);
        }
        if !self.failed.swap(true, Ordering::AcqRel) {
            let directory = self.directory.display();
            tracing::warn!(%directory, error = %ErrorChain(&source), "fences failed: shards have to be taken anew");
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
