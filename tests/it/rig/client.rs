//! A Kafka client without code of the product, to observe the brokers.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

/// Limit for one call on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "250");
    config
}

pub(super) async fn create_topic(bootstrap: &str, topic: &str, replicas: i32) {
    let admin: AdminClient<_> = config(bootstrap).create().unwrap();
    let new = NewTopic::new(topic, 3, TopicReplication::Fixed(replicas));

    let created =
        admin.create_topics([&new], &AdminOptions::new().request_timeout(Some(LIMIT))).await.unwrap();

    assert_eq!(created, [Ok(topic.to_owned())]);
}

/// Writes one record to partition 0 with a new producer and waits for its acknowledgement, at most `limit`.
pub(super) async fn write(
    bootstrap: &str,
    topic: &str,
    text: &str,
    limit: Duration,
) -> Result<(), KafkaError> {
    let limit = limit.as_millis().to_string();
    let producer: FutureProducer =
        config(bootstrap).set("acks", "all").set("message.timeout.ms", limit).create().unwrap();
    let record = FutureRecord::<(), _>::to(topic).partition(0).payload(text);
    producer.send(record, LIMIT).await.map(drop).map_err(|(error, _)| error)
}

/// The first `count` records of partition 0, in order.
pub(super) async fn read(bootstrap: &str, topic: &str, count: usize) -> Vec<String> {
    let (config, topic) = (config(bootstrap).set("group.id", "unused").clone(), topic.to_owned());
    let reading = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let mut partition = TopicPartitionList::new();
        partition.add_partition_offset(&topic, 0, Offset::Beginning).unwrap();
        consumer.assign(&partition).unwrap();
        let deadline = Instant::now() + LIMIT;
        let mut texts = Vec::new();
        while texts.len() < count && Instant::now() < deadline {
            // Errors of a broker that is still coming back are part of the tests; the deadline ends them.
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                texts.push(String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned());
            }
        }
        texts
    });
    reading.await.unwrap()
}

/// Whether a broker answers this client within `limit`.
pub(super) async fn answers(bootstrap: &str, limit: Duration) -> bool {
    let config = config(bootstrap);
    let asking = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = config.create().unwrap();
        client.fetch_metadata(None, limit).is_ok()
    });
    asking.await.unwrap()
}
