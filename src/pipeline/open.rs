//! What must stand before the first record of a prefix: its topics, and ids for their schemas.

use std::collections::BTreeMap;

use tracing::info;

use super::{Error, Preparer};
use crate::{
    avro, kafka,
    model::{Cleanup, Topic, TopicPrefix},
};

/// Partitions of a new prefix where nothing is set.
pub const DEFAULT_PARTITIONS: i32 = 12;

/// A reader that was away this long still sees every tombstone; the default of a day is shorter than a long snapshot.
const DELETE_RETENTION: &str = "604800000";

/// The topics one connector needs.
#[derive(Debug, Clone)]
pub struct Layout {
    /// `topic.prefix`.
    pub prefix: TopicPrefix,
    /// Which of the prefix's topics.
    pub topics: Vec<Topic>,
    /// Partitions of all of them; `None` takes what the prefix's existing topics have, or 12.
    pub partitions: Option<i32>,
    /// Copies of each partition when a topic is created; -1 leaves it to the broker.
    pub replication_factor: i32,
    /// Further settings of created topics (`topic.creation.default.*`); ours win where a promise depends on them.
    pub settings: BTreeMap<String, String>,
}

impl Layout {
    /// Every topic of a prefix, with the defaults.
    #[must_use]
    pub fn all(prefix: TopicPrefix) -> Self {
        Self {
            prefix,
            topics: Topic::all().collect(),
            partitions: None,
            replication_factor: -1,
            settings: BTreeMap::new(),
        }
    }

    /// What the schemas of these topics are registered under.
    #[must_use]
    pub fn subjects(&self) -> Vec<avro::Subject> {
        let subject =
            |topic: &Topic| Some(avro::Subject::values_of(topic.name(&self.prefix), topic.schema()?));
        self.topics.iter().filter_map(subject).collect()
    }

    /// What each topic must be, with this many partitions.
    #[must_use]
    pub fn specs(&self, partitions: i32) -> Vec<kafka::TopicSpec> {
        self.topics.iter().map(|topic| self.spec(*topic, partitions)).collect()
    }

    /// Partitions to use: what exists, what is set, or the default.
    ///
    /// # Errors
    /// The existing topics disagree with each other or with what is set, or cannot be looked at.
    pub async fn resolve_partitions(&self, admin: &kafka::Admin) -> Result<i32, Error> {
        // Every topic of the prefix counts, not only ours: another connector may have made them.
        let names: Vec<String> = Topic::all().map(|topic| topic.name(&self.prefix)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let existing = admin.common_partitions(&names, self.partitions).await;
        let existing = existing.map_err(|source| self.topics_error(source))?;
        Ok(existing.or(self.partitions).unwrap_or(DEFAULT_PARTITIONS))
    }

    fn spec(&self, topic: Topic, partitions: i32) -> kafka::TopicSpec {
        let mut configs = self.settings.clone();
        if topic.cleanup() == Cleanup::Compact {
            configs.insert("delete.retention.ms".into(), DELETE_RETENTION.into());
        }
        if topic == Topic::DeadLetters {
            // Dead letters carry bodies as they came, also those that are too large for their own topic.
            configs.insert("max.message.bytes".into(), kafka::LARGEST_RECORD.to_string());
        }
        kafka::TopicSpec {
            name: topic.name(&self.prefix),
            partitions,
            replication_factor: self.replication_factor,
            cleanup: topic.cleanup(),
            configs,
        }
    }

    fn topics_error(&self, source: kafka::Error) -> Error {
        Error::Topics { prefix: self.prefix.to_string(), source: Box::new(source) }
    }
}

/// Creates what is missing, verifies what exists, gets ids for the schemas, and only then gives out the means to write.
///
/// # Errors
/// A topic or schema is not what it must be, or Kafka or the registry (without ids from an earlier run) is away.
pub async fn open(layout: &Layout, admin: &kafka::Admin, ids: &avro::Ids) -> Result<Preparer, Error> {
    let partitions = layout.resolve_partitions(admin).await?;
    admin.ensure(&layout.specs(partitions)).await.map_err(|source| layout.topics_error(source))?;
    let subjects = layout.subjects();
    ids.prepare(&subjects)
        .await
        .map_err(|source| Error::Schemas { prefix: layout.prefix.to_string(), source: Box::new(source) })?;
    info!(prefix = %layout.prefix, topics = layout.topics.len(), partitions, "topics and schemas are ready");
    Ok(Preparer::new(&layout.prefix, partitions, avro::Encoder::new(ids, &subjects)))
}
