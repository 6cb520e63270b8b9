//! Entries are refused at once when there is no room, and accepted again when there is.

use base::retry::Retry;

use super::*;
use crate::spool::fault::Fault;

#[tokio::test]
async fn at_the_limit_entries_are_refused_until_others_are_removed() {
    let size = lane("t", 0).size(&Bytes::from(vec![0; 1000]));
    let bench = Bench::with(|options| SpoolOptions { limit_bytes: 3 * size, ..options });
    let lane = lane("t", 0);
    let append = |sequence| bench.spool.append(entry_of(&lane, sequence, vec![0; 1000]));
    for sequence in 1..=3 {
        append(sequence).await.unwrap();
    }
    let commits = bench.faults.durable_commits();

    let refused = append(4).await.unwrap_err();

    assert!(matches!(refused, Error::LimitReached), "{refused}");
    assert_eq!(refused.retry(), Retry::Later);
    assert_eq!(bench.faults.durable_commits(), commits);
    bench.spool.remove(&lane, 2);
    within(bench.spool.lanes()).await.unwrap();
    append(4).await.unwrap();
}

#[tokio::test]
async fn a_new_limit_counts_at_once_and_drops_nothing() {
    let bench = Bench::with(|options| SpoolOptions { limit_bytes: 20_000, ..options });
    let lane = lane("t", 0);
    let append = |sequence| bench.spool.append(entry_of(&lane, sequence, vec![0; 15_000]));
    append(1).await.unwrap();
    assert!(matches!(append(2).await, Err(Error::LimitReached)));
    assert!(matches!(bench.spool.refuses(), Some(Error::LimitReached)));

    bench.spool.set_limit(100_000);
    append(2).await.unwrap();
    let roomy = bench.spool.refuses();
    bench.spool.set_limit(1_000);

    assert!(roomy.is_none(), "{roomy:?}");
    assert!(matches!(append(3).await, Err(Error::LimitReached)));
    assert_eq!(within(bench.spool.read(&lane, None, 10, 100_000)).await.unwrap().entries.len(), 2);
}

#[tokio::test]
async fn waiting_entries_count_against_the_limit() {
    let size = lane("t", 0).size(&Bytes::from(vec![0; 1000]));
    let bench = Bench::with(|options| SpoolOptions { limit_bytes: 2 * size, ..options });
    let lane = lane("t", 0);
    bench.faults.hold();
    let waiting = [1, 2].map(|sequence| bench.spool.append(entry_of(&lane, sequence, vec![0; 1000])));

    let refused = within(bench.spool.append(entry_of(&lane, 3, vec![0; 1000]))).await;

    bench.faults.release();
    assert!(matches!(refused, Err(Error::LimitReached)), "{refused:?}");
    for append in waiting {
        within(append).await.unwrap();
    }
}

#[tokio::test]
async fn entries_are_refused_below_the_reserve_of_free_disk() {
    let bench = Bench::with(|options| SpoolOptions { reserve_bytes: 1_000_000, ..options });
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;

    bench.faults.set_free_bytes(Some(1_000_000));
    eventually("entries are refused", async || {
        matches!(bench.spool.append(entry(&lane, 2)).await, Err(Error::DiskFull))
    })
    .await;
    bench.faults.set_free_bytes(Some(2_000_000));

    eventually("entries are taken", async || bench.spool.append(entry(&lane, 3)).await.is_ok()).await;
    assert_eq!(bench.spool.failures().borrow().count, 0);
}

#[tokio::test]
async fn a_full_queue_refuses_but_takes_one_large_entry() {
    let bench = Bench::with(|options| SpoolOptions { queue_bytes: 2_000, ..options });
    let lane = lane("t", 0);
    bench.faults.hold();
    let large = bench.spool.append(entry_of(&lane, 1, vec![0; 5_000]));

    let refused = within(bench.spool.append(entry(&lane, 2))).await;

    bench.faults.release();
    assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
    within(large).await.unwrap();
    within(bench.spool.append(entry(&lane, 2))).await.unwrap();
}

#[tokio::test]
async fn a_disk_that_fills_up_during_a_write_is_full_then_recovers() {
    let bench = Bench::with(|options| SpoolOptions { reserve_bytes: 1_000_000, ..options });
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;
    bench.faults.set_free_bytes(Some(500_000));
    bench.faults.fail_commits(&[Fault::NoSpace]);
    // The writer has not measured the free disk since, so this entry reaches the disk.
    let refused = within(bench.spool.append(entry(&lane, 2))).await;

    assert!(matches!(refused, Err(Error::DiskFull)), "{refused:?}");
    assert!(matches!(bench.spool.append(entry(&lane, 3)).await, Err(Error::DiskFull)));
    assert_eq!(bench.sequences(&lane).await, [1], "acknowledged entries are still read");

    bench.faults.set_free_bytes(None);
    eventually("entries are taken", async || bench.spool.append(entry(&lane, 4)).await.is_ok()).await;
    assert_eq!(bench.sequences(&lane).await, [1, 4]);
}

#[tokio::test]
async fn a_topic_that_cannot_be_stored_is_never_retried() {
    let bench = Bench::new();

    let refused = bench.spool.append(entry(&lane("", 0), 1)).await.unwrap_err();

    assert_eq!(refused.retry(), Retry::Never);
}
