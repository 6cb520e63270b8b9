//! Confirming version regressions.

use super::*;

#[test]
fn sustained_lower_reads_confirm_a_version_regression() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 51, false), "e");
    let (started, end) = (shard.now, shard.now + 2 * rules().epoch_confirm);

    let reads = shard.until(end, |_| Ok(json("r", 51)));

    assert_eq!(shard.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
    assert!(shard.now >= started + rules().epoch_confirm && (3..8).contains(&reads), "{reads}");
    // Later versions are published under the new epoch.
    shard.take(2, wanted(subject("r"), 52, false), "e");
    shard.until(end + SECOND, |_| Ok(json("r", 52)));
    assert_eq!(shard.published.last(), Some(&(subject("r"), stamp(1, 52, Rank::ById, false))));
}

#[test]
fn one_read_at_the_published_version_clears_the_suspicion() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 51, false), "e");
    let (started, end) = (shard.now, shard.now + 2 * rules().epoch_confirm);

    shard.until(end, |now| Ok(json("r", if now < started + rules().epoch_confirm / 2 { 99 } else { 100 })));

    assert!(shard.published.is_empty() && shard.parked.is_empty());
}

#[test]
fn list_row_clears_the_suspicion_for_the_next_owner_too() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 51, false), "e");
    let (started, half) = (shard.now, rules().epoch_confirm / 2);
    shard.until(started + half, |_| Ok(json("r", 51)));
    assert!(shard.scheduler.is_suspected(&subject("r")) && shard.parked[&subject("r")].below_since.is_some());

    shard.scheduler.clear_regression(&subject("r"));
    shard.commit();
    assert!(!shard.scheduler.is_suspected(&subject("r")));
    assert_eq!(shard.parked[&subject("r")].below_since, None);

    shard.crash();
    let shown_at = shard.now;
    shard.until(started + rules().epoch_confirm + SECOND, |_| Ok(json("r", 51)));
    assert_eq!(shard.published, [], "the confirmation starts over");
    shard.until(shown_at + 3 * rules().epoch_confirm, |_| Ok(json("r", 51)));
    assert_eq!(shard.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
}

#[test]
fn list_row_cancels_a_pending_epoch_change() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 51, false), "e");
    let (started, confirm) = (shard.now, rules().epoch_confirm);
    shard.until(started + confirm - SECOND, |_| Ok(json("r", 51)));
    shard.now = started + 2 * confirm;
    let ask = shard.ask().unwrap();
    shard.read(&ask.subject, Ok(json("r", 51))).unwrap();
    assert!(shard.scheduler.ready() > 0);

    shard.scheduler.clear_regression(&subject("r"));
    while shard.scheduler.ready() > 0 {
        shard.commit();
    }

    assert_eq!(shard.published, []);
    assert_eq!(shard.outcomes.last(), Some(&Outcome::Stale));
    assert!(shard.parked.is_empty() && shard.scheduler.counts() == (0, 0));
}

#[test]
fn suspected_regression_holds_no_offset() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 9, false), "first");
    shard.until(shard.now + SECOND, |_| Ok(json("r", 9)));
    shard.take(2, wanted(subject("r"), 4, false), "before");
    shard.until(shard.now + SECOND, |_| Ok(json("r", 4)));
    assert_eq!((shard.offset, shard.parked.len()), (2, 1), "a regression is suspected");

    shard.take(3, wanted(subject("r"), 5, false), "again");
    while shard.scheduler.ready() > 0 {
        shard.commit();
    }

    assert_eq!(shard.offset, 3);
    assert_eq!(shard.published.len(), 1);
}

#[test]
fn newer_event_forgets_the_lower_reads_before_it() {
    let confirm = rules().epoch_confirm;
    let read = |shard: &mut TestShard, wait: i64, version: u64| {
        shard.now += wait;
        let ask = shard.ask().unwrap();
        shard.read(&ask.subject, Ok(json("r", version))).unwrap();
    };
    for is_committing in [false, true] {
        let mut shard = TestShard::new();
        shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
        shard.take(1, wanted(subject("r"), 51, false), "e");
        read(&mut shard, 0, 51);
        if !is_committing {
            shard.commit();
            read(&mut shard, confirm / 4, 51);
            read(&mut shard, confirm / 4, 51);
        }
        shard.take(2, wanted(subject("r"), 101, false), "newer");
        while shard.scheduler.ready() > 0 {
            shard.commit();
        }
        assert!(!shard.scheduler.is_suspected(&subject("r")));

        // A list publishes a version that later reads do not reach: a new suspicion.
        shard.fences.insert(subject("r"), stamp(0, 200, Rank::List, false));
        read(&mut shard, SECOND, 150);
        shard.commit();
        read(&mut shard, confirm / 4, 150);
        read(&mut shard, confirm, 150);
        assert_eq!(shard.scheduler.ready(), 0, "three reads confirm nothing yet: {is_committing}");

        read(&mut shard, confirm / 4, 150);
        shard.commit();
        assert_eq!(shard.published, [(subject("r"), stamp(1, 150, Rank::ById, false))]);
    }
}
