//! Shards that live through crashes, lost and lagging reads, duplicated and reordered events, held against the provider's truth.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    api::{self, Acted, By, Endpoint},
    model::{Epoch, GapCause, Rank, SequenceVersion, Stamp, Version},
};

const SECOND: i64 = 1_000_000;
const LANE: AccountingResource = AccountingResource::Charges;

fn rules() -> Rules {
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

struct Nobody(Cell<u32>, Standing);

impl Companies for Nobody {
    fn standing(&self, _: &CompanyId) -> Standing {
        self.1
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
    Arc::new(Source { original, id: id.into(), trace: None, received_at: 1 })
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
            while self.desk.has_batch() {
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
    assert!(life.parked.is_empty() && life.published.is_empty());
}

#[test]
fn a_delete_is_believed_after_two_answers_far_enough_apart_and_only_where_the_path_answers() {
    for (knows_path, resource, tombstones) in
        [(true, LANE, 1), (false, LANE, 0), (true, AccountingResource::Customers, 0)]
    {
        let mut life = Life::new();
        life.fences.insert(subject_of(resource, "r"), stamp(0, 4, Rank::ById, false));
        if knows_path {
            life.paths.insert(resource);
            life.crash();
        }
        life.take(1, wanted(subject_of(resource, "r"), 5, true), "e");
        let (begun, end) = (life.now, life.now + 2 * rules().tombstone_confirm);

        life.until(end, |_| Err(gone()));

        let found: Vec<&Stamp> = life.published.iter().map(|(_, stamp)| stamp).collect();
        assert_eq!(found.len(), tombstones, "{resource:?} {knows_path}");
        if tombstones > 0 {
            assert_eq!(found, [&stamp(0, 5, Rank::ById, true)]);
            assert!(life.now >= begun + rules().tombstone_confirm);
        } else {
            assert_eq!(life.parked.len(), 1);
        }
    }
}

#[test]
fn a_record_that_comes_back_before_the_second_answer_is_not_deleted() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    life.take(1, wanted(subject("r"), 5, true), "e");
    let (begun, end) = (life.now, life.now + 2 * rules().tombstone_confirm);

    life.until(end, |now| if now < begun + SECOND { Err(gone()) } else { Ok(json("r", 6)) });

    assert_eq!(life.published, [(subject("r"), stamp(0, 6, Rank::ById, false))]);
}

#[test]
fn neither_the_gateway_nor_an_event_of_another_kind_deletes_anything() {
    let by_gateway = || error(404, api::Cause::NotFound { by: By::Gateway });
    let unclear = || error(404, api::Cause::NotFound { by: By::Unknown });
    let answers: [(bool, fn() -> api::Error); 2] = [(true, by_gateway), (true, unclear)];
    for (is_delete, answer) in answers.into_iter().chain([(false, gone as fn() -> api::Error)]) {
        let mut life = Life::new();
        life.paths.insert(LANE);
        life.crash();
        life.take(1, wanted(subject("r"), 5, is_delete), "e");
        let end = life.now + 2 * rules().horizon;

        life.until(end, |_| Err(answer()));

        assert!(life.published.is_empty(), "{:?}", life.published);
        assert_eq!((life.letters.len(), life.gaps.len()), (1, 1));
    }
}

#[test]
fn too_many_deletes_in_a_day_wait_for_a_person() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    for number in 0..60 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 5, true), "e");
    }
    let end = life.now + 3 * rules().tombstone_confirm;

    life.until(end, |_| Err(gone()));

    assert_eq!((life.published.len(), life.parked.len()), (50, 10));
    assert!(life.parked.values().all(|parked| parked.cause == Cause::Braked));
    assert_eq!(life.offset, 60);
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
fn a_company_that_is_not_listed_is_asked_for_and_foreign_only_after_a_later_list() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    for standing in [Standing::Unread, Standing::Absent { since: life.now - 1 }] {
        let nobody = Nobody(Cell::new(0), standing);
        assert!(life.desk.next_read(&nobody, life.now).is_none());
        assert_eq!(nobody.0.get(), 1);
        assert!(!life.desk.has_batch());
        life.now += SECOND;
    }

    life.now += SECOND;
    let since = life.now;
    assert!(life.desk.next_read(&Nobody(Cell::new(0), Standing::Absent { since }), life.now).is_none());
    life.commit();

    assert_eq!(life.letters, [("e".to_owned(), "enrich::Foreign")]);
    assert_eq!((life.offset, &life.outcomes[..]), (1, &[Outcome::Foreign][..]));
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

    assert!(stopped.is_err() && !life.desk.has_batch());
    assert!(life.ask().is_some(), "it is there for whoever goes on");
}

#[test]
fn a_company_that_fails_leaves_the_turns_to_others() {
    let mut life = Life::new();
    let other = Subject { company: CompanyId::new("d").unwrap(), ..subject("r") };
    for number in 0..50 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    life.take(51, wanted(other.clone(), 1, false), "e");

    let first: Vec<Ask> = std::iter::from_fn(|| life.ask()).collect();

    assert_eq!(first.len(), 5, "four of the one, and the other");
    assert!(first.iter().position(|ask| ask.subject == other).unwrap() <= 1);
    for ask in &first {
        let answer = if ask.subject == other {
            Ok(json("r", 1))
        } else {
            Err(error(403, api::Cause::Forbidden { by: By::Api }))
        };
        life.read(&ask.subject, answer).unwrap();
    }
    assert!(life.ask().is_none(), "the company is left alone for a while");
    life.commit();
    assert_eq!(life.published.len(), 1);
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
        while life.desk.has_batch() {
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
    life.until(life.now + 60 * SECOND, refused);

    assert_eq!(life.offset, 3);
    assert_eq!(life.parked[&subject("r")].floor, Some(version(6)));
}

#[test]
fn events_of_a_company_that_turns_out_foreign_are_all_settled() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    life.now += SECOND;
    let since = life.now;
    let nobody = Nobody(Cell::new(0), Standing::Absent { since });
    assert!(life.desk.next_read(&nobody, life.now).is_none());

    life.take(2, wanted(subject("r"), 2, false), "e");
    life.commit();
    life.now += SECOND;
    let nobody = Nobody(Cell::new(0), Standing::Absent { since: life.now });
    assert!(life.desk.next_read(&nobody, life.now).is_none());
    life.commit();

    assert_eq!((life.offset, life.letters.len()), (2, 2));
}

#[test]
fn what_is_told_after_a_delete_is_waited_for_and_no_delete_stands_for_it() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    life.take(1, wanted(subject("r"), 6, false), "again there");
    life.take(2, wanted(subject("r"), 5, true), "deleted");
    let (begun, end) = (life.now, life.now + 5 * rules().tombstone_confirm);

    // A replica that lags longer than two answers are apart.
    life.until(
        end,
        |now| {
            if now < begun + 3 * rules().tombstone_confirm { Err(gone()) } else { Ok(json("r", 6)) }
        },
    );

    assert_eq!(life.published, [(subject("r"), stamp(0, 6, Rank::ById, false))]);
}

#[test]
fn one_company_leaves_room_for_what_others_park() {
    let mut life = Life::new();
    for number in 0..600 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let end = life.now + 100 * SECOND;

    life.until(end, |_| Err(error(400, api::Cause::Refused)));

    assert_eq!((life.parked.len(), life.letters.len(), life.gaps.len()), (500, 100, 100));
    assert_eq!(life.offset, 600);
    assert!(!life.desk.is_full());
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
    while life.desk.has_batch() {
        life.commit();
    }

    assert_eq!((under_way.len(), life.parked.len(), life.offset), (4, 46, 0));
    for ask in under_way {
        life.read(&ask.subject, Ok(json(ask.subject.id.as_str(), 1))).unwrap();
    }
    life.commit();
    assert_eq!(life.offset, 50);
}

/// The provider: what is true, and when each version came to be.
#[derive(Debug, Clone, Default)]
struct Truth {
    /// By record: versions with their moments; the last may be its end.
    records: BTreeMap<u8, Vec<(i64, u64, bool)>>,
}

impl Truth {
    fn as_of(&self, record: u8, at: i64) -> Option<(u64, bool)> {
        let all = self.records.get(&record)?;
        all.iter().rev().find(|(since, _, _)| *since <= at).map(|(_, version, deleted)| (*version, *deleted))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Change(u8),
    Delete(u8),
    Repeat(u8),
    Feed,
    Begin,
    /// Which of those under way, and how it ends.
    End(u8, Answer),
    Commit,
    Wait(u32),
    Crash,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    True,
    /// As it was so many milliseconds ago.
    Behind(u32),
    Throttled,
    Broken,
    Lost,
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::True),
        3 => (0_u32..5_000).prop_map(Answer::Behind),
        1 => Just(Answer::Throttled),
        1 => Just(Answer::Broken),
        1 => Just(Answer::Lost),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..6).prop_map(Step::Change),
        1 => (0_u8..6).prop_map(Step::Delete),
        2 => any::<u8>().prop_map(Step::Repeat),
        8 => Just(Step::Feed),
        8 => Just(Step::Begin),
        8 => (any::<u8>(), answer()).prop_map(|(which, answer)| Step::End(which, answer)),
        6 => Just(Step::Commit),
        4 => (0_u32..3_000).prop_map(Step::Wait),
        1 => Just(Step::Crash),
    ]
}

/// A shard, the provider, and the topic between them.
struct Stage {
    life: Life,
    truth: Truth,
    /// Record, version, whether it ends it.
    events: Vec<(u8, u64, bool)>,
    fed: usize,
    reading: Vec<Subject>,
}

fn name(record: u8) -> String {
    format!("r{record}")
}

impl Stage {
    fn new() -> Self {
        let mut life = Life::new();
        life.paths.insert(LANE);
        life.crash();
        Self { life, truth: Truth::default(), events: Vec::new(), fed: 0, reading: Vec::new() }
    }

    fn change(&mut self, record: u8, deletes: bool) {
        let last = self.truth.records.get(&record).and_then(|all| all.last().copied());
        if deletes && last.is_none_or(|(_, _, deleted)| deleted) {
            return;
        }
        let version = last.map_or(1, |(_, version, _)| version + 1);
        self.truth.records.entry(record).or_default().push((self.life.now, version, deletes));
        // Now and then an event overtakes the one before it.
        let at = if version.is_multiple_of(5) {
            self.events.len().saturating_sub(1).max(self.fed)
        } else {
            self.events.len()
        };
        self.events.insert(at, (record, version, deletes));
    }

    fn feed(&mut self) {
        let Some((record, version, deletes)) = self.events.get(self.fed).copied() else { return };
        if self.life.desk.is_full() {
            return;
        }
        self.fed += 1;
        let next = i64::try_from(self.fed).unwrap();
        self.life.take(
            next,
            wanted(subject(&name(record)), version, deletes),
            &format!("{record}/{version}"),
        );
    }

    fn end(&mut self, which: usize, answer: Answer) {
        if self.reading.is_empty() {
            return;
        }
        let subject = self.reading.swap_remove(which % self.reading.len());
        let record: u8 = subject.id.as_str()[1..].parse().unwrap();
        let found = |at: i64| match self.truth.as_of(record, at) {
            Some((version, false)) => Ok(json(&name(record), version)),
            _ => Err(gone()),
        };
        let reading = match answer {
            Answer::True => found(self.life.now),
            Answer::Behind(lag) => found(self.life.now - i64::from(lag) * 1_000),
            Answer::Throttled => Err(error(429, api::Cause::Throttled { again: None })),
            Answer::Broken => Err(error(500, api::Cause::Server { again: None })),
            Answer::Lost => Err(error(403, api::Cause::Forbidden { by: By::Api })),
        };
        self.life.read(&subject, reading).unwrap();
    }

    fn go(&mut self, step: &Step) {
        match step {
            Step::Change(record) => self.change(*record, false),
            Step::Delete(record) => self.change(*record, true),
            Step::Repeat(which) => {
                if let Some(event) = self.events.get(usize::from(*which) % self.events.len().max(1)).copied()
                {
                    self.events.push(event);
                }
            }
            Step::Feed => self.feed(),
            Step::Begin => self.reading.extend(self.life.ask().map(|ask| ask.subject)),
            Step::End(which, answer) => self.end(usize::from(*which), *answer),
            Step::Commit => self.life.commit(),
            Step::Wait(time) => self.life.now += i64::from(*time) * 1_000,
            Step::Crash => {
                self.life.crash();
                self.reading.clear();
                self.fed = usize::try_from(self.life.offset).unwrap();
            }
        }
    }

    /// The provider is well, and time passes until nothing is left to do.
    fn quiesce(&mut self) {
        for _ in 0..20_000 {
            self.feed();
            while let Some(ask) = self.life.ask() {
                self.reading.push(ask.subject);
            }
            while !self.reading.is_empty() {
                self.end(0, Answer::True);
            }
            while self.life.desk.has_batch() {
                self.life.commit();
            }
            if self.fed == self.events.len() && !self.life.desk.has_reads(self.life.now) {
                match self.life.desk.wake_at() {
                    Some(at) => self.life.now = at.max(self.life.now + 1),
                    None => return,
                }
            }
        }
        panic!("it never comes to rest: {:?}", self.life.desk);
    }

    fn check(&self) {
        let mut last: BTreeMap<&Subject, &Stamp> = BTreeMap::new();
        for (subject, stamp) in &self.life.published {
            if let Some(before) = last.insert(subject, stamp) {
                assert!(stamp.against(Some(before)).publishes(), "{subject:?}: {stamp:?} after {before:?}");
            }
            assert_eq!(stamp.epoch, Epoch(0), "the provider never went back");
        }
        assert_eq!(self.life.offset, i64::try_from(self.events.len()).unwrap());
        assert!(self.life.parked.is_empty(), "{:?}", self.life.parked);
        for (record, all) in &self.truth.records {
            let (_, version, deleted) = *all.last().unwrap();
            let subject = subject(&name(*record));
            let found = last.get(&subject).copied();
            if deleted && found.is_none() {
                // It was gone before anybody could read it, which is as good.
                continue;
            }
            assert_eq!(found, Some(&stamp(0, version, Rank::ById, deleted)), "{subject:?}");
        }
        assert!(self.life.letters.is_empty(), "{:?}", self.life.letters);
    }
}

/// How many shards live.
fn lives() -> u32 {
    std::env::var("TRIBUTARY_TEST_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: lives(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_versions_never_go_back_and_in_the_end_the_topic_is_the_truth(
        steps in proptest::collection::vec(step(), 1..250),
    ) {
        let mut stage = Stage::new();
        for step in &steps {
            stage.go(step);
        }
        stage.quiesce();

        stage.check();
    }
}
