//! Publishing through the product under a prefix that no other test uses, and reading back what was published.

use std::path::PathBuf;

use model::{Topic, TopicPrefix};
use tributary::{
    avro, config,
    publish::{self, Layout, Publisher},
};

pub(crate) use super::topics::PARTITIONS;
use super::{Result, Shared, prefix, run_directory, topics};

/// Where to publish, and with which state directory.
pub(crate) struct Place {
    pub(crate) prefix: TopicPrefix,
    pub(crate) kafka: kafka::Kafka,
    pub(crate) admin: kafka::Admin,
    pub(crate) registry: config::RegistrySettings,
    pub(crate) state_dir: PathBuf,
}

impl Place {
    /// On the shared Kafka and registry, under a prefix that starts with `name`.
    pub(crate) fn on(shared: &Shared, name: &str) -> Result<Self> {
        let kafka = kafka::Kafka::plaintext(shared.bootstrap());
        let admin = kafka::Admin::Real(kafka.clone());
        Self::at(kafka, admin, shared.registry(), name)
    }

    /// On any Kafka and registry.
    pub(crate) fn at(kafka: kafka::Kafka, admin: kafka::Admin, registry: &str, name: &str) -> Result<Self> {
        Ok(Self {
            prefix: TopicPrefix::new(prefix(name)).unwrap(),
            kafka,
            admin,
            registry: config::RegistrySettings::open(registry.parse().unwrap()),
            state_dir: run_directory::create(name)?,
        })
    }

    /// Full name of a topic.
    pub(crate) fn name(&self, topic: Topic) -> String {
        topic.name(&self.prefix)
    }

    /// What a connector that needs these topics declares.
    pub(crate) fn layout(&self, topics: impl IntoIterator<Item = Topic>) -> Layout {
        Layout { partitions: Some(PARTITIONS), ..Layout::new(self.prefix.clone(), topics) }
    }

    /// The schema ids that a starting worker has.
    pub(crate) async fn ids(&self) -> avro::Ids {
        avro::Ids::open(avro::Registry::new(&self.registry).unwrap(), &self.state_dir).await
    }

    /// Opens the layout as a starting worker does, and publishes to Kafka.
    pub(crate) async fn open(&self, layout: &Layout) -> std::result::Result<Publisher, publish::Error> {
        let opened = publish::open(layout, &self.admin, &self.ids().await).await?;
        Ok(Publisher::new(opened.preparer, self.producer()))
    }

    /// A producer with the defaults.
    pub(crate) fn producer(&self) -> kafka::Producer {
        kafka::Producer::new(&self.kafka, &kafka::ProducerOptions::default()).unwrap()
    }

    /// Everything committed in a topic, each partition in its order.
    pub(crate) async fn read(&self, topic: &str) -> Vec<kafka::ConsumerRecord> {
        topics::content_of(&self.kafka, topic, PARTITIONS).await
    }

    /// Decodes what was read, with schemas from this registry.
    pub(crate) fn decoder(&self) -> avro::Decoder {
        avro::Decoder::new(avro::Registry::new(&self.registry).unwrap())
    }
}

/// The text of an error and of its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A header's text.
pub(crate) fn header<'a>(record: &'a kafka::ConsumerRecord, name: &str) -> Option<&'a str> {
    let found = record.headers.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| std::str::from_utf8(value).unwrap())
}
