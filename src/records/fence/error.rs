//! Errors of fences.

use std::{path::PathBuf, sync::Arc};

use base::retry::Retry;

use crate::store;

/// A failure of any part of [`crate::records::fence`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database can neither be opened nor created.
    #[error("open the fence database in {}: {remedy}", directory.display())]
    Open {
        /// The directory.
        directory: PathBuf,
        /// What to do.
        remedy: &'static str,
        /// Why it failed.
        #[source]
        source: Arc<store::Error>,
    },
    /// The database could not be read or written. It is reopened with the next shard.
    #[error("the fence database in {} failed; it is reopened when the next shard is taken", directory.display())]
    Store {
        /// The directory.
        directory: PathBuf,
        /// Why it failed; `None` if it had failed before.
        #[source]
        source: Option<Arc<store::Error>>,
    },
    /// The topic could not be read.
    #[error("restore fences from {topic} partition {partition}")]
    Read {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// Why it failed.
        #[source]
        source: Box<kafka::Error>,
    },
    /// A record of the topic cannot be parsed.
    #[error(
        "restore fences from {topic} partition {partition}: the record at offset {offset} cannot be parsed; run the version \
         that wrote it, or write another record with its key"
    )]
    Record {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The offset of the record.
        offset: i64,
        /// What is wrong with it.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// The process is shutting down.
    #[error("use the fences: the process is shutting down")]
    Stopped,
}

impl Error {
    /// Whether opening the shard again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            // A corrupt database was deleted and recreated already, which did not help.
            Self::Open { source, .. } if matches!(**source, store::Error::Broken { .. }) => Retry::Never,
            Self::Open { .. } | Self::Store { .. } => Retry::Later,
            Self::Read { source, .. } => source.retry(),
            Self::Record { .. } | Self::Stopped => Retry::Never,
        }
    }
}
