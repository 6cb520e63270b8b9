//! The transactional writer that decides on the table's current content before it writes.
//!
//! ```text
//! take the id ─▶ read the table to its end ─▶ decide ─▶ one transaction ─▶ wait until the table has read it
//!   ▲                                                        │
//!   └───── fenced, aborted or unknown: decide again ◀────────┘ unknown: first look for the write's id in the table
//! ```
//!
//! - Taking the id fences every earlier holder and ends its hanging transactions, so a decision considers everything that any
//!   holder of this id has written.
//! - The id is kept after a write. While we hold it no other holder can write, so the next write may decide at once; if a rival
//!   has taken it meanwhile, the broker refuses the write and the loop starts over. Holders of other ids may also write to the
//!   table.
//! - A decision to write nothing is based on what was in the topic after the call began, since no commit verifies it.
//! - A write with an unknown outcome is searched for in the table after everything was read; if found, it counts as done. So a
//!   decision is written once.
//! - Attempts are limited in number and by the caller's deadline. Dropping the call is safe: the next one takes the id again.
//!
//! On failure nothing is in the topic, unless [`WriteError::Kafka`] says that the outcome is unknown.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use base::{
    random,
    retry::{Backoff, BackoffPolicy, Retry},
};
use model::EncodedRecord;

use super::{Table, TableState, WriteMark};
use crate::{CommitError, Error, Lease, ReadLimits, ShardProducer, ShardProducers, TopicPartition};

/// Most attempts at one write.
const ATTEMPTS: u32 = 32;
/// Backoff between attempts; the longest wait is a few times the duration of a write.
const WRITE_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(60), longest: Duration::from_millis(800), total: None };
/// How long to wait for the write of a rival that has taken the id.
const RIVAL_WAIT: Duration = Duration::from_millis(400);
/// Random delay that spreads writers fenced by the same rival.
const MAX_RIVAL_JITTER: Duration = Duration::from_millis(30);

/// Settings of a writer.
#[derive(Clone)]
pub struct WriterOptions {
    /// The transactional id.
    pub transactional_id: Arc<str>,
    /// Returns whether the caller may hold the id.
    pub lease: Lease,
    /// Partitions of the table's topic that it writes to and bases decisions on.
    pub partitions: Vec<i32>,
    /// Partitions of other topics that it also writes to. Their open transactions are settled when the id is first taken, before
    /// a write to them, after a write with an unknown outcome, and after a lost connection.
    pub other_partitions: Vec<TopicPartition>,
    /// How long to wait for open transactions in these partitions before those of this id are ended.
    pub transaction_wait: Duration,
    /// Whether a fenced writer takes the id again. If not, its successor keeps it.
    pub takes_back: bool,
    /// Whether it is an error if the table has not read a committed write before the deadline.
    pub must_read_back: bool,
}

/// See the module's head.
pub struct FencedWriter<S> {
    table: Table<S>,
    shards: ShardProducers,
    options: WriterOptions,
    /// The producer, while we hold the id.
    held: Option<ShardProducer>,
    /// The table's last write when the id was taken or used.
    newest: Option<Bytes>,
    others: OtherPartitions,
    trouble: LastWriteError,
}

/// The last failed attempt of the current or last write; `None` if it succeeded.
pub type LastWriteError = Arc<Mutex<Option<Error>>>;

/// Whether earlier holders of the id may have left transactions hanging in [`WriterOptions::other_partitions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherPartitions {
    /// The next `take` must end them.
    Unsettled,
    /// The last `take` did not check.
    Unchecked,
    /// The last `take` ended them.
    Settled,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<R> {
    /// `decide` refused, based on the topic's current content.
    #[error("refused")]
    Refused(R),
    /// Rivals took the id in every attempt.
    #[error("another worker was writing at the same moment, {attempts} times in a row")]
    Conflict {
        /// Number of attempts.
        attempts: u32,
    },
    /// Kafka did not accept it in time. If the deadline passed during the commit, its outcome is unknown.
    #[error("write to the topic")]
    Kafka(#[source] Error),
}

impl<R> WriteError<R> {
    /// Whether the same write may succeed later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Refused(_) => Retry::Never,
            Self::Conflict { .. } => Retry::Later,
            Self::Kafka(source) => source.retry(),
        }
    }

    /// The error for a caller that retries by itself; conflicts and ended writers become temporary errors. `Err` is the refusal.
    ///
    /// # Errors
    /// It was refused.
    pub fn passing(self, limit: Duration) -> Result<Error, R> {
        match self {
            Self::Refused(refusal) => Err(refusal),
            Self::Conflict { .. } | Self::Kafka(Error::Fenced { .. } | Error::Stopped { .. }) => {
                let action = "write to a topic that another process was writing to".to_owned();
                Ok(Error::Deadline { action, limit })
            }
            Self::Kafka(source) => Ok(source),
        }
    }
}

impl WriteError<Infallible> {
    /// The error of a write that is never refused; see [`WriteError::passing`].
    #[must_use]
    pub fn into_error(self, limit: Duration) -> Error {
        self.passing(limit).unwrap_or_else(|never| match never {})
    }
}

/// A write with an unknown outcome, and what to return if it is found.
type UnknownWrite<T> = Option<(WriteMark, T)>;

impl<S: TableState> FencedWriter<S> {
    /// Takes the id with the first write.
    #[must_use]
    pub fn new(table: Table<S>, shards: ShardProducers, options: WriterOptions) -> Self {
        Self {
            table,
            shards,
            options,
            held: None,
            newest: None,
            others: OtherPartitions::Unsettled,
            trouble: LastWriteError::default(),
        }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &Table<S> {
        &self.table
    }

    /// The last failed attempt, for callers that wait for their turn to write.
    #[must_use]
    pub fn trouble(&self) -> &LastWriteError {
        &self.trouble
    }

    /// Replaces the lease: for a write that must not be lost.
    pub fn set_lease(&mut self, lease: Lease) {
        self.options.lease = lease;
    }

    /// Takes the id and reads everything that earlier holders have written.
    ///
    /// # Errors
    /// The lease has ended, or Kafka did not answer before the deadline.
    pub async fn take(&mut self, end: Instant) -> Result<(), Error> {
        self.held = None;
        self.newest = self.table.last_write();
        let limit = left(end);
        let taking = async {
            let WriterOptions {
                transactional_id, lease, partitions, other_partitions, transaction_wait, ..
            } = &self.options;
            let mut producer = self.shards.take(Arc::clone(transactional_id), Arc::clone(lease)).await?;
            let other_partitions =
                if self.others == OtherPartitions::Unsettled { other_partitions.as_slice() } else { &[] };
            let limits =
                ReadLimits { other_partitions, transaction_wait: *transaction_wait, limit: left(end) };
            self.table.read_settled(&mut producer, partitions, limits).await?;
            Ok(producer)
        };
        let producer = timeout_at(end, taking).await.unwrap_or_else(|_| Err(self.late(limit)))?;
        self.held = Some(producer);
        self.newest = self.table.last_write();
        self.others = if self.others == OtherPartitions::Unsettled {
            OtherPartitions::Settled
        } else {
            OtherPartitions::Unchecked
        };
        Ok(())
    }

    /// As [`FencedWriter::take`], with retries until the deadline.
    ///
    /// # Errors
    /// As [`FencedWriter::write`].
    pub async fn settle(&mut self, end: Instant) -> Result<(), WriteError<Infallible>> {
        self.held = None;
        self.others = OtherPartitions::Unsettled;
        self.write(end, |_| Ok(((), Vec::new()))).await
    }

    /// Writes the records that `decide` returns for the table's state, if any, in one transaction. `decide` may be called several
    /// times. Returns the value that `decide` returned with them, once the table has read them.
    ///
    /// # Errors
    /// `decide` refused, rivals kept taking the id, or Kafka did not accept the write before the deadline.
    pub async fn write<T, R>(
        &mut self,
        end: Instant,
        decide: impl Fn(&S) -> Result<(T, Vec<EncodedRecord>), R>,
    ) -> Result<T, WriteError<R>> {
        let mut backoff = Backoff::new(WRITE_BACKOFF, random_number());
        let mut unknown = None;
        let mut last: Option<Error> = None;
        *self.trouble.lock() = None;
        for _ in 0..ATTEMPTS {
            let error = match self.attempt(end, &decide, &mut unknown).await {
                Ok(decided) => {
                    *self.trouble.lock() = None;
                    return decided.map_err(WriteError::Refused);
                }
                Err(error) => error,
            };
            if matches!(error, Error::Fenced { .. }) && !self.options.takes_back {
                // The successor keeps the id, also for later writes.
                self.options.lease = Arc::new(|| false);
            }
            let wait = backoff.next_wait(Retry::Later).unwrap_or_default();
            if left(end).is_zero() {
                // The previous error says more than an expired deadline.
                let is_late = matches!(error, Error::Deadline { .. });
                return Err(WriteError::Kafka(if is_late { last.unwrap_or(error) } else { error }));
            }
            if self.is_final(&error) {
                return Err(WriteError::Kafka(error));
            }
            *self.trouble.lock() = Some(error.clone());
            if left(end) <= wait {
                return Err(WriteError::Kafka(error));
            }
            tracing::debug!(id = &*self.options.transactional_id, %error, "write failed; retrying");
            self.pause(&error, wait, end).await;
            last = Some(error);
        }
        Err(match last {
            Some(error) if !matches!(error, Error::Fenced { .. }) => WriteError::Kafka(error),
            _ => WriteError::Conflict { attempts: ATTEMPTS },
        })
    }

    /// One attempt. An error says why it must be repeated.
    async fn attempt<T, R>(
        &mut self,
        end: Instant,
        decide: &impl Fn(&S) -> Result<(T, Vec<EncodedRecord>), R>,
        unknown: &mut UnknownWrite<T>,
    ) -> Result<Result<T, R>, Error> {
        let limit = left(end);
        let is_kept = self.held.is_some();
        if !is_kept {
            self.take(end).await?;
        }
        if let Some((mark, result)) = unknown.take()
            && mark.partitions > 0
            && self.table.contents(|contents| contents.has(&mark))
        {
            return Ok(Ok(result));
        }
        let mut decided = self.table.read(decide);
        let writes = matches!(&decided, Ok((_, records)) if !records.is_empty());
        if is_kept && !writes {
            // Taken out: a hanging write may hide the end, and only the next `take` ends it.
            let held = self.held.take();
            self.read_to_end(end).await?;
            self.held = held;
            decided = self.table.read(decide);
        }
        let topic = Arc::clone(self.table.topic());
        let is_beside = |records: &[EncodedRecord]| records.iter().any(|record| record.topic != topic);
        if self.others == OtherPartitions::Unchecked
            && decided.as_ref().is_ok_and(|(_, records)| is_beside(records))
        {
            self.others = OtherPartitions::Unsettled;
            self.take(end).await?;
            decided = self.table.read(decide);
        }
        let (result, mut records) = match decided {
            Ok(decided) => decided,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if records.is_empty() {
            return Ok(Ok(result));
        }
        // Taken out, so that the next call takes the id again if this one is dropped.
        let Some(mut producer) = self.held.take() else { return Err(self.late(limit)) };
        let others = self.others;
        if is_beside(&records) {
            self.others = OtherPartitions::Unsettled;
        }
        let mark = WriteMark::put(&mut records, &topic);
        match timeout_at(end, producer.commit(records)).await {
            Ok(Ok(_)) => {
                self.others = others;
                match self.table.read_back(&mark, left(end)).await {
                    Ok(()) => {
                        self.held = Some(producer);
                        self.newest = Some(mark.id);
                    }
                    Err(error) if self.options.must_read_back => {
                        // The next attempt finds it, if there is time for one.
                        *unknown = Some((mark, result));
                        return Err(error);
                    }
                    Err(_) => {}
                }
                Ok(Ok(result))
            }
            Ok(Err(CommitError::Aborted { source })) => {
                self.held = Some(producer);
                Err(source)
            }
            Ok(Err(
                CommitError::Rebuilt { source }
                | CommitError::Fenced { source }
                | CommitError::Over { source },
            )) => {
                // A transaction from before the lost connection may hang, also in the other partitions.
                if matches!(source, Error::Disconnected { .. }) {
                    self.others = OtherPartitions::Unsettled;
                }
                *unknown = Some((mark, result));
                Err(source)
            }
            Err(_) => Err(self.late(limit)),
        }
    }

    async fn read_to_end(&self, end: Instant) -> Result<(), Error> {
        let transaction_wait = self.options.transaction_wait;
        let limits = ReadLimits { other_partitions: &[], transaction_wait, limit: left(end) };
        self.table.read_partitions_to_end(&self.options.partitions, limits).await
    }

    /// Waits before the next attempt; after fencing, until the rival's write has been read, because taking the id back at once
    /// would keep the rival from writing.
    async fn pause(&self, error: &Error, wait: Duration, end: Instant) {
        if !matches!(error, Error::Fenced { .. }) {
            return sleep(wait).await;
        }
        let mut changes = self.table.changes();
        let written =
            async { while self.table.last_write() == self.newest && changes.changed().await.is_ok() {} };
        timeout(wait.max(RIVAL_WAIT).min(left(end)), written).await.ok();
        sleep(MAX_RIVAL_JITTER.mul_f64(random_number() as f64 / u64::MAX as f64)).await;
    }

    /// Whether a retry cannot help.
    fn is_final(&self, error: &Error) -> bool {
        match error {
            Error::Fenced { .. } => !self.options.takes_back,
            // The producer's thread has ended; the next attempt starts another.
            Error::Stopped { .. } => false,
            error => error.retry() == Retry::Never,
        }
    }

    fn late(&self, limit: Duration) -> Error {
        let action = format!("write with transactional id {}", self.options.transactional_id);
        Error::Deadline { action, limit }
    }
}

opaque_debug!(FencedWriter<S>);

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// A number that differs between processes started at the same moment; 0 if the system has no random numbers.
fn random_number() -> u64 {
    random::bytes().map_or(0, u64::from_le_bytes)
}
