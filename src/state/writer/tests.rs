//! Both writers against the in-process cluster.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::timeout;

use kafka::{Producer, ProducerOptions, embedded::EmbeddedCluster, partition_of, read_to_end};
use model::EncodedRecord;

use super::*;
use crate::state::{
    Table,
    offsets::{self, SourceOffsets},
    statuses::{RunState, Status, Statuses},
};

const LIMIT: Duration = Duration::from_secs(20);
const PARTITIONS: i32 = 5;

fn cluster() -> EmbeddedCluster {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("t", PARTITIONS).unwrap();
    cluster
}

fn status(state: RunState, trace: &str) -> Status {
    Status {
        state,
        trace: Some(trace.into()),
        worker_id: "w:1".into(),
        generation: 3,
        handled_restart: Some(7),
    }
}

/// Partition and key of every record.
async fn log(cluster: &EmbeddedCluster) -> Vec<(i32, String)> {
    let mut log = Vec::new();
    let each = |record: kafka::ConsumerRecord| {
        log.push((record.partition, String::from_utf8(record.key.unwrap().to_vec()).unwrap()));
    };
    let partitions: Vec<i32> = (0..PARTITIONS).collect();
    read_to_end(&cluster.settings(), "t", &partitions, LIMIT, each).await.unwrap();
    log
}

#[tokio::test]
async fn statuses_are_read_back_in_the_partitions_of_connect() {
    let cluster = cluster();
    let writer = StatusWriter::start(&cluster.settings(), "t", PARTITIONS).unwrap();

    writer.put("c", None, &status(RunState::Running, ""));
    writer.put("c", Some(1), &status(RunState::Failed, "Why: so"));
    writer.put("c", Some(2), &status(RunState::Failed, "Why: so"));
    writer.put_topic("c", 1, "lines");
    writer.put_topic("c", 1, "others");
    writer.flush(LIMIT).await.unwrap();
    writer.remove("c", Some(2), 3);
    writer.remove_topic("c", "others");
    writer.flush(LIMIT).await.unwrap();

    let table: Table<Statuses> = Table::follow(&cluster.settings(), "t", PARTITIONS).await.unwrap();
    timeout(LIMIT, table.caught_up()).await.unwrap();
    table.read(|statuses| {
        assert_eq!(statuses.connector("c"), Some(&status(RunState::Running, "")));
        assert_eq!(statuses.tasks("c"), [(1, &status(RunState::Failed, "Why: so"))].into());
        assert_eq!(statuses.topics("c"), ["lines"]);
        assert_eq!(statuses.generation("c", Some(2)), Some(3), "known from the tombstone");
    });
    for (partition, key) in log(&cluster).await {
        assert_eq!(partition, partition_of(key.as_bytes(), PARTITIONS), "{key}");
    }
}

#[tokio::test]
async fn status_after_a_removal_counts_despite_a_higher_generation() {
    let cluster = cluster();
    let writer = StatusWriter::start(&cluster.settings(), "t", PARTITIONS).unwrap();
    let absurd = Status { generation: i64::MAX, ..status(RunState::Running, "foreign") };
    writer.put("c", Some(0), &absurd);
    writer.flush(LIMIT).await.unwrap();
    let table: Table<Statuses> = Table::follow(&cluster.settings(), "t", PARTITIONS).await.unwrap();
    let shown = || table.read(|statuses| statuses.tasks("c").get(&0).map(|status| (*status).clone()));

    writer.put("c", Some(0), &status(RunState::Running, "ignored"));
    writer.flush(LIMIT).await.unwrap();
    table.read_to_end(LIMIT).await.unwrap();
    assert_eq!(shown(), Some(absurd));
    writer.put_after_removal("c", Some(0), &status(RunState::Failed, "ours"));
    writer.flush(LIMIT).await.unwrap();
    table.read_to_end(LIMIT).await.unwrap();

    assert_eq!(shown(), Some(status(RunState::Failed, "ours")));
}

#[tokio::test]
async fn latest_of_each_key_is_written_after_an_outage() {
    let cluster = cluster();
    let writer = StatusWriter::start(&cluster.settings(), "t", PARTITIONS).unwrap();
    cluster.set_reachable(false).unwrap();

    for round in 0..1000 {
        for task in 0..3 {
            writer.put("c", Some(task), &status(RunState::Running, &round.to_string()));
        }
    }
    let error = writer.flush(Duration::from_millis(50)).await.unwrap_err();
    assert!(error.to_string().starts_with("write 3 statuses: not done within"), "{error}");
    cluster.set_reachable(true).unwrap();
    writer.flush(LIMIT).await.unwrap();

    let table: Table<Statuses> = Table::follow(&cluster.settings(), "t", PARTITIONS).await.unwrap();
    timeout(LIMIT, table.caught_up()).await.unwrap();
    table.read(|statuses| {
        for task in 0..3 {
            assert_eq!(statuses.tasks("c")[&task].trace.as_deref(), Some("999"));
        }
    });
    let records = log(&cluster).await.len();
    assert!(records <= 6, "{records} records: each key has at most one in flight and one waiting");
}

#[tokio::test]
async fn oversized_status_is_dropped_and_the_next_is_written() {
    let cluster = cluster();
    let writer = StatusWriter::start(&cluster.settings(), "t", PARTITIONS).unwrap();

    writer.put("c", None, &status(RunState::Failed, &"x".repeat(8 << 20)));
    writer.put("d", None, &status(RunState::Running, ""));
    writer.flush(LIMIT).await.unwrap();

    assert_eq!(log(&cluster).await.len(), 1);
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[tokio::test]
async fn edited_offsets_replace_other_spellings_of_the_key() {
    let cluster = cluster();
    let kafka = cluster.settings();
    let partition = map(json!({ "topic": "x", "partition": 1 }));
    let other = r#"["c", {"topic":"x","partition":1}]"#;
    let producer = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
    // Where Kafka's partitioner puts the key: a tombstone elsewhere would not meet it.
    let place = partition_of(other.as_bytes(), PARTITIONS);
    let foreign = EncodedRecord::new(&"t".into(), place, other, Some(r#"{"offset":9}"#.into()));
    producer.send(foreign).unwrap().await.unwrap();
    let table: Table<SourceOffsets> = Table::follow(&kafka, "t", PARTITIONS).await.unwrap();
    timeout(LIMIT, table.caught_up()).await.unwrap();
    let get = || table.read(|offsets| offsets.get("c", &partition).cloned());
    assert_eq!(get(), Some(map(json!({ "offset": 9 }))));

    let second = (map(json!({ "topic": "y", "partition": 0 })), Some(map(json!({ "offset": 1 }))));
    let edits = [(partition.clone(), Some(map(json!({ "offset": 4 })))), second];
    publish(&producer, &table, "c", &edits).await;
    assert_eq!(get(), Some(map(json!({ "offset": 4 }))));
    let keys = table.read(|offsets| offsets.keys("c", &partition));
    assert_eq!(keys, [offsets::record("c", &partition, None).0], "only ours is left");

    publish(&producer, &table, "c", &[(partition.clone(), None)]).await;
    assert_eq!(get(), None);
    assert_eq!(table.read(|offsets| offsets.of("c").count()), 1);
}

#[tokio::test]
async fn incomplete_offset_records_are_not_read_back() {
    let cluster = cluster();
    let kafka = cluster.settings();
    let table: Table<SourceOffsets> = Table::follow(&kafka, "t", PARTITIONS).await.unwrap();
    timeout(LIMIT, table.caught_up()).await.unwrap();
    let producer = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
    let edit = |at: u32| (map(json!({ "p": at })), Some(map(json!({ "o": at }))));
    let mut written = OffsetRecords::of(&table, "c", &(0..20).map(edit).collect::<Vec<_>>());
    let partitions: std::collections::BTreeSet<i32> =
        written.records.iter().map(|record| record.partition).collect();
    assert!(partitions.len() > 1, "{partitions:?}");
    let last = written.records.pop().unwrap();

    for record in written.records.drain(..) {
        producer.send(record).unwrap().await.unwrap();
    }
    let missing = written.read_back(&table, Duration::from_millis(300)).await;
    producer.send(last).unwrap().await.unwrap();
    let whole = written.read_back(&table, LIMIT).await;

    assert!(missing.is_err() && whole.is_ok());
    assert_eq!(table.read(|offsets| offsets.of("c").count()), 20);
}

/// Writes edits as records one by one: the in-process cluster has no markers of transactions.
async fn publish(
    producer: &Producer,
    table: &Table<SourceOffsets>,
    connector: &str,
    edits: &[offsets::OffsetEdit],
) {
    let written = OffsetRecords::of(table, connector, edits);
    for record in written.records.clone() {
        producer.send(record).unwrap().await.unwrap();
    }
    written.read_back(table, LIMIT).await.unwrap();
}
