//! The writer of a transactional id that decides on the table before it writes.
//!
//! ```text
//! take the id ─▶ read the table to its end ─▶ decide ─▶ one transaction ─▶ wait until the table has read it
//!   ▲                                                        │
//!   └───── fenced, aborted or unknown: decide again ◀────────┘ unknown: first look for the write's id in the table
//! ```
//!
//! - Taking the id fences every earlier holder and ends what they left hanging, so a decision is made on everything that any
//!   holder of this id has written.
//! - The id is kept after a write. While it is ours no other holder has written, so the next write may decide at once; if a rival
//!   has taken it meanwhile the broker refuses the write, and the loop starts over. Holders of other ids may write to the table too.
//! - A decision to write nothing is made on what was in the topic after the call began: no commit checks it.
//! - A write whose outcome is unknown is searched in the table after everything was read; found, it counts as done. So a decision
//!   is written once.
//! - Attempts are bounded in number and by the caller's deadline. Dropping the call is safe: the next one takes the id again.
//!
//! On failure nothing is in the topic, except where [`WriteError::Kafka`] says that the outcome is unknown.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use base::retry::{Backoff, BackoffPolicy, Retry};
use model::EncodedRecord;

use super::{Table, TableState, WriteMark};
use crate::{CommitError, Error, Lease, ReadLimits, ShardProducer, ShardProducers, TopicPartition};

/// Attempts at one write before it gives way to rivals.
const ATTEMPTS: u32 = 32;
/// Waits between two attempts: the longest is a few times what a write takes.
const WRITE_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(60), longest: Duration::from_millis(800), total: None };
/// The longest wait for the write of a rival that has taken the id.
const RIVAL_WAIT: Duration = Duration::from_millis(400);
/// Spreads writers that the same rival has fenced.
const MAX_RIVAL_JITTER: Duration = Duration::from_millis(30);

/// What a writer owns and how it behaves.
#[derive(Clone)]
pub struct WriterOptions {
    /// The transactional id.
    pub transactional_id: Arc<str>,
    /// Whether the caller may hold the id.
    pub lease: Lease,
    /// Partitions of the table's topic that it writes to and decides on.
    pub partitions: Vec<i32>,
    /// Partitions of other topics that it also writes to. They are read at the first taking of the id, before a write to them,
    /// after one whose outcome is not known, and after a connection was lost.
    pub also: Vec<TopicPartition>,
    /// How long open transactions in these partitions are waited for before those of this id are ended.
    pub patience: Duration,
    /// Whether a writer that was fenced takes the id again. If not, its successor keeps it.
    pub takes_back: bool,
    /// Whether a committed write that the table does not read before the deadline is an error.
    pub must_read_back: bool,
}

/// See the module's head.
pub struct FencedWriter<S> {
    table: Table<S>,
    shards: ShardProducers,
    options: WriterOptions,
    /// The id in our hands.
    held: Option<ShardProducer>,
    /// The newest write of anybody that the table had read when the id was taken or used.
    newest: Option<Bytes>,
    also: OtherPartitions,
    trouble: LastWriteError,
}

/// Why the write under way, or the last one, was not written at once; `None` where it was.
pub type LastWriteError = Arc<Mutex<Option<Error>>>;

/// Whether earlier holders of the id may have left transactions open in [`WriterOptions::also`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherPartitions {
    /// The next taking of the id has to end them.
    Unsettled,
    /// The last taking did not look.
    Unchecked,
    /// The last taking ended them.
    Settled,
}

/// Why a write was not made.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<R> {
    /// The decision, on what is in the topic now.
    #[error("refused")]
    Refused(R),
    /// Rivals took the id during every attempt.
    #[error("another worker was writing at the same moment, {attempts} times in a row")]
    Conflict {
        /// Attempts made.
        attempts: u32,
    },
    /// Kafka did not take it in time. Whether the write is in the topic is unknown where a deadline passed during its commit.
    #[error("write to the topic")]
    Kafka(#[source] Error),
}

impl<R> WriteError<R> {
    /// Whether the same write may pass later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Refused(_) => Retry::Never,
            Self::Conflict { .. } => Retry::Later,
            Self::Kafka(source) => source.retry(),
        }
    }

    /// The failure, for a caller that tries again by itself: rivals pass, and so does a writer that has ended. `Err` is the refusal.
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
    /// The failure of a write that is never refused; see [`WriteError::passing`].
    #[must_use]
    pub fn into_error(self, limit: Duration) -> Error {
        self.passing(limit).unwrap_or_else(|never| match never {})
    }
}

/// A write whose outcome is unknown, and what to return if it is found.
type UnknownWrite<T> = Option<(WriteMark, T)>;

impl<S: TableState> FencedWriter<S> {
    /// Takes nothing before the first write.
    #[must_use]
    pub fn new(table: Table<S>, shards: ShardProducers, options: WriterOptions) -> Self {
        Self {
            table,
            shards,
            options,
            held: None,
            newest: None,
            also: OtherPartitions::Unsettled,
            trouble: LastWriteError::default(),
        }
    }

    /// The table that it decides on.
    #[must_use]
    pub fn table(&self) -> &Table<S> {
        &self.table
    }

    /// For those who wait for their turn to write.
    #[must_use]
    pub fn trouble(&self) -> &LastWriteError {
        &self.trouble
    }

    /// From here on the id is taken whatever the former lease says: for a write that must not be lost.
    pub fn set_lease(&mut self, lease: Lease) {
        self.options.lease = lease;
    }

    /// Takes the id, now, and reads everything that its earlier holders have written.
    ///
    /// # Errors
    /// The lease has ended, or Kafka did not answer before the deadline.
    pub async fn take(&mut self, end: Instant) -> Result<(), Error> {
        self.held = None;
        self.newest = self.table.last_write();
        let limit = left(end);
        let taking = async {
            let WriterOptions { transactional_id, lease, partitions, also, patience, .. } = &self.options;
            let mut producer = self.shards.take(Arc::clone(transactional_id), Arc::clone(lease)).await?;
            let also = if self.also == OtherPartitions::Unsettled { also.as_slice() } else { &[] };
            let waits = ReadLimits { also, patience: *patience, limit: left(end) };
            self.table.read_settled(&mut producer, partitions, waits).await?;
            Ok(producer)
        };
        let producer = timeout_at(end, taking).await.unwrap_or_else(|_| Err(self.late(limit)))?;
        self.held = Some(producer);
        self.newest = self.table.last_write();
        self.also = if self.also == OtherPartitions::Unsettled {
            OtherPartitions::Settled
        } else {
            OtherPartitions::Unchecked
        };
        Ok(())
    }

    /// As [`FencedWriter::take`], as often as it takes before the deadline.
    ///
    /// # Errors
    /// As [`FencedWriter::write`].
    pub async fn settle(&mut self, end: Instant) -> Result<(), WriteError<Infallible>> {
        self.held = None;
        self.also = OtherPartitions::Unsettled;
        self.write(end, |_| Ok(((), Vec::new()))).await
    }

    /// Writes the records that `decide` makes of the table, in one transaction; none if it makes none. `decide` may be called
    /// several times. Returns what came with the records, once the table has read them.
    ///
    /// # Errors
    /// `decide` refused, rivals kept taking the id, or Kafka did not take the write before the deadline.
    pub async fn write<T, R>(
        &mut self,
        end: Instant,
        decide: impl Fn(&S) -> Result<(T, Vec<EncodedRecord>), R>,
    ) -> Result<T, WriteError<R>> {
        let mut backoff = Backoff::new(WRITE_BACKOFF, seed());
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
                // Its successor keeps the id, whatever else this one is asked to write.
                self.options.lease = Arc::new(|| false);
            }
            let wait = backoff.next_wait(Retry::Later).unwrap_or_default();
            if left(end).is_zero() {
                // The cause says more than that time is up.
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
            tracing::debug!(id = &*self.options.transactional_id, %error, "a write has to be tried again");
            self.pause(&error, wait, end).await;
            last = Some(error);
        }
        Err(match last {
            Some(error) if !matches!(error, Error::Fenced { .. }) => WriteError::Kafka(error),
            _ => WriteError::Conflict { attempts: ATTEMPTS },
        })
    }

    /// One attempt. An error says why it has to be made again.
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
            // Taken out: a rival's write that hangs may hide the end, and only the next taking of the id ends it.
            let held = self.held.take();
            self.read_to_end(end).await?;
            self.held = held;
            decided = self.table.read(decide);
        }
        let topic = Arc::clone(self.table.topic());
        let is_beside = |records: &[EncodedRecord]| records.iter().any(|record| record.topic != topic);
        if self.also == OtherPartitions::Unchecked
            && decided.as_ref().is_ok_and(|(_, records)| is_beside(records))
        {
            self.also = OtherPartitions::Unsettled;
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
        // Taken out: if this call is dropped, the next one takes the id again.
        let Some(mut producer) = self.held.take() else { return Err(self.late(limit)) };
        let also = self.also;
        if is_beside(&records) {
            self.also = OtherPartitions::Unsettled;
        }
        let mark = WriteMark::put(&mut records, &topic);
        match timeout_at(end, producer.commit(records)).await {
            Ok(Ok(_)) => {
                self.also = also;
                match self.table.read_back(&mark, left(end)).await {
                    Ok(()) => {
                        self.held = Some(producer);
                        self.newest = Some(mark.id);
                    }
                    Err(error) if self.options.must_read_back => {
                        // Found by the next attempt, if there is time for one.
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
                // What was committed before the connection was lost may hang, also beside the table.
                if matches!(source, Error::Disconnected { .. }) {
                    self.also = OtherPartitions::Unsettled;
                }
                *unknown = Some((mark, result));
                Err(source)
            }
            Err(_) => Err(self.late(limit)),
        }
    }

    async fn read_to_end(&self, end: Instant) -> Result<(), Error> {
        let waits = ReadLimits { also: &[], patience: self.options.patience, limit: left(end) };
        self.table.read_partitions_to_end(&self.options.partitions, waits).await
    }

    /// Waits before the next attempt; after fencing until the rival's write has been read, and not much longer: taking the id back
    /// at once would keep the rival from writing.
    async fn pause(&self, error: &Error, wait: Duration, end: Instant) {
        if !matches!(error, Error::Fenced { .. }) {
            return sleep(wait).await;
        }
        let mut changes = self.table.changes();
        let written =
            async { while self.table.last_write() == self.newest && changes.changed().await.is_ok() {} };
        timeout(wait.max(RIVAL_WAIT).min(left(end)), written).await.ok();
        sleep(MAX_RIVAL_JITTER.mul_f64(jitter())).await;
    }

    /// Whether another attempt cannot help.
    fn is_final(&self, error: &Error) -> bool {
        match error {
            Error::Fenced { .. } => !self.options.takes_back,
            // Its thread ended; the next attempt starts another.
            Error::Stopped { .. } => false,
            error => error.retry() == Retry::Never,
        }
    }

    fn late(&self, limit: Duration) -> Error {
        let action = format!("write with transactional id {}", self.options.transactional_id);
        Error::Deadline { action, limit }
    }
}

impl<S> fmt::Debug for FencedWriter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedWriter")
            .field("transactional_id", &self.options.transactional_id)
            .finish_non_exhaustive()
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Differs between processes that start at the same moment.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    (now as u64).rotate_left(32) ^ u64::from(std::process::id())
}

/// Between 0 and 1.
fn jitter() -> f64 {
    let mixed = seed().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    mixed as f64 / f64::from(u32::MAX)
}
