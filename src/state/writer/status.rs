//! The status topic's writer.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use base::retry::{Backoff, BackoffPolicy, Retry};
use kafka::{Kafka, PlainWriter, partition_of};
use model::EncodedRecord;

use super::pending::{Pending, PendingValue};
use crate::state::statuses::{GENERATION_HEADER, RESTART_HEADER, Status, StatusKey, encode, encode_topic};

/// Limit on the bytes queued in the client.
const QUEUE_BYTES: usize = 4 << 20;
/// Backoff after failures.
const RETRY_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(100), longest: Duration::from_secs(5), total: None };

/// Writes the statuses of this worker's connectors and tasks. Cheap to clone. Its task ends with the last clone and drops what is
/// not written by then: call [`StatusWriter::flush`] first.
#[derive(Debug, Clone)]
pub struct StatusWriter {
    shared: Arc<PendingStatuses>,
    task: Arc<AbortOnDropHandle<()>>,
}

impl StatusWriter {
    /// Starts the task; connections are made in the background.
    ///
    /// # Errors
    /// The client cannot be built.
    pub fn start(kafka: &Kafka, topic: &str, partitions: i32) -> Result<Self, kafka::Error> {
        let writer = PlainWriter::new(kafka, QUEUE_BYTES);
        writer.connect()?;
        let shared = Arc::new(PendingStatuses::default());
        let task = StatusTask { writer, topic: topic.into(), partitions, shared: Arc::clone(&shared) };
        let task = tokio::spawn(task.run());
        Ok(Self { shared, task: Arc::new(AbortOnDropHandle::new(task)) })
    }

    /// Whether the writing task still runs; it ends only by a panic.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Reports the status of a connector or one of its tasks.
    pub fn put(&self, connector: &str, task: Option<u32>, status: &Status) {
        self.shared.put(StatusKey::instance(connector, task), value_of(status));
    }

    /// The same if the topic has a higher generation that is invalid: first writes a tombstone that makes every reader forget
    /// it, then the status.
    pub fn put_after_removal(&self, connector: &str, task: Option<u32>, status: &Status) {
        let value = value_of(status);
        self.shared
            .put_with(|pending| pending.put_after_removal(StatusKey::instance(connector, task), value));
    }

    /// Removes the status of a connector or one of its tasks, as the owner with this generation.
    pub fn remove(&self, connector: &str, task: Option<u32>, generation: i64) {
        let headers = vec![(GENERATION_HEADER, Bytes::from(generation.to_string()))];
        self.shared.put(StatusKey::instance(connector, task), PendingValue { value: None, headers });
    }

    /// Reports that a task of a connector writes to a topic.
    pub fn put_topic(&self, connector: &str, task: u32, topic: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let value = PendingValue {
            value: Some(encode_topic(connector, task, topic, now).into()),
            headers: Vec::new(),
        };
        self.shared.put(StatusKey::topic(connector, topic), value);
    }

    /// Removes a topic from those a connector writes to.
    pub fn remove_topic(&self, connector: &str, topic: &str) {
        self.shared
            .put(StatusKey::topic(connector, topic), PendingValue { value: None, headers: Vec::new() });
    }

    /// Waits until Kafka has everything that was put.
    ///
    /// # Errors
    /// Kafka did not have it within the limit.
    pub async fn flush(&self, limit: Duration) -> Result<(), kafka::Error> {
        let mut open = self.shared.open.subscribe();
        // The sender lives as long as `self`.
        let flushed = timeout(limit, open.wait_for(|open| *open == 0)).await.map(drop);
        flushed.map_err(|_| {
            let action = format!("write {} statuses", self.shared.pending.lock().len());
            kafka::Error::Deadline { action, limit }
        })
    }
}

/// A status in Kafka Connect's JSON; what Kafka Connect does not know is in a header.
fn value_of(status: &Status) -> PendingValue {
    let handled = status.handled_restart.map(|restart| (RESTART_HEADER, Bytes::from(restart.to_string())));
    PendingValue { value: Some(encode(status).into()), headers: handled.into_iter().collect() }
}

#[derive(Debug, Default)]
struct PendingStatuses {
    pending: Mutex<Pending>,
    /// Something was put.
    put: Notify,
    /// Number of keys that are not written yet.
    open: watch::Sender<usize>,
}

impl PendingStatuses {
    /// Changes what is pending, and publishes the number of keys left.
    fn change<T>(&self, change: impl FnOnce(&mut Pending) -> T) -> T {
        let mut pending = self.pending.lock();
        let result = change(&mut pending);
        // Under the lock, or two changes could publish their counts in the wrong order.
        self.open.send_replace(pending.len());
        result
    }

    fn put(&self, key: String, value: PendingValue) {
        self.put_with(|pending| pending.put(key, value));
    }

    fn put_with(&self, put: impl FnOnce(&mut Pending)) {
        self.change(put);
        self.put.notify_one();
    }
}

struct StatusTask {
    writer: PlainWriter,
    topic: Arc<str>,
    partitions: i32,
    shared: Arc<PendingStatuses>,
}

impl StatusTask {
    /// Writes until the task is aborted.
    async fn run(self) {
        let mut backoff = Backoff::new(RETRY_BACKOFF, u64::from(kafka::murmur2(self.topic.as_bytes())));
        loop {
            let error = self.write(&mut backoff).await;
            if backoff.is_fresh() {
                tracing::warn!(topic = &*self.topic, %error, "could not write a status; retrying");
            }
            if let Some(wait) = backoff.next_wait(Retry::Later) {
                sleep(wait).await;
            }
        }
    }

    /// Sends pending values until a write fails. Nothing is in flight when it returns.
    async fn write(&self, backoff: &mut Backoff) -> kafka::Error {
        let mut under_way = FuturesUnordered::new();
        let mut failed = None;
        loop {
            while failed.is_none()
                && let Some((key, number, value)) = self.shared.change(Pending::take)
            {
                match self.writer.send(self.record(&key, value)) {
                    Ok(delivery) => under_way.push(async move { (key, number, delivery.await) }),
                    Err(error) => failed = self.settle(key, number, Err(error)),
                }
            }
            if under_way.is_empty()
                && let Some(error) = failed
            {
                return error;
            }
            tokio::select! {
                Some((key, number, outcome)) = under_way.next() => {
                    let outcome = outcome.map(drop);
                    if outcome.is_ok() {
                        backoff.reset();
                    }
                    failed = self.settle(key, number, outcome).or(failed);
                }
                () = self.shared.put.notified(), if failed.is_none() => {}
            }
        }
    }

    /// Settles a write, or returns the failure after which writing pauses.
    fn settle(&self, key: String, number: u64, outcome: Result<(), kafka::Error>) -> Option<kafka::Error> {
        match outcome {
            Ok(()) => self.shared.change(|pending| pending.settle(&key, number)),
            Err(error) if error.refuses_record() => {
                tracing::error!(topic = &*self.topic, key, %error, "Kafka refused a status; dropped it");
                self.shared.change(|pending| pending.settle(&key, number));
            }
            Err(error) => {
                self.shared.change(|pending| pending.give_back(key));
                return Some(error);
            }
        }
        None
    }

    fn record(&self, key: &str, value: PendingValue) -> EncodedRecord {
        let partition = partition_of(key.as_bytes(), self.partitions);
        let record = EncodedRecord::new(&self.topic, partition, key.to_owned(), value.value);
        EncodedRecord { headers: value.headers, ..record }
    }
}
