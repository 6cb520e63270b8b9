//! Requests of list rows.

use super::*;
use crate::publish::{Failure, PublishStage};

fn list_event() -> Event {
    Arc::new(Source { origin: Origin::Snapshot, ..(*event("row")).clone() })
}

fn row(id: &str, floor: u64, now: i64) -> Parked {
    Parked {
        subject: subject(id),
        floor: Some(version(floor)),
        deleted: None,
        cause: Cause::Listed,
        since: now,
        due: now,
        gone_since: None,
        below_since: None,
        event: list_event(),
    }
}

fn asked(shard: &TestShard) -> Vec<Subject> {
    shard.scheduler.asked_by_lists(RESOURCE, None)
}

#[test]
fn list_waits_for_requested_records_also_after_a_crash() {
    let mut shard = TestShard::new();
    shard.parked.insert(subject("r"), row("r", 3, shard.now));
    shard.crash();
    assert_eq!(asked(&shard), [subject("r")]);
    assert!(shard.scheduler.owes(&subject("r")));

    shard.until(shard.now + SECOND, |_| Ok(json("r", 3)));

    assert_eq!(shard.published.len(), 1);
    assert!(asked(&shard).is_empty() && !shard.scheduler.owes(&subject("r")));
}

#[test]
fn suspected_regression_holds_back_no_list() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    shard.scheduler.look_back(wanted, list_event(), shard.now);
    shard.until(shard.now + SECOND, |_| Ok(json("r", 3)));
    assert!(shard.scheduler.is_suspected(&subject("r")) && shard.parked.contains_key(&subject("r")));

    assert!(asked(&shard).is_empty() && !shard.scheduler.owes(&subject("r")));
    shard.crash();
    assert!(asked(&shard).is_empty() && !shard.scheduler.owes(&subject("r")));

    // A list still waits for a row above the published version.
    shard.scheduler.adopt_row(row("r", 10, shard.now), shard.now);
    assert!(shard.scheduler.owes(&subject("r")));
}

#[test]
fn row_above_the_commit_in_flight_is_parked_and_then_read() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 3, false), "e");
    let ask = shard.ask().unwrap();
    shard.read(&ask.subject, Ok(json("r", 3))).unwrap();
    shard.scheduler.adopt_row(row("r", 4, shard.now), shard.now);

    shard.commit();
    assert!(shard.scheduler.ready() > 0 && shard.ask().is_none(), "it is not parked yet");
    shard.commit();
    let reads = shard.until(shard.now + SECOND, |_| Ok(json("r", 4)));

    assert_eq!((reads, shard.published.len()), (1, 2));
    assert!(shard.parked.is_empty() && shard.scheduler.counts() == (0, 0));
}

#[test]
fn row_satisfied_by_the_commit_in_flight_is_unparked() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 3, false), "e");
    let ask = shard.ask().unwrap();
    // The page is committed first, with the parked entry of its row.
    shard.parked.insert(subject("r"), row("r", 3, shard.now));
    shard.read(&ask.subject, Ok(json("r", 3))).unwrap();
    shard.scheduler.adopt_row(row("r", 3, shard.now), shard.now);

    while shard.scheduler.ready() > 0 {
        shard.commit();
    }

    assert_eq!((shard.published.len(), shard.parked.len(), shard.scheduler.counts()), (1, 0, (0, 0)));
}

#[test]
fn rows_leave_room_for_events() {
    let mut shard = TestShard::new();
    for number in 0..2_000 {
        shard.scheduler.adopt_row(row(&format!("r{number}"), 1, shard.now), shard.now);
    }

    assert!(!shard.scheduler.is_full());
    shard.take(1, wanted(subject("e"), 1, false), "e");
    shard.until(shard.now + 30 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert!(shard.parked.contains_key(&subject("e")) && shard.letters.is_empty());
}

#[test]
fn refused_record_is_unparked_for_rows_and_events() {
    let failure = || Failure {
        stage: PublishStage::Produce,
        class: "refused",
        message: String::new(),
        causes: Vec::new(),
    };
    for event in [list_event(), event("e")] {
        let changes = vec![Change::Tombstone { stamp: stamp(0, 1, Rank::ById, false) }, Change::Unpark];
        let entry = Entry::new(Some(subject("r")), event, changes, Vec::new()).refused(failure());

        assert!(entry.changes.iter().any(|change| matches!(change, Change::Unpark)), "{entry:?}");
        assert!(entry.changes.iter().any(|change| matches!(change, Change::DeadLetter(_))));
    }
}

#[test]
fn row_that_joins_a_retry_counts_as_parked() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 5, false), "e");
    let ask = shard.ask().unwrap();
    shard.read(&ask.subject, Ok(json("r", 3))).unwrap();
    shard.scheduler.adopt_row(row("r", 6, shard.now), shard.now);
    while shard.scheduler.ready() > 0 {
        shard.commit();
    }
    assert_eq!(shard.scheduler.counts(), (0, 1));

    shard.until(shard.now + 60 * SECOND, |_| Ok(json("r", 6)));
    assert_eq!(shard.scheduler.counts(), (0, 0));
}

#[test]
fn list_waits_for_a_row_above_a_suspected_commit() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    shard.scheduler.look_back(wanted, list_event(), shard.now);
    let ask = shard.ask().unwrap();
    shard.read(&ask.subject, Ok(json("r", 3))).unwrap();
    // A page with a newer row is committed meanwhile.
    shard.parked.insert(subject("r"), row("r", 10, shard.now));
    shard.scheduler.adopt_row(row("r", 10, shard.now), shard.now);
    assert!(shard.scheduler.owes(&subject("r")));

    while shard.scheduler.ready() > 0 {
        shard.commit();
        assert!(shard.scheduler.owes(&subject("r")));
    }
    shard.crash();
    assert_eq!(asked(&shard), [subject("r")], "the commit has not replaced the row's entry");
    shard.until(shard.now + SECOND, |_| Ok(json("r", 10)));
    assert_eq!(shard.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
}

#[test]
fn suspected_record_with_a_higher_row_is_read_soon() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 3, false), "e");
    shard.until(shard.now + SECOND, |_| Ok(json("r", 3)));
    assert!(shard.scheduler.is_suspected(&subject("r")));

    shard.scheduler.adopt_row(row("r", 10, shard.now), shard.now);
    shard.until(shard.now + SECOND, |_| Ok(json("r", 10)));

    assert_eq!(shard.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
    assert!(shard.parked.is_empty() && shard.scheduler.counts() == (0, 0));
}

#[test]
fn list_rows_at_the_published_version_prevent_a_new_epoch() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 51, false), "e");
    let (started, confirm) = (shard.now, rules().epoch_confirm);
    let row = |number, read_at| Some(ListedVersion { version: Version::Sequence(version(number)), read_at });

    // A list that is read repeatedly shows the published version every time.
    for half in 1..=10 {
        shard.until(started + half * confirm / 2, |_| Ok(json("r", 51)));
        shard.row = row(100, shard.now);
    }
    assert_eq!(shard.published, []);

    shard.row = row(51, shard.now);
    shard.until(shard.now + 2 * confirm, |_| Ok(json("r", 51)));
    assert_eq!(shard.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
}

#[test]
fn row_older_than_the_suspicion_is_ignored() {
    for read_at in [None, Some(-1)] {
        let mut shard = TestShard::new();
        shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
        let started = shard.now;
        let row =
            |before| ListedVersion { version: Version::Sequence(version(100)), read_at: started + before };
        shard.row = read_at.map(row);
        shard.take(1, wanted(subject("r"), 51, false), "e");

        shard.until(started + rules().epoch_confirm, |_| Ok(json("r", 51)));

        assert_eq!(shard.published, [(subject("r"), stamp(1, 51, Rank::ById, false))], "{read_at:?}");
    }
}
