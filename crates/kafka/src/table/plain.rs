//! Writes records that need no fencing, under keys that only this writer uses.
//!
//! Records are acknowledged by all in-sync replicas, in the order of the calls within a partition. On failure the caller
//! retries; the next call replaces a fatally failed producer.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use model::EncodedRecord;

use crate::{Ack, DeliveryFuture, Error, Kafka, Producer, ProducerOptions};

/// See the module's head.
pub struct PlainWriter {
    kafka: Kafka,
    options: ProducerOptions,
    producer: Mutex<Option<Arc<Producer>>>,
}

impl PlainWriter {
    /// Creates the client with the first record. `queue_bytes` bounds its queue.
    #[must_use]
    pub fn new(kafka: &Kafka, queue_bytes: usize) -> Self {
        Self { kafka: kafka.clone(), options: ProducerOptions { queue_bytes }, producer: Mutex::default() }
    }

    /// Creates the client now.
    ///
    /// # Errors
    /// The client cannot be created.
    pub fn connect(&self) -> Result<(), Error> {
        self.producer().map(drop)
    }

    /// Connects in advance, so that the first record of these topics is fast.
    ///
    /// # Errors
    /// Kafka did not answer within the limit.
    pub async fn warm_up(&self, topics: Vec<String>, limit: Duration) -> Result<(), Error> {
        self.producer()?.warm_up(topics, limit).await
    }

    /// Queues a record without waiting.
    ///
    /// # Errors
    /// The queue is full, the record never fits, or the client cannot be created.
    pub fn send(&self, record: EncodedRecord) -> Result<DeliveryFuture, Error> {
        self.producer()?.send(record).map_err(|refused| refused.error)
    }

    /// Writes a record and waits for the acknowledgement.
    ///
    /// # Errors
    /// Kafka did not acknowledge it before the deadline. It may still be in the log.
    pub async fn write(&self, record: EncodedRecord, end: Instant) -> Result<Ack, Error> {
        let action = format!("write to {}", record.topic);
        let limit = end.saturating_duration_since(Instant::now());
        let delivery = self.send(record)?;
        timeout_at(end, delivery).await.unwrap_or(Err(Error::Deadline { action, limit }))
    }

    /// Drops the client with all its unwritten records.
    pub fn abandon(&self) {
        *self.producer.lock() = None;
    }

    /// Records without a report.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.producer.lock().as_ref().map_or(0, |producer| producer.outstanding())
    }

    fn producer(&self) -> Result<Arc<Producer>, Error> {
        let mut place = self.producer.lock();
        if let Some(producer) = &*place {
            match producer.fatal() {
                None => return Ok(Arc::clone(producer)),
                Some(error) => tracing::warn!(%error, "producer failed fatally; rebuilding it"),
            }
        }
        let producer = Arc::new(Producer::new(&self.kafka, &self.options)?);
        *place = Some(Arc::clone(&producer));
        Ok(producer)
    }
}

opaque_debug!(PlainWriter);
