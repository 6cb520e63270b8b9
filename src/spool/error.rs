//! What can go wrong with the spool, and whether trying again helps.

use std::{io, path::PathBuf, sync::Arc};

use base::retry::Retry;

use crate::store;

/// A failure of any part of [`crate::spool`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, or another spool of this one, has the directory.
    #[error("spool directory {} is in use by another process", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// The directory itself cannot be used.
    #[error("{action} {}", path.display())]
    Directory {
        /// What was attempted.
        action: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: Arc<io::Error>,
    },
    /// No thread for the writer.
    #[error("start the spool's writer thread")]
    Thread(#[source] Arc<io::Error>),
    /// There is no room: nothing was written.
    #[error("spool is full: {0}")]
    Full(Room),
    /// More waits to be written than may: the disk is slower than the callers. Nothing was written.
    #[error("spool has too many bytes waiting for the disk")]
    Busy,
    /// The entry's lane cannot be stored.
    #[error("spool cannot store topic {topic:?}: {rule}")]
    Topic {
        /// The topic of the lane.
        topic: Arc<str>,
        /// What is asked of one.
        rule: &'static str,
    },
    /// The database that should have taken the entry failed: it may or may not be on disk and counts as not written.
    #[error("write to the spool")]
    Failed(#[source] Arc<store::Error>),
    /// The spool is closed, or its writer is gone.
    #[error("spool is closed")]
    Closed,
}

/// Which room there is no more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// The configured limit.
    Limit,
    /// Free disk above the reserve.
    Disk,
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Limit => "its limit is reached",
            Self::Disk => "no disk is left above the reserve",
        })
    }
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            // Draining makes room; a fresh database takes the place of a failed one; another process may end.
            Self::Full(_) | Self::Busy | Self::Failed(_) | Self::Directory { .. } | Self::Thread(_) => {
                Retry::Later
            }
            Self::InUse { .. } | Self::Topic { .. } | Self::Closed => Retry::Never,
        }
    }

    pub(super) fn directory(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Directory { action, path, source: Arc::new(source) }
    }
}
