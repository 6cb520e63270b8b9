//! Kafka: the only place that knows librdkafka.
//!
//! ```text
//! EncodedRecord ─▶ Producer ──acks=all──▶ event topics              (any partition, idempotent)
//! Vec<EncodedRecord> ─▶ ShardProducer ──one transaction──▶ record topics, fences, offsets   (one writer per shard)
//! topics ─▶ Consumer ──read committed──▶ Received        read_to_end: a compacted topic as of now
//! compacted topic ─▶ Table ──▶ its state in memory ──decide──▶ FencedWriter ─▶ the topic   (PlainWriter where nothing is decided)
//! work topic ─▶ Membership ──▶ partitions that only this worker owns, with a lease
//! TopicSpec ─▶ Admin ──▶ topics that exist with the required settings
//! ```
//!
//! - The code that builds a record computes its partition ([`partition_of`]), never the client.
//! - Blocking calls run on their own threads, never on the runtime's.
//! - Queues are bounded: a full producer returns the record, a full consumer stops fetching.
//! - Settings that the guarantees depend on are enforced ([`Error::Refused`]); all others pass through to librdkafka.
//!
//! On failure every error answers [`Error::retry`]; [`Error::is_fatal`] says that the client is unusable, and
//! [`Error::persisted`] whether a record that failed to publish may still be in the log.

/// Implements `Debug` with the name of the type alone.
macro_rules! opaque_debug {
    ($type:ident $(<$state:ident>)?) => {
        impl $(<$state>)? std::fmt::Debug for $type $(<$state>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type)).finish_non_exhaustive()
            }
        }
    };
}

mod client;
mod consumer;
mod context;
pub mod embedded;
mod enforced_settings;
mod error;
mod group;
mod oauth;
mod partition;
mod poll_thread;
mod producer;
mod role;
mod settings;
mod sys;
mod table;
mod topics;
mod transaction;

pub use client::{MAX_RECORD_BYTES, MIN_MAX_MESSAGE_BYTES, check_settings};
pub use consumer::{
    Assignment, Consumer, ConsumerEvent, ConsumerOptions, ConsumerRecord, ReadLimits, ReadToEnd, StartOffset,
    TopicPartition, offsets_since, read_to_end, read_to_end_from, watermarks, watermarks_of,
};
#[cfg(any(test, feature = "samples"))]
pub use error::samples;
pub use error::{Error, KafkaCause, OpenTransaction, Persisted, TopicMismatch};
pub use group::{GroupOptions, Membership, MembershipOutage, OwnedPartitions, Rebalances};
pub use partition::{murmur2, partition_of};
pub use producer::{Ack, DeliveryFuture, Producer, ProducerOptions, SendError};
pub use settings::Kafka;
pub use table::{
    FencedWriter, LastWriteError, PlainWriter, Table, TableState, WriteError, WriteMark, WriterOptions,
    write_id,
};
pub use topics::{Admin, TopicSpec};
pub use transaction::{
    CommitError, CommitHook, CommittedBatch, Lease, ShardProducer, ShardProducers, TransactionOptions,
};
