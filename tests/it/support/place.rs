//! A place to publish to: a prefix of one test's own on a Kafka and a registry, and the way there and back.

use std::path::PathBuf;
use std::time::Duration;

use model::{Topic, TopicPrefix};
use tributary::pipeline::{self, Layout, Publisher};
use tributary::{avro, config};

use super::{Result, Shared, prefix, run_directory};

/// Of every topic a test makes.
pub(crate) const PARTITIONS: i32 = 3;
/// What a busy machine may need to read a topic; nothing waits this long when all is well.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// Where to publish and with what state directory.
pub(crate) struct Place {
    pub(crate) prefix: TopicPrefix,
    pub(crate) kafka: kafka::Kafka,
    pub(crate) admin: kafka::Admin,
    pub(crate) registry: config::Registry,
    pub(crate) state_dir: PathBuf,
}

impl Place {
    /// On the shared Kafka and registry, under a prefix that begins with `name`.
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
            registry: config::Registry::open(registry.parse().unwrap()),
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

    /// The ids a starting worker would have.
    pub(crate) async fn ids(&self) -> avro::Ids {
        avro::Ids::open(avro::Registry::new(&self.registry).unwrap(), &self.state_dir).await
    }

    /// Opens the layout as a starting worker does, and publishes to Kafka.
    pub(crate) async fn open(&self, layout: &Layout) -> std::result::Result<Publisher, pipeline::Error> {
        let opened = pipeline::open(layout, &self.admin, &self.ids().await).await?;
        Ok(Publisher::new(opened.preparer, self.producer()))
    }

    /// A producer with the defaults.
    pub(crate) fn producer(&self) -> kafka::Producer {
        kafka::Producer::new(&self.kafka, &kafka::ProducerOptions::default()).unwrap()
    }

    /// All of a topic as of now, each partition in its order.
    pub(crate) async fn read(&self, topic: &str) -> Vec<kafka::ConsumerRecord> {
        let partitions: Vec<i32> = (0..PARTITIONS).collect();
        let mut records = Vec::new();
        kafka::read_to_end(&self.kafka, topic, &partitions, READ_LIMIT, |record| records.push(record))
            .await
            .unwrap();
        records
    }

    /// Decodes what was read, with schemas from this registry.
    pub(crate) fn decoder(&self) -> avro::Decoder {
        avro::Decoder::new(avro::Registry::new(&self.registry).unwrap())
    }
}

/// The text of an error and of everything that caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A header's text.
pub(crate) fn header<'a>(record: &'a kafka::ConsumerRecord, name: &str) -> Option<&'a str> {
    let found = record.headers.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| std::str::from_utf8(value).unwrap())
}
