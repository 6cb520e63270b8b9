//! Small files that survive a crash, replaced atomically and private to the user, and their directories.

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

/// Replaces a file atomically: writes a temporary file beside it with mode 0600, syncs it and renames it. A crash leaves the
/// old or the new file. Blocks. Allows one caller per file at a time, because two would share the temporary file.
///
/// # Errors
/// The directory is missing or not writable. The old file is still there, unless only the sync of the rename failed.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    // A leftover of a crash may have another mode; `mode` applies only to new files.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    // The rename is durable only once the directory is synced.
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Runs blocking file operations off the runtime's threads; a panic becomes an error.
///
/// # Errors
/// Those of `work`.
pub async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Opens a regular file for reading. Refuses a pipe, device or terminal without blocking.
///
/// # Errors
/// It cannot be opened or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Checked before, because opening some devices has side effects; checked again, because the path may change.
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

/// Reads a file, `None` if there is none. Removes the permissions of other users. Blocks.
///
/// # Errors
/// It cannot be read, belongs to another user, or is larger than `limit` bytes.
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
    fn file_is_replaced_atomically_and_private() {
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
    fn reading_removes_the_permissions_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        fs::write(&path, b"one").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();

        assert_eq!(read(&path, 3).unwrap().as_deref(), Some(&b"one"[..]));

        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn missing_file_is_none_and_a_large_one_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");

        assert_eq!(read(&path, 3).unwrap(), None);
        replace(&path, b"four").unwrap();
        assert!(read(&path, 3).is_err());
        assert!(replace(&directory.path().join("nowhere/kept.json"), b"").is_err());
    }
}
