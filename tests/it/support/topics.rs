//! Topics of a test: created through the product's admin client, filled with records, read back whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka::{Admin, ConsumerRecord, Kafka, TopicSpec, read_to_end};
use model::{Cleanup, EncodedRecord};

use super::{Result, broker::tool, run_directory};

/// Partitions of every topic that a test creates.
pub(crate) const PARTITIONS: i32 = 3;
/// Limit for one call on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A topic with the broker's defaults.
pub(crate) fn spec(topic: &str, partitions: i32, cleanup: Cleanup) -> TopicSpec {
    TopicSpec {
        name: topic.to_owned(),
        partitions,
        may_grow: false,
        replication_factor: -1,
        min_message_bytes: 0,
        cleanup,
        configs: BTreeMap::new(),
    }
}

/// Creates `topic` with these settings beyond its cleanup policy.
pub(crate) async fn create(kafka: &Kafka, topic: &str, cleanup: Cleanup, configs: &[(&str, &str)]) {
    let configs = configs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let spec = TopicSpec { configs, ..spec(topic, PARTITIONS, cleanup) };
    Admin::Real(kafka.clone()).ensure(&[spec]).await.unwrap();
}

/// A record without headers.
pub(crate) fn record(topic: &Arc<str>, partition: i32, key: &str, value: impl Into<Bytes>) -> EncodedRecord {
    EncodedRecord {
        topic: Arc::clone(topic),
        partition,
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Some(value.into()),
        headers: Vec::new(),
        timestamp_ms: None,
    }
}

/// Everything committed in a topic, by partition and in the order of the log.
pub(crate) async fn content(kafka: &Kafka, topic: &str) -> BTreeMap<i32, Vec<ConsumerRecord>> {
    let partitions: Vec<i32> = (0..PARTITIONS).collect();
    let mut content: BTreeMap<i32, Vec<ConsumerRecord>> =
        partitions.iter().map(|one| (*one, Vec::new())).collect();
    let each = |received: ConsumerRecord| content.get_mut(&received.partition).unwrap().push(received);
    read_to_end(kafka, topic, &partitions, LIMIT, each).await.unwrap();
    content
}

/// Everything committed in a topic with this number of partitions.
pub(crate) async fn content_of(kafka: &Kafka, topic: &str, partitions: i32) -> Vec<ConsumerRecord> {
    let partitions: Vec<i32> = (0..partitions).collect();
    let mut content = Vec::new();
    read_to_end(kafka, topic, &partitions, LIMIT, |received| content.push(received)).await.unwrap();
    content
}

/// The bytes of all keys, values and headers committed in a topic, for a search.
pub(crate) async fn bytes_of(kafka: &Kafka, topic: &str, partitions: i32) -> Vec<u8> {
    let partitions: Vec<i32> = (0..partitions).collect();
    let mut bytes = Vec::new();
    let each = |record: ConsumerRecord| {
        bytes.extend(record.headers.iter().flat_map(|(_, value)| value.to_vec()));
        bytes.extend(record.key.iter().chain(&record.value).flat_map(|part| part.to_vec()));
        bytes.push(b'\n');
    };
    read_to_end(kafka, topic, &partitions, 2 * LIMIT, each).await.unwrap();
    bytes
}

/// Deletes the records of partition 0 below an offset, as retention would.
pub(crate) async fn delete_below(kafka: &Kafka, topic: &str, offset: i64) -> Result<()> {
    let file = run_directory::create("delete")?.join("offsets.json");
    let partition = serde_json::json!({ "topic": topic, "partition": 0, "offset": offset });
    let offsets = serde_json::json!({ "partitions": [partition], "version": 1 });
    std::fs::write(&file, offsets.to_string()).unwrap();
    let arguments =
        ["--bootstrap-server", &kafka.bootstrap_servers, "--offset-json-file", &file.to_string_lossy()];
    tool("org.apache.kafka.tools.DeleteRecordsCommand", &arguments).await.map(drop)
}

/// The value of a record as text.
pub(crate) fn text(received: &ConsumerRecord) -> String {
    String::from_utf8(received.value.clone().unwrap_or_default().to_vec()).unwrap()
}

/// Bytes that no codec compresses, the same each time.
pub(crate) fn noise(size: usize) -> Vec<u8> {
    let xorshift = |state: &u64| {
        let state = state ^ (state << 13);
        let state = state ^ (state >> 7);
        Some(state ^ (state << 17))
    };
    let words = std::iter::successors(Some(0x9E37_79B9_7F4A_7C15_u64), xorshift);
    let mut bytes: Vec<u8> = words.take(size.div_ceil(8)).flat_map(u64::to_le_bytes).collect();
    bytes.truncate(size);
    bytes
}
