//! From records to bytes in Kafka: topics and schemas of a prefix, encoding, dead letters, shard transactions.
//!
//! ```text
//! Layout ─▶ open (topics, schema ids) ─▶ Opened ─┬─▶ Preparer (topic, partition, key, Avro, headers) ─┬─▶ EncodedRecord
//!                                                └─▶ DeadLetters (original bytes, reason, signature) ─┘
//!
//! EncodedRecord ─┬─▶ the producer of webhooks::intake: events and their dead letters
//!                ├─▶ ShardWriter: values, fences, offsets, state and dead letters of a shard in one transaction
//!                └─▶ Publisher: records of replayed dead letters, one at a time
//! ```
//!
//! Invariants:
//! - `open` returns when every topic exists, all with one partition count (dead letters may have another), and every schema has an id.
//!   It creates and registers nothing if an existing topic does not fit.
//! - [`Preparer::prepare`] does no I/O. Records of one key go to one partition.
//! - A [`ShardBatch`] is visible to read-committed consumers completely or not at all.
//! - A dead letter has the original bytes, as far as they fit into one record. Its headers name the failure and never quote
//!   the data.
//!
//! On failure: [`Error::retry`] says whether another attempt can help. If a single record is at fault (it cannot be
//! encoded, it is too large), the caller writes a dead letter in its place and continues.

mod dead_letter;
mod failure;
mod open;
mod publisher;
mod signature;
mod transaction;

pub use dead_letter::DeadLetters;
pub use failure::{Original, PublishFailure};
pub use open::{DEFAULT_PARTITIONS, Layout, Opened, open, open_state, written_by};
pub use publisher::{Preparer, Publisher};
pub use signature::{LetterSignature, LetterSigner, MAC, PREFIX};
pub use transaction::{ShardBatch, ShardWriter};

pub use base::metrics::PublishStage;
use base::retry::Retry;

use crate::avro;

/// Why publishing stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A record could not be turned into bytes.
    #[error("convert a record for topic {topic}")]
    Convert {
        /// Full topic name.
        topic: String,
        /// Encoder or registry.
        #[source]
        source: Box<avro::Error>,
    },
    /// Kafka did not take a record.
    #[error("publish to topic {topic}")]
    Produce {
        /// Full topic name.
        topic: String,
        /// What the producer reported.
        #[source]
        source: Box<kafka::Error>,
    },
    /// A shard's transaction did not commit.
    #[error("commit the transaction of {transactional_id}")]
    Transaction {
        /// Whose transaction.
        transactional_id: String,
        /// What the producer reported, including whether the batch may be visible.
        #[source]
        source: Box<kafka::CommitError>,
    },
    /// A record has no key.
    #[error("{message}")]
    Unplaceable {
        /// Schema of the record and the member that its key lacks.
        message: String,
    },
    /// Topics are missing or do not fit.
    #[error("prepare the topics of prefix {prefix}")]
    Topics {
        /// `topic.prefix`.
        prefix: String,
        /// What is wrong, with the remedy.
        #[source]
        source: Box<kafka::Error>,
    },
    /// Topics are missing, and we may not create them.
    #[error("topics {} are missing and topic.creation.enable is false: create them, or set it to true", .topics.join(", "))]
    Missing {
        /// Their names.
        topics: Vec<String>,
    },
    /// Schemas are not registered.
    #[error("prepare the schemas of prefix {prefix}")]
    Schemas {
        /// `topic.prefix`.
        prefix: String,
        /// What is wrong, with the remedy.
        #[source]
        source: Box<avro::Error>,
    },
}

impl Error {
    /// Whether starting again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Convert { source, .. } | Self::Schemas { source, .. } => source.retry(),
            Self::Produce { source, .. } | Self::Topics { source, .. } => source.retry(),
            Self::Transaction { source, .. } => source.retry(),
            Self::Unplaceable { .. } | Self::Missing { .. } => Retry::Never,
        }
    }
}
