//! Batches that fail without a second writer: aborted, with the same producer afterwards; or unknown, with a rebuilt producer while
//! the lease lasts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::retry::Retry;
use kafka::{CommitError, CommitHook, Error, Lease, MAX_RECORD_BYTES, TransactionOptions};
use model::EncodedRecord;
use tokio::sync::mpsc;

use super::shard::FencedShard;
use crate::support::gate::gate;
use crate::support::{Result, Shared, breakable, topics};

crate::tests! {
    real an_oversized_record_aborts_its_batch_and_keeps_the_producer;
    real a_refused_record_aborts_its_batch_and_rebuilds_the_producer;
    disturbing a_hanging_commit_within_the_lease_rebuilds_the_producer within 120;
    disturbing a_hanging_commit_past_the_lease_spares_the_successor within 120;
    disturbing a_commit_whose_broker_dies_completes_once_it_is_back within 120;
}

async fn an_oversized_record_aborts_its_batch_and_keeps_the_producer(shared: &'static Shared) {
    let shard = FencedShard::create(shared.bootstrap(), "fencing-large", &[]).await;
    let mut producer = shard.take().await;

    let failure = producer.commit(oversized(&shard, MAX_RECORD_BYTES)).await.unwrap_err();
    producer.commit(shard.batch("next")).await.unwrap();

    assert!(matches!(failure, CommitError::Aborted { .. }), "{failure:?}");
    assert_eq!(failure.retry(), Retry::Never, "{failure:?}");
    assert_eq!(shard.batches().await, ["next"]);
}

/// The rest of the batch is in the log, and librdkafka's sequence number of the partition is wrong afterwards.
async fn a_refused_record_aborts_its_batch_and_rebuilds_the_producer(shared: &'static Shared) {
    let shard =
        FencedShard::create(shared.bootstrap(), "fencing-refused", &[("max.message.bytes", "20000")]).await;
    let mut producer = shard.take().await;
    producer.commit(shard.batch("first")).await.unwrap();

    let failure = producer.commit(oversized(&shard, 30_000)).await.unwrap_err();
    let rebuilt = producer.commit(shard.batch("not written")).await.unwrap_err();
    producer.commit(shard.batch("next")).await.unwrap();

    assert!(matches!(failure, CommitError::Aborted { .. }), "{failure:?}");
    assert_eq!(failure.retry(), Retry::Never, "{failure:?}");
    assert!(matches!(rebuilt, CommitError::Rebuilt { .. }), "{rebuilt:?}");
    assert_eq!(shard.batches().await, ["first", "next"]);
}

/// A batch with one record of this many bytes in the middle.
fn oversized(shard: &FencedShard, size: usize) -> Vec<EncodedRecord> {
    let mut batch = shard.batch("aborted");
    batch[7].value = Some(topics::noise(size).into());
    batch
}

async fn a_hanging_commit_within_the_lease_rebuilds_the_producer() -> Result<()> {
    let broker = breakable::take().await?;
    let shard = FencedShard::create(&broker.bootstrap(), "fencing-rebuilt", &[]).await;
    let (hook, held) = gate();
    // A writer that has given up on its commit first checks its lease.
    let (asked, mut lease_asked) = mpsc::unbounded_channel();
    let lease: Lease = Arc::new(move || asked.send(()).is_ok());
    let mut producer = shard.take_with(impatient(hook), lease).await;
    // Taking the shard has checked the lease as well.
    while lease_asked.try_recv().is_ok() {}

    let disturbance = async {
        held.reached().await;
        broker.proxy()?.stall_responses();
        held.open();
        lease_asked.recv().await;
        broker.proxy()?.heal();
        Ok(())
    };
    let (outcome, disturbed) = tokio::join!(producer.commit(shard.batch("unknown")), disturbance);
    disturbed?;
    producer.commit(shard.batch("next")).await.unwrap();

    let failure = outcome.unwrap_err();
    assert!(matches!(&failure, CommitError::Rebuilt { source: Error::Deadline { .. } }), "{failure:?}");
    // Only the answer was lost: this is why the caller has to look.
    assert_eq!(shard.batches().await, ["unknown", "next"]);
    Ok(())
}

async fn a_hanging_commit_past_the_lease_spares_the_successor() -> Result<()> {
    let broker = breakable::take().await?;
    let shard = FencedShard::create(&broker.bootstrap(), "fencing-over", &[]).await;
    let past_proxy = FencedShard::new(&broker.bootstrap_past_proxy(), &shard.prefix);
    let (hook, held) = gate();
    let owned = Arc::new(AtomicBool::new(true));
    let lease = Arc::clone(&owned);
    let mut producer =
        shard.take_with(impatient(hook), Arc::new(move || lease.load(Ordering::Acquire))).await;
    owned.store(false, Ordering::Release);

    let disturbance = async {
        held.reached().await;
        broker.proxy()?.stall();
        let mut successor = past_proxy.take().await;
        successor.commit(shard.batch("successor")).await.unwrap();
        held.open();
        Ok(successor)
    };
    let (outcome, successor) = tokio::join!(producer.commit(shard.batch("unknown")), disturbance);
    broker.proxy()?.heal();
    successor?.commit(shard.batch("later")).await.unwrap();

    let failure = outcome.unwrap_err();
    assert!(matches!(&failure, CommitError::Over { source: Error::Deadline { .. } }), "{failure:?}");
    assert_eq!(failure.retry(), Retry::Never);
    assert_eq!(shard.batches().await, ["successor", "later"]);
    Ok(())
}

async fn a_commit_whose_broker_dies_completes_once_it_is_back() -> Result<()> {
    let mut broker = breakable::take().await?;
    let shard = FencedShard::create(&broker.bootstrap(), "fencing-died", &[]).await;
    let (hook, held) = gate();
    let patient = Duration::from_secs(90);
    let options = TransactionOptions {
        before_commit: Some(hook),
        transaction_timeout: patient,
        watchdog: patient,
        ..TransactionOptions::default()
    };
    let mut producer = shard.take_with(options, Arc::new(|| true)).await;

    let disturbance = async {
        held.reached().await;
        broker.kill();
        held.open();
        broker.restart().await
    };
    let (outcome, disturbed) = tokio::join!(producer.commit(shard.batch("survivor")), disturbance);
    disturbed?;

    outcome.unwrap();
    assert_eq!(shard.batches().await, ["survivor"]);
    Ok(())
}

/// Options with a short watchdog.
fn impatient(hook: CommitHook) -> TransactionOptions {
    // It starts with the batch: even a busy machine must reach the commit by then.
    let watchdog = Duration::from_secs(4);
    TransactionOptions { before_commit: Some(hook), watchdog, ..TransactionOptions::default() }
}
