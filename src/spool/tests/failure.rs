//! Failed writes, failed syncs, broken databases: nothing acknowledged is lost, nothing lost is acknowledged.

use super::*;
use crate::spool::fault::Fault;

#[tokio::test]
async fn a_failed_commit_is_refused_and_a_fresh_database_takes_over() {
    for fault in [Fault::Sync, Fault::Write] {
        let bench = Bench::new();
        let lane = lane("t", 0);
        bench.append(&lane, [1, 2]).await;
        let mut failures = bench.spool.failures();
        bench.faults.fail_commits(&[fault]);

        let refused = within(bench.spool.append(entry(&lane, 3))).await;
        within(failures.changed()).await.unwrap();

        assert!(matches!(refused, Err(Error::Failed(_))), "{refused:?}");
        assert_eq!(failures.borrow().count, 1);
        bench.append(&lane, [4]).await;
        assert_eq!(bench.sequences(&lane).await, [1, 2, 4], "the failed database is still read");
        assert_eq!(bench.spool.totals().entries, 3);
        assert_eq!(bench.faults.opened(), 2);
    }
}

#[tokio::test]
async fn appends_behind_a_failed_batch_are_written() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.faults.hold();
    let first = bench.spool.append(entry(&lane, 1));
    bench.wait_for_held().await;
    let batch: Vec<_> = (2..=9).map(|sequence| bench.spool.append(entry(&lane, sequence))).collect();
    bench.faults.fail_commits(&[Fault::Sync]);
    bench.faults.release();

    assert!(matches!(within(first).await, Err(Error::Failed(_))));
    for append in batch {
        within(append).await.unwrap();
    }
    assert_eq!(bench.sequences(&lane).await, (2..=9).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_failed_database_is_drained_and_then_removed() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=3).await;
    bench.faults.fail_commits(&[Fault::Sync]);
    within(bench.spool.append(entry(&lane, 4))).await.unwrap_err();
    bench.append(&lane, [5]).await;

    bench.spool.remove(&lane, 1);
    bench.spool.remove(&lane, 3);
    assert_eq!(bench.sequences(&lane).await, [2, 5]);
    let lanes = within(bench.spool.lanes()).await.unwrap();
    assert_eq!((lanes[0].entries, lanes[0].oldest_sequence), (2, 2));
    assert!(bench.home.path().join("1").exists());
    bench.spool.remove(&lane, 2);

    eventually("the drained database is gone", async || !bench.home.path().join("1").exists()).await;
    assert_eq!(bench.sequences(&lane).await, [5]);
    assert_eq!(bench.spool.totals().entries, 1);
}

#[tokio::test]
async fn a_removal_whose_commit_fails_still_counts() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=3).await;
    bench.faults.fail_commits(&[Fault::Write]);

    bench.spool.remove(&lane, 2);
    let lanes = within(bench.spool.lanes()).await.unwrap();

    assert_eq!(lanes[0].entries, 2);
    assert_eq!(bench.sequences(&lane).await, [1, 3]);
    bench.append(&lane, [4]).await;
    assert_eq!(bench.sequences(&lane).await, [1, 3, 4]);
}

#[tokio::test]
async fn a_removal_counts_even_if_its_lookup_fails() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=3).await;
    bench.faults.fail_commits(&[Fault::Sync]);
    within(bench.spool.append(entry(&lane, 4))).await.unwrap_err();
    bench.append(&lane, [5, 6]).await;

    // 2 is only in the older database and 5 only in the newest: each is looked up in both.
    for sequence in [2, 5] {
        bench.faults.fail_lookups(2);
        bench.spool.remove(&lane, sequence);
        within(bench.spool.lanes()).await.unwrap();
        bench.faults.fail_lookups(0);
    }

    assert_eq!(bench.sequences(&lane).await, [1, 3, 6]);
    let lanes = within(bench.spool.lanes()).await.unwrap();
    assert_eq!(lanes[0].entries, 3, "an entry whose lookup failed is not counted");
    bench.spool.remove(&lane, 1);
    bench.spool.remove(&lane, 3);
    eventually("the drained database is gone", async || !bench.home.path().join("1").exists()).await;
    bench.spool.remove(&lane, 6);
    assert!(within(bench.spool.lanes()).await.unwrap().is_empty());
    assert_eq!(bench.spool.failures().borrow().unreadable, 0, "nothing was damaged");
    eventually("bytes of removed entries are gone", async || bench.spool.totals().bytes == 0).await;
}

#[tokio::test]
async fn a_removal_is_written_even_if_its_lookup_fails() {
    let bench = Bench::with(|options| SpoolOptions { rotate_bytes: 0, ..options });
    let lane = lane("t", 0);
    bench.append(&lane, [1, 2]).await;
    close(bench.spool).await;
    bench.faults.refuse_opens(1);
    let options = SpoolOptions { storage: Arc::new(bench.faults.clone()), ..options(bench.home.path()) };
    let spool = Spool::open(options.clone()).unwrap().spool;
    within(spool.append(entry(&lane, 3))).await.unwrap();
    close(spool).await;
    let spool = Spool::open(options).unwrap().spool;

    bench.faults.fail_lookups(2);
    spool.remove(&lane, 1);
    close(spool).await;

    let spool = open(bench.home.path()).spool;
    assert_eq!(sequences(&spool, &lane).await, [2, 3]);
}

#[tokio::test]
async fn opening_a_fresh_database_is_retried_until_it_succeeds() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;
    bench.faults.fail_opens(usize::MAX);
    bench.faults.fail_commits(&[Fault::Sync]);
    within(bench.spool.append(entry(&lane, 2))).await.unwrap_err();

    let refused = bench.spool.append(entry(&lane, 3)).await;

    assert!(matches!(refused, Err(Error::Failed(_))), "refused at once: {refused:?}");
    // One attempt has failed by now, and two more will.
    bench.faults.fail_opens(2);
    eventually("entries are taken", async || bench.spool.append(entry(&lane, 4)).await.is_ok()).await;
    assert_eq!(bench.sequences(&lane).await, [1, 4]);
}

#[tokio::test]
async fn a_restart_reads_and_drains_a_failed_database() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1, 2]).await;
    bench.faults.fail_commits(&[Fault::Sync]);
    within(bench.spool.append(entry(&lane, 3))).await.unwrap_err();
    bench.append(&lane, [4, 5]).await;
    bench.spool.remove(&lane, 1);
    close(bench.spool).await;

    let opened = open(bench.home.path());
    let found = sequences(&opened.spool, &lane).await;

    assert!(opened.moved_aside.is_empty());
    // 1 could not be removed and 3 was written though not synced: duplicates, both.
    assert_eq!(found, [1, 2, 3, 4, 5]);
    assert_eq!(opened.spool.highest_sequence(), 5);
    for sequence in found {
        opened.spool.remove(&lane, sequence);
    }
    assert!(within(opened.spool.lanes()).await.unwrap().is_empty());
    close(opened.spool).await;
    assert!(within(open(bench.home.path()).spool.lanes()).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_entry_appended_again_after_a_failure_is_held_once() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;
    bench.faults.fail_commits(&[Fault::Sync]);
    within(bench.spool.append(entry(&lane, 2))).await.unwrap_err();
    bench.append(&lane, [2, 1]).await;
    close(bench.spool).await;

    let spool = open(bench.home.path()).spool;

    assert_eq!(sequences(&spool, &lane).await, [1, 2], "although both databases have both");
    spool.remove(&lane, 2);
    assert_eq!(sequences(&spool, &lane).await, [1]);
    within(spool.lanes()).await.unwrap();
    assert_eq!(sequences(&spool, &lane).await, [1], "removed from both");
}

#[tokio::test]
async fn a_crash_leaves_every_acknowledged_entry() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=50).await;

    let crashed = copy_of(bench.home.path());
    let opened = open(crashed.path());

    assert!(opened.moved_aside.is_empty());
    assert_eq!(sequences(&opened.spool, &lane).await, (1..=50).collect::<Vec<_>>());
    let (found, before) = (opened.spool.totals(), bench.spool.totals());
    assert_eq!((found.entries, found.bytes), (before.entries, before.bytes));
}

#[tokio::test]
async fn a_read_that_the_system_refuses_fails_and_counts_no_damage() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=3).await;
    bench.faults.refuse_lookups(usize::MAX);

    let refused = bench.spool.read(&lane, None, 10, 1_000).await;
    bench.faults.refuse_lookups(0);

    assert!(matches!(refused, Err(Error::Failed(_))), "{refused:?}");
    assert_eq!(bench.sequences(&lane).await, [1, 2, 3]);
    assert_eq!(bench.spool.failures().borrow().unreadable, 0);
}

#[tokio::test]
async fn the_age_of_the_oldest_entry_outlives_failed_lookups() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;
    eventually("the age is known", async || bench.spool.totals().oldest_age.is_some()).await;

    bench.faults.fail_lookups(1_000);
    eventually("two lookups failed", async || bench.faults.lookups_left() <= 998).await;

    assert!(bench.spool.totals().oldest_age.is_some());
}

#[tokio::test]
async fn a_second_spool_is_refused_until_the_first_is_closed() {
    let bench = Bench::new();

    let second = Spool::open(options(bench.home.path()));

    assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
    close(bench.spool).await;
    assert!(Spool::open(options(bench.home.path())).is_ok());
}
