//! Tails: consistent at all times, past markers and holes, through broker outages and recreated topics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka::{Admin, Lease, Producer, ProducerOptions, ShardProducers, TransactionOptions};
use model::EncodedRecord;
use tributary::{
    config::connector::TargetState,
    connect::config_writer::Changes,
    state::{
        Table,
        configs::{self, Configs},
        statuses::{RunState, Status},
        topics,
        writer::{OffsetRecords, StatusWriter},
    },
};

use super::cluster::{LIMIT, StateCluster, create};
use crate::support::{Result, Shared, breakable, broker::tool, cycles, gate::gate, lost::timeout};

crate::tests! {
    real topics_of_a_real_kafka_connect_are_read;
    real reading_to_the_end_shows_commits_past_markers_and_aborts;
    real statuses_and_offsets_are_read_back_by_their_writer;
    real a_recreated_topic_is_read_from_its_start within 120;
    disturbing tails_survive_a_broker_restart_and_report_the_outage within 120;
}

async fn topics_of_a_real_kafka_connect_are_read(shared: &'static Shared) {
    let cluster = StateCluster::create(shared.bootstrap(), "state-connect").await;
    let samples = [
        (&cluster.topics.config.name, include_str!("../../../../src/state/samples/configs.tsv")),
        (&cluster.topics.offset.name, include_str!("../../../../src/state/samples/offsets.tsv")),
        (&cluster.topics.status.name, include_str!("../../../../src/state/samples/statuses.tsv")),
    ];
    let producer = Producer::new(&cluster.kafka, &ProducerOptions::default()).unwrap();
    for (topic, file) in samples {
        for line in file.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [partition, _, key, value] = fields[..] else { panic!("{line}") };
            let value = (value != "null").then_some(value);
            let record = record(topic, partition.parse().unwrap(), key, value);
            producer.send(record).unwrap().await.unwrap();
        }
    }

    let worker = cluster.worker().await;

    let targets: Vec<_> = worker.state.configs.read(|configs| {
        configs.connectors().iter().map(|(name, it)| (name.clone(), it.tasks.len())).collect()
    });
    let expected = [("bad", 1), ("grüße-7", 0), ("still", 0), ("t1", 1)];
    assert_eq!(targets, expected.map(|(name, tasks)| (name.to_owned(), tasks)));
    let foreign =
        worker.state.configs.read(|configs| configs.foreign_classes(|class| class == "WebhookSource"));
    assert_eq!(foreign.len(), 4, "our worker would start on topics of Kafka Connect");
    assert_eq!(worker.state.offsets.read(|offsets| offsets.of("still").count()), 3);
    worker.state.statuses.read(|statuses| {
        assert_eq!(statuses.connector("still").unwrap().state, RunState::Stopped);
        assert_eq!(statuses.topics("t1"), ["lines"]);
    });
}

async fn reading_to_the_end_shows_commits_past_markers_and_aborts(shared: &'static Shared) {
    let cluster = StateCluster::create(shared.bootstrap(), "state-end").await;
    let topic: Arc<str> = cluster.topics.config.name.as_str().into();
    let tail: Table<Configs> = Table::follow(&cluster.kafka, &topic, 1).await.unwrap();
    let id = || format!("{topic}-writer");
    let lease = || -> Lease { Arc::new(|| true) };
    let shards = ShardProducers::new(cluster.kafka.clone(), TransactionOptions::default());
    let mut longest = Duration::ZERO;

    for round in 0..cycles("TAILS", 2) {
        let mut producer = shards.take(id(), lease()).await.unwrap();
        let committed = format!("connector-{round}");
        producer.commit(vec![record(&topic, 0, &committed, Some(r#"{"properties":{}}"#))]).await.unwrap();
        // A transaction that is open until another producer takes its id and so aborts it.
        let (hook, held) = gate();
        let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
        let mut abandoned =
            ShardProducers::new(cluster.kafka.clone(), options).take(id(), lease()).await.unwrap();
        let batch =
            vec![record(&topic, 0, &format!("connector-aborted-{round}"), Some(r#"{"properties":{}}"#))];
        let writing = tokio::spawn(async move { abandoned.commit(batch).await.is_ok() });
        held.reached().await;
        drop(shards.take(id(), lease()).await.unwrap());

        let started = Instant::now();
        tail.read_to_end(LIMIT).await.unwrap();
        longest = longest.max(started.elapsed());

        let names: Vec<String> = tail.read(|configs| configs.connectors().keys().cloned().collect());
        assert_eq!(names.len(), round as usize + 1, "{names:?}");
        assert!(names.contains(&round.to_string()), "{names:?}");
        held.open();
        assert!(!writing.await.unwrap(), "an aborted batch was committed");
    }
    assert!(longest < LIMIT / 2, "reading to the end took {longest:?}");
}

async fn statuses_and_offsets_are_read_back_by_their_writer(shared: &'static Shared) {
    let cluster = StateCluster::create(shared.bootstrap(), "state-written").await;
    let worker = cluster.worker().await;
    let (topics, partitions) = (&cluster.topics, cluster.partitions);
    let statuses = StatusWriter::start(&cluster.kafka, &topics.status.name, partitions.status).unwrap();
    let offsets = &worker.state.offsets;
    let map = |text: &str| serde_json::from_str::<serde_json::Map<_, _>>(text).unwrap();

    for round in 0..i64::from(cycles("STATUSES", 2)) {
        let status = Status {
            state: RunState::Running,
            trace: None,
            worker_id: "w".into(),
            generation: round,
            handled_restart: None,
        };
        statuses.put("c", None, &status);
        statuses.put("c", Some(0), &status);
        statuses.flush(LIMIT).await.unwrap();
        worker.state.statuses.read_to_end(LIMIT).await.unwrap();
        let read = worker.state.statuses.read(|statuses| statuses.connector("c").cloned());
        assert_eq!(read, Some(status));

        let edit = (map(r#"{"topic":"t","partition":1}"#), Some(map(&format!(r#"{{"offset":{round}}}"#))));
        let written = OffsetRecords::of(offsets, "c", std::slice::from_ref(&edit));
        let decide = |_: &Configs| {
            let writes = vec![configs::target_state("c", Some(TargetState::Stopped))];
            Ok::<_, ()>(((), Changes { writes, other_records: written.records.clone() }))
        };
        worker.config_writer.change(LIMIT, decide).await.unwrap();
        written.read_back(offsets, LIMIT).await.unwrap();
        let read = offsets.read(|offsets| offsets.get("c", &edit.0).cloned());
        assert_eq!(read, edit.1, "read at once after the write");
    }
}

async fn a_recreated_topic_is_read_from_its_start(shared: &'static Shared) -> Result<()> {
    let cluster = StateCluster::create(shared.bootstrap(), "state-recreated").await;
    let worker = cluster.worker().await;
    for name in ["a", "b", "c"] {
        worker.config_writer.write(LIMIT, create(name, "before")).await.unwrap();
    }
    let mut changes = worker.state.configs.changes();

    let topic = &cluster.topics.config.name;
    let arguments = ["--bootstrap-server", shared.bootstrap(), "--delete", "--topic", topic];
    tool("org.apache.kafka.tools.TopicCommand", &arguments).await?;
    let admin = Admin::Real(cluster.kafka.clone());
    let end = Instant::now() + LIMIT;
    // The broker still knows the topic for a moment, and would not create it again.
    while !admin.partition_counts(&[topic]).await.unwrap().is_empty() {
        assert!(Instant::now() < end, "the topic was not deleted");
    }
    while topics::ensure(&admin, &cluster.topics).await.is_err() {
        assert!(Instant::now() < end, "the topic was not created again");
    }
    let producer = Producer::new(&cluster.kafka, &ProducerOptions::default()).unwrap();
    producer.send(record(topic, 0, "connector-new", Some(r#"{"properties":{}}"#))).unwrap().await.unwrap();

    let seen = async {
        loop {
            let names: Vec<String> =
                worker.state.configs.read(|configs| configs.connectors().keys().cloned().collect());
            if names == ["new"] {
                return;
            }
            // In between the topic exists and is empty.
            let is_consistent = names == ["a", "b", "c"] || names.is_empty();
            assert!(is_consistent, "an inconsistent state: {names:?}");
            changes.changed().await.unwrap();
        }
    };
    timeout(2 * LIMIT, seen).await.expect("the new topic was not read");
    worker.state.configs.read_to_end(LIMIT).await.unwrap();
    Ok(())
}

async fn tails_survive_a_broker_restart_and_report_the_outage() -> Result<()> {
    let mut broker = breakable::take().await?;
    let cluster = StateCluster::create(&broker.bootstrap(), "state-restart").await;
    let worker = cluster.worker().await;
    worker.config_writer.write(LIMIT, create("before", "me")).await.unwrap();
    let configs = &worker.state.configs;
    assert_eq!(configs.silent_for(), None);

    broker.kill();
    let reported = async {
        while configs.silent_for().is_none() || worker.state.offsets.silent_for().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, reported).await.expect("the outage is not reported");
    assert!(configs.is_caught_up() && configs.read(|configs| configs.connectors().contains_key("before")));
    let started = Instant::now();
    let refused = worker.config_writer.write(Duration::from_secs(3), create("meanwhile", "me")).await;
    assert!(
        // By its deadline, and not by the limits of the client.
        refused.is_err() && started.elapsed() < LIMIT / 2,
        "{refused:?} {:?}",
        started.elapsed()
    );
    broker.restart().await?;

    worker.config_writer.write(LIMIT, create("after", "me")).await.unwrap();
    let names: Vec<String> = configs.read(|configs| configs.connectors().keys().cloned().collect());
    assert!(
        names.iter().any(|name| name == "after") && names.iter().any(|name| name == "before"),
        "{names:?}"
    );
    let quiet = async {
        while configs.silent_for().is_some() || worker.state.offsets.silent_for().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, quiet).await.expect("the outage is still reported");
    Ok(())
}

fn record(topic: &str, partition: i32, key: &str, value: Option<&str>) -> EncodedRecord {
    EncodedRecord {
        topic: topic.into(),
        partition,
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
        headers: Vec::new(),
        timestamp_ms: None,
    }
}
