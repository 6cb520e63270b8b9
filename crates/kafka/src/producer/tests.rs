use bytes::Bytes;

use base::retry::Retry;

use super::*;
use crate::{
    Assignment, Consumer, ConsumerEvent, ConsumerOptions, MAX_RECORD_BYTES, StartOffset,
    embedded::EmbeddedCluster,
};

const LIMIT: Duration = Duration::from_secs(20);

fn record(partition: i32, value: impl Into<Bytes>) -> EncodedRecord {
    EncodedRecord {
        topic: "events".into(),
        partition,
        key: Bytes::from_static(b"company"),
        value: Some(value.into()),
        headers: vec![("tributary.id", Bytes::from_static(b"7"))],
        timestamp_ms: Some(1),
    }
}

fn cluster() -> (EmbeddedCluster, Producer) {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("events", 2).unwrap();
    let producer = Producer::new(&cluster.settings(), &ProducerOptions::default()).unwrap();
    (cluster, producer)
}

#[tokio::test]
async fn offsets_follow_the_order_of_sends() {
    let (_cluster, producer) = cluster();

    let deliveries: Vec<DeliveryFuture> =
        (0..100).map(|n| producer.send(record(1, n.to_string())).unwrap()).collect();

    for (offset, delivery) in deliveries.into_iter().enumerate() {
        let ack = delivery.await.unwrap();
        assert_eq!((ack.partition, ack.offset), (1, offset as i64));
    }
}

#[tokio::test]
async fn dropping_the_future_does_not_cancel_the_record() {
    let (cluster, producer) = cluster();

    drop(producer.send(record(0, "kept")).unwrap());
    producer.flush(LIMIT).await.unwrap();

    let assignment = Assignment { topic: "events".into(), partition: 0, start: StartOffset::Earliest };
    let mut consumer =
        Consumer::assign(&cluster.settings(), vec![assignment], &ConsumerOptions::default()).await.unwrap();
    let ConsumerEvent::Record(received) = consumer.next().await.unwrap() else {
        panic!("the record comes before the end")
    };
    assert_eq!(received.value.as_deref(), Some(b"kept".as_slice()));
    assert_eq!(received.key.as_deref(), Some(b"company".as_slice()));
    assert_eq!(received.headers, [("tributary.id".to_owned(), Bytes::from_static(b"7"))]);
}

#[tokio::test]
async fn lost_broker_delays_records_and_loses_none() {
    let (cluster, producer) = cluster();
    producer.send(record(0, "before")).unwrap().await.unwrap();
    cluster.set_reachable(false).unwrap();

    let waiting: Vec<DeliveryFuture> =
        (0..10).map(|n| producer.send(record(0, n.to_string())).unwrap()).collect();
    let early = producer.flush(Duration::from_millis(300)).await;
    cluster.set_reachable(true).unwrap();

    let early = early.unwrap_err();
    assert!(early.to_string().starts_with("flush 10 records: not done within"), "{early}");
    for (n, delivery) in waiting.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, 1 + n as i64);
    }
    assert!(producer.fatal().is_none());
}

#[tokio::test]
async fn fatal_failure_ends_every_open_delivery() {
    // It cannot be observed when a request has been sent, so the next attempt waits longer.
    for patience in [50, 200, 800, 3200] {
        let (cluster, producer) = cluster();
        producer.send(record(0, "before")).unwrap().await.unwrap();
        cluster.delay_answers(LIMIT);
        let on_the_wire = producer.send(record(0, "on the wire")).unwrap();
        let queued = producer.send(record(0, "behind it")).unwrap();
        tokio::time::sleep(Duration::from_millis(patience)).await;

        sys::fail_fatally(producer.client.client());

        let on_the_wire = timeout(LIMIT, on_the_wire).await.unwrap().unwrap_err();
        timeout(LIMIT, queued).await.unwrap().unwrap_err();
        producer.flush(LIMIT).await.unwrap();
        assert!(producer.fatal().is_some());
        if on_the_wire.persisted() == Persisted::Possibly {
            return;
        }
    }
    panic!("no record was on the wire when its producer failed");
}

#[tokio::test]
async fn full_queue_returns_the_record_for_a_retry() {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("events", 1).unwrap();
    cluster.set_reachable(false).unwrap();
    let producer = Producer::new(&cluster.settings(), &ProducerOptions { queue_bytes: 16 << 10 }).unwrap();

    let refused = (0..100).find_map(|_| producer.send(record(0, vec![7; 1000])).err()).unwrap();

    assert_eq!(refused.error.retry(), Retry::Later);
    assert_eq!(*refused.record, record(0, vec![7; 1000]));
    let accepted = producer.outstanding();
    assert!((10..=17).contains(&accepted), "{accepted} records of 1 kB in a queue of 16 kB");
}

#[tokio::test]
async fn record_that_never_fits_is_refused_finally() {
    let (_cluster, producer) = cluster();

    let refused = producer.send(record(0, vec![0; MAX_RECORD_BYTES + 1])).unwrap_err();

    assert_eq!(refused.error.retry(), Retry::Never);
    assert!(refused.error.refuses_record());
    assert_eq!(refused.error.persisted(), Persisted::No);
    assert_eq!(refused.record.value.as_ref().map(Bytes::len), Some(MAX_RECORD_BYTES + 1));
    assert_eq!(producer.outstanding(), 0);
}

#[tokio::test]
async fn purged_unsent_records_are_reported_as_not_in_the_log() {
    let (cluster, producer) = cluster();
    cluster.set_reachable(false).unwrap();
    let delivery = producer.send(record(0, "never")).unwrap();

    producer.purge();

    let error = delivery.await.unwrap_err();
    assert_eq!(error.persisted(), Persisted::No);
    producer.flush(LIMIT).await.unwrap();
}

#[tokio::test]
async fn dropping_a_stuck_producer_does_not_block() {
    let mut tries = Vec::new();
    // Other processes may delay single attempts; a wait for the client would delay all.
    for _ in 0..5 {
        let (cluster, producer) = cluster();
        cluster.set_reachable(false).unwrap();
        let delivery = producer.send(record(0, "lost")).unwrap();

        let started = std::time::Instant::now();
        drop(producer);
        let held = started.elapsed();

        assert!(delivery.await.is_err());
        if held < Duration::from_millis(50) {
            return;
        }
        tries.push(held);
    }
    panic!("dropping took {tries:?}");
}
