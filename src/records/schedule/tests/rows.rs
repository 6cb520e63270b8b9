//! What rows of lists ask for.

use super::*;
use crate::publish::{Failure, PublishStage};

fn by_a_list() -> Event {
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
        event: by_a_list(),
    }
}

fn asked(life: &Life) -> Vec<Subject> {
    life.scheduler.asked_by_lists(LANE, None)
}

#[test]
fn a_list_waits_for_what_its_rows_have_asked_for_also_after_a_crash() {
    let mut life = Life::new();
    life.parked.insert(subject("r"), row("r", 3, life.now));
    life.crash();
    assert_eq!(asked(&life), [subject("r")]);
    assert!(life.scheduler.owes(&subject("r")));

    life.until(life.now + SECOND, |_| Ok(json("r", 3)));

    assert_eq!(life.published.len(), 1);
    assert!(asked(&life).is_empty() && !life.scheduler.owes(&subject("r")));
}

#[test]
fn no_list_waits_until_it_is_known_whether_the_provider_went_back() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    life.scheduler.look_back(wanted, by_a_list(), life.now);
    life.until(life.now + SECOND, |_| Ok(json("r", 3)));
    assert!(life.scheduler.is_suspected(&subject("r")) && life.parked.contains_key(&subject("r")));

    assert!(asked(&life).is_empty() && !life.scheduler.owes(&subject("r")));
    life.crash();
    assert!(asked(&life).is_empty() && !life.scheduler.owes(&subject("r")));

    // A row above what was published is waited for all the same.
    life.scheduler.adopt_row(row("r", 10, life.now), life.now);
    assert!(life.scheduler.owes(&subject("r")));
}

#[test]
fn what_a_row_asks_for_while_less_is_committed_is_read_once_it_is_kept_again() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 3, false), "e");
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 3))).unwrap();
    life.scheduler.adopt_row(row("r", 4, life.now), life.now);

    life.commit();
    assert!(life.scheduler.ready() > 0 && life.ask().is_none(), "it is not kept yet");
    life.commit();
    let reads = life.until(life.now + SECOND, |_| Ok(json("r", 4)));

    assert_eq!((reads, life.published.len()), (1, 2));
    assert!(life.parked.is_empty() && life.scheduler.counts() == (0, 0));
}

#[test]
fn what_a_row_asks_for_and_is_published_meanwhile_waits_no_more() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 3, false), "e");
    let ask = life.ask().unwrap();
    // The page is committed first, and so is that its row waits.
    life.parked.insert(subject("r"), row("r", 3, life.now));
    life.read(&ask.subject, Ok(json("r", 3))).unwrap();
    life.scheduler.adopt_row(row("r", 3, life.now), life.now);

    while life.scheduler.ready() > 0 {
        life.commit();
    }

    assert_eq!((life.published.len(), life.parked.len(), life.scheduler.counts()), (1, 0, (0, 0)));
}

#[test]
fn what_rows_ask_for_leaves_room_for_events() {
    let mut life = Life::new();
    for number in 0..2_000 {
        life.scheduler.adopt_row(row(&format!("r{number}"), 1, life.now), life.now);
    }

    assert!(!life.scheduler.is_full());
    life.take(1, wanted(subject("e"), 1, false), "e");
    life.until(life.now + 30 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert!(life.parked.contains_key(&subject("e")) && life.letters.is_empty());
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
fn a_record_that_is_read_again_and_that_a_row_asks_for_meanwhile_counts_as_parked() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 5, false), "e");
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 3))).unwrap();
    life.scheduler.adopt_row(row("r", 6, life.now), life.now);
    while life.scheduler.ready() > 0 {
        life.commit();
    }
    assert_eq!(life.scheduler.counts(), (0, 1));

    life.until(life.now + 60 * SECOND, |_| Ok(json("r", 6)));
    assert_eq!(life.scheduler.counts(), (0, 0));
}

#[test]
fn a_list_waits_for_a_row_that_is_above_what_is_being_committed_as_suspected_also_after_a_crash() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    let wanted = Wanted { subject: subject("r"), floor: Some(version(3)), is_delete: false };
    life.scheduler.look_back(wanted, by_a_list(), life.now);
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 3))).unwrap();
    // The page that shows more was committed meanwhile.
    life.parked.insert(subject("r"), row("r", 10, life.now));
    life.scheduler.adopt_row(row("r", 10, life.now), life.now);
    assert!(life.scheduler.owes(&subject("r")));

    while life.scheduler.ready() > 0 {
        life.commit();
        assert!(life.scheduler.owes(&subject("r")));
    }
    life.crash();
    assert_eq!(asked(&life), [subject("r")], "what was committed has not taken its place");
    life.until(life.now + SECOND, |_| Ok(json("r", 10)));
    assert_eq!(life.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
}

#[test]
fn a_suspected_record_that_a_row_shows_more_of_is_read_soon() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    life.take(1, wanted(subject("r"), 3, false), "e");
    life.until(life.now + SECOND, |_| Ok(json("r", 3)));
    assert!(life.scheduler.is_suspected(&subject("r")));

    life.scheduler.adopt_row(row("r", 10, life.now), life.now);
    life.until(life.now + SECOND, |_| Ok(json("r", 10)));

    assert_eq!(life.published, [(subject("r"), stamp(0, 10, Rank::ById, false))]);
    assert!(life.parked.is_empty() && life.scheduler.counts() == (0, 0));
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
