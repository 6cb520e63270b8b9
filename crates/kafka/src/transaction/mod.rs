//! One writer per shard: batches that are visible as a whole or not at all, refused once another owner has come.
//!
//! [`ShardProducers::take`] builds a producer with the shard's transactional id and initializes it, from which moment the broker
//! refuses every earlier owner. [`ShardProducer::commit`] hands a batch to the shard's thread ([`producer_thread`]), which begins a
//! transaction, sends the records, waits for their reports and commits.
//!
//! - A batch is committed once, aborted, or *unknown*; the caller is always told which.
//! - `Fenced` ends the instance. A producer is built anew only after failures that are not fencing, and only while the
//!   caller's lease says that the shard is still its own: a frozen instance that comes back must not fence its successor.
//! - After [`CommitError::Rebuilt`] nothing may be written before what was read has been read to the end again: the last batch
//!   may be in the log.
//! - Who has lost a connection since its last transaction began writes nothing before it has seen that one in all its partitions;
//!   where that is not so it is a [`CommitError::Rebuilt`] too.
//! - Calls that block run on the shard's thread; one that hangs past the watchdog is left behind with its producer.
//!
//! Now and then a broker loses track of a transaction: its coordinator calls it ended, and partitions never hear of it.
//! Taking the id over does not end it, and readers see nothing behind it for ever. [`ShardProducer::settle`] does: the id has
//! kept its producer's number, so that the end of a new transaction in the same partition ends the old one as well. Whether
//! that one is committed or aborted follows from what the batch says of itself and from where it is ([`hanging_transaction`]), so that a
//! batch stays whole whichever partitions were told.
//!
//! A transaction the broker itself aborted because it was open longer than `transaction.timeout.ms` (a frozen process) is
//! reported as fencing too: librdkafka cannot tell the two apart, and ending the instance is right for both.

mod delivery_reports;
mod hanging_transaction;
mod producer_thread;

use std::{fmt, sync::Arc, time::Duration};

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

/// How long one look whether the last batch is everywhere may take, how often that is looked for, and how far apart.
const VISIBILITY_LIMIT: Duration = Duration::from_secs(5);
const VISIBILITY_TRIES: u32 = 5;
const VISIBILITY_PAUSE: Duration = Duration::from_millis(200);
/// How often settling is tried with a new producer.
const SETTLE_TRIES: u32 = 3;

/// Says whether the shard is still the caller's. Asked before and after each attempt to build a producer.
pub type Lease = Arc<dyn Fn() -> bool + Send + Sync>;

/// Called on the shard's thread when all records of a batch are acknowledged and the commit is about to be sent. A test
/// blocks here to freeze a writer inside its batch.
pub type CommitHook = Arc<dyn Fn() + Send + Sync>;

/// What shard producers may use.
#[derive(Clone)]
pub struct Options {
    /// Bytes of records one producer may queue (default 40 MiB, so that the largest record fits). A larger batch goes through in
    /// parts, still as one transaction.
    pub queue_bytes: usize,
    /// `transaction.timeout.ms` (default 15 s): how long an abandoned batch may hold back readers.
    pub transaction_timeout: Duration,
    /// The longest one initialization may take before it is tried again (default 30 s).
    pub init_limit: Duration,
    /// Producers that may initialize at once (default 8): each makes the coordinator write.
    pub concurrent_inits: usize,
    /// How long a batch may take before its outcome counts as unknown and the producer is built anew (default 60 s, well
    /// above the transaction's own timeout).
    pub watchdog: Duration,
    /// How long to go on trying to build a producer anew (default 60 s).
    pub rebuild_limit: Duration,
    /// See [`CommitHook`].
    pub before_commit: Option<CommitHook>,
}

impl Default for Options {
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

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").finish_non_exhaustive()
    }
}

/// Makes the shard producers of a worker.
#[derive(Debug, Clone)]
pub struct ShardProducers {
    kafka: Kafka,
    options: Options,
    inits: Arc<Semaphore>,
}

impl ShardProducers {
    /// For all shards this worker may come to own.
    #[must_use]
    pub fn new(kafka: Kafka, options: Options) -> Self {
        let inits = Arc::new(Semaphore::new(options.concurrent_inits.max(1)));
        Self { kafka, options, inits }
    }

    /// Takes a shard over: once this returns, the broker refuses every earlier owner of the transactional id, and what they left open is
    /// aborted, but for what the broker has lost track of ([`ShardProducer::settle`]). [`Error::LeaseEnded`] if the lease ended before that.
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

    /// Asks the lease once its turn has come and once more at the end, since both take their time: a worker is only
    /// started, and only kept, while the shard is the caller's.
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
        // A successor that has come meanwhile is fenced now, and comes again.
        owned()?;
        Ok(worker)
    }
}

/// What is known of a batch that was committed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommittedBatch {
    /// The offset behind the last record in each partition; a batch has few.
    behind: Vec<(TopicPartition, i64)>,
    /// There are records of which the broker did not say where they are.
    is_partial: bool,
}

impl CommittedBatch {
    /// The offset behind the last record of the batch in this partition: whoever has read up to it has all of the batch that is
    /// there. `None` where the batch wrote nothing, or where the broker did not tell.
    #[must_use]
    pub fn behind(&self, topic: &str, partition: i32) -> Option<i64> {
        let found = self.behind.iter().find(|((name, one), _)| **name == *topic && *one == partition);
        found.map(|(_, behind)| *behind)
    }

    /// A record stands at this offset. Below 0 the broker has it and did not say where.
    fn note_offset(&mut self, topic: &str, partition: i32, offset: i64) {
        if offset < 0 {
            self.is_partial = true;
            return;
        }
        match self.behind.iter_mut().find(|((name, one), _)| **name == *topic && *one == partition) {
            Some((_, behind)) => *behind = (*behind).max(offset + 1),
            None => self.behind.push(((topic.into(), partition), offset + 1)),
        }
    }
}

/// The one writer of a shard. See the module's head.
pub struct ShardProducer {
    shards: ShardProducers,
    transactional_id: Arc<str>,
    lease: Lease,
    /// `None` once this instance is over.
    worker: Option<ProducerThread>,
    /// A batch was handed over and its outcome has not been seen: the call that waited for it was dropped.
    has_unseen_outcome: bool,
    numbers: BatchNumbers,
    /// Where the last batch is, if it was committed and nothing else was done since.
    last: Option<CommittedBatch>,
}

impl ShardProducer {
    /// The id that names the shard.
    #[must_use]
    pub fn transactional_id(&self) -> &str {
        &self.transactional_id
    }

    /// Writes all of the batch or none of it, and returns once that is decided. An empty batch is nothing to do.
    ///
    /// If this call is dropped before it returns, the batch may or may not be committed; the next call then writes nothing
    /// and answers [`CommitError::Rebuilt`]. So does one before which a connection was lost, unless the last batch is seen everywhere.
    pub async fn commit(&mut self, mut batch: Vec<EncodedRecord>) -> Result<CommittedBatch, CommitError> {
        let action = format!("commit a batch with transactional id {}", self.transactional_id);
        if !self.has_unseen_outcome && !batch.is_empty() && !self.is_last_batch_visible().await {
            let source = Error::Disconnected { transactional_id: Arc::clone(&self.transactional_id) };
            return Err(self.rebuild(source).await);
        }
        add_batch_headers(&self.transactional_id, &mut self.numbers, &mut batch);
        self.hand_over(batch, BatchPurpose::Commit, &action).await
    }

    /// Whether the last batch has reached all its partitions, for who has lost a connection since it was begun.
    async fn is_last_batch_visible(&mut self) -> bool {
        let Some(worker) = &mut self.worker else { return true };
        let Some(disconnects) = worker.new_disconnects() else { return true };
        // What nobody knows the place of cannot be looked for.
        let Some(last) = self.last.as_ref().filter(|last| !last.is_partial) else { return false };
        let places: Vec<TopicPartition> = last.behind.iter().map(|(place, _)| place.clone()).collect();
        for _ in 0..VISIBILITY_TRIES {
            let ends =
                consumer::ends(&self.shards.kafka, &places, Isolation::ReadCommitted, VISIBILITY_LIMIT).await;
            // Kafka is away, and building a producer waits for it.
            let Ok(ends) = ends else { return false };
            let is_seen = |(place, behind): &(TopicPartition, i64)| {
                ends.get(place).is_some_and(|(_, end)| end >= behind)
            };
            if last.behind.iter().all(is_seen) {
                worker.mark_handled(disconnects);
                return true;
            }
            // What others have open in a shared partition is soon decided.
            sleep(VISIBILITY_PAUSE).await;
        }
        false
    }

    /// Ends for good what an earlier owner of the id may have left hanging in these partitions, and what nobody would ever
    /// end otherwise: by a commit where a batch is whole in the log and no partition says otherwise, else by an abort. Where there is
    /// nothing it leaves a record nobody sees.
    ///
    /// To be called before the first [`ShardProducer::commit`]: that would make visible what was left in its partitions.
    ///
    /// # Errors
    /// Another owner has come, the lease has ended, or Kafka did not take it.
    pub async fn settle(&mut self, places: &[TopicPartition]) -> Result<(), Error> {
        let action = format!("end what was left open with transactional id {}", self.transactional_id);
        let (kafka, limit) = (self.shards.kafka.clone(), self.shards.options.watchdog);
        let HangingTransactions { commit: open, abort } =
            find_hanging(&kafka, &self.transactional_id, places, limit).await?;
        let committed: Vec<&TopicPartition> = open.keys().collect();
        let mut is_done = open.is_empty();
        if !is_done {
            let told = |(topic, partition): &TopicPartition| format!("{topic}-{partition}");
            let places = open.keys().map(told).collect::<Vec<_>>().join(", ");
            let id = &*self.transactional_id;
            tracing::warn!(
                id,
                places,
                "Kafka did not tell these partitions that a transaction was committed"
            );
        }
        let mut tries = 0;
        while !is_done {
            let records = commit_records(&kafka, &self.transactional_id, &open, tries == 0, limit).await?;
            let done = self.try_settling(BatchPurpose::CommitHanging, records, &action, &mut tries).await;
            is_done = done.inspect_err(|error| {
                let id = &*self.transactional_id;
                tracing::error!(id, ?committed, error = %ErrorChain(error), "a transaction that these partitions were not told of may be lost there");
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

    /// Whether it is done; where it is not, a new producer stands ready for another try.
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
            // What was to be committed is aborted with it, and has to be written anew.
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
            let source = Error::Stopped { action: format!("{action} (the call before was dropped)") };
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

    /// Builds a new producer in place of one that failed, as long as the lease allows it.
    async fn rebuild(&mut self, cause: Error) -> CommitError {
        // Also ends the old one, or leaves it behind if it hangs.
        self.worker = None;
        let policy = BackoffPolicy {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
            total: Some(self.shards.options.rebuild_limit),
        };
        let mut backoff = Backoff::new(policy, u64::from(super::murmur2(self.transactional_id.as_bytes())));
        tracing::warn!(transactional_id = &*self.transactional_id, error = %cause, "building the shard's producer anew");
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

impl fmt::Debug for ShardProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardProducer")
            .field("transactional_id", &self.transactional_id)
            .field("over", &self.worker.is_none())
            .finish_non_exhaustive()
    }
}

/// Why a batch was not, or not certainly, committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// None of the batch is visible, and the producer goes on: the batch may be tried again if the verdict allows. Where
    /// the broker itself refused a record, the next commit writes nothing and answers [`CommitError::Rebuilt`].
    #[error("batch aborted, none of it is visible")]
    Aborted {
        /// What went wrong.
        #[source]
        source: Error,
    },
    /// Whether the batch is visible is unknown. A new producer stands ready; read to the end and check again before the
    /// next commit.
    #[error("outcome of the batch unknown, producer built anew")]
    Rebuilt {
        /// What went wrong.
        #[source]
        source: Error,
    },
    /// Another owner has the shard. None of the batch is visible, and this instance is over.
    #[error("batch refused, the shard has a newer owner")]
    Fenced {
        /// What the broker said.
        #[source]
        source: Error,
    },
    /// The producer failed and no new one was built: the lease had ended, or it could not be done. Whether the batch is
    /// visible is unknown, and this instance is over.
    #[error("outcome of the batch unknown, the shard has to be taken anew")]
    Over {
        /// What went wrong.
        #[source]
        source: Error,
    },
}

impl CommitError {
    /// Whether the same [`ShardProducer`] may be used again: with the same batch after [`CommitError::Aborted`], after a
    /// reading to the end with [`CommitError::Rebuilt`].
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
