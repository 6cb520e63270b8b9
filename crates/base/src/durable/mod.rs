//! Small files that survive a crash: replaced as a whole or not at all, readable by no other user; and the directories they are in.

mod private;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use tokio::task::spawn_blocking;

pub use self::private::{
    ForeignOwner, check_directory, create_private_files, foreign_owner, private_directory, private_file,
    private_tree, state_directory,
};

/// Puts `content` in the file's place: written beside it, synced, renamed over it, mode 0600. A crash leaves the old file or
/// the new one. Blocks, and takes one caller per file at a time: two would share the temporary one.
///
/// # Errors
/// The directory is missing or cannot be written to. The old file is still there, unless the rename alone could not be synced.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    // A left-over of a crash may have another mode; `mode` counts only for a file that is created.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    // The rename itself is durable only once the directory is.
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Runs work on files off the runtime's threads; a panic in it becomes an error.
///
/// # Errors
/// Those of the work.
pub async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Opens a regular file to read it. A pipe, device or terminal is refused without waiting for it.
///
/// # Errors
/// It cannot be opened, or is something other than a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Looked at before, because opening some devices already has an effect; looked at again, because the path may change.
    let regular = |is_file: bool| match is_file {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    regular(fs::metadata(path)?.is_file())?;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    regular(file.metadata()?.is_file())?;
    Ok(file)
}

/// All of a file, `None` where there is none. A file that other users may read or write loses those rights. Blocks.
///
/// # Errors
/// It cannot be read, belongs to another user, or is larger than `limit` bytes and so is none of ours.
pub fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    private_file(path, &file)?;
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::Error::other(format!("larger than {limit} bytes")));
    }
    Ok(Some(content))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_is_nobody_elses_whatever_a_crash_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        fs::write(directory.path().join("kept.json.tmp"), b"half of").unwrap();

        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();

        assert_eq!(read(&path, 3).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "something was left behind");
    }

    #[test]
    fn a_file_that_others_may_read_is_tightened_when_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        fs::write(&path, b"one").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();

        assert_eq!(read(&path, 3).unwrap().as_deref(), Some(&b"one"[..]));

        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_not_there_is_none_and_one_that_is_too_large_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");

        assert_eq!(read(&path, 3).unwrap(), None);
        replace(&path, b"four").unwrap();
        assert!(read(&path, 3).is_err());
        assert!(replace(&directory.path().join("nowhere/kept.json"), b"").is_err());
    }
}
