//! Batches that fail without a rival: aborted and gone on with, or unknown and the producer built anew while the lease
//! runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::retry::Retry;
use kafka::{CommitError, CommitHook, Error, Lease, MAX_RECORD_BYTES, TransactionOptions};
use model::EncodedRecord;
use tokio::sync::mpsc;

use super::shard::Shard;
use crate::support::gate::gate;
use crate::support::{Result, Shared, breakable, topics};

crate::tests! {
    real a_batch_with_a_record_too_large_leaves_nothing_and_the_same_producer_goes_on;
    real a_batch_with_a_record_the_broker_refuses_leaves_nothing_and_a_new_producer_goes_on;
    disturbing a_commit_that_hangs_is_unknown_and_the_producer_is_built_anew_while_the_lease_runs within 120;
    disturbing a_commit_that_hangs_ends_the_writer_when_the_lease_is_gone_and_its_successor_is_left_alone within 120;
    disturbing a_batch_whose_broker_dies_at_its_commit_is_committed_once_it_is_back within 120;
}

async fn a_batch_with_a_record_too_large_leaves_nothing_and_the_same_producer_goes_on(
    shared: &'static Shared,
) {
    let shard = Shard::create(shared.bootstrap(), "fencing-large", &[]).await;
    let mut producer = shard.take().await;

    let failure = producer.commit(oversized(&shard, MAX_RECORD_BYTES)).await.unwrap_err();
    producer.commit(shard.batch("next")).await.unwrap();

    assert!(matches!(failure, CommitError::Aborted { .. }), "{failure:?}");
    assert_eq!(failure.retry(), Retry::Never, "{failure:?}");
    assert_eq!(shard.batches().await, ["next"]);
}

/// Here the rest of the batch is in the log, and librdkafka's count of the partition is wrong afterwards.
async fn a_batch_with_a_record_the_broker_refuses_leaves_nothing_and_a_new_producer_goes_on(
    shared: &'static Shared,
) {
    let shard = Shard::create(shared.bootstrap(), "fencing-refused", &[("max.message.bytes", "20000")]).await;
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

/// A batch of which one record in the middle has this many bytes.
fn oversized(shard: &Shard, size: usize) -> Vec<EncodedRecord> {
    let mut batch = shard.batch("aborted");
    batch[7].value = Some(topics::noise(size).into());
    batch
}

async fn a_commit_that_hangs_is_unknown_and_the_producer_is_built_anew_while_the_lease_runs() -> Result<()> {
    let broker = breakable::take().await?;
    let shard = Shard::create(&broker.bootstrap(), "fencing-rebuilt", &[]).await;
    let (hook, held) = gate();
    // The first thing a writer does once it has given up on its commit is to ask for the lease.
    let (asked, mut lease_asked) = mpsc::unbounded_channel();
    let lease: Lease = Arc::new(move || asked.send(()).is_ok());
    let mut producer = shard.take_with(impatient(hook), lease).await;
    // Taking the shard has asked as well.
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

async fn a_commit_that_hangs_ends_the_writer_when_the_lease_is_gone_and_its_successor_is_left_alone()
-> Result<()> {
    let broker = breakable::take().await?;
    let shard = Shard::create(&broker.bootstrap(), "fencing-over", &[]).await;
    let past_proxy = Shard::new(&broker.bootstrap_past_proxy(), &shard.prefix);
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

async fn a_batch_whose_broker_dies_at_its_commit_is_committed_once_it_is_back() -> Result<()> {
    let mut broker = breakable::take().await?;
    let shard = Shard::create(&broker.bootstrap(), "fencing-died", &[]).await;
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

/// Gives up on a commit soon.
fn impatient(hook: CommitHook) -> TransactionOptions {
    // It begins with the batch: a busy machine must have come to the commit by then.
    let watchdog = Duration::from_secs(4);
    TransactionOptions { before_commit: Some(hook), watchdog, ..TransactionOptions::default() }
}
