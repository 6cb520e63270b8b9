//! Writes to the config topic, one at a time across all workers.
//!
//! A write is: take the transactional id (which fences every rival's half-done write), read the topic to its end, decide
//! on what stands there now, write, commit, and wait until the own tail has read it back. Rivals that were fenced meanwhile
//! try again a few times, then say so.
//!
//! - The id is kept after a write. While it is ours nobody else has written, so the next write may decide at once; if a
//!   rival has taken it meanwhile, the broker refuses the write, and it begins anew.
//! - Every write has an id of its own, in a header of its last record. A write whose outcome is unknown is looked for in
//!   the log before anything else is written, and counts as done where it is found: nothing is written twice.
//! - Everything waits at most as long as the caller allows.
//!
//! On failure nothing is in the topic, except where [`Error::Kafka`] says that the outcome is not known.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};

use super::state::{
    Tail,
    configs::{Configs, WRITE_HEADER, Write},
};
use crate::{
    config::Kafka,
    kafka::{self, Failure, ShardProducer, Shards, TransactionOptions},
    model::EncodedRecord,
    retry::{Backoff, Policy, Retry},
};

/// Attempts of one write.
const ATTEMPTS: u32 = 8;
/// Waits between them: the first about as long as a rival needs for its write.
const BETWEEN: Policy =
    Policy { first: Duration::from_millis(60), longest: Duration::from_millis(800), total: None };
/// The longest one initialisation may take: one that was given up must not stand in the way of the next for long.
const INIT_LIMIT: Duration = Duration::from_secs(8);
/// Of the config topic, which has but one.
const PARTITION: i32 = 0;

/// The one way to the config topic. Cheap to clone; one write at a time per worker.
#[derive(Debug, Clone)]
pub struct Arbiter {
    configs: Tail<Configs>,
    shards: Shards,
    transactional_id: Arc<str>,
    /// The transactional id, for as long as it is ours as far as we know.
    held: Arc<Mutex<Option<Held>>>,
}

/// The transactional id in our hands.
#[derive(Debug)]
struct Held {
    producer: ShardProducer,
    /// The last write when it came into our hands, or our own since. Once another is read the id is a rival's.
    last: Option<Bytes>,
}

/// Why a write did not happen. Nothing of it is in the topic, unless said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<R> {
    /// What stands in the topic does not allow it.
    #[error("refused")]
    Refused(R),
    /// Other workers kept writing at the same moment.
    #[error("another worker was writing at the same moment, {attempts} times in a row")]
    Conflict {
        /// Attempts made.
        attempts: u32,
    },
    /// Kafka did not take it in time. Whether it did is said by the cause; reading the topic tells.
    #[error("write to the config topic")]
    Kafka(#[source] kafka::Error),
}

impl<R> Error<R> {
    /// Whether the same write may pass later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Refused(_) => Retry::Never,
            Self::Conflict { .. } => Retry::Later,
            Self::Kafka(source) => source.retry(),
        }
    }
}

impl Arbiter {
    /// For the config topic of a group of workers. Nothing is taken before the first write.
    #[must_use]
    pub fn new(kafka: &Kafka, topic: &str, group: &str, configs: Tail<Configs>) -> Self {
        let options = TransactionOptions { init_limit: INIT_LIMIT, ..TransactionOptions::default() };
        Self::with_options(kafka, topic, group, configs, options)
    }

    /// As [`Arbiter::new`], with other limits.
    #[must_use]
    pub fn with_options(
        kafka: &Kafka,
        topic: &str,
        group: &str,
        configs: Tail<Configs>,
        options: TransactionOptions,
    ) -> Self {
        debug_assert_eq!(&**configs.topic(), topic, "the tail is of another topic");
        let shards = Shards::new(kafka.clone(), options);
        Self { configs, shards, transactional_id: format!("{group}-configs").into(), held: Arc::default() }
    }

    /// Writes what `decide` makes of the state of all edits so far; nothing if it makes nothing. `decide` may be called
    /// several times. Returns within the limit, once the own tail has read the write.
    ///
    /// # Errors
    /// `decide` refused, rivals kept interfering, or Kafka did not answer.
    pub async fn write<T, R>(
        &self,
        limit: Duration,
        decide: impl Fn(&Configs) -> Result<(T, Vec<Write>), R> + Send,
    ) -> Result<T, Error<R>> {
        let end = Instant::now() + limit;
        let mut last = None;
        let written = timeout_at(end, self.try_write(end, decide, &mut last)).await;
        written.unwrap_or_else(|_| {
            let action = format!("write with transactional id {}", self.transactional_id);
            Err(Error::Kafka(last.unwrap_or(kafka::Error::Deadline { action, limit })))
        })
    }

    /// Attempts until one is decided. `last` is what went wrong before, for the caller whose time ends meanwhile.
    async fn try_write<T, R>(
        &self,
        end: Instant,
        decide: impl Fn(&Configs) -> Result<(T, Vec<Write>), R> + Send,
        last: &mut Option<kafka::Error>,
    ) -> Result<T, Error<R>> {
        let mut held = self.held.lock().await;
        let mut backoff = Backoff::new(BETWEEN, seed());
        // The write whose outcome is not known, with what its caller would have got.
        let mut unsure: Option<(Bytes, T)> = None;
        for _ in 0..ATTEMPTS {
            // Taken out: a call that is dropped from here on leaves nothing behind that might not be as it seems.
            let kept = held
                .take()
                .filter(|kept| self.configs.read(|configs| configs.last_write() == kept.last.as_ref()));
            let is_kept = kept.is_some();
            let mut holding = match kept {
                Some(kept) => kept,
                None => match self.take(end).await {
                    Ok(taken) => taken,
                    Err(error) => {
                        pause(&mut backoff, error, last).await.map_err(Error::Kafka)?;
                        continue;
                    }
                },
            };
            // Every write before is decided and read, also one of ours that nobody could tell the outcome of.
            if let Some((id, result)) = unsure.take()
                && self.configs.read(|configs| configs.has_write(&id))
            {
                *held = Some(holding);
                return Ok(result);
            }
            let mut decided = self.configs.read(&decide);
            if is_kept && !matches!(&decided, Ok((_, writes)) if !writes.is_empty()) {
                // Nothing to write, so the broker will not say whether a rival has come meanwhile: look.
                self.configs.read_to_end(left(end)).await.map_err(Error::Kafka)?;
                decided = self.configs.read(&decide);
            }
            let (result, writes) = match decided {
                Ok((result, writes)) if !writes.is_empty() => (result, writes),
                settled => {
                    *held = Some(holding);
                    return settled.map(|(result, _)| result).map_err(Error::Refused);
                }
            };
            let id = write_id();
            // From here on only the outcome of this one matters.
            *last = None;
            match holding.producer.commit(self.records(&writes, &id)).await {
                Ok(()) => {
                    // Only with all of it read may the next write decide.
                    self.read_back(&id).await;
                    holding.last = Some(id);
                    *held = Some(holding);
                    return Ok(result);
                }
                Err(Failure::Aborted { source }) => {
                    *held = Some(holding);
                    pause(&mut backoff, source, last).await.map_err(Error::Kafka)?;
                }
                // A fenced write may be in the log too: its commit was answered, the answer lost, and then a rival came.
                Err(Failure::Rebuilt { source } | Failure::Fenced { source } | Failure::Over { source }) => {
                    unsure = Some((id, result));
                    // Whatever it was, the next attempt takes the id anew.
                    pause_anyway(&mut backoff, source, last).await;
                }
            }
        }
        // The last attempt may have gone through all the same; who was fenced has its answer in the log.
        if let Some((id, result)) = unsure {
            self.configs.read_to_end(left(end)).await.map_err(Error::Kafka)?;
            if self.configs.read(|configs| configs.has_write(&id)) {
                return Ok(result);
            }
        }
        match last.take() {
            // Nobody was in the way.
            Some(error) if !matches!(error, kafka::Error::Fenced { .. }) => Err(Error::Kafka(error)),
            _ => Err(Error::Conflict { attempts: ATTEMPTS }),
        }
    }

    /// Takes the id, so that no write is under way any more, and reads what all of them have left.
    async fn take(&self, end: Instant) -> Result<Held, kafka::Error> {
        let mut producer = self.shards.take(Arc::clone(&self.transactional_id), Arc::new(|| true)).await?;
        self.configs.read_settled(&mut producer, &[PARTITION], &[], left(end)).await?;
        Ok(Held { producer, last: self.configs.read(|configs| configs.last_write().cloned()) })
    }

    /// Waits until the own tail has read a write that is committed. The caller's limit bounds it.
    async fn read_back(&self, id: &Bytes) {
        let mut changes = self.configs.changes();
        // The tail lives as long as we do, and so does its signal.
        while !self.configs.read(|configs| configs.has_write(id)) && changes.changed().await.is_ok() {}
    }

    fn records(&self, writes: &[Write], id: &Bytes) -> Vec<EncodedRecord> {
        let record = |(key, value): &Write| EncodedRecord {
            topic: Arc::clone(self.configs.topic()),
            partition: PARTITION,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: value.as_ref().map(|value| Bytes::from(value.to_string())),
            headers: Vec::new(),
            timestamp_ms: None,
        };
        let mut records: Vec<EncodedRecord> = writes.iter().map(record).collect();
        if let Some(record) = records.last_mut() {
            record.headers.push((WRITE_HEADER, id.clone()));
        }
        records
    }
}

/// Waits before the next attempt, or gives the error back where that would not help.
async fn pause(
    backoff: &mut Backoff,
    error: kafka::Error,
    last: &mut Option<kafka::Error>,
) -> Result<(), kafka::Error> {
    // A rival took the id while we took it: that passes.
    if error.retry() == Retry::Never && !matches!(error, kafka::Error::Fenced { .. }) {
        return Err(error);
    }
    pause_anyway(backoff, error, last).await;
    Ok(())
}

async fn pause_anyway(backoff: &mut Backoff, error: kafka::Error, last: &mut Option<kafka::Error>) {
    tracing::debug!(%error, "a write to the config topic has to be tried again");
    *last = Some(error);
    if let Some(wait) = backoff.next_wait(Retry::Later) {
        sleep(wait).await;
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// An id no other write has, of this process or of another.
fn write_id() -> Bytes {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{:x}-{number}", std::process::id(), seed()).into()
}

/// Spreads rivals that begin at the same moment.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    (now as u64).rotate_left(32) ^ u64::from(std::process::id())
}
