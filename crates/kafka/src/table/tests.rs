//! Tests on the in-process cluster; transactions and restarts are tested on a real broker.

use std::sync::mpsc;

use bytes::Bytes;

use crate::{Ack, ConsumerEvent, Producer, ProducerOptions, embedded::EmbeddedCluster};
use model::EncodedRecord;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Every value in order of arrival.
#[derive(Debug, Default)]
struct Values(Vec<(i32, String)>);

impl TableState for Values {
    fn apply(&mut self, record: &ConsumerRecord) {
        let value = record.value.as_deref().unwrap_or_default();
        self.0.push((record.partition, String::from_utf8(value.to_vec()).unwrap()));
    }
}

async fn put(cluster: &EmbeddedCluster, partition: i32, value: &str) -> Ack {
    let producer = Producer::new(&cluster.settings(), &ProducerOptions::default()).unwrap();
    let value = Bytes::copy_from_slice(value.as_bytes());
    let record = EncodedRecord::new(&"t".into(), partition, "key", Some(value));
    producer.send(record).unwrap().await.unwrap()
}

fn cluster() -> EmbeddedCluster {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("t", 2).unwrap();
    cluster
}

fn values(table: &Table<Values>, partition: i32) -> Vec<String> {
    let of = |values: &Values| {
        values.0.iter().filter(|(of, _)| *of == partition).map(|(_, it)| it.clone()).collect()
    };
    table.read(of)
}

#[tokio::test]
async fn table_has_old_and_then_new_records() {
    let cluster = cluster();
    put(&cluster, 0, "a").await;
    put(&cluster, 1, "b").await;

    let table: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    timeout(LIMIT, table.caught_up()).await.unwrap();
    assert_eq!((values(&table, 0), values(&table, 1)), (vec!["a".into()], vec!["b".into()]));
    assert!(table.is_caught_up());
    let mut changes = table.changes();
    changes.borrow_and_update();

    let ack = put(&cluster, 1, "c").await;
    timeout(LIMIT, changes.changed()).await.unwrap().unwrap();
    table.read_past(ack.partition, ack.offset, LIMIT).await.unwrap();
    assert_eq!(values(&table, 1), ["b", "c"]);
    table.read_to_end(LIMIT).await.unwrap();
    assert_eq!(table.silent_for(), None);
}

#[tokio::test]
async fn table_of_an_empty_topic_is_caught_up() {
    let cluster = cluster();
    let table: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();

    timeout(LIMIT, table.caught_up()).await.unwrap();
    table.read_to_end(LIMIT).await.unwrap();

    let error = table.read_past(0, 0, Duration::from_millis(50)).await.unwrap_err();
    assert!(error.to_string().starts_with("read t partition 0 up to offset 0: not done within"), "{error}");
}

#[tokio::test]
async fn lost_broker_only_delays_and_is_reported() {
    let cluster = cluster();
    put(&cluster, 0, "a").await;
    cluster.set_reachable(false).unwrap();

    let table: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    let reported = async {
        while table.silent_for().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, reported).await.unwrap();
    assert!(!table.is_caught_up());
    let error = table.read_to_end(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    cluster.set_reachable(true).unwrap();

    timeout(LIMIT, table.caught_up()).await.unwrap();
    assert_eq!(values(&table, 0), ["a"]);
    assert_eq!(table.silent_for(), None);
}

#[tokio::test]
async fn unusable_setting_is_reported_at_once() {
    let mut kafka = cluster().settings();
    kafka.consumer.insert("isolation.level".into(), "read_uncommitted".into());

    let refused = Table::<Values>::follow(&kafka, "t", 2).await.unwrap_err();

    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
}

#[tokio::test]
async fn task_ends_with_the_last_clone() {
    let cluster = cluster();
    let table: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    let shared = Arc::downgrade(&table.shared);
    let clone = table.clone();
    drop(table);
    timeout(LIMIT, clone.caught_up()).await.unwrap();

    drop(clone);

    let ended = async {
        while shared.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, ended).await.unwrap();
}

fn received(partition: i32, offset: i64, value: &'static str) -> ConsumerEvent {
    ConsumerEvent::Record(ConsumerRecord {
        topic: "t".into(),
        partition,
        offset,
        key: None,
        value: Some(Bytes::from_static(value.as_bytes())),
        headers: Vec::new(),
        timestamp_ms: None,
    })
}

fn end(partition: i32) -> ConsumerEvent {
    ConsumerEvent::End { topic: "t".into(), partition }
}

#[tokio::test]
async fn partly_read_topic_is_never_visible() {
    let cluster = cluster();
    cluster.set_reachable(false).unwrap();
    let table: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    let seen = || (table.is_caught_up(), [values(&table, 0), values(&table, 1)].concat());

    let mut first = follow::TableReader::new(&table.shared);
    assert!(!first.apply(&[received(0, 4, "a"), end(0), received(0, 5, "b")]));
    assert_eq!(seen(), (false, vec![]));
    assert!(first.apply(&[received(1, 0, "c"), end(1)]));
    assert_eq!(seen(), (true, vec!["a".into(), "b".into(), "c".into()]));
    first.apply(&[received(1, 7, "d")]);
    assert_eq!(seen().1.len(), 4);
    table.read_past(1, 7, LIMIT).await.unwrap();

    let mut anew = follow::TableReader::new(&table.shared);
    anew.apply(&[received(0, 0, "x"), end(0)]);
    assert_eq!(seen().1.len(), 4, "the state of before");
    assert!(anew.apply(&[end(1)]));
    assert_eq!(seen(), (true, vec!["x".into()]));
    table.read_past(1, 0, Duration::ZERO).await.unwrap_err();
}

/// Applies a record only when released, and reports that it waits.
#[derive(Debug, Default)]
struct Slow;

static SLOW: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>> = Mutex::new(None);

impl TableState for Slow {
    fn apply(&mut self, _: &ConsumerRecord) {
        if let Some((waits, may)) = &*SLOW.lock() {
            waits.send(()).unwrap();
            may.recv().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_to_end_waits_for_a_lagging_table() {
    let cluster = cluster();
    let table: Table<Slow> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    timeout(LIMIT, table.caught_up()).await.unwrap();
    let (waits, waiting) = mpsc::channel();
    let (let_it, may) = mpsc::channel();
    *SLOW.lock() = Some((waits, may));

    put(&cluster, 0, "a").await;
    waiting.recv_timeout(LIMIT).unwrap();
    let early = table.read_to_end(Duration::from_secs(1)).await;
    let_it.send(()).unwrap();

    assert!(early.is_err(), "{early:?}");
    table.read_to_end(LIMIT).await.unwrap();
}

#[tokio::test]
async fn unchanged_topic_is_not_read_twice() {
    let cluster = cluster();
    put(&cluster, 0, "a").await;
    let table: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    table.read_to_end(LIMIT).await.unwrap();
    let change = |change: &dyn Fn(&mut ReadProgress)| table.shared.progress.send_modify(change);
    let end_of_0 = || table.shared.progress.borrow().ends.get(&0).copied();
    // The in-process cluster writes no transaction markers. The record stands for one: the table's position stays before it, so
    // a read that starts there waits for it in vain.
    let hide = |progress: &mut ReadProgress| {
        progress.positions.insert(0, None);
    };

    change(&hide);
    table.read_to_end(LIMIT).await.unwrap();
    put(&cluster, 1, "b").await;
    table.read_to_end(LIMIT).await.unwrap();
    assert_eq!(values(&table, 1), ["b"]);

    change(&|progress| {
        progress.ends.insert(0, 99);
    });
    table.read_to_end(LIMIT).await.unwrap();
    assert_eq!(end_of_0(), Some(1), "the log does not reach offset 99");

    follow::TableReader::new(&table.shared).apply(&[end(0), end(1)]);
    assert_eq!(end_of_0(), None, "the new state may lack the record");
    assert!(table.read_to_end(Duration::from_secs(1)).await.is_err(), "the new state lacks it");
}

#[test]
fn end_of_a_replaced_state_is_not_noted() {
    let mut progress = ReadProgress { rebuilds: 2, ..ReadProgress::default() };

    progress.reach([(0, 5)].into(), 1);
    assert_eq!(progress.ends, BTreeMap::new());
    progress.reach([(0, 5)].into(), 2);
    progress.reach([(0, 4), (1, 7)].into(), 2);

    assert_eq!(progress.ends, [(0, 5), (1, 7)].into());
}

fn record(topic: &str, partition: i32) -> EncodedRecord {
    EncodedRecord::new(&topic.into(), partition, "key", None)
}

#[test]
fn write_is_known_once_read_in_each_partition() {
    let mut records = [record("t", 0), record("t", 1), record("u", 0), record("t", 0)];
    let mark = WriteMark::put(&mut records, "t");
    let other = WriteMark::put(&mut [record("t", 0)], "t");
    let mut contents = TableContents::new(Values::default());

    let mut known = Vec::new();
    for record in records.iter().filter(|record| &*record.topic == "t") {
        // Settling a hanging transaction may write a record once more.
        contents.apply(&seen(record));
        contents.apply(&seen(record));
        known.push(contents.has(&mark));
    }

    assert_eq!(known, [false, false, true]);
    assert!(records[2].headers.is_empty() && !contents.has(&other));
}

#[test]
fn ids_of_old_writes_are_forgotten() {
    let mut contents = TableContents::new(Values::default());
    for _ in 0..2 * REMEMBERED_WRITES {
        let mut records = [record("t", 0)];
        WriteMark::put(&mut records, "t");
        contents.apply(&seen(&records[0]));
    }

    assert_eq!(contents.writes.len(), REMEMBERED_WRITES);
}

/// A record as a consumer reads it.
fn seen(record: &EncodedRecord) -> ConsumerRecord {
    ConsumerRecord {
        topic: "t".into(),
        partition: record.partition,
        offset: 0,
        key: None,
        value: None,
        headers: record.headers.iter().map(|(name, value)| ((*name).into(), value.clone())).collect(),
        timestamp_ms: None,
    }
}
