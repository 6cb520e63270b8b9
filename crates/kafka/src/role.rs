//! The kinds of client that this crate makes, with the figures that differ from one client to the next.

use std::{sync::Arc, time::Duration};

use base::metrics::KafkaClient;

/// How a reader fetches.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchOptions {
    /// Partitions that it reads.
    pub(super) partitions: usize,
    /// Bytes that it may fetch ahead, over all of them.
    pub(super) bytes: usize,
    /// How long the broker waits for records before it answers that there are none.
    pub(super) wait: Duration,
}

/// Which records a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Those of transactions that were committed, up to the first that is open.
    ReadCommitted,
    /// Those of open and aborted transactions too.
    ReadUncommitted,
}

/// A kind of client with the figures that differ from one to the next.
#[derive(Debug, Clone)]
pub(super) enum ClientRole {
    /// The idempotent producer.
    Producer { queue_bytes: usize },
    /// The producer of one shard.
    Transactional { id: Arc<str>, queue_bytes: usize, timeout: Duration },
    /// A reader; without figures it takes librdkafka's own, for a look at single records.
    Consumer(Option<FetchOptions>, Isolation),
    /// Queries metadata and offsets; joins no group and fetches nothing.
    Query(Isolation),
    /// A member of a group that shares out partitions and reads none.
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
