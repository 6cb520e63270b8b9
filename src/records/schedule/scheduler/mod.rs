//! The records that one shard has to read, and their events.

mod after_read;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque, hash_map};

use model::{AccountingResource, CompanyId, Origin, Stamp, Traceparent};
use provider::api;

use super::{
    Change, Companies, CompanyState, Entry, Event, Outcome, ParkCause, Parked, ReadRequest, Rules, Subject,
    Wanted, judge,
    offsets::Offsets,
    pending::{LastTimes, Late, ListedVersion, PendingRecord, State, TopicTicket},
    queue::FairQueue,
};
use crate::publish::{PublishFailure, PublishStage};

/// Open offsets per record of [`Rules::most_open`]: several events join one read.
const OFFSETS_PER_RECORD: usize = 10;

/// A read to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRead {
    /// The record to read.
    pub subject: Subject,
    /// Priority at the provider: lower for reads of snapshots and for checks for a version regression.
    pub priority: api::Priority,
    /// Trace of the event that caused it.
    pub trace: Option<Traceparent>,
    /// Whether an event reports a delete; then the source of a "not found" answer matters.
    pub is_delete: bool,
}

/// Context of an answered read.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadContext<'a> {
    /// Current fence entry of the record.
    pub stored: Option<&'a Stamp>,
    /// Records of its resource in this shard.
    pub entries: u64,
    /// Number of provider answers to other readers. It only grows, and may include answers to this scheduler.
    pub answers: u64,
    /// The last list row that shows the record, if known.
    pub row: Option<&'a ListedVersion>,
    /// Whether the by-id path of its resource is known to work from elsewhere.
    pub path_answers: bool,
}

/// The error that stops a shard until an operator acts.
#[derive(Debug)]
pub struct Blocked(pub api::Error);

/// What to do with a record after its batch was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterCommit {
    /// Remove it.
    End,
    /// Read it again at this time.
    Due(i64),
}

/// The pending records of one shard, the offsets that they hold back, and the entries that wait for a batch.
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
    open: OpenCounts,
    history: ReadHistory,
    /// Deletions by resource: start of the count, and number.
    brakes: BTreeMap<AccountingResource, (i64, u64)>,
}

/// Waiting records by due time.
#[derive(Debug, Default)]
struct DueQueue {
    waiting: BTreeMap<(i64, u64), Subject>,
    /// Separates records that are due at the same time.
    number: u64,
}

impl DueQueue {
    /// When the first record is due.
    fn next_at(&self) -> Option<i64> {
        self.waiting.keys().next().map(|(at, _)| *at)
    }

    /// Adds a record and returns its state.
    fn insert(&mut self, subject: &Subject, at: i64) -> State {
        self.number += 1;
        self.waiting.insert((at, self.number), subject.clone());
        State::Due { at, number: self.number }
    }

    fn remove(&mut self, at: i64, number: u64) {
        self.waiting.remove(&(at, number));
    }

    /// Takes the first record that is due.
    fn pop(&mut self, now: i64) -> Option<Subject> {
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

/// The pause of all reads during an outage.
#[derive(Debug)]
struct Pause {
    until: i64,
    /// Consecutive pauses, for the backoff.
    count: u32,
}

/// Decisions that the caller has not taken or committed yet.
#[derive(Debug, Default)]
struct SchedulerOutput {
    /// Entries for the next batches, with the offsets that they settle.
    ready: VecDeque<(Entry, Vec<TopicTicket>, Option<AfterCommit>)>,
    /// Records of the batch in flight.
    committing: Vec<(Subject, AfterCommit)>,
    report: SchedulerReport,
    /// Records that were given up, for the lists that asked for them.
    given_up: Vec<Subject>,
}

/// Numbers of records that are not settled.
#[derive(Debug, Default)]
struct OpenCounts {
    /// Records that hold back offsets.
    holding: usize,
    /// Parked records.
    parked: usize,
    /// Parked by events.
    by_events: usize,
    /// Parked by events, by company.
    by_company: HashMap<CompanyId, usize>,
}

/// Facts about past reads.
#[derive(Debug, Default)]
struct ReadHistory {
    /// Reads with any answer at all. A record that fails while this grows fails alone.
    answers: u64,
    /// Last reads, for [`Rules::window`].
    recent: LastTimes,
    /// Last checks for a version regression, for [`Rules::regression_check_every`].
    checked: LastTimes,
    /// Resources whose by-id path has returned a record.
    paths: BTreeSet<AccountingResource>,
}

/// Counts since the last report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SchedulerReport {
    /// Reads that returned an older version than their events report.
    pub stale_reads: u64,
    /// Deletes that the brake held back, by resource.
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
            open: OpenCounts::default(),
            history: ReadHistory::default(),
            brakes: BTreeMap::new(),
        }
    }

    /// Adds a record that a previous owner of the shard parked.
    pub fn adopt(&mut self, parked: Parked) {
        let due = parked.due;
        let (subject, record) = PendingRecord::adopted(parked);
        self.records.insert(subject.clone(), record);
        self.count_parked(&subject, false);
        self.wait_until(&subject, due);
    }

    /// Requests a read by id for a list: a row shows a newer version, or a record without a version has other content. The request is not
    /// durable: its page is not marked as read until it is settled, so the next owner reads that page again.
    pub fn request(&mut self, wanted: Wanted, event: Event, stored: Option<&Stamp>, now: i64) {
        self.take_wanted(wanted, event, None, stored, now);
    }

    /// Whether reads of a record have shown an older version than the published one.
    #[must_use]
    pub fn is_suspected(&self, subject: &Subject) -> bool {
        self.records.get(subject).is_some_and(|record| record.is_suspected())
    }

    /// Clears the suspicion of a version regression, because a list row shows the published version.
    pub fn clear_regression(&mut self, subject: &Subject) {
        let Some(record) = self.records.get_mut(subject).filter(|record| record.is_suspected()) else {
            return;
        };
        record.doubt.clear_regression();
        match (&record.state, &record.parked) {
            // The next owner of the shard must not adopt the suspicion.
            (&State::Due { at, number }, Some(parked)) => {
                let cause = parked.cause;
                self.due.remove(at, number);
                self.park(subject, cause, at, Vec::new());
            }
            (State::Settling { .. }, _) => {
                let own = self.output.ready.iter_mut().map(|(entry, ..)| entry);
                own.filter(|entry| entry.subject.as_ref() == Some(subject)).for_each(Entry::clear_regression);
            }
            // The next write of its state includes the change.
            (State::Due { .. } | State::Queued | State::Reading { .. }, _) => {}
        }
    }

    /// Whether a list has to wait for a record that one of its rows asked for. It does not wait for a suspected record: its row is
    /// published already, and confirming a regression may take hours.
    #[must_use]
    pub fn owes(&self, subject: &Subject) -> bool {
        self.records.get(subject).is_some_and(|record| !record.is_suspected() || record.has_late_row())
    }

    /// Schedules a check for a version regression, at most every [`Rules::regression_check_every`], because a list row shows an older
    /// version than the published one. It is not persisted: the next reading of the list shows the row again.
    pub fn check_regression(&mut self, wanted: Wanted, event: Event, now: i64) {
        let subject = wanted.subject.clone();
        let may_check = self
            .history
            .checked
            .get(&subject)
            .is_none_or(|at| at.saturating_add(self.rules.regression_check_every) <= now);
        let (open, _) = self.counts();
        if !may_check || open >= self.rules.most_open || self.records.contains_key(&subject) {
            return;
        }
        self.history.checked.note(&subject, now, self.rules.regression_check_every);
        self.records.insert(subject.clone(), PendingRecord::new(wanted, event, None, true, now));
        self.wait_until(&subject, now);
    }

    /// Adds a by-id path that returned a record for a previous owner.
    pub fn adopt_path(&mut self, resource: AccountingResource) {
        self.history.paths.insert(resource);
    }

    /// Whether the by-id path of a resource has returned a record.
    #[must_use]
    pub fn knows_path(&self, resource: AccountingResource) -> bool {
        self.history.paths.contains(&resource)
    }

    /// Restores the deletion count of a resource.
    pub fn adopt_brake(&mut self, resource: AccountingResource, since: i64, count: u64) {
        self.brakes.insert(resource, (since, count));
    }

    /// Whether no more events may be passed to [`Scheduler::take`].
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open.holding + self.output.ready.len() >= self.rules.most_open
            || self.open.by_events >= self.rules.most_parked
            || self.offsets.open_positions() >= OFFSETS_PER_RECORD * self.rules.most_open
    }

    /// Numbers of records: not parked, and parked.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.records.len().saturating_sub(self.open.parked), self.open.parked)
    }

    /// Takes the records that were given up since the last call.
    #[must_use]
    pub fn take_given_up(&mut self) -> Vec<Subject> {
        std::mem::take(&mut self.output.given_up)
    }

    /// Takes the counts since the last call.
    pub fn take_report(&mut self) -> SchedulerReport {
        std::mem::take(&mut self.output.report)
    }

    /// When the oldest delivery was received whose offset is held back.
    #[must_use]
    pub fn oldest(&self) -> Option<i64> {
        self.records.values().filter_map(PendingRecord::oldest).min()
    }

    /// Takes the next event of a topic; `next` is the offset after it, `stored` the fence entry of its record.
    pub fn take(
        &mut self,
        resource: AccountingResource,
        next: i64,
        request: ReadRequest,
        event: Event,
        stored: Option<&Stamp>,
        now: i64,
    ) {
        let settle = Some((resource, self.offsets.open(resource, next)));
        match request {
            ReadRequest::Nothing => self.settle_event(event, settle, Vec::new(), Outcome::Filtered),
            ReadRequest::Unusable(class, message) => {
                let failure =
                    PublishFailure { stage: PublishStage::Read, class, message, causes: Vec::new() };
                self.settle_event(event, settle, vec![Change::DeadLetter(failure)], Outcome::DeadLettered);
            }
            ReadRequest::Wanted(wanted) => self.take_wanted(wanted, event, settle, stored, now),
            ReadRequest::Lost(gap) => {
                let entry = Entry::new(None, event, vec![Change::Gap(gap)], Vec::new());
                self.output.ready.push_back((entry, Vec::from_iter(settle), None));
            }
        }
    }

    /// Settles an event; a row has no outcome.
    fn settle_event(
        &mut self,
        event: Event,
        settle: Option<TopicTicket>,
        changes: Vec<Change>,
        outcome: Outcome,
    ) {
        let Some(settle) = settle else { return };
        let entry = Entry::new(None, event, changes, vec![outcome]);
        self.output.ready.push_back((entry, vec![settle], None));
    }

    fn take_wanted(
        &mut self,
        wanted: Wanted,
        event: Event,
        settle: Option<TopicTicket>,
        stored: Option<&Stamp>,
        now: i64,
    ) {
        let subject = wanted.subject.clone();
        match self.records.entry(subject.clone()) {
            hash_map::Entry::Occupied(mut known) => {
                let record = known.get_mut();
                // The answer in flight may predate an event without a version: that event needs the next read.
                let later = match &mut record.state {
                    State::Reading { later, .. } if wanted.floor.is_none() => Some(later),
                    State::Settling { later } => Some(later),
                    _ => None,
                };
                if let Some(later) = later {
                    // After the read or commit it is compared with the result.
                    later.push(Late { wanted, event, settle });
                    return;
                }
                // The parked request covers it, so the offset may move on.
                if record.covers(&wanted) {
                    self.settle_event(event, settle, Vec::new(), Outcome::Coalesced);
                    return;
                }
                let is_above = judge::is_above(wanted.floor.as_ref(), stored);
                self.open.holding += usize::from(record.join(wanted, event, settle, now));
                if is_above {
                    // An event above the published version contradicts a regression.
                    record.doubt.clear_regression();
                }
                // A new event is a reason to read earlier.
                let soon = now.saturating_add(self.rules.retry_first);
                if let State::Due { at, number } = record.state
                    && at > soon
                {
                    let cause = record.suspected_cause();
                    self.due.remove(at, number);
                    match cause {
                        // Confirming a regression takes long; park it so that the offset moves on.
                        Some(cause) => self.park(&subject, cause, at, Vec::new()),
                        None => self.wait_until(&subject, soon),
                    }
                }
            }
            hash_map::Entry::Vacant(place) => {
                let known =
                    stored.and_then(|stored| judge::known(stored, wanted.floor.as_ref(), wanted.is_delete));
                let every = self.rules.regression_check_every;
                // A row may have been published while it waited, which says nothing about a regression.
                let may_check = settle.is_some()
                    && self.history.checked.get(&subject).is_none_or(|at| at.saturating_add(every) <= now);
                if let Some(outcome) = known.filter(|outcome| *outcome == Outcome::Duplicate || !may_check) {
                    self.settle_event(event, settle, Vec::new(), outcome);
                    return;
                }
                self.open.holding += usize::from(settle.is_some());
                place.insert(PendingRecord::new(wanted, event, settle, known.is_some(), now));
                if known.is_some() {
                    self.history.checked.note(&subject, now, every);
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

    /// When to call [`Scheduler::next_read`] again; `None` until the next call that adds work.
    #[must_use]
    pub fn wake_at(&self) -> Option<i64> {
        let due = self.due.next_at();
        let first = due.into_iter().chain(self.queue.next_held()).min();
        let in_line = (!self.queue.is_empty()).then_some(self.pause.until);
        first.map(|at| at.max(self.pause.until)).into_iter().chain(in_line).min()
    }

    /// Whether [`Scheduler::next_read`] may return a read.
    #[must_use]
    pub fn has_reads(&self, now: i64) -> bool {
        let is_due = self.due.next_at().is_some_and(|at| at <= now);
        now >= self.pause.until && (is_due || !self.queue.is_empty())
    }

    /// The next read to start, if any; companies take turns. It is in flight until [`Scheduler::take_answer`] is called with its result.
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
            // A deleted company is not listed, but its own record must be read to confirm the delete.
            let is_own = subject.resource == AccountingResource::Companies;
            let needs_company = subject.in_company || (is_own && record.wants.deleted.is_none());
            let state = if needs_company { companies.state(&subject.company) } else { CompanyState::Known };
            if state == CompanyState::Known {
                record.state = State::Reading { asked_at: now, later: Vec::new() };
                let checks_regression = record.wants.checks_regression || record.is_suspected();
                let priority = match record.wants.event.origin {
                    Origin::Snapshot => api::Priority::Snapshot,
                    _ if checks_regression => api::Priority::Repair,
                    Origin::Repair => api::Priority::Repair,
                    Origin::Webhook | Origin::Enrichment => api::Priority::Webhook,
                };
                let (trace, is_delete) = (record.wants.event.trace, record.wants.deleted.is_some());
                self.history.recent.note(&subject, now, self.rules.window);
                return Some(NextRead { subject, priority, trace, is_delete });
            }
            self.queue.ended(&subject.company, now);
            self.company_unavailable(&subject, state, companies, now);
        }
        None
    }

    /// Handles a record whose company is not known to the list of companies.
    fn company_unavailable(
        &mut self,
        subject: &Subject,
        state: CompanyState,
        companies: &dyn Companies,
        now: i64,
    ) {
        let Some(record) = self.records.get(subject) else { return };
        match state {
            // An event of a new company may arrive before a list shows the company.
            CompanyState::Absent { since }
                if since > record.wants.since.saturating_add(self.rules.parked_first) =>
            {
                let what = "its company is not in the list of companies, which was read again after the event arrived and proved complete";
                self.give_up(subject, "enrich::Foreign", what, Outcome::Foreign, None, Vec::new());
            }
            // The list is usually read soon. If not, park the record so that the offset moves on.
            CompanyState::Unread => {
                companies.ask();
                if record.is_late(now, self.rules.park_after) {
                    let due = now.saturating_add(self.rules.parked_first);
                    self.park(subject, ParkCause::Company, due, Vec::new());
                } else {
                    // Without an offset to hold back it is no hurry: the list may stay unproved for long.
                    let wait = if record.oldest().is_some() {
                        self.rules.retry_first
                    } else {
                        self.rules.parked_first
                    };
                    self.wait_until(subject, now.saturating_add(wait));
                }
            }
            CompanyState::Absent { .. } | CompanyState::Known => {
                companies.ask();
                let why = "its company is not in the list of companies";
                self.retry_later(subject, ParkCause::Company, why, Vec::new(), now);
            }
        }
    }

    /// Counts a parked record, or counts it again if an event asks for it now.
    fn count_parked(&mut self, subject: &Subject, was_parked: bool) {
        self.open.parked += usize::from(!was_parked);
        let Some(record) = self.records.get_mut(subject) else { return };
        let is_event = record.wants.event.origin == Origin::Enrichment;
        if let Some(parked) = record.parked.as_mut().filter(|parked| is_event && !parked.is_counted) {
            parked.is_counted = true;
            self.open.by_events += 1;
            *self.open.by_company.entry(subject.company.clone()).or_default() += 1;
        }
    }

    /// Uncounts a record that is no longer parked.
    fn forget_parked(&mut self, company: &CompanyId, was_counted: bool) {
        self.open.parked = self.open.parked.saturating_sub(1);
        if !was_counted {
            return;
        }
        self.open.by_events = self.open.by_events.saturating_sub(1);
        if let hash_map::Entry::Occupied(mut count) = self.open.by_company.entry(company.clone()) {
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
