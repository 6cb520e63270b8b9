//! The offset topic's writer, for edits through REST.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::try_join_all;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::{
    config::Kafka,
    kafka::{self, Ack, Producer, ProducerOptions, partition_of},
    model::EncodedRecord,
    worker::state::{
        Tail,
        offsets::{self, Edit, Offsets},
    },
};

/// Bytes of edits inside the client.
const QUEUE_BYTES: usize = 4 << 20;

/// Sets and resets offsets of a stopped connector. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OffsetWriter {
    kafka: Kafka,
    partitions: i32,
    offsets: Tail<Offsets>,
}

impl OffsetWriter {
    /// For the topic that this tail follows, with this many partitions.
    #[must_use]
    pub fn new(kafka: &Kafka, partitions: i32, offsets: Tail<Offsets>) -> Self {
        Self { kafka: kafka.clone(), partitions, offsets }
    }

    /// Makes all these edits and returns once the own tail has read them all.
    ///
    /// The producer is made for this call and ends with it: of an edit that was not done in time nothing is sent later,
    /// though what was on its way may still arrive.
    ///
    /// # Errors
    /// Kafka did not take all of it, or it was not read back, within the limit.
    pub async fn write(&self, connector: &str, edits: &[Edit], limit: Duration) -> Result<(), kafka::Error> {
        let records: Vec<EncodedRecord> =
            edits.iter().flat_map(|(partition, offset)| self.records(connector, partition, offset)).collect();
        let end = Instant::now() + limit;
        let written = timeout(limit, self.publish(records, limit)).await;
        let action = || format!("write {} offsets of {connector}", edits.len());
        let acks = written.unwrap_or_else(|_| Err(kafka::Error::Deadline { action: action(), limit }))?;
        for Ack { partition, offset, .. } in acks {
            let left = end.saturating_duration_since(Instant::now());
            self.offsets.read_past(partition, offset, left).await?;
        }
        Ok(())
    }

    /// The record for a partition, and tombstones for what others have written for it in another way.
    fn records(
        &self,
        connector: &str,
        partition: &Map<String, Value>,
        offset: &Option<Map<String, Value>>,
    ) -> Vec<EncodedRecord> {
        let (key, value) = offsets::record(connector, partition, offset.as_ref());
        let others = self.offsets.read(|offsets| offsets.keys(connector, partition));
        let others = others.into_iter().filter(|other| *other != key).map(|other| self.record(other, None));
        let mut records: Vec<EncodedRecord> = others.collect();
        records.push(self.record(key.into(), value.map(Bytes::from)));
        records
    }

    fn record(&self, key: Bytes, value: Option<Bytes>) -> EncodedRecord {
        EncodedRecord {
            topic: Arc::clone(self.offsets.topic()),
            partition: partition_of(&key, self.partitions),
            key,
            value,
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    async fn publish(&self, records: Vec<EncodedRecord>, limit: Duration) -> Result<Vec<Ack>, kafka::Error> {
        let producer = Producer::new(&self.kafka, &ProducerOptions { queue_bytes: QUEUE_BYTES })?;
        // Without it the first record may wait a second for the producer to learn where to send it.
        producer.warm_up(vec![self.offsets.topic().to_string()], limit).await?;
        let send = |record| producer.send(record).map_err(|refused| refused.error);
        let deliveries = records.into_iter().map(send).collect::<Result<Vec<_>, _>>()?;
        try_join_all(deliveries).await
    }
}
