//! Transactions that stay open: those of other writers, and those that a broker has lost track of.
//!
//! A broker that is killed while it ends a transaction may restart in the belief that it has ended it; partitions then never get its
//! marker. The tests cause this by cutting a dead broker's transaction log: its coordinator restarts without the transaction, its
//! partitions still have it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka::{ReadLimits, ShardProducer, ShardProducers, StartOffset, TransactionOptions, partition_of};
use model::EncodedRecord;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Map, Value, json};
use tributary::{
    connect::{
        config_writer::{Changes, ConfigWriter},
        supervisor::Settings,
    },
    state::{
        configs::{self, Configs},
        offsets,
    },
};

use super::cluster::WorkerGroup;
use super::worker::LocalWorker;
use crate::support::gate::{Gate, gate};
use crate::support::topics::{LIMIT, record};
use crate::support::{Result, Shared, breakable};

crate::tests! {
    real an_open_transaction_delays_only_tasks_with_offsets_behind_it;
    disturbing next_owners_end_transactions_the_broker_lost_track_of within 180;
}

/// Long enough to see that a transaction stays open.
const PATIENCE: Duration = Duration::from_secs(1);

async fn an_open_transaction_delays_only_tasks_with_offsets_behind_it(shared: &'static Shared) {
    let cluster = WorkerGroup::create(shared.bootstrap(), "hanging-open").await;
    let (waits, free) = (name_in(0), name_in(1));
    let (mut stranger, gate) = hold(&cluster, &format!("{}-stranger", cluster.prefix)).await;
    let foreign = record(&cluster.config.topics.offset.name.as_str().into(), 0, "foreign", "0");
    let open = tokio::spawn(async move { stranger.commit(vec![foreign]).await });
    gate.reached().await;
    let worker = LocalWorker::start(&cluster.config, "alone:1", Settings::default()).await;

    cluster.create_connector(&waits, &[]).await;
    cluster.create_connector(&free, &[]).await;

    cluster.until_running(&free, 1).await;
    cluster.until_counted(&free, 0, 50).await;
    assert_eq!(cluster.count(&waits, 0), 0);
    let runs = |name: &str| worker.handle.running().iter().any(|one| is_running(one, name));
    assert!(runs(&free) && !runs(&waits), "{:?}", worker.handle.running());
    let kafka::Error::Undecided { open: found, .. } = undecided(&cluster, 0).await.unwrap_err() else {
        panic!("the transaction is decided");
    };
    assert_eq!((found.len(), found[0].partition), (1, 0));
    assert!(found[0].open_for.is_some_and(|age| age < 4 * LIMIT), "{found:?}");

    gate.open();
    open.await.unwrap().unwrap();

    cluster.until_running(&waits, 1).await;
    cluster.until_counted(&waits, 0, 5).await;
    worker.stop().await;
    cluster.check_numbers(&waits).await;
}

async fn next_owners_end_transactions_the_broker_lost_track_of() -> Result<()> {
    let mut broker = breakable::take().await?;
    let cluster = WorkerGroup::create(&broker.bootstrap(), "hanging-lost").await;
    let worker = LocalWorker::start(&cluster.config, "before:1", Settings::default()).await;
    cluster.create_connector("lost", &[]).await;
    cluster.until_running("lost", 1).await;
    cluster.until_counted("lost", 0, 5).await;
    worker.stop().await;

    let before = broker.transaction_logs()?;
    let number = record(&cluster.topic("lost").into(), 0, "lost/0", "1000000");
    let numbers = vec![number, offset(&cluster, "lost", 1_000_001)];
    let edit = record(&cluster.config.topics.config.name.as_str().into(), 0, "connector-unseen", "{}");
    // Offsets of other connectors, in a partition without open transactions of the task.
    let hidden = offset(&cluster, "lost", 0).partition;
    let (unseen, seen) = (name_in((hidden + 1) % 3), name_in((hidden + 1) % 3) + "-seen");
    let edits = vec![offset(&cluster, &unseen, 7), edit];
    // Both transactions have the ids of owners that do not run now, and no headers that name the rest of the batch.
    let open = [
        leave_open(&broker.bootstrap(), &format!("{}-lost-0", cluster.prefix), numbers).await,
        leave_open(&broker.bootstrap(), &cluster.arbiter_id(), edits).await,
    ];
    broker.kill();
    broker.forget_transactions_since(&before)?;
    broker.restart().await?;
    let still = undecided(&cluster, hidden).await;
    assert!(matches!(still, Err(kafka::Error::Undecided { .. })), "there is nothing to end: {still:?}");

    // Two workers that both find the open transaction do not prevent each other from ending it.
    let (one, other) = (cluster.another_config_writer(), cluster.another_config_writer());
    let edits = async |config_writer: &ConfigWriter, name: &str| {
        for round in 0..3 {
            let record = EncodedRecord { partition: (hidden + 1) % 3, ..offset(&cluster, &seen, round) };
            let decide = |_: &Configs| {
                let writes = vec![configs::logger(name, "INFO")];
                Ok::<_, Infallible>(((), Changes { writes, other_records: vec![record.clone()] }))
            };
            config_writer.change(LIMIT, decide).await.unwrap();
        }
    };
    let begun = Instant::now();
    tokio::join!(edits(&one, "one"), edits(&other, "other"));
    println!("hanging: six edits of two workers behind it took {:?}", begun.elapsed());
    undecided(&cluster, (hidden + 1) % 3).await.unwrap();
    let worker = LocalWorker::start(&cluster.config, "after:2", Settings::default()).await;

    cluster.until_counted("lost", 0, 5).await;
    cluster.until_running("lost", 1).await;
    assert_eq!(cluster.task("lost", 0).worker_id, "after:2");
    assert!(cluster.count("lost", 0) < 1_000_000, "a hanging record has become visible");
    let edited = cluster.state.configs.read(|configs| configs.connectors().contains_key("unseen"));
    assert!(!edited, "a hanging edit has become visible");
    assert_eq!(cluster.count(&unseen, 0), 0, "a hanging edit of offsets has become visible");
    worker.stop().await;
    // No number is repeated, and later commits made no hanging record visible.
    cluster.check_numbers("lost").await;
    undecided(&cluster, hidden).await.unwrap();
    drop(open);
    Ok(())
}

/// Leaves a transaction of a foreign producer open, with these records in the log.
async fn leave_open(bootstrap: &str, id: &str, records: Vec<EncodedRecord>) -> BaseProducer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("transactional.id", id);
    let config = config.set("transaction.timeout.ms", "300000").clone();
    let writing = move || {
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(LIMIT).unwrap();
        producer.begin_transaction().unwrap();
        for record in &records {
            let sent = BaseRecord::to(&record.topic).partition(record.partition).key(&record.key[..]);
            let value = record.value.as_deref().unwrap_or_default();
            producer.send(sent.payload(value)).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(LIMIT).unwrap();
        producer
    };
    tokio::task::spawn_blocking(writing).await.unwrap()
}

/// A writer that is held inside its first batch, with a long transaction timeout.
async fn hold(cluster: &WorkerGroup, id: &str) -> (ShardProducer, Arc<Gate>) {
    let (hook, gate) = gate();
    let options = TransactionOptions {
        before_commit: Some(hook),
        transaction_timeout: Duration::from_secs(300),
        watchdog: Duration::from_secs(300),
        // Short, so that a replaced writer reports it.
        rebuild_limit: Duration::from_secs(5),
        ..TransactionOptions::default()
    };
    let shards = ShardProducers::new(cluster.config.kafka.clone(), options);
    (shards.take(id, Arc::new(|| true)).await.unwrap(), gate)
}

/// An error if a partition of the offset topic has open transactions.
async fn undecided(cluster: &WorkerGroup, partition: i32) -> std::result::Result<(), kafka::Error> {
    let topic = &cluster.config.topics.offset.name;
    let starts = [(partition, StartOffset::Earliest)].into();
    let waits = ReadLimits { other_partitions: &[], transaction_wait: PATIENCE, limit: LIMIT };
    kafka::read_to_end_from(&cluster.config.kafka, topic, &starts, &waits, drop).await.map(drop)
}

/// A name whose first task has its offset in this partition of the offset topic.
fn name_in(partition: i32) -> String {
    let mut names = (0..).map(|number| format!("c{number}"));
    names
        .find(|name| partition_of(&offset_key(name), super::cluster::OFFSET_PARTITIONS) == partition)
        .unwrap()
}

fn offset_key(connector: &str) -> Vec<u8> {
    offsets::record(connector, &first_task(), None).0
}

fn first_task() -> Map<String, Value> {
    json!({ "task": 0 }).as_object().unwrap().clone()
}

/// The offset of a connector's first task.
fn offset(cluster: &WorkerGroup, connector: &str, count: u64) -> EncodedRecord {
    let key = String::from_utf8(offset_key(connector)).unwrap();
    let partition = partition_of(key.as_bytes(), super::cluster::OFFSET_PARTITIONS);
    let value = json!({ "count": count }).to_string();
    record(&cluster.config.topics.offset.name.as_str().into(), partition, &key, value)
}

fn is_running(one: &tributary::connect::supervisor::RunningInstance, name: &str) -> bool {
    use tributary::state::statuses::RunState;
    &*one.id.connector == name && one.id.task.is_some() && one.state == RunState::Running
}
