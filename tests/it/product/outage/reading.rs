//! Reading logs with missing records: a deleted range is an error and never skipped, and compaction holes do not prevent the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kafka::{
    Assignment, Consumer, ConsumerEvent, ConsumerOptions, ConsumerRecord, Error, Kafka, Lease, Producer,
    ProducerOptions, ShardProducers, StartOffset, TransactionOptions, read_to_end, watermarks,
};
use model::Cleanup;

use crate::support::gate::gate;
use crate::support::lost::timeout;
use crate::support::topics::{self, LIMIT};
use crate::support::{Result, Shared, prefix};

crate::tests! {
    real a_start_outside_the_log_fails_and_stops_no_other_partition;
    real a_consumer_reports_deleted_records_and_never_skips_them;
    real a_compacted_topic_with_holes_yields_each_keys_last_value within 180;
}

async fn a_start_outside_the_log_fails_and_stops_no_other_partition(shared: &'static Shared) -> Result<()> {
    let kafka = Kafka::plaintext(shared.bootstrap());
    let topic: Arc<str> = prefix("reading-outside").into();
    topics::create(&kafka, &topic, Cleanup::Delete, &[]).await;
    publish(&kafka, &topic, 0, &["value"; 10]).await;
    publish(&kafka, &topic, 1, &["value"; 10]).await;
    topics::delete_below(&kafka, &topic, 5).await?;

    for start in [2, 100] {
        let mut consumer = consumer(&kafka, &topic, &[(0, start), (1, 3)], ConsumerOptions::default()).await;
        let (mut error, mut read) = (None, Vec::new());
        while error.is_none() || read.len() < 7 {
            match timeout(LIMIT, consumer.next()).await.unwrap() {
                Ok(ConsumerEvent::Record(record)) => read.push((record.partition, record.offset)),
                Ok(ConsumerEvent::End { .. }) => {}
                Err(found) => error = Some(found),
            }
        }

        let Some(Error::OffsetOutOfRange { partition, offset, low, high, .. }) = error else {
            panic!("start at {start}: {error:?}")
        };
        assert_eq!((partition, offset, low, high), (0, start, 5, 10));
        assert!(read.into_iter().eq((3..10).map(|offset| (1, offset))), "the other partition");
    }
    Ok(())
}

async fn a_consumer_reports_deleted_records_and_never_skips_them(shared: &'static Shared) -> Result<()> {
    let kafka = Kafka::plaintext(shared.bootstrap());
    let topic: Arc<str> = prefix("reading-deleted").into();
    topics::create(&kafka, &topic, Cleanup::Delete, &[]).await;
    // Far more than the consumer fetches ahead.
    let large = topics::noise(400_000);
    publish(&kafka, &topic, 0, &vec![large; 40]).await;
    let options = ConsumerOptions {
        buffer_records: 1,
        buffer_bytes: 1,
        prefetch_bytes: 1,
        ..ConsumerOptions::default()
    };
    let mut consumer = consumer(&kafka, &topic, &[(0, 0)], options).await;
    let first = timeout(LIMIT, consumer.next()).await.unwrap().unwrap();
    assert!(matches!(first, ConsumerEvent::Record(ConsumerRecord { offset: 0, .. })), "{first:?}");

    topics::delete_below(&kafka, &topic, 39).await?;

    let mut next = 1;
    let error = loop {
        match timeout(LIMIT, consumer.next()).await.unwrap() {
            Ok(ConsumerEvent::Record(record)) => {
                assert_eq!(record.offset, next, "offsets were skipped");
                next += 1;
            }
            Ok(ConsumerEvent::End { .. }) => panic!("it came to an end at {next}"),
            Err(error) => break error,
        }
    };
    let Error::OffsetOutOfRange { offset, low: 39, high: 40, .. } = error else { panic!("{error:?}") };
    assert_eq!(offset, next);
    Ok(())
}

async fn a_compacted_topic_with_holes_yields_each_keys_last_value(shared: &'static Shared) {
    let kafka = Kafka::plaintext(shared.bootstrap());
    let topic: Arc<str> = prefix("reading-compacted").into();
    let settings =
        [("segment.ms", "100"), ("min.cleanable.dirty.ratio", "0.01"), ("max.compaction.lag.ms", "100")];
    topics::create(&kafka, &topic, Cleanup::Compact, &settings).await;
    let shards = ShardProducers::new(kafka.clone(), TransactionOptions::default());
    let id = || format!("{topic}-shard");
    let lease = || -> Lease { Arc::new(|| true) };
    let mut producer = shards.take(id(), lease()).await.unwrap();
    let batch = |round: usize| {
        (0..5).map(|key| topics::record(&topic, 0, &format!("key-{key}"), round.to_string())).collect()
    };

    // A segment is closed, and can be compacted, only when a later record is written.
    let started = Instant::now();
    let mut rounds = 0;
    while topics::content(&kafka, &topic).await[&0].len() == rounds * 5 {
        assert!(started.elapsed() < 3 * LIMIT, "nothing was compacted");
        producer.commit(batch(rounds)).await.unwrap();
        rounds += 1;
    }
    let (hook, held) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    let mut abandoned = ShardProducers::new(kafka.clone(), options).take(id(), lease()).await.unwrap();
    let abandoned_batch = batch(rounds);
    let writing = tokio::spawn(async move { abandoned.commit(abandoned_batch).await });
    held.reached().await;
    // Taking the shard aborts open transactions, and returns when all earlier ones are decided for readers too.
    drop(shards.take(id(), lease()).await.unwrap());
    let mut read = Vec::new();
    let ends = read_to_end(&kafka, &topic, &[0], LIMIT, |record| read.push(record)).await.unwrap();

    let last: BTreeMap<_, _> =
        read.iter().map(|record| (record.key.clone().unwrap(), topics::text(record))).collect();
    assert_eq!(last.len(), 5);
    assert!(last.values().all(|value| *value == (rounds - 1).to_string()), "{last:?}");
    assert!(read.len() < rounds * 5, "no holes among {} records", read.len());
    let high = watermarks(&kafka, &topic, &[0], LIMIT).await.unwrap()[&0].1;
    assert_eq!(ends[&0], high, "the end lies behind aborted records and markers");
    assert!(read.last().unwrap().offset + 5 < high, "there is nothing behind the last record");
    held.open();
    writing.abort();
}

async fn publish<V: Clone + Into<bytes::Bytes>>(
    kafka: &Kafka,
    topic: &Arc<str>,
    partition: i32,
    values: &[V],
) {
    let producer = Producer::new(kafka, &ProducerOptions::default()).unwrap();
    for value in values {
        let record = topics::record(topic, partition, "key", value.clone());
        drop(producer.send(record).unwrap());
    }
    producer.flush(LIMIT).await.unwrap();
}

/// Reads partitions from these offsets.
async fn consumer(
    kafka: &Kafka,
    topic: &Arc<str>,
    starts: &[(i32, i64)],
    options: ConsumerOptions,
) -> Consumer {
    let assignment = |(partition, offset): &(i32, i64)| Assignment {
        topic: Arc::clone(topic),
        partition: *partition,
        start: StartOffset::Offset(*offset),
    };
    Consumer::assign(kafka, starts.iter().map(assignment).collect(), &options).await.unwrap()
}
