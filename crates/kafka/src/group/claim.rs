//! Writes claims: one record per assigned partition, to that partition itself.
//!
//! The log orders the claims. Each claim is retried until it is written or its partition is revoked, independently of the
//! others: a partition without a leader delays no other.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use model::EncodedRecord;

use super::ownership::Ownership;
use crate::{Error, Kafka, PlainWriter};

/// Enough for one small claim per partition of a large topic.
const QUEUE_BYTES: usize = 1 << 20;
/// Retries as long as the partition is assigned.
const CLAIM_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(100), longest: Duration::from_secs(5), total: None };

/// Writes one member's claims.
pub(super) struct ClaimWriter {
    writer: PlainWriter,
    topic: Arc<str>,
    value: Bytes,
}

impl ClaimWriter {
    pub(super) fn new(kafka: &Kafka, topic: &str, member: &str) -> Result<Self, Error> {
        let value = serde_json::json!({ "worker": member }).to_string();
        let writer = PlainWriter::new(kafka, QUEUE_BYTES);
        writer.connect()?;
        Ok(Self { writer, topic: topic.into(), value: value.into() })
    }

    /// Connects in advance, so that the first claim is fast.
    pub(super) async fn warm_up(&self, limit: Duration) -> Result<(), Error> {
        self.writer.warm_up(vec![self.topic.to_string()], limit).await
    }

    /// Claims assigned partitions until stopped.
    pub(super) async fn run(&self, ownership: &Ownership, stop: &CancellationToken) {
        let mut claims = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                unclaimed = ownership.unclaimed_partitions() => {
                    claims.extend(unclaimed.into_iter().map(|(partition, revoked)| {
                        self.claim(ownership, partition, revoked)
                    }));
                }
                Some(()) = claims.next() => {}
            }
        }
    }

    async fn claim(&self, ownership: &Ownership, partition: i32, revoked: CancellationToken) {
        let claimed = revoked.run_until_cancelled(self.write(ownership, partition)).await;
        if let Some(claim) = claimed {
            ownership.claimed(partition, &revoked, claim);
        }
    }

    /// Writes a claim, retrying until it succeeds, and returns its offset.
    async fn write(&self, ownership: &Ownership, partition: i32) -> i64 {
        let mut backoff = Backoff::new(CLAIM_BACKOFF, u64::from(partition.unsigned_abs()));
        loop {
            let error = match self.writer.send(self.record(partition)) {
                Err(error) => error,
                Ok(delivery) => match delivery.await {
                    Ok(ack) => return ack.offset,
                    Err(error) => error,
                },
            };
            let topic = &*self.topic;
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            ownership.note_failure(format!("claim partition {partition} of {topic}: {}", ErrorChain(&error)));
            if backoff.is_fresh() {
                tracing::warn!(topic, partition, error = %error, source, "cannot claim the partition; retrying");
            } else {
                tracing::debug!(topic, partition, error = %error, source, "cannot claim the partition; retrying");
            }
            // Permanent errors are retried too: once a person has fixed the cause, work must continue without a restart.
            sleep(backoff.next_wait(Retry::Later).unwrap_or(CLAIM_BACKOFF.longest)).await;
        }
    }

    fn record(&self, partition: i32) -> EncodedRecord {
        // One key per partition: compaction keeps the last claim.
        EncodedRecord::new(&self.topic, partition, partition.to_string(), Some(self.value.clone()))
    }
}
