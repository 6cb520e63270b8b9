//! A directory for the time of one command.

use std::{io, path::PathBuf};

/// Gone once this is dropped.
pub(super) struct ScratchDirectory(pub(super) PathBuf);

impl ScratchDirectory {
    /// For the command of this name.
    pub(super) fn create(command: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("tributary-{command}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // What is left in the system's scratch space is the system's to remove.
        std::fs::remove_dir_all(&self.0).ok();
    }
}
