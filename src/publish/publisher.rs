//! Encodes records: topic, partition, key, value and headers.

use std::{collections::HashMap, sync::Arc, time::Instant};

use bytes::Bytes;

use base::metrics;
use model::{EncodedRecord, Key, Moment, Outgoing, Partitioning, Topic, TopicPrefix};

use super::{Error, PublishStage};
use crate::avro;

/// Kafka removes records by their timestamp. A record that waited longer than this in the spool or as a dead letter gets the time
/// of its publication; with the old time, retention could remove it before it is read.
const OLDEST_TIMESTAMP_MS: i64 = 24 * 60 * 60 * 1_000;

fn is_recent(timestamp_ms: i64) -> bool {
    Moment::now().micros() / 1_000 - timestamp_ms < OLDEST_TIMESTAMP_MS
}

/// Turns records into bytes for the topics of one prefix. Cheap to clone.
#[derive(Clone)]
pub struct Preparer {
    names: Arc<HashMap<Topic, Arc<str>>>,
    partitions: i32,
    encoder: Arc<avro::Encoder>,
}

impl Preparer {
    /// For the topics of `prefix`, which all have `partitions` partitions.
    #[must_use]
    pub fn new(prefix: &TopicPrefix, partitions: i32, encoder: avro::Encoder) -> Self {
        let names = Topic::all().map(|topic| (topic, topic.name(prefix).into())).collect();
        Self { names: Arc::new(names), partitions, encoder: Arc::new(encoder) }
    }

    /// Full name of a topic.
    #[must_use]
    pub fn topic_name(&self, topic: Topic) -> Arc<str> {
        Arc::clone(&self.names[&topic])
    }

    /// Partitions of every topic of the prefix.
    #[must_use]
    pub fn partitions(&self) -> i32 {
        self.partitions
    }

    /// Topic, partition, key, value and headers of a record, as bytes.
    pub fn prepare(&self, record: &Outgoing) -> Result<EncodedRecord, avro::Error> {
        let topic = self.topic_name(record.topic);
        let value = match &record.value {
            Some(value) => Some(self.encoder.encode(&topic, value)?),
            None => None,
        };
        Ok(EncodedRecord {
            topic,
            partition: self.partition(&record.key),
            key: Bytes::copy_from_slice(record.key.as_str().as_bytes()),
            value,
            headers: record.headers(),
            timestamp_ms: record.timestamp_ms.filter(|at| is_recent(*at)),
        })
    }

    /// A record of the prefix's own state; `value` is JSON, `None` a tombstone.
    #[must_use]
    pub fn state(&self, key: &Key, value: Option<Bytes>) -> EncodedRecord {
        EncodedRecord {
            topic: self.topic_name(Topic::State),
            partition: self.partition(key),
            key: Bytes::copy_from_slice(key.as_str().as_bytes()),
            value,
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    fn partition(&self, key: &Key) -> i32 {
        match key.partitioning() {
            Partitioning::By(bytes) => kafka::partition_of(bytes, self.partitions),
            Partitioning::Shard(shard) => shard,
        }
    }
}

/// Prepares records and sends them to Kafka.
pub struct Publisher {
    preparer: Preparer,
    producer: Arc<kafka::Producer>,
}

impl Publisher {
    /// Publishes through `producer`, which publishers of several prefixes may share.
    pub fn new(preparer: Preparer, producer: impl Into<Arc<kafka::Producer>>) -> Self {
        Self { preparer, producer: producer.into() }
    }

    /// How records become bytes.
    pub fn preparer(&self) -> &Preparer {
        &self.preparer
    }

    /// Publishes one record and waits for its acknowledgement, without a deadline.
    pub async fn publish(&self, record: &Outgoing) -> Result<kafka::Ack, Error> {
        let encoded = self.preparer.prepare(record).map_err(|source| {
            metrics::publish_failed(PublishStage::Convert);
            Error::Convert {
                topic: self.preparer.topic_name(record.topic).to_string(),
                source: Box::new(source),
            }
        })?;
        let topic = Arc::clone(&encoded.topic);
        let failed = |source| {
            metrics::publish_failed(PublishStage::Produce);
            Error::Produce { topic: topic.to_string(), source: Box::new(source) }
        };
        let sent_at = Instant::now();
        let delivery = self.producer.send(encoded).map_err(|refused| failed(refused.error))?;
        let ack = delivery.await.map_err(failed)?;
        metrics::published_after(sent_at.elapsed());
        metrics::records_published(record.meta.origin.name(), 1);
        Ok(ack)
    }
}
