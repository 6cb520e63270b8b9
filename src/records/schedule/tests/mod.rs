//! What becomes of events, and of their offsets.

mod alone;
mod back;
mod companies;
mod deleting;
mod lives;
mod rows;
mod untold;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use base::metrics::ApiWait;
use model::{Epoch, GapCause, Origin, Rank, SequenceVersion, Stamp, Version};
use provider::api::{self, Acted, AnsweredBy, Endpoint};

use super::*;

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
    fn state(&self, _: &CompanyId) -> CompanyState {
        CompanyState::Known
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
    let (received_at, happened_at) = (1, 1);
    Arc::new(Source {
        original,
        id: id.into(),
        trace: None,
        received_at,
        happened_at,
        origin: Origin::Enrichment,
    })
}

fn version(number: u64) -> SequenceVersion {
    SequenceVersion::parse(number.to_string()).unwrap()
}

fn stamp(epoch: u64, number: u64, rank: Rank, deleted: bool) -> Stamp {
    Stamp { epoch: Epoch(epoch), version: Version::Sequence(version(number)), rank, deleted }
}

fn wanted(subject: Subject, floor: u64, is_delete: bool) -> ReadRequest {
    ReadRequest::Wanted(Wanted { subject, floor: Some(version(floor)), is_delete })
}

fn unversioned(subject: Subject, is_delete: bool) -> ReadRequest {
    ReadRequest::Wanted(Wanted { subject, floor: None, is_delete })
}

fn json(id: &str, number: u64) -> Bytes {
    format!(r#"{{"correlationId":"{id}","sequenceVersion":"{number}"}}"#).into()
}

fn error(status: u16, cause: api::Cause) -> api::Error {
    let endpoint = Endpoint { method: "GET", path: "accounting/api/charges/{id}".into() };
    api::Error { endpoint, status: Some(status), cause, excerpt: None, acted: Acted::No, in_company: true }
}

fn gone() -> api::Error {
    error(404, api::Cause::NotFound { by: AnsweredBy::Api })
}

/// A scheduler and what was committed of it.
struct Life {
    scheduler: Scheduler,
    fences: BTreeMap<Subject, Stamp>,
    published: Vec<(Subject, Stamp)>,
    parked: BTreeMap<Subject, Parked>,
    letters: Vec<(String, &'static str)>,
    gaps: Vec<GapFound>,
    outcomes: Vec<Outcome>,
    offset: i64,
    paths: BTreeSet<AccountingResource>,
    /// What the provider has answered to others.
    elsewhere: u64,
    /// What a list has shown of the record last.
    row: Option<ListedVersion>,
    now: i64,
}

impl Life {
    fn new() -> Self {
        Self {
            scheduler: Scheduler::new(rules()),
            fences: BTreeMap::new(),
            published: Vec::new(),
            parked: BTreeMap::new(),
            letters: Vec::new(),
            gaps: Vec::new(),
            outcomes: Vec::new(),
            offset: 0,
            paths: BTreeSet::new(),
            elsewhere: 0,
            row: None,
            now: 1_000 * SECOND,
        }
    }

    /// What was not committed is forgotten.
    fn crash(&mut self) {
        self.scheduler = Scheduler::new(rules());
        self.parked.values().for_each(|parked| self.scheduler.adopt(parked.clone()));
        self.paths.iter().for_each(|resource| self.scheduler.adopt_path(*resource));
    }

    fn take(&mut self, next: i64, asked: ReadRequest, name: &str) {
        let stored = match &asked {
            ReadRequest::Wanted(wanted) => self.fences.get(&wanted.subject).cloned(),
            _ => None,
        };
        self.scheduler.take(LANE, next, asked, event(name), stored.as_ref(), self.now);
    }

    fn read(&mut self, subject: &Subject, reading: Result<Bytes, api::Error>) -> Result<(), Blocked> {
        let (entries, answers) = (self.fences.len() as u64, self.elsewhere);
        let (stored, row) = (self.fences.get(subject), self.row.as_ref());
        let context = ReadContext { stored, entries, answers, row, path_answers: false };
        self.scheduler.read(subject, reading, context, self.now)
    }

    fn ask(&mut self) -> Option<NextRead> {
        self.scheduler.next_read(&everybody(), self.now)
    }

    fn commit(&mut self) {
        let batch = self.scheduler.batch(7, 1 << 20);
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
        self.scheduler.committed(&[], &|subject| fences.get(subject).cloned(), self.now);
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
            while self.scheduler.ready() > 0 {
                self.commit();
            }
            match self.scheduler.wake_at().filter(|at| *at <= end) {
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

/// When what entries settle began, of those that write a record.
fn begun(batch: &Batch) -> Vec<Option<i64>> {
    batch.entries.iter().filter(|entry| entry.stamp().is_some()).map(|entry| entry.first_at).collect()
}

#[test]
fn a_record_counts_from_the_first_of_the_events_that_it_settles_and_from_none_that_it_does_not() {
    let mut life = Life::new();
    for (next, happened_at) in [(1_i64, 70), (2, 50), (3, 90)] {
        let event = Arc::new(Source { happened_at, ..(*event("e")).clone() });
        let floor = u64::try_from(next).unwrap();
        life.scheduler.take(LANE, next, wanted(subject("r"), floor, false), event, None, life.now);
    }
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 2))).unwrap();
    assert_eq!(begun(&life.scheduler.batch(10, 1 << 20)), [None], "the last is open");
    life.fences.insert(subject("r"), stamp(0, 2, Rank::ById, false));
    life.scheduler.committed(&[], &|_| Some(stamp(0, 2, Rank::ById, false)), life.now);

    life.now += SECOND;
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 3))).unwrap();

    assert_eq!(begun(&life.scheduler.batch(10, 1 << 20)), [Some(50)]);
}

#[test]
fn a_delete_counts_from_its_event_also_for_the_next_owner_and_what_a_list_asks_for_from_none() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.fences.insert(subject("r"), stamp(0, 4, Rank::ById, false));
    life.crash();
    let told = Arc::new(Source { happened_at: 60, ..(*event("e")).clone() });
    let stored = life.fences.get(&subject("r"));
    life.scheduler.take(LANE, 1, wanted(subject("r"), 5, true), told, stored, life.now);
    life.until(life.now + SECOND, |_| Err(gone()));
    life.crash();
    life.row_shows("s", 5);

    life.now += 2 * rules().tombstone_confirm;
    while let Some(ask) = life.ask() {
        let answer = if ask.subject == subject("r") { Err(gone()) } else { Ok(json("s", 5)) };
        life.read(&ask.subject, answer).unwrap();
    }

    let mut begun = begun(&life.scheduler.batch(10, 1 << 20));
    begun.sort_unstable();
    assert_eq!(begun, [None, Some(60)]);
}

#[test]
fn an_event_without_a_version_is_not_settled_by_a_read_that_began_before_it_came() {
    for fails in [false, true] {
        let mut life = Life::new();
        life.take(1, wanted(subject("r"), 1, false), "first");
        let ask = life.ask().unwrap();
        life.take(2, unversioned(subject("r"), false), "second");
        life.take(3, unversioned(subject("r"), false), "third");

        let answer = if fails { Err(error(400, api::Cause::Refused)) } else { Ok(json("r", 1)) };
        life.read(&ask.subject, answer).unwrap();
        while life.scheduler.ready() > 0 {
            life.commit();
        }
        assert_eq!(life.offset, if fails { 0 } else { 1 });
        let reads = life.until(life.now + 2 * SECOND, |_| Ok(json("r", 2)));

        assert_eq!((reads, life.offset), (1, 3), "{fails}");
        assert_eq!(life.published.last(), Some(&(subject("r"), stamp(0, 2, Rank::ById, false))));
        assert_eq!(life.scheduler.counts(), (0, 0));
    }
}

#[test]
fn an_event_without_a_version_that_comes_before_its_read_begins_is_settled_by_it() {
    let mut life = Life::new();
    life.take(1, unversioned(subject("r"), false), "first");
    life.take(2, unversioned(subject("r"), false), "second");

    let reads = life.until(life.now + SECOND, |_| Ok(json("r", 1)));

    assert_eq!((reads, life.offset, life.published.len()), (1, 2, 1));
}

#[test]
fn an_offset_waits_for_those_before_it() {
    let mut life = Life::new();
    life.take(1, wanted(subject("slow"), 1, false), "slow");
    life.take(2, wanted(subject("fast"), 1, false), "fast");
    life.take(3, ReadRequest::Nothing, "nothing");
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
    assert!(life.parked.is_empty() && life.scheduler.counts() == (0, 0));
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
    let given_up: BTreeSet<Subject> = life.scheduler.take_given_up().into_iter().collect();
    assert_eq!(given_up.len(), 2, "who asked for them is told: {given_up:?}");
    assert_eq!(life.scheduler.take_given_up(), []);
    assert!(life.parked.is_empty() && life.published.is_empty());
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
fn events_that_wait_for_their_turn_too_long_are_parked() {
    let mut life = Life::new();
    for number in 0..50 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let under_way: Vec<NextRead> = std::iter::from_fn(|| life.ask()).collect();
    life.now += 11 * SECOND;

    life.scheduler.park_late(life.now);
    while life.scheduler.ready() > 0 {
        life.commit();
    }

    assert_eq!((under_way.len(), life.parked.len(), life.offset), (4, 46, 0));
    for ask in under_way {
        life.read(&ask.subject, Ok(json(ask.subject.id.as_str(), 1))).unwrap();
    }
    life.commit();
    assert_eq!(life.offset, 50);
}
