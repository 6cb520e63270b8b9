//! Opening what there is: every database that opens is used, the others are set aside or left for later.

use std::{path::PathBuf, sync::Arc};

use super::{Error, Options, directory::Directory, generation::Generation, storage};
use crate::retry::Chain;

/// What the directory holds.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) directory: Directory,
    /// Oldest first.
    pub(super) generations: Vec<Arc<Generation>>,
    pub(super) moved_aside: Vec<PathBuf>,
    pub(super) unopened: Vec<PathBuf>,
}

/// Locks the directory and opens its databases.
pub(super) fn open(options: &Options) -> Result<Found, Error> {
    let directory = Directory::open(&options.directory)?;
    let numbers = directory.numbers()?;
    let mut found =
        Found { directory, generations: Vec::new(), moved_aside: Vec::new(), unopened: Vec::new() };
    for number in numbers {
        let path = found.directory.data(number);
        match options.storage.open(&path) {
            Ok(database) => {
                let takes = found.directory.disk_bytes_of(number).unwrap_or_default();
                found.generations.push(Arc::new(Generation::new(number, database, takes)));
            }
            // We have the directory: only a database of ours that is still closing can be in the way.
            Err(storage::Error::Locked) => return Err(Error::InUse { directory: options.directory.clone() }),
            Err(error @ (storage::Error::NoSpace(_) | storage::Error::Refused { .. })) => {
                tracing::error!(
                    database = %path.display(),
                    error = %Chain(&error),
                    "spool database cannot be opened now; it stays where it is and the next start tries again"
                );
                found.unopened.push(path);
            }
            Err(error) => {
                let aside = found.directory.move_aside(number)?;
                tracing::error!(
                    database = %path.display(),
                    moved_to = %aside.display(),
                    error = %Chain(&error),
                    "spool database cannot be opened and was moved aside; entries in it may be missing"
                );
                found.generations.extend(salvage(options, &found.directory, &aside)?.map(Arc::new));
                found.moved_aside.push(aside);
            }
        }
    }
    found.generations.sort_by_key(|generation| generation.number);
    Ok(found)
}

/// What can be had of a database that was set aside, in a fresh one.
fn salvage(
    options: &Options,
    directory: &Directory,
    aside: &std::path::Path,
) -> Result<Option<Generation>, Error> {
    let failed = |error| storage::Error::io("salvage the database", error);
    let number = directory.next_number()?;
    let salvaged = directory.create(number).map_err(failed).and_then(|data| {
        let database = options.storage.salvage(&aside.join(Directory::DATA), &data)?;
        let takes = directory.disk_bytes_of(number).map_err(failed)?;
        let generation = Generation::new(number, database, takes);
        directory.ready(number).map_err(failed)?;
        Ok(generation)
    });
    match salvaged {
        Ok(generation) => {
            let entries = generation.ledger().entries();
            tracing::warn!(
                database = number,
                entries,
                "spool salvaged entries of a database that was moved aside"
            );
            Ok(Some(generation))
        }
        Err(error) => {
            tracing::error!(error = %Chain(&error), "spool could salvage nothing of the database that was moved aside");
            // Without a ready mark the next start would remove it, too.
            drop(directory.remove(number));
            Ok(None)
        }
    }
}
