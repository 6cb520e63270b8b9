//! Read requests of list rows.

use super::*;
use crate::publish::{PublishFailure, PublishStage};

fn list_event() -> Event {
    Arc::new(Source { origin: Origin::Snapshot, ..(*event("row")).clone() })
}

impl TestShard {
    /// A thin row of a list shows this version of a record.
    pub(super) fn row_shows(&mut self, id: &str, floor: u64) {
        let wanted = Wanted { subject: subject(id), floor: Some(version(floor)), is_delete: false };
        let stored = self.fences.get(&subject(id));
        self.scheduler.request(wanted, list_event(), stored, self.now);
    }
}

#[test]
fn row_is_read_and_not_stored() {
    let mut shard = TestShard::new();
    shard.row_shows("r", 3);
    assert!(shard.scheduler.owes(&subject("r")) && !shard.scheduler.is_full());
    shard.until(shard.now + 60 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert!(shard.parked.is_empty() && shard.scheduler.owes(&subject("r")), "its list waits");

    shard.until(shard.now + 60 * SECOND, |_| Ok(json("r", 3)));

    assert_eq!((shard.published.len(), shard.outcomes.len()), (1, 0));
    assert!(!shard.scheduler.owes(&subject("r")) && shard.scheduler.counts() == (0, 0));
}

#[test]
fn unreadable_row_is_retried_ever_less_often() {
    let mut shard = TestShard::new();
    shard.row_shows("r", 3);
    let refused = |_: i64| Err(error(400, api::Cause::Refused));
    let begun = shard.now;

    let mut reads = [10, 3_600, 86_400].map(|end| shard.until(begun + end * SECOND, refused));
    reads[2] += shard.until(begun + 2 * rules().horizon, refused);

    assert!((5..12).contains(&reads[0]) && (8..20).contains(&reads[1]), "{reads:?}");
    assert!((80..110).contains(&reads[2]), "{reads:?}");
    assert_eq!(shard.letters, [("row".to_owned(), "enrich::Unreadable")], "given up at the horizon");
    assert_eq!(shard.scheduler.take_given_up(), [subject("r")]);
    assert!(shard.gaps.is_empty(), "a list shows it again");
}

#[test]
fn row_and_event_of_one_record_share_a_read() {
    for row_first in [true, false] {
        let mut shard = TestShard::new();
        if row_first {
            shard.row_shows("r", 3);
        }
        shard.take(1, wanted(subject("r"), 2, false), "e");
        if !row_first {
            shard.row_shows("r", 3);
        }
        let ask = shard.ask().unwrap();
        assert_eq!(ask.priority, api::Priority::Webhook, "an event waits for it");

        let refused = |_: i64| Err(error(400, api::Cause::Refused));
        shard.read(&ask.subject, refused(0)).unwrap();
        shard.until(shard.now + 2 * rules().horizon, refused);

        assert_eq!(shard.letters, [("e".to_owned(), "enrich::Unreadable")], "{row_first}");
        assert_eq!((shard.gaps.len(), shard.offset), (1, 1), "a lost event opens a gap");
    }
}

#[test]
fn an_event_that_joins_a_row_holds_its_offset() {
    let mut shard = TestShard::new();
    shard.row_shows("r", 3);
    shard.take(1, wanted(subject("r"), 5, false), "e");

    shard.until(shard.now + 30 * SECOND, |_| Ok(json("r", 3)));

    assert_eq!((shard.offset, shard.parked.len(), shard.scheduler.counts()), (1, 1, (0, 1)));
    shard.until(shard.now + 60 * SECOND, |_| Ok(json("r", 5)));
    assert_eq!(shard.outcomes, [Outcome::Parked, Outcome::Published]);
    assert!(shard.parked.is_empty() && shard.scheduler.counts() == (0, 0));
}

#[test]
fn list_does_not_wait_for_a_suspected_record() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    shard.scheduler.check_regression(wanted, list_event(), shard.now);
    shard.until(shard.now + SECOND, |_| Ok(json("r", 3)));
    assert!(shard.scheduler.is_suspected(&subject("r")) && shard.parked.contains_key(&subject("r")));
    assert!(!shard.scheduler.owes(&subject("r")));
    shard.crash();
    assert!(!shard.scheduler.owes(&subject("r")));

    // A row above the published version is read soon, and its list waits for it.
    shard.row_shows("r", 10);
    assert!(shard.scheduler.owes(&subject("r")));
    shard.until(shard.now + SECOND, |_| Ok(json("r", 10)));

    assert_eq!(shard.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
    assert!(shard.parked.is_empty() && shard.scheduler.counts() == (0, 0));
}

#[test]
fn a_row_above_what_is_being_committed_is_read_after_that() {
    for (row, reads) in [(3, 0), (4, 1)] {
        let mut shard = TestShard::new();
        shard.take(1, wanted(subject("r"), 3, false), "e");
        let ask = shard.ask().unwrap();
        shard.read(&ask.subject, Ok(json("r", 3))).unwrap();
        shard.row_shows("r", row);
        assert!(shard.scheduler.owes(&subject("r")));

        shard.commit();
        assert_eq!(shard.scheduler.owes(&subject("r")), reads > 0, "{row}");
        let found = shard.until(shard.now + SECOND, |_| Ok(json("r", 4)));

        assert_eq!((found, shard.published.len()), (reads, 1 + reads as usize));
        assert!(shard.parked.is_empty() && shard.scheduler.counts() == (0, 0));
    }
}

#[test]
fn a_list_waits_for_a_row_above_what_is_suspected() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    shard.scheduler.check_regression(wanted, list_event(), shard.now);
    let ask = shard.ask().unwrap();
    shard.read(&ask.subject, Ok(json("r", 3))).unwrap();
    shard.row_shows("r", 10);
    assert!(shard.scheduler.owes(&subject("r")));

    while shard.scheduler.ready() > 0 {
        shard.commit();
        assert!(shard.scheduler.owes(&subject("r")));
    }
    shard.until(shard.now + SECOND, |_| Ok(json("r", 10)));
    assert_eq!(shard.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
}

#[test]
fn requests_of_rows_leave_room_for_events() {
    let mut shard = TestShard::new();
    for number in 0..1_001 {
        shard.row_shows(&format!("r{number}"), 1);
    }

    assert!(!shard.scheduler.is_full());
    shard.take(1, wanted(subject("e"), 1, false), "e");
    shard.until(shard.now + 30 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert!(shard.parked.contains_key(&subject("e")) && shard.letters.is_empty());
}

#[test]
fn held_offsets_are_counted_and_bounded() {
    let mut shard = TestShard::new();
    for number in 0..1_000 {
        assert!(!shard.scheduler.is_full(), "{number}");
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    assert!(shard.scheduler.is_full());
    // Another event of a counted record adds nothing.
    shard.take(1_001, wanted(subject("r1"), 2, false), "e");

    while let Some(ask) = shard.ask() {
        shard.read(&ask.subject, Ok(json(ask.subject.id.as_str(), 2))).unwrap();
    }
    while shard.scheduler.ready() > 0 {
        shard.commit();
    }

    assert!(!shard.scheduler.is_full());
    assert_eq!((shard.offset, shard.scheduler.counts()), (1_001, (0, 0)));
}

#[test]
fn rejected_record_is_unparked_for_rows_and_events() {
    let failure = || PublishFailure {
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
fn regression_needs_the_list_to_stay_low_as_long_as_reads() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, confirm) = (shard.now, rules().epoch_confirm);
    let row = |number, read_at| Some(ListedVersion { version: Version::Sequence(version(number)), read_at });

    // A list that is read repeatedly keeps showing the published version.
    for half in 1..=10 {
        shard.until(begun + half * confirm / 2, |_| Ok(json("r", 51)));
        shard.row = row(100, shard.now);
    }
    assert_eq!(shard.published, []);

    shard.row = row(51, shard.now);
    shard.until(shard.now + 2 * confirm, |_| Ok(json("r", 51)));
    assert_eq!(shard.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
}

#[test]
fn row_from_before_the_first_low_read_refutes_nothing() {
    for read_at in [None, Some(-1)] {
        let mut shard = TestShard::new();
        shard.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
        let begun = shard.now;
        let row =
            |before| ListedVersion { version: Version::Sequence(version(100)), read_at: begun + before };
        shard.row = read_at.map(row);
        shard.take(1, wanted(subject("r"), 51, false), "e");

        shard.until(begun + rules().epoch_confirm, |_| Ok(json("r", 51)));

        assert_eq!(shard.published, [(subject("r"), stamp(1, 51, Rank::ById, false))], "{read_at:?}");
    }
}
