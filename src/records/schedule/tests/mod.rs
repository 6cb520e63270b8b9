//! Outcomes of events, and their offsets.

mod companies;
mod deletes;
mod failures;
mod regression;
mod rows;
mod simulation;
mod unversioned;

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
const RESOURCE: AccountingResource = AccountingResource::Charges;

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
        regression_check_every: 3_600 * SECOND,
        most_open: 1_000,
        most_parked: 1_000,
        company_reads: 4,
        brake_count: 50,
        brake_share: 0.02,
    }
}

struct AllKnown(Cell<u32>);

impl Companies for AllKnown {
    fn state(&self, _: &CompanyId) -> CompanyState {
        CompanyState::Known
    }

    fn ask(&self) {
        self.0.set(self.0.get() + 1);
    }
}

fn all_known() -> AllKnown {
    AllKnown(Cell::new(0))
}

fn subject_of(resource: AccountingResource, id: &str) -> Subject {
    let (company, id) = (CompanyId::new("c").unwrap(), RecordId::new(id).unwrap());
    Subject { resource, company, id, in_company: true }
}

fn subject(id: &str) -> Subject {
    subject_of(RESOURCE, id)
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

/// A scheduler and everything it has committed.
struct TestShard {
    scheduler: Scheduler,
    fences: BTreeMap<Subject, Stamp>,
    published: Vec<(Subject, Stamp)>,
    parked: BTreeMap<Subject, Parked>,
    letters: Vec<(String, &'static str)>,
    gaps: Vec<GapFound>,
    outcomes: Vec<Outcome>,
    offset: i64,
    paths: BTreeSet<AccountingResource>,
    /// Provider answers to other readers.
    elsewhere: u64,
    /// The last list row of the record.
    row: Option<ListedVersion>,
    now: i64,
}

impl TestShard {
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

    /// Restarts with committed state only.
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
        self.scheduler.take(RESOURCE, next, asked, event(name), stored.as_ref(), self.now);
    }

    fn read(&mut self, subject: &Subject, reading: Result<Bytes, api::Error>) -> Result<(), Blocked> {
        let (entries, answers) = (self.fences.len() as u64, self.elsewhere);
        let (stored, row) = (self.fences.get(subject), self.row.as_ref());
        let context = ReadContext { stored, entries, answers, row, path_answers: false };
        self.scheduler.take_answer(subject, reading, context, self.now)
    }

    fn ask(&mut self) -> Option<NextRead> {
        self.scheduler.next_read(&all_known(), self.now)
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

    /// Advances time up to `end` and answers each read with `answer`. Returns the number of reads.
    fn until(&mut self, end: i64, answer: impl Fn(i64) -> Result<Bytes, api::Error>) -> u32 {
        let mut reads = 0;
        loop {
            while let Some(ask) = self.ask() {
                reads += 1;
                assert!(reads < 10_000, "the scheduler never stops reading");
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
fn events_of_one_record_share_a_read_and_all_offsets_move() {
    let mut shard = TestShard::new();
    for (next, floor) in [(1, 1), (2, 2), (3, 3)] {
        shard.take(next, wanted(subject("r"), floor, false), "e");
    }

    let ask = shard.ask().unwrap();
    assert!(shard.ask().is_none(), "one at a time");
    shard.read(&ask.subject, Ok(json("r", 3))).unwrap();
    shard.commit();

    assert_eq!(shard.published, [(subject("r"), stamp(0, 3, Rank::ById, false))]);
    assert_eq!(shard.outcomes, [Outcome::Published, Outcome::Coalesced, Outcome::Coalesced]);
    assert_eq!(shard.offset, 3);
    // A further read waits for the window.
    shard.take(4, wanted(subject("r"), 4, false), "e");
    assert!(shard.ask().is_none());
    shard.now += SECOND;
    assert!(shard.ask().is_some());
}

/// `first_at` of the entries that write a record.
fn first_times(batch: &Batch) -> Vec<Option<i64>> {
    batch.entries.iter().filter(|entry| entry.stamp().is_some()).map(|entry| entry.first_at).collect()
}

#[test]
fn first_at_is_the_earliest_event_once_all_are_settled() {
    let mut shard = TestShard::new();
    for (next, happened_at) in [(1_i64, 70), (2, 50), (3, 90)] {
        let event = Arc::new(Source { happened_at, ..(*event("e")).clone() });
        let floor = u64::try_from(next).unwrap();
        shard.scheduler.take(RESOURCE, next, wanted(subject("r"), floor, false), event, None, shard.now);
    }
    let ask = shard.ask().unwrap();
    shard.read(&ask.subject, Ok(json("r", 2))).unwrap();
    assert_eq!(first_times(&shard.scheduler.batch(10, 1 << 20)), [None], "version 3 is still open");
    shard.fences.insert(subject("r"), stamp(0, 2, Rank::ById, false));
    shard.scheduler.committed(&[], &|_| Some(stamp(0, 2, Rank::ById, false)), shard.now);

    shard.now += SECOND;
    let ask = shard.ask().unwrap();
    shard.read(&ask.subject, Ok(json("r", 3))).unwrap();

    assert_eq!(first_times(&shard.scheduler.batch(10, 1 << 20)), [Some(50)]);
}

#[test]
fn delete_keeps_its_event_time_across_owners_and_rows_have_none() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.fences.insert(subject("r"), stamp(0, 4, Rank::ById, false));
    shard.crash();
    let delete = Arc::new(Source { happened_at: 60, ..(*event("e")).clone() });
    let stored = shard.fences.get(&subject("r"));
    shard.scheduler.take(RESOURCE, 1, wanted(subject("r"), 5, true), delete, stored, shard.now);
    shard.until(shard.now + SECOND, |_| Err(gone()));
    shard.crash();
    shard.row_shows("s", 5);

    shard.now += 2 * rules().tombstone_confirm;
    while let Some(ask) = shard.ask() {
        let answer = if ask.subject == subject("r") { Err(gone()) } else { Ok(json("s", 5)) };
        shard.read(&ask.subject, answer).unwrap();
    }

    let mut started = first_times(&shard.scheduler.batch(10, 1 << 20));
    started.sort_unstable();
    assert_eq!(started, [None, Some(60)]);
}

#[test]
fn unversioned_event_is_not_settled_by_an_earlier_read() {
    for fails in [false, true] {
        let mut shard = TestShard::new();
        shard.take(1, wanted(subject("r"), 1, false), "first");
        let ask = shard.ask().unwrap();
        shard.take(2, unversioned(subject("r"), false), "second");
        shard.take(3, unversioned(subject("r"), false), "third");

        let answer = if fails { Err(error(400, api::Cause::Refused)) } else { Ok(json("r", 1)) };
        shard.read(&ask.subject, answer).unwrap();
        while shard.scheduler.ready() > 0 {
            shard.commit();
        }
        assert_eq!(shard.offset, if fails { 0 } else { 1 });
        let reads = shard.until(shard.now + 2 * SECOND, |_| Ok(json("r", 2)));

        assert_eq!((reads, shard.offset), (1, 3), "{fails}");
        assert_eq!(shard.published.last(), Some(&(subject("r"), stamp(0, 2, Rank::ById, false))));
        assert_eq!(shard.scheduler.counts(), (0, 0));
    }
}

#[test]
fn unversioned_event_before_the_read_is_settled_by_it() {
    let mut shard = TestShard::new();
    shard.take(1, unversioned(subject("r"), false), "first");
    shard.take(2, unversioned(subject("r"), false), "second");

    let reads = shard.until(shard.now + SECOND, |_| Ok(json("r", 1)));

    assert_eq!((reads, shard.offset, shard.published.len()), (1, 2, 1));
}

#[test]
fn offset_waits_for_all_before_it() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("slow"), 1, false), "slow");
    shard.take(2, wanted(subject("fast"), 1, false), "fast");
    shard.take(3, ReadRequest::Nothing, "nothing");
    let (slow, fast) = (shard.ask().unwrap(), shard.ask().unwrap());

    shard.read(&fast.subject, Ok(json("fast", 1))).unwrap();
    shard.commit();
    assert_eq!(shard.offset, 0);
    shard.read(&slow.subject, Ok(json("slow", 1))).unwrap();
    shard.commit();

    assert_eq!((shard.offset, shard.published.len()), (3, 2));
}

#[test]
fn read_below_the_event_is_published_and_event_stays_open() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 5, false), "e");
    let started = shard.now;

    let reads = shard.until(started + 20 * SECOND, |_| Ok(json("r", 3)));

    assert_eq!(shard.published, [(subject("r"), stamp(0, 3, Rank::ById, false))]);
    assert!((4..12).contains(&reads), "{reads}");
    // It is parked and does not hold back later offsets.
    assert_eq!((shard.offset, shard.parked.len()), (1, 1));
    let end = shard.now + 100 * SECOND;
    shard.until(end, |_| Ok(json("r", 6)));
    assert_eq!(shard.published.last(), Some(&(subject("r"), stamp(0, 6, Rank::ById, false))));
    assert!(shard.parked.is_empty() && shard.scheduler.counts() == (0, 0));
}

#[test]
fn unread_record_is_a_dead_letter_and_a_gap_at_the_horizon() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("late"), 5, false), "late");
    shard.take(2, wanted(subject("lost"), 5, false), "lost");
    let end = shard.now + 2 * rules().horizon;

    shard.until(end, |_| Err(error(400, api::Cause::Refused)));

    let letters: BTreeSet<_> = shard.letters.iter().cloned().collect();
    assert_eq!(
        letters,
        [("late".into(), "enrich::Unreadable"), ("lost".into(), "enrich::Unreadable")].into()
    );
    assert!(shard.gaps.iter().all(|gap| gap.cause == GapCause::Unreadable) && shard.gaps.len() == 2);
    let given_up: BTreeSet<Subject> = shard.scheduler.take_given_up().into_iter().collect();
    assert_eq!(given_up.len(), 2, "lists learn of both: {given_up:?}");
    assert_eq!(shard.scheduler.take_given_up(), []);
    assert!(shard.parked.is_empty() && shard.published.is_empty());
}

#[test]
fn stale_event_triggers_one_read_then_is_only_counted() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 9, Rank::ById, false));
    for next in 1..=20 {
        shard.take(next, wanted(subject("r"), 3, false), "e");
        let end = shard.now + SECOND;
        let reads = shard.until(end, |_| Ok(json("r", 9)));
        assert_eq!(reads, u32::from(next == 1));
    }
    shard.take(21, wanted(subject("r"), 9, false), "e");
    shard.commit();

    assert_eq!((shard.offset, shard.published.len()), (21, 0));
    assert_eq!(shard.outcomes.last(), Some(&Outcome::Duplicate));
}

#[test]
fn event_of_a_parked_record_holds_its_offset_no_longer() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 5, false), "first");
    let refused = |_: i64| Err(error(400, api::Cause::Refused));
    shard.until(shard.now + 12 * SECOND, refused);
    assert_eq!((shard.parked.len(), shard.offset), (1, 1));

    // An event that the parked request covers settles at once, also after a crash.
    shard.crash();
    shard.take(2, wanted(subject("r"), 5, false), "again");
    shard.commit();
    assert_eq!((shard.offset, shard.outcomes.last()), (2, Some(&Outcome::Coalesced)));
    shard.take(3, wanted(subject("r"), 6, false), "more");
    shard.until(shard.now + 16 * SECOND, refused);
    assert_eq!(shard.offset, 3);
    assert_eq!(shard.parked[&subject("r")].floor, Some(version(6)));

    // The same holds after many attempts, when the backoff is long.
    shard.until(shard.now + 7_200 * SECOND, refused);
    shard.take(4, wanted(subject("r"), 7, false), "most");
    shard.until(shard.now + 16 * SECOND, refused);
    assert_eq!((shard.offset, shard.parked[&subject("r")].floor.clone()), (4, Some(version(7))));
}

#[test]
fn events_queued_too_long_are_parked() {
    let mut shard = TestShard::new();
    for number in 0..50 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let under_way: Vec<NextRead> = std::iter::from_fn(|| shard.ask()).collect();
    shard.now += 11 * SECOND;

    shard.scheduler.park_late(shard.now);
    while shard.scheduler.ready() > 0 {
        shard.commit();
    }

    assert_eq!((under_way.len(), shard.parked.len(), shard.offset), (4, 46, 0));
    for ask in under_way {
        shard.read(&ask.subject, Ok(json(ask.subject.id.as_str(), 1))).unwrap();
    }
    shard.commit();
    assert_eq!(shard.offset, 50);
}
