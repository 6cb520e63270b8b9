//! Tests on the in-process cluster; it has no isolation, so visibility and fencing are tested on a real broker.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use bytes::Bytes;

use super::*;
use crate::{embedded::EmbeddedCluster, read_to_end};

const LIMIT: Duration = Duration::from_secs(20);
/// Well below every limit that a faulty implementation would wait for.
const SOON: Duration = Duration::from_secs(8);

fn record(value: impl Into<Bytes>) -> EncodedRecord {
    EncodedRecord::new(&"records".into(), 0, "company/1", Some(value.into()))
}

fn cluster() -> EmbeddedCluster {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("records", 1).unwrap();
    cluster
}

async fn values(cluster: &EmbeddedCluster) -> Vec<Bytes> {
    let mut values = Vec::new();
    let each = |record: crate::ConsumerRecord| values.extend(record.value);
    read_to_end(&cluster.settings(), "records", &[0], LIMIT, each).await.unwrap();
    values
}

fn owned() -> Lease {
    Arc::new(|| true)
}

#[tokio::test]
async fn commit_returns_the_offset_after_the_batch() {
    let cluster = cluster();
    let shards = ShardProducers::new(cluster.settings(), TransactionOptions::default());
    let mut producer = shards.take("shard-0", owned()).await.unwrap();

    let first = producer.commit(vec![record("1"), record("2")]).await.unwrap();
    let next = first.next_offset("records", 0).unwrap();
    let second = producer.commit(vec![record("3")]).await.unwrap();
    let nothing = producer.commit(Vec::new()).await.unwrap();

    let mut rest = Vec::new();
    let starts = [(0, crate::StartOffset::Offset(next))].into();
    let each = |record: crate::ConsumerRecord| rest.extend(record.value);
    let limits = crate::ReadLimits::up_to(LIMIT);
    let ends = crate::read_to_end_from(&cluster.settings(), "records", &starts, &limits, each).await.unwrap();
    assert_eq!(rest, ["3"]);
    assert_eq!(second.next_offset("records", 0), ends.get(&0).copied());
    assert_eq!((first.next_offset("records", 1), nothing.next_offset("records", 0)), (None, None));
}

#[tokio::test]
async fn batch_larger_than_the_queue_is_sent_in_parts() {
    let cluster = cluster();
    let options = TransactionOptions { queue_bytes: 16 << 10, ..TransactionOptions::default() };
    let mut producer =
        ShardProducers::new(cluster.settings(), options).take("shard-0", owned()).await.unwrap();

    producer.commit((0..100).map(|n| record(vec![n; 1000])).collect()).await.unwrap();

    let read = values(&cluster).await;
    assert!(read.iter().map(|value| value[0]).eq(0..100), "{} records", read.len());
}

#[tokio::test]
async fn record_that_never_fits_aborts_only_its_batch() {
    let cluster = cluster();
    let mut producer = ShardProducers::new(cluster.settings(), TransactionOptions::default())
        .take("s", owned())
        .await
        .unwrap();

    let batch = vec![record("1"), record(vec![0; crate::MAX_RECORD_BYTES])];
    let failure = timeout(SOON, producer.commit(batch)).await.unwrap().unwrap_err();

    assert!(matches!(failure, CommitError::Aborted { .. }), "{failure:?}");
    assert_eq!(failure.retry(), Retry::Never, "the same batch fails the same way");
    producer.commit(vec![record("2")]).await.unwrap();
}

/// A hook that reports when it is reached and blocks the writer until it is released.
fn gate() -> (CommitHook, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (reached, at) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let hook = Arc::new(move || {
        reached.send(()).ok();
        wait.lock().unwrap().recv().ok();
    });
    (hook, at, go)
}

#[tokio::test]
async fn producer_is_rebuilt_after_a_batch_hangs_past_the_watchdog() {
    let cluster = cluster();
    let (hook, _at, go) = gate();
    let options = TransactionOptions {
        before_commit: Some(hook),
        watchdog: Duration::from_millis(300),
        ..TransactionOptions::default()
    };
    let mut producer = ShardProducers::new(cluster.settings(), options).take("s", owned()).await.unwrap();

    let failure = producer.commit(vec![record("1")]).await.unwrap_err();

    assert!(matches!(&failure, CommitError::Rebuilt { source: Error::Deadline { .. } }), "{failure:?}");
    assert_eq!(failure.retry(), Retry::Later);
    drop(go);
    // The short watchdog was for the hanging batch.
    producer.shards.options.watchdog = LIMIT;
    producer.commit(vec![record("2")]).await.unwrap();
}

#[tokio::test]
async fn commit_after_a_dropped_one_reports_an_unknown_outcome() {
    let cluster = cluster();
    let (hook, at, go) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    let mut producer = ShardProducers::new(cluster.settings(), options).take("s", owned()).await.unwrap();
    let waited = timeout(Duration::from_millis(300), producer.commit(vec![record("1")])).await;
    assert!(waited.is_err());
    at.recv().unwrap();

    let failure = producer.commit(vec![record("2")]).await.unwrap_err();

    assert!(matches!(failure, CommitError::Rebuilt { .. }), "{failure:?}");
    drop(go);
    producer.commit(vec![record("3")]).await.unwrap();
    assert!(!values(&cluster).await.contains(&Bytes::from("2")), "the call that answers so writes nothing");
}

#[tokio::test]
async fn without_a_lease_no_producer_is_rebuilt() {
    let cluster = cluster();
    let options =
        TransactionOptions { watchdog: Duration::from_millis(300), ..TransactionOptions::default() };
    let leased = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&leased);
    let lease: Lease = Arc::new(move || asked.load(Ordering::Acquire));
    let mut producer = ShardProducers::new(cluster.settings(), options).take("s", lease).await.unwrap();
    leased.store(false, Ordering::Release);
    // Creating a producer would hang now.
    cluster.set_reachable(false).unwrap();

    let failure = timeout(SOON, producer.commit(vec![record("1")])).await.unwrap().unwrap_err();
    let after = timeout(SOON, producer.commit(vec![record("2")])).await.unwrap().unwrap_err();

    let reasons = |source: &Error| matches!(source, Error::Deadline { .. } | Error::Disconnected { .. });
    assert!(matches!(&failure, CommitError::Over { source } if reasons(source)), "{failure:?}");
    assert!(matches!(after, CommitError::Over { .. }), "{after:?}");
    assert_eq!(after.retry(), Retry::Never);
}

#[tokio::test]
async fn empty_batch_does_nothing() {
    let cluster = cluster();
    let mut producer = ShardProducers::new(cluster.settings(), TransactionOptions::default())
        .take("s", owned())
        .await
        .unwrap();
    cluster.set_reachable(false).unwrap();

    producer.commit(Vec::new()).await.unwrap();
}

#[tokio::test]
async fn shard_is_not_taken_after_its_lease_has_ended() {
    let cluster = cluster();
    let shards = ShardProducers::new(cluster.settings(), TransactionOptions::default());
    // Ended before the turn came, and ended while the id was initialized.
    for answers in [0, 1] {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let lease: Lease = Arc::new(move || asked.fetch_add(1, Ordering::SeqCst) < answers);

        let error = timeout(LIMIT, shards.take("shard-0", lease)).await.unwrap().unwrap_err();

        assert!(matches!(error, Error::LeaseEnded { .. }), "{error}");
        assert_eq!(error.retry(), Retry::Never);
    }
}

#[tokio::test]
async fn dropped_take_keeps_its_turn_until_it_is_initialized() {
    let cluster = cluster();
    cluster.set_reachable(false).unwrap();
    let shards = ShardProducers::new(
        cluster.settings(),
        TransactionOptions { concurrent_inits: 1, ..TransactionOptions::default() },
    );

    let dropped = timeout(Duration::from_millis(200), shards.take("shard-0", owned())).await;

    assert!(dropped.is_err(), "no broker answers");
    assert_eq!(shards.inits.available_permits(), 0);
    cluster.set_reachable(true).unwrap();
    timeout(LIMIT, shards.take("shard-1", owned())).await.unwrap().unwrap();
}
