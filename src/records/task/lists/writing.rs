//! Adds parts of lists to the batch of their shard, and continues after its commit.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;

use base::{failpoint, metrics};
use model::{
    Difference, Key, List, ListCounts, RunId, RunKind, RunProgress, RunWork, ShardState, Stamp, Version,
};

use super::{
    Active, FORGOTTEN_AT_ONCE, LOOK, ListTotals, Lists, NAMED, PageMark, Part, PartContent, Stage,
    comparing::{Comparing, Finding, Looked},
    job::{Answer, Job},
    rows,
    topic::Holds,
};
use crate::{
    plugin::Failure,
    records::{
        schedule::{Batch, Scheduler, Subject},
        task::{
            draft::Draft,
            micros,
            state::{self, Collection},
        },
    },
};

impl Lists {
    /// Adds waiting parts to a batch: at least one, and then up to `room` bytes.
    ///
    /// # Errors
    /// The local fence database failed.
    pub(in crate::records::task) fn add_to(
        &mut self,
        draft: &mut Draft<'_>,
        scheduler: &Scheduler,
        room: usize,
        now: i64,
    ) -> Result<(), Failure> {
        let mut taken = 0;
        let mut runs: Vec<RunId> = Vec::new();
        while let Some(part) = self.parts.ready.front() {
            if taken > 0 && taken + part.bytes > room {
                break;
            }
            taken += part.bytes;
            let Some(part) = self.parts.ready.pop_front() else { break };
            self.parts.waiting_bytes = self.parts.waiting_bytes.saturating_sub(part.bytes);
            self.add_part(draft, &part, scheduler, now)?;
            if !runs.contains(&part.run) {
                runs.push(part.run.clone());
            }
            self.parts.committing.push(part);
        }
        let forgotten = take_forgotten(&mut self.parts.forgotten, self.parts.ready.is_empty());
        draft.batch.state.extend(forgotten.into_iter().map(|key| (key, None)));
        for run in runs {
            let current: Vec<_> = self.jobs.values().filter(|job| job.run.id == run).collect();
            let current = current.iter().filter_map(|job| job.progress()).take(NAMED).collect();
            let Some(active) = self.runs.get_mut(&run) else { continue };
            (active.progress.times.updated_at, active.progress.current) = (now, current);
            if active.progress.state.is_over() {
                active.progress.current.clear();
            }
            draft.batch.state.push((active.progress.key(), Some(state::json(&active.progress))));
        }
        Ok(())
    }

    /// Adds changed counts of rows. The count of a record that was given up is committed with its dead letter or earlier, so that the
    /// next owner of the shard does not certify the list without it.
    pub(in crate::records::task) fn add_counts(&mut self, batch: &mut Batch) {
        let counted = self.jobs.values_mut().filter_map(|job| job.take_counts(self.shard));
        batch.state.extend(counted.map(|(key, counts)| (key, Some(counts))));
    }

    fn add_part(
        &mut self,
        draft: &mut Draft<'_>,
        part: &Part,
        scheduler: &Scheduler,
        now: i64,
    ) -> Result<(), Failure> {
        let Some(active) = self.runs.get_mut(&part.run) else { return Ok(()) };
        let run = Arc::clone(&active.run);
        let mut shown = Vec::new();
        match &part.what {
            PartContent::State(records) => draft.batch.state.extend(records.iter().cloned()),
            PartContent::Read(mark) => active.count_page(mark, &mut draft.batch),
            PartContent::Record(entry) => {
                let tells_version =
                    !entry.stamp().is_some_and(|stamp| matches!(stamp.version, Version::Content { .. }));
                if !tells_version {
                    self.after.requests.extend(part.job.zip(draft.ask_for(entry)?));
                    return Ok(());
                }
                let suspected = entry.subject.as_ref().filter(|subject| scheduler.is_suspected(subject));
                if let Some(subject) = suspected
                    && draft.reaches(entry)?
                {
                    self.after.cleared.push(subject.clone());
                }
                let before = draft.batch.entries.len();
                draft.add_record((**entry).clone())?;
                let published = (draft.batch.entries.len() - before) as u64;
                active.progress.work.published += published;
                if let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) {
                    job.count(published, 0);
                }
            }
            PartContent::End { certificate, state, totals } => {
                draft.batch.state.extend(state.iter().cloned());
                let requested_at = run.requested_at;
                draft
                    .batch
                    .certificates
                    .extend(certificate.as_deref().map(|one| (one.clone(), requested_at)));
                // Counted with the certificate, so that no crash makes it count twice.
                let ListTotals { certified, vanished, unread, offer } = *totals;
                let RunProgress { lists, work, compared, .. } = &mut active.progress;
                lists.ended += 1;
                lists.certified += certified;
                lists.absent += u64::from(offer.is_absent);
                lists.unoffered += u64::from(offer.is_unoffered);
                work.vanished += vanished;
                compared.unread += unread;
                let list = part.job.and_then(|number| self.jobs.get(&number)?.list());
                lists.accounts_proved |= list == Some(List::Accounts) && certified > 0;
                lists.companies_proved |= list == Some(List::Companies) && certified > 0;
                if run.kind == RunKind::Verify {
                    Difference::Vanished.count(&mut compared.differences, vanished);
                }
            }
            PartContent::Found(suspects) => {
                let Some(job) = part.job.and_then(|number| self.jobs.get(&number)) else { return Ok(()) };
                let Some(list) = job.list() else { return Ok(()) };
                let (lost, view) = (&job.rows.lost, None);
                let context =
                    rows::Context { run: &run, list, is_thin: false, now, scheduler, lost, view, room: 0 };
                let before = draft.batch.entries.len();
                for suspect in suspects {
                    draft.add_found(context, suspect)?.count(&mut active.progress);
                }
                active.progress.work.published += (draft.batch.entries.len() - before) as u64;
            }
            PartContent::Looked(looked) => {
                let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) else { return Ok(()) };
                let (subject, answer) = &**looked;
                if let Answer::There(json) = answer
                    && scheduler.is_suspected(subject)
                    && let Some(entry) = rows::entry_of_record(&run, subject, json, None)
                    && draft.reaches(&entry)?
                {
                    self.after.cleared.push(subject.clone());
                }
                let view = job.list().and_then(|list| active.views.get(&list));
                let holds = view.map_or(Holds::Unknown, |view| view.get(&subject.key()));
                let Some(comparing) = &mut job.comparing else { return Ok(()) };
                let may_wait = comparing.may_wait(micros(self.shared.source.enrich.park_after), now);
                let suspect = comparing.suspect(&subject.key());
                let looked = Looked { suspect, subject, answer, holds, may_wait };
                let before = draft.batch.entries.len();
                let found = draft.add_looked(&run, &looked)?;
                found.count(&mut active.progress);
                active.progress.work.published += (draft.batch.entries.len() - before) as u64;
                if let (Finding::Again, Stage::Unlisted(reads)) = (found, &mut job.stage) {
                    reads.waiting.push_back((subject.company.clone(), subject.id.clone(), 1));
                    job.requests.due = now.saturating_add(LOOK);
                }
            }
            PartContent::Page(page, mark) => {
                let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) else { return Ok(()) };
                let Some(collection) = job.collection().cloned() else { return Ok(()) };
                let is_own =
                    |key: &Key| !collection.list.spans_companies() || self.shared.shard_of(key) == self.shard;
                let view = active.views.get(&collection.list);
                let room = job.comparing.as_ref().map_or(0, Comparing::room);
                let is_thin = page.is_thin || job.is_outdated(&page.fetched);
                let (list, lost) = (collection.list, &job.rows.lost);
                let context = rows::Context { run: &run, list, is_thin, now, scheduler, lost, view, room };
                let own = page.fetched.rows.iter().filter(|row| is_own(&row.key));
                if collection.list == List::Companies {
                    let companies = own.clone().filter_map(|row| Some(&row.subject.as_ref()?.company));
                    shown.extend(companies.filter(|company| active.plan.show(company)).cloned());
                }
                let own = own.filter(|row| !page.shown.contains(&row.key));
                let tally = draft.add_rows(context, own)?;
                job.count(tally.published, tally.unusable);
                active.progress.work.published += tally.published;
                active.progress.compared.contents += tally.contents;
                for (kind, is_mended) in tally.differences {
                    let compared = &mut active.progress.compared;
                    kind.count(if is_mended { &mut compared.repaired } else { &mut compared.differences }, 1);
                }
                if let Some(comparing) = &mut job.comparing {
                    comparing.add(tally.suspects);
                }
                metrics::list_rows(collection.list.name(), tally.rows);
                if let Some((key, value)) = mark.clone() {
                    let mark = PageMark { number: page.number, key, value, rows: tally.rows };
                    // Marks are written in order, or a restart would find pages without those before them.
                    if tally.requests.is_empty()
                        && job.written.unmarked.is_empty()
                        && job.role.may_mark(mark.number)
                    {
                        active.count_page(&mark, &mut draft.batch);
                    } else {
                        job.written.unmarked.push(mark);
                    }
                } else {
                    // The leader counts the page.
                    active.progress.work.rows += tally.rows;
                }
                self.after
                    .requests
                    .extend(tally.requests.into_iter().filter_map(|one| part.job.zip(Some(one))));
                self.after.regression_checks.extend(tally.regression_checks);
                self.after.cleared.extend(tally.cleared);
            }
        }
        if run.kind != RunKind::Verify {
            // A verification starts from the first page again, so it stores no companies.
            let kept = shown.iter().map(|company| active.plan.shown_as(company).page(self.shard, 0));
            draft.batch.state.extend(kept.map(|key| (key, Some(Bytes::from_static(b"{}")))));
        }
        self.plan_companies(&run.id, shown);
        Ok(())
    }

    /// Continues after the commit of the batch. `stored` reads the fence as of the commit. If Kafka refused a record, the state of the
    /// batch (marks, counts, ends) is written with the next one: then only the scheduler continues here, and lists after that commit.
    pub(in crate::records::task) fn committed(
        &mut self,
        scheduler: &mut Scheduler,
        stored: &dyn Fn(&Subject) -> Option<Stamp>,
        is_whole: bool,
        now: i64,
    ) {
        for (number, (wanted, event)) in self.after.requests.drain(..) {
            if let Some(job) = self.jobs.get_mut(&number) {
                job.rows.asked_for.push(wanted.subject.clone());
            }
            let stored = stored(&wanted.subject);
            scheduler.request(wanted, event, stored.as_ref(), now);
            failpoint::reach("lists.requests.waiting");
        }
        for (wanted, event) in self.after.regression_checks.drain(..) {
            scheduler.check_regression(wanted, event, now);
        }
        for subject in self.after.cleared.drain(..) {
            scheduler.clear_regression(&subject);
        }
        if !is_whole {
            return;
        }
        self.jobs.values_mut().for_each(|job| job.rows.is_writing_counts = false);
        for part in std::mem::take(&mut self.parts.committing) {
            let Some(number) = part.job else {
                self.end_if_done(&part.run, now);
                continue;
            };
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            job.written.unwritten = job.written.unwritten.saturating_sub(1);
            if let PartContent::Read(_) = part.what {
                job.written.unwritten_marks = job.written.unwritten_marks.saturating_sub(1);
                job.list().into_iter().for_each(|list| failpoint::reach(format_args!("lists.{list}.marked")));
            }
            if let PartContent::End { .. } = part.what {
                let collection = job.collection().cloned();
                job.list().into_iter().for_each(|list| failpoint::reach(format_args!("lists.{list}.ended")));
                job.report(true);
                self.jobs.remove(&number);
                if let Some(active) = self.runs.get_mut(&part.run) {
                    active.open = active.open.saturating_sub(1);
                }
                self.state.over.extend(collection);
                self.end_if_done(&part.run, now);
            }
        }
        self.mark_settled(scheduler);
    }

    /// Continues lists whose requests are all settled. A request is settled only by a commit, so this runs after each one.
    fn mark_settled(&mut self, scheduler: &Scheduler) {
        for job in self.jobs.values_mut() {
            job.rows.asked_for.retain(|subject| scheduler.owes(subject));
            job.report(false);
        }
        self.write_due_marks();
    }

    /// Queues the marks of pages that are settled, here and in all followers.
    pub(super) fn write_due_marks(&mut self) {
        let due = |(number, job): (&u64, &mut Job)| {
            job.take_due_marks().into_iter().map(|mark| (*number, mark)).collect::<Vec<_>>()
        };
        let due: Vec<(u64, PageMark)> = self.jobs.iter_mut().flat_map(due).collect();
        for (number, mark) in due {
            let bytes = mark.value.len();
            self.put(number, PartContent::Read(mark), bytes);
        }
    }

    /// Ends a run whose lists have all ended, and removes it once its end is written.
    pub(super) fn end_if_done(&mut self, run: &RunId, now: i64) {
        let Some(active) = self.runs.get_mut(run) else { return };
        if active.progress.state.is_over() {
            // No part of it waits, so its end is written.
            let is_written = !self.parts.ready.iter().any(|part| part.run == *run);
            if is_written && let Some(active) = self.runs.remove(run) {
                self.state.over.retain(|collection| collection.run != *run);
                self.state.progress.insert(run.clone(), active.progress);
            }
            return;
        }
        if active.is_read() && active.strangers.is_empty() {
            (active.progress.state, active.progress.times.ended_at) = (ShardState::Ended, Some(now));
            if let Some(why) = active.plan.unknown(active.progress.lists.companies_proved) {
                // Counts as one uncertified list, because the number of unread lists is unknown.
                active.progress.lists.total += 1;
                active.progress.lists.ended += 1;
                active.progress.reason = Some(format!(
                    "lists of unknown companies were not read, because the list of companies is not proved: {why}"
                ));
            }
            if active.progress.lists.unoffered > 0 && active.progress.reason.is_none() {
                active.progress.reason = Some(
                    "the provider does not offer the list of accounts: nothing is proved of accounts"
                        .to_owned(),
                );
            }
            if active.run.incremental
                && active.progress.lists.certified < active.progress.lists.total
                && active.progress.reason.is_none()
            {
                let why =
                    "the run is incremental, which certifies payroll only if its whole list had to be read";
                active.progress.reason = Some(why.to_owned());
            }
            self.parts.forgotten.extend(kept_of(active, &self.state.over, self.shard));
            let RunProgress {
                lists: ListCounts { total: lists, certified, .. },
                work: RunWork { rows, published, .. },
                ..
            } = active.progress;
            tracing::info!(connector = &*self.shared.task.connector, shard = self.shard, %run, lists, certified, rows,
                published, "a run is over in this shard");
            self.parts.ready.push_back(Part::standing(run));
        }
    }
}

impl Active {
    /// Counts a page, and marks it as read.
    fn count_page(&mut self, mark: &PageMark, batch: &mut Batch) {
        self.progress.work.pages += 1;
        self.progress.work.rows += mark.rows;
        batch.state.push((mark.key.clone(), Some(mark.value.clone())));
    }
}

/// Keys of a run in the state topic, beside those of its open lists.
pub(super) fn kept_of(active: &Active, done: &HashSet<Collection>, shard: i32) -> Vec<Key> {
    let run = &active.run;
    let is_kept = run.kind != RunKind::Verify;
    let shown = active.plan.kept().filter(|_| is_kept).map(|collection| collection.page(shard, 0));
    let over = done.iter().filter(|one| is_kept && one.run == run.id).map(|one| one.over(shard));
    let again = run.known.iter().map(|resource| (run.id.clone(), run.requested_at, *resource));
    let cursors = again.map(|again| state::cursor(shard, &again));
    shown.chain(over).chain(cursors).collect()
}

/// Keys to remove with a batch: none while parts wait, because the end of their run may be among these. If keys were removed before
/// the end is written, the next owner of the shard would continue the run without them.
fn take_forgotten(forgotten: &mut Vec<Key>, is_all_written: bool) -> Vec<Key> {
    let count = if is_all_written { forgotten.len().min(FORGOTTEN_AT_ONCE) } else { 0 };
    forgotten.drain(..count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_has_kept_is_removed_with_the_word_that_it_is_over_and_not_before() {
        let keys: Vec<Key> =
            (0..=FORGOTTEN_AT_ONCE).map(|number| Key::state("page", &[&number.to_string()])).collect();
        let mut forgotten = keys.clone();

        assert_eq!(take_forgotten(&mut forgotten, false), [], "a part waits: it may be that word");
        let first = take_forgotten(&mut forgotten, true);
        let rest = take_forgotten(&mut forgotten, true);

        assert_eq!((first.len(), rest.len()), (FORGOTTEN_AT_ONCE, 1), "a batch has its bounds");
        assert_eq!([first, rest].concat(), keys);
    }
}
