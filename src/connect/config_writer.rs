//! Writes to the config topic, one at a time across all workers.
//!
//! ```text
//! write ─▶ turn among the edits of this worker ─▶ FencedWriter: take the id and read to the end unless the id is held,
//!                                                               decide, commit, read back
//! ```
//!
//! - The transactional id is that of the topic, not of a group: every process that writes this topic is fenced by the next one. The
//!   first write takes it (initTransactions) and keeps it until another process does.
//! - Edits of one worker take turns in order of arrival. Each decides on the state that the edits before it produced, and its
//!   records, with the offsets that it edits, are one transaction.
//! - Every call returns within its limit, except `read_to_end`, which may take up to twice as long. A call that never got its turn
//!   reports why the call before it could not write.
//!
//! On failure nothing is written, unless [`Error::Kafka`] says that the outcome is unknown.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, timeout_at},
};

pub use kafka::WriteError as Error;
use kafka::{
    FencedWriter, Kafka, LastWriteError, ReadLimits, ShardProducers, TopicPartition, TransactionOptions,
    WriterOptions,
};
use model::EncodedRecord;

use crate::state::{
    Table,
    configs::{Configs, Write},
};

/// Limit for one attempt to take the id: an abandoned attempt must not delay the next one for long.
const INIT_LIMIT: Duration = Duration::from_secs(8);
/// How long a write waits for open transactions that the broker may have left hanging.
const WRITE_TRANSACTION_WAIT: Duration = Duration::from_millis(100);
/// How long [`ConfigWriter::read_to_end`] waits for an open transaction before it takes the id: many times a normal write.
const READ_TRANSACTION_WAIT: Duration = Duration::from_secs(3);
/// The config topic has one partition.
const PARTITION: i32 = 0;

/// Writes the config topic. Cheap to clone.
#[derive(Clone)]
pub struct ConfigWriter {
    writer: Arc<Mutex<FencedWriter<Configs>>>,
    transactional_id: Arc<str>,
    /// The last write error, for callers whose time ends while they wait for their turn.
    trouble: LastWriteError,
}

/// The records of an edit. Without a record for the config topic nothing is written.
#[derive(Debug, Default)]
pub struct Changes {
    /// Records of the config topic.
    pub writes: Vec<Write>,
    /// Records of other topics, in the same transaction.
    pub other_records: Vec<EncodedRecord>,
}

impl From<Vec<Write>> for Changes {
    fn from(writes: Vec<Write>) -> Self {
        Self { writes, other_records: Vec::new() }
    }
}

impl ConfigWriter {
    /// For the topic that this table follows. `other_partitions`: the partitions of other topics that edits write to. Takes the
    /// transactional id at the first write.
    #[must_use]
    pub fn new(kafka: &Kafka, configs: Table<Configs>, other_partitions: Vec<TopicPartition>) -> Self {
        let options = TransactionOptions { init_limit: INIT_LIMIT, ..TransactionOptions::default() };
        Self::with_options(kafka, configs, other_partitions, options)
    }

    /// As [`ConfigWriter::new`], with other limits.
    #[must_use]
    pub fn with_options(
        kafka: &Kafka,
        configs: Table<Configs>,
        other_partitions: Vec<TopicPartition>,
        options: TransactionOptions,
    ) -> Self {
        let transactional_id: Arc<str> = format!("{}-arbiter", configs.topic()).into();
        let owned = WriterOptions {
            transactional_id: Arc::clone(&transactional_id),
            lease: Arc::new(|| true),
            partitions: vec![PARTITION],
            other_partitions,
            transaction_wait: WRITE_TRANSACTION_WAIT,
            takes_back: true,
            must_read_back: true,
        };
        let writer = FencedWriter::new(configs, ShardProducers::new(kafka.clone(), options), owned);
        let trouble = Arc::clone(writer.trouble());
        Self { writer: Arc::new(Mutex::new(writer)), transactional_id, trouble }
    }

    /// Writes the records that `decide` returns for the state after all earlier edits; writes nothing if it returns none. `decide`
    /// may be called several times. Returns within the limit, once this worker has read the write back.
    ///
    /// # Errors
    /// `decide` refused, other writers kept interfering, or Kafka did not answer.
    pub async fn write<T, R>(
        &self,
        limit: Duration,
        decide: impl Fn(&Configs) -> Result<(T, Vec<Write>), R> + Send + Sync,
    ) -> Result<T, Error<R>> {
        self.change(limit, move |configs| decide(configs).map(|(result, writes)| (result, writes.into())))
            .await
    }

    /// As [`ConfigWriter::write`], with records of other topics in the same transaction; waits until those are committed.
    ///
    /// # Errors
    /// As [`ConfigWriter::write`].
    pub async fn change<T, R>(
        &self,
        limit: Duration,
        decide: impl Fn(&Configs) -> Result<(T, Changes), R> + Send + Sync,
    ) -> Result<T, Error<R>> {
        let end = Instant::now() + limit;
        let mut writer = self.turn(end, limit).await.map_err(Error::Kafka)?;
        let topic = Arc::clone(writer.table().topic());
        let decide = |configs: &Configs| {
            let (result, changes) = decide(configs)?;
            Ok((result, records(&topic, changes)))
        };
        writer.write(end, decide).await
    }

    /// Takes the id again, which ends its transactions that the broker left hanging in the config topic or another one.
    ///
    /// # Errors
    /// Other writers kept interfering, or Kafka did not answer.
    pub async fn settle(&self, limit: Duration) -> Result<(), Error<Infallible>> {
        let end = Instant::now() + limit;
        let mut writer = self.turn(end, limit).await.map_err(Error::Kafka)?;
        writer.settle(end).await
    }

    /// Reads the config topic to its end, even if the broker left a transaction hanging in it. Everything committed after that
    /// transaction is invisible until the holder of the transactional id ends it, so an empty edit takes the id. Takes at most
    /// `limit` to read, and as long again to end a hanging transaction.
    ///
    /// # Errors
    /// Kafka did not answer within the limit, or a transaction under another id hides the end; the error names it. It can fail
    /// if another worker does the same at this moment: retry.
    pub(crate) async fn read_to_end(
        &self,
        configs: &Table<Configs>,
        limit: Duration,
    ) -> Result<(), kafka::Error> {
        let transaction_wait = READ_TRANSACTION_WAIT.min(limit / 2);
        let waits = ReadLimits { other_partitions: &[], transaction_wait, limit };
        match configs.read_partitions_to_end(&[PARTITION], waits).await {
            Err(kafka::Error::Undecided { .. }) => {}
            other => return other,
        }
        let nothing = |_: &Configs| Ok::<_, Infallible>(((), Vec::new()));
        match self.write(limit, nothing).await.map_err(|error| error.passing(limit)) {
            Ok(()) => Ok(()),
            Err(Ok(error)) => Err(error),
            Err(Err(never)) => match never {},
        }
    }

    /// Waits until the edits before this one are written.
    async fn turn(
        &self,
        end: Instant,
        limit: Duration,
    ) -> Result<MutexGuard<'_, FencedWriter<Configs>>, kafka::Error> {
        timeout_at(end, self.writer.lock()).await.map_err(|_| {
            let action = format!("write with transactional id {}", self.transactional_id);
            let late = || kafka::Error::Deadline { action, limit };
            self.trouble.lock().clone().unwrap_or_else(late)
        })
    }
}

impl fmt::Debug for ConfigWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigWriter")
            .field("transactional_id", &self.transactional_id)
            .finish_non_exhaustive()
    }
}

/// Puts records of other topics first: the last record of the config topic ends the transaction.
fn records(topic: &Arc<str>, changes: Changes) -> Vec<EncodedRecord> {
    if changes.writes.is_empty() {
        return Vec::new();
    }
    let record = |(key, value): Write| {
        EncodedRecord::new(topic, PARTITION, key, value.map(|value| Bytes::from(value.to_string())))
    };
    let mut records = changes.other_records;
    records.extend(changes.writes.into_iter().map(record));
    records
}
