//! What the in-process cluster can show; transactions and restarts are shown against a real broker.

use std::sync::mpsc;

use bytes::Bytes;

use crate::{Ack, ConsumerEvent, Producer, ProducerOptions, embedded::EmbeddedCluster};
use model::EncodedRecord;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Every value, in the order it came.
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
    let record = EncodedRecord {
        topic: "t".into(),
        partition,
        key: Bytes::from_static(b"key"),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        headers: Vec::new(),
        timestamp_ms: None,
    };
    producer.send(record).unwrap().await.unwrap()
}

fn cluster() -> EmbeddedCluster {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("t", 2).unwrap();
    cluster
}

fn values(tail: &Table<Values>, partition: i32) -> Vec<String> {
    let of = |values: &Values| {
        values.0.iter().filter(|(of, _)| *of == partition).map(|(_, it)| it.clone()).collect()
    };
    tail.read(of)
}

#[tokio::test]
async fn a_tail_has_all_that_was_written_before_and_then_what_is_written() {
    let cluster = cluster();
    put(&cluster, 0, "a").await;
    put(&cluster, 1, "b").await;

    let tail: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    timeout(LIMIT, tail.caught_up()).await.unwrap();
    assert_eq!((values(&tail, 0), values(&tail, 1)), (vec!["a".into()], vec!["b".into()]));
    assert!(tail.is_caught_up());
    let mut changes = tail.changes();
    changes.borrow_and_update();

    let ack = put(&cluster, 1, "c").await;
    timeout(LIMIT, changes.changed()).await.unwrap().unwrap();
    tail.read_past(ack.partition, ack.offset, LIMIT).await.unwrap();
    assert_eq!(values(&tail, 1), ["b", "c"]);
    tail.read_to_end(LIMIT).await.unwrap();
    assert_eq!(tail.silent_for(), None);
}

#[tokio::test]
async fn an_empty_topic_is_caught_up_with_and_read_to_its_end() {
    let cluster = cluster();
    let tail: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();

    timeout(LIMIT, tail.caught_up()).await.unwrap();
    tail.read_to_end(LIMIT).await.unwrap();

    let error = tail.read_past(0, 0, Duration::from_millis(50)).await.unwrap_err();
    assert!(error.to_string().starts_with("read t partition 0 up to offset 0: not done within"), "{error}");
}

#[tokio::test]
async fn a_broker_that_is_away_only_delays_and_is_told() {
    let cluster = cluster();
    put(&cluster, 0, "a").await;
    cluster.set_reachable(false).unwrap();

    let tail: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    let told = async {
        while tail.silent_for().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, told).await.unwrap();
    assert!(!tail.is_caught_up());
    let error = tail.read_to_end(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    cluster.set_reachable(true).unwrap();

    timeout(LIMIT, tail.caught_up()).await.unwrap();
    assert_eq!(values(&tail, 0), ["a"]);
    assert_eq!(tail.silent_for(), None);
}

#[tokio::test]
async fn a_setting_no_client_can_be_built_with_is_told_at_once() {
    let mut kafka = cluster().settings();
    kafka.consumer.insert("isolation.level".into(), "read_uncommitted".into());

    let refused = Table::<Values>::follow(&kafka, "t", 2).await.unwrap_err();

    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
}

#[tokio::test]
async fn the_task_ends_with_the_last_clone() {
    let cluster = cluster();
    let tail: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    let shared = Arc::downgrade(&tail.shared);
    let clone = tail.clone();
    drop(tail);
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
async fn a_topic_half_read_is_never_seen_neither_at_first_nor_when_it_is_read_anew() {
    let cluster = cluster();
    cluster.set_reachable(false).unwrap();
    let tail: Table<Values> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    let seen = || (tail.is_caught_up(), [values(&tail, 0), values(&tail, 1)].concat());

    let mut first = follow::TableReader::new(&tail.shared);
    assert!(!first.apply(&[received(0, 4, "a"), end(0), received(0, 5, "b")]));
    assert_eq!(seen(), (false, vec![]));
    assert!(first.apply(&[received(1, 0, "c"), end(1)]));
    assert_eq!(seen(), (true, vec!["a".into(), "b".into(), "c".into()]));
    first.apply(&[received(1, 7, "d")]);
    assert_eq!(seen().1.len(), 4);
    tail.read_past(1, 7, LIMIT).await.unwrap();

    let mut anew = follow::TableReader::new(&tail.shared);
    anew.apply(&[received(0, 0, "x"), end(0)]);
    assert_eq!(seen().1.len(), 4, "the state of before");
    assert!(anew.apply(&[end(1)]));
    assert_eq!(seen(), (true, vec!["x".into()]));
    tail.read_past(1, 0, Duration::ZERO).await.unwrap_err();
}

/// Takes a record only when it is let, and says that it waits.
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
async fn reading_to_the_end_waits_for_a_tail_that_lags_behind() {
    let cluster = cluster();
    let tail: Table<Slow> = Table::follow(&cluster.settings(), "t", 2).await.unwrap();
    timeout(LIMIT, tail.caught_up()).await.unwrap();
    let (waits, waiting) = mpsc::channel();
    let (let_it, may) = mpsc::channel();
    *SLOW.lock() = Some((waits, may));

    put(&cluster, 0, "a").await;
    waiting.recv_timeout(LIMIT).unwrap();
    let early = tail.read_to_end(Duration::from_secs(1)).await;
    let_it.send(()).unwrap();

    assert!(early.is_err(), "{early:?}");
    tail.read_to_end(LIMIT).await.unwrap();
}

fn record(topic: &str, partition: i32) -> EncodedRecord {
    EncodedRecord {
        topic: topic.into(),
        partition,
        key: Bytes::from_static(b"key"),
        value: None,
        headers: Vec::new(),
        timestamp_ms: None,
    }
}

#[test]
fn write_is_known_once_its_end_in_each_partition_is_read() {
    let mut records = [record("t", 0), record("t", 1), record("u", 0), record("t", 0)];
    let mark = WriteMark::put(&mut records, "t");
    let other = WriteMark::put(&mut [record("t", 0)], "t");
    let mut contents = TableContents::new(Values::default());

    let mut known = Vec::new();
    for record in records.iter().filter(|record| &*record.topic == "t") {
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

/// A record as a reader gets it.
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
