//! Creates missing topics and verifies existing ones.
//!
//! [`Admin`] is the only interface to topic administration: requests to a real cluster, or the handle of the embedded one.
//! Several workers may create topics at once: a topic that another worker has just created is verified like any existing one.
//! Existing topics are never altered: all that do not match are reported together, each with the command that fixes it,
//! because the partition count and the cleanup policy of a topic with data are its owner's decision.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication},
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use tokio::sync::OnceCell;

use base::retry::Retry;
use model::Cleanup;

use crate::Kafka;
use crate::{
    Error, TopicMismatch,
    client::{Settings, blocking, on_closing_thread},
    consumer::{self, find_topics},
    context::ClientCallbacks,
    embedded::EmbeddedCluster,
    role::ClientRole,
    sys::TopicMetadata,
};

/// Time limit of one admin request; librdkafka's default is 1 min.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// How long to wait until created topics have leaders.
const LEADER_LIMIT: Duration = Duration::from_secs(30);
/// Longest topic name. librdkafka refuses names of more than 512 bytes, and empty ones.
const MAX_NAME_BYTES: usize = 249;
/// Pause between two checks for leaders.
const LEADER_PAUSE: Duration = Duration::from_millis(50);

/// The required settings of a topic.
#[derive(Debug, Clone)]
pub struct TopicSpec {
    /// Full name.
    pub name: String,
    /// Partition count, at least 1; -1 leaves it to the broker and accepts any count.
    pub partitions: i32,
    /// Whether an existing topic may have another count: if no partition is computed from keys, partitions may be added at any
    /// time.
    pub may_grow: bool,
    /// Replication factor; -1 leaves it to the broker. Only used when the topic is created.
    pub replication_factor: i32,
    /// Its cleanup policy, exactly: `compact,delete` would lose keys, and `compact` events.
    pub cleanup: Cleanup,
    /// The least `max.message.bytes` it may have; see [`MIN_MAX_MESSAGE_BYTES`](crate::MIN_MAX_MESSAGE_BYTES).
    pub min_message_bytes: u64,
    /// Further topic settings. Only used when the topic is created; later they are the operator's.
    pub configs: BTreeMap<String, String>,
}

/// Topic administration.
#[derive(Debug, Clone)]
pub enum Admin {
    /// Of a real cluster.
    Real(Kafka),
    /// Of the in-process cluster, which stores neither policies nor settings: only partition counts are verified.
    Embedded(Arc<EmbeddedCluster>),
}

impl Admin {
    /// Ensures that all these topics exist with the required settings, and that new ones have leaders. Creates nothing if an
    /// existing one does not match.
    pub async fn ensure(&self, specs: &[TopicSpec]) -> Result<(), Error> {
        let session = AdminSession::new(self);
        let end = Instant::now() + LEADER_LIMIT;
        let mut missing = self.verify(&session, specs).await?;
        while !missing.is_empty() {
            // The controller may know topics that this broker does not know yet: verify them before creating any.
            let mut awaited = match self {
                Self::Real(_) => session.create(&missing, options().validate_only(true)).await?,
                Self::Embedded(_) => Vec::new(),
            };
            if awaited.is_empty() {
                self.create(&session, &missing).await?;
                awaited = missing.iter().map(|spec| spec.name.clone()).collect();
            }
            session.await_leaders(awaited).await?;
            // Another worker may just have created them with other settings, and brokers learn of topics at different times.
            let is_late = Instant::now() >= end;
            missing = match self.verify(&session, specs).await {
                Ok(unheard) if unheard.is_empty() => return Ok(()),
                Ok(unheard) if is_late => {
                    let names = unheard.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
                    let action = format!("wait until every broker knows {names}");
                    return Err(Error::Deadline { action, limit: LEADER_LIMIT });
                }
                Ok(unheard) => unheard,
                Err(error) if is_late || error.retry() == Retry::Never => return Err(error),
                Err(_) => missing,
            };
            tokio::time::sleep(LEADER_PAUSE).await;
        }
        Ok(())
    }

    /// Verifies the existing topics without changes and returns the names of the missing ones.
    pub async fn inspect(&self, specs: &[TopicSpec]) -> Result<Vec<String>, Error> {
        let session = AdminSession::new(self);
        let missing = self.verify(&session, specs).await?;
        Ok(missing.into_iter().map(|spec| spec.name.clone()).collect())
    }

    async fn verify<'a>(
        &self,
        session: &AdminSession,
        specs: &'a [TopicSpec],
    ) -> Result<Vec<&'a TopicSpec>, Error> {
        let found = session.find(specs.iter().map(|spec| spec.name.clone()).collect()).await?;
        let counts = partition_counts(found);
        let (existing, missing): (Vec<&TopicSpec>, Vec<&TopicSpec>) =
            specs.iter().partition(|spec| counts.contains_key(&spec.name));
        let servers = &session.kafka.bootstrap_servers;
        let mut mismatches: Vec<TopicMismatch> = existing
            .iter()
            .filter(|spec| !spec.may_grow)
            .filter_map(|spec| {
                let found = counts.get(&spec.name).copied()?;
                partition_mismatch(servers, &spec.name, spec.partitions, found)
            })
            .collect();
        if let (Self::Real(_), false) = (self, existing.is_empty()) {
            mismatches.extend(session.setting_mismatches(&existing).await?);
        }
        if mismatches.is_empty() { Ok(missing) } else { Err(Error::Topics(mismatches)) }
    }

    /// Partition counts of the existing ones of these topics.
    pub async fn partition_counts(&self, names: &[&str]) -> Result<BTreeMap<String, i32>, Error> {
        let session = AdminSession::new(self);
        let found = session.find(names.iter().map(|name| (*name).to_owned()).collect()).await?;
        Ok(partition_counts(found))
    }

    /// The id of the cluster; `None` if its brokers do not return it in time.
    pub async fn cluster_id(&self) -> Result<Option<String>, Error> {
        let kafka = self.kafka();
        let fetch = move || {
            let reported = consumer::ask(&kafka, &ClientRole::Admin, |client| {
                let late =
                    || Error::Deadline { action: "ask for the cluster's id".into(), limit: REQUEST_LIMIT };
                client.client().fetch_cluster_id(REQUEST_LIMIT).ok_or_else(late)
            });
            match reported {
                Err(Error::Deadline { .. }) => Ok(None),
                reported => reported.map(Some),
            }
        };
        blocking("ask for the cluster's id", fetch).await?
    }

    /// The partition count that the existing ones of these topics share, `None` if none exists. A new topic must get the same
    /// count, so a different `wanted` count is refused.
    pub async fn common_partitions(&self, names: &[&str], wanted: Option<i32>) -> Result<Option<i32>, Error> {
        agreed_partitions(&self.kafka().bootstrap_servers, &self.partition_counts(names).await?, wanted)
    }

    async fn create(&self, session: &AdminSession, missing: &[&TopicSpec]) -> Result<(), Error> {
        let cluster = match self {
            Self::Real(_) => return session.create(missing, options()).await.map(drop),
            Self::Embedded(cluster) => cluster,
        };
        for spec in missing {
            match cluster.create_topic(&spec.name, spec.partitions) {
                Err(Error::Request { source, .. }) if source.code() == Some(Code::TopicAlreadyExists) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn kafka(&self) -> Kafka {
        match self {
            Self::Real(kafka) => kafka.clone(),
            Self::Embedded(cluster) => cluster.settings(),
        }
    }
}

/// The clients of one operation.
struct AdminSession {
    kafka: Kafka,
    /// Created on first use. It is not kept longer, because its log queue is not polled and would grow.
    admin: OnceCell<Arc<AdminClient<ClientCallbacks>>>,
}

impl AdminSession {
    fn new(admin: &Admin) -> Self {
        Self { kafka: admin.kafka(), admin: OnceCell::new() }
    }

    async fn admin(&self) -> Result<Arc<AdminClient<ClientCallbacks>>, Error> {
        let kafka = self.kafka.clone();
        let open = move || {
            let settings = Settings::new(&kafka, &ClientRole::Admin)?;
            let admin: Arc<AdminClient<ClientCallbacks>> = settings.create(())?;
            // librdkafka requests a token through the client's queue, which is not polled.
            settings.hand_token(admin.inner())?;
            Ok(admin)
        };
        let created =
            self.admin.get_or_try_init(async || blocking("create the admin client", open).await?).await?;
        Ok(Arc::clone(created))
    }

    /// The metadata of the existing ones of these topics.
    async fn find(&self, names: Vec<String>) -> Result<BTreeMap<String, TopicMetadata>, Error> {
        let kafka = self.kafka.clone();
        let find_all = move || {
            let is_name = |name: &&str| !name.is_empty() && name.len() <= MAX_NAME_BYTES;
            let names: Vec<&str> = names.iter().map(String::as_str).filter(is_name).collect();
            // A metadata query by topic name; it never creates a topic.
            let found = consumer::ask(&kafka, &ClientRole::Admin, |client| {
                find_topics(client, &names, REQUEST_LIMIT)
            })?;
            let existing = found
                .into_iter()
                .map(|(name, found)| Ok(existing_topic(&name, found)?.map(|found| (name, found))));
            existing.filter_map(Result::transpose).collect()
        };
        blocking("find topics", find_all).await?
    }

    /// Creates topics, or checks that they could be created if the options say so. Returns those that already exist.
    async fn create(&self, missing: &[&TopicSpec], options: AdminOptions) -> Result<Vec<String>, Error> {
        let topics: Vec<NewTopic<'_>> = missing.iter().map(|spec| new_topic(spec)).collect();
        let names = missing.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        let options = options.operation_timeout(Some(REQUEST_LIMIT));
        let created = self.admin().await?.create_topics(&topics, &options).await;
        let results = created.map_err(|error| Error::request(format!("create topics {names}"), error))?;
        let mut existing = Vec::new();
        for result in results {
            match result {
                Ok(_) => {}
                Err((topic, Code::TopicAlreadyExists)) => existing.push(topic),
                Err((topic, code)) => {
                    let spec = missing.iter().find(|spec| spec.name == topic);
                    let settings = spec.map(|spec| described_spec(spec)).unwrap_or_default();
                    let action = format!("create topic {topic} {settings}");
                    return Err(Error::request(action, KafkaError::AdminOp(code)));
                }
            }
        }
        Ok(existing)
    }

    /// Waits until each of these topics is known and all its partitions have leaders.
    async fn await_leaders(&self, mut waiting: Vec<String>) -> Result<(), Error> {
        let end = Instant::now() + LEADER_LIMIT;
        loop {
            let topics = self.find(waiting.clone()).await?;
            waiting.retain(|name| topics.get(name).is_none_or(|topic| !topic.has_leaders));
            if waiting.is_empty() {
                return Ok(());
            }
            if Instant::now() >= end {
                let action = format!("wait until {} have leaders and may be described", waiting.join(", "));
                return Err(Error::Deadline { action, limit: LEADER_LIMIT });
            }
            tokio::time::sleep(LEADER_PAUSE).await;
        }
    }

    /// Compares the settings of existing topics with the required ones.
    async fn setting_mismatches(&self, specs: &[&TopicSpec]) -> Result<Vec<TopicMismatch>, Error> {
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let resources: Vec<ResourceSpecifier<'_>> =
            names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        let action = || format!("read the settings of topics {}", names.join(", "));
        let described = self.admin().await?.describe_configs(&resources, &options()).await;
        let results = described.map_err(|error| Error::request(action(), error))?;
        let servers = &self.kafka.bootstrap_servers;
        let mut mismatches = Vec::new();
        for (spec, result) in specs.iter().zip(results) {
            let action = || format!("read the settings of topic {}", spec.name);
            let resource = result.map_err(|code| Error::request(action(), KafkaError::AdminOp(code)))?;
            let value = |key: &str| resource.get(key).and_then(|entry| entry.value.clone());
            // A broker that does not know a topic yet returns no settings.
            let unknown = || Error::request(action(), KafkaError::AdminOp(Code::LeaderNotAvailable));
            let cleanup = value("cleanup.policy").ok_or_else(unknown)?;
            mismatches.extend(cleanup_mismatch(servers, spec, &cleanup));
            // A broker may not return this one.
            let max_message_bytes = value("max.message.bytes").and_then(|bytes| bytes.trim().parse().ok());
            mismatches.extend(size_mismatch(servers, spec, max_message_bytes));
        }
        Ok(mismatches)
    }
}

impl Drop for AdminSession {
    fn drop(&mut self) {
        let admin = self.admin.take();
        on_closing_thread(move || drop(admin));
    }
}

/// The metadata of a topic, if it exists. A topic that this worker may not describe counts as missing: it needs no permission
/// for topics that it does not use.
fn existing_topic(name: &str, found: Result<TopicMetadata, Code>) -> Result<Option<TopicMetadata>, Error> {
    match found {
        Ok(topic) => Ok((!topic.partitions.is_empty()).then_some(topic)),
        Err(
            Code::UnknownTopic
            | Code::UnknownPartition
            | Code::UnknownTopicOrPartition
            | Code::InvalidTopic
            | Code::LeaderNotAvailable
            | Code::TopicAuthorizationFailed,
        ) => Ok(None),
        Err(code) => Err(Error::request(format!("find topic {name}"), KafkaError::MetadataFetch(code))),
    }
}

fn partition_counts(topics: BTreeMap<String, TopicMetadata>) -> BTreeMap<String, i32> {
    let count = |topic: TopicMetadata| i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    topics.into_iter().map(|(name, topic)| (name, count(topic))).collect()
}

fn new_topic(spec: &TopicSpec) -> NewTopic<'_> {
    let topic = NewTopic::new(&spec.name, spec.partitions, TopicReplication::Fixed(spec.replication_factor));
    let topic = topic.set("cleanup.policy", spec.cleanup.policy());
    spec.configs.iter().fold(topic, |topic, (key, value)| topic.set(key, value))
}

/// The requested settings, for the error message.
fn described_spec(spec: &TopicSpec) -> String {
    let mut text = format!("with {} partitions, cleanup.policy={}", spec.partitions, spec.cleanup.policy());
    if spec.replication_factor >= 0 {
        text += &format!(", replication factor {}", spec.replication_factor);
    }
    spec.configs.iter().for_each(|(key, value)| text += &format!(", {key}={value}"));
    text
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST_LIMIT))
}

fn agreed_partitions(
    servers: &str,
    counts: &BTreeMap<String, i32>,
    wanted: Option<i32>,
) -> Result<Option<i32>, Error> {
    // Without a configured count, the count of most topics counts.
    let votes = |count: &i32| counts.values().filter(|other| *other == count).count();
    let Some(wanted) = wanted.or(counts.values().copied().max_by_key(votes)) else { return Ok(None) };
    let mismatches: Vec<TopicMismatch> =
        counts.iter().filter_map(|(name, found)| partition_mismatch(servers, name, wanted, *found)).collect();
    if mismatches.is_empty() { Ok(counts.values().next().copied()) } else { Err(Error::Topics(mismatches)) }
}

fn partition_mismatch(servers: &str, name: &str, wanted: i32, found: i32) -> Option<TopicMismatch> {
    (wanted != -1 && found != wanted).then(|| TopicMismatch {
        topic: name.to_owned(),
        found: format!("{found} partitions"),
        wanted: format!("{wanted}"),
        remedy: format!(
            "set the partition count to {found} if the topic is right; else, since keys would change their partition, \
             remove the topic and let it be created again: \
             kafka-topics.sh --bootstrap-server {servers} --delete --topic {name}"
        ),
    })
}

fn cleanup_mismatch(servers: &str, spec: &TopicSpec, found: &str) -> Option<TopicMismatch> {
    let wanted = spec.cleanup.policy();
    (found.trim() != wanted).then(|| setting_mismatch(servers, spec, "cleanup.policy", found, "", wanted))
}

fn size_mismatch(servers: &str, spec: &TopicSpec, found: Option<u64>) -> Option<TopicMismatch> {
    let (found, least) = (found?, spec.min_message_bytes);
    (found < least).then(|| setting_mismatch(servers, spec, "max.message.bytes", found, "at least ", least))
}

/// `relation` stands before the wanted value.
fn setting_mismatch<T: fmt::Display>(
    servers: &str,
    spec: &TopicSpec,
    key: &str,
    found: T,
    relation: &str,
    wanted: T,
) -> TopicMismatch {
    let topic = spec.name.clone();
    let remedy = format!(
        "kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {topic} \
         --add-config {key}={wanted}"
    );
    let (found, wanted) = (format!("{key}={found}"), format!("{relation}{key}={wanted}"));
    TopicMismatch { topic, found, wanted, remedy }
}

#[cfg(test)]
mod tests;
