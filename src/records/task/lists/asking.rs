//! Requests: the next pages of lists, and reads by id of records that no page has shown.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use futures::{FutureExt, future::BoxFuture};

use model::{AccountingResource, CompanyId, DesiredRunState, List, Run, RunKind};
use provider::api::{self, CallOptions, row_hash};

use super::{
    super::{micros, runs, state},
    Came, Failed, Found, Getting, Got, KNOWN_AT_ONCE, LEAST_JOBS, Lists, MOST_ASKED, MOST_GROWING, MOST_HELD,
    MOST_IDLE, MOST_JOBS, MOST_LISTS, MOST_WAITING, PASSES, Part, PartContent, Probe, READ_LIMIT, Shared,
    Stage, UNLISTED_AT_ONCE, UnlistedReads, What,
    comparing::Comparing,
    job::Job,
    pages, probe,
    sample::Sample,
    spanning::ListRole,
    topic::View,
};
use crate::{
    config::connector::Rows,
    records::{
        fence::ShardFence,
        proof::{Filter, Reading, Seen, Settings},
        schedule::{Companies as _, CompanyState, Subject},
    },
};

impl Lists {
    /// Starts lists, and the requests that are due.
    pub(in crate::records::task) fn begin(&mut self, getting: &mut Getting, fence: &ShardFence, now: i64) {
        self.begin_jobs(now);
        self.report_waiting(now);
        let asked_for: usize = self.jobs.values().map(|job| job.rows.asked_for.len()).sum();
        let is_full = self.parts.waiting_bytes >= MOST_WAITING || asked_for > MOST_ASKED;
        self.follow(getting, is_full);
        if now < self.hold.until {
            return;
        }
        self.look_for_strangers(getting, fence, now);
        let numbers: Vec<u64> = self.jobs.keys().copied().collect();
        // If all lists together remember much, only the oldest continue.
        let first = self.shared.lists.pages.load.is_much().then(|| self.first_of_pages(now));
        for number in numbers {
            if !self.advance_comparison(number, getting, fence, now) {
                continue;
            }
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let is_wanted =
                self.runs.get(&job.run.id).is_some_and(|active| active.wanted == DesiredRunState::Running);
            if !is_wanted {
                continue;
            }
            let priority = job.priority();
            let waits = job.grows() && first.as_ref().is_some_and(|first| !first.contains(&number));
            if let Some(asked) = job.wants_page(now).filter(|_| !waits && !is_full) {
                job.stage = Stage::Asking;
                getting.push(ask_page(&self.shared, &self.state.probes, number, asked));
            } else if matches!(job.stage, Stage::Scan)
                && job.is_settled()
                && job.role.has_verdict()
                && job.requests.due <= now
            {
                self.scan_fence(number, getting, fence);
            } else if let Stage::Unlisted(reads) = &mut job.stage {
                let resource = match &job.what {
                    What::List(collection) => collection.list.resource(),
                    What::Known(resource) => Some(*resource),
                };
                while reads.open < UNLISTED_AT_ONCE && job.requests.due <= now {
                    // Records of the payroll list cannot be read by id.
                    let Some(resource) = resource else { break };
                    let Some((company, id, tries)) = reads.waiting.pop_front() else { break };
                    reads.open += 1;
                    // A company is read without context, and so is a record whose company id is that of the tenant.
                    let is_company =
                        !matches!(self.shared.directory.state(&company), CompanyState::Absent { .. });
                    let in_company = resource != AccountingResource::Companies && is_company;
                    let subject = Subject { resource, company, id, in_company };
                    getting.push(ask_record(&self.shared, number, subject, priority, tries));
                }
            }
            self.continue_or_end(number, now);
        }
    }

    /// Waits for what leaders and followers of lists send each other, and passes the proofs of finished lists on. Sends no request to the
    /// provider, so it works while requests are paused.
    fn follow(&mut self, getting: &mut Getting, is_full: bool) {
        for (number, job) in &mut self.jobs {
            let number = *number;
            job.relay_end();
            let is_ready = job.comparing.is_none() || {
                let views = self.runs.get(&job.run.id).map(|active| &active.views);
                let view = job.list().and_then(|list| views?.get(&list));
                view.is_some_and(View::is_ready)
            };
            let may_take = is_ready && !is_full && matches!(job.stage, Stage::Pages) && job.is_committed();
            match &mut job.role {
                ListRole::Leader(leader) => {
                    let Some(mut reports) = leader.take_reports() else { continue };
                    let waiting = async move {
                        let report = reports.recv().await;
                        Got::Reported(number, reports, report)
                    };
                    getting.push(waiting.boxed());
                }
                ListRole::Follower(follower) if may_take => {
                    follower.report_ready(job.proof.void_since.is_some());
                    let Some(mut relayed) = follower.take_relayed() else { continue };
                    let waiting = async move {
                        let next = relayed.recv().await;
                        Got::Relayed(number, relayed, next)
                    };
                    getting.push(waiting.boxed());
                    job.stage = Stage::Asking;
                }
                ListRole::Follower(_) => {}
            }
        }
    }

    /// The oldest growing lists of companies that can read a page now: as many as this shard's share of [`MOST_GROWING`].
    fn first_of_pages(&self, now: i64) -> HashSet<u64> {
        let is_one = |job: &Job| {
            let is_wanted =
                self.runs.get(&job.run.id).is_some_and(|active| active.wanted == DesiredRunState::Running);
            let is_read = match job.stage {
                Stage::Asking => true,
                Stage::Pages => job.requests.due <= now && job.may_read(),
                _ => false,
            };
            job.grows() && is_wanted && is_read
        };
        let part = (MOST_GROWING / self.shared.shards.len().max(1)).max(1);
        self.jobs.iter().filter(|(_, job)| is_one(job)).map(|(number, _)| *number).take(part).collect()
    }

    /// Continues with the next part of known records, or ends the list, once all records to read by id are read.
    fn continue_or_end(&mut self, number: u64, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let is_read = matches!(&job.stage, Stage::Unlisted(reads) if reads.is_over());
        if !is_read || !job.is_settled() || !job.role.may_end() {
            return;
        }
        let Some((cursor, again)) = job.take_cursor().zip(job.again()) else { return self.end(number, now) };
        let kept = (state::cursor(self.shard, &again), Some(state::json(&cursor)));
        self.put(number, PartContent::State(vec![kept]), 512);
    }

    /// Starts waiting lists; runs take turns.
    fn begin_jobs(&mut self, now: i64) {
        // Lists that wait for an operator do not count, nor those that another shard reads.
        let is_active = |job: &Job| {
            let active = self.runs.get(&job.run.id);
            active.is_some_and(|active| active.wanted == DesiredRunState::Running)
                && !matches!(job.stage, Stage::Braked(..))
                && matches!(&job.role, ListRole::Leader(leader) if !leader.is_paused)
        };
        let mut active = busy(self.jobs.values().filter(|job| is_active(job)), now);
        let most = (MOST_LISTS / self.shared.shards.len().max(1)).clamp(LEAST_JOBS, MOST_JOBS);
        while active < most && self.jobs.len() < MOST_HELD {
            active += 1;
            let next = self
                .runs
                .values_mut()
                .filter(|active| active.wanted == DesiredRunState::Running && !active.waiting.is_empty())
                .min_by_key(|active| active.open);
            let Some(next) = next else { return };
            let Some(what) = next.waiting.pop_front() else { return };
            let run = Arc::clone(&next.run);
            self.begin_job(run, what, now);
        }
    }

    pub(super) fn begin_job(&mut self, run: Arc<Run>, what: What, now: i64) {
        if let Some(active) = self.runs.get_mut(&run.id) {
            active.open += 1;
        }
        let job = self.job(run, what, now);
        self.jobs.insert(self.numbers, job);
        self.numbers += 1;
    }

    fn job(&mut self, run: Arc<Run>, what: What, now: i64) -> Job {
        let mut job = Job::new(run, what, now);
        if let Some(again) = job.again() {
            job.cursor = self.state.cursors.get(&again).cloned().unwrap_or_default();
        }
        let What::List(collection) = &job.what else { return job };
        job.stage = Stage::Pages;
        job.role = self.shared.lists.spanning.take_role(collection, self.shard);
        if collection.company.is_some() {
            job.proof.load = self.shared.lists.pages.load.another();
        }
        let snapshot = &self.shared.source.snapshot;
        job.comparing = (job.run.kind == RunKind::Verify).then(Comparing::default);
        job.proof.sample =
            job.run.verification.sample.map(|rows| Sample::of(rows, snapshot.page_size, collection));
        if collection.list == List::Payroll {
            job.proof.filter = self.runs.get(&job.run.id).and_then(|active| active.progress.filter.clone());
        }
        let settings = Settings {
            page_size: snapshot.page_size,
            most_passes: PASSES,
            filter: job.proof.filter.as_deref().map(|filter| match snapshot.payroll_filter.as_deref() {
                Some(configured) if configured == filter => Filter::Configured,
                _ => runs::checked_filter(filter),
            }),
            clock_skew: micros(self.shared.task.tools.worker.clock_skew_max),
        };
        let mut kept = self.state.pages.remove(collection).unwrap_or_default();
        if job.run.kind == RunKind::Verify {
            // Results of comparisons are not stored, so the list is compared from its first page again.
            let marks = kept.keys().map(|n| (collection.page(self.shard, *n), None)).collect();
            self.parts.ready.push_back(Part::of_run(&collection.run, marks));
            kept.clear();
        }
        if let Some(counts) = kept.remove(&0) {
            job.rows.keeps_counts = true;
            // Counts that cannot be parsed were not written by us: start from zero.
            job.rows.counts = serde_json::from_slice(&counts).unwrap_or_default();
        }
        let is_void = job.run.kind != RunKind::Verify && self.state.void.contains(collection);
        job.proof.void_since = is_void.then_some(i64::MIN);
        let Some(leader) = job.role.leader() else {
            // This shard led the list when the connector had another number of tasks.
            job.written.marks = kept.keys().next_back().copied().unwrap_or(0);
            let marks = kept.keys().map(|n| (collection.page(self.shard, *n), None)).collect();
            self.parts.ready.push_back(Part::of_run(&collection.run, marks));
            return job;
        };
        let marks = kept.keys().next_back().copied().unwrap_or(0);
        let tasks = leader.has_followers().then_some(self.shared.lists.tasks);
        let seen: Result<Vec<Seen>, String> =
            kept.values().map(|value| state::parse_mark(value, tasks)).collect();
        let restored = seen.and_then(|seen| {
            let begun = seen.first().map(|seen| seen.answer.sent);
            job.requests.answered = seen.last().map_or(i64::MIN, |seen| seen.answer.answered);
            Ok((Reading::restore(settings.clone(), seen)?, begun))
        });
        match restored {
            Ok((reading, begun)) => {
                if reading.is_over() {
                    job.stage = Stage::Scan;
                }
                (job.written.marks, job.proof.started_at) = (marks, begun.unwrap_or(now));
                job.set_reading(reading);
            }
            Err(why) => {
                tracing::warn!(shard = self.shard, list = %collection.list, why, "a list is read from its first page on again");
                (job.proof.reading, job.written.marks) = (Some(Arc::new(Reading::new(settings))), marks);
                // The next owner must not find these pages again.
                let mut marks: Vec<_> =
                    kept.keys().map(|n| (collection.page(self.shard, *n), None)).collect();
                // The void mark was about the pages that are dropped here.
                job.proof.void_since = None;
                if self.state.void.remove(collection) {
                    marks.push((collection.void(self.shard), None));
                }
                self.parts.ready.push_back(Part::of_run(&collection.run, marks));
            }
        }
        job
    }

    /// Looks up known records that no page has shown.
    fn scan_fence(&mut self, number: u64, getting: &mut Getting, fence: &ShardFence) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let (topic, company) = match &job.what {
            What::Known(resource) => (model::Topic::AccountingRecords(*resource), None),
            What::List(collection) => (collection.list.topic(), collection.company.clone()),
        };
        let entries = fence.entries_of(topic);
        match job.proof.reading.clone() {
            // An unproved or filtered list does not show which records are unlisted.
            Some(reading) if !job.is_proved() || reading.is_filtered() => {
                job.stage = Stage::Unlisted(UnlistedReads::default());
            }
            Some(reading) => {
                job.stage = Stage::Scanning;
                let known = fence.known(topic, company.as_ref(), move |id| !reading.has_shown(row_hash(id)));
                getting.push(
                    async move {
                        let found = known.await.map(|(records, _)| Found { records, next: None, entries });
                        Got::Known(number, found)
                    }
                    .boxed(),
                );
            }
            None => {
                job.stage = Stage::Scanning;
                let run = Arc::clone(&job.run);
                let is_wanted = move |company: &CompanyId| {
                    run.companies.as_ref().is_none_or(|companies| companies.contains(company))
                };
                let known = fence.known_after(topic, job.cursor.after.as_deref(), KNOWN_AT_ONCE, is_wanted);
                getting.push(
                    async move {
                        let found = known.await.map(|(records, next)| Found { records, next, entries });
                        Got::Known(number, found)
                    }
                    .boxed(),
                );
            }
        }
    }
}

/// Requests a page. If it is not known yet whether rows of the list are whole records, compares some of them with their records.
fn ask_page(
    shared: &Arc<Shared>,
    probes: &BTreeMap<List, Probe>,
    number: u64,
    asked: pages::Asked,
) -> BoxFuture<'static, Got> {
    let shared = Arc::clone(shared);
    let probes = shared.source.snapshot.rows == Rows::Probe
        && asked.list.resource().is_some()
        && !probes.contains_key(&asked.list);
    async move {
        let read = shared.lists.pages.read(&asked).await;
        let read = match read {
            Ok(page) => {
                let (list, company) = (asked.list, asked.company.as_ref());
                let thin = match probes {
                    true => probe::is_thin(&shared.requests.accounting, list, company, &page.rows).await,
                    false => None,
                };
                Ok(Came { page, thin })
            }
            Err(error) => {
                let is_alone = error.may_be_alone() && shared.lists.pages.answers(&asked).await;
                Err(Failed { error, is_alone })
            }
        };
        Got::Page(number, asked.number, read)
    }
    .boxed()
}

fn ask_record(
    shared: &Arc<Shared>,
    number: u64,
    subject: Subject,
    priority: api::Priority,
    tries: u32,
) -> BoxFuture<'static, Got> {
    let shared = Arc::clone(shared);
    async move {
        // The semaphore is never closed.
        let slot = shared.requests.page_slots.acquire().await;
        let ask = CallOptions::within(priority, READ_LIMIT);
        let read =
            shared.requests.accounting.record(subject.resource, subject.context(), &subject.id, &ask).await;
        drop(slot);
        shared.evidence.answers.note(&read);
        let read = match read {
            Ok(document) => Ok(document.json),
            Err(error) => {
                let list = List::Companies;
                let other = pages::Asked {
                    list,
                    company: None,
                    number: 1,
                    size: 1,
                    filter: None,
                    sent_after: i64::MIN,
                    priority,
                };
                let is_alone = error.may_be_alone() && shared.lists.pages.answers(&other).await;
                Err(Failed { error, is_alone })
            }
        };
        Got::Record(number, subject, tries, read)
    }
    .boxed()
}

/// Number of lists that count toward the limit of concurrent lists: all but [`MOST_IDLE`] idle ones.
fn busy<'a>(jobs: impl Iterator<Item = &'a Job>, now: i64) -> usize {
    let (mut idle, mut busy) = (0_usize, 0_usize);
    for job in jobs {
        *(if job.is_idle(now) { &mut idle } else { &mut busy }) += 1;
    }
    busy + idle.saturating_sub(MOST_IDLE)
}

#[cfg(test)]
mod tests {
    use model::RecordId;

    use super::*;
    use crate::records::task::{lists::IDLE_AFTER, state::Collection};

    /// A list whose rows wait for `count` records.
    fn job(count: usize) -> Job {
        let run: Run = serde_json::from_value(serde_json::json!({
            "connector": "records", "id": "r", "lists": ["customers"], "requestedBy": "test", "requestedAt": 1,
        }))
        .unwrap();
        let company = CompanyId::new("c").unwrap();
        let subject = |number: usize| Subject {
            resource: AccountingResource::Customers,
            company: company.clone(),
            id: RecordId::new(format!("r{number}")).unwrap(),
            in_company: true,
        };
        let asked_for = (0..count).map(subject).collect();
        let (list, company) = (List::Customers, Some(company));
        let what = What::List(Collection { run: run.id.clone(), requested_at: 1, list, company });
        let mut job = Job::new(Arc::new(run), what, 0);
        job.rows.asked_for = asked_for;
        job
    }

    #[test]
    fn lists_that_wait_long_for_records_keep_no_other_from_being_read_unless_there_are_many() {
        let now = 1_000 * IDLE_AFTER;
        let waits = |answered: i64| {
            let mut job = Job { stage: Stage::Scan, ..job(1) };
            job.requests.answered = answered;
            job
        };
        let count = |jobs: &[Job]| busy(jobs.iter(), now);
        let long = now - IDLE_AFTER - 1;

        assert_eq!(count(&[waits(long)]), 0);
        // A short wait is normal for thin rows.
        assert_eq!(count(&[waits(now - IDLE_AFTER)]), 1);
        // Its next page waits too.
        assert_eq!(count(&[Job { stage: Stage::Pages, ..waits(long) }]), 0);
        // A page of it is being read, or it waits for no record.
        let reads = Job { stage: Stage::Asking, ..waits(long) };
        let mut compares = waits(long);
        compares.rows.asked_for.clear();
        assert_eq!(count(&[reads, compares]), 2);
        let many: Vec<Job> = (0..MOST_IDLE + 2).map(|_| waits(long)).collect();
        assert_eq!(count(&many), 2, "what proves them is held");
    }
}
