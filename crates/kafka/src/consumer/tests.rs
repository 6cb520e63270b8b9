use tokio::time::timeout;

use base::retry::Retry;
use model::EncodedRecord;

use super::*;
use crate::{Producer, ProducerOptions, embedded::EmbeddedCluster};

const LIMIT: Duration = Duration::from_secs(20);

fn record(topic: &str, partition: i32, value: &str) -> EncodedRecord {
    let value = Bytes::copy_from_slice(value.as_bytes());
    EncodedRecord::new(&topic.into(), partition, "company", Some(value))
}

fn from(topic: &str, partition: i32, start: StartOffset) -> Assignment {
    Assignment { topic: topic.into(), partition, start }
}

/// A cluster with `count` records in each of the partitions 0 and 1 of the topics `a` and `b`.
async fn filled(count: usize) -> EmbeddedCluster {
    let cluster = EmbeddedCluster::start(1).unwrap();
    let producer = Producer::new(&cluster.settings(), &ProducerOptions::default()).unwrap();
    for topic in ["a", "b"] {
        cluster.create_topic(topic, 2).unwrap();
        for partition in [0, 1] {
            for n in 0..count {
                drop(producer.send(record(topic, partition, &format!("{topic}{partition}-{n}"))).unwrap());
            }
        }
    }
    producer.flush(LIMIT).await.unwrap();
    cluster
}

async fn next(consumer: &mut Consumer) -> ConsumerEvent {
    timeout(LIMIT, consumer.next()).await.unwrap().unwrap()
}

/// Values up to the end of the one partition that is read.
async fn values(consumer: &mut Consumer) -> Vec<String> {
    let mut values = Vec::new();
    while let ConsumerEvent::Record(record) = next(consumer).await {
        values.push(String::from_utf8(record.value.unwrap().to_vec()).unwrap());
    }
    values
}

#[tokio::test]
async fn end_comes_after_all_records_of_its_partition() {
    let cluster = filled(50).await;
    let all = ["a", "b"]
        .iter()
        .flat_map(|topic| [0, 1].map(|partition| from(topic, partition, StartOffset::Earliest)));

    let mut consumer =
        Consumer::assign(&cluster.settings(), all.collect(), &ConsumerOptions::default()).await.unwrap();

    let mut seen: BTreeMap<(String, i32), i64> = BTreeMap::new();
    let mut ended = BTreeSet::new();
    while ended.len() < 4 {
        match next(&mut consumer).await {
            ConsumerEvent::Record(record) => {
                let next_offset = seen.entry((record.topic.to_string(), record.partition)).or_default();
                assert_eq!(record.offset, *next_offset);
                *next_offset += 1;
            }
            ConsumerEvent::End { topic, partition } => {
                let key = (topic.to_string(), partition);
                assert_eq!(seen.get(&key), Some(&50), "{key:?}");
                ended.insert(key);
            }
        }
    }
    consumer.stop().await;
}

#[tokio::test]
async fn reading_starts_at_the_assigned_offset() {
    let cluster = filled(3).await;

    for (start, expected) in [
        (StartOffset::Earliest, vec!["a1-0", "a1-1", "a1-2"]),
        (StartOffset::Offset(1), vec!["a1-1", "a1-2"]),
        (StartOffset::Offset(3), vec![]),
        (StartOffset::End, vec![]),
    ] {
        let assignments = vec![from("a", 1, start)];
        let mut consumer =
            Consumer::assign(&cluster.settings(), assignments, &ConsumerOptions::default()).await.unwrap();

        assert_eq!(values(&mut consumer).await, expected, "{start:?}");
    }
}

#[tokio::test]
async fn offset_out_of_range_is_an_error_that_names_the_partition() {
    let cluster = filled(3).await;
    let assignments = vec![from("a", 0, StartOffset::Earliest), from("b", 1, StartOffset::Offset(99))];
    let mut consumer =
        Consumer::assign(&cluster.settings(), assignments, &ConsumerOptions::default()).await.unwrap();

    let error = loop {
        match timeout(LIMIT, consumer.next()).await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };

    assert_eq!(error.to_string(), "read b partition 1 from offset 99: the broker keeps 0 up to 3");
    assert_eq!(error.retry(), Retry::Never);
}

#[tokio::test]
async fn missing_partition_is_named_before_reading() {
    let cluster = filled(1).await;

    let partition = Consumer::assign(
        &cluster.settings(),
        vec![from("a", 7, StartOffset::End)],
        &ConsumerOptions::default(),
    )
    .await;

    assert_eq!(partition.unwrap_err().to_string(), "find partition 7 of topic a");
}

#[tokio::test]
async fn buffered_bytes_are_bounded() {
    let cluster = filled(500).await;
    // Keys and values of one record are 11 to 13 bytes, so the third finds the limit reached.
    let small = ConsumerOptions { buffer_bytes: 20, ..ConsumerOptions::default() };
    let mut consumer =
        Consumer::assign(&cluster.settings(), vec![from("a", 0, StartOffset::Earliest)], &small)
            .await
            .unwrap();

    let mut most = 0;
    let read = async {
        for _ in 0..500 {
            assert!(matches!(next(&mut consumer).await, ConsumerEvent::Record(_)));
            most = most.max(consumer.events.len());
        }
    };
    // A thread that is not woken when there is space checks only ten times a second: that would take 25 s.
    timeout(Duration::from_secs(20), read).await.unwrap();

    assert!(most <= 2, "{most} records waited");
    assert!(matches!(next(&mut consumer).await, ConsumerEvent::End { .. }));
}

#[tokio::test]
async fn paused_partition_resumes_without_a_gap() {
    let cluster = filled(300).await;
    let assignments = vec![from("a", 0, StartOffset::Earliest), from("a", 1, StartOffset::Earliest)];
    let tight = ConsumerOptions { buffer_records: 1, ..ConsumerOptions::default() };
    let mut consumer = Consumer::assign(&cluster.settings(), assignments, &tight).await.unwrap();

    assert!(consumer.pause("a", 0));
    assert!(!consumer.pause("a", 9), "partition 9 is not assigned");
    let mut offsets = [Vec::new(), Vec::new()];
    loop {
        match next(&mut consumer).await {
            ConsumerEvent::Record(record) => offsets[record.partition as usize].push(record.offset),
            ConsumerEvent::End { partition, .. } => {
                assert_eq!(partition, 1, "the paused partition cannot have reached its end");
                break;
            }
        }
    }
    assert!(offsets[0].len() <= TAKEN_BEFORE_THE_PAUSE, "{} records of a paused partition", offsets[0].len());

    assert!(consumer.resume("a", 0));
    while offsets[0].len() < 300 {
        if let ConsumerEvent::Record(record) = next(&mut consumer).await {
            offsets[record.partition as usize].push(record.offset);
        }
    }

    assert!(offsets.iter().all(|offsets| offsets.iter().copied().eq(0..300)));
}

/// When the pause arrives, one may be in the channel and one with the thread.
const TAKEN_BEFORE_THE_PAUSE: usize = 2;

#[tokio::test]
async fn read_to_end_of_an_empty_topic_ends_at_once() {
    let cluster = filled(0).await;

    let positions = read_to_end(&cluster.settings(), "a", &[0], LIMIT, |_| panic!("nothing to read")).await;

    assert_eq!(positions.unwrap(), BTreeMap::from([(0, 0)]));
}

#[tokio::test]
async fn read_to_end_fails_at_its_limit() {
    let cluster = filled(1).await;
    cluster.set_reachable(false).unwrap();

    let error =
        read_to_end(&cluster.settings(), "a", &[0], Duration::from_millis(300), drop).await.unwrap_err();

    assert_eq!(error.retry(), Retry::Later, "{error}");
}

#[tokio::test]
async fn watermarks_are_first_and_next_offset() {
    let cluster = filled(5).await;

    let found = watermarks(&cluster.settings(), "a", &[0, 1], LIMIT).await.unwrap();

    assert_eq!(found, BTreeMap::from([(0, (0, 5)), (1, (0, 5))]));
}

#[tokio::test]
async fn read_from_an_offset_returns_the_later_records() {
    let cluster = filled(10).await;
    let starts = [(0, StartOffset::Offset(7)), (1, StartOffset::Offset(10))].into();
    let mut read = Vec::new();

    let each = |record: ConsumerRecord| read.push((record.partition, record.offset));
    let positions =
        read_to_end_from(&cluster.settings(), "a", &starts, &ReadLimits::up_to(LIMIT), each).await.unwrap();

    assert_eq!(read, [(0, 7), (0, 8), (0, 9)]);
    assert_eq!(positions, [(0, 10), (1, 10)].into());
}

#[tokio::test]
async fn read_to_end_waits_for_its_caller() {
    let cluster = filled(30).await;
    let starts = [(0, StartOffset::Earliest), (1, StartOffset::Offset(28))].into();

    let mut reading =
        ReadToEnd::begin(&cluster.settings(), "a", &starts, &ReadLimits::up_to(LIMIT)).await.unwrap();
    let mut read = BTreeMap::<i32, Vec<i64>>::new();
    while let Some(record) = reading.next().await.unwrap() {
        read.entry(record.partition).or_default().push(record.offset);
    }

    assert_eq!(read, [(0, (0..30).collect()), (1, vec![28, 29])].into());
    assert_eq!(*reading.positions(), [(0, 30), (1, 30)].into());
    assert_eq!(reading.next().await.unwrap(), None, "the end stays the end");
}

#[tokio::test]
async fn ping_fails_without_the_broker() {
    let cluster = filled(1).await;
    let options = ConsumerOptions::default();
    let consumer = Consumer::assign(&cluster.settings(), vec![from("a", 0, StartOffset::Earliest)], &options)
        .await
        .unwrap();

    consumer.ping("a", 0, LIMIT).await.unwrap();
    cluster.set_reachable(false).unwrap();

    let error = consumer.ping("a", 0, Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Later, "{error}");
}
