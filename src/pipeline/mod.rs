//! The spine: source → record → bytes → acknowledgement → commit, written once.
//!
//! ```text
//! Source::next ─▶ Item ─▶ Preparer (topic, partition, Avro, headers) ─▶ RecordSink ─▶ ack ─▶ Progress ─▶ Source::commit
//!                   └── cannot ──────────────▶ dead letter ─▶ RecordSink ─▶ ack ──────────┘
//! shard tasks:      values ─▶ Preparer ─┐
//!                   fences, offsets, state ┴▶ ShardWriter: one transaction
//! ```
//!
//! Invariants:
//! - A position is committed only when everything up to it in its lane is acknowledged by Kafka, as a record or as a
//!   dead letter. A crash repeats records, never loses one; a repeated record has the same `tributary.id`.
//! - Records of a lane are handed to the producer in reading order, and the producer keeps order inside a partition.
//! - What is in flight is bounded in bytes; above the bound the source is not asked for more.
//!
//! On failure: what passes by itself (registry away, queue full) is waited for in place, so order holds; what concerns
//! one record (it cannot be encoded, it is too large) goes to the dead letters; anything else ends the run with an error
//! whose verdict tells the supervisor whether to start again.

mod dead_letter;
mod driver;
mod open;
mod publisher;
mod signature;
mod source;
#[cfg(test)]
mod tests;
mod transaction;

pub mod progress;

pub use dead_letter::DeadLetters;
pub use driver::{Driver, End, Limits};
pub use open::{DEFAULT_PARTITIONS, Layout, Opened, open, open_state};
pub use publisher::{Preparer, Publisher, RecordSink};
pub use signature::{LetterSignature, LetterSigner, MAC, PREFIX};
pub use source::{Batch, Content, Failure, Item, Original, Source};
pub use transaction::{ShardBatch, ShardWriter};

pub use crate::metrics::Stage;
use crate::{avro, kafka, retry::Retry};

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
        /// What the producer reported: see there what is visible of the batch.
        #[source]
        source: Box<kafka::Failure>,
    },
    /// Something cannot be published, and there is no dead-letter topic to put it into.
    #[error(
        "{class}: {message}; nothing was skipped: set errors.tolerance=all to send such records to the dead letters"
    )]
    Intolerable {
        /// Kind of error.
        class: &'static str,
        /// What happened.
        message: String,
    },
    /// The source failed.
    #[error("read from or commit to the source")]
    Source {
        /// What the source said about trying again.
        retry: Retry,
        /// Its error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Topics are missing or not as they must be.
    #[error("prepare the topics of prefix {prefix}")]
    Topics {
        /// `topic.prefix`.
        prefix: String,
        /// What is wrong, with the remedy.
        #[source]
        source: Box<kafka::Error>,
    },
    /// Topics are missing, and we may not create them.
    #[error("topics {} are missing and topic.creation.enable is false: create them, or let them be created", .topics.join(", "))]
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
            Self::Intolerable { .. } | Self::Missing { .. } => Retry::Never,
            Self::Source { retry, .. } => *retry,
        }
    }
}
