//! Follows `{prefix}.state` topics: subscriptions, gaps and runs, shared by all readers on this worker. Writes them too.
//!
//! ```text
//! {prefix}.state ─▶ Table<StateTable> ─▶ StateTopic: read, read_runs, changes ─▶ reconciler, RecordSource tasks, REST, metrics
//!   ▲ ▲ ▲
//!   │ │ ├── StateWriter: fenced transactions ◀── the subscription reconciler of a WebhookSource task
//!   │ │ └── StateTopic::put: single records ◀──┬─ REST on any worker
//!   │ │                                        └─ the first task of a RecordSource: automatic runs, repairs, results of gaps
//!   │ └── progress and gaps of a shard ◀── the shard's own producer, in the transactions of its batches
//!   └── what receivers report ◀── webhooks::ingest
//! ```
//!
//! - The prefixes of all `WebhookSource` and `RecordSource` connectors that are not stopped are followed from the start, up to
//!   [`MAX_EAGER`]; others on request. A missing topic is looked up again; only the task creates it.
//! - `put` uses a plain producer with acks=all: taking the transactional id would fence the reconciler, and a single record is atomic
//!   anyway.
//! - Every worker reads the same topics, so every worker shows the same.
//!
//! On failure: while Kafka is unreachable readers see the last known state; a prefix that cannot be followed is retried.

mod metrics;
mod table;
mod writer;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use base::metrics::live::ScrapePage;
use kafka::{Admin, PlainWriter, partition_of};
use model::{EncodedRecord, Key, Moment, Partitioning, Topic, TopicPrefix};

pub use self::{table::StateTable, writer::StateWriter};
use super::{
    Table,
    configs::{Configs, Properties},
};
use crate::{
    config::{
        self, Connector,
        connector::{Class, TargetState, keys},
    },
    publish::{self, Layout, open_state},
    state::{runs::Runs, subscriptions::SubscriptionState},
};

/// Limit on the prefixes that are followed without a request.
pub const MAX_EAGER: usize = 64;
/// Limit on the further prefixes that are followed on request.
const MAX_ON_DEMAND: usize = 16;
/// How often missing topics are looked up.
const MISSING_TOPIC_INTERVAL: Duration = Duration::from_secs(3);
/// How long a single record may take to be written and read back.
const PUT_LIMIT: Duration = Duration::from_secs(5);
/// Limit on the queued single records, in bytes.
const QUEUE_BYTES: usize = 4 << 20;

/// Why a state topic cannot be followed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Kafka did not answer, or refused.
    #[error("reach the state topic of prefix {prefix}")]
    Kafka {
        /// The prefix.
        prefix: String,
        /// Kafka's error.
        #[source]
        source: kafka::Error,
    },
    /// The topic does not have the required settings.
    #[error("open the state topic")]
    Topic(#[source] publish::Error),
}

impl Error {
    /// Whether a retry may help.
    #[must_use]
    pub fn retry(&self) -> base::retry::Retry {
        match self {
            Self::Kafka { source, .. } => source.retry(),
            Self::Topic(source) => source.retry(),
        }
    }
}

/// The state topics that a worker follows. Cheap to clone.
#[derive(Clone)]
pub struct StateTopics(Arc<FollowedTopics>);

struct FollowedTopics {
    worker: Arc<config::Worker>,
    admin: Admin,
    slots: Mutex<BTreeMap<String, FollowedTopic>>,
    /// Topics are opened one at a time, so that none is followed twice.
    opening: tokio::sync::Mutex<()>,
}

struct FollowedTopic {
    handle: StateTopic,
    /// When it was last requested.
    used: Instant,
    /// Whether a connector needs it.
    wanted: bool,
}

impl StateTopics {
    /// Follows nothing yet.
    #[must_use]
    pub fn new(worker: Arc<config::Worker>, admin: Admin) -> Self {
        let (slots, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(FollowedTopics { worker, admin, slots, opening }))
    }

    /// The state topic of a prefix, if this worker follows it already.
    #[must_use]
    pub fn known(&self, prefix: &str) -> Option<StateTopic> {
        let mut slots = self.0.slots.lock();
        let slot = slots.get_mut(prefix)?;
        slot.used = Instant::now();
        Some(slot.handle.clone())
    }

    /// The state topic of a prefix, read to its end; `None` if it does not exist.
    ///
    /// # Errors
    /// Kafka did not answer.
    pub async fn of(&self, prefix: &TopicPrefix) -> Result<Option<StateTopic>, Error> {
        let topic = Topic::State.name(prefix);
        let handle = match self.known(prefix.as_str()) {
            Some(handle) => handle,
            None => {
                let failed = |source| Error::Kafka { prefix: prefix.to_string(), source };
                let counts = self.0.admin.partition_counts(&[&topic]).await.map_err(failed)?;
                let Some(partitions) = counts.get(&topic) else { return Ok(None) };
                self.follow(prefix, *partitions, false).await?
            }
        };
        handle.caught_up().await;
        Ok(Some(handle))
    }

    /// The same for the writer: creates the topic if it is missing and that is allowed.
    ///
    /// # Errors
    /// The topic does not have the required settings, or Kafka did not answer.
    pub async fn open(&self, source: &config::WebhookSource) -> Result<StateTopic, Error> {
        let prefix = source.common.topic_prefix.clone();
        let handle = match self.known(prefix.as_str()) {
            Some(handle) => handle,
            None => {
                let connector = Connector::WebhookSource(Box::new(source.clone()));
                let layout = Layout { create: self.0.worker.topic_creation, ..Layout::of(&connector) };
                let partitions = open_state(&layout, &self.0.admin).await.map_err(Error::Topic)?;
                self.follow(&prefix, partitions, true).await?
            }
        };
        handle.caught_up().await;
        Ok(handle)
    }

    /// Follows the topics that connectors need, until cancelled.
    pub async fn run(self, configs: Table<Configs>, cancel: CancellationToken) {
        let mut changes = configs.changes();
        loop {
            changes.borrow_and_update();
            let wanted = wanted(&configs.read(sources));
            let missing = match cancel.run_until_cancelled(self.catch_up(&wanted)).await {
                None => return,
                Some(Ok(missing)) => missing,
                Some(Err(error)) => {
                    tracing::debug!(error = %base::retry::ErrorChain(&error), "could not follow the state topics yet; retrying");
                    true
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                // The table here keeps the sender alive.
                _ = changes.changed() => {}
                () = sleep(MISSING_TOPIC_INTERVAL), if missing => {}
            }
        }
    }

    /// Adds subscriptions, gaps and runs to a page of metrics, by connector.
    pub fn measure(&self, page: &mut ScrapePage) {
        let handles: Vec<StateTopic> = self.0.slots.lock().values().map(|slot| slot.handle.clone()).collect();
        let now = Moment::now().micros();
        for handle in handles {
            handle.table.read(|table| {
                for (connector, state) in table.iter() {
                    metrics::subscriptions(page, connector, state, now);
                }
                for (connector, runs) in table.iter_runs() {
                    metrics::runs(page, connector, runs, handle.shards());
                }
            });
        }
    }

    /// Follows the existing topics. Returns whether some are missing.
    async fn catch_up(&self, wanted: &BTreeSet<TopicPrefix>) -> Result<bool, Error> {
        {
            let mut slots = self.0.slots.lock();
            for (prefix, slot) in &mut *slots {
                slot.wanted = wanted.iter().any(|wanted| wanted.as_str() == prefix);
            }
            limit(&mut slots);
        }
        let missing: Vec<&TopicPrefix> =
            wanted.iter().filter(|prefix| !self.0.slots.lock().contains_key(prefix.as_str())).collect();
        if missing.is_empty() {
            return Ok(false);
        }
        let topics: Vec<String> = missing.iter().map(|prefix| Topic::State.name(prefix)).collect();
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let failed = |source| Error::Kafka { prefix: missing[0].to_string(), source };
        let counts = self.0.admin.partition_counts(&names).await.map_err(failed)?;
        for (prefix, topic) in missing.iter().zip(&topics) {
            if let Some(partitions) = counts.get(topic) {
                self.follow(prefix, *partitions, true).await?;
            }
        }
        Ok(counts.len() < topics.len())
    }

    async fn follow(&self, prefix: &TopicPrefix, partitions: i32, wanted: bool) -> Result<StateTopic, Error> {
        let _opening = self.0.opening.lock().await;
        if let Some(handle) = self.known(prefix.as_str()) {
            return Ok(handle);
        }
        let failed = |source| Error::Kafka { prefix: prefix.to_string(), source };
        let topic = Topic::State.name(prefix);
        let table = Table::follow(&self.0.worker.kafka, &topic, partitions).await.map_err(failed)?;
        let plain = Arc::new(PlainWriter::new(&self.0.worker.kafka, QUEUE_BYTES));
        let handle = StateTopic { prefix: prefix.as_str().into(), table, plain };
        let mut slots = self.0.slots.lock();
        slots.insert(
            prefix.as_str().to_owned(),
            FollowedTopic { handle: handle.clone(), used: Instant::now(), wanted },
        );
        limit(&mut slots);
        Ok(handle)
    }
}

impl fmt::Debug for StateTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefixes: Vec<String> = self.0.slots.lock().keys().cloned().collect();
        f.debug_struct("StateTopics").field("prefixes", &prefixes).finish_non_exhaustive()
    }
}

/// Configurations of the connectors that are not stopped and have a state topic, ordered by name.
fn sources(configs: &Configs) -> Vec<Arc<Properties>> {
    let wants = |connector: &&crate::state::configs::StoredConnector| {
        let class = connector.config.get(keys::CONNECTOR_CLASS.name);
        let class = class.and_then(|class| Class::parse(class));
        matches!(class, Some(Class::WebhookSource | Class::RecordSource))
            && connector.target != TargetState::Stopped
    };
    configs.connectors().values().filter(wants).map(|connector| Arc::clone(&connector.config)).collect()
}

/// The prefixes in these configurations, at most [`MAX_EAGER`].
fn wanted(sources: &[Arc<Properties>]) -> BTreeSet<TopicPrefix> {
    let mut wanted = BTreeSet::new();
    for text in sources.iter().filter_map(|config| config.get(keys::TOPIC_PREFIX.name)) {
        if wanted.len() < MAX_EAGER {
            wanted.extend(TopicPrefix::new(text.trim()).ok());
        }
    }
    wanted
}

/// Drops topics that no connector needs, least recently requested first, down to [`MAX_ON_DEMAND`].
fn limit(slots: &mut BTreeMap<String, FollowedTopic>) {
    while slots.values().filter(|slot| !slot.wanted).count() > MAX_ON_DEMAND {
        let oldest = slots.iter().filter(|(_, slot)| !slot.wanted).min_by_key(|(_, slot)| slot.used);
        let Some(prefix) = oldest.map(|(prefix, _)| prefix.clone()) else { return };
        slots.remove(&prefix);
    }
}

/// The state topic of one prefix. Cheap to clone; it is followed while a clone exists.
#[derive(Clone)]
pub struct StateTopic {
    prefix: Arc<str>,
    table: Table<StateTable>,
    /// Writes single records.
    plain: Arc<PlainWriter>,
}

impl StateTopic {
    /// Reads a connector's subscriptions, which are empty if nothing was written.
    pub fn read<T>(&self, connector: &str, then: impl FnOnce(&SubscriptionState) -> T) -> T {
        self.table.read(|table| match table.of(connector) {
            Some(state) => then(state),
            None => then(&SubscriptionState::default()),
        })
    }

    /// A copy of a connector's subscriptions.
    #[must_use]
    pub fn subscriptions(&self, connector: &str) -> SubscriptionState {
        self.read(connector, SubscriptionState::clone)
    }

    /// Copies of the subscriptions of all connectors of the prefix.
    #[must_use]
    pub fn all_subscriptions(&self) -> BTreeMap<String, SubscriptionState> {
        self.table.read(|table| table.iter().map(|(name, state)| (name.to_owned(), state.clone())).collect())
    }

    /// Reads a connector's runs, which are empty if none was requested.
    pub fn read_runs<T>(&self, connector: &str, then: impl FnOnce(&Runs) -> T) -> T {
        self.table.read(|table| match table.runs_of(connector) {
            Some(runs) => then(runs),
            None => then(&Runs::default()),
        })
    }

    /// A copy of a connector's runs.
    #[must_use]
    pub fn runs(&self, connector: &str) -> Runs {
        self.read_runs(connector, Runs::clone)
    }

    /// Number of shards: the partitions of the state topic.
    #[must_use]
    pub fn shards(&self) -> i32 {
        self.table.partitions()
    }

    /// A number that rises with every change of the topic.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.table.changes()
    }

    /// Whether the topic was read to its end once.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.table.is_caught_up()
    }

    /// Waits until the topic was read to its end once.
    pub async fn caught_up(&self) {
        self.table.caught_up().await;
    }

    /// Reads everything that was written before this call.
    ///
    /// # Errors
    /// Kafka did not answer in time.
    pub async fn read_to_end(&self, limit: Duration) -> Result<(), Error> {
        let failed = |source| Error::Kafka { prefix: self.prefix.to_string(), source };
        self.table.read_to_end(limit).await.map_err(failed)
    }

    /// Writes a single record that needs no fence: a request through REST, or a run, a repair or the result of a gap from the first
    /// task of a `RecordSource`. Waits until it has been read back. Without a value the key is removed.
    ///
    /// # Errors
    /// Kafka did not take it in time. It may be in the topic anyway; reading the topic shows.
    pub async fn put(&self, key: &Key, value: Option<&Value>) -> Result<(), Error> {
        let failed = |source| Error::Kafka { prefix: self.prefix.to_string(), source };
        let end = Instant::now() + PUT_LIMIT;
        let ack = self.plain.write(self.encoded(key, value), end).await.map_err(failed)?;
        let left = end.saturating_duration_since(Instant::now());
        self.table.read_past(ack.partition, ack.offset, left).await.map_err(failed)
    }

    fn encoded(&self, key: &Key, value: Option<&Value>) -> EncodedRecord {
        let partition = match key.partitioning() {
            Partitioning::By(bytes) => partition_of(bytes, self.table.partitions()),
            Partitioning::Shard(shard) => shard,
        };
        let value = value.map(|value| Bytes::from(value.to_string()));
        EncodedRecord::new(self.table.topic(), partition, key.as_str().to_owned(), value)
    }
}

impl fmt::Debug for StateTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateTopic").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
