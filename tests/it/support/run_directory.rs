//! The data of a run: one directory per run under the target directory.
//!
//! A run holds a lock on its directory's `in-use` file until the process ends, however it ends. The next run
//! removes every directory whose lock it can take. After a failure the directory stays until then, for its
//! logs.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Error, Result};

struct RunDirectory {
    path: PathBuf,
    /// Never read: the lock lasts as long as the file is open.
    _in_use: File,
}

static RUN: OnceLock<Result<RunDirectory>> = OnceLock::new();

/// Text that no other run has: start time and process id.
pub(crate) fn stamp() -> &'static str {
    static STAMP: OnceLock<String> = OnceLock::new();
    STAMP.get_or_init(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{:x}-{:x}", since.as_millis(), std::process::id())
    })
}

/// A new empty directory of this run, its name beginning with `name`.
pub(crate) fn create(name: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let run = RUN.get_or_init(open).as_ref().map_err(Clone::clone)?;
    let path = run.path.join(format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&path).map_err(|error| failed("create", &path, &error))?;
    Ok(path)
}

/// This run's directory, if anything was put there.
pub(crate) fn path() -> Option<&'static Path> {
    RUN.get().and_then(|run| run.as_ref().ok()).map(|run| run.path.as_path())
}

/// Removes this run's directory; for the end of a run without failures.
pub(crate) fn remove() {
    if let Some(path) = path() {
        // What stays is removed by the next run.
        fs::remove_dir_all(path).ok();
    }
}

fn open() -> Result<RunDirectory> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tributary-rig");
    fs::create_dir_all(&home).map_err(|error| failed("create", &home, &error))?;
    // Two runs that start together must not see each other's directory before its lock is held.
    let guard = home.join("start.lock");
    let guard = File::create(&guard).and_then(|file| file.lock().map(|()| file));
    let _guard = guard.map_err(|error| failed("lock", &home, &error))?;
    remove_abandoned(&home);
    let path = home.join(format!("run-{}", stamp()));
    fs::create_dir_all(&path).map_err(|error| failed("create", &path, &error))?;
    let in_use = path.join("in-use");
    let in_use =
        File::create(&in_use).and_then(|file| file.try_lock().map(|()| file).map_err(io::Error::from));
    let in_use = in_use.map_err(|error| failed("lock", &path, &error))?;
    Ok(RunDirectory { path, _in_use: in_use })
}

fn remove_abandoned(home: &Path) {
    let Ok(entries) = fs::read_dir(home) else { return };
    for run in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        let abandoned = match File::open(run.join("in-use")) {
            Ok(file) => file.try_lock().is_ok(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if abandoned {
            // Another user's file or a full disk must not keep the tests from running.
            fs::remove_dir_all(&run).ok();
        }
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error(format!("{what} {}: {error}", path.display()))
}
