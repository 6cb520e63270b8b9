//! Acts on the answer to a read: publish, retry, park, or give up. Then builds batches, and continues with their records after the commit.

use std::collections::HashMap;

use bytes::Bytes;

use model::{CompanyId, GapCause, Origin, Stamp};
use provider::api;

use super::{AfterCommit, Blocked, ReadContext, Scheduler};
use crate::{
    publish::{PublishFailure, PublishStage},
    records::schedule::{
        Batch, Change, Content, Entry, Event, GapFound, Outcome, ParkCause, Rules, Subject, doubled_delay,
        judge::{self, Judge, ReadVerdict},
        pending::Late,
    },
};

/// Period over which the brake counts deletions, in microseconds.
const BRAKE_PERIOD: i64 = 86_400_000_000;
/// One company may use 1/8 of [`Rules::most_parked`] for records that may never be readable.
const PARKED_COMPANY_SHARE: usize = 8;
/// One company may use 1/2 of [`Rules::most_parked`] for records that only wait for their turn.
const QUEUED_COMPANY_SHARE: usize = 2;

impl Scheduler {
    /// Takes the answer to a read.
    ///
    /// # Errors
    /// An operator has to act; nothing was given up.
    pub fn take_answer(
        &mut self,
        subject: &Subject,
        reading: Result<Bytes, api::Error>,
        context: ReadContext<'_>,
        now: i64,
    ) -> Result<(), Blocked> {
        let ReadContext { stored, entries, answers, row, path_answers } = context;
        self.queue.ended(&subject.company, now);
        let Some(record) = self.records.get_mut(subject) else { return Ok(()) };
        if row.is_some_and(|row| record.is_contradicted(row, stored)) {
            // A list row shows the published version, so there is no version regression.
            record.doubt.clear_regression();
        }
        let is_found = reading.is_ok();
        let path_answers = path_answers || self.history.paths.contains(&subject.resource);
        let judge = Judge { subject, record, stored, path_answers, rules: &self.rules, now };
        let verdict = judge.judge(reading);
        let later = record.take_later();
        let mut blocked = None;
        if is_found {
            record.doubt.gone_since = None;
        }
        // A path that answers with another record or with an unreadable one proves nothing about a later 404.
        if is_found
            && !matches!(verdict, ReadVerdict::Again(ParkCause::Unreadable, _) | ReadVerdict::Unusable(..))
        {
            self.remember_path(subject);
        }
        if !matches!(
            verdict,
            ReadVerdict::Everything { .. } | ReadVerdict::Company { .. } | ReadVerdict::Blocked(_)
        ) {
            (self.pause.count, self.history.answers) = (0, self.history.answers + 1);
            self.queue.answered(&subject.company);
            if let Some(record) = self.records.get_mut(subject) {
                record.tries.answered();
            }
        }
        match verdict {
            ReadVerdict::Publish { value, stamp, is_met, size, over } => {
                let value = Content::Value(value);
                let changes = vec![Change::Publish { value, stamp, size, over }];
                if is_met {
                    self.settle(subject, changes, Outcome::Published);
                } else {
                    // Newer than the published version but older than the event: publish it and read again.
                    self.output.report.stale_reads += 1;
                    self.retry_later(subject, ParkCause::Floor, judge::BEHIND_EVENT, changes, now);
                }
            }
            ReadVerdict::Confirm { change, at } => {
                self.confirm(subject, change.map(|change| *change), at, now)
            }
            ReadVerdict::Settled(outcome) => self.settle(subject, Vec::new(), outcome),
            ReadVerdict::Again(cause, why) => {
                self.output.report.stale_reads += u64::from(cause == ParkCause::Floor);
                self.retry_later(subject, cause, &why, Vec::new(), now);
            }
            ReadVerdict::Below => self.suspect(subject, now),
            ReadVerdict::Gone => {
                if let Some(record) = self.records.get_mut(subject) {
                    record.doubt.gone_since = Some(now);
                }
                let due = now.saturating_add(self.rules.tombstone_confirm);
                self.park(subject, ParkCause::Gone, due, Vec::new());
            }
            ReadVerdict::Deleted(stamp) => self.delete(subject, stamp, entries, now),
            ReadVerdict::Unusable(class, message) => {
                let gap = Some(GapCause::Unreadable);
                self.give_up(subject, class, &message, Outcome::DeadLettered, gap, Vec::new());
            }
            ReadVerdict::Company { why, wait } => {
                let Rules { retry_first, retry_longest, .. } = self.rules;
                self.queue.hold(&subject.company, wait, retry_first, retry_longest, now);
                self.retry_later(subject, ParkCause::Unreadable, &why, Vec::new(), now);
            }
            ReadVerdict::Everything { why, wait, may_be_alone } => {
                if may_be_alone && self.is_alone(subject, answers, now) {
                    self.retry_later(subject, ParkCause::Unreadable, &why, Vec::new(), now);
                } else {
                    self.pause_reads(subject, wait, now);
                }
            }
            ReadVerdict::Blocked(error) => {
                self.wait_until(subject, now);
                blocked = Some(Blocked(*error));
            }
        }
        // Events without a version that arrived during the read need a later one.
        for Late { wanted, event, settle } in later {
            self.take_wanted(wanted, event, settle, stored, now);
        }
        blocked.map_or(Ok(()), Err)
    }

    /// Whether a record fails alone: other reads, here or elsewhere, were answered since its last failure.
    fn is_alone(&mut self, subject: &Subject, elsewhere: u64, now: i64) -> bool {
        // Answers to this scheduler may count twice; only growth matters.
        let answers = self.history.answers.saturating_add(elsewhere);
        let Some(record) = self.records.get_mut(subject) else { return false };
        record.tries.failed(answers, self.rules.parked_longest, now)
    }

    /// Pauses all reads, because the provider seems to be down.
    fn pause_reads(&mut self, subject: &Subject, wait: Option<i64>, now: i64) {
        // Concurrent reads report the same outage: it counts once.
        if now >= self.pause.until {
            self.pause.count = self.pause.count.saturating_add(1);
            let backoff = doubled_delay(self.rules.retry_first, self.rules.retry_longest, self.pause.count);
            self.pause.until = now.saturating_add(wait.unwrap_or(backoff).max(1));
        }
        self.wait_until(subject, self.pause.until);
    }

    /// Writes once that the by-id path of a resource works.
    fn remember_path(&mut self, subject: &Subject) {
        if let Some(record) = self.records.get(subject)
            && self.history.paths.insert(subject.resource)
        {
            let changes = vec![Change::Path(subject.resource)];
            let event = Event::clone(&record.wants.event);
            self.output.ready.push_back((Entry::new(None, event, changes, Vec::new()), Vec::new(), None));
        }
    }

    /// Handles an answer that is below the published version like the events: a version regression is suspected.
    fn suspect(&mut self, subject: &Subject, now: i64) {
        let due = now.saturating_add((self.rules.epoch_confirm / 4).max(1));
        let Some(record) = self.records.get_mut(subject) else { return };
        record.doubt.below_reads = record.doubt.below_reads.saturating_add(1);
        let is_new = record.doubt.below_since.is_none();
        if is_new {
            record.doubt.below_since = Some(now);
        }
        if is_new || record.is_late(now, self.rules.park_after) {
            self.park(subject, ParkCause::Below, due, Vec::new());
        } else {
            self.wait_until(subject, due);
        }
    }

    /// Settles all events of a record.
    fn settle(&mut self, subject: &Subject, changes: Vec<Change>, outcome: Outcome) {
        let Some(record) = self.records.get_mut(subject) else { return };
        record.begin_settling();
        let mut changes = changes;
        if record.parked.is_some() {
            changes.push(Change::Unpark);
        }
        let settled = record.take_tickets();
        self.open.holding -= usize::from(!settled.is_empty());
        // A parked event gets its final outcome here; the other events have joined it.
        let count = settled.len() + usize::from(record.is_counted());
        let outcomes = (0..count).map(|at| if at == 0 { outcome } else { Outcome::Coalesced }).collect();
        let mut entry =
            Entry::new(Some(subject.clone()), Event::clone(&record.wants.event), changes, outcomes);
        entry.first_at = record.wants.first_at;
        self.output.ready.push_back((entry, settled, Some(AfterCommit::End)));
    }

    /// Repeats a read after a backoff, or parks or gives up the record. `changes` are written in any case.
    pub(super) fn retry_later(
        &mut self,
        subject: &Subject,
        cause: ParkCause,
        why: &str,
        changes: Vec<Change>,
        now: i64,
    ) {
        let rules = &self.rules;
        let Some(record) = self.records.get_mut(subject) else { return };
        // Time in which no other read was answered does not count toward the horizon.
        let tried = now.saturating_sub(record.wants.since);
        if record.tries.time(tried) >= rules.horizon {
            let (class, gap) = match cause {
                ParkCause::Floor => ("enrich::FloorUnmet", GapCause::Floor),
                _ => ("enrich::Unreadable", GapCause::Unreadable),
            };
            return self.give_up(subject, class, why, Outcome::Unreadable, Some(gap), changes);
        }
        if record.is_late(now, rules.park_after) {
            record.tries.count = 0;
            let due = now.saturating_add(rules.parked_first);
            return self.park(subject, cause, due, changes);
        }
        record.tries.count = record.tries.count.saturating_add(1);
        let wait = match (&record.parked, record.oldest()) {
            (Some(_), None) => doubled_delay(rules.parked_first, rules.parked_longest, record.tries.count),
            // A row holds no offset back: after the first retries each wait is as long as the time since the request.
            (None, None) if tried >= rules.park_after => {
                tried.max(rules.parked_first).min(rules.parked_longest)
            }
            // An event that holds back its offset gets short backoffs, even if its record was parked before.
            _ => doubled_delay(rules.retry_first, rules.retry_longest, record.tries.count),
        };
        self.write_and_wait(subject, changes, now.saturating_add(wait.max(1)));
    }

    /// Publishes `change` of a record without a version, and reads it once more at `at`.
    fn confirm(&mut self, subject: &Subject, change: Option<Change>, at: i64, now: i64) {
        let Some(record) = self.records.get_mut(subject) else { return };
        record.tries.is_published |= change.is_some();
        let changes = Vec::from_iter(change);
        if record.is_late(now, self.rules.park_after) {
            return self.park(subject, ParkCause::Busy, at, changes);
        }
        self.write_and_wait(subject, changes, at);
    }

    /// Writes `changes`, and reads the record again at `at`.
    fn write_and_wait(&mut self, subject: &Subject, changes: Vec<Change>, at: i64) {
        if changes.is_empty() {
            return self.wait_until(subject, at);
        }
        let Some(record) = self.records.get_mut(subject) else { return };
        record.begin_settling();
        let mut entry =
            Entry::new(Some(subject.clone()), Event::clone(&record.wants.event), changes, Vec::new());
        entry.first_at = record.wants.first_at.filter(|_| record.tries.is_published);
        self.output.ready.push_back((entry, Vec::new(), Some(AfterCommit::Due(at))));
    }

    /// Parks a record in the state topic, so that its offsets move on.
    pub(super) fn park(&mut self, subject: &Subject, cause: ParkCause, due: i64, mut changes: Vec<Change>) {
        // One company, or a few, must not use all parking space for records that may never be readable. Records that only wait for a
        // confirmation, their turn or an operator are never given up: without space, their offset waits.
        let share = self.rules.most_parked.div_ceil(PARKED_COMPANY_SHARE);
        let is_doubtful = matches!(cause, ParkCause::Floor | ParkCause::Company | ParkCause::Unreadable);
        let has_too_much = is_doubtful && self.parked_of(&subject.company) >= share;
        let Some(record) = self.records.get_mut(subject) else { return };
        if record.parked.is_none() && record.wants.event.origin == Origin::Enrichment && has_too_much {
            let why = format!("{share} records of its company wait already; this one because of {cause}");
            let gap = Some(GapCause::Unreadable);
            return self.give_up(subject, "enrich::Unreadable", &why, Outcome::Unreadable, gap, changes);
        }
        record.begin_settling();
        let (was_parked, was_counted) = (record.parked.is_some(), record.is_counted());
        changes.push(Change::Park(Box::new(record.park_as(subject, cause, due))));
        let settled = record.take_tickets();
        self.open.holding -= usize::from(!settled.is_empty());
        // One parked event gets a final outcome later; the others have joined it.
        let outcome = |at| if at == 0 && !was_counted { Outcome::Parked } else { Outcome::Coalesced };
        let outcomes = (0..settled.len()).map(outcome).collect();
        let event = Event::clone(&record.wants.event);
        let entry = Entry::new(Some(subject.clone()), event, changes, outcomes);
        self.output.ready.push_back((entry, settled, Some(AfterCommit::Due(due))));
        self.count_parked(subject, was_parked);
    }

    /// Records of a company that events have parked.
    fn parked_of(&self, company: &CompanyId) -> usize {
        self.open.by_company.get(company).copied().unwrap_or_default()
    }

    /// Writes the event to the dead letters and stops reading its record.
    pub(super) fn give_up(
        &mut self,
        subject: &Subject,
        class: &'static str,
        why: &str,
        outcome: Outcome,
        gap: Option<GapCause>,
        mut changes: Vec<Change>,
    ) {
        let Some(record) = self.records.get(subject) else { return };
        let failure =
            PublishFailure { stage: PublishStage::Read, class, message: why.to_owned(), causes: Vec::new() };
        changes.push(Change::DeadLetter(failure));
        self.output.given_up.push(subject.clone());
        // Rows of lists open no gap: a list shows the row again.
        let gap = gap.filter(|_| record.wants.event.origin == Origin::Enrichment);
        changes.extend(gap.map(|cause| Change::Gap(GapFound::of(cause, subject, &record.wants.event, why))));
        self.settle(subject, changes, outcome);
    }

    /// Publishes a tombstone, unless the brake holds it back.
    fn delete(&mut self, subject: &Subject, stamp: Stamp, entries: u64, now: i64) {
        let resource = subject.resource;
        let allowed = self.rules.brake_count.max((entries as f64 * self.rules.brake_share) as u64);
        let known = self.brakes.get(&resource).copied();
        // A count up to the limit expires after a day. A count above the limit stays until an operator raises it.
        let known =
            known.filter(|(since, count)| *count > allowed || since.saturating_add(BRAKE_PERIOD) > now);
        let (since, count) = known.unwrap_or((now, 0));
        let is_braked = count >= allowed;
        let count = if is_braked { count.max(allowed.saturating_add(1)) } else { count + 1 };
        let is_news = self.brakes.insert(resource, (since, count)) != Some((since, count));
        let brake = is_news.then_some(Change::Brake { resource, since, count });
        if is_braked {
            // Only an operator can release it, by allowing more deletions.
            *self.output.report.braked.entry(resource).or_default() += 1;
            let due = now.saturating_add(self.rules.parked_longest);
            return self.park(subject, ParkCause::Braked, due, brake.into_iter().collect());
        }
        let changes = [Change::Tombstone { stamp }].into_iter().chain(brake).collect();
        self.settle(subject, changes, Outcome::Deleted);
    }

    /// Parks queued records that have held back their offset for too long.
    pub fn park_late(&mut self, now: i64) {
        if now < self.pause.until {
            return;
        }
        let (records, parked, park_after) = (&self.records, &self.open.by_company, self.rules.park_after);
        // Queued records are readable. Without parking space they stay queued and hold back their offset.
        let most = self.rules.most_parked.div_ceil(QUEUED_COMPANY_SHARE);
        let mut taken: HashMap<CompanyId, usize> = HashMap::new();
        let late = |subject: &Subject| {
            let Some(record) = records.get(subject).filter(|record| record.is_late(now, park_after)) else {
                return false;
            };
            let known = parked.get(&subject.company).copied().unwrap_or_default();
            let taken = taken.entry(subject.company.clone()).or_default();
            let has_room = record.parked.is_some() || known + *taken < most;
            *taken += usize::from(has_room && record.parked.is_none());
            has_room
        };
        for subject in self.queue.take_out(late) {
            let due = now.saturating_add(self.rules.retry_longest);
            self.park(&subject, ParkCause::Busy, due, Vec::new());
        }
    }
}

/// Batches, and what follows from their commit.
impl Scheduler {
    /// Number of entries that are ready to be committed.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.output.ready.len()
    }

    /// Takes the next batch: at most `most` entries and, unless one entry exceeds it, at most `weight` bytes. One batch at a time.
    pub fn batch(&mut self, most: usize, weight: usize) -> Batch {
        let mut batch = Batch::default();
        let mut taken = 0;
        while let Some((entry, _, _)) = self.output.ready.front() {
            let heavy = entry.weight();
            if !batch.entries.is_empty() && (batch.entries.len() >= most || taken + heavy > weight) {
                break;
            }
            taken += heavy;
            let Some((entry, settled, after)) = self.output.ready.pop_front() else { break };
            for (resource, ticket) in settled {
                self.offsets.settle(resource, ticket);
            }
            if let (Some(subject), Some(after)) = (&entry.subject, after) {
                self.output.committing.push((subject.clone(), after));
            }
            batch.entries.push(entry);
        }
        batch.offsets = self.offsets.take_settled();
        batch
    }

    /// Continues after the commit of the batch. `refused` are the records that Kafka rejected and that became dead letters; `stored`
    /// reads the fence as of the commit.
    pub fn committed(&mut self, refused: &[Subject], stored: &dyn Fn(&Subject) -> Option<Stamp>, now: i64) {
        for (subject, after) in std::mem::take(&mut self.output.committing) {
            let Some(record) = self.records.get_mut(&subject) else { continue };
            let later = record.take_later();
            match after {
                AfterCommit::Due(at) if !refused.contains(&subject) => {
                    let asks_more = !later.is_empty();
                    for Late { wanted, event, settle } in later {
                        if judge::is_above(wanted.floor.as_ref(), stored(&subject).as_ref()) {
                            // An event above the published version contradicts a regression.
                            record.doubt.clear_regression();
                        }
                        self.open.holding += usize::from(record.join(wanted, event, settle, now));
                    }
                    let (is_held, cause) = (record.oldest().is_some(), record.suspected_cause());
                    // A record published without a version keeps its second read, unless a new request needs an earlier one.
                    let is_urgent = asks_more || is_held && !record.tries.is_published;
                    let soon = now.saturating_add(self.rules.retry_first);
                    match cause.filter(|_| is_held && at > soon) {
                        // Confirming a regression takes long; park it so that the offset moves on.
                        Some(cause) => self.park(&subject, cause, at, Vec::new()),
                        None => self.wait_until(&subject, if is_urgent { at.min(soon) } else { at }),
                    }
                }
                AfterCommit::Due(_) | AfterCommit::End => {
                    let Some(mut record) = self.records.remove(&subject) else { continue };
                    if let Some(parked) = &record.parked {
                        self.forget_parked(&subject.company, parked.is_counted);
                    }
                    // A rejected record settles its remaining events too.
                    let tickets = record.take_tickets();
                    self.open.holding -= usize::from(!tickets.is_empty());
                    for settle in tickets {
                        let event = Event::clone(&record.wants.event);
                        self.settle_event(event, Some(settle), Vec::new(), Outcome::Coalesced);
                    }
                    let stored = stored(&subject);
                    for Late { wanted, event, settle } in later {
                        self.take_wanted(wanted, event, settle, stored.as_ref(), now);
                    }
                }
            }
        }
    }
}
