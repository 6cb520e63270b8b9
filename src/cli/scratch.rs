//! A temporary directory for one command.

use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt as _, path::PathBuf};

use base::random;

/// Removed on drop.
pub(super) struct ScratchDirectory(pub(super) PathBuf);

impl ScratchDirectory {
    /// For the command of this name. Its name is unpredictable and an existing directory is an error, so no other user can have
    /// created it.
    pub(super) fn create(command: &str) -> io::Result<Self> {
        let name = random::hex::<16>().map_err(io::Error::other)?;
        let path = std::env::temp_dir().join(format!("tributary-{command}-{name}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // On failure the system cleans its temporary directory.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_scratch_directory_is_private_and_removed() {
        let (one, other) =
            (ScratchDirectory::create("test").unwrap(), ScratchDirectory::create("test").unwrap());
        let path = one.0.clone();

        assert_ne!(one.0, other.0, "two of one process");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!path.ends_with(format!("tributary-test-{}", std::process::id())));
        fs::write(path.join("file"), b"x").unwrap();
        drop(one);
        assert!(!path.exists());
    }
}
