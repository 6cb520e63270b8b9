//! What rows of lists ask for.

use super::*;
use crate::publish::{Failure, PublishStage};

fn by_a_list() -> Event {
    Arc::new(Source { origin: Origin::Snapshot, ..(*event("row")).clone() })
}

impl Life {
    /// A row of a list shows this much of a record, and not all of it.
    pub(super) fn row_shows(&mut self, id: &str, floor: u64) {
        let wanted = Wanted { subject: subject(id), floor: Some(version(floor)), is_delete: false };
        let stored = self.fences.get(&subject(id));
        self.scheduler.request(wanted, by_a_list(), stored, self.now);
    }
}

#[test]
fn a_row_is_read_and_nothing_of_it_is_kept() {
    let mut life = Life::new();
    life.row_shows("r", 3);
    assert!(life.scheduler.owes(&subject("r")) && !life.scheduler.is_full());
    life.until(life.now + 60 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert!(life.parked.is_empty() && life.scheduler.owes(&subject("r")), "its list waits");

    life.until(life.now + 60 * SECOND, |_| Ok(json("r", 3)));

    assert_eq!((life.published.len(), life.outcomes.len()), (1, 0));
    assert!(!life.scheduler.owes(&subject("r")) && life.scheduler.counts() == (0, 0));
}

#[test]
fn a_row_that_cannot_be_read_is_tried_ever_less_often() {
    let mut life = Life::new();
    life.row_shows("r", 3);
    let refused = |_: i64| Err(error(400, api::Cause::Refused));
    let begun = life.now;

    let mut reads = [10, 3_600, 86_400].map(|end| life.until(begun + end * SECOND, refused));
    reads[2] += life.until(begun + 2 * rules().horizon, refused);

    assert!((5..12).contains(&reads[0]) && (8..20).contains(&reads[1]), "{reads:?}");
    assert!((80..110).contains(&reads[2]), "{reads:?}");
    assert_eq!(life.letters, [("row".to_owned(), "enrich::Unreadable")], "given up at the horizon");
    assert_eq!(life.scheduler.take_given_up(), [subject("r")]);
    assert!(life.gaps.is_empty(), "a list shows it again");
}

#[test]
fn a_row_and_an_event_of_one_record_share_its_read() {
    for row_first in [true, false] {
        let mut life = Life::new();
        if row_first {
            life.row_shows("r", 3);
        }
        life.take(1, wanted(subject("r"), 2, false), "e");
        if !row_first {
            life.row_shows("r", 3);
        }
        let ask = life.ask().unwrap();
        assert_eq!(ask.priority, api::Priority::Webhook, "an event waits for it");

        let refused = |_: i64| Err(error(400, api::Cause::Refused));
        life.read(&ask.subject, refused(0)).unwrap();
        life.until(life.now + 2 * rules().horizon, refused);

        assert_eq!(life.letters, [("e".to_owned(), "enrich::Unreadable")], "{row_first}");
        assert_eq!((life.gaps.len(), life.offset), (1, 1), "an event is lost, and told of");
    }
}

#[test]
fn an_event_that_joins_a_row_holds_its_offset_until_it_is_parked() {
    let mut life = Life::new();
    life.row_shows("r", 3);
    life.take(1, wanted(subject("r"), 5, false), "e");

    life.until(life.now + 30 * SECOND, |_| Ok(json("r", 3)));

    assert_eq!((life.offset, life.parked.len(), life.scheduler.counts()), (1, 1, (0, 1)));
    life.until(life.now + 60 * SECOND, |_| Ok(json("r", 5)));
    assert_eq!(life.outcomes, [Outcome::Parked, Outcome::Published]);
    assert!(life.parked.is_empty() && life.scheduler.counts() == (0, 0));
}

#[test]
fn no_list_waits_until_it_is_known_whether_the_provider_went_back() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    life.scheduler.look_back(wanted, by_a_list(), life.now);
    life.until(life.now + SECOND, |_| Ok(json("r", 3)));
    assert!(life.scheduler.is_suspected(&subject("r")) && life.parked.contains_key(&subject("r")));
    assert!(!life.scheduler.owes(&subject("r")));
    life.crash();
    assert!(!life.scheduler.owes(&subject("r")));

    // A row above what was published is waited for all the same, and read soon.
    life.row_shows("r", 10);
    assert!(life.scheduler.owes(&subject("r")));
    life.until(life.now + SECOND, |_| Ok(json("r", 10)));

    assert_eq!(life.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
    assert!(life.parked.is_empty() && life.scheduler.counts() == (0, 0));
}

#[test]
fn a_row_that_shows_more_than_is_being_committed_is_read_after_that() {
    for (row, reads) in [(3, 0), (4, 1)] {
        let mut life = Life::new();
        life.take(1, wanted(subject("r"), 3, false), "e");
        let ask = life.ask().unwrap();
        life.read(&ask.subject, Ok(json("r", 3))).unwrap();
        life.row_shows("r", row);
        assert!(life.scheduler.owes(&subject("r")));

        life.commit();
        assert_eq!(life.scheduler.owes(&subject("r")), reads > 0, "{row}");
        let found = life.until(life.now + SECOND, |_| Ok(json("r", 4)));

        assert_eq!((found, life.published.len()), (reads, 1 + reads as usize));
        assert!(life.parked.is_empty() && life.scheduler.counts() == (0, 0));
    }
}

#[test]
fn a_list_waits_for_a_row_above_what_is_being_committed_as_suspected() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    life.scheduler.look_back(wanted, by_a_list(), life.now);
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 3))).unwrap();
    life.row_shows("r", 10);
    assert!(life.scheduler.owes(&subject("r")));

    while life.scheduler.ready() > 0 {
        life.commit();
        assert!(life.scheduler.owes(&subject("r")));
    }
    life.until(life.now + SECOND, |_| Ok(json("r", 10)));
    assert_eq!(life.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
}

#[test]
fn what_rows_ask_for_leaves_room_for_events() {
    let mut life = Life::new();
    for number in 0..2_000 {
        life.row_shows(&format!("r{number}"), 1);
    }

    assert!(!life.scheduler.is_full());
    life.take(1, wanted(subject("e"), 1, false), "e");
    life.until(life.now + 30 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert!(life.parked.contains_key(&subject("e")) && life.letters.is_empty());
}

#[test]
fn offsets_that_are_held_are_counted_and_leave_no_room_for_more() {
    let mut life = Life::new();
    for number in 0..1_000 {
        assert!(!life.scheduler.is_full(), "{number}");
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    assert!(life.scheduler.is_full());
    // One more of a record that is counted already.
    life.take(1_001, wanted(subject("r1"), 2, false), "e");

    while let Some(ask) = life.ask() {
        life.read(&ask.subject, Ok(json(ask.subject.id.as_str(), 2))).unwrap();
    }
    while life.scheduler.ready() > 0 {
        life.commit();
    }

    assert!(!life.scheduler.is_full());
    assert_eq!((life.offset, life.scheduler.counts()), (1_001, (0, 0)));
}

#[test]
fn a_record_that_is_not_taken_waits_no_more_whoever_asked_for_it() {
    let failure = || Failure {
        stage: PublishStage::Produce,
        class: "refused",
        message: String::new(),
        causes: Vec::new(),
    };
    for event in [by_a_list(), event("e")] {
        let changes = vec![Change::Tombstone { stamp: stamp(0, 1, Rank::ById, false) }, Change::Unpark];
        let entry = Entry::new(Some(subject("r")), event, changes, Vec::new()).refused(failure());

        assert!(entry.changes.iter().any(|change| matches!(change, Change::Unpark)), "{entry:?}");
        assert!(entry.changes.iter().any(|change| matches!(change, Change::DeadLetter(_))));
    }
}

#[test]
fn a_provider_is_not_believed_to_have_gone_back_before_its_list_has_shown_no_more_for_as_long() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, confirm) = (life.now, rules().epoch_confirm);
    let row = |number, read_at| Some(ListedVersion { version: Version::Sequence(version(number)), read_at });

    // A list that is read over and over shows all the time what was published.
    for half in 1..=10 {
        life.until(begun + half * confirm / 2, |_| Ok(json("r", 51)));
        life.row = row(100, life.now);
    }
    assert_eq!(life.published, []);

    life.row = row(51, life.now);
    life.until(life.now + 2 * confirm, |_| Ok(json("r", 51)));
    assert_eq!(life.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
}

#[test]
fn a_row_from_before_the_first_read_that_shows_less_says_nothing() {
    for read_at in [None, Some(-1)] {
        let mut life = Life::new();
        life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
        let begun = life.now;
        let row =
            |before| ListedVersion { version: Version::Sequence(version(100)), read_at: begun + before };
        life.row = read_at.map(row);
        life.take(1, wanted(subject("r"), 51, false), "e");

        life.until(begun + rules().epoch_confirm, |_| Ok(json("r", 51)));

        assert_eq!(life.published, [(subject("r"), stamp(1, 51, Rank::ById, false))], "{read_at:?}");
    }
}
