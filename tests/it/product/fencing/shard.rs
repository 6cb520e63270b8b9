//! The shard that the writers of these tests compete for, and the batches that readers see.

use std::sync::Arc;

use kafka::{Kafka, Lease, ShardProducer, ShardProducers, TransactionOptions};
use model::{Cleanup, EncodedRecord};

use crate::support::{prefix, topics};

/// The topics of a batch: values, fences, offsets and state.
const TOPICS: [&str; 4] = ["accounting.customers", "fences", "offsets", "state"];
/// Records of a batch in each topic.
const RECORDS: usize = 3;
const PARTITION: i32 = 1;

/// A shard and its topics.
pub(super) struct FencedShard {
    pub(super) kafka: Kafka,
    pub(super) prefix: String,
}

impl FencedShard {
    /// A shard whose topics exist.
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

    /// Becomes its owner until another writer does.
    pub(super) async fn take(&self) -> ShardProducer {
        self.take_with(TransactionOptions::default(), Arc::new(|| true)).await
    }

    pub(super) async fn take_with(&self, options: TransactionOptions, lease: Lease) -> ShardProducer {
        let shards = ShardProducers::new(self.kafka.clone(), options);
        shards.take(format!("{}-shard-{PARTITION}", self.prefix), lease).await.unwrap()
    }

    /// Takes another transactional id, to write to the same partitions.
    pub(super) async fn take_as(&self, name: &str, options: TransactionOptions) -> ShardProducer {
        let shards = ShardProducers::new(self.kafka.clone(), options);
        shards.take(format!("{}-{name}", self.prefix), Arc::new(|| true)).await.unwrap()
    }

    /// One of its topics.
    pub(super) fn first_topic(&self) -> Arc<str> {
        self.topics().next().unwrap()
    }

    /// Creates another topic and reads it to its end.
    pub(super) async fn read_elsewhere(&self) {
        let topic = format!("{}.elsewhere", self.prefix);
        topics::create(&self.kafka, &topic, Cleanup::Compact, &[]).await;
        topics::content(&self.kafka, &topic).await;
    }

    /// Records for every topic, each with the value `name`.
    pub(super) fn batch(&self, name: &str) -> Vec<EncodedRecord> {
        let keys = 0..RECORDS;
        let records = |topic: Arc<str>| {
            keys.clone()
                .map(move |key| topics::record(&topic, PARTITION, &format!("company/{key}"), name.to_owned()))
        };
        self.topics().flat_map(records).collect()
    }

    /// The names of all committed batches in order, after a check that every topic has every record of each.
    ///
    /// The broker answers a commit before readers see it; a new owner gets the shard only when every earlier batch is decided.
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
