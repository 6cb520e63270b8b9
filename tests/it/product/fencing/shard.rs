//! The shard that writers of these tests fight over, and what readers see of it.

use std::sync::Arc;

use kafka::{Kafka, Lease, ShardProducer, ShardProducers, TransactionOptions};
use model::{Cleanup, EncodedRecord};

use crate::support::{prefix, topics};

/// What a batch is made of: values, fences, offsets and state.
const TOPICS: [&str; 4] = ["accounting.customers", "fences", "offsets", "state"];
/// Records a batch has in each topic.
const RECORDS: usize = 3;
const PARTITION: i32 = 1;

/// A shard with topics of its own.
pub(super) struct Shard {
    pub(super) kafka: Kafka,
    pub(super) prefix: String,
}

impl Shard {
    /// One whose topics exist.
    pub(super) fn new(bootstrap: &str, prefix: &str) -> Self {
        Self { kafka: Kafka::plaintext(bootstrap), prefix: prefix.to_owned() }
    }

    /// Creates the topics, each with these settings.
    pub(super) async fn create(bootstrap: &str, name: &str, configs: &[(&str, &str)]) -> Self {
        let shard = Self::new(bootstrap, &prefix(name));
        for topic in shard.topics() {
            topics::create(&shard.kafka, &topic, Cleanup::Compact, configs).await;
        }
        shard
    }

    /// Becomes its owner for as long as nobody else does.
    pub(super) async fn take(&self) -> ShardProducer {
        self.take_with(TransactionOptions::default(), Arc::new(|| true)).await
    }

    pub(super) async fn take_with(&self, options: TransactionOptions, lease: Lease) -> ShardProducer {
        let shards = ShardProducers::new(self.kafka.clone(), options);
        shards.take(format!("{}-shard-{PARTITION}", self.prefix), lease).await.unwrap()
    }

    /// Takes another id, to write to the same partitions.
    pub(super) async fn take_as(&self, name: &str, options: TransactionOptions) -> ShardProducer {
        let shards = ShardProducers::new(self.kafka.clone(), options);
        shards.take(format!("{}-{name}", self.prefix), Arc::new(|| true)).await.unwrap()
    }

    /// One of its topics.
    pub(super) fn first_topic(&self) -> Arc<str> {
        self.topics().next().unwrap()
    }

    /// Reads a topic of its own to the end.
    pub(super) async fn read_elsewhere(&self) {
        let topic = format!("{}.elsewhere", self.prefix);
        topics::create(&self.kafka, &topic, Cleanup::Compact, &[]).await;
        topics::content(&self.kafka, &topic).await;
    }

    /// Records for every topic, each of which says `name`.
    pub(super) fn batch(&self, name: &str) -> Vec<EncodedRecord> {
        let keys = 0..RECORDS;
        let records = |topic: Arc<str>| {
            keys.clone()
                .map(move |key| topics::record(&topic, PARTITION, &format!("company/{key}"), name.to_owned()))
        };
        self.topics().flat_map(records).collect()
    }

    /// The names of all committed batches in their order, after a look that every topic has all of each.
    ///
    /// The broker answers a commit before readers see it; a new owner is let in only when every batch before is decided.
    pub(super) async fn batches(&self) -> Vec<String> {
        drop(self.take().await);
        let mut seen = Vec::new();
        for topic in self.topics() {
            let mut content = topics::content(&self.kafka, &topic).await;
            seen.push(content.remove(&PARTITION).unwrap_or_default());
            assert!(content.values().all(Vec::is_empty), "{topic} has records outside the shard");
        }
        let names: Vec<Vec<String>> =
            seen.iter().map(|records| records.iter().map(topics::text).collect()).collect();
        assert!(names.iter().all(|of_topic| *of_topic == names[0]), "topics disagree: {names:?}");
        let batches: Vec<_> = names[0].chunks(RECORDS).collect();
        let whole = |batch: &&[String]| batch.len() == RECORDS && batch.iter().all(|name| *name == batch[0]);
        assert!(batches.iter().all(whole), "a part of a batch is visible: {batches:?}");
        batches.into_iter().map(|batch| batch[0].clone()).collect()
    }

    fn topics(&self) -> impl Iterator<Item = Arc<str>> {
        TOPICS.iter().map(|suffix| format!("{}.{suffix}", self.prefix).into())
    }
}
