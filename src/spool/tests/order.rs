//! What is appended is read in order, what is removed is not, and one sync serves many.

use super::*;
use crate::spool::fault::Fault;

#[tokio::test]
async fn entries_come_back_by_lane_and_in_sequence() {
    let bench = Bench::new();
    let (one, other, longer) = (lane("t", 0), lane("t", 1), lane("t.longer", 0));

    for sequence in [5, 1, 300, 2] {
        bench.append(&one, [sequence]).await;
    }
    bench.append(&other, [4]).await;
    bench.append(&longer, [3]).await;

    assert_eq!(bench.sequences(&one).await, [1, 2, 5, 300]);
    assert_eq!(bench.sequences(&other).await, [4]);
    assert_eq!(bench.sequences(&longer).await, [3]);
    assert_eq!(bench.spool.highest_sequence(), 300);
}

#[tokio::test]
async fn a_read_stops_at_its_limits_but_returns_one_entry() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    for sequence in 1..=5 {
        bench.spool.append(entry_of(&lane, sequence, vec![7; 100])).await.unwrap();
    }
    let read = async |after, most, bytes| {
        let entries = bench.spool.read(&lane, after, most, bytes).await.unwrap().entries;
        entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>()
    };

    assert_eq!(read(None, 2, ALL).await, [1, 2]);
    assert_eq!(read(Some(2), ALL, 250).await, [3, 4]);
    assert_eq!(read(Some(2), ALL, 1).await, [3]);
    assert_eq!(read(Some(5), ALL, ALL).await, [0; 0]);
    assert_eq!(read(Some(u64::MAX), ALL, ALL).await, [0; 0]);
    assert_eq!(read(None, 0, ALL).await, [0; 0]);
}

#[tokio::test]
async fn a_limited_read_says_more_and_skips_nothing() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    for sequence in [1, 2] {
        bench.spool.append(entry_of(&lane, sequence, vec![7; 600])).await.unwrap();
    }
    bench.faults.fail_commits(&[Fault::Write]);
    bench.spool.append(entry(&lane, 3)).await.unwrap_err();
    within(bench.spool.append(entry(&lane, 4))).await.unwrap();
    let read = async |after, bytes| {
        let batch = bench.spool.read(&lane, after, ALL, bytes).await.unwrap();
        (batch.entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), batch.more)
    };

    // One entry of the first database fits; the one of the second would fit too, but would skip sequence 2.
    assert_eq!(read(None, 700).await, (vec![1], true));
    assert_eq!(read(Some(1), 700).await, (vec![2, 4], false));
    assert_eq!(read(None, ALL).await, (vec![1, 2, 4], false));
}

#[tokio::test]
async fn many_appends_at_once_share_few_syncs() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.faults.hold();
    let first = bench.spool.append(entry(&lane, 0));
    bench.wait_for_held().await;

    let others: Vec<_> = (1..=64).map(|sequence| bench.spool.append(entry(&lane, sequence))).collect();
    bench.faults.release();
    within(first).await.unwrap();
    for other in others {
        within(other).await.unwrap();
    }

    assert_eq!(bench.faults.durable_commits(), 2, "one for the first, one for all that waited meanwhile");
    assert_eq!(bench.sequences(&lane).await.len(), 65);
}

#[tokio::test]
async fn a_single_append_does_not_wait_for_others() {
    let bench = Bench::new();

    bench.append(&lane("t", 0), 1..=20).await;

    assert_eq!(bench.faults.durable_commits(), 20);
}

#[tokio::test]
async fn an_append_is_written_even_if_its_future_is_dropped() {
    let bench = Bench::new();
    let lane = lane("t", 0);

    drop(bench.spool.append(entry(&lane, 1)));

    eventually("the entry is there", async || bench.sequences(&lane).await == [1]).await;
}

#[tokio::test]
async fn nothing_is_acknowledged_before_the_sync_is_done() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.faults.hold();
    let append = tokio::spawn(bench.spool.append(entry(&lane, 1)));
    bench.wait_for_held().await;

    assert!(!append.is_finished());
    assert_eq!(bench.sequences(&lane).await, [0; 0], "and it is not read either");

    bench.faults.release();
    within(append).await.unwrap().unwrap();
    assert_eq!(bench.sequences(&lane).await, [1]);
}

#[tokio::test]
async fn a_removal_counts_for_readers_at_once() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=3).await;
    bench.faults.hold();

    bench.spool.remove(&lane, 2);
    let while_held = bench.sequences(&lane).await;
    bench.faults.release();

    assert_eq!(while_held, [1, 3]);
    assert_eq!(within(bench.spool.lanes()).await.unwrap()[0].entries, 2);
    assert_eq!(bench.sequences(&lane).await, [1, 3]);
}

#[tokio::test]
async fn a_removal_wins_over_an_append_in_progress() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.faults.hold();
    let written = bench.spool.append(entry(&lane, 1));
    bench.wait_for_held().await;
    let waiting = bench.spool.append(entry(&lane, 2));
    let kept = bench.spool.append(entry(&lane, 3));

    bench.spool.remove(&lane, 1);
    bench.spool.remove(&lane, 2);
    bench.faults.release();
    for append in [written, waiting, kept] {
        within(append).await.unwrap();
    }

    let lanes = within(bench.spool.lanes()).await.unwrap();
    assert_eq!((lanes[0].entries, lanes[0].oldest_sequence), (1, 3));
    assert_eq!(bench.sequences(&lane).await, [3]);
    close(bench.spool).await;
    assert_eq!(sequences(&open(bench.home.path()).spool, &lane).await, [3]);
}

#[tokio::test]
async fn an_append_after_a_removal_of_the_same_key_stays() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;

    bench.spool.remove(&lane, 2);
    bench.spool.remove(&lane, 2);
    bench.append(&lane, [2]).await;

    assert_eq!(bench.sequences(&lane).await, [1, 2]);
    assert_eq!(bench.spool.totals().entries, 2);
}

#[tokio::test]
async fn an_entry_appended_twice_is_held_and_counted_once() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1, 2]).await;
    let before = bench.spool.totals();

    bench.append(&lane, [1]).await;

    assert_eq!(bench.spool.totals().entries, before.entries);
    assert_eq!(bench.spool.totals().bytes, before.bytes);
    assert_eq!(bench.sequences(&lane).await, [1, 2]);
}

#[tokio::test]
async fn lanes_include_everything_called_before() {
    let bench = Bench::new();
    let (one, other) = (lane("a", 0), lane("b", 7));
    bench.append(&one, 1..=10).await;
    bench.append(&other, [11]).await;
    for sequence in [1, 2, 3, 5] {
        bench.spool.remove(&one, sequence);
    }

    let lanes = within(bench.spool.lanes()).await.unwrap();

    let found: Vec<_> =
        lanes.iter().map(|state| (state.lane.clone(), state.entries, state.oldest_sequence)).collect();
    assert_eq!(found, [(one.clone(), 6, 4), (other.clone(), 1, 11)]);
    let left = [4, 6, 7, 8, 9, 10].map(|at| (&one, at)).into_iter().chain([(&other, 11)]);
    let bytes: u64 = left.map(|(lane, at)| lane.size(&entry(lane, at).payload)).sum();
    assert_eq!((bench.spool.totals().entries, bench.spool.totals().bytes), (7, bytes));
}

#[tokio::test]
async fn close_writes_what_waits_and_refuses_what_follows() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.faults.hold();
    let append = bench.spool.append(entry(&lane, 1));
    bench.wait_for_held().await;
    let waiting = bench.spool.append(entry(&lane, 2));

    let too_short = bench.spool.close(Duration::from_millis(1)).await;
    bench.faults.release();

    assert!(!too_short, "a held commit cannot be done");
    within(append).await.unwrap();
    within(waiting).await.unwrap();
    assert!(matches!(bench.spool.append(entry(&lane, 3)).await, Err(Error::Closed)));
    assert!(matches!(bench.spool.read(&lane, None, 1, 1).await, Err(Error::Closed)));
    close(bench.spool).await;
    assert_eq!(sequences(&open(bench.home.path()).spool, &lane).await, [1, 2]);
}

#[tokio::test]
async fn a_disowned_entry_counts_as_foreign_and_keeps_its_database() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=2).await;
    bench.faults.fail_commits(&[crate::spool::fault::Fault::Sync]);
    within(bench.spool.append(entry(&lane, 3))).await.unwrap_err();
    bench.append(&lane, [4]).await;

    for sequence in [1, 4, 9] {
        bench.spool.disown(&lane, sequence);
    }
    bench.spool.remove(&lane, 2);

    assert!(within(bench.spool.lanes()).await.unwrap().is_empty());
    let totals = bench.spool.totals();
    assert_eq!((totals.entries, totals.oldest_age, totals.foreign.entries), (0, None, 2));
    assert_eq!(bench.spool.failures().borrow().foreign, totals.foreign);
    assert!(bench.sequences(&lane).await.is_empty());
    // After a failure the writer checks at once which databases can be removed.
    bench.faults.fail_commits(&[crate::spool::fault::Fault::Write]);
    within(bench.spool.append(entry(&lane, 5))).await.unwrap_err();
    bench.append(&lane, [5]).await;
    close(bench.spool).await;
    let spool = open(bench.home.path()).spool;
    assert_eq!(sequences(&spool, &lane).await, [1, 2, 3, 4, 5], "2 and 3 as after any failed database");
}
