//! Writes to the grants topic, one at a time for each grant across all workers and commands.
//!
//! ```text
//! GrantWriter::write ─▶ FencedWriter (the grant's transactional id): open the grant that is in the topic ─▶ decide ─▶ seal ─▶ commit
//! ```
//!
//! - The transactional id is that of the grant: taking it fences every other writer of this grant, and no writer of another.
//! - A record that this worker cannot open is never overwritten, except by a login, which says so.
//!
//! On failure nothing is in the topic, except where [`Error::Kafka`] says that the outcome is not known.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::time::Instant;

use base::retry::Retry;
use kafka::{FencedWriter, Kafka, Lease, Shards, TransactionOptions, WriterOptions};
use model::EncodedRecord;
use provider::auth::{
    grant::Grant,
    seal::{self, Keyring},
};

use super::table::{CLUSTER, Cluster, GrantTable, Owners, grant_key};
use crate::worker::state::Tail;

/// What an abandoned write may hold back, and how long one initialisation may take: short, since grants share partitions.
const TRANSACTION: Duration = Duration::from_secs(5);
const INIT_LIMIT: Duration = Duration::from_secs(8);
/// How long transactions of others are given to end, where the id has just been taken and none of ours can be under way.
const PATIENCE: Duration = Duration::from_millis(100);

/// The way to the grants topic. Cheap to clone.
#[derive(Clone)]
pub struct GrantStore {
    table: Tail<GrantTable>,
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

impl GrantStore {
    /// For the topic that this tail follows.
    #[must_use]
    pub fn new(kafka: &Kafka, table: Tail<GrantTable>, keys: Arc<Keyring>) -> Self {
        let options = TransactionOptions {
            transaction_timeout: TRANSACTION,
            init_limit: INIT_LIMIT,
            ..TransactionOptions::default()
        };
        Self { table, shards: Shards::new(kafka.clone(), options), keys }
    }

    /// What it follows.
    #[must_use]
    pub fn table(&self) -> &Tail<GrantTable> {
        &self.table
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
        self.table.read(|table| open(&self.keys, table, name))
    }

    /// The way to one grant, which takes its id as soon as it needs it, and only while the lease allows it.
    #[must_use]
    pub fn writer(&self, name: &str, lease: Lease) -> GrantWriter {
        let transactional_id = format!("{}-grant-{name}", self.table.topic());
        let partition = self.place(name);
        GrantWriter {
            writer: self.fenced(partition, transactional_id, lease),
            store: self.clone(),
            partition,
            name: name.to_owned(),
        }
    }

    /// Says whose the topic is, unless somebody has. `adopt` says it in any case. Returns whose it then is.
    ///
    /// # Errors
    /// Kafka did not answer within the limit.
    pub async fn claim(&self, ours: &Owners, adopt: bool, limit: Duration) -> Result<Owners, kafka::Error> {
        let known = self.table.read(|table| table.owners().cloned());
        if let Some(known) = known.filter(|known| known == ours || !adopt) {
            return Ok(known);
        }
        let id = format!("{}-{CLUSTER}", self.table.topic());
        // Partition 0 always exists: this record says where all others are.
        let mut writer = self.fenced(0, id, Arc::new(|| true));
        let decide = |table: &GrantTable| match table.owners() {
            Some(standing) if standing == ours || !adopt => Err(standing.clone()),
            _ => {
                let partitions = Some(table.placed_among(self.table.partitions()));
                let cluster = Cluster { owners: ours.clone(), partitions };
                let value = serde_json::to_vec(&cluster).ok().map(Bytes::from);
                Ok(((), vec![self.encoded(CLUSTER, 0, value)]))
            }
        };
        match writer.write(Instant::now() + limit, decide).await {
            Ok(()) => Ok(ours.clone()),
            Err(error) => error.passing(limit).map_or_else(Ok, Err),
        }
    }

    /// The partition in which everything about a grant is written.
    pub(super) fn place(&self, name: &str) -> i32 {
        self.table.read(|table| table.place(name, self.table.partitions()))
    }

    /// The writer of one record of the topic.
    fn fenced(&self, partition: i32, transactional_id: String, lease: Lease) -> FencedWriter<GrantTable> {
        let options = WriterOptions {
            transactional_id: transactional_id.into(),
            lease,
            partitions: vec![partition],
            also: Vec::new(),
            patience: PATIENCE,
            takes_back: true,
            must_read_back: false,
        };
        FencedWriter::new(self.table.clone(), self.shards.clone(), options)
    }

    fn encoded(&self, key: &str, partition: i32, value: Option<Bytes>) -> EncodedRecord {
        EncodedRecord {
            topic: Arc::clone(self.table.topic()),
            partition,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value,
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }
}

impl fmt::Debug for GrantStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantStore")
            .field("table", &self.table)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// The way to one grant.
#[derive(Debug)]
pub struct GrantWriter {
    writer: FencedWriter<GrantTable>,
    store: GrantStore,
    partition: i32,
    name: String,
}

impl GrantWriter {
    /// Takes the id, so that no other write is under way, and reads what all of them have left.
    ///
    /// # Errors
    /// The lease has ended, Kafka did not answer in time, or the grant cannot be opened.
    pub async fn take<R>(&mut self, end: Instant) -> Result<Option<Grant>, Error<R>> {
        self.writer.take(end).await.map_err(Error::Kafka)?;
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

    /// As [`GrantWriter::write`], also where what stands cannot be opened: `decide` is then asked as if nothing stood there. For a login
    /// alone, which makes everything before it void.
    ///
    /// # Errors
    /// As [`GrantWriter::write`].
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
        let limit = end.saturating_duration_since(Instant::now());
        let tombstone = || self.store.encoded(&grant_key(&self.name), self.partition, None);
        let removed = self.writer.write(end, |_| Ok::<_, Infallible>(((), vec![tombstone()]))).await;
        removed.map_err(|error| error.passing(limit).unwrap_or_else(|never| match never {}))
    }

    /// From here on the id is taken whoever owns the grant: what there is to write must not be lost.
    pub fn insist(&mut self) {
        self.writer.set_lease(Arc::new(|| true));
    }

    async fn put<R>(
        &mut self,
        end: Instant,
        over: bool,
        decide: impl Fn(Option<&Grant>) -> Result<Option<Grant>, R>,
    ) -> Result<Option<Grant>, Error<R>> {
        let limit = end.saturating_duration_since(Instant::now());
        let (store, name, partition) = (&self.store, &self.name, self.partition);
        let sealed = |source| Refusal::Sealed(Error::Sealed { grant: name.clone(), source });
        let make = |table: &GrantTable| {
            let current = match open(&store.keys, table, name) {
                Err(_) if over => None,
                current => current.map_err(sealed)?,
            };
            let changed = decide(current.as_ref()).map_err(Refusal::Decided)?.ok_or(Refusal::Nothing)?;
            let revision = table.next_revision(name, now_ms());
            let envelope = store.keys.seal(&grant_key(name), &changed, revision).map_err(sealed)?;
            let bytes = serde_json::to_vec(&envelope).map_err(|_| sealed(seal::Error::Failed))?;
            Ok((changed, vec![store.encoded(&grant_key(name), partition, Some(bytes.into()))]))
        };
        match self.writer.write(end, make).await {
            Ok(written) => Ok(Some(written)),
            Err(error) => match error.passing(limit) {
                Ok(error) => Err(Error::Kafka(error)),
                Err(Refusal::Nothing) => self.standing(),
                Err(Refusal::Decided(refusal)) => Err(Error::Refused(refusal)),
                Err(Refusal::Sealed(error)) => Err(error),
            },
        }
    }

    fn standing<R>(&self) -> Result<Option<Grant>, Error<R>> {
        let sealed = |source| Error::Sealed { grant: self.name.clone(), source };
        self.store.grant(&self.name).map_err(sealed)
    }
}

/// Why nothing was written to a grant.
enum Refusal<R> {
    Nothing,
    Decided(R),
    Sealed(Error<R>),
}

/// A grant of the table, opened; `None` where there is none.
fn open(keys: &Keyring, table: &GrantTable, name: &str) -> Result<Option<Grant>, seal::Error> {
    match table.grants().get(name).map(|entry| entry.envelope.as_ref()) {
        None => Ok(None),
        Some(None) => Err(seal::Error::Damaged),
        Some(Some(envelope)) => keys.open(&grant_key(name), envelope).map(Some),
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(now).unwrap_or(u64::MAX)
}
