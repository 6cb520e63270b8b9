//! Errors of the spool, and whether a retry helps.

use std::{io, path::PathBuf, sync::Arc};

use base::retry::Retry;

use crate::store;

/// A failure of any part of [`crate::spool`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, or another spool of this process, holds the directory.
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
    /// The configured limit is reached. Nothing was written.
    #[error("spool is full: its limit is reached")]
    LimitReached,
    /// The disk has no room above the reserve. The entry counts as not written.
    #[error("spool is full: no disk is left above the reserve")]
    DiskFull,
    /// The disk is slower than the callers, and the queue is full. Nothing was written.
    #[error("spool has too many bytes waiting for the disk")]
    Busy,
    /// The entry's lane cannot be stored.
    #[error("spool cannot store topic {topic:?}: a topic has 1 to 300 bytes, none of them zero")]
    Topic {
        /// The topic of the lane.
        topic: Arc<str>,
    },
    /// The store or the system refused. An entry that was to be written may or may not be on disk and counts as not written.
    #[error("spool storage failed")]
    Failed(#[source] Arc<store::Error>),
    /// The spool is closed, or its writer has ended.
    #[error("spool is closed")]
    Closed,
}

impl Error {
    /// Whether trying again helps: draining makes room, and a fresh database replaces a failed one.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::LimitReached | Self::DiskFull | Self::Busy | Self::Failed(_) | Self::Directory { .. } => {
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

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::NoSpace(_) => Self::DiskFull,
            error => Self::Failed(Arc::new(error)),
        }
    }
}
