//! The spool's files: which databases there are, how a start opens them, and how they are created, replaced and removed.
//!
//! ```text
//! lock                          held while the spool is open
//! 7/data/…  7/ready             a database, and the mark that it may hold entries
//! 7.unreadable-1794739200/…     an unreadable database, kept for inspection; the file `told` in it means that its gap is recorded
//! 7.drained/…                   a database that is being removed, now or at the next start
//! ```
//!
//! `ready` is synced before the first entry is acknowledged, so a start removes a database without it. A drained database is
//! renamed before it is removed, so that a crash never leaves half of one under its name.
//!
//! A broken database keeps its name until there is a copy of all that is readable in it:
//!
//! ```text
//! 7 ─ 8/data ─ 8/ready "copy of 7" ─ 7 becomes 7.unreadable-… ─ 8/ready without it ─ 8 is used ─ 7.unreadable-…/told
//!   └── a crash: 8 is removed ─────┘ └── a crash: 8 is used, and 7.unreadable-… is reported ────┘
//! ```
//!
//! On failure: a database that cannot be opened for reasons that say nothing about its files (rights, open files, a full disk)
//! stays where it is until the next start. The others are used.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use base::{durable, retry::ErrorChain};

use super::{Error, SpoolOptions, UnusedDatabase, milliseconds, state::Generation, time_of};
use crate::store::{self, Database};

const LOCK: &str = "lock";
const DATA: &str = "data";
const READY: &str = "ready";
/// The name that earlier versions wrote.
const RECORDED: &str = "told";
const DRAINED: &str = "drained";
const UNREADABLE: &str = "unreadable";
/// Lines of `ready`: the number of the original while the database is only a copy of it, and the time from which on it or its
/// original took entries, in milliseconds since 1970.
const COPY_OF: &str = "copy of ";
const SINCE: &str = "since ";
const MAX_READY_BYTES: u64 = 1_024;
/// How long a database of this process may take to close after its spool was closed.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
const CLOSING_POLL: Duration = Duration::from_millis(20);

/// The directory, locked while this exists.
pub(super) struct LockedDirectory {
    path: PathBuf,
    _lock: File,
}

/// An open directory and its databases.
pub(super) struct OpenDirectory {
    pub(super) directory: LockedDirectory,
    /// Oldest first.
    pub(super) generations: Vec<Generation>,
    pub(super) moved_aside: Vec<UnusedDatabase>,
    pub(super) unopened: Vec<UnusedDatabase>,
}

/// Locks the directory, removes drained and unfinished databases that a crash left behind, and opens the others.
pub(super) fn open(options: &SpoolOptions) -> Result<OpenDirectory, Error> {
    let directory = LockedDirectory::lock(&options.directory)?;
    let names = directory.names().map_err(Error::directory("list the spool directory", &directory.path))?;
    let (mut found, mut numbers) = (
        OpenDirectory { directory, generations: Vec::new(), moved_aside: Vec::new(), unopened: Vec::new() },
        Vec::new(),
    );
    for name in &names {
        let folder = found.directory.path.join(name);
        if is_aside(name) {
            // If it cannot be checked, it is reported again.
            if !folder.join(RECORDED).try_exists().unwrap_or(false) {
                found.moved_aside.push(UnusedDatabase::in_folder(folder));
            }
        } else if name.ends_with(&format!(".{DRAINED}")) {
            found.directory.discard(&folder);
        } else if let Ok(number) = name.parse() {
            match found.directory.may_hold_entries(number, &names) {
                Ok(true) => numbers.push(number),
                Ok(false) => found.directory.discard(&folder),
                Err(error) => found.leave(number, &store::Error::io("read the file `ready`", error)),
            }
        }
    }
    found.moved_aside.sort_by(|one, other| one.folder.cmp(&other.folder));
    numbers.sort_unstable();
    for number in numbers {
        match found.directory.open_one(options, number) {
            Ok(generation) => found.generations.push(generation),
            Err(error) if error.is_passing() => found.leave(number, &error),
            Err(error) => found.replace(options, number, &error),
        }
    }
    found.generations.sort_by_key(|generation| generation.number);
    Ok(found)
}

impl OpenDirectory {
    fn leave(&mut self, number: u64, error: &store::Error) {
        let folder = self.directory.folder(number);
        tracing::error!(
            database = %folder.display(),
            error = %ErrorChain(error),
            "spool cannot open the database now; it stays where it is, and the next start tries again"
        );
        self.unopened.push(UnusedDatabase::in_folder(folder));
    }

    /// Copies what is readable in a broken database, moves it aside and uses the copy.
    fn replace(&mut self, options: &SpoolOptions, number: u64, error: &store::Error) {
        let original = self.directory.folder(number);
        let database = original.display();
        tracing::error!(%database, error = %ErrorChain(error), "spool cannot open the database; copying what is readable in it");
        let missing = UnusedDatabase::in_folder(original.clone());
        let salvage = |data: &Path| options.storage.salvage(&original.join(DATA), data);
        let copy = match self.directory.create(Some(number), salvage) {
            Ok(copy) => Some(copy),
            Err(error) if error.is_passing() => return self.leave(number, &error),
            Err(error) => {
                tracing::error!(%database, error = %ErrorChain(&error), "nothing in the database is readable");
                None
            }
        };
        let folder = match self.directory.move_aside(number) {
            Ok(folder) => folder,
            // The next start removes the copy if the original still has its name.
            Err(error) => return self.leave(number, &store::Error::io("move the database aside", error)),
        };
        tracing::error!(
            %database,
            moved_to = %folder.display(),
            entries = copy.as_ref().map_or(0, Generation::entries),
            "spool moved the database aside and uses the entries that were copied; others may be missing"
        );
        self.moved_aside.push(UnusedDatabase { folder, ..missing });
        let Some(copy) = copy else { return };
        // From here on the copy is used even if the original is renamed back.
        match self.directory.mark(copy.number, None, missing.since) {
            Ok(()) => self.generations.push(copy),
            Err(error) => self.leave(copy.number, &store::Error::io("write the file `ready`", error)),
        }
    }
}

impl LockedDirectory {
    /// Creates the directory if it is missing, and locks it.
    fn lock(path: &Path) -> Result<Self, Error> {
        // Entries hold user data.
        durable::private_directory(path).map_err(Error::directory("open the spool directory", path))?;
        let lock = path.join(LOCK);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock)
            .and_then(|file| durable::private_file(&lock, &file).map(|()| file))
            .map_err(Error::directory("open the lock file", &lock))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: file }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse { directory: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(Error::directory("lock", lock)(error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn folder(&self, number: u64) -> PathBuf {
        self.path.join(number.to_string())
    }

    fn open_one(&self, options: &SpoolOptions, number: u64) -> Result<Generation, store::Error> {
        let folder = self.folder(number);
        durable::private_tree(&folder).map_err(|error| store::Error::Refused {
            action: "keep other users out of the database",
            source: error.into(),
        })?;
        let end = Instant::now() + CLOSING_TIMEOUT;
        let database = loop {
            match options.storage.open(&folder.join(DATA)) {
                // The directory is ours, so this process is still closing it.
                Err(store::Error::Locked) if Instant::now() < end => thread::sleep(CLOSING_POLL),
                opened => break opened?,
            }
        };
        Ok(Generation::new(number, database, since(&folder), disk_bytes(&folder)))
    }

    /// Creates a database with the next free number, opened by `open`. A copy is used once its original is renamed.
    pub(super) fn create(
        &self,
        copy_of: Option<u64>,
        open: impl FnOnce(&Path) -> Result<Box<dyn Database>, store::Error>,
    ) -> Result<Generation, store::Error> {
        let failed = |error| store::Error::io("create a database of the spool", error);
        let number = self.next_number().map_err(failed)?;
        let folder = self.folder(number);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
        let created = open(&folder.join(DATA)).and_then(|database| {
            let since = copy_of.map_or_else(SystemTime::now, |original| since(&self.folder(original)));
            self.mark(number, copy_of, since).map_err(failed)?;
            let written = if copy_of.is_some() { disk_bytes(&folder) } else { 0 };
            Ok(Generation::new(number, database, since, written))
        });
        // The next start would remove it too.
        created.inspect_err(|_| drop(self.remove(&folder)))
    }

    /// Above every number in use, also of databases that were drained or moved aside.
    fn next_number(&self) -> io::Result<u64> {
        let number = |name: &String| name.split('.').next()?.parse::<u64>().ok();
        Ok(self.names()?.iter().filter_map(number).max().map_or(1, |highest| highest.saturating_add(1)))
    }

    /// Marks that the database may hold entries, also after a crash; a copy counts only without its original.
    fn mark(&self, number: u64, copy_of: Option<u64>, since: SystemTime) -> io::Result<()> {
        let folder = self.folder(number);
        let copy_of = copy_of.map(|original| format!("{COPY_OF}{original}\n")).unwrap_or_default();
        let text = format!("{copy_of}{SINCE}{}\n", milliseconds(since));
        durable::replace(&folder.join(READY), text.as_bytes())?;
        // A start without rights to read the file still sees the time of the folder.
        File::open(&folder)?.set_modified(since)?;
        sync(&self.path)
    }

    fn may_hold_entries(&self, number: u64, names: &[String]) -> io::Result<bool> {
        let folder = self.folder(number);
        let Some(ready) = durable::read(&folder.join(READY), MAX_READY_BYTES)? else { return Ok(false) };
        let Some(original) = line(&ready, COPY_OF) else { return Ok(true) };
        if names.contains(&original.to_string()) {
            return Ok(false);
        }
        sync(&self.path)?;
        self.mark(number, None, since(&folder))?;
        Ok(true)
    }

    /// Renames an unreadable database. If that fails, the next start decides.
    pub(super) fn move_aside(&self, number: u64) -> io::Result<PathBuf> {
        let from = self.folder(number);
        let to = self.path.join(format!("{number}.{UNREADABLE}-{}", milliseconds(SystemTime::now()) / 1_000));
        fs::rename(&from, &to)?;
        // Without the sync a power cut may undo the rename after the copy is used.
        sync(&self.path).inspect_err(|_| drop(fs::rename(&to, &from)))?;
        Ok(to)
    }

    /// The databases that were moved aside.
    pub(super) fn aside(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = self.names()?;
        names.retain(|name| is_aside(name));
        names.sort_unstable();
        Ok(names.into_iter().map(|name| self.path.join(name)).collect())
    }

    /// Removes a database that holds no entries and is not open.
    pub(super) fn remove(&self, folder: &Path) -> io::Result<()> {
        let drained = folder.with_extension(DRAINED);
        fs::rename(folder, &drained)?;
        sync(&self.path)?;
        fs::remove_dir_all(drained)
    }

    fn discard(&self, folder: &Path) {
        if let Err(error) = self.remove(folder) {
            tracing::warn!(folder = %folder.display(), %error, "spool cannot remove a folder that it no longer uses");
        }
    }

    /// Bytes that the databases take on disk, without those that were moved aside.
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        let numbers = self.names()?.into_iter().filter(|name| name.parse::<u64>().is_ok());
        Ok(numbers.map(|name| disk_bytes(&self.path.join(name))).sum())
    }

    /// Names of everything but files; opening shows whether it is a database.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for folder in fs::read_dir(&self.path)? {
            let folder = folder?;
            if folder.file_type().map_or(true, |kind| kind.is_dir()) {
                names.extend(folder.file_name().into_string());
            }
        }
        Ok(names)
    }
}

/// A time no later than the first entry of the database in this folder; 1970 if unknown.
pub(super) fn since(folder: &Path) -> SystemTime {
    let ready = folder.join(READY);
    let written = durable::read(&ready, MAX_READY_BYTES).ok().flatten();
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    // Earlier versions left the file of a database that is no copy empty.
    written
        .and_then(|written| line(&written, SINCE))
        .map(time_of)
        .or_else(|| modified(&ready))
        .or_else(|| modified(folder))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The number behind this name in `ready`.
fn line(ready: &[u8], name: &str) -> Option<u64> {
    String::from_utf8_lossy(ready).lines().find_map(|line| line.strip_prefix(name)?.parse().ok())
}

/// Marks the gap of the database in this folder as recorded, so that later starts do not report it.
pub(super) fn mark_recorded(folder: &Path) -> io::Result<()> {
    File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(folder.join(RECORDED))?
        .sync_all()?;
    sync(folder)
}

fn is_aside(name: &str) -> bool {
    let prefix = format!("{UNREADABLE}-");
    name.split_once('.')
        .is_some_and(|(number, rest)| number.parse::<u64>().is_ok() && rest.starts_with(&prefix))
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Bytes on disk, which are fewer than the length of the store's preallocated journals. Unreadable files count as 0.
pub(super) fn disk_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = files.map(|file| match file.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&file.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Fjall, Storage as _};

    fn start(home: &Path) -> OpenDirectory {
        open(&SpoolOptions::new(home, 0)).unwrap()
    }

    fn create(directory: &LockedDirectory, copy_of: Option<u64>) -> u64 {
        directory.create(copy_of, |data| Fjall::default().open(data)).unwrap().number
    }

    fn numbers(found: &OpenDirectory) -> Vec<u64> {
        found.generations.iter().map(|generation| generation.number).collect()
    }

    #[test]
    fn a_database_without_its_mark_is_removed_at_the_next_start() {
        let home = tempfile::tempdir().unwrap();
        create(&start(home.path()).directory, None);
        fs::create_dir_all(home.path().join("2/data")).unwrap();

        let found = start(home.path());

        assert_eq!(numbers(&found), [1]);
        assert!(!home.path().join("2").exists());
    }

    #[test]
    fn databases_aside_are_reported_until_recorded() {
        let home = tempfile::tempdir().unwrap();
        for name in ["3.drained", "2.unreadable-1", "2.unreadable-x.old", "notes.unreadable-1"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        let aside = home.path().join("2.unreadable-1");
        let folders = |found: &OpenDirectory| {
            found.moved_aside.iter().map(|missing| missing.folder.clone()).collect::<Vec<_>>()
        };

        let before = folders(&start(home.path()));
        mark_recorded(&aside).unwrap();
        let after = start(home.path());

        assert!(!home.path().join("3.drained").exists());
        let old = home.path().join("2.unreadable-x.old");
        assert_eq!(before, [aside, old.clone()]);
        assert_eq!(folders(&after), [old], "also under another name");
        assert_eq!(create(&after.directory, None), 3, "no number is used twice");
    }

    #[test]
    fn a_copy_counts_once_its_original_is_aside() {
        let home = tempfile::tempdir().unwrap();
        create(&start(home.path()).directory, None);
        create(&start(home.path()).directory, Some(1));

        let found = start(home.path());
        let with_original = numbers(&found);
        create(&found.directory, Some(1));
        let aside = found.directory.move_aside(1).unwrap();
        drop(found);
        let without = numbers(&start(home.path()));
        fs::rename(aside, home.path().join("1")).unwrap();

        assert_eq!(with_original, [1]);
        assert_eq!(without, [2]);
        assert_eq!(numbers(&start(home.path())), [1, 2], "the original was renamed back");
    }

    #[test]
    fn a_copy_and_its_folder_have_the_time_of_the_original() {
        let home = tempfile::tempdir().unwrap();
        let directory = start(home.path()).directory;
        // As an earlier version left it.
        let long_ago = time_of(1_234_567_890_123);
        fs::create_dir(directory.folder(1)).unwrap();
        File::create(directory.folder(1).join(READY)).unwrap().set_modified(long_ago).unwrap();

        create(&directory, Some(1));
        directory.mark(2, None, since(&directory.folder(2))).unwrap();

        assert_eq!([1, 2].map(|number| since(&directory.folder(number))), [long_ago; 2]);
        let folder = fs::metadata(directory.folder(2)).unwrap().modified().unwrap();
        assert_eq!(folder, long_ago);
        assert_eq!(since(&home.path().join("nowhere")), SystemTime::UNIX_EPOCH);
    }
}
