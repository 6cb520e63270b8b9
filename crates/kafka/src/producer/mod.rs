//! The idempotent producer: send a record, await the broker's acknowledgement.
//!
//! Records go through librdkafka's bounded queue to the broker with `acks=all`; each delivery report completes its
//! [`DeliveryFuture`] directly on the client's poll thread.
//!
//! - Within a partition records reach the log in the order of [`Producer::send`], without gaps or duplicates, as long as the
//!   producer lives.
//! - There is no message timeout: a record is dropped only by [`Producer::purge`], by dropping the producer, or when the
//!   broker refuses it. Callers set their own deadlines; dropping a [`DeliveryFuture`] does not cancel the record.
//! - No function blocks an async thread, nor does dropping the producer.
//!
//! On failure: a full queue returns the record at once; a lost broker only delays; a [fatal](Producer::fatal) producer must be
//! rebuilt, and its open deliveries fail with an error that says whether the record may be in the log.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use rdkafka::{
    Message,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext},
};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use model::EncodedRecord;

use crate::Kafka;
use crate::{
    Error, Persisted,
    client::{Settings, ask_until_answered, blocking},
    context::{ClientCallbacks, purge_everything},
    poll_thread::PolledProducer,
    role::ClientRole,
    sys,
};

/// Limits of a producer.
#[derive(Debug, Clone)]
pub struct ProducerOptions {
    /// Bytes of records that may be queued (default 64 MiB); above it [`Producer::send`] returns records.
    pub queue_bytes: usize,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self { queue_bytes: 64 << 20 }
    }
}

type ProducerClient = PolledProducer<ClientCallbacks>;

/// See the module's head. Share it behind an `Arc`.
pub struct Producer {
    client: Arc<ProducerClient>,
    /// Holds a token for every record without a report.
    outstanding: TaskTracker,
}

impl Producer {
    /// Creates the client; connections are made in the background.
    pub fn new(kafka: &Kafka, options: &ProducerOptions) -> Result<Self, Error> {
        let settings = Settings::new(kafka, &ClientRole::Producer { queue_bytes: options.queue_bytes })?;
        let outstanding = TaskTracker::new();
        // Only a closed tracker can be waited for; it still issues tokens.
        outstanding.close();
        Ok(Self { client: settings.create(())?, outstanding })
    }

    /// Connects and fetches the metadata of these topics, which would delay the first record by up to 1 s.
    pub async fn warm_up(&self, topics: Vec<String>, limit: Duration) -> Result<(), Error> {
        let producer = Arc::clone(&self.client);
        let fetch = move || {
            topics.iter().try_for_each(|topic| {
                ask_until_answered(limit, |step| {
                    let fetched = producer.client().fetch_metadata(Some(topic), step).map(drop);
                    fetched.map_err(|error| producer.context().failed(format!("find topic {topic}"), error))
                })
            })
        };
        blocking("find topics", fetch).await?
    }

    /// Queues a record without waiting. Records of one partition keep the order of these calls.
    pub fn send(&self, record: EncodedRecord) -> Result<DeliveryFuture, SendError> {
        let (sender, reported) = oneshot::channel();
        let report = Box::new(DeliveryReport { sender, token: self.outstanding.token() });
        let Err((error, _)) = self.client.send(base_record(&record, report)) else {
            let (topic, partition) = (Arc::clone(&record.topic), record.partition);
            return Ok(DeliveryFuture { reported, topic, partition });
        };
        let error = Error::delivery(&record.topic, record.partition, Persisted::No, error);
        Err(SendError { record: Box::new(record), error })
    }

    /// Records that were queued and not yet reported.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Waits until every queued record is reported, whatever the result.
    pub async fn flush(&self, limit: Duration) -> Result<(), Error> {
        let action = || format!("flush {} records", self.outstanding());
        timeout(limit, self.outstanding.wait()).await.map_err(|_| Error::Deadline { action: action(), limit })
    }

    /// Drops every record that is not yet reported. Those in flight are reported as [`Persisted::Possibly`].
    pub fn purge(&self) {
        self.client.purge(purge_everything());
    }

    /// The fatal error, after which this producer sends nothing; the owner must build a new one.
    #[must_use]
    pub fn fatal(&self) -> Option<Error> {
        let (code, reason) = self.client.client().fatal_error()?;
        let action = format!("publish with this producer ({reason})");
        // The code alone may look harmless, so the error gets the code Fatal.
        tracing::debug!(?code, reason, "producer failed fatally");
        Some(Error::request(action, KafkaError::Global(RDKafkaErrorCode::Fatal)))
    }
}

opaque_debug!(Producer);

/// All in-sync replicas have the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Partition it is in.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
    /// Its timestamp in milliseconds since 1970, if the broker returned it.
    pub timestamp_ms: Option<i64>,
}

/// Resolves when the record is acknowledged or dropped. Dropping it cancels the report, not the record.
#[derive(Debug)]
#[must_use = "a record counts as published only when its delivery says so"]
pub struct DeliveryFuture {
    reported: oneshot::Receiver<Result<Ack, Error>>,
    topic: Arc<str>,
    partition: i32,
}

impl Future for DeliveryFuture {
    type Output = Result<Ack, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let report = ready!(Pin::new(&mut self.reported).poll(context));
        Poll::Ready(report.unwrap_or_else(|_| {
            // The client closed without a report for this record.
            Err(Error::delivery(&self.topic, self.partition, Persisted::Possibly, KafkaError::Canceled))
        }))
    }
}

/// A record that was not queued, and why.
#[derive(Debug, thiserror::Error)]
#[error("queue a record for publication")]
pub struct SendError {
    /// The record, for a retry or a dead letter.
    pub record: Box<EncodedRecord>,
    /// Why: [`Error::retry`] distinguishes a full queue from a record that never fits.
    #[source]
    pub error: Error,
}

/// The record for librdkafka, which copies key and value; headers are copied here.
pub(super) fn base_record<D: rdkafka::IntoOpaque>(
    record: &EncodedRecord,
    opaque: D,
) -> BaseRecord<'_, [u8], [u8], D> {
    let headers = (!record.headers.is_empty()).then(|| {
        record
            .headers
            .iter()
            .fold(OwnedHeaders::new_with_capacity(record.headers.len()), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value.as_ref()) })
            })
    });
    BaseRecord {
        topic: &record.topic,
        partition: Some(record.partition),
        payload: record.value.as_deref(),
        key: Some(record.key.as_ref()),
        timestamp: record.timestamp_ms,
        headers,
        delivery_opaque: opaque,
    }
}

/// The state of a record until its delivery report.
pub(super) struct DeliveryReport {
    sender: oneshot::Sender<Result<Ack, Error>>,
    /// Counts the record as outstanding for as long as it exists.
    token: TaskTrackerToken,
}

impl ProducerContext for ClientCallbacks {
    type DeliveryOpaque = Box<DeliveryReport>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Box<DeliveryReport>) {
        let DeliveryReport { sender, token } = *report;
        // Before the caller knows: it may count outstanding records then.
        drop(token);
        // The caller may have dropped its future.
        sender.send(outcome(result)).ok();
    }
}

/// Converts a delivery report.
pub(super) fn outcome(report: &DeliveryResult<'_>) -> Result<Ack, Error> {
    match report {
        Ok(message) => Ok(Ack {
            partition: message.partition(),
            offset: message.offset(),
            timestamp_ms: message.timestamp().to_millis(),
        }),
        Err((error, message)) => {
            let persisted = sys::persisted(message);
            Err(Error::delivery(message.topic(), message.partition(), persisted, error.clone()))
        }
    }
}

#[cfg(test)]
mod tests;
