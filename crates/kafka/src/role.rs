//! The kinds of client that this crate creates, with their parameters.

use std::{sync::Arc, time::Duration};

use base::metrics::KafkaClient;

/// Fetch parameters of a reader.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchOptions {
    /// Partitions it reads.
    pub(super) partitions: usize,
    /// Bytes it may fetch ahead, over all partitions.
    pub(super) bytes: usize,
    /// How long the broker waits for records before it returns an empty fetch.
    pub(super) wait: Duration,
}

/// Which records a reader sees (`isolation.level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Committed ones, up to the first open transaction.
    ReadCommitted,
    /// Also those of open and aborted transactions.
    ReadUncommitted,
}

/// A kind of client with its parameters.
#[derive(Debug, Clone)]
pub(super) enum ClientRole {
    /// The idempotent producer.
    Producer { queue_bytes: usize },
    /// The producer of one shard.
    Transactional { id: Arc<str>, queue_bytes: usize, timeout: Duration },
    /// A reader; without parameters it uses librdkafka's defaults, to read single records.
    Consumer(Option<FetchOptions>, Isolation),
    /// Queries metadata and offsets; joins no group and fetches nothing.
    Query(Isolation),
    /// A group member that is assigned partitions and reads none.
    Member { group: Arc<str>, session: Duration, heartbeat: Duration },
    /// The topic admin.
    Admin,
}

impl ClientRole {
    /// Its label in metrics and messages.
    pub(super) fn client(&self) -> KafkaClient {
        match self {
            Self::Producer { .. } => KafkaClient::Producer,
            Self::Transactional { .. } => KafkaClient::Transactional,
            Self::Consumer(..) | Self::Query(_) | Self::Member { .. } => KafkaClient::Consumer,
            Self::Admin => KafkaClient::Admin,
        }
    }

    /// Memory limit of its queue of records in bytes; `None` for a client that publishes none.
    pub(super) fn queue_bytes(&self) -> Option<usize> {
        match self {
            Self::Producer { queue_bytes } | Self::Transactional { queue_bytes, .. } => Some(*queue_bytes),
            _ => None,
        }
    }
}
