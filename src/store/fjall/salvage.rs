//! Recovers a database that does not open because its newest journal has a broken batch.
//!
//! A journal truncated anywhere could be left by a crash, and opens: the incomplete batch at its end is dropped. A binary search finds
//! the longest prefix of the newest journal that opens. All of this happens on a copy; the original stays unchanged. Tables are never
//! modified, so the copy shares them by hard link.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use super::{Fjall, FjallDatabase, JOURNAL_EXTENSION, open, recover};
use crate::store::Error;

/// Directory of files that never change.
const TABLES_DIRECTORY: &str = "tables";

/// Copies `from` to `to`, with the longest prefix of the newest journal that opens.
pub(super) fn salvage(store: Fjall, from: &Path, to: &Path) -> Result<FjallDatabase, Error> {
    let failed = |error| Error::io("copy the database", error);
    copy(from, to).map_err(failed)?;
    let Some(journal) = newest_journal(from).map_err(failed)? else {
        return open(store, to);
    };
    let copied = to.join(journal.file_name().unwrap_or_default());
    let try_length = |length: u64| -> Result<(), Error> {
        // An earlier attempt may have truncated the copy.
        fs::copy(&journal, &copied).and_then(|_| cut(&copied, length)).map_err(failed)?;
        recover(store, to).map(drop)
    };
    // If it does not open without the journal, the damage is elsewhere.
    try_length(0)?;
    let mut opens = 0;
    let mut fails = fs::metadata(&journal).map_err(failed)?.len() + 1;
    while fails - opens > 1 {
        let middle = opens + (fails - opens) / 2;
        match try_length(middle) {
            Ok(()) => opens = middle,
            Err(_) => fails = middle,
        }
    }
    fs::copy(&journal, &copied).and_then(|_| cut(&copied, opens)).map_err(failed)?;
    open(store, to)
}

fn cut(file: &Path, length: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(file)?;
    file.set_len(length)?;
    file.sync_all()
}

/// The journal with the highest number, which was written last.
fn newest_journal(directory: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest = None;
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        let number =
            path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let (true, Some(number)) =
            (path.extension().is_some_and(|extension| extension == JOURNAL_EXTENSION), number)
        {
            newest = newest.max(Some((number, path)));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// Copies a directory recursively and syncs it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    let shared = from.file_name().is_some_and(|name| name == TABLES_DIRECTORY);
    for file in fs::read_dir(from)? {
        let file = file?;
        let target = to.join(file.file_name());
        if file.file_type()?.is_dir() {
            copy(&file.path(), &target)?;
        } else if !shared || fs::hard_link(file.path(), &target).is_err() {
            fs::copy(file.path(), &target)?;
            File::open(&target)?.sync_all()?;
        }
    }
    File::open(to)?.sync_all()
}
