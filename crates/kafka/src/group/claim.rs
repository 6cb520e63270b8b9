//! Writes the claims: one record for each partition that was assigned, to that partition itself.
//!
//! The log orders claims as nobody else could. A claim is tried until it is written or its partition has been revoked,
//! each on its own: a partition without a leader holds up no other.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, Chain, Policy, Retry};
use model::EncodedRecord;

use super::holdings::Holdings;
use crate::{Error, Kafka, Producer, ProducerOptions};

/// Claims are small; one for every partition of a large topic fits.
const QUEUE_BYTES: usize = 1 << 20;
/// For as long as the partition is assigned.
const POLICY: Policy =
    Policy { first: Duration::from_millis(100), longest: Duration::from_secs(5), total: None };

/// The writer of one member's claims.
pub(super) struct Claims {
    kafka: Kafka,
    topic: Arc<str>,
    value: Bytes,
    producer: Mutex<Arc<Producer>>,
}

impl Claims {
    pub(super) fn new(kafka: &Kafka, topic: &str, member: &str) -> Result<Self, Error> {
        let value = serde_json::json!({ "worker": member }).to_string();
        let producer = Mutex::new(Arc::new(producer(kafka)?));
        Ok(Self { kafka: kafka.clone(), topic: topic.into(), value: value.into(), producer })
    }

    /// Connects, so that the first claim does not wait for it.
    pub(super) async fn warm_up(&self, limit: Duration) -> Result<(), Error> {
        self.producer().warm_up(vec![self.topic.to_string()], limit).await
    }

    /// Claims what is assigned until stopped.
    pub(super) async fn run(&self, holdings: &Holdings, stop: &CancellationToken) {
        let mut claims = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                wanted = holdings.wanted() => {
                    claims.extend(wanted.into_iter().map(|(partition, revoked)| {
                        self.claim(holdings, partition, revoked)
                    }));
                }
                Some(()) = claims.next() => {}
            }
        }
    }

    async fn claim(&self, holdings: &Holdings, partition: i32, revoked: CancellationToken) {
        let claimed = revoked.run_until_cancelled(self.write(holdings, partition)).await;
        if let Some(claim) = claimed {
            holdings.claimed(partition, &revoked, claim);
        }
    }

    /// The offset of the claim, however long that takes.
    async fn write(&self, holdings: &Holdings, partition: i32) -> i64 {
        let mut backoff = Backoff::new(POLICY, u64::from(partition.unsigned_abs()));
        loop {
            let producer = self.producer();
            let sent = producer.send(self.record(partition)).map_err(|refused| refused.error);
            let error = match sent {
                Err(error) => error,
                Ok(delivery) => match delivery.await {
                    Ok(ack) => return ack.offset,
                    Err(error) => error,
                },
            };
            let topic = &*self.topic;
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            holdings.failed(format!("claim partition {partition} of {topic}: {}", Chain(&error)));
            if backoff.is_fresh() {
                tracing::warn!(topic, partition, error = %error, source, "partition not claimed yet");
            } else {
                tracing::debug!(topic, partition, error = %error, source, "partition not claimed yet");
            }
            if let Some(fatal) = producer.fatal() {
                tracing::warn!(topic, error = %fatal, "claims need a new producer");
                self.replace(&producer);
            }
            // Also what only a person mends: once it is mended, the work must go on without a restart.
            sleep(backoff.next_wait(Retry::Later).unwrap_or(POLICY.longest)).await;
        }
    }

    fn record(&self, partition: i32) -> EncodedRecord {
        EncodedRecord {
            topic: Arc::clone(&self.topic),
            partition,
            // One key a partition: compaction leaves the last claim.
            key: partition.to_string().into(),
            value: Some(self.value.clone()),
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    fn producer(&self) -> Arc<Producer> {
        Arc::clone(&self.producer.lock())
    }

    /// A producer that failed for good is replaced once, by whichever claim notices first.
    fn replace(&self, failed: &Arc<Producer>) {
        let mut known = self.producer.lock();
        if Arc::ptr_eq(&known, failed) {
            match producer(&self.kafka) {
                Ok(new) => *known = Arc::new(new),
                Err(error) => tracing::warn!(error = %error, "no new producer for claims yet"),
            }
        }
    }
}

fn producer(kafka: &Kafka) -> Result<Producer, Error> {
    Producer::new(kafka, &ProducerOptions { queue_bytes: QUEUE_BYTES })
}
