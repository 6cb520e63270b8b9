//! Writes to the grants topic, one at a time for each grant across all workers and commands.
//!
//! ```text
//! GrantWriter::write ─▶ FencedWriter (transactional id of the grant): open the grant in the topic ─▶ decide ─▶ seal ─▶ commit
//! ```
//!
//! - The transactional id is that of the grant: taking it fences every other writer of this grant, and none of another.
//! - A record that this worker cannot open is never overwritten, except by a login that requests it.
//!
//! On failure nothing is written, unless [`Error::Kafka`] says that the outcome is unknown.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use base::retry::Retry;
use kafka::{FencedWriter, Kafka, Lease, ShardProducers, TransactionOptions, WriterOptions};
use model::{EncodedRecord, Moment};
use provider::auth::{
    grant::Grant,
    seal::{self, Keyring},
};

use super::table::{CLUSTER, ClusterRecord, GrantTable, TopicOwners, grant_key};
use crate::state::Table;

/// An abandoned transaction blocks readers of the partition for this long; short, because grants share partitions.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(5);
const INIT_LIMIT: Duration = Duration::from_secs(8);
/// Wait for other transactions to end after taking the id, when none of ours can be open.
const OTHER_TRANSACTIONS_WAIT: Duration = Duration::from_millis(100);

/// Reads and writes the grants topic. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GrantStore {
    table: Table<GrantTable>,
    shards: ShardProducers,
    keys: Arc<Keyring>,
}

/// Why a write failed. Nothing of it is in the topic, unless noted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The grant in the topic cannot be opened, or the next one cannot be sealed.
    #[error("read the grant {grant}")]
    Sealed {
        /// Its name.
        grant: String,
        /// Why.
        #[source]
        source: seal::Error,
    },
    /// Kafka did not acknowledge it in time. The outcome is unknown until the topic is read.
    #[error("write to the grants topic")]
    Kafka(#[source] kafka::Error),
}

impl Error {
    /// Whether the same write may succeed later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Sealed { source, .. } => source.retry(),
            // A fenced writer takes the id again, and a lease that ended may be granted again.
            Self::Kafka(
                kafka::Error::Fenced { .. } | kafka::Error::Stopped { .. } | kafka::Error::LeaseEnded { .. },
            ) => Retry::Later,
            Self::Kafka(source) => source.retry(),
        }
    }
}

impl GrantStore {
    /// For the topic that this table follows.
    #[must_use]
    pub fn new(kafka: &Kafka, table: Table<GrantTable>, keys: Arc<Keyring>) -> Self {
        let options = TransactionOptions {
            transaction_timeout: TRANSACTION_TIMEOUT,
            init_limit: INIT_LIMIT,
            ..TransactionOptions::default()
        };
        Self { table, shards: ShardProducers::new(kafka.clone(), options), keys }
    }

    /// The table it reads.
    #[must_use]
    pub fn table(&self) -> &Table<GrantTable> {
        &self.table
    }

    /// The keys that open and seal grants.
    #[must_use]
    pub fn keys(&self) -> &Arc<Keyring> {
        &self.keys
    }

    /// A grant as it was last read; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn grant(&self, name: &str) -> Result<Option<Grant>, seal::Error> {
        self.table.read(|table| self.open(table, name))
    }

    /// The writer of one grant. It takes the transactional id when it needs it, and only while the lease holds.
    #[must_use]
    pub fn writer(&self, name: &str, lease: Lease) -> GrantWriter {
        let transactional_id = format!("{}-grant-{name}", self.table.topic());
        let partition = self.place(name);
        GrantWriter {
            writer: self.fenced(partition, transactional_id, lease),
            store: self.clone(),
            partition,
            name: name.to_owned(),
            overwrites: false,
        }
    }

    /// Whether a grant is encrypted with the previous key.
    pub(super) fn is_sealed_before(&self, name: &str) -> bool {
        self.table.read(|table| {
            let envelope = table.grants().get(name).and_then(|record| record.envelope.as_ref());
            envelope.is_some_and(|envelope| envelope.kid != self.keys.kid())
        })
    }

    /// Claims the topic for a group of workers, unless another group owns it; `adopt` takes it over. Returns the owners.
    ///
    /// # Errors
    /// Kafka did not answer within the limit.
    pub async fn claim(
        &self,
        ours: &TopicOwners,
        adopt: bool,
        limit: Duration,
    ) -> Result<TopicOwners, kafka::Error> {
        let settled = |table: &GrantTable| table.owners().filter(|owners| *owners == ours || !adopt).cloned();
        if let Some(owners) = self.table.read(settled) {
            return Ok(owners);
        }
        let id = format!("{}-{CLUSTER}", self.table.topic());
        // Partition 0 always exists; this record says where all others are.
        let mut writer = self.fenced(0, id, Arc::new(|| true));
        let decide = |table: &GrantTable| {
            if let Some(owners) = settled(table) {
                return Ok::<_, Infallible>((owners, Vec::new()));
            }
            let partitions = Some(table.placed_among(self.table.partitions()));
            let cluster = ClusterRecord { owners: ours.clone(), partitions };
            let value = serde_json::to_vec(&cluster).ok().map(Bytes::from);
            Ok((ours.clone(), vec![self.record(CLUSTER, 0, value)]))
        };
        let claimed = writer.write(Instant::now() + limit, decide).await;
        claimed.map_err(|error| error.into_error(limit))
    }

    /// The partition for all records of a grant.
    pub(super) fn place(&self, name: &str) -> i32 {
        self.table.read(|table| table.place(name, self.table.partitions()))
    }

    /// The writer of one record of the topic.
    fn fenced(&self, partition: i32, transactional_id: String, lease: Lease) -> FencedWriter<GrantTable> {
        let options = WriterOptions {
            transactional_id: transactional_id.into(),
            lease,
            partitions: vec![partition],
            other_partitions: Vec::new(),
            transaction_wait: OTHER_TRANSACTIONS_WAIT,
            takes_back: true,
            must_read_back: false,
        };
        FencedWriter::new(self.table.clone(), self.shards.clone(), options)
    }

    /// A grant of the table, decrypted; `None` if there is none.
    fn open(&self, table: &GrantTable, name: &str) -> Result<Option<Grant>, seal::Error> {
        let Some(record) = table.grants().get(name) else { return Ok(None) };
        let envelope = record.envelope.as_ref().ok_or(seal::Error::Damaged)?;
        self.keys.open(&grant_key(name), envelope).map(Some)
    }

    /// A record of the topic.
    pub(super) fn record(&self, key: &str, partition: i32, value: Option<Bytes>) -> EncodedRecord {
        EncodedRecord::new(self.table.topic(), partition, key.to_owned(), value)
    }
}

/// Writes one grant.
#[derive(Debug)]
pub struct GrantWriter {
    writer: FencedWriter<GrantTable>,
    store: GrantStore,
    partition: i32,
    name: String,
    /// Whether a grant that cannot be opened counts as absent.
    overwrites: bool,
}

impl GrantWriter {
    /// Takes the id, so that no other write is in progress, and returns the grant as all of them have left it.
    ///
    /// # Errors
    /// The lease has ended, Kafka did not answer in time, or the grant cannot be opened.
    pub async fn take(&mut self, end: Instant) -> Result<Option<Grant>, Error> {
        self.writer.take(end).await.map_err(Error::Kafka)?;
        self.store.grant(&self.name).map_err(|source| self.sealed(source))
    }

    /// Writes the grant that `decide` makes of the one in the topic; nothing if it returns `None`. `decide` may be called several
    /// times. Returns the grant in the topic after that: the written one, even if this worker has not read it back by `end`.
    ///
    /// # Errors
    /// The grant cannot be opened, or Kafka did not take the write before `end`.
    pub async fn write(
        &mut self,
        end: Instant,
        decide: impl Fn(Option<&Grant>) -> Option<Grant>,
    ) -> Result<Option<Grant>, Error> {
        let limit = end.saturating_duration_since(Instant::now());
        let (store, name, partition, over) = (&self.store, &self.name, self.partition, self.overwrites);
        let key = grant_key(name);
        let make = |table: &GrantTable| {
            let before = match store.open(table, name) {
                Err(_) if over => None,
                opened => opened?,
            };
            let Some(grant) = decide(before.as_ref()) else { return Ok((before, Vec::new())) };
            let envelope = store.keys.seal(&key, &grant, table.next_revision(name, wall_ms()))?;
            let bytes = serde_json::to_vec(&envelope).map_err(|_| seal::Error::Failed)?;
            Ok((Some(grant), vec![store.record(&key, partition, Some(bytes.into()))]))
        };
        self.writer.write(end, make).await.map_err(|error| match error.passing(limit) {
            Ok(error) => Error::Kafka(error),
            Err(source) => self.sealed(source),
        })
    }

    /// Removes the grant, even if it cannot be opened.
    ///
    /// # Errors
    /// Kafka did not take it before `end`.
    pub async fn remove(&mut self, end: Instant) -> Result<(), kafka::Error> {
        let limit = end.saturating_duration_since(Instant::now());
        let tombstone = || self.store.record(&grant_key(&self.name), self.partition, None);
        let removed = self.writer.write(end, |_| Ok::<_, Infallible>(((), vec![tombstone()]))).await;
        removed.map_err(|error| error.into_error(limit))
    }

    /// From here on a grant that cannot be opened counts as absent. Only for a login, which voids everything before it.
    pub fn overwrite_unreadable(&mut self) {
        self.overwrites = true;
    }

    /// From here on the id is taken without a lease: the next write must not be lost.
    pub fn insist(&mut self) {
        self.writer.set_lease(Arc::new(|| true));
    }

    fn sealed(&self, source: seal::Error) -> Error {
        Error::Sealed { grant: self.name.clone(), source }
    }
}

/// This machine's time, in milliseconds since 1970.
pub(super) fn wall_ms() -> i64 {
    Moment::now().micros() / 1_000
}
