//! What follows from a read: something is published, it is read again, it waits in the state topic, or it is given up.

use std::collections::HashMap;

use bytes::Bytes;

use model::{CompanyId, GapCause, Origin, Stamp};
use provider::api;

use super::{AfterCommit, Blocked, ReadContext, Scheduler};
use crate::{
    publish::{Failure, PublishStage},
    records::schedule::{
        Cause, Change, Content, Entry, Event, GapFound, Outcome, Rules, Subject, grown,
        judge::{self, Judge, ReadVerdict},
        pending::Late,
    },
};

/// A brake counts what was deleted in this time.
const DAY: i64 = 86_400_000_000;
/// One in so many of those that may be parked may be of one company; and of those that only wait for their turn.
const SHARE: usize = 8;
const BUSY_SHARE: usize = 2;

impl Scheduler {
    /// What a read has brought, and what is known around it.
    ///
    /// # Errors
    /// It needs a person; nothing was given up.
    pub fn read(
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
            // The provider did not go back: reads that show less begin to count anew.
            record.doubt.not_below();
        }
        let is_found = reading.is_ok();
        let path_answers = path_answers || self.history.paths.contains(&subject.resource);
        let judge = Judge { subject, record, stored, path_answers, rules: &self.rules, now };
        let verdict = judge.judge(reading);
        let later = record.take_later();
        let mut blocked = None;
        if is_found {
            record.doubt.gone_since = None;
            self.path_answers(subject);
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
                    // Newer than what was published, and not what the event tells of: it is published as what it is, and
                    // read again.
                    self.output.report.stale_reads += 1;
                    self.again(subject, Cause::Floor, judge::LATE, changes, now);
                }
            }
            ReadVerdict::Confirm { change, at } => {
                self.confirm(subject, change.map(|change| *change), at, now)
            }
            ReadVerdict::Settled(outcome) => self.settle(subject, Vec::new(), outcome),
            ReadVerdict::Again(cause, why) => {
                self.output.report.stale_reads += u64::from(cause == Cause::Floor);
                self.again(subject, cause, &why, Vec::new(), now);
            }
            ReadVerdict::Below => self.suspect(subject, now),
            ReadVerdict::Gone => {
                if let Some(record) = self.records.get_mut(subject) {
                    record.doubt.gone_since = Some(now);
                }
                let due = now.saturating_add(self.rules.tombstone_confirm);
                self.park(subject, Cause::Gone, due, Vec::new());
            }
            ReadVerdict::Deleted(stamp) => self.delete(subject, stamp, entries, now),
            ReadVerdict::Unusable(class, message) => {
                let gap = Some(GapCause::Unreadable);
                self.give_up(subject, class, &message, Outcome::DeadLettered, gap, Vec::new());
            }
            ReadVerdict::Company { why, wait } => {
                let Rules { retry_first, retry_longest, .. } = self.rules;
                self.queue.hold(&subject.company, wait, retry_first, retry_longest, now);
                self.again(subject, Cause::Unreadable, &why, Vec::new(), now);
            }
            ReadVerdict::Everything { why, wait, may_be_alone } => {
                if may_be_alone && self.is_alone(subject, answers, now) {
                    self.again(subject, Cause::Unreadable, &why, Vec::new(), now);
                } else {
                    self.hold(subject, wait, now);
                }
            }
            ReadVerdict::Blocked(error) => {
                self.wait_until(subject, now);
                blocked = Some(Blocked(*error));
            }
        }
        // Events without a version that came during the read need another one.
        for Late { wanted, event, settle } in later {
            self.want(wanted, event, settle, stored, now);
        }
        blocked.map_or(Ok(()), Err)
    }

    /// Whether a record fails alone: others have been answered since it has failed last, here or elsewhere.
    fn is_alone(&mut self, subject: &Subject, elsewhere: u64, now: i64) -> bool {
        // Those of this scheduler may count twice: all that matters is whether there are more than before.
        let answers = self.history.answers.saturating_add(elsewhere);
        let Some(record) = self.records.get_mut(subject) else { return false };
        record.tries.failed(answers, self.rules.parked_longest, now)
    }

    /// Nothing can be read for now.
    fn hold(&mut self, subject: &Subject, wait: Option<i64>, now: i64) {
        // Others that were under way meanwhile say the same.
        if now >= self.pause.until {
            self.pause.count = self.pause.count.saturating_add(1);
            let backoff = grown(self.rules.retry_first, self.rules.retry_longest, self.pause.count);
            self.pause.until = now.saturating_add(wait.unwrap_or(backoff).max(1));
        }
        self.wait_until(subject, self.pause.until);
    }

    /// That the path of a resource answers is written once.
    fn path_answers(&mut self, subject: &Subject) {
        if let Some(record) = self.records.get(subject)
            && self.history.paths.insert(subject.resource)
        {
            let changes = vec![Change::Path(subject.resource)];
            let event = Event::clone(&record.wants.event);
            self.output.ready.push_back((Entry::new(None, event, changes, Vec::new()), Vec::new(), None));
        }
    }

    /// A read shows less than was published, and so do the events: the provider may have gone back.
    fn suspect(&mut self, subject: &Subject, now: i64) {
        let due = now.saturating_add((self.rules.epoch_confirm / 4).max(1));
        let Some(record) = self.records.get_mut(subject) else { return };
        record.doubt.below_reads = record.doubt.below_reads.saturating_add(1);
        let is_new = record.doubt.below_since.is_none();
        if is_new {
            record.doubt.below_since = Some(now);
        }
        if is_new || record.is_late(now, self.rules.park_after) {
            self.park(subject, Cause::Below, due, Vec::new());
        } else {
            self.wait_until(subject, due);
        }
    }

    /// All events of a record have become something.
    fn settle(&mut self, subject: &Subject, changes: Vec<Change>, outcome: Outcome) {
        let Some(record) = self.records.get_mut(subject) else { return };
        record.begin_settling();
        let mut changes = changes;
        if record.parked.is_some() {
            changes.push(Change::Unpark);
        }
        let settled = record.take_tickets();
        self.holding -= usize::from(!settled.is_empty());
        // An event that was parked is told once more by what becomes of it; the others joined.
        let count = settled.len() + usize::from(record.is_counted());
        let outcomes = (0..count).map(|at| if at == 0 { outcome } else { Outcome::Coalesced }).collect();
        let mut entry =
            Entry::new(Some(subject.clone()), Event::clone(&record.wants.event), changes, outcomes);
        entry.first_at = record.wants.first_at;
        self.output.ready.push_back((entry, settled, Some(AfterCommit::End)));
    }

    /// A read was not enough, or there was none: a little later, or parked, or given up. `changes` are what it has come to all the
    /// same.
    pub(super) fn again(
        &mut self,
        subject: &Subject,
        cause: Cause,
        why: &str,
        changes: Vec<Change>,
        now: i64,
    ) {
        let rules = &self.rules;
        let Some(record) = self.records.get_mut(subject) else { return };
        // For as long as nobody was answered, it was not the record that failed.
        let tried = now.saturating_sub(record.wants.since);
        if record.tries.time(tried) >= rules.horizon {
            let (class, gap) = match cause {
                Cause::Floor => ("enrich::FloorUnmet", GapCause::Floor),
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
            (Some(_), None) => grown(rules.parked_first, rules.parked_longest, record.tries.count),
            // A row holds nothing back: after a while it waits as long again as it has waited.
            (None, None) if tried >= rules.park_after => {
                tried.max(rules.parked_first).min(rules.parked_longest)
            }
            // An event holds back its offset, also one of a record that was parked before.
            _ => grown(rules.retry_first, rules.retry_longest, record.tries.count),
        };
        self.write_and_wait(subject, changes, now.saturating_add(wait.max(1)));
    }

    /// A record that does not tell its version is published, if `change` says so, and read once more at `at`.
    fn confirm(&mut self, subject: &Subject, change: Option<Change>, at: i64, now: i64) {
        let Some(record) = self.records.get_mut(subject) else { return };
        record.tries.is_published |= change.is_some();
        let changes = Vec::from_iter(change);
        if record.is_late(now, self.rules.park_after) {
            return self.park(subject, Cause::Busy, at, changes);
        }
        self.write_and_wait(subject, changes, at);
    }

    /// Writes what a read has come to, and has the record read again then.
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

    /// Makes it wait in the state topic, so that its offsets move on.
    pub(super) fn park(&mut self, subject: &Subject, cause: Cause, due: i64, mut changes: Vec<Change>) {
        // One company must not take all the room there is, nor some of them, with what may never be read. What is only waited for,
        // or for a person, is lost if it is given up: where there is no room left for it, its offset waits.
        let share = self.rules.most_parked.div_ceil(SHARE);
        let is_doubtful = matches!(cause, Cause::Floor | Cause::Company | Cause::Unreadable);
        let has_too_much = is_doubtful && self.parked_of(&subject.company) >= share;
        let Some(record) = self.records.get_mut(subject) else { return };
        if record.parked.is_none() && record.wants.event.origin == Origin::Enrichment && has_too_much {
            let why = format!("{share} records of its company wait already; this one because of {cause}");
            let gap = Some(GapCause::Unreadable);
            return self.give_up(subject, "enrich::Unreadable", &why, Outcome::Unreadable, gap, changes);
        }
        record.begin_settling();
        let (was_parked, is_told) = (record.parked.is_some(), record.is_counted());
        changes.push(Change::Park(Box::new(record.park_as(subject, cause, due))));
        let settled = record.take_tickets();
        self.holding -= usize::from(!settled.is_empty());
        // One event is told of again by what becomes of it in the end; the others have joined it.
        let outcome = |at| if at == 0 && !is_told { Outcome::Parked } else { Outcome::Coalesced };
        let outcomes = (0..settled.len()).map(outcome).collect();
        let event = Event::clone(&record.wants.event);
        let entry = Entry::new(Some(subject.clone()), event, changes, outcomes);
        self.output.ready.push_back((entry, settled, Some(AfterCommit::Due(due))));
        self.count_parked(subject, was_parked);
    }

    /// How many records of a company events have parked.
    fn parked_of(&self, company: &CompanyId) -> usize {
        self.parked.by_company.get(company).copied().unwrap_or_default()
    }

    /// Gives its event to the dead letters.
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
            Failure { stage: PublishStage::Read, class, message: why.to_owned(), causes: Vec::new() };
        changes.push(Change::DeadLetter(failure));
        self.output.given_up.push(subject.clone());
        // A list shows its rows again.
        let gap = gap.filter(|_| record.wants.event.origin == Origin::Enrichment);
        changes.extend(gap.map(|cause| Change::Gap(GapFound::of(cause, subject, &record.wants.event, why))));
        self.settle(subject, changes, outcome);
    }

    /// It is gone for good, unless too much is.
    fn delete(&mut self, subject: &Subject, stamp: Stamp, entries: u64, now: i64) {
        let resource = subject.resource;
        let allowed = self.rules.brake_count.max((entries as f64 * self.rules.brake_share) as u64);
        let known = self.brakes.get(&resource).copied();
        // A day on which as many were deleted as may be held nothing back; the next begins anew.
        let known = known.filter(|(since, count)| *count > allowed || since.saturating_add(DAY) > now);
        let (since, count) = known.unwrap_or((now, 0));
        let is_braked = count >= allowed;
        let count = if is_braked { count.max(allowed.saturating_add(1)) } else { count + 1 };
        let is_news = self.brakes.insert(resource, (since, count)) != Some((since, count));
        let brake = is_news.then_some(Change::Brake { resource, since, count });
        if is_braked {
            // It does not let go by itself: a person has to look, and to allow more.
            *self.output.report.braked.entry(resource).or_default() += 1;
            let due = now.saturating_add(self.rules.parked_longest);
            return self.park(subject, Cause::Braked, due, brake.into_iter().collect());
        }
        let changes = [Change::Tombstone { stamp }].into_iter().chain(brake).collect();
        self.settle(subject, changes, Outcome::Deleted);
    }

    /// Events that have held their offsets back for too long while their company had other things to read are parked.
    pub fn park_late(&mut self, now: i64) {
        if now < self.pause.until {
            return;
        }
        let (records, parked, park_after) = (&self.records, &self.parked.by_company, self.rules.park_after);
        // What only waits for its turn can be read: where there is no room for it, it stays in line, and its offset with it.
        let most = self.rules.most_parked.div_ceil(BUSY_SHARE);
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
            self.park(&subject, Cause::Busy, due, Vec::new());
        }
    }
}
