//! The spool's place on disk: which databases there are, and how they come and go so that a crash leaves no doubt.
//!
//! ```text
//! lock                          held while the spool is open
//! 7/data/…  7/ready             a database, and the file that says it may hold something
//! 7.unreadable-1794739200/…     one that could not be opened: for people, never touched again
//! 7.drained/…                   one whose entries are all gone: removed now or at the next start
//! ```
//!
//! `ready` is synced before the first entry is acknowledged: a database without it never held one and goes. A drained one
//! is renamed before it is removed, so that half of it is never taken for a broken one.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use super::Error;

const LOCK: &str = "lock";
const READY: &str = "ready";
const DRAINED: &str = "drained";
const UNREADABLE: &str = "unreadable";

/// The directory, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Unlocked when it is closed.
    _lock: File,
}

impl Directory {
    /// Folder of the store's own files within a database's.
    pub(super) const DATA: &str = "data";

    /// Creates the directory where needed, locks it, and removes what a crash left half made or half removed.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        // What is in here is our users' data.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(Error::directory("create the spool directory", path))?;
        let lock = path.join(LOCK);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock)
            .map_err(Error::directory("open the lock file", &lock))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { directory: path.to_owned() }),
            Err(TryLockError::Error(source)) => {
                return Err(Error::Directory { action: "lock", path: lock, source: Arc::new(source) });
            }
        }
        let directory = Self { path: path.to_owned(), _lock: file };
        directory.clean()?;
        Ok(directory)
    }

    /// The directory itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the store keeps the database with this number.
    pub(super) fn data(&self, number: u64) -> PathBuf {
        self.path.join(number.to_string()).join(Self::DATA)
    }

    /// Numbers of the databases that may hold something, oldest first.
    pub(super) fn numbers(&self) -> Result<Vec<u64>, Error> {
        let mut numbers: Vec<u64> = self.names()?.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The number for a new database: above every one that is here in any form.
    pub(super) fn next_number(&self) -> Result<u64, Error> {
        let number = |name: &String| name.split('.').next().and_then(|number| number.parse::<u64>().ok());
        Ok(self.names()?.iter().filter_map(number).max().map_or(1, |highest| highest.saturating_add(1)))
    }

    /// Makes the folder of a new database; it counts once it is [ready](Self::ready).
    pub(super) fn create(&self, number: u64) -> io::Result<PathBuf> {
        fs::create_dir(self.path.join(number.to_string()))?;
        Ok(self.data(number))
    }

    /// From now on, also after a crash, the database may hold something.
    pub(super) fn ready(&self, number: u64) -> io::Result<()> {
        let folder = self.path.join(number.to_string());
        File::create(folder.join(READY))?.sync_all()?;
        sync(&folder)?;
        sync(&self.path)
    }

    /// Sets aside a database that does not open, under a name nobody reads again.
    pub(super) fn move_aside(&self, number: u64) -> Result<PathBuf, Error> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let from = self.path.join(number.to_string());
        let to = self.path.join(format!("{number}.{UNREADABLE}-{since}"));
        fs::rename(&from, &to)
            .and_then(|()| sync(&self.path))
            .map_err(Error::directory("move aside the unreadable database", from))?;
        Ok(to)
    }

    /// Removes a database that holds nothing any more and is not open.
    pub(super) fn remove(&self, number: u64) -> io::Result<()> {
        let to = self.path.join(format!("{number}.{DRAINED}"));
        fs::rename(self.path.join(number.to_string()), &to)?;
        sync(&self.path)?;
        fs::remove_dir_all(to)
    }

    /// Bytes that the databases take on disk; what is set aside does not count.
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for folder in fs::read_dir(&self.path)? {
            let folder = folder?;
            if folder.file_name().to_str().is_some_and(|name| name.parse::<u64>().is_ok()) {
                bytes += disk_bytes(&folder.path())?;
            }
        }
        Ok(bytes)
    }

    /// Bytes that one database takes on disk.
    pub(super) fn disk_bytes_of(&self, number: u64) -> io::Result<u64> {
        disk_bytes(&self.path.join(number.to_string()))
    }

    fn clean(&self) -> Result<(), Error> {
        for name in self.names()? {
            let folder = self.path.join(&name);
            let is_drained = name.ends_with(&format!(".{DRAINED}"));
            let ready = folder.join(READY);
            let is_unborn = name.parse::<u64>().is_ok()
                && !ready.try_exists().map_err(Error::directory("look for", ready))?;
            if is_drained || is_unborn {
                fs::remove_dir_all(&folder)
                    .map_err(Error::directory("remove the unused database", folder))?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let failed = |source| Error::directory("list the spool directory", &self.path)(source);
        let mut names = Vec::new();
        for folder in fs::read_dir(&self.path).map_err(failed)? {
            let folder = folder.map_err(failed)?;
            if folder.file_type().map_err(failed)?.is_dir() {
                names.extend(folder.file_name().into_string());
            }
        }
        Ok(names)
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// What files really take: the store's journals are longer than that. Files that vanish meanwhile count nothing.
fn disk_bytes(folder: &Path) -> io::Result<u64> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let files = match fs::read_dir(folder) {
        Err(error) if gone(&error) => return Ok(0),
        files => files?,
    };
    let mut bytes = 0;
    for file in files {
        let file = file?;
        bytes += match file.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&file.path())?,
            Ok(metadata) => metadata.blocks() * 512,
            Err(error) if gone(&error) => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_never_got_ready_is_gone_at_the_next_start_and_a_ready_one_is_not() {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::open(home.path()).unwrap();
        for number in [1, 2] {
            fs::create_dir_all(directory.create(number).unwrap()).unwrap();
        }
        directory.ready(2).unwrap();
        drop(directory);

        let directory = Directory::open(home.path()).unwrap();

        assert_eq!(directory.numbers().unwrap(), [2]);
        assert!(!home.path().join("1").exists());
    }

    #[test]
    fn a_number_is_not_given_again_while_anything_of_it_is_left() {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::open(home.path()).unwrap();
        assert_eq!(directory.next_number().unwrap(), 1);
        directory.create(4).unwrap();
        directory.ready(4).unwrap();

        let aside = directory.move_aside(4).unwrap();

        assert!(aside.is_dir());
        assert_eq!(directory.numbers().unwrap(), [0; 0]);
        assert_eq!(directory.next_number().unwrap(), 5);
    }

    #[test]
    fn the_half_removed_rest_of_a_drained_database_is_removed_and_what_was_set_aside_stays() {
        let home = tempfile::tempdir().unwrap();
        for name in ["3.drained", "2.unreadable-1"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }

        let directory = Directory::open(home.path()).unwrap();

        assert!(!home.path().join("3.drained").exists());
        assert!(home.path().join("2.unreadable-1").exists());
        assert_eq!(directory.next_number().unwrap(), 3);
    }

    #[test]
    fn a_directory_that_is_open_is_refused_to_a_second() {
        let home = tempfile::tempdir().unwrap();
        let first = Directory::open(home.path()).unwrap();

        let second = Directory::open(home.path());

        assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
        drop(first);
        assert!(Directory::open(home.path()).is_ok());
    }
}
