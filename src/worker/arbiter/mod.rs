//! Writes to the config topic, one at a time across all workers.
//!
//! ```text
//! write ──asks for a turn──▶ writer (task): takes the id, reads to the end
//!   ▲  ▲                       │
//!   │  └──── turn: a draft ◀───┤ each who waits decides in turn, on what those before leave
//!   └─────── outcome ◀─────────┘ one transaction for all of them, read back by the own tail
//! ```
//!
//! A transaction is: take the transactional id (which fences every rival's half-done write), read the topic to its end,
//! let everybody who waits decide on what stands there now, write, commit, and wait until the own tail has read it back.
//! Who was fenced meanwhile lets the rival finish, and begins anew.
//!
//! - The id is that of the topic, not of a group: whoever writes this topic is fenced, whatever else they are.
//! - Edits that wait together are written together, in the order in which they came. Each decides on the state as the ones
//!   before it leave it; one that is refused leaves the others as they are.
//! - The id is kept after a write. While it is ours nobody else has written, so the next write may decide at once; if a
//!   rival has taken it meanwhile, the broker refuses the write, and it begins anew.
//! - Every transaction has an id of its own, in a header of its last record. One whose outcome is unknown is looked for in
//!   the log before anything else is written, and counts as done where it is found: nothing is written twice.
//! - A write that a broker has left hanging is ended by the next who takes the id, at once: nothing of the id can be under way
//!   then, and who waited for it would only be in the way of rivals who do the same. Before records are written to other
//!   topics, and after a write to them that is in doubt, the same is done there.
//! - An edit that Kafka refuses for good fails alone: those that were written with it are each written alone then.
//! - Everything waits at most as long as the caller allows.
//!
//! On failure nothing is in the topic, except where [`Error::Kafka`] says that the outcome is not known.

mod draft;
mod member;
mod writer;

use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use base::retry::Retry;
use kafka::{Kafka, Place, Shards, TransactionOptions};
use model::EncodedRecord;

use self::{
    draft::{Ending, Message, Outcome},
    member::{MESSAGES, Request},
    writer::Writer,
};
use super::state::{
    Tail,
    configs::{Configs, Write},
};

/// The longest one initialisation may take: one that was given up must not stand in the way of the next for long.
const INIT_LIMIT: Duration = Duration::from_secs(8);
/// Edits that may wait for the writer to look at them; more wait to be let in.
const QUEUE: usize = 1024;
/// Of the config topic, which has but one.
pub(super) const PARTITION: i32 = 0;

/// The one way to the config topic. Cheap to clone; the writer's task ends with the last clone.
#[derive(Clone)]
pub struct Arbiter {
    requests: mpsc::Sender<Request>,
    transactional_id: Arc<str>,
    /// What went wrong last, for callers whose time ends before it is put right.
    trouble: Trouble,
}

/// What an edit writes: nothing, unless there is a record for the config topic.
#[derive(Debug, Default)]
pub struct Changes {
    /// Records of the config topic.
    pub writes: Vec<Write>,
    /// Records of other topics, in the same transaction.
    pub along: Vec<EncodedRecord>,
}

impl From<Vec<Write>> for Changes {
    fn from(writes: Vec<Write>) -> Self {
        Self { writes, along: Vec::new() }
    }
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

    /// What kept it from happening, for who tries again by itself: rivals in the way pass, and so does a writer that has
    /// ended. `Err` is the refusal.
    pub(super) fn passing(self, limit: Duration) -> Result<kafka::Error, R> {
        match self {
            Self::Refused(refusal) => Err(refusal),
            Self::Conflict { .. }
            | Self::Kafka(kafka::Error::Fenced { .. } | kafka::Error::Stopped { .. }) => {
                let action = "write to the config topic while other workers do".to_owned();
                Ok(kafka::Error::Deadline { action, limit })
            }
            Self::Kafka(source) => Ok(source),
        }
    }
}

impl Arbiter {
    /// For the topic that this tail follows; `beside` is where else records go with it. Nothing is taken before the first
    /// write. To be called on a runtime.
    #[must_use]
    pub fn new(kafka: &Kafka, configs: Tail<Configs>, beside: Vec<Place>) -> Self {
        let options = TransactionOptions { init_limit: INIT_LIMIT, ..TransactionOptions::default() };
        Self::with_options(kafka, configs, beside, options)
    }

    /// As [`Arbiter::new`], with other limits.
    #[must_use]
    pub fn with_options(
        kafka: &Kafka,
        configs: Tail<Configs>,
        beside: Vec<Place>,
        options: TransactionOptions,
    ) -> Self {
        let transactional_id: Arc<str> = format!("{}-arbiter", configs.topic()).into();
        let (requests, queue) = mpsc::channel(QUEUE);
        let trouble = Trouble::default();
        let shards = Shards::new(kafka.clone(), options);
        let writer = Writer::new(configs, beside, shards, Arc::clone(&transactional_id), trouble.clone());
        tokio::spawn(writer.run(queue));
        Self { requests, transactional_id, trouble }
    }

    /// Writes what `decide` makes of the state of all edits so far; nothing if it makes nothing. `decide` may be called
    /// several times, and holds up every other edit meanwhile. Returns within the limit, once the own tail has read the
    /// write.
    ///
    /// # Errors
    /// `decide` refused, rivals kept interfering, or Kafka did not answer.
    pub async fn write<T, R>(
        &self,
        limit: Duration,
        decide: impl Fn(&Configs) -> Result<(T, Vec<Write>), R> + Send,
    ) -> Result<T, Error<R>> {
        self.change(limit, move |configs| decide(configs).map(|(result, writes)| (result, writes.into())))
            .await
    }

    /// As [`Arbiter::write`], with records of other topics in the same transaction. Of those only that they are committed
    /// is waited for.
    ///
    /// # Errors
    /// As [`Arbiter::write`].
    pub async fn change<T, R>(
        &self,
        limit: Duration,
        decide: impl Fn(&Configs) -> Result<(T, Changes), R> + Send,
    ) -> Result<T, Error<R>> {
        self.ask(limit, false, decide).await
    }

    /// Takes the id anew and ends what is left hanging of it, in the config topic and beside it.
    ///
    /// # Errors
    /// Rivals kept interfering, or Kafka did not answer.
    pub async fn settle(&self, limit: Duration) -> Result<(), Error<Infallible>> {
        self.ask(limit, true, |_| Ok(((), Changes::default()))).await
    }

    /// Whether anything can be written: until a fault of the program ends that.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.requests.is_closed()
    }

    async fn ask<T, R>(
        &self,
        limit: Duration,
        thorough: bool,
        decide: impl Fn(&Configs) -> Result<(T, Changes), R> + Send,
    ) -> Result<T, Error<R>> {
        let end = Instant::now() + limit;
        let changed = timeout_at(end, self.take_turns(end, thorough, decide)).await;
        changed.unwrap_or_else(|_| {
            let late = || kafka::Error::Deadline { action: self.action(), limit };
            Err(Error::Kafka(self.trouble.get().unwrap_or_else(late)))
        })
    }

    /// Decides whenever it is this edit's turn, until one of the decisions stands.
    async fn take_turns<T, R>(
        &self,
        end: Instant,
        thorough: bool,
        decide: impl Fn(&Configs) -> Result<(T, Changes), R> + Send,
    ) -> Result<T, Error<R>> {
        let stopped = || Error::Kafka(kafka::Error::Stopped { action: self.action() });
        let (sender, mut turns) = mpsc::channel(MESSAGES);
        self.requests.send(Request { end, thorough, turns: sender }).await.map_err(|_| stopped())?;
        while let Some(message) = turns.recv().await {
            let ending = match message {
                Message::Over(ending) => ending,
                Message::Turn(turn) => {
                    let (decided, outcome) = turn.take(&decide);
                    match (decided, outcome.await) {
                        (Some(decided), Ok(Outcome::Done)) => return decided.map_err(Error::Refused),
                        (_, Ok(Outcome::Over(ending))) => ending,
                        // Nothing was written of this round, or it went on without us: there will be another.
                        (None, Ok(Outcome::Done)) | (_, Err(_)) => continue,
                    }
                }
            };
            return Err(match ending {
                Ending::Conflict { attempts } => Error::Conflict { attempts },
                Ending::Failed(error) => Error::Kafka(error),
            });
        }
        Err(stopped())
    }

    fn action(&self) -> String {
        format!("write with transactional id {}", self.transactional_id)
    }
}

impl fmt::Debug for Arbiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arbiter").field("transactional_id", &self.transactional_id).finish_non_exhaustive()
    }
}

/// The last failure that has not been put right yet.
#[derive(Debug, Clone, Default)]
struct Trouble(Arc<Mutex<Option<kafka::Error>>>);

impl Trouble {
    fn get(&self) -> Option<kafka::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, error: Option<kafka::Error>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}
