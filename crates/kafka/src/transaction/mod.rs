//! One transactional writer per shard: a batch becomes visible as a whole or not at all, and the broker fences earlier owners.
//!
//! [`ShardProducers::take`] creates a producer with the shard's transactional id and initializes it; from then on the broker
//! refuses every earlier owner. [`ShardProducer::commit`] passes a batch to the shard's thread ([`producer_thread`]), which
//! begins a transaction, sends the records, waits for their delivery reports and commits.
//!
//! - A batch is committed once, aborted, or its outcome is *unknown*; the result always says which.
//! - Fencing ends the instance. A producer is rebuilt only after other failures, and only while the caller's lease says that
//!   it still owns the shard: an instance that was frozen must not fence its successor.
//! - After [`CommitError::Rebuilt`] the caller must read to the end again before it writes: the last batch may be in the log.
//! - If a connection was lost since the last transaction began, the next commit first checks that this transaction is visible
//!   in all its partitions; if not, it returns [`CommitError::Rebuilt`] without writing.
//! - Blocking calls run on the shard's thread; a call that hangs past the watchdog is abandoned together with its producer.
//!
//! Sometimes a transaction hangs: its coordinator considers it ended, but a partition never gets the marker. Taking over the
//! id does not end it, and consumers see nothing behind it, forever. [`ShardProducer::settle`] ends it: the id keeps its
//! producer id, so the end of a new transaction in the same partition ends the hanging one too. Whether to commit or abort it
//! follows from the batch's manifest and from the partitions the batch is in ([`hanging_transaction`]), so that a batch stays
//! whole whichever partitions got the marker.
//!
//! If the broker aborts a transaction that was open longer than `transaction.timeout.ms` (a frozen process), librdkafka
//! reports that as fencing too: it cannot distinguish the two, and ending the instance is right for both.

mod delivery_reports;
mod hanging_transaction;
mod producer_thread;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use hanging_transaction::{
    BatchNumbers, HangingTransactions, add_batch_headers, commit_records, find_hanging,
};
use producer_thread::{BatchOutcome, BatchPurpose, ProducerThread};

use base::{
    metrics,
    retry::{Backoff, BackoffPolicy, ErrorChain, Retry},
};
use model::EncodedRecord;

use super::{Error, MAX_RECORD_BYTES, TopicPartition, consumer, role::Isolation};
use crate::Kafka;

/// Time limit, number and pause of checks whether the last batch is visible in all its partitions.
const VISIBILITY_LIMIT: Duration = Duration::from_secs(5);
const VISIBILITY_TRIES: u32 = 5;
const VISIBILITY_PAUSE: Duration = Duration::from_millis(200);
/// How many producers settling tries.
const SETTLE_TRIES: u32 = 3;

/// Returns whether the caller still owns the shard. Checked before and after each attempt to create a producer.
pub type Lease = Arc<dyn Fn() -> bool + Send + Sync>;

/// Called on the shard's thread when all records of a batch are acknowledged, before the commit is sent. Tests block here to
/// freeze a writer inside its transaction.
pub type CommitHook = Arc<dyn Fn() + Send + Sync>;

/// Limits of shard producers.
#[derive(Clone)]
pub struct TransactionOptions {
    /// Bytes of records one producer may queue (default 40 MiB, so that the largest record fits). A larger batch is sent in
    /// parts, still as one transaction.
    pub queue_bytes: usize,
    /// `transaction.timeout.ms` (default 15 s): how long an abandoned transaction may block consumers.
    pub transaction_timeout: Duration,
    /// Time limit of one initialization before it is retried (default 30 s).
    pub init_limit: Duration,
    /// Most concurrent initializations (default 8): each makes the coordinator write.
    pub concurrent_inits: usize,
    /// How long a batch may take before its outcome counts as unknown and the producer is rebuilt (default 60 s, well above
    /// the transaction timeout).
    pub watchdog: Duration,
    /// How long to retry rebuilding a producer (default 60 s).
    pub rebuild_limit: Duration,
    /// See [`CommitHook`].
    pub before_commit: Option<CommitHook>,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self {
            queue_bytes: MAX_RECORD_BYTES + (8 << 20),
            transaction_timeout: Duration::from_secs(15),
            init_limit: Duration::from_secs(30),
            concurrent_inits: 8,
            watchdog: Duration::from_secs(60),
            rebuild_limit: Duration::from_secs(60),
            before_commit: None,
        }
    }
}

opaque_debug!(TransactionOptions);

/// Creates the shard producers of a worker.
#[derive(Debug, Clone)]
pub struct ShardProducers {
    kafka: Kafka,
    options: TransactionOptions,
    inits: Arc<Semaphore>,
}

impl ShardProducers {
    /// For all shards of this worker.
    #[must_use]
    pub fn new(kafka: Kafka, options: TransactionOptions) -> Self {
        let inits = Arc::new(Semaphore::new(options.concurrent_inits.max(1)));
        Self { kafka, options, inits }
    }

    /// Takes over a shard: once this returns, the broker refuses every earlier owner of the transactional id and has aborted their
    /// open transactions, except hanging ones ([`ShardProducer::settle`]). [`Error::LeaseEnded`] if the lease ended before that.
    pub async fn take(
        &self,
        transactional_id: impl Into<Arc<str>>,
        lease: Lease,
    ) -> Result<ShardProducer, Error> {
        let transactional_id = transactional_id.into();
        let worker = self.start(&transactional_id, &lease).await?;
        Ok(ShardProducer {
            shards: self.clone(),
            transactional_id,
            lease,
            worker: Some(worker),
            has_unseen_outcome: false,
            numbers: BatchNumbers::default(),
            last: None,
        })
    }

    /// Checks the lease after waiting for its turn and again after the initialization, since both take time: the thread is only
    /// started, and only kept, while the caller owns the shard.
    async fn start(&self, transactional_id: &Arc<str>, lease: &Lease) -> Result<ProducerThread, Error> {
        let stopped = || Error::Stopped { action: format!("initialize transactional id {transactional_id}") };
        let owned = || {
            if lease() {
                Ok(())
            } else {
                Err(Error::LeaseEnded { transactional_id: Arc::clone(transactional_id) })
            }
        };
        let turn = Arc::clone(&self.inits).acquire_owned().await.map_err(|_| stopped())?;
        owned()?;
        let worker = ProducerThread::start(&self.kafka, &self.options, transactional_id, turn).await?;
        // A new owner that took the id meanwhile is now fenced and will take it again.
        owned()?;
        Ok(worker)
    }
}

/// The positions of a committed batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommittedBatch {
    /// The offset after the last record in each partition; a batch has few partitions.
    next_offsets: Vec<(TopicPartition, i64)>,
    /// The broker did not return the offset of some records.
    is_partial: bool,
}

impl CommittedBatch {
    /// The offset after the batch's last record in this partition. `None` if the batch wrote nothing there or the broker returned
    /// no offset.
    #[must_use]
    pub fn next_offset(&self, topic: &str, partition: i32) -> Option<i64> {
        let found = self.next_offsets.iter().find(|((name, one), _)| **name == *topic && *one == partition);
        found.map(|(_, next)| *next)
    }

    /// Notes the offset of a record; negative if the broker did not return it.
    fn note_offset(&mut self, topic: &str, partition: i32, offset: i64) {
        if offset < 0 {
            self.is_partial = true;
            return;
        }
        match self.next_offsets.iter_mut().find(|((name, one), _)| **name == *topic && *one == partition) {
            Some((_, next)) => *next = (*next).max(offset + 1),
            None => self.next_offsets.push(((topic.into(), partition), offset + 1)),
        }
    }
}

/// The writer of a shard. See the module's head.
pub struct ShardProducer {
    shards: ShardProducers,
    transactional_id: Arc<str>,
    lease: Lease,
    /// `None` once this instance has ended.
    worker: Option<ProducerThread>,
    /// The outcome of the last batch was not seen, because the call that waited for it was dropped.
    has_unseen_outcome: bool,
    numbers: BatchNumbers,
    /// The positions of the last batch, if it was committed and nothing was done since.
    last: Option<CommittedBatch>,
}

impl ShardProducer {
    /// The id that names the shard.
    #[must_use]
    pub fn transactional_id(&self) -> &str {
        &self.transactional_id
    }

    /// Writes all of the batch or none of it, and returns once that is decided. Does nothing for an empty batch.
    ///
    /// If this call is dropped before it returns, the batch may or may not be committed; the next call then writes nothing and
    /// returns [`CommitError::Rebuilt`]. So does the first call after a lost connection, unless the last batch is visible
    /// everywhere.
    pub async fn commit(&mut self, mut batch: Vec<EncodedRecord>) -> Result<CommittedBatch, CommitError> {
        let action = format!("commit a batch with transactional id {}", self.transactional_id);
        if !self.has_unseen_outcome && !batch.is_empty() && !self.is_last_batch_visible().await {
            let source = Error::Disconnected { transactional_id: Arc::clone(&self.transactional_id) };
            return Err(self.rebuild(source).await);
        }
        add_batch_headers(&self.transactional_id, &mut self.numbers, &mut batch);
        self.hand_over(batch, BatchPurpose::Commit, &action).await
    }

    /// Whether the last batch is visible in all its partitions; checked only after a lost connection.
    async fn is_last_batch_visible(&mut self) -> bool {
        let Some(worker) = &mut self.worker else { return true };
        let Some(disconnects) = worker.new_disconnects() else { return true };
        // Records without a known offset cannot be checked.
        let Some(last) = self.last.as_ref().filter(|last| !last.is_partial) else { return false };
        let places: Vec<TopicPartition> = last.next_offsets.iter().map(|(place, _)| place.clone()).collect();
        for _ in 0..VISIBILITY_TRIES {
            let ends =
                consumer::ends(&self.shards.kafka, &places, Isolation::ReadCommitted, VISIBILITY_LIMIT).await;
            // Kafka is unreachable; rebuilding the producer waits for it.
            let Ok(ends) = ends else { return false };
            let is_seen =
                |(place, next): &(TopicPartition, i64)| ends.get(place).is_some_and(|(_, end)| end >= next);
            if last.next_offsets.iter().all(is_seen) {
                worker.mark_handled(disconnects);
                return true;
            }
            // Transactions of other writers in a shared partition end soon.
            sleep(VISIBILITY_PAUSE).await;
        }
        false
    }

    /// Ends transactions that an earlier owner of the id may have left hanging in these partitions: with a commit if a batch is
    /// complete in the log and no partition contradicts that, else with an abort. A partition without one gets a record that
    /// is aborted.
    ///
    /// Call it before the first [`ShardProducer::commit`], which would make the hanging records in its partitions visible.
    ///
    /// # Errors
    /// Another owner has taken the id, the lease has ended, or Kafka did not accept the transaction.
    pub async fn settle(&mut self, places: &[TopicPartition]) -> Result<(), Error> {
        let action = format!("end what was left open with transactional id {}", self.transactional_id);
        let (kafka, limit) = (self.shards.kafka.clone(), self.shards.options.watchdog);
        let HangingTransactions { commit: open, abort } =
            find_hanging(&kafka, &self.transactional_id, places, limit).await?;
        let committed: Vec<&TopicPartition> = open.keys().collect();
        let mut is_done = open.is_empty();
        if !is_done {
            let reported = |(topic, partition): &TopicPartition| format!("{topic}-{partition}");
            let places = open.keys().map(reported).collect::<Vec<_>>().join(", ");
            let id = &*self.transactional_id;
            tracing::warn!(
                id,
                places,
                "these partitions lack the commit marker of a hanging transaction; committing it again"
            );
        }
        let mut tries = 0;
        while !is_done {
            let records = commit_records(&kafka, &self.transactional_id, &open, tries == 0, limit).await?;
            let done = self.try_settling(BatchPurpose::CommitHanging, records, &action, &mut tries).await;
            is_done = done.inspect_err(|error| {
                let id = &*self.transactional_id;
                tracing::error!(id, ?committed, error = %ErrorChain(error), "cannot commit a hanging transaction; its records may be lost in these partitions");
            })?;
        }
        let record = |(topic, partition): &TopicPartition| {
            EncodedRecord::new(topic, *partition, self.transactional_id.to_string(), None)
        };
        let rest: Vec<EncodedRecord> = abort.iter().map(record).collect();
        let mut tries = 0;
        while !self.try_settling(BatchPurpose::AbortHanging, rest.clone(), &action, &mut tries).await? {}
        Ok(())
    }

    /// Whether it is done; if not, a new producer is ready for another attempt.
    async fn try_settling(
        &mut self,
        purpose: BatchPurpose,
        records: Vec<EncodedRecord>,
        action: &str,
        tries: &mut u32,
    ) -> Result<bool, Error> {
        *tries += 1;
        let may_try = *tries < SETTLE_TRIES;
        match self.hand_over(records, purpose, action).await {
            Ok(_) => Ok(true),
            Err(CommitError::Rebuilt { .. }) if may_try => Ok(false),
            // The hanging transaction was aborted with it, so its records must be written again.
            Err(CommitError::Aborted { source })
                if may_try && purpose == BatchPurpose::CommitHanging && source.retry() != Retry::Never =>
            {
                Ok(false)
            }
            Err(CommitError::Over { .. }) if !(self.lease)() => {
                Err(Error::LeaseEnded { transactional_id: Arc::clone(&self.transactional_id) })
            }
            Err(CommitError::Rebuilt { .. } | CommitError::Over { .. }) => {
                Err(Error::Deadline { action: action.to_owned(), limit: self.shards.options.watchdog })
            }
            Err(CommitError::Aborted { source } | CommitError::Fenced { source }) => Err(source),
        }
    }

    async fn hand_over(
        &mut self,
        batch: Vec<EncodedRecord>,
        purpose: BatchPurpose,
        action: &str,
    ) -> Result<CommittedBatch, CommitError> {
        let stopped = || Error::Stopped { action: action.to_owned() };
        let Some(worker) = &self.worker else { return Err(CommitError::Over { source: stopped() }) };
        if self.has_unseen_outcome {
            let source = Error::Stopped { action: format!("{action} (the previous call was dropped)") };
            return Err(self.rebuild(source).await);
        }
        if batch.is_empty() {
            return Ok(CommittedBatch::default());
        }

        let answered = worker.hand_over(batch, purpose);
        (self.has_unseen_outcome, self.last) = (true, None);
        let watchdog = self.shards.options.watchdog;
        let ended = match timeout(watchdog, answered).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => BatchOutcome::Broken(stopped()),
            Err(_) => BatchOutcome::Broken(Error::Deadline { action: action.to_owned(), limit: watchdog }),
        };
        let (counted, outcome) = match ended {
            BatchOutcome::Done(committed) => {
                self.last = (purpose == BatchPurpose::Commit).then(|| committed.clone());
                let counted = match purpose {
                    BatchPurpose::Commit => metrics::Transaction::Committed,
                    BatchPurpose::CommitHanging => metrics::Transaction::Completed,
                    BatchPurpose::AbortHanging => metrics::Transaction::Settled,
                };
                (counted, Ok(committed))
            }
            BatchOutcome::Aborted(source) => {
                (metrics::Transaction::Aborted, Err(CommitError::Aborted { source }))
            }
            BatchOutcome::Fenced(source) => {
                self.worker = None;
                (metrics::Transaction::Fenced, Err(CommitError::Fenced { source }))
            }
            BatchOutcome::Broken(source) => return Err(self.rebuild(source).await),
        };
        self.has_unseen_outcome = false;
        metrics::transaction_ended(counted);
        outcome
    }

    /// Creates a new producer in place of a failed one, as long as the lease allows it.
    async fn rebuild(&mut self, cause: Error) -> CommitError {
        // Ends the old one, or abandons it if it hangs.
        self.worker = None;
        let policy = BackoffPolicy {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
            total: Some(self.shards.options.rebuild_limit),
        };
        let mut backoff = Backoff::new(policy, u64::from(super::murmur2(self.transactional_id.as_bytes())));
        tracing::warn!(transactional_id = &*self.transactional_id, error = %cause, "rebuilding the shard's producer");
        loop {
            let error = match self.shards.start(&self.transactional_id, &self.lease).await {
                Err(Error::LeaseEnded { .. }) => return CommitError::Over { source: cause },
                Ok(worker) => {
                    self.worker = Some(worker);
                    self.has_unseen_outcome = false;
                    metrics::transaction_ended(metrics::Transaction::Rebuilt);
                    return CommitError::Rebuilt { source: cause };
                }
                Err(error) => error,
            };
            match backoff.next_wait(error.retry()) {
                Some(wait) => sleep(wait).await,
                None => return CommitError::Over { source: error },
            }
        }
    }
}

opaque_debug!(ShardProducer);

/// Why a batch was not, or perhaps not, committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// None of the batch is visible, and the producer is still usable: the batch may be retried if [`CommitError::retry`]
    /// allows. If the broker refused a record, the next commit writes nothing and returns [`CommitError::Rebuilt`].
    #[error("batch aborted, none of it is visible")]
    Aborted {
        /// What went wrong.
        #[source]
        source: Error,
    },
    /// Whether the batch is visible is unknown. A new producer is ready; read to the end and decide again before the next
    /// commit.
    #[error("outcome of the batch unknown, producer rebuilt")]
    Rebuilt {
        /// What went wrong.
        #[source]
        source: Error,
    },
    /// Another owner has the shard. None of the batch is visible, and this instance has ended.
    #[error("batch refused, the shard has a newer owner")]
    Fenced {
        /// What the broker said.
        #[source]
        source: Error,
    },
    /// The producer failed and was not rebuilt, because the lease had ended or creating it failed. Whether the batch is
    /// visible is unknown, and this instance has ended.
    #[error("outcome of the batch unknown, the shard must be taken again")]
    Over {
        /// What went wrong.
        #[source]
        source: Error,
    },
}

impl CommitError {
    /// Whether the same [`ShardProducer`] may be used again: after [`CommitError::Aborted`] with the same batch, after
    /// [`CommitError::Rebuilt`] once the topics were read to the end.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Aborted { source } => source.retry(),
            Self::Rebuilt { .. } => Retry::Later,
            Self::Fenced { .. } | Self::Over { .. } => Retry::Never,
        }
    }
}

#[cfg(test)]
mod tests;
