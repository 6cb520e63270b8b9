//! The one writer of a connector's subscriptions.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use base::retry::Retry;
use kafka::{Failure, Lease, ShardProducer, Shards, Waits};
use model::EncodedRecord;

use super::Handle;
use crate::{
    webhooks::subscriptions::Change,
    worker::state::{configs::WRITE_HEADER, write_id},
};

/// How long reading the topic to its end may take.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Transactions of others in the same partitions that are open for longer were left hanging.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the own tail may take to read what was committed.
const READ_BACK: Duration = Duration::from_secs(30);
/// How often a write is tried that passes.
const TRIES: u32 = 3;
/// Wait between two.
const AGAIN: Duration = Duration::from_millis(200);

/// Writes what is said of a connector's subscriptions, as long as nobody has come after it.
///
/// - A write is one transaction, and has been read back when it is done: what is read after it holds it.
/// - Whoever takes the same connector's writer fences this one; its next write fails, and that is before its next call.
/// - A write whose outcome is unknown is written again: keys have one writer, so that twice is once.
/// - What people decide, by another way to the topic, has keys of its own.
pub struct Writer {
    handle: Handle,
    connector: Arc<str>,
    producer: ShardProducer,
}

impl Writer {
    pub(super) async fn take(
        handle: Handle,
        connector: &str,
        shards: &Shards,
        lease: Lease,
    ) -> Result<Self, kafka::Error> {
        let id = format!("tributary-{}-subscriptions-{connector}", handle.prefix());
        let producer = shards.take(id, lease).await?;
        let mut writer = Self { handle, connector: connector.into(), producer };
        writer.settle().await?;
        Ok(writer)
    }

    /// Writes these at once.
    ///
    /// # Errors
    /// Another has come, or Kafka does not take it.
    pub async fn commit(&mut self, changes: &[Change]) -> Result<(), Failure> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut tries = 0;
        loop {
            let id = write_id();
            let records: Vec<EncodedRecord> =
                changes.iter().map(|change| self.encoded(change, &id)).collect();
            let count = records.len();
            let Err(error) = self.producer.commit(records).await else {
                return self.read_back(&id, count).await;
            };
            tries += 1;
            match error {
                Failure::Rebuilt { .. } if tries < TRIES => {
                    self.settle().await.map_err(|source| Failure::Over { source })?;
                }
                Failure::Aborted { source } if source.retry() != Retry::Never && tries < TRIES => {
                    tracing::debug!(connector = &*self.connector, error = %source, "a write to the ledger is tried again");
                    sleep(AGAIN).await;
                }
                error => return Err(error),
            }
        }
    }

    /// Reads everything that any writer has left.
    async fn settle(&mut self) -> Result<(), kafka::Error> {
        let all: Vec<i32> = (0..self.handle.tail.partitions()).collect();
        let waits = Waits { also: &[], patience: PATIENCE, limit: READ_LIMIT };
        self.handle.tail.read_settled(&mut self.producer, &all, waits).await
    }

    async fn read_back(&self, id: &Bytes, records: usize) -> Result<(), Failure> {
        let tail = &self.handle.tail;
        let reading = async {
            let mut changes = tail.changes();
            while !tail.read(|book| book.has_write(id, records)) && changes.changed().await.is_ok() {}
        };
        let late = |_| {
            let action = format!("read back what was written to {}", tail.topic());
            Failure::Over { source: kafka::Error::Deadline { action, limit: READ_BACK } }
        };
        timeout(READ_BACK, reading).await.map_err(late)
    }

    fn encoded(&self, change: &Change, id: &Bytes) -> EncodedRecord {
        let mut record = self.handle.encoded(&change.key(&self.connector), change.value().as_ref());
        record.headers.push((WRITE_HEADER, id.clone()));
        record
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("connector", &self.connector).finish_non_exhaustive()
    }
}
