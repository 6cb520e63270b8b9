//! Directories and files that other users may not access: the spool holds deliveries, the grants hold tokens.
//!
//! | found | becomes |
//! |---|---|
//! | nothing | created, mode 0700 |
//! | ours, with permissions for group or others | loses them, and is refused if that fails |
//! | of another user | refused, except [`state_directory`], since a mounted volume often belongs to root |
//! | a symbolic link | followed, if it is ours or root's |
//!
//! Permissions are only removed, never added.

use std::{
    fmt,
    fs::{self, DirBuilder, File, Metadata, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Permission bits of group and others.
const GROUP_AND_OTHERS: u32 = 0o077;
const ROOT: u32 = 0;

/// Why a directory or file cannot be used.
#[derive(Debug, thiserror::Error)]
enum NotPrivate {
    #[error(
        "{} belongs to user {owner}, and the worker runs as user {us}: it uses only what belongs to its own user; \
         run `chown -R {us} {}`, or remove it",
        path.display(),
        path.display()
    )]
    Owner { path: PathBuf, owner: u32, us: u32 },
    #[error(
        "{} has mode {mode:04o}, and no other user may use it, but its mode cannot be changed ({source}); \
         run `chmod -R go-rwx {}`, or put it on a file system that has modes",
        path.display(),
        path.display()
    )]
    Mode { path: PathBuf, mode: u32, source: io::Error },
}

impl From<NotPrivate> for io::Error {
    fn from(error: NotPrivate) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// A `state.dir` of another user in which the worker may still write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignOwner {
    /// The owner's user id.
    pub owner: u32,
    /// Its mode.
    pub mode: u32,
}

impl fmt::Display for ForeignOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, mode } = self;
        write!(
            f,
            "belongs to user {owner} and has mode {mode:04o}, as the root of a mounted volume may; the worker keeps its own \
             directories below it private, but that user can remove them: set state.dir to a directory below the mount, or run \
             `chown` on it"
        )
    }
}

/// Ensures that a directory exists and is private. Blocks.
///
/// # Errors
/// It cannot be created, belongs to another user, or keeps permissions for others.
pub fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let link = fs::symlink_metadata(path)?;
    // If a parent directory belongs to another user, that user could have put a link here.
    if link.is_symlink() && link.uid() != ROOT {
        check_owner(path, link.uid(), effective_user())?;
    }
    make_private(path, &fs::metadata(path)?)
}

/// As [`private_directory`], with its contents, except symbolic links. Blocks.
///
/// # Errors
/// As [`private_directory`], for anything in it.
pub fn private_tree(path: &Path) -> io::Result<()> {
    private_directory(path)?;
    let mut open = vec![path.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let metadata = match fs::symlink_metadata(&path) {
                // Deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_symlink() {
                continue;
            }
            make_private(&path, &metadata)?;
            if metadata.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(())
}

/// [`private_directory`] for `state.dir` itself, which may be the root of a mounted Docker or Kubernetes volume: that belongs
/// to root, is open to a group, and only root could change that. It is used as it is and its owner is returned; what the
/// worker creates below it is private. Blocks.
///
/// # Errors
/// It cannot be created or is not a directory, or it is ours and keeps permissions for others.
pub fn state_directory(path: &Path) -> io::Result<Option<ForeignOwner>> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = foreign_owner(path)?;
    if found.is_none() {
        make_private(path, &fs::metadata(path)?)?;
    }
    Ok(found)
}

/// The owner of a directory that is not ours; `None` if it is. Changes nothing. Blocks.
///
/// # Errors
/// It does not exist or is not a directory.
pub fn foreign_owner(path: &Path) -> io::Result<Option<ForeignOwner>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let found = ForeignOwner { owner: metadata.uid(), mode: metadata.mode() & 0o7777 };
    Ok(effective_user().filter(|us| *us != found.owner).map(|_| found))
}

/// Whether [`private_directory`] would accept a directory's owner. Changes nothing. Blocks.
///
/// # Errors
/// It cannot be examined or belongs to another user.
pub fn check_directory(path: &Path) -> io::Result<()> {
    check_owner(path, fs::metadata(path)?.uid(), effective_user())
}

/// Ensures that an opened file is ours and private. Root may use files of other users, for CLI commands. Blocks.
///
/// # Errors
/// It belongs to another user or keeps permissions for others.
pub fn private_file(path: &Path, file: &File) -> io::Result<()> {
    let (metadata, us) = (file.metadata()?, effective_user());
    if us == Some(ROOT) && metadata.uid() != ROOT {
        return Ok(());
    }
    check_owner(path, metadata.uid(), us)?;
    remove_others(path, metadata.mode(), |mode| file.set_permissions(mode))
}

/// Makes files that libraries create private from the start, by the process's umask.
pub fn create_private_files() {
    #[cfg(target_os = "linux")]
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(GROUP_AND_OTHERS));
}

fn make_private(path: &Path, metadata: &Metadata) -> io::Result<()> {
    check_owner(path, metadata.uid(), effective_user())?;
    remove_others(path, metadata.mode(), |mode| fs::set_permissions(path, mode))
}

fn check_owner(path: &Path, owner: u32, us: Option<u32>) -> io::Result<()> {
    match us.filter(|us| *us != owner) {
        None => Ok(()),
        Some(us) => Err(NotPrivate::Owner { path: path.to_owned(), owner, us }.into()),
    }
}

/// Removes the permissions of group and others.
fn remove_others(path: &Path, mode: u32, set: impl FnOnce(Permissions) -> io::Result<()>) -> io::Result<()> {
    let mode = mode & 0o7777;
    if mode & GROUP_AND_OTHERS == 0 {
        return Ok(());
    }
    let refused = |source| NotPrivate::Mode { path: path.to_owned(), mode, source };
    set(Permissions::from_mode(mode & !GROUP_AND_OTHERS)).map_err(refused)?;
    // Some file systems accept a mode and ignore it.
    let kept = fs::metadata(path)?.mode() & 0o7777;
    if kept & GROUP_AND_OTHERS != 0 {
        return Err(refused(io::Error::other("the file system keeps it")).into());
    }
    Ok(())
}

/// The effective user id, on Linux.
#[cfg(target_os = "linux")]
fn effective_user() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

#[cfg(not(target_os = "linux"))]
fn effective_user() -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn permissions_of_others_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("spool");
        let (inner, file) = (top.join("1"), top.join("1/journal"));
        fs::create_dir_all(&inner).unwrap();
        fs::write(&file, b"x").unwrap();
        for path in [&top, &inner] {
            set_mode(path, 0o777);
        }
        set_mode(&file, 0o666);

        private_tree(&top).unwrap();

        assert_eq!((mode(&top), mode(&inner), mode(&file)), (0o700, 0o700, 0o600));
    }

    #[test]
    fn new_directory_is_private_and_no_permission_is_added() {
        let home = tempfile::tempdir().unwrap();
        let (made, locked) = (home.path().join("a/b"), home.path().join("locked"));
        fs::create_dir(&locked).unwrap();
        set_mode(&locked, 0o050);

        private_directory(&made).unwrap();
        private_directory(&locked).unwrap();

        assert_eq!((mode(&made), mode(made.parent().unwrap())), (0o700, 0o700));
        assert_eq!(mode(&locked), 0);
        set_mode(&locked, 0o700);
    }

    #[test]
    fn linked_state_directory_is_followed_but_not_links_in_it() {
        let home = tempfile::tempdir().unwrap();
        let (real, link, outside) =
            (home.path().join("real"), home.path().join("link"), home.path().join("outside"));
        fs::create_dir(&real).unwrap();
        fs::create_dir(&outside).unwrap();
        set_mode(&real, 0o755);
        set_mode(&outside, 0o755);
        symlink(&real, &link).unwrap();
        symlink(&outside, real.join("elsewhere")).unwrap();

        assert_eq!(state_directory(&link).unwrap(), None);
        private_tree(&link).unwrap();

        assert_eq!((mode(&real), mode(&outside)), (0o700, 0o755));
    }

    #[test]
    fn foreign_owner_is_refused_with_the_remedy() {
        let path = Path::new("/var/lib/tributary/spool");

        assert!(check_owner(path, 10001, Some(10001)).is_ok());
        assert!(check_owner(path, 10001, None).is_ok(), "the user is unknown");
        let refused = check_owner(path, 1000, Some(10001)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let message = refused.to_string();
        for part in ["belongs to user 1000", "runs as user 10001", "chown -R 10001 /var/lib/tributary/spool"]
        {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
    }

    #[test]
    fn unchangeable_mode_is_refused_with_the_remedy() {
        let home = tempfile::tempdir().unwrap();
        set_mode(home.path(), 0o2770);
        let refuse = |_: Permissions| Err(io::ErrorKind::ReadOnlyFilesystem.into());

        for (what, set) in [("refuses", refuse as fn(_) -> _), ("ignores", |_| Ok(()))] {
            let message = remove_others(home.path(), 0o2770, set).unwrap_err().to_string();
            assert!(
                message.contains("mode 2770") && message.contains("chmod -R go-rwx"),
                "{what}: {message}"
            );
        }
    }

    /// As the root of a Kubernetes volume with an fsGroup: it belongs to root, and the worker is in its group.
    #[test]
    fn volume_of_another_user_is_used_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let volume = home.path().join("volume");
        fs::create_dir(&volume).unwrap();
        set_mode(&volume, 0o2770);
        // Only root can change the owner; otherwise the directory is ours.
        if chown(&volume, Some(12_345), None).is_err() {
            assert_eq!(state_directory(&volume).unwrap(), None);
            return;
        }

        let found = state_directory(&volume).unwrap();
        private_directory(&volume.join("spool")).unwrap();
        let refused = private_directory(&volume).unwrap_err();

        assert_eq!(found, Some(ForeignOwner { owner: 12_345, mode: 0o2770 }));
        assert_eq!((mode(&volume), mode(&volume.join("spool"))), (0o770, 0o700));
        assert!(refused.to_string().contains("belongs to user 12345"), "{refused}");
    }
}
