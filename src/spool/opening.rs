//! Opening what there is: every database that opens is used, a broken one is replaced by what can be had of it, and the others
//! are left for the next start.
//!
//! On failure: whatever fails for one database, it counts as unopened and the rest is used. A crash at any point is as if the
//! start had not been, until the broken one has its new name; after it, the copy is used and the broken one told of.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use base::{durable, retry::ErrorChain};

use super::{
    Error, Missing, Options,
    directory::{self, Directory, Survey},
    generation::Generation,
};
use crate::store::{self, Database};

/// How long a database of ours may take to be closed by whoever had the directory before us.
const CLOSING: Duration = Duration::from_secs(2);
const CLOSING_STEP: Duration = Duration::from_millis(20);

/// What the directory holds.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) directory: Directory,
    /// Oldest first.
    pub(super) generations: Vec<Arc<Generation>>,
    pub(super) moved_aside: Vec<Missing>,
    pub(super) unopened: Vec<Missing>,
}

/// Locks the directory and opens its databases.
pub(super) fn open(options: &Options) -> Result<Found, Error> {
    let directory = Directory::open(&options.directory)?;
    let Survey { databases, doubtful, untold } = directory.survey()?;
    let mut found = Found { directory, generations: Vec::new(), moved_aside: untold, unopened: Vec::new() };
    found.leave(doubtful);
    for number in databases {
        match open_one(options, &found.directory, number) {
            Ok(database) => found.take_up(number, database),
            Err(error) if is_passing(&error) => found.cannot_now(number, &error),
            Err(error) => found.replace(options, number, &error),
        }
    }
    found.generations.sort_by_key(|generation| generation.number);
    Ok(found)
}

impl Found {
    fn take_up(&mut self, number: u64, database: Box<dyn Database>) {
        let takes = self.directory.disk_bytes_of(number).unwrap_or_default();
        let since = directory::since(&self.directory.folder(number));
        self.generations.push(Arc::new(Generation::new(number, database, takes, since)));
    }

    fn leave(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let folders = numbers.into_iter().map(|number| self.directory.folder(number));
        self.unopened.extend(folders.map(Missing::in_folder));
    }

    fn cannot_now(&mut self, number: u64, error: &store::Error) {
        tracing::error!(
            database = %self.directory.folder(number).display(),
            error = %ErrorChain(error),
            "spool database cannot be opened now; it stays where it is and the next start tries again"
        );
        self.leave([number]);
    }

    /// Copies what can be had of the database, and sets it aside then.
    fn replace(&mut self, options: &Options, number: u64, error: &store::Error) {
        let database = self.directory.folder(number).display().to_string();
        let error = ErrorChain(error).to_string();
        tracing::error!(database, error, "spool database cannot be opened; what can be had of it is copied");
        let missing = Missing::in_folder(self.directory.folder(number));
        let copy = match salvage(options, &self.directory, number) {
            Ok(copy) => Some(copy),
            Err(error) if is_passing(&error) => return self.cannot_now(number, &error),
            Err(error) => {
                tracing::error!(database, error = %ErrorChain(&error), "spool can salvage nothing of the database");
                None
            }
        };
        let folder = match self.directory.move_aside(number) {
            Ok(folder) => folder,
            // The copy counts only once its original has another name: the next start looks which of them does.
            Err(error) => {
                return self.cannot_now(number, &store::Error::io("set the database aside", error));
            }
        };
        let moved_to = folder.display().to_string();
        self.moved_aside.push(Missing { folder, ..missing });
        let entries = copy.as_ref().map_or(0, |copy| copy.ledger().entries());
        tracing::error!(
            database,
            moved_to,
            entries,
            "spool moved the database aside and goes on with the entries that were copied; others may be missing"
        );
        let Some(copy) = copy else { return };
        match self.directory.stands_alone(copy.number) {
            Ok(()) => self.generations.push(Arc::new(copy)),
            Err(error) => {
                self.cannot_now(copy.number, &store::Error::io("take up the copied database", error));
            }
        }
    }
}

fn open_one(
    options: &Options,
    directory: &Directory,
    number: u64,
) -> Result<Box<dyn Database>, store::Error> {
    let path = directory.data(number);
    // Whatever fails here says nothing about the database.
    durable::private_tree(&directory.folder(number)).map_err(|error| store::Error::Refused {
        action: "keep other users out of the database",
        source: error.into(),
    })?;
    let end = Instant::now() + CLOSING;
    loop {
        match options.storage.open(&path) {
            // We have the directory: only a database of ours that is still closing can be in the way.
            Err(store::Error::Locked) if Instant::now() < end => thread::sleep(CLOSING_STEP),
            opened => return opened,
        }
    }
}

/// What can be had of a database that does not open, in a fresh one; of no account while the other has its name.
fn salvage(options: &Options, directory: &Directory, of: u64) -> Result<Generation, store::Error> {
    let failed = |error| store::Error::io("salvage the database", error);
    let number = directory.next_number().map_err(|error| failed(std::io::Error::other(error)))?;
    let salvaged = directory.create(number).map_err(failed).and_then(|data| {
        let database = options.storage.salvage(&directory.data(of), &data)?;
        directory.ready_as_copy(number, of).map_err(failed)?;
        let takes = directory.disk_bytes_of(number).map_err(failed)?;
        Ok(Generation::new(number, database, takes, directory::since(&directory.folder(number))))
    });
    // The next start would remove it, too.
    salvaged.inspect_err(|_| drop(directory.remove(number)))
}

/// Whether the reason says nothing about the database.
fn is_passing(error: &store::Error) -> bool {
    matches!(error, store::Error::NoSpace(_) | store::Error::Refused { .. } | store::Error::Locked)
}
