//! An encoded record, ready for the Kafka client.

use std::sync::Arc;

use bytes::Bytes;

/// A record ready to be sent, with its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedRecord {
    /// Full topic name.
    pub topic: Arc<str>,
    /// Partition, computed from the company part of the key or given as a shard.
    pub partition: i32,
    /// Key text as UTF-8.
    pub key: Bytes,
    /// Value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers in the order in which they are written.
    pub headers: Vec<(&'static str, Bytes)>,
    /// Milliseconds since 1970; `None` lets the producer stamp it.
    pub timestamp_ms: Option<i64>,
}

impl EncodedRecord {
    /// A record without headers, stamped by the producer.
    #[must_use]
    pub fn new(topic: &Arc<str>, partition: i32, key: impl Into<Bytes>, value: Option<Bytes>) -> Self {
        let (topic, key) = (Arc::clone(topic), key.into());
        Self { topic, partition, key, value, headers: Vec::new(), timestamp_ms: None }
    }

    /// Bytes this record uses in memory.
    #[must_use]
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len) + headers
    }
}
