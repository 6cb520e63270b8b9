//! Topics of another group or cluster: the start is refused, and nothing is created or written.

use std::collections::BTreeMap;

use kafka::{Admin, Kafka, Producer, ProducerOptions, TopicSpec, read_to_end};
use model::Cleanup;
use serde_json::json;

use super::process::{LIMIT, Topics, Worker, numbers};
use crate::support::topics::record;
use crate::support::{Result, Shared};

crate::tests! {
    real a_second_group_is_refused_until_it_adopts_the_topics within 240;
    real topics_of_kafka_connect_are_refused within 120;
}

async fn a_second_group_is_refused_until_it_adopts_the_topics(shared: &'static Shared) -> Result<()> {
    let topics = Topics::new(shared.bootstrap(), "worker-groups");
    let other = topics.of_another_group();
    let first = Worker::start(&topics, &[]).await?;
    let created = first.ask("PUT", "/connectors/a/config", Some(&numbers(&topics))).await;
    assert_eq!(created.0, 201, "{created:?}");
    let paused = first.ask("PUT", "/connectors/a/stop", None).await;
    assert_eq!(paused.0, 204, "{paused:?}");
    let before = seen(shared, &topics, &other).await;

    let second = Worker::spawn(&other, &[])?;
    let refused = second.ended().await?;
    let after = seen(shared, &topics, &other).await;

    let said = second.said();
    assert_eq!(refused.code(), Some(1), "{said}");
    for expected in [&*topics.group, &*other.group, "--adopt", "config.storage.topic"] {
        assert!(said.contains(expected), "{expected} is not in:\n{said}");
    }
    assert_eq!(after, before, "topics with their partitions, records of the config topic");

    // Adopting them takes them from workers that are still running.
    let second = Worker::start(&other, &["--adopt"]).await?;
    let robbed = first.ended().await?;
    let again = Worker::spawn(&topics, &[])?;
    let back = again.ended().await?;

    assert_eq!(robbed.code(), Some(1), "{}", first.said());
    assert!(first.said().contains("worker stopped"), "not stopped in order:\n{}", first.said());
    assert_eq!(back.code(), Some(1), "{}", again.said());
    assert_eq!(second.ask("GET", "/connectors", None).await, (200, json!(["a"])));
    assert_eq!(second.stop().await?.code(), Some(0), "{}", second.said());
    let plain = Worker::start(&other, &[]).await?;
    assert_eq!(plain.ask("GET", "/connectors", None).await, (200, json!(["a"])), "the record is still there");
    Ok(())
}

async fn topics_of_kafka_connect_are_refused(shared: &'static Shared) -> Result<()> {
    let kafka = Kafka::plaintext(shared.bootstrap());
    let records = [
        ("session-key", r#"{"key":"x","algorithm":"HmacSHA256","creation-timestamp":1}"#),
        ("tasks-fencing-mine", r#"{"tasks":1}"#),
        ("connector-mine", r#"{"properties":{"connector.class":"org.example.MySource","name":"mine"}}"#),
    ];

    for (key, value) in records {
        let topics = Topics::new(shared.bootstrap(), "worker-connect");
        let spec = TopicSpec {
            name: topics.config_topic(),
            partitions: 1,
            may_grow: false,
            replication_factor: 1,
            cleanup: Cleanup::Compact,
            min_message_bytes: 0,
            configs: BTreeMap::new(),
        };
        Admin::Real(kafka.clone()).ensure(&[spec]).await.unwrap();
        let producer = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
        let topic = topics.config_topic().as_str().into();
        producer.send(record(&topic, 0, key, value)).unwrap().await.unwrap();
        let before = seen(shared, &topics, &topics).await;

        let worker = Worker::spawn(&topics, &[])?;
        let refused = worker.ended().await?;

        let said = worker.said();
        assert_eq!(refused.code(), Some(1), "{key}: {said}");
        assert!(said.contains(&topics.config_topic()) && said.contains("belongs to"), "{key}: {said}");
        assert_eq!(seen(shared, &topics, &topics).await, before, "{key}");
    }
    Ok(())
}

/// Which of the topics exist with how many partitions, and every key of the config topic with its offset.
async fn seen(
    shared: &'static Shared,
    topics: &Topics,
    other: &Topics,
) -> (BTreeMap<String, i32>, Vec<(String, i64)>) {
    let kafka = Kafka::plaintext(shared.bootstrap());
    let names = [topics.names(), other.names()].concat();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let counts = Admin::Real(kafka.clone()).partition_counts(&names).await.unwrap();
    let mut log = Vec::new();
    let each = |record: kafka::ConsumerRecord| {
        log.push((String::from_utf8_lossy(&record.key.unwrap()).into_owned(), record.offset));
    };
    read_to_end(&kafka, &topics.config_topic(), &[0], LIMIT, each).await.unwrap();
    (counts, log)
}
