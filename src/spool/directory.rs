//! The spool's place on disk: which databases there are, and how they come and go so that a crash leaves no doubt.
//!
//! ```text
//! lock                          held while the spool is open
//! 7/data/…  7/ready             a database, and the file that says it may hold something
//! 7.unreadable-1794739200/…     one that could not be opened: for people; `told` in it says that its gap is kept
//! 7.drained/…                   one whose entries are all gone: removed now or at the next start
//! ```
//!
//! `ready` is synced before the first entry is acknowledged: a database without it never held one and goes. A drained one
//! is renamed before it is removed, so that half of it is never taken for a broken one.
//!
//! A broken database keeps its name until there is a copy of what can be had of it:
//!
//! ```text
//! 7 ─ 8/data ─ 8/ready "copy of 7" ─ 7 becomes 7.unreadable-… ─ 8/ready without it ─ 8 is used ─ 7.unreadable-…/told
//!   └──────── a crash: 8 goes ───┘ └────────────────── a crash: 8 stays, and 7 is told of ──────┘
//! ```
//!
//! On failure: what cannot be looked into or cannot be removed stays where it is and keeps nobody from using the rest.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use base::durable;

use super::{Error, Missing};

const LOCK: &str = "lock";
const READY: &str = "ready";
const DRAINED: &str = "drained";
const UNREADABLE: &str = "unreadable";
const TOLD: &str = "told";
/// What `ready` may say: whose copy the database is, and since when it or its original took entries, in milliseconds.
const COPY_OF: &str = "copy of ";
const SINCE: &str = "since ";
const LARGEST_READY: u64 = 1_024;

/// The directory, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Unlocked when it is closed.
    _lock: File,
}

/// What the directory holds.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Numbers of the databases that may hold something, oldest first.
    pub(super) databases: Vec<u64>,
    /// Numbers of those of which that cannot be told now.
    pub(super) doubtful: Vec<u64>,
    /// Those that were set aside and are not told of yet.
    pub(super) untold: Vec<Missing>,
}

/// What the mark of a database says.
#[derive(Debug, Default)]
struct Ready {
    copy_of: Option<u64>,
    since: Option<SystemTime>,
}

impl Directory {
    /// Folder of the store's own files within a database's.
    pub(super) const DATA: &str = "data";

    /// Creates the directory where needed and locks it.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        // What is in here is our users' data.
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
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { directory: path.to_owned() }),
            Err(TryLockError::Error(source)) => {
                return Err(Error::Directory { action: "lock", path: lock, source: Arc::new(source) });
            }
        }
        Ok(Self { path: path.to_owned(), _lock: file })
    }

    /// Removes what a crash left half made or half removed, and says what there is.
    ///
    /// # Errors
    /// The directory itself cannot be listed.
    pub(super) fn survey(&self) -> Result<Survey, Error> {
        let names = self.names()?;
        let mut survey = Survey::default();
        for name in &names {
            let folder = self.path.join(name);
            if name.ends_with(&format!(".{DRAINED}")) {
                self.discard(&folder);
            } else if is_aside(name) {
                // In doubt it is told again.
                if !folder.join(TOLD).try_exists().unwrap_or(false) {
                    survey.untold.push(Missing::in_folder(folder));
                }
            } else if let Ok(number) = name.parse() {
                match self.look_at(number, &names) {
                    Ok(true) => survey.databases.push(number),
                    Ok(false) => self.discard(&folder),
                    Err(error) => {
                        let database = folder.display();
                        tracing::error!(%database, %error, "spool database cannot be looked into; it stays where it is");
                        survey.doubtful.push(number);
                    }
                }
            }
        }
        survey.databases.sort_unstable();
        survey.untold.sort_by(|one, other| one.folder.cmp(&other.folder));
        Ok(survey)
    }

    /// The directory itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the database with this number.
    pub(super) fn folder(&self, number: u64) -> PathBuf {
        self.path.join(number.to_string())
    }

    /// Where the store keeps the database with this number.
    pub(super) fn data(&self, number: u64) -> PathBuf {
        self.folder(number).join(Self::DATA)
    }

    /// The number for a new database: above every one that is here in any form.
    pub(super) fn next_number(&self) -> Result<u64, Error> {
        let number = |name: &String| name.split('.').next().and_then(|number| number.parse::<u64>().ok());
        Ok(self.names()?.iter().filter_map(number).max().map_or(1, |highest| highest.saturating_add(1)))
    }

    /// Makes the folder of a new database; it counts once it is [ready](Self::ready).
    pub(super) fn create(&self, number: u64) -> io::Result<PathBuf> {
        fs::DirBuilder::new().mode(0o700).create(self.folder(number))?;
        Ok(self.data(number))
    }

    /// From now on, also after a crash, the database may hold something.
    pub(super) fn ready(&self, number: u64) -> io::Result<()> {
        self.mark(number, &Ready::default())
    }

    /// From now on, also after a crash, the database stands for the other one, unless that is still there under its name.
    pub(super) fn ready_as_copy(&self, number: u64, of: u64) -> io::Result<()> {
        self.mark(number, &Ready { copy_of: Some(of), since: Some(since(&self.folder(of))) })
    }

    /// The original has another name for good: from now on the copy is a database as any other. To be called before it is used,
    /// so that it stays also if somebody gives the original its name back.
    pub(super) fn stands_alone(&self, number: u64) -> io::Result<()> {
        self.mark(number, &Ready { copy_of: None, ..Ready::of(&self.folder(number))?.unwrap_or_default() })
    }

    /// Sets aside a database that does not open. Where that fails it has its name still, or is aside and nobody can be sure of
    /// it: the next start decides.
    pub(super) fn move_aside(&self, number: u64) -> io::Result<PathBuf> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let from = self.folder(number);
        let to = self.path.join(format!("{number}.{UNREADABLE}-{now}"));
        fs::rename(&from, &to)?;
        // A name that a power cut may take back is none.
        sync(&self.path).inspect_err(|_| drop(fs::rename(&to, &from)))?;
        Ok(to)
    }

    /// The databases that lie aside.
    pub(super) fn aside(&self) -> Result<Vec<PathBuf>, Error> {
        let mut names: Vec<_> = self.names()?.into_iter().filter(|name| is_aside(name)).collect();
        names.sort_unstable();
        Ok(names.into_iter().map(|name| self.path.join(name)).collect())
    }

    /// Removes a database that holds nothing any more and is not open.
    pub(super) fn remove(&self, number: u64) -> io::Result<()> {
        let to = self.path.join(format!("{number}.{DRAINED}"));
        fs::rename(self.folder(number), &to)?;
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
        disk_bytes(&self.folder(number))
    }

    /// Whether the database may hold something.
    fn look_at(&self, number: u64, names: &[String]) -> io::Result<bool> {
        let Some(ready) = Ready::of(&self.folder(number))? else { return Ok(false) };
        let Some(original) = ready.copy_of else { return Ok(true) };
        if names.contains(&original.to_string()) {
            return Ok(false);
        }
        sync(&self.path)?;
        self.stands_alone(number)?;
        Ok(true)
    }

    fn mark(&self, number: u64, ready: &Ready) -> io::Result<()> {
        let folder = self.folder(number);
        durable::replace(&folder.join(READY), ready.text().as_bytes())?;
        if let Some(since) = ready.since {
            // All that can be seen of a folder that may not be looked into.
            File::open(&folder)?.set_modified(since)?;
        }
        sync(&self.path)
    }

    /// Removes what holds nothing that counts; what cannot be removed is not used either.
    fn discard(&self, folder: &Path) {
        // Renamed first, or half of it could be taken for something else after a crash.
        let drained = folder.with_extension(DRAINED);
        let renamed = fs::rename(folder, &drained).and_then(|()| sync(&self.path));
        if let Err(error) = renamed.and_then(|()| fs::remove_dir_all(&drained)) {
            tracing::warn!(folder = %folder.display(), %error, "spool cannot remove what it does not use any more");
        }
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let failed = |source| Error::directory("list the spool directory", &self.path)(source);
        let mut names = Vec::new();
        for folder in fs::read_dir(&self.path).map_err(failed)? {
            let folder = folder.map_err(failed)?;
            // What it is shows when it is opened.
            if folder.file_type().is_ok_and(|kind| !kind.is_dir()) {
                continue;
            }
            names.extend(folder.file_name().into_string());
        }
        Ok(names)
    }
}

impl Ready {
    /// What the mark in this folder says; `None` without one.
    fn of(folder: &Path) -> io::Result<Option<Self>> {
        let content = durable::read(&folder.join(READY), LARGEST_READY)?;
        Ok(content.map(|content| Self::parse(&String::from_utf8_lossy(&content))))
    }

    fn parse(text: &str) -> Self {
        let number = |name| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let since = |since| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since));
        Self { copy_of: number(COPY_OF), since: number(SINCE).and_then(since) }
    }

    fn text(&self) -> String {
        let copy_of = self.copy_of.map(|original| format!("{COPY_OF}{original}\n"));
        let since = self.since.map(|since| {
            let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            format!("{SINCE}{}\n", since.as_millis())
        });
        [copy_of, since].into_iter().flatten().collect()
    }
}

/// When the database in this folder began to take entries: no later, and 1970 where nothing tells.
pub(super) fn since(folder: &Path) -> SystemTime {
    let written = Ready::of(folder).ok().flatten().and_then(|ready| ready.since);
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    written
        .or_else(|| modified(&folder.join(READY)))
        .or_else(|| modified(folder))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The gap of the database that lies aside in this folder is kept: it is not told of again.
pub(super) fn mark_told(folder: &Path) -> io::Result<()> {
    let told = File::options().create(true).truncate(true).write(true).mode(0o600).open(folder.join(TOLD))?;
    told.sync_all()?;
    sync(folder)
}

fn is_aside(name: &str) -> bool {
    name.split_once('.').is_some_and(|(number, rest)| {
        number.parse::<u64>().is_ok() && rest.starts_with(&format!("{UNREADABLE}-"))
    })
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

        let survey = directory.survey().unwrap();

        assert_eq!(survey.databases, [2]);
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
        assert_eq!(directory.survey().unwrap().databases, [0; 0]);
        assert_eq!(directory.next_number().unwrap(), 5);
    }

    #[test]
    fn the_half_removed_rest_of_a_drained_database_is_removed_and_what_was_set_aside_stays_and_is_told_once()
    {
        let home = tempfile::tempdir().unwrap();
        for name in ["3.drained", "2.unreadable-1", "2.unreadable-x.old", "notes.unreadable-1"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        let aside = home.path().join("2.unreadable-1");
        let directory = Directory::open(home.path()).unwrap();

        let untold = directory.survey().unwrap().untold;
        mark_told(&aside).unwrap();
        let then = directory.survey().unwrap().untold;

        assert!(!home.path().join("3.drained").exists());
        let named = |missing: &[Missing]| missing.iter().map(|one| one.folder.clone()).collect::<Vec<_>>();
        let old = home.path().join("2.unreadable-x.old");
        assert_eq!(named(&untold), [aside, old.clone()]);
        assert_eq!(named(&then), [old], "whatever people call it");
        assert_eq!(directory.next_number().unwrap(), 3);
    }

    #[test]
    fn a_copy_counts_only_once_its_original_has_another_name_and_then_for_good() {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::open(home.path()).unwrap();
        let survey = || directory.survey().unwrap().databases;
        directory.create(7).unwrap();
        directory.ready(7).unwrap();
        let copy = |number| {
            directory.create(number).unwrap();
            directory.ready_as_copy(number, 7).unwrap();
        };

        copy(8);
        let with_original = survey();
        copy(9);
        let aside = directory.move_aside(7).unwrap();
        let without = survey();
        fs::rename(aside, directory.folder(7)).unwrap();

        assert_eq!(with_original, [7]);
        assert!(!directory.folder(8).exists());
        assert_eq!(without, [9]);
        assert_eq!(survey(), [7, 9], "somebody gave the original its name back");
    }

    #[test]
    fn a_copy_holds_what_its_original_took_even_where_only_its_folder_can_be_seen() {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::open(home.path()).unwrap();
        directory.create(1).unwrap();
        directory.ready(1).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567_890_123);
        let mark = File::options().write(true).open(directory.folder(1).join(READY)).unwrap();
        mark.set_modified(long_ago).unwrap();
        directory.create(2).unwrap();

        directory.ready_as_copy(2, 1).unwrap();
        directory.stands_alone(2).unwrap();

        assert_eq!([1, 2].map(|number| since(&directory.folder(number))), [long_ago; 2]);
        let folder = fs::metadata(directory.folder(2)).unwrap().modified().unwrap();
        assert_eq!(folder, long_ago);
        assert_eq!(since(&home.path().join("nowhere")), SystemTime::UNIX_EPOCH);
    }

    #[test]
    fn a_folder_that_cannot_be_looked_into_is_in_doubt_and_the_others_are_found() {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::open(home.path()).unwrap();
        for number in [1, 2] {
            directory.create(number).unwrap();
        }
        std::os::unix::fs::symlink(READY, directory.folder(1).join(READY)).unwrap();
        directory.ready(2).unwrap();

        let survey = directory.survey().unwrap();

        assert_eq!((survey.databases, survey.doubtful), (vec![2], vec![1]));
        assert!(directory.folder(1).exists());
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
