//! Everything that one shard has under way.

mod after_read;
mod commit;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque, hash_map};

use model::{AccountingResource, CompanyId, Origin, Stamp, Traceparent};
use provider::api;

use super::{
    Cause, Change, Companies, CompanyState, Entry, Event, Outcome, Parked, ReadRequest, Rules, Subject,
    Wanted, judge,
    offsets::Offsets,
    pending::{LastTimes, Late, ListedVersion, PendingRecord, Settle, State},
    queue::FairQueue,
};
use crate::publish::{Failure, PublishStage};

/// Positions that may be open for each record that may be: several events join one read.
const POSITIONS: usize = 10;

/// A read to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRead {
    /// What to read.
    pub subject: Subject,
    /// Whether somebody waits for it, or it only looks whether the provider went back.
    pub priority: api::Priority,
    /// The trace of the event behind it.
    pub trace: Option<Traceparent>,
    /// Whether an event says that it is deleted: then who says that it is gone matters.
    pub is_delete: bool,
}

/// What is known around a read that has ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadContext<'a> {
    /// What the fence has of the record by now.
    pub stored: Option<&'a Stamp>,
    /// Records of its resource.
    pub entries: u64,
    /// What the provider has answered to whoever asks it beside this scheduler; it only grows. Answers to this scheduler may be among them.
    pub answers: u64,
    /// The last row of a list that shows the record, where one is known.
    pub row: Option<&'a ListedVersion>,
    /// Whether the by-id path of its resource is known to be served, beside what this scheduler remembers.
    pub path_answers: bool,
}

/// Why a shard cannot go on without a person.
#[derive(Debug)]
pub struct Blocked(pub api::Error);

/// What became of a record while its batch was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterCommit {
    /// Nothing is left to do.
    End,
    /// It is read again then.
    Due(i64),
}

/// See the module's head.
#[derive(Debug)]
pub struct Scheduler {
    rules: Rules,
    offsets: Offsets,
    records: HashMap<Subject, PendingRecord>,
    due: DueQueue,
    /// Records that may be read now.
    queue: FairQueue,
    pause: Pause,
    output: SchedulerOutput,
    /// Records that hold back offsets.
    holding: usize,
    parked: ParkedCounts,
    history: ReadHistory,
    /// Deletes of the day, by resource: since when, and how many.
    brakes: BTreeMap<AccountingResource, (i64, u64)>,
}

/// Records that wait, by when they are due.
#[derive(Debug, Default)]
struct DueQueue {
    waiting: BTreeMap<(i64, u64), Subject>,
    /// Tells apart records that are due at the same time.
    number: u64,
}

impl DueQueue {
    /// When the first record is due.
    fn next_at(&self) -> Option<i64> {
        self.waiting.keys().next().map(|(at, _)| *at)
    }

    /// The state of a record that waits from now on.
    fn insert(&mut self, subject: &Subject, at: i64) -> State {
        self.number += 1;
        self.waiting.insert((at, self.number), subject.clone());
        State::Due { at, number: self.number }
    }

    fn remove(&mut self, at: i64, number: u64) {
        self.waiting.remove(&(at, number));
    }

    /// The first record that is due.
    fn pop(&mut self, now: i64) -> Option<Subject> {
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

/// Nothing is read until then.
#[derive(Debug)]
struct Pause {
    until: i64,
    /// Pauses in a row, which grow longer.
    count: u32,
}

/// What the scheduler has decided and its owner has not taken or committed yet.
#[derive(Debug, Default)]
struct SchedulerOutput {
    /// Settled, and not in a batch yet.
    ready: VecDeque<(Entry, Vec<Settle>, Option<AfterCommit>)>,
    /// In the batch that is being committed.
    committing: Vec<(Subject, AfterCommit)>,
    report: SchedulerReport,
    /// Records that went to the dead letters, for the lists that asked for them.
    given_up: Vec<Subject>,
}

/// How many records are parked.
#[derive(Debug, Default)]
struct ParkedCounts {
    all: usize,
    /// Those that events have parked.
    by_events: usize,
    /// Those that events have parked, by company.
    by_company: HashMap<CompanyId, usize>,
}

/// What is remembered of reads that are over.
#[derive(Debug, Default)]
struct ReadHistory {
    /// Reads that were answered, whatever the answer was: a record that fails while others are answered fails alone.
    answers: u64,
    /// When records were read last, for the window.
    recent: LastTimes,
    /// When records were last read to see whether the provider went back.
    looked: LastTimes,
    /// Resources whose by-id path has answered.
    paths: BTreeSet<AccountingResource>,
}

/// What somebody should be told of.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SchedulerReport {
    /// Reads that showed less than their events had told of.
    pub stale_reads: u64,
    /// Deletes that were held back, by resource.
    pub braked: BTreeMap<AccountingResource, u64>,
}

impl Scheduler {
    /// A scheduler without records.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            queue: FairQueue::new(rules.company_reads),
            rules,
            offsets: Offsets::default(),
            records: HashMap::new(),
            due: DueQueue::default(),
            pause: Pause { until: i64::MIN, count: 0 },
            output: SchedulerOutput::default(),
            holding: 0,
            parked: ParkedCounts::default(),
            history: ReadHistory::default(),
            brakes: BTreeMap::new(),
        }
    }

    /// What an owner before has parked.
    pub fn adopt(&mut self, parked: Parked) {
        let due = parked.due;
        let (subject, record) = PendingRecord::adopted(parked);
        self.records.insert(subject.clone(), record);
        self.count_parked(&subject, false);
        self.wait_until(&subject, due);
    }

    /// A row of a list shows more of a record than was published, and the record is to be read by its id. Nothing of that is kept: until
    /// it is settled its page does not count as read, and the next owner reads that page again.
    pub fn request(&mut self, wanted: Wanted, event: Event, stored: Option<&Stamp>, now: i64) {
        self.want(wanted, event, None, stored, now);
    }

    /// Whether reads of a record have shown less than was published.
    #[must_use]
    pub fn is_suspected(&self, subject: &Subject) -> bool {
        self.records.get(subject).is_some_and(|record| record.is_suspected())
    }

    /// A row of a list shows as much of a record as was published: the provider did not go back. Reads that show less begin to
    /// count anew.
    pub fn not_below(&mut self, subject: &Subject) {
        let Some(record) = self.records.get_mut(subject).filter(|record| record.is_suspected()) else {
            return;
        };
        record.doubt.not_below();
        match (&record.state, &record.parked) {
            // Whoever is next must not find it suspected.
            (&State::Due { at, number }, Some(parked)) => {
                let cause = parked.cause;
                self.due.remove(at, number);
                self.park(subject, cause, at, Vec::new());
            }
            (State::Settling { .. }, _) => {
                let own = self.output.ready.iter_mut().map(|(entry, ..)| entry);
                own.filter(|entry| entry.subject.as_ref() == Some(subject)).for_each(Entry::not_below);
            }
            // What it becomes is written.
            (State::Due { .. } | State::Queued | State::Reading { .. }, _) => {}
        }
    }

    /// Whether a record that a row has asked for is still to be published. One whose reads show less than was published is not: as
    /// much as the row shows was, and whether the provider went back is found out without it, which may take hours.
    #[must_use]
    pub fn owes(&self, subject: &Subject) -> bool {
        self.records.get(subject).is_some_and(|record| !record.is_suspected() || record.has_late_row())
    }

    /// A row of a list shows less than was published: it is looked at whether the provider went back, now and then. Nobody waits for
    /// it, so it is not kept: the next reading shows the same.
    pub fn look_back(&mut self, wanted: Wanted, event: Event, now: i64) {
        let subject = wanted.subject.clone();
        let may_look =
            self.history.looked.get(&subject).is_none_or(|at| at.saturating_add(self.rules.look_back) <= now);
        let (open, _) = self.counts();
        if !may_look || open >= self.rules.most_open || self.records.contains_key(&subject) {
            return;
        }
        self.history.looked.note(&subject, now, self.rules.look_back);
        self.records.insert(subject.clone(), PendingRecord::new(wanted, event, None, true, now));
        self.wait_until(&subject, now);
    }

    /// A by-id path that has answered before.
    pub fn adopt_path(&mut self, resource: AccountingResource) {
        self.history.paths.insert(resource);
    }

    /// Whether the by-id path of a resource has answered before.
    #[must_use]
    pub fn knows_path(&self, resource: AccountingResource) -> bool {
        self.history.paths.contains(&resource)
    }

    /// What has been deleted of a resource since then.
    pub fn adopt_brake(&mut self, resource: AccountingResource, since: i64, count: u64) {
        self.brakes.insert(resource, (since, count));
    }

    /// Whether no more events should be handed over.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.holding + self.output.ready.len() >= self.rules.most_open
            || self.parked.by_events >= self.rules.most_parked
            || self.offsets.open_positions() >= POSITIONS * self.rules.most_open
    }

    /// Records under way, without those that are parked, and those.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.records.len().saturating_sub(self.parked.all), self.parked.all)
    }

    /// Records that went to the dead letters since this was asked last.
    #[must_use]
    pub fn take_given_up(&mut self) -> Vec<Subject> {
        std::mem::take(&mut self.output.given_up)
    }

    /// What somebody should be told of, since this was last asked.
    pub fn take_report(&mut self) -> SchedulerReport {
        std::mem::take(&mut self.output.report)
    }

    /// When the delivery came that holds back an offset for the longest time.
    #[must_use]
    pub fn oldest(&self) -> Option<i64> {
        self.records.values().filter_map(PendingRecord::oldest).min()
    }

    /// Takes the next event of a lane; `next` is the offset behind it, `stored` what the fence has of its record.
    pub fn take(
        &mut self,
        lane: AccountingResource,
        next: i64,
        request: ReadRequest,
        event: Event,
        stored: Option<&Stamp>,
        now: i64,
    ) {
        let settle = Some((lane, self.offsets.open(lane, next)));
        match request {
            ReadRequest::Nothing => self.settle_event(event, settle, Vec::new(), Outcome::Filtered),
            ReadRequest::Unusable(class, message) => {
                let failure = Failure { stage: PublishStage::Read, class, message, causes: Vec::new() };
                self.settle_event(event, settle, vec![Change::DeadLetter(failure)], Outcome::DeadLettered);
            }
            ReadRequest::Wanted(wanted) => self.want(wanted, event, settle, stored, now),
            ReadRequest::Lost(gap) => {
                let entry = Entry::new(None, event, vec![Change::Gap(gap)], Vec::new());
                self.output.ready.push_back((entry, Vec::from_iter(settle), None));
            }
        }
    }

    /// An event is settled by itself; nobody is told of a row.
    fn settle_event(&mut self, event: Event, settle: Option<Settle>, changes: Vec<Change>, outcome: Outcome) {
        let Some(settle) = settle else { return };
        let entry = Entry::new(None, event, changes, vec![outcome]);
        self.output.ready.push_back((entry, vec![settle], None));
    }

    fn want(
        &mut self,
        wanted: Wanted,
        event: Event,
        settle: Option<Settle>,
        stored: Option<&Stamp>,
        now: i64,
    ) {
        let subject = wanted.subject.clone();
        match self.records.entry(subject.clone()) {
            hash_map::Entry::Occupied(mut known) => {
                let record = known.get_mut();
                // What is being read may be from before an event whose version nobody knows: that one is left for the next read.
                let later = match &mut record.state {
                    State::Reading { later, .. } if wanted.floor.is_none() => Some(later),
                    State::Settling { later } => Some(later),
                    _ => None,
                };
                if let Some(later) = later {
                    // Whether it is settled by what is being committed is seen once that is.
                    later.push(Late { wanted, event, settle });
                    return;
                }
                // What the state topic has waits for as much: the offset may move on.
                if record.covers(&wanted) {
                    self.settle_event(event, settle, Vec::new(), Outcome::Coalesced);
                    return;
                }
                let is_above = judge::is_above(wanted.floor.as_ref(), stored);
                self.holding += usize::from(record.join(wanted, event, settle, now));
                if is_above {
                    // The provider goes on beyond what was published: it did not go back.
                    record.doubt.below_since = None;
                }
                // What waits because a read was not enough need not wait that long: something has happened.
                let soon = now.saturating_add(self.rules.retry_first);
                if let State::Due { at, number } = record.state
                    && at > soon
                {
                    let cause = record.suspected_cause();
                    self.due.remove(at, number);
                    match cause {
                        // Whether the provider went back takes its time: the offset does not wait for it.
                        Some(cause) => self.park(&subject, cause, at, Vec::new()),
                        None => self.wait_until(&subject, soon),
                    }
                }
            }
            hash_map::Entry::Vacant(place) => {
                let known =
                    stored.and_then(|stored| judge::known(stored, wanted.floor.as_ref(), wanted.is_delete));
                let look_back = self.rules.look_back;
                // What a row shows may have been published while it waited: that is no sign of anything.
                let may_look = settle.is_some()
                    && self.history.looked.get(&subject).is_none_or(|at| at.saturating_add(look_back) <= now);
                if let Some(outcome) = known.filter(|outcome| *outcome == Outcome::Duplicate || !may_look) {
                    self.settle_event(event, settle, Vec::new(), outcome);
                    return;
                }
                self.holding += usize::from(settle.is_some());
                place.insert(PendingRecord::new(wanted, event, settle, known.is_some(), now));
                if known.is_some() {
                    self.history.looked.note(&subject, now, look_back);
                }
                let at = self
                    .history
                    .recent
                    .get(&subject)
                    .map_or(now, |read| read.saturating_add(self.rules.window));
                self.wait_until(&subject, at.max(now));
            }
        }
    }

    /// When there may be something to read that nobody tells of; `None` where everything waits for somebody.
    #[must_use]
    pub fn wake_at(&self) -> Option<i64> {
        let due = self.due.next_at();
        let first = due.into_iter().chain(self.queue.next_held()).min();
        let in_line = (!self.queue.is_empty()).then_some(self.pause.until);
        first.map(|at| at.max(self.pause.until)).into_iter().chain(in_line).min()
    }

    /// Whether there is a read to begin.
    #[must_use]
    pub fn has_reads(&self, now: i64) -> bool {
        let is_due = self.due.next_at().is_some_and(|at| at <= now);
        now >= self.pause.until && (is_due || !self.queue.is_empty())
    }

    /// The next read to begin, if there is one: the companies take turns. It is under way until [`Scheduler::read`] tells of it.
    pub fn next_read(&mut self, companies: &dyn Companies, now: i64) -> Option<NextRead> {
        if now < self.pause.until {
            return None;
        }
        while let Some(subject) = self.due.pop(now) {
            if let Some(record) = self.records.get_mut(&subject) {
                record.state = State::Queued;
                self.queue.push(subject, now);
            }
        }
        while let Some(subject) = self.queue.pop(now) {
            let Some(record) = self.records.get_mut(&subject) else {
                self.queue.ended(&subject.company, now);
                continue;
            };
            // A company that is deleted is not listed: its own record is asked for all the same.
            let is_own = subject.resource == AccountingResource::Companies;
            let needs_company = subject.in_company || (is_own && record.wants.deleted.is_none());
            let state = if needs_company { companies.state(&subject.company) } else { CompanyState::Known };
            if state == CompanyState::Known {
                record.state = State::Reading { asked_at: now, later: Vec::new() };
                let looks_back = record.wants.looks_back || record.is_suspected();
                let priority = match record.wants.event.origin {
                    Origin::Snapshot => api::Priority::Snapshot,
                    _ if looks_back => api::Priority::Repair,
                    Origin::Repair => api::Priority::Repair,
                    Origin::Webhook | Origin::Enrichment => api::Priority::Webhook,
                };
                let (trace, is_delete) = (record.wants.event.trace, record.wants.deleted.is_some());
                self.history.recent.note(&subject, now, self.rules.window);
                return Some(NextRead { subject, priority, trace, is_delete });
            }
            self.queue.ended(&subject.company, now);
            self.without_company(&subject, state, companies, now);
        }
        None
    }

    /// Its company is not one of those that can be read, as far as is known.
    fn without_company(
        &mut self,
        subject: &Subject,
        state: CompanyState,
        companies: &dyn Companies,
        now: i64,
    ) {
        let Some(record) = self.records.get(subject) else { return };
        match state {
            // A company may be told of before a list shows it.
            CompanyState::Absent { since }
                if since > record.wants.since.saturating_add(self.rules.parked_first) =>
            {
                let what = "the list of companies, read twice some time after the event came, does not show its company";
                self.give_up(subject, "enrich::Foreign", what, Outcome::Foreign, None, Vec::new());
            }
            // The list is being read, and mostly soon: nothing else is waited for. Where it is not, the offset moves on.
            CompanyState::Unread => {
                companies.ask();
                if record.is_late(now, self.rules.park_after) {
                    let due = now.saturating_add(self.rules.parked_first);
                    self.park(subject, Cause::Company, due, Vec::new());
                } else {
                    self.wait_until(subject, now.saturating_add(self.rules.retry_first));
                }
            }
            CompanyState::Absent { .. } | CompanyState::Known => {
                companies.ask();
                self.again(subject, Cause::Company, "its company is not known", Vec::new(), now);
            }
        }
    }

    /// A record is parked from now on, or again: maybe for an event this time.
    fn count_parked(&mut self, subject: &Subject, was_parked: bool) {
        self.parked.all += usize::from(!was_parked);
        let Some(record) = self.records.get_mut(subject) else { return };
        let is_event = record.wants.event.origin == Origin::Enrichment;
        if let Some(parked) = record.parked.as_mut().filter(|parked| is_event && !parked.is_counted) {
            parked.is_counted = true;
            self.parked.by_events += 1;
            *self.parked.by_company.entry(subject.company.clone()).or_default() += 1;
        }
    }

    /// A record that was parked is no more.
    fn forget_parked(&mut self, company: &CompanyId, was_counted: bool) {
        self.parked.all = self.parked.all.saturating_sub(1);
        if !was_counted {
            return;
        }
        self.parked.by_events = self.parked.by_events.saturating_sub(1);
        if let hash_map::Entry::Occupied(mut count) = self.parked.by_company.entry(company.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn wait_until(&mut self, subject: &Subject, at: i64) {
        if let Some(record) = self.records.get_mut(subject) {
            record.state = self.due.insert(subject, at);
        }
    }
}
