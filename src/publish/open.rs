//! Prepares a prefix for its first record: creates or verifies its topics and gets ids for their schemas.
//!
//! The partition count of a prefix never changes: if topics of the prefix exist, new ones get the same count, and a count that
//! differs from the others or from the setting is refused. Nothing is created or registered while an existing topic does not
//! fit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tracing::info;

use model::{Cleanup, Topic, TopicPrefix};

use super::{DeadLetters, Error, LetterSigner, Preparer};
use crate::{
    avro,
    config::{
        Connector,
        connector::{RecordSource, WebhookSource},
    },
};

/// Partitions of a new prefix if no setting gives them.
pub const DEFAULT_PARTITIONS: i32 = 12;

/// A consumer that was stopped for 7 days still sees every tombstone. Kafka's default, one day, is shorter than a long snapshot.
const DELETE_RETENTION_MS: &str = "604800000";
/// Dead letters hold the original bodies, also those too large for their topic; the headers need extra room.
const DEAD_LETTER_BYTES: u64 = kafka::MAX_RECORD_BYTES as u64 + (1 << 20);

/// The topics one connector needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// `topic.prefix`.
    pub prefix: TopicPrefix,
    /// Which of the prefix's topics; dead letters have their own entry below.
    pub topics: BTreeSet<Topic>,
    /// Full name of the dead-letter topic, which may be outside the prefix and have any partition count.
    pub dead_letters: String,
    /// Partitions all of them must have, -1 to leave new ones to the broker; `None` takes what the prefix's existing
    /// topics have, or 12.
    pub partitions: Option<i32>,
    /// Copies of each partition when a topic is created; -1 leaves it to the broker.
    pub replication_factor: i32,
    /// [`Self::replication_factor`] of the dead-letter topic.
    pub dead_letter_replication_factor: i32,
    /// Further settings of created topics (`topic.creation.default.*`).
    pub settings: BTreeMap<String, String>,
    /// `topic.creation.enable`: whether missing topics are created; if not, the error names them.
    pub create: bool,
}

impl Layout {
    /// These topics of a prefix, with the defaults.
    #[must_use]
    pub fn new(prefix: TopicPrefix, topics: impl IntoIterator<Item = Topic>) -> Self {
        Self {
            dead_letters: Topic::DeadLetters.name(&prefix),
            prefix,
            topics: topics.into_iter().filter(|topic| *topic != Topic::DeadLetters).collect(),
            partitions: None,
            replication_factor: -1,
            dead_letter_replication_factor: -1,
            settings: BTreeMap::new(),
            create: true,
        }
    }

    /// The topics that a connector writes and reads back.
    #[must_use]
    pub fn of(connector: &Connector) -> Self {
        let common = connector.common();
        let topics = match connector {
            Connector::WebhookSource(source) => webhook_topics(source),
            Connector::RecordSource(source) => record_topics(source),
        };
        Self {
            dead_letters: common.errors.dead_letter_topic.clone(),
            partitions: common.topic_creation.partitions,
            replication_factor: common.topic_creation.replication_factor.into(),
            dead_letter_replication_factor: common.errors.dead_letter_replication_factor.into(),
            settings: common.topic_creation.settings.clone(),
            ..Self::new(common.topic_prefix.clone(), topics)
        }
    }

    /// The subjects of these topics' schemas.
    #[must_use]
    pub fn subjects(&self) -> Vec<avro::ValueSubject> {
        self.topics.iter().filter_map(|topic| avro::ValueSubject::of(*topic, &self.prefix)).collect()
    }

    /// The required configuration of each topic; existing topics of the prefix decide the partition count.
    ///
    /// # Errors
    /// The existing topics of the prefix differ in their partition counts from each other or from the setting, or cannot be
    /// described.
    pub async fn specs(&self, admin: &kafka::Admin) -> Result<Vec<kafka::TopicSpec>, Error> {
        let existing = self.existing_partitions(admin).await?;
        let partitions = existing.or(self.partitions).unwrap_or(DEFAULT_PARTITIONS);
        let mut specs: Vec<_> = self.topics.iter().map(|topic| self.spec(*topic, partitions)).collect();
        specs.push(self.dead_letter_spec(admin, partitions).await?);
        Ok(specs)
    }

    /// The partition count of all topics of the prefix, not only ours: another connector may have created some.
    async fn existing_partitions(&self, admin: &kafka::Admin) -> Result<Option<i32>, Error> {
        let keyed = Topic::all().filter(|topic| *topic != Topic::DeadLetters);
        let names: Vec<String> = keyed.map(|topic| topic.name(&self.prefix)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let wanted = self.partitions.filter(|count| *count != -1);
        admin.common_partitions(&names, wanted).await.map_err(|source| self.topics_error(source))
    }

    fn spec(&self, topic: Topic, partitions: i32) -> kafka::TopicSpec {
        let mut configs = self.settings.clone();
        if topic.cleanup() == Cleanup::Compact {
            configs.entry("delete.retention.ms".into()).or_insert_with(|| DELETE_RETENTION_MS.into());
        }
        kafka::TopicSpec {
            name: topic.name(&self.prefix),
            partitions,
            may_grow: false,
            replication_factor: self.replication_factor,
            cleanup: topic.cleanup(),
            min_message_bytes: kafka::MIN_MAX_MESSAGE_BYTES,
            configs,
        }
    }

    async fn dead_letter_spec(
        &self,
        admin: &kafka::Admin,
        partitions: i32,
    ) -> Result<kafka::TopicSpec, Error> {
        let name = self.dead_letters.as_str();
        let existing = admin.partition_counts(&[name]).await.map_err(|source| self.topics_error(source))?;
        let mut configs = self.settings.clone();
        // Overrides the setting: a letter that does not fit stays in the spool, or fails its shard's batch.
        configs.insert("max.message.bytes".into(), DEAD_LETTER_BYTES.to_string());
        Ok(kafka::TopicSpec {
            name: name.to_owned(),
            partitions: existing.get(name).copied().unwrap_or(partitions),
            may_grow: true,
            replication_factor: self.dead_letter_replication_factor,
            cleanup: Topic::DeadLetters.cleanup(),
            min_message_bytes: DEAD_LETTER_BYTES,
            configs,
        })
    }

    /// Creates missing topics if that is allowed, and verifies existing ones.
    async fn ensure(&self, admin: &kafka::Admin, specs: &[kafka::TopicSpec]) -> Result<(), Error> {
        if self.create {
            return admin.ensure(specs).await.map_err(|source| self.topics_error(source));
        }
        let missing = admin.inspect(specs).await.map_err(|source| self.topics_error(source))?;
        if missing.is_empty() { Ok(()) } else { Err(Error::Missing { topics: missing }) }
    }

    fn topics_error(&self, source: kafka::Error) -> Error {
        Error::Topics { prefix: self.prefix.to_string(), source: Box::new(source) }
    }
}

/// A prefix that is ready to be written to.
#[derive(Clone)]
pub struct Opened {
    /// Makes records for its topics.
    pub preparer: Preparer,
    prefix: TopicPrefix,
    dead_letters: Arc<str>,
    dead_letter_partitions: i32,
}

impl Opened {
    /// The dead letters of a task. Every task writes them: a delivery that was acknowledged must not be dropped.
    #[must_use]
    pub fn dead_letters_of(
        &self,
        connector: &str,
        task: u32,
        logged: bool,
        signer: &LetterSigner,
    ) -> DeadLetters {
        DeadLetters {
            topic: Arc::clone(&self.dead_letters),
            partitions: self.dead_letter_partitions,
            prefix: self.prefix.clone(),
            connector: connector.to_owned(),
            task,
            logged,
            signer: signer.clone(),
        }
    }
}

/// Creates missing topics, verifies existing ones, gets ids for the schemas, and only then returns what writes to them.
///
/// # Errors
/// A topic or schema does not fit, or Kafka or the registry (without ids from an earlier run) is unreachable.
pub async fn open(layout: &Layout, admin: &kafka::Admin, ids: &avro::Ids) -> Result<Opened, Error> {
    let specs = layout.specs(admin).await?;
    layout.ensure(admin, &specs).await?;
    let subjects = layout.subjects();
    ids.prepare(&subjects)
        .await
        .map_err(|source| Error::Schemas { prefix: layout.prefix.to_string(), source: Box::new(source) })?;

    // Not from the specs, because the broker may have chosen the count.
    let partitions = layout.existing_partitions(admin).await?.unwrap_or(DEFAULT_PARTITIONS);
    let dead_letters = layout.dead_letter_spec(admin, partitions).await?;
    info!(prefix = %layout.prefix, topics = specs.len(), partitions, "topics and schemas are ready");
    Ok(Opened {
        preparer: Preparer::new(&layout.prefix, partitions, avro::Encoder::new(ids, &subjects)),
        prefix: layout.prefix.clone(),
        dead_letters: layout.dead_letters.as_str().into(),
        dead_letter_partitions: dead_letters.partitions,
    })
}

/// Creates or verifies only the state topic, for callers that write nothing else. Returns its partition count.
///
/// # Errors
/// It or another topic of the prefix does not fit, or Kafka is unreachable.
pub async fn open_state(layout: &Layout, admin: &kafka::Admin) -> Result<i32, Error> {
    let name = Topic::State.name(&layout.prefix);
    let mut specs = layout.specs(admin).await?;
    specs.retain(|spec| spec.name == name);
    layout.ensure(admin, &specs).await?;
    Ok(layout.existing_partitions(admin).await?.unwrap_or(DEFAULT_PARTITIONS))
}

fn webhook_topics(source: &WebhookSource) -> Vec<Topic> {
    let accounting = source.accounting.iter().flat_map(|accounting| &accounting.resources);
    let invoicing = source.invoicing.iter().flat_map(|invoicing| &invoicing.hooks);
    accounting
        .map(|resource| Topic::AccountingEvents(*resource))
        .chain(invoicing.map(|hook| Topic::InvoicingEvents(hook.entity)))
        .chain([Topic::State])
        .collect()
}

/// Includes the event topics: enrichment reads them and must not wait for the receiver to create them.
fn record_topics(source: &RecordSource) -> Vec<Topic> {
    let events = source.enrich_resources.iter().map(|resource| Topic::AccountingEvents(*resource));
    events.chain(written_by(source)).collect()
}

/// Every topic that the transactions of a `RecordSource` write to.
pub fn written_by(source: &RecordSource) -> BTreeSet<Topic> {
    let enriched = source.enrich_resources.iter().map(|resource| Topic::AccountingRecords(*resource));
    let listed = source.snapshot.lists.iter().map(|list| list.topic());
    enriched.chain(listed).chain([Topic::Certificates, Topic::State, Topic::Fences]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Providers, config::samples::record_config};

    #[test]
    fn lists_are_written_even_if_nothing_is_enriched() {
        let mut config = record_config();
        config.insert("enrich.resources".to_owned(), "customers".to_owned());
        config.insert("snapshot.lists".to_owned(), "payroll,accounts".to_owned());
        let (source, _) = RecordSource::parse("records", &config, &Providers::new([])).unwrap();
        let customers = model::AccountingResource::Customers;
        let records = Topic::AccountingRecords(customers);
        let accounts = Topic::AccountingRecords(model::AccountingResource::Accounts);

        let written = written_by(&source);

        let lists = [accounts, Topic::PayrollCompanies];
        let own = [Topic::Certificates, Topic::State, Topic::Fences];
        assert_eq!(written, [records].into_iter().chain(lists).chain(own).collect());
        let all: BTreeSet<Topic> = record_topics(&source).into_iter().collect();
        assert_eq!(all, written.into_iter().chain([Topic::AccountingEvents(customers)]).collect());
    }
}
