//! Writes to the grants topic, one at a time for each grant across all workers and commands.
//!
//! ```text
//! hold: take the grant's transactional id ─▶ read its partition to the end, decided ─▶ [`Held`]
//! write: decide on what stands ─▶ seal ─▶ commit ─▶ read back      refused by the broker: take, read and decide anew
//! ```
//!
//! - The id is that of the grant: whoever takes it fences every other writer of this grant, and no writer of another.
//! - While the id is ours nobody else has written the record, so a second write decides on what the first has left. If a rival has
//!   taken it meanwhile, the broker refuses the write, and it begins anew with what the rival left.
//! - Every write has an id of its own in a header. One whose outcome is unknown is looked for in the log before anything else
//!   is decided, and counts as done where it is found: nothing is written twice.
//! - A record that this worker cannot open is never written over, except by a login, which says so.
//!
//! On failure nothing is in the topic, except where [`Error::Kafka`] says that the outcome is not known.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use base::retry::{Backoff, Policy, Retry};
use kafka::{Failure, Kafka, Lease, ShardProducer, Shards, TransactionOptions, Waits};
use model::EncodedRecord;
use provider::auth::{
    grant::Grant,
    seal::{self, Keyring},
};

use super::book::{Book, CLUSTER, Cluster, Owners, grant_key};
use crate::worker::state::{Tail, configs::WRITE_HEADER, write_id};

/// What an abandoned write may hold back, and how long one initialisation may take: short, since grants share partitions.
const TRANSACTION: Duration = Duration::from_secs(5);
const INIT_LIMIT: Duration = Duration::from_secs(8);
/// How long transactions of others are given to end, where the id has just been taken and none of ours can be under way.
const PATIENCE: Duration = Duration::from_millis(100);
/// Waits between attempts.
const BETWEEN: Policy =
    Policy { first: Duration::from_millis(60), longest: Duration::from_secs(2), total: None };
/// The longest a rival is waited for that has taken the id: a few times what a write needs.
const RIVAL: Duration = Duration::from_millis(400);

/// The way to the grants topic. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    book: Tail<Book>,
    shards: Shards,
    keys: Arc<Keyring>,
}

/// Why a write did not happen. Nothing of it is in the topic, unless said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<R> {
    /// What stands in the topic does not allow it.
    #[error("refused")]
    Refused(R),
    /// What stands in the topic cannot be opened, or what is to stand there cannot be sealed.
    #[error("read the grant {grant}")]
    Sealed {
        /// Its name.
        grant: String,
        /// Why.
        #[source]
        source: seal::Error,
    },
    /// Kafka did not take it in time. Whether it did all the same is not known; reading the topic tells.
    #[error("write to the grants topic")]
    Kafka(#[source] kafka::Error),
}

impl<R> Error<R> {
    /// Whether the same write may pass later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Refused(_) => Retry::Never,
            Self::Sealed { source, .. } => source.retry(),
            // Whoever is fenced takes the id anew, and whoever has lost a lease may get another.
            Self::Kafka(
                kafka::Error::Fenced { .. } | kafka::Error::Stopped { .. } | kafka::Error::LeaseEnded { .. },
            ) => Retry::Later,
            Self::Kafka(source) => source.retry(),
        }
    }
}

impl Ledger {
    /// For the topic that this tail follows.
    #[must_use]
    pub fn new(kafka: &Kafka, book: Tail<Book>, keys: Arc<Keyring>) -> Self {
        let options = TransactionOptions {
            transaction_timeout: TRANSACTION,
            init_limit: INIT_LIMIT,
            ..TransactionOptions::default()
        };
        Self { book, shards: Shards::new(kafka.clone(), options), keys }
    }

    /// What it follows.
    #[must_use]
    pub fn book(&self) -> &Tail<Book> {
        &self.book
    }

    /// The keys that open and seal.
    #[must_use]
    pub fn keys(&self) -> &Arc<Keyring> {
        &self.keys
    }

    /// A grant as it was last read; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn grant(&self, name: &str) -> Result<Option<Grant>, seal::Error> {
        self.book.read(|book| open(&self.keys, book, name))
    }

    /// The way to one grant, which takes its id as soon as it needs it, and only while the lease allows it.
    #[must_use]
    pub fn hold(&self, name: &str, lease: Lease) -> Held {
        let transactional_id = format!("{}-grant-{name}", self.book.topic());
        let partition = self.place(name);
        Held {
            record: self.record(grant_key(name), partition, transactional_id, lease),
            name: name.to_owned(),
        }
    }

    /// Says whose the topic is, unless somebody has. `adopt` says it in any case. Returns whose it then is.
    ///
    /// # Errors
    /// Kafka did not answer within the limit.
    pub async fn claim(&self, ours: &Owners, adopt: bool, limit: Duration) -> Result<Owners, kafka::Error> {
        let known = self.book.read(|book| book.owners().cloned());
        if let Some(known) = known.filter(|known| known == ours || !adopt) {
            return Ok(known);
        }
        let id = format!("{}-{CLUSTER}", self.book.topic());
        // Always there: it is what tells where everything else is.
        let mut record = self.record(CLUSTER.to_owned(), 0, id, Arc::new(|| true));
        let decide = |book: &Book| match book.owners() {
            Some(standing) if standing == ours || !adopt => Err(standing.clone()),
            _ => {
                let partitions = Some(book.placed_among(self.book.partitions()));
                let cluster = Cluster { owners: ours.clone(), partitions };
                Ok((serde_json::to_vec(&cluster).ok().map(Bytes::from), ()))
            }
        };
        match record.write(Instant::now() + limit, decide).await {
            Ok(()) => Ok(ours.clone()),
            Err(Error::Refused(standing)) => Ok(standing),
            Err(Error::Kafka(error)) => Err(error),
            // Nothing is sealed here.
            Err(Error::Sealed { .. }) => Ok(ours.clone()),
        }
    }

    /// The partition in which everything about a grant is written.
    pub(super) fn place(&self, name: &str) -> i32 {
        self.book.read(|book| book.place(name, self.book.partitions()))
    }

    fn record(&self, key: String, partition: i32, transactional_id: String, lease: Lease) -> Record {
        Record {
            ledger: self.clone(),
            key,
            partition,
            transactional_id: transactional_id.into(),
            lease,
            producer: None,
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("book", &self.book).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// The way to one grant.
#[derive(Debug)]
pub struct Held {
    record: Record,
    name: String,
}

impl Held {
    /// Takes the id, so that no other write is under way, and reads what all of them have left.
    ///
    /// # Errors
    /// The lease has ended, Kafka did not answer in time, or the grant cannot be opened.
    pub async fn look<R>(&mut self, end: Instant) -> Result<Option<Grant>, Error<R>> {
        self.record.look(end).await.map_err(Error::Kafka)?;
        self.standing()
    }

    /// Writes what `decide` makes of the grant that stands; nothing if it makes nothing. `decide` may be called several times.
    /// Returns what was written, also where the own tail has not read it by `end`; else what stands.
    ///
    /// # Errors
    /// `decide` refused, the grant cannot be opened, or Kafka did not take it until `end`.
    pub async fn write<R>(
        &mut self,
        end: Instant,
        decide: impl Fn(Option<&Grant>) -> Result<Option<Grant>, R>,
    ) -> Result<Option<Grant>, Error<R>> {
        self.put(end, false, decide).await
    }

    /// As [`Held::write`], also where what stands cannot be opened: `decide` is then asked as if nothing stood there. For a login
    /// alone, which makes everything before it void.
    ///
    /// # Errors
    /// As [`Held::write`].
    pub async fn write_over<R>(
        &mut self,
        end: Instant,
        decide: impl Fn(Option<&Grant>) -> Result<Option<Grant>, R>,
    ) -> Result<Option<Grant>, Error<R>> {
        self.put(end, true, decide).await
    }

    /// Removes the grant with all that is known of it, whether it can be opened or not.
    ///
    /// # Errors
    /// Kafka did not take it until `end`.
    pub async fn remove(&mut self, end: Instant) -> Result<(), kafka::Error> {
        let nothing = |_: &Book| Ok::<_, std::convert::Infallible>((None, ()));
        match self.record.write(end, nothing).await {
            Ok(()) => Ok(()),
            Err(Error::Kafka(error)) => Err(error),
            Err(Error::Refused(never)) => match never {},
            // Nothing is opened here.
            Err(Error::Sealed { .. }) => Ok(()),
        }
    }

    /// From here on the id is taken whoever owns the grant: what there is to write must not be lost.
    pub fn insist(&mut self) {
        self.record.lease = Arc::new(|| true);
    }

    async fn put<R>(
        &mut self,
        end: Instant,
        over: bool,
        decide: impl Fn(Option<&Grant>) -> Result<Option<Grant>, R>,
    ) -> Result<Option<Grant>, Error<R>> {
        let (ledger, name) = (self.record.ledger.clone(), self.name.clone());
        let sealed = |source| Refusal::Sealed(Error::Sealed { grant: name.clone(), source });
        let make = |book: &Book| {
            let stands = match open(&ledger.keys, book, &name) {
                Err(_) if over => None,
                stands => stands.map_err(sealed)?,
            };
            let changed = decide(stands.as_ref()).map_err(Refusal::Decided)?.ok_or(Refusal::Nothing)?;
            let revision = book.next_revision(&name, now_ms());
            let envelope = ledger.keys.seal(&grant_key(&name), &changed, revision).map_err(sealed)?;
            let bytes = serde_json::to_vec(&envelope).map_err(|_| sealed(seal::Error::Failed))?;
            Ok((Some(Bytes::from(bytes)), changed))
        };
        match self.record.write(end, make).await {
            Ok(written) => Ok(Some(written)),
            Err(Error::Refused(Refusal::Nothing)) => self.standing(),
            Err(Error::Refused(Refusal::Decided(refusal))) => Err(Error::Refused(refusal)),
            Err(Error::Refused(Refusal::Sealed(error))) => Err(error),
            Err(Error::Sealed { grant, source }) => Err(Error::Sealed { grant, source }),
            Err(Error::Kafka(error)) => Err(Error::Kafka(error)),
        }
    }

    fn standing<R>(&self) -> Result<Option<Grant>, Error<R>> {
        let sealed = |source| Error::Sealed { grant: self.name.clone(), source };
        self.record.ledger.grant(&self.name).map_err(sealed)
    }
}

/// Why nothing was written to a grant.
enum Refusal<R> {
    Nothing,
    Decided(R),
    Sealed(Error<R>),
}

/// One record of the topic and the id with which it is written.
struct Record {
    ledger: Ledger,
    key: String,
    partition: i32,
    transactional_id: Arc<str>,
    lease: Lease,
    /// The id in our hands, with everything before it read, as far as we know.
    producer: Option<ShardProducer>,
}

impl Record {
    async fn look(&mut self, end: Instant) -> Result<(), kafka::Error> {
        let book = self.ledger.book.clone();
        let taking = async {
            let id = Arc::clone(&self.transactional_id);
            let mut producer = self.ledger.shards.take(id, Arc::clone(&self.lease)).await?;
            let waits = Waits { also: &[], patience: PATIENCE, limit: left(end) };
            book.read_settled(&mut producer, &[self.partition], waits).await?;
            Ok(producer)
        };
        self.producer = None;
        let taken = timeout_at(end, taking).await;
        self.producer = Some(taken.unwrap_or_else(|_| Err(self.late()))?);
        Ok(())
    }

    /// Writes what `decide` makes of the book, and returns what came with it.
    async fn write<R, T>(
        &mut self,
        end: Instant,
        decide: impl Fn(&Book) -> Result<(Option<Bytes>, T), R>,
    ) -> Result<T, Error<R>> {
        let book = self.ledger.book.clone();
        let mut backoff = Backoff::new(BETWEEN, seed());
        // A write that may be in the log.
        let mut unsure: Option<(Bytes, T)> = None;
        let mut trouble = None;
        loop {
            if self.producer.is_none()
                && let Err(error) = self.look(end).await
            {
                self.pause(error, &mut trouble, &mut backoff, end).await.map_err(Error::Kafka)?;
                continue;
            }
            // Everything before is decided and read, also one of ours that nobody could tell the outcome of.
            if let Some((id, written)) = unsure.take()
                && book.read(|book| book.has_write(&id))
            {
                return Ok(written);
            }
            // Only ever used once before it is known to be good still.
            let Some(mut producer) = self.producer.take() else { continue };
            let (value, written) = match book.read(&decide) {
                Ok(made) => made,
                Err(refusal) => {
                    // Nothing was written, so the broker did not say whether the id is still ours; the next write will.
                    self.producer = Some(producer);
                    return Err(Error::Refused(refusal));
                }
            };
            let id = write_id();
            let committed = timeout_at(end, producer.commit(vec![self.encoded(value, &id)])).await;
            let error = match committed {
                Ok(Ok(_)) => {
                    // Who has not read it cannot decide the next: then the id is taken anew for that.
                    let read = timeout_at(end, self.read_back(&id)).await;
                    self.producer = read.is_ok().then_some(producer);
                    return Ok(written);
                }
                Ok(Err(Failure::Aborted { source })) if source.retry() == Retry::Never => {
                    return Err(Error::Kafka(source));
                }
                Ok(Err(Failure::Aborted { source })) => source,
                Ok(Err(
                    Failure::Rebuilt { source } | Failure::Fenced { source } | Failure::Over { source },
                )) => {
                    unsure = Some((id, written));
                    source
                }
                Err(_) => return Err(Error::Kafka(trouble.unwrap_or_else(|| self.late()))),
            };
            // Whatever it was, the id is taken anew.
            drop(producer);
            self.pause(error, &mut trouble, &mut backoff, end).await.map_err(Error::Kafka)?;
        }
    }

    /// Waits before the next attempt; for a rival that has taken the id until its write is there, and not much longer.
    async fn pause(
        &self,
        error: kafka::Error,
        trouble: &mut Option<kafka::Error>,
        backoff: &mut Backoff,
        end: Instant,
    ) -> Result<(), kafka::Error> {
        let is_rival = matches!(error, kafka::Error::Fenced { .. });
        let is_final =
            error.retry() == Retry::Never && !is_rival && !matches!(error, kafka::Error::Stopped { .. });
        let wait = backoff.next_wait(Retry::Later).unwrap_or_default();
        if is_final || left(end) <= wait {
            return Err(error);
        }
        tracing::debug!(id = &*self.transactional_id, %error, "a write to the grants topic has to be tried again");
        *trouble = Some(error);
        if is_rival {
            let mut changes = self.ledger.book.changes();
            changes.mark_unchanged();
            timeout(RIVAL.min(left(end)), changes.changed()).await.ok();
        }
        sleep(wait).await;
        Ok(())
    }

    /// Waits until the own tail has read a write that is committed.
    async fn read_back(&self, id: &Bytes) {
        let book = &self.ledger.book;
        let mut changes = book.changes();
        while !book.read(|book| book.has_write(id)) && changes.changed().await.is_ok() {}
    }

    fn encoded(&self, value: Option<Bytes>, id: &Bytes) -> EncodedRecord {
        EncodedRecord {
            topic: Arc::clone(self.ledger.book.topic()),
            partition: self.partition,
            key: Bytes::copy_from_slice(self.key.as_bytes()),
            value,
            headers: vec![(WRITE_HEADER, id.clone())],
            timestamp_ms: None,
        }
    }

    fn late(&self) -> kafka::Error {
        let action = format!("write with transactional id {}", self.transactional_id);
        kafka::Error::Deadline { action, limit: Duration::ZERO }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("transactional_id", &self.transactional_id).finish_non_exhaustive()
    }
}

/// A grant of the book, opened; `None` where there is none.
fn open(keys: &Keyring, book: &Book, name: &str) -> Result<Option<Grant>, seal::Error> {
    match book.grants().get(name).map(|entry| entry.envelope.as_ref()) {
        None => Ok(None),
        Some(None) => Err(seal::Error::Damaged),
        Some(Some(envelope)) => keys.open(&grant_key(name), envelope).map(Some),
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(now).unwrap_or(u64::MAX)
}

/// Spreads rivals that begin at the same moment.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    (now as u64).rotate_left(32) ^ u64::from(std::process::id())
}
