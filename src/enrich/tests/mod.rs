//! What becomes of events, and of their offsets.

mod companies;
mod deleting;
mod lives;
mod rows;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use super::*;
use crate::{
    api::{self, Acted, By, Endpoint},
    model::{Epoch, GapCause, Origin, Rank, SequenceVersion, Stamp, Version},
};

const SECOND: i64 = 1_000_000;
const LANE: AccountingResource = AccountingResource::Charges;

pub(crate) fn rules() -> Rules {
    Rules {
        window: SECOND / 2,
        retry_first: SECOND / 5,
        retry_longest: 5 * SECOND,
        park_after: 10 * SECOND,
        parked_first: 30 * SECOND,
        parked_longest: 900 * SECOND,
        horizon: 86_400 * SECOND,
        tombstone_confirm: 600 * SECOND,
        epoch_confirm: 3_600 * SECOND,
        look_back: 3_600 * SECOND,
        most_open: 1_000,
        most_parked: 1_000,
        company_reads: 4,
        brake_count: 50,
        brake_share: 0.02,
    }
}

struct Everybody(Cell<u32>);

impl Companies for Everybody {
    fn standing(&self, _: &CompanyId) -> Standing {
        Standing::Known
    }

    fn ask(&self) {
        self.0.set(self.0.get() + 1);
    }
}

fn everybody() -> Everybody {
    Everybody(Cell::new(0))
}

fn subject_of(resource: AccountingResource, id: &str) -> Subject {
    let (company, id) = (CompanyId::new("c").unwrap(), RecordId::new(id).unwrap());
    Subject { resource, company, id, in_company: true }
}

fn subject(id: &str) -> Subject {
    subject_of(LANE, id)
}

fn event(id: &str) -> Event {
    let original = Original { value: Bytes::copy_from_slice(id.as_bytes()), ..Original::default() };
    Arc::new(Source { original, id: id.into(), trace: None, received_at: 1, origin: Origin::Enrichment })
}

fn version(number: u64) -> SequenceVersion {
    SequenceVersion::parse(number.to_string()).unwrap()
}

fn stamp(epoch: u64, number: u64, rank: Rank, deleted: bool) -> Stamp {
    Stamp { epoch: Epoch(epoch), version: Version::Sequence(version(number)), rank, deleted }
}

fn wanted(subject: Subject, floor: u64, is_delete: bool) -> Asked {
    Asked::Wanted(Wanted { subject, floor: Some(version(floor)), is_delete })
}

fn json(id: &str, number: u64) -> Bytes {
    format!(r#"{{"correlationId":"{id}","sequenceVersion":"{number}"}}"#).into()
}

fn error(status: u16, cause: api::Cause) -> api::Error {
    let endpoint = Endpoint { method: "GET", path: "accounting/api/charges/{id}".into() };
    api::Error { endpoint, status: Some(status), cause, excerpt: None, acted: Acted::No, in_company: true }
}

fn gone() -> api::Error {
    error(404, api::Cause::NotFound { by: By::Api })
}

/// A desk and what was committed of it.
struct Life {
    desk: Desk,
    fences: BTreeMap<Subject, Stamp>,
    published: Vec<(Subject, Stamp)>,
    parked: BTreeMap<Subject, Parked>,
    letters: Vec<(String, &'static str)>,
    gaps: Vec<GapFound>,
    outcomes: Vec<Outcome>,
    offset: i64,
    paths: BTreeSet<AccountingResource>,
    now: i64,
}

impl Life {
    fn new() -> Self {
        Self {
            desk: Desk::new(rules()),
            fences: BTreeMap::new(),
            published: Vec::new(),
            parked: BTreeMap::new(),
            letters: Vec::new(),
            gaps: Vec::new(),
            outcomes: Vec::new(),
            offset: 0,
            paths: BTreeSet::new(),
            now: 1_000 * SECOND,
        }
    }

    /// What was not committed is forgotten.
    fn crash(&mut self) {
        self.desk = Desk::new(rules());
        self.parked.values().for_each(|parked| self.desk.adopt(parked.clone()));
        self.paths.iter().for_each(|resource| self.desk.adopt_path(*resource));
    }

    fn take(&mut self, next: i64, asked: Asked, name: &str) {
        let stored = match &asked {
            Asked::Wanted(wanted) => self.fences.get(&wanted.subject).cloned(),
            _ => None,
        };
        self.desk.take(LANE, next, asked, event(name), stored.as_ref(), self.now);
    }

    fn read(&mut self, subject: &Subject, reading: Result<Bytes, api::Error>) -> Result<(), Stop> {
        let stored = self.fences.get(subject).cloned();
        let entries = self.fences.len() as u64;
        self.desk.read(subject, reading, stored.as_ref(), entries, self.now)
    }

    fn ask(&mut self) -> Option<Ask> {
        self.desk.next_read(&everybody(), self.now)
    }

    fn commit(&mut self) {
        let batch = self.desk.batch(7, 1 << 20);
        for entry in &batch.entries {
            for change in &entry.changes {
                match (change, &entry.subject) {
                    (Change::Publish { stamp, .. } | Change::Tombstone { stamp }, Some(subject)) => {
                        self.published.push((subject.clone(), stamp.clone()));
                        self.fences.insert(subject.clone(), stamp.clone());
                    }
                    (Change::Park(parked), Some(subject)) => {
                        drop(self.parked.insert(subject.clone(), (**parked).clone()))
                    }
                    (Change::Unpark, Some(subject)) => drop(self.parked.remove(subject)),
                    (Change::DeadLetter(failure), _) => {
                        self.letters.push((entry.event.id.clone(), failure.class));
                    }
                    (Change::Gap(gap), _) => self.gaps.push(gap.clone()),
                    (Change::Path(resource), _) => drop(self.paths.insert(*resource)),
                    _ => {}
                }
            }
            self.outcomes.extend(&entry.outcomes);
        }
        for (_, next) in &batch.offsets {
            assert!(*next > self.offset, "an offset went back");
            self.offset = *next;
        }
        let fences = &self.fences;
        self.desk.committed(&[], &|subject| fences.get(subject).cloned(), self.now);
    }

    /// Lets time pass until something is due, and reads it with this answer; how often.
    fn until(&mut self, end: i64, answer: impl Fn(i64) -> Result<Bytes, api::Error>) -> u32 {
        let mut reads = 0;
        loop {
            while let Some(ask) = self.ask() {
                reads += 1;
                assert!(reads < 10_000, "it reads all the time");
                self.read(&ask.subject, answer(self.now)).unwrap();
            }
            while self.desk.ready() > 0 {
                self.commit();
            }
            match self.desk.wake_at().filter(|at| *at <= end) {
                Some(at) => self.now = at.max(self.now + 1),
                None => return reads,
            }
        }
    }
}

#[test]
fn several_events_of_a_record_become_one_read_and_all_their_offsets_move() {
    let mut life = Life::new();
    for (next, floor) in [(1, 1), (2, 2), (3, 3)] {
        life.take(next, wanted(subject("r"), floor, false), "e");
    }

    let ask = life.ask().unwrap();
    assert!(life.ask().is_none(), "one at a time");
    life.read(&ask.subject, Ok(json("r", 3))).unwrap();
    life.commit();

    assert_eq!(life.published, [(subject("r"), stamp(0, 3, Rank::ById, false))]);
    assert_eq!(life.outcomes, [Outcome::Published, Outcome::Coalesced, Outcome::Coalesced]);
    assert_eq!(life.offset, 3);
    // Within the window the next one waits.
    life.take(4, wanted(subject("r"), 4, false), "e");
    assert!(life.ask().is_none());
    life.now += SECOND;
    assert!(life.ask().is_some());
}

#[test]
fn an_offset_waits_for_those_before_it() {
    let mut life = Life::new();
    life.take(1, wanted(subject("slow"), 1, false), "slow");
    life.take(2, wanted(subject("fast"), 1, false), "fast");
    life.take(3, Asked::Nothing, "nothing");
    let (slow, fast) = (life.ask().unwrap(), life.ask().unwrap());

    life.read(&fast.subject, Ok(json("fast", 1))).unwrap();
    life.commit();
    assert_eq!(life.offset, 0);
    life.read(&slow.subject, Ok(json("slow", 1))).unwrap();
    life.commit();

    assert_eq!((life.offset, life.published.len()), (3, 2));
}

#[test]
fn a_read_that_is_behind_is_published_as_what_it_is_and_the_event_stays_open() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 5, false), "e");
    let begun = life.now;

    let reads = life.until(begun + 20 * SECOND, |_| Ok(json("r", 3)));

    assert_eq!(life.published, [(subject("r"), stamp(0, 3, Rank::ById, false))]);
    assert!((4..12).contains(&reads), "{reads}");
    // It does not hold back others for ever.
    assert_eq!((life.offset, life.parked.len()), (1, 1));
    let end = life.now + 100 * SECOND;
    life.until(end, |_| Ok(json("r", 6)));
    assert_eq!(life.published.last(), Some(&(subject("r"), stamp(0, 6, Rank::ById, false))));
    assert!(life.parked.is_empty() && life.desk.counts() == (0, 0));
}

#[test]
fn what_is_never_reached_is_a_dead_letter_and_a_gap_at_the_horizon() {
    let mut life = Life::new();
    life.take(1, wanted(subject("late"), 5, false), "late");
    life.take(2, wanted(subject("lost"), 5, false), "lost");
    let end = life.now + 2 * rules().horizon;

    life.until(end, |_| Err(error(400, api::Cause::Refused)));

    let letters: BTreeSet<_> = life.letters.iter().cloned().collect();
    assert_eq!(
        letters,
        [("late".into(), "enrich::Unreadable"), ("lost".into(), "enrich::Unreadable")].into()
    );
    assert!(life.gaps.iter().all(|gap| gap.cause == GapCause::Unreadable) && life.gaps.len() == 2);
    let given_up: BTreeSet<Subject> = life.desk.take_given_up().into_iter().collect();
    assert_eq!(given_up.len(), 2, "who asked for them is told: {given_up:?}");
    assert_eq!(life.desk.take_given_up(), []);
    assert!(life.parked.is_empty() && life.published.is_empty());
}

#[test]
fn a_provider_that_went_back_is_believed_once_nothing_else_was_read_for_long_enough() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, end) = (life.now, life.now + 2 * rules().epoch_confirm);

    let reads = life.until(end, |_| Ok(json("r", 51)));

    assert_eq!(life.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
    assert!(life.now >= begun + rules().epoch_confirm && (3..8).contains(&reads), "{reads}");
    // From there on it goes on as before.
    life.take(2, wanted(subject("r"), 52, false), "e");
    life.until(end + SECOND, |_| Ok(json("r", 52)));
    assert_eq!(life.published.last(), Some(&(subject("r"), stamp(1, 52, Rank::ById, false))));
}

#[test]
fn one_read_that_shows_what_was_published_ends_the_suspicion() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, end) = (life.now, life.now + 2 * rules().epoch_confirm);

    life.until(end, |now| Ok(json("r", if now < begun + rules().epoch_confirm / 2 { 99 } else { 100 })));

    assert!(life.published.is_empty() && life.parked.is_empty());
}

#[test]
fn a_row_that_shows_what_was_published_begins_the_suspicion_anew_also_for_the_next_owner() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, half) = (life.now, rules().epoch_confirm / 2);
    life.until(begun + half, |_| Ok(json("r", 51)));
    assert!(life.desk.is_suspected(&subject("r")) && life.parked[&subject("r")].below_since.is_some());

    life.desk.not_below(&subject("r"));
    life.commit();
    assert!(!life.desk.is_suspected(&subject("r")));
    assert_eq!(life.parked[&subject("r")].below_since, None);

    life.crash();
    let shown_at = life.now;
    life.until(begun + rules().epoch_confirm + SECOND, |_| Ok(json("r", 51)));
    assert_eq!(life.published, [], "it is not believed as if no row had shown it");
    life.until(shown_at + 3 * rules().epoch_confirm, |_| Ok(json("r", 51)));
    assert_eq!(life.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
}

#[test]
fn what_is_to_be_published_under_the_next_epoch_is_not_once_a_row_shows_what_was_published() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, confirm) = (life.now, rules().epoch_confirm);
    life.until(begun + confirm - SECOND, |_| Ok(json("r", 51)));
    life.now = begun + 2 * confirm;
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 51))).unwrap();
    assert!(life.desk.ready() > 0);

    life.desk.not_below(&subject("r"));
    while life.desk.ready() > 0 {
        life.commit();
    }

    assert_eq!(life.published, []);
    assert_eq!(life.outcomes.last(), Some(&Outcome::Stale));
    assert!(life.parked.is_empty() && life.desk.counts() == (0, 0));
}

#[test]
fn an_old_event_is_looked_into_once_and_then_only_counted() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    for next in 1..=20 {
        life.take(next, wanted(subject("r"), 3, false), "e");
        let end = life.now + SECOND;
        let reads = life.until(end, |_| Ok(json("r", 9)));
        assert_eq!(reads, u32::from(next == 1));
    }
    life.take(21, wanted(subject("r"), 9, false), "e");
    life.commit();

    assert_eq!((life.offset, life.published.len()), (21, 0));
    assert_eq!(life.outcomes.last(), Some(&Outcome::Duplicate));
}

#[test]
fn what_concerns_everything_holds_everything_back_and_gives_nothing_up() {
    let mut life = Life::new();
    for number in 0..5 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let (begun, end) = (life.now, life.now + 3_600 * SECOND);

    let reads = life.until(end, |now| {
        if now < begun + 3_000 * SECOND {
            Err(error(503, api::Cause::Server { again: None }))
        } else {
            Ok(json("r", 1))
        }
    });

    assert!(reads < 4_000, "{reads}");
    // Each was answered with another record in the end: no reason to give up, and none to wait for ever.
    assert_eq!((life.letters.len(), life.parked.len(), life.offset), (0, 5, 5));
}

#[test]
fn what_needs_a_person_stops_the_shard_and_loses_nothing() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    let ask = life.ask().unwrap();

    let stopped = life.read(&ask.subject, Err(error(401, api::Cause::Key)));

    assert!(stopped.is_err() && life.desk.ready() == 0);
    assert!(life.ask().is_some(), "it is there for whoever goes on");
}

#[test]
fn a_record_that_alone_fails_as_if_all_did_holds_up_no_other_and_is_given_up_at_the_horizon() {
    let mut life = Life::new();
    life.take(1, wanted(subject("bad"), 1, false), "bad");
    for number in 0..3 {
        life.take(number + 2, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let end = life.now + 30 * SECOND;
    let (mut reads, mut next) = (0, 4);
    while life.now < end {
        while let Some(ask) = life.ask() {
            reads += 1;
            let id = ask.subject.id.as_str().to_owned();
            let is_bad = id == "bad";
            let answer =
                if is_bad { Err(error(504, api::Cause::Server { again: None })) } else { Ok(json(&id, 1)) };
            life.read(&ask.subject, answer).unwrap();
        }
        while life.desk.ready() > 0 {
            life.commit();
        }
        // Others go on being answered.
        life.now += SECOND;
        next += 1;
        life.take(next, wanted(subject(&format!("n{next}")), 1, false), "e");
    }

    assert_eq!(life.parked.len(), 1, "{:?}", life.parked);
    assert!(reads < 60 && life.published.len() >= 30, "{reads}, {}", life.published.len());
    assert!(life.offset >= 30);
}

#[test]
fn an_event_of_a_record_that_is_parked_holds_back_its_offset_no_longer_than_any_other() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 5, false), "first");
    let refused = |_: i64| Err(error(400, api::Cause::Refused));
    life.until(life.now + 12 * SECOND, refused);
    assert_eq!((life.parked.len(), life.offset), (1, 1));

    // What the state topic waits for already settles at once, also for who comes after a crash.
    life.crash();
    life.take(2, wanted(subject("r"), 5, false), "again");
    life.commit();
    assert_eq!((life.offset, life.outcomes.last()), (2, Some(&Outcome::Coalesced)));
    life.take(3, wanted(subject("r"), 6, false), "more");
    life.until(life.now + 16 * SECOND, refused);
    assert_eq!(life.offset, 3);
    assert_eq!(life.parked[&subject("r")].floor, Some(version(6)));

    // Also where it has been tried so often that it waits for long.
    life.until(life.now + 7_200 * SECOND, refused);
    life.take(4, wanted(subject("r"), 7, false), "most");
    life.until(life.now + 16 * SECOND, refused);
    assert_eq!((life.offset, life.parked[&subject("r")].floor.clone()), (4, Some(version(7))));
}

#[test]
fn whether_the_provider_went_back_holds_back_no_offset() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 9, false), "first");
    life.until(life.now + SECOND, |_| Ok(json("r", 9)));
    life.take(2, wanted(subject("r"), 4, false), "before");
    life.until(life.now + SECOND, |_| Ok(json("r", 4)));
    assert_eq!((life.offset, life.parked.len()), (2, 1), "it is suspected");

    life.take(3, wanted(subject("r"), 5, false), "again");
    while life.desk.ready() > 0 {
        life.commit();
    }

    assert_eq!(life.offset, 3);
    assert_eq!(life.published.len(), 1);
}

#[test]
fn events_that_wait_for_their_turn_too_long_are_parked() {
    let mut life = Life::new();
    for number in 0..50 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let under_way: Vec<Ask> = std::iter::from_fn(|| life.ask()).collect();
    life.now += 11 * SECOND;

    life.desk.park_late(life.now);
    while life.desk.ready() > 0 {
        life.commit();
    }

    assert_eq!((under_way.len(), life.parked.len(), life.offset), (4, 46, 0));
    for ask in under_way {
        life.read(&ask.subject, Ok(json(ask.subject.id.as_str(), 1))).unwrap();
    }
    life.commit();
    assert_eq!(life.offset, 50);
}
