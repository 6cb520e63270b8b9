//! The lists that one shard reads: which runs are asked for, what of them is this shard's, and what is committed of it.
//!
//! ```text
//! orders ─▶ Active run ─▶ jobs: a list each, some at a time ─▶ page ─▶ Part ─┐
//!             ▲ progress      ▲ one page of a list at a time                 ├─▶ with the shard's batch: rows that are newer than
//!             │               └─ known and not shown: read by id ─▶ Part ────┘   the fence, the page, certificate, progress
//!             └────────────────────────────── committed ◀──────────────────────
//! ```
//!
//! - A page, the rows that follow from it and how far its run is are one transaction. So whoever has the shard next goes on after it,
//!   and a crash costs the pages that were under way.
//! - A row is compared with the fence when its batch is made, and nothing is committed between: so lists and events never write over
//!   each other.
//! - A list that is over in a run is known by its certificate, which has the run's id.
//! - That a list does not show a record leads to a read of it and a line in the certificate, never to a tombstone.
//!
//! On failure of one page: it is tried some times, then its pass is void, then the list is uncertified and says why; others go on.
//! What concerns everything holds all of them back, what needs a person ends the task.

mod job;
mod pages;
mod probe;
mod rows;

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::watch;

pub(super) use self::pages::Pages;
use self::{
    job::{Job, Missing, Stage, What, answer},
    pages::Fetched,
    rows::Compared,
};
use super::{
    Shared,
    state::{self, Collection, Known, Probe},
    taking::unreadable,
};
use crate::{
    api::{self, Ask},
    config::connector::Rows,
    enrich::{Batch, Companies as _, Desk, Entry, Event, Parked, Standing, Subject, Wanted as Asked},
    fence::{self, Shelf},
    metrics,
    model::{
        AccountingResource, Certificate, CompanyId, Key, List, Progress, RecordId, Run, RunId, RunKind,
        ShardState, Stamp, Wanted,
    },
    retry::{Chain, Retry},
    snapshot::{Reading, Seen, Settings, Wish},
    worker::plugins::Failure,
};

/// Lists of a shard that are read at the same time.
const MOST_JOBS: usize = 16;
/// Lists that may be held, with those that wait for a person or whose run is paused.
const MOST_HELD: usize = 1_000;
/// Runs of a shard that are under way at the same time; others wait.
const MOST_RUNS: usize = 4;
/// Missing records of one list that are read at the same time.
const MISSING_AT_ONCE: usize = 8;
/// Bytes of rows that wait to be committed: above it no page is asked for.
const MOST_WAITING: usize = 16 << 20;
/// Missing records that are always read; above this and the share a person has to look first.
const BRAKE_COUNT: usize = 50;
const BRAKE_SHARE: usize = 50;
/// How often it is looked whether all is read that rows have asked for; microseconds.
const LOOK: i64 = 200_000;
/// Records that wait to be read because of rows: above it no page is asked for.
const MOST_ASKED: usize = 5_000;
/// Lists that a progress names.
const NAMED: usize = 10;
/// The longest a read by id may take.
const READ_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
/// Passes over a list.
const PASSES: u32 = 4;

/// A run that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Ordered {
    pub(super) run: Arc<Run>,
    pub(super) wanted: Wanted,
    /// When that was said.
    pub(super) at: i64,
    /// What of payroll is read; all where there is none.
    pub(super) filter: Option<String>,
}

/// All of them, the oldest first.
pub(super) type Orders = Arc<Vec<Ordered>>;

/// Something that was asked for has come.
pub(super) enum Got {
    Page(u64, u32, Result<(Arc<Fetched>, Option<bool>), Failed>),
    Known(u64, Option<Box<Reading>>, Result<Vec<(CompanyId, RecordId)>, fence::Error>, u64),
    Record(u64, Subject, u32, Result<Bytes, api::Error>),
}

/// A page that could not be read.
pub(super) struct Failed {
    error: api::Error,
    /// The provider has answered to something else meanwhile.
    is_alone: bool,
}

/// What is under way of it.
pub(super) type Getting = FuturesUnordered<BoxFuture<'static, Got>>;

/// See the module's head.
pub(super) struct Lists {
    shared: Arc<Shared>,
    shard: i32,
    orders: watch::Receiver<Orders>,
    runs: BTreeMap<RunId, Active>,
    jobs: BTreeMap<u64, Job>,
    numbers: u64,
    ready: VecDeque<Part>,
    waiting_bytes: usize,
    committing: Vec<Part>,
    adopting: Vec<Parked>,
    looking_back: Vec<(Asked, Event)>,
    /// What an owner before has read, and has not ended.
    pages: BTreeMap<Collection, BTreeMap<u64, Bytes>>,
    /// How far it was.
    progress: BTreeMap<RunId, Progress>,
    /// Lists that are over.
    done: HashSet<Collection>,
    probes: BTreeMap<List, Probe>,
    held_until: i64,
    holds: u32,
}

/// A run that is under way here.
struct Active {
    run: Arc<Run>,
    wanted: Wanted,
    /// When that was said.
    ordered_at: i64,
    waiting: VecDeque<What>,
    open: usize,
    progress: Progress,
    /// What of payroll is read.
    filter: Option<String>,
    /// Which of the lists are this shard's is known.
    is_planned: bool,
}

/// What is committed together.
struct Part {
    run: RunId,
    job: Option<u64>,
    what: Written,
    bytes: usize,
}

enum Written {
    Page {
        fetched: Arc<Fetched>,
        mark: (Key, Bytes),
        /// Rows that a page before has shown: what is compared is compared once.
        shown: HashSet<Key>,
    },
    Record(Box<Entry>),
    End {
        certificate: Option<Box<Certificate>>,
        marks: Vec<Key>,
        ended: Ended,
    },
    Probe(List, Probe),
    /// Pages that are of no use any more.
    Forgotten(Vec<Key>),
    /// Only how far the run is.
    Standing,
}

/// What is counted with the end of a list.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
    lists: u64,
    certified: u64,
    vanished: u64,
}

impl Lists {
    pub(super) fn new(shared: Arc<Shared>, shard: i32, known: &mut Known, done: HashSet<Collection>) -> Self {
        let orders = shared.orders.clone();
        Self {
            shared,
            shard,
            orders,
            runs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            numbers: 0,
            ready: VecDeque::new(),
            waiting_bytes: 0,
            committing: Vec::new(),
            adopting: Vec::new(),
            looking_back: Vec::new(),
            pages: std::mem::take(&mut known.pages),
            progress: std::mem::take(&mut known.progress),
            done,
            probes: std::mem::take(&mut known.probes),
            held_until: i64::MIN,
            holds: 0,
        }
    }

    /// Waits until something else may be asked for.
    pub(super) async fn changed(
        orders: &mut watch::Receiver<Orders>,
        stream: &mut watch::Receiver<Option<bool>>,
    ) {
        tokio::select! {
            changed = orders.changed() => if changed.is_err() { std::future::pending::<()>().await },
            changed = stream.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }

    /// Looks at what is asked for, and begins, holds or ends runs.
    pub(super) fn look(&mut self, now: i64) {
        let orders = Arc::clone(&*self.orders.borrow_and_update());
        for Ordered { run, wanted, at, filter } in &*orders {
            let is_over = self.progress.get(&run.id).is_some_and(|progress| progress.state.is_over());
            if is_over {
                continue;
            }
            if let Some(active) = self.runs.get_mut(&run.id) {
                if active.wanted != *wanted {
                    active.wanted = *wanted;
                    active.progress.state = standing(*wanted);
                    self.ready.push_back(Part::standing(&run.id));
                }
                active.ordered_at = *at;
                self.release(&run.id, *wanted, *at);
            } else if self.may_begin(*wanted) {
                self.begin_run(run, *wanted, filter.clone(), now);
            }
            if *wanted == Wanted::Stopped {
                self.stop(&run.id, now);
            }
        }
        self.plan(now);
    }

    /// Whether one more run may be taken up: those that wait for people keep nobody waiting, and one that shall stop is heard.
    fn may_begin(&self, wanted: Wanted) -> bool {
        let is_busy = |active: &&Active| {
            active.wanted == Wanted::Running && active.progress.state == ShardState::Running
        };
        let busy = self.runs.values().filter(is_busy).count();
        wanted == Wanted::Stopped
            || (busy < MOST_RUNS && self.runs.len() < MOST_HELD && self.shared.stream.borrow().is_some())
    }

    fn begin_run(&mut self, run: &Arc<Run>, wanted: Wanted, filter: Option<String>, now: i64) {
        let fresh = || Progress {
            connector: self.shared.task.connector.to_string(),
            run: run.id.clone(),
            shard: self.shard,
            state: standing(wanted),
            reason: None,
            filter: None,
            lists: 0,
            ended: 0,
            certified: 0,
            pages: 0,
            rows: 0,
            published: 0,
            vanished: 0,
            differences: BTreeMap::new(),
            current: Vec::new(),
            started_at: now,
            updated_at: now,
            ended_at: None,
        };
        let mut progress = self.progress.get(&run.id).cloned().unwrap_or_else(fresh);
        if run.kind == RunKind::Verify {
            // What was compared is not kept: it is compared anew.
            progress = Progress { started_at: progress.started_at, ..fresh() };
        }
        progress.state = standing(wanted);
        // What was begun with one filter is not gone on with another.
        let is_begun = self.progress.contains_key(&run.id);
        let filter = if is_begun { progress.filter.clone() } else { filter };
        progress.filter.clone_from(&filter);
        let active = Active {
            run: Arc::clone(run),
            wanted,
            ordered_at: 0,
            waiting: VecDeque::new(),
            open: 0,
            progress,
            filter,
            is_planned: false,
        };
        self.runs.insert(run.id.clone(), active);
        self.ready.push_back(Part::standing(&run.id));
    }

    /// Finds out which lists of new runs are this shard's, once that can be known.
    fn plan(&mut self, now: i64) {
        let ids: Vec<RunId> =
            self.runs.iter().filter(|(_, active)| !active.is_planned).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let Some(active) = self.runs.get(&id) else { continue };
            let run = Arc::clone(&active.run);
            let Some(mut lists) = self.lists_of(&run) else { continue };
            lists.retain(|what| !matches!(what, What::List(collection) if self.done.contains(collection)));
            let Some(active) = self.runs.get_mut(&id) else { continue };
            active.progress.lists = active.progress.ended + lists.len() as u64;
            active.waiting = lists.into();
            active.is_planned = true;
            self.ready.push_back(Part::standing(&id));
            self.end_if_done(&id, now);
        }
    }

    /// The lists of a run that are this shard's; `None` while the companies are not known.
    fn lists_of(&self, run: &Run) -> Option<Vec<What>> {
        let asked_at = run.requested_at;
        let collection = |list: List, company: Option<CompanyId>| {
            What::List(Collection { run: run.id.clone(), asked_at, list, company })
        };
        // One that is not configured any more has no topic.
        let source = &self.shared.source;
        let is_published = |list: &List| {
            source.snapshot.lists.contains(list)
                || list.resource().is_some_and(|resource| source.enrich_resources.contains(&resource))
        };
        let mut found: Vec<What> = run.known.iter().map(|resource| What::Known(*resource)).collect();
        let spanning = run.lists.iter().filter(|list| list.spans_companies() && is_published(list));
        found.extend(spanning.map(|list| collection(*list, None)));
        let of_companies: Vec<List> =
            run.lists.iter().copied().filter(|list| !list.spans_companies() && is_published(list)).collect();
        if of_companies.is_empty() {
            return Some(found);
        }
        let companies = match (&run.companies, &self.shared.source.snapshot.companies) {
            (Some(named), _) => named.iter().cloned().collect(),
            // What a gap may have cost, it may have cost of all whose events are followed.
            (None, Some(named)) if run.kind != RunKind::Repair => named.iter().cloned().collect(),
            (None, _) => {
                // A company that came during a gap is in no reading from before its end.
                let is_repair = run.kind == RunKind::Repair;
                let since = if is_repair { run.requested_at } else { i64::MIN };
                let listed = self.shared.directory.listed_since(since);
                if listed.is_none() {
                    self.shared.directory.ask();
                }
                listed?
            }
        };
        // Company by company, so that one is whole before the last is begun.
        for company in companies {
            if self.shared.shard_of(&Key::company(&company)) == self.shard {
                found.extend(of_companies.iter().map(|list| collection(*list, Some(company.clone()))));
            }
        }
        Some(found)
    }

    /// Lists that wait because too much is missing go on once a person has said so since.
    fn release(&mut self, run: &RunId, wanted: Wanted, at: i64) {
        if wanted != Wanted::Running {
            return;
        }
        let mut is_released = false;
        for job in self.jobs.values_mut().filter(|job| job.run.id == *run) {
            let stage = std::mem::replace(&mut job.stage, Stage::Ending);
            job.stage = match stage {
                Stage::Braked(missing, since) if since < at => {
                    is_released = true;
                    Stage::Missing(missing)
                }
                stage => stage,
            };
        }
        if let Some(active) = self.runs.get_mut(run).filter(|_| is_released) {
            (active.progress.state, active.progress.reason) = (ShardState::Running, None);
            self.ready.push_back(Part::standing(run));
        }
    }

    /// Ends a run where it is. What was read of its lists is forgotten.
    fn stop(&mut self, run: &RunId, now: i64) {
        let Some(active) = self.runs.get_mut(run) else { return };
        if active.progress.state.is_over() {
            return;
        }
        (active.progress.state, active.progress.ended_at) = (ShardState::Stopped, Some(now));
        active.waiting.clear();
        let marks = |job: &Job| -> Vec<Key> {
            let pages =
                job.collection().map(|collection| (1..=job.marks).map(|n| collection.page(self.shard, n)));
            pages.into_iter().flatten().collect()
        };
        let mut forgotten: Vec<Key> =
            self.jobs.values().filter(|job| job.run.id == *run).flat_map(marks).collect();
        self.jobs.retain(|_, job| job.run.id != *run);
        self.pages.retain(|collection, pages| {
            let is_other = collection.run != *run;
            if !is_other {
                forgotten.extend(pages.keys().map(|n| collection.page(self.shard, *n)));
            }
            is_other
        });
        // Pages that wait would be kept again after they are forgotten.
        self.ready.retain(|part| part.run != *run);
        self.waiting_bytes = self.ready.iter().map(|part| part.bytes).sum();
        let what = Written::Forgotten(forgotten);
        self.ready.push_back(Part { run: run.clone(), job: None, what, bytes: 0 });
    }

    /// Begins what there is to begin.
    pub(super) fn begin(&mut self, getting: &mut Getting, shelf: &Shelf, desk: &Desk, now: i64) {
        self.begin_jobs(now);
        let asked_for: usize = self.jobs.values().map(|job| job.asked_for.len()).sum();
        let is_full =
            self.waiting_bytes >= MOST_WAITING || (asked_for > MOST_ASKED && desk.counts().1 > MOST_ASKED);
        if now < self.held_until || is_full {
            return;
        }
        let numbers: Vec<u64> = self.jobs.keys().copied().collect();
        for number in numbers {
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let is_wanted = self.runs.get(&job.run.id).is_some_and(|active| active.wanted == Wanted::Running);
            if !is_wanted {
                continue;
            }
            if let Some(asked) = job.wants_page(now) {
                job.stage = Stage::Asking;
                getting.push(ask_page(&self.shared, &self.probes, number, asked));
            } else if matches!(job.stage, Stage::Compare) && job.unwritten == 0 && job.due <= now {
                job.asked_for.retain(|subject| desk.has(subject));
                if !job.asked_for.is_empty() {
                    job.due = now.saturating_add(LOOK);
                    continue;
                }
                self.compare(number, getting, shelf, now);
            } else if let Stage::Missing(missing) = &mut job.stage {
                let resource = match &job.what {
                    What::List(collection) => collection.list.resource(),
                    What::Known(resource) => Some(*resource),
                };
                while missing.open < MISSING_AT_ONCE && job.due <= now {
                    // Without a read by id nothing waits for one.
                    let Some(resource) = resource else { break };
                    let Some((company, id, tries)) = missing.waiting.pop_front() else { break };
                    missing.open += 1;
                    // A company's own record belongs to no company, nor does one of the tenant.
                    let is_company =
                        !matches!(self.shared.directory.standing(&company), Standing::Absent { .. });
                    let in_company = resource != AccountingResource::Companies && is_company;
                    let subject = Subject { resource, company, id, in_company };
                    let lane = match job.run.kind {
                        RunKind::Repair => api::Lane::Repair,
                        RunKind::Snapshot | RunKind::Verify => api::Lane::Snapshot,
                    };
                    getting.push(ask_record(&self.shared, number, subject, lane, tries));
                }
                if missing.is_over() && job.unwritten == 0 {
                    self.end(number, now);
                }
            }
        }
    }

    /// Takes lists up, those of one run after those of another.
    fn begin_jobs(&mut self, now: i64) {
        // Those that wait for a person keep nobody else waiting.
        let is_active = |job: &Job| {
            let active = self.runs.get(&job.run.id);
            active.is_some_and(|active| active.wanted == Wanted::Running)
                && !matches!(job.stage, Stage::Braked(..))
        };
        let mut active = self.jobs.values().filter(|job| is_active(job)).count();
        while active < MOST_JOBS && self.jobs.len() < MOST_HELD {
            active += 1;
            let next = self
                .runs
                .values_mut()
                .filter(|active| active.wanted == Wanted::Running && !active.waiting.is_empty())
                .min_by_key(|active| active.open);
            let Some(next) = next else { return };
            let Some(what) = next.waiting.pop_front() else { return };
            next.open += 1;
            let (run, number) = (Arc::clone(&next.run), self.numbers);
            self.numbers += 1;
            let job = self.job(run, what, now);
            self.jobs.insert(number, job);
        }
    }

    fn job(&mut self, run: Arc<Run>, what: What, now: i64) -> Job {
        let mut job = Job {
            run,
            what,
            reading: None,
            marks: 0,
            started_at: now,
            published: 0,
            stage: Stage::Compare,
            tries: 0,
            due: i64::MIN,
            unwritten: 0,
            filter: None,
            asked_for: Vec::new(),
            unusable: 0,
            answered: i64::MIN,
        };
        let What::List(collection) = &job.what else { return job };
        job.stage = Stage::Pages;
        let snapshot = &self.shared.source.snapshot;
        let is_payroll = collection.list == List::Payroll;
        if is_payroll {
            job.filter = self.runs.get(&job.run.id).and_then(|active| active.filter.clone());
        }
        // Codes are asked for above the last one: there is one filter, and it must not be taken.
        let is_keyset = is_payroll && job.filter.is_none() && snapshot.payroll_order_by == "companyCode";
        let settings = Settings {
            page_size: snapshot.page_size,
            most_passes: PASSES,
            method: if is_keyset { Wish::Keyset } else { Wish::Counting },
            clock_skew: self.shared.clock_skew,
        };
        let mut kept = self.pages.remove(collection).unwrap_or_default();
        if job.run.kind == RunKind::Verify {
            // What was compared is not kept, so that it is compared again.
            let marks = kept.keys().map(|n| collection.page(self.shard, *n)).collect();
            let what = Written::Forgotten(marks);
            self.ready.push_back(Part { run: collection.run.clone(), job: None, what, bytes: 0 });
            kept.clear();
        }
        let marks = kept.keys().next_back().copied().unwrap_or(0);
        let seen: Result<Vec<Seen>, String> = kept.values().map(|value| Seen::parse(value)).collect();
        let restored = seen.and_then(|seen| {
            let begun = seen.first().map(|seen| seen.sent);
            job.answered = seen.last().map_or(i64::MIN, |seen| seen.answered);
            Reading::restore(settings.clone(), seen).map(|reading| (reading, begun))
        });
        match restored {
            Ok((reading, begun)) => {
                if reading.verdict().is_some() {
                    job.stage = Stage::Compare;
                }
                (job.reading, job.marks, job.started_at) = (Some(reading), marks, begun.unwrap_or(now));
            }
            Err(why) => {
                tracing::warn!(shard = self.shard, list = %collection.list, why, "a list is read from its first page on again");
                (job.reading, job.marks) = (Some(Reading::new(settings)), marks);
                // Whoever is next must not begin with them again.
                let marks = kept.keys().map(|n| collection.page(self.shard, *n)).collect();
                let what = Written::Forgotten(marks);
                self.ready.push_back(Part { run: collection.run.clone(), job: None, what, bytes: 0 });
            }
        }
        job
    }

    /// Looks for what is known and was not shown.
    fn compare(&mut self, number: u64, getting: &mut Getting, shelf: &Shelf, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let (topic, company) = match &job.what {
            What::Known(resource) => (crate::model::Topic::AccountingRecords(*resource), None),
            What::List(collection) => (collection.list.topic(), collection.company.clone()),
        };
        let entries = shelf.entries_of(topic);
        let is_proved = |reading: &Reading| reading.verdict().is_some_and(|verdict| verdict.certified);
        match job.reading.take() {
            // Of what is not proved complete, nothing can be said that is missing; of part of a list neither.
            Some(reading) if !is_proved(&reading) || job.filter.is_some() => {
                job.reading = Some(reading);
                job.stage = Stage::Missing(Missing::default());
                self.end(number, now);
            }
            Some(reading) => {
                job.stage = Stage::Comparing;
                let reading = Arc::new(reading);
                let shown = Arc::clone(&reading);
                let known = shelf.known(topic, company.as_ref(), move |id| !Job::shows(&shown, id));
                getting.push(
                    async move {
                        let found = known.await.map(|(found, _)| found);
                        Got::Known(number, Arc::try_unwrap(reading).ok().map(Box::new), found, entries)
                    }
                    .boxed(),
                );
            }
            None => {
                job.stage = Stage::Comparing;
                let companies = job.run.companies.clone();
                let known = shelf.known(topic, None, |_| true);
                getting.push(
                    async move {
                        let found = known.await.map(|(mut found, _)| {
                            found.retain(|(company, _)| {
                                companies.as_ref().is_none_or(|companies| companies.contains(company))
                            });
                            found
                        });
                        Got::Known(number, None, found, entries)
                    }
                    .boxed(),
                );
            }
        }
    }

    /// Something that was asked for has come.
    ///
    /// # Errors
    /// It needs a person, or the store failed.
    pub(super) fn got(&mut self, got: Got, now: i64) -> Result<(), Failure> {
        match got {
            Got::Page(number, _, Ok((fetched, probed))) => {
                self.holds = 0;
                self.page(number, fetched, probed, now);
                Ok(())
            }
            Got::Page(number, page, Err(failed)) => self.failed(number, page, &failed, now),
            Got::Known(number, reading, found, entries) => {
                let found = found.map_err(unreadable)?;
                self.known(number, reading.map(|reading| *reading), found, entries);
                Ok(())
            }
            Got::Record(number, subject, tries, read) => self.record(number, subject, tries, read, now),
        }
    }

    fn page(&mut self, number: u64, fetched: Arc<Fetched>, probed: Option<bool>, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Some(collection) = job.collection().cloned() else { return };
        let run = job.run.id.clone();
        if let Some(thin) = probed {
            let probe = Probe { thin, at: now };
            self.probes.insert(collection.list, probe);
            let what = Written::Probe(collection.list, probe);
            self.ready.push_back(Part { run: run.clone(), job: None, what, bytes: 0 });
        }
        metrics::page_read(collection.list.name(), "read");
        let is_verify = job.run.kind == RunKind::Verify;
        let shown = if is_verify { job.shown_of(&fetched) } else { HashSet::new() };
        if !job.look(&fetched) {
            // It was asked for too early; clocks may have been set.
            job.due = now.saturating_add(self.shared.wait(0));
            return;
        }
        job.marks += 1;
        let mark = (collection.page(self.shard, job.marks), fetched.seen.to_json());
        let bytes = fetched.rows.iter().map(|row| 512 + row.raw.len()).sum::<usize>() + mark.1.len();
        self.waiting_bytes += bytes;
        let what = Written::Page { fetched, mark, shown };
        self.ready.push_back(Part { run, job: Some(number), what, bytes });
    }

    fn failed(&mut self, number: u64, page: u32, failed: &Failed, now: i64) -> Result<(), Failure> {
        let Failed { error, is_alone } = failed;
        let Some(job) = self.jobs.get_mut(&number) else { return Ok(()) };
        let list = job.collection().map_or("", |collection| collection.list.name());
        metrics::page_read(list, "failed");
        let status = error.status.map(|status| format!(" answered {status}")).unwrap_or_default();
        let why = format!("{}{status}: {}", error.endpoint, Chain(&error.cause));
        let named = match error.retry() {
            Retry::After(wait) => Some(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)),
            Retry::Later | Retry::Never => None,
        };
        let reach = if *is_alone { api::Reach::Record } else { error.reach() };
        match (reach, error.retry()) {
            // A rate passes by itself, however long that takes.
            (api::Reach::Record | api::Reach::Company, _) if error.is_rate() => {
                job.goes_on();
                job.due = now.saturating_add(named.unwrap_or_else(|| self.shared.wait(job.tries)));
                Ok(())
            }
            // What is refused for good concerns this list; whether it concerns events as well, those who read records see.
            (api::Reach::Record | api::Reach::Company, _) | (_, Retry::Never) => {
                let grown = self.shared.wait(job.tries);
                let seen = job.fails(page, error, &why, named.unwrap_or(grown), now);
                if let (Some(seen), Some(collection)) = (seen, job.collection().cloned()) {
                    // That a pass is void is kept as a page is.
                    job.marks += 1;
                    job.unwritten += 1;
                    let mark = (collection.page(self.shard, job.marks), seen.to_json());
                    let fetched = Arc::new(Fetched { rows: Vec::new(), seen });
                    let what = Written::Page { fetched, mark, shown: HashSet::new() };
                    let run = job.run.id.clone();
                    self.ready.push_back(Part { run, job: Some(number), what, bytes: 512 });
                }
                Ok(())
            }
            (api::Reach::Grant | api::Reach::Everything, _) => {
                job.goes_on();
                tracing::warn!(
                    connector = &*self.shared.task.connector,
                    shard = self.shard,
                    list,
                    why,
                    "lists wait"
                );
                self.hold(named, now);
                Ok(())
            }
        }
    }

    /// Nothing can be read for now.
    fn hold(&mut self, named: Option<i64>, now: i64) {
        if now >= self.held_until {
            self.holds = self.holds.saturating_add(1);
            let grown = self.shared.wait(self.holds);
            self.held_until = now.saturating_add(named.unwrap_or(grown).max(1));
        }
    }

    fn known(
        &mut self,
        number: u64,
        reading: Option<Reading>,
        found: Vec<(CompanyId, RecordId)>,
        entries: u64,
    ) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let listed = reading.as_ref().and_then(|reading| reading.verdict()?.listed).unwrap_or(0);
        // Of a list that spans companies only the shard's own records can be missing.
        let own = usize::try_from(entries).unwrap_or(usize::MAX);
        let listed = usize::try_from(listed).unwrap_or(0).min(own);
        job.reading = reading;
        let count = found.len();
        let is_list = matches!(job.what, What::List(_));
        let run = job.run.id.clone();
        let is_payroll = matches!(&job.what, What::List(collection) if collection.list.resource().is_none());
        let is_verify = job.run.kind == RunKind::Verify;
        let mut missing = Missing::default();
        if is_payroll {
            // There is no way to ask for one of them: they are named.
            for (_, id) in found {
                missing.gone(&id);
            }
            job.stage = Stage::Missing(missing);
            return;
        }
        missing.waiting = found.into_iter().map(|(company, id)| (company, id, 1)).collect();
        let is_too_much = is_list && !is_verify && count > BRAKE_COUNT.max(listed / BRAKE_SHARE);
        let since = job.answered;
        let is_allowed = self.runs.get(&run).is_some_and(|active| active.ordered_at > since);
        if !is_too_much || is_allowed {
            job.stage = Stage::Missing(missing);
            return;
        }
        let told = format!(
            "{count} known records are not in the list of {}: more than a list loses by itself; look at it, then resume or stop the run",
            job.collection().map(|one| one.list.name()).unwrap_or_default()
        );
        tracing::error!(connector = &*self.shared.task.connector, shard = self.shard, run = %run, told);
        metrics::snapshot_braked();
        job.stage = Stage::Braked(missing, since);
        if let Some(active) = self.runs.get_mut(&run) {
            (active.progress.state, active.progress.reason) = (ShardState::Paused, Some(told));
        }
        self.ready.push_back(Part::standing(&run));
    }

    fn record(
        &mut self,
        number: u64,
        subject: Subject,
        tries: u32,
        read: Result<Bytes, api::Error>,
        now: i64,
    ) -> Result<(), Failure> {
        let Some(job) = self.jobs.get_mut(&number) else { return Ok(()) };
        let Stage::Missing(missing) = &mut job.stage else { return Ok(()) };
        if let Err(error) = &read {
            match (error.reach(), error.retry()) {
                (api::Reach::Record | api::Reach::Company, _) | (_, Retry::Never) if !error.is_rate() => {}
                _ => {
                    missing.open = missing.open.saturating_sub(1);
                    missing.waiting.push_back((subject.company, subject.id, tries));
                    let named = match error.retry() {
                        Retry::After(wait) => Some(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)),
                        Retry::Later | Retry::Never => None,
                    };
                    self.hold(named, now);
                    return Ok(());
                }
            }
        }
        let answer = answer(read.as_ref().map(Bytes::clone), tries);
        if answer == job::Answer::Again {
            job.due = now.saturating_add(self.shared.wait(tries));
        }
        missing.count(subject.company.clone(), subject.id.clone(), tries, &answer);
        if let job::Answer::There(json) = answer
            && job.run.kind != RunKind::Verify
            && let Some(entry) = rows::entry_of_record(&job.run, &subject, &json)
        {
            job.unwritten += 1;
            let (run, bytes) = (job.run.id.clone(), json.len() + 512);
            self.waiting_bytes += bytes;
            self.ready.push_back(Part {
                run,
                job: Some(number),
                what: Written::Record(Box::new(entry)),
                bytes,
            });
        }
        Ok(())
    }

    /// All of a list is read and committed: what is left is its certificate.
    fn end(&mut self, number: u64, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let is_verify = job.run.kind == RunKind::Verify;
        let is_heard = self.shared.stream.borrow().unwrap_or_default();
        let certificate = job.certificate(&self.shared.task.connector, self.shard, is_heard, now);
        let (vanished, unreadable) = match &job.stage {
            Stage::Missing(missing) => {
                (missing.vanished_count + u64::from(is_verify) * missing.unlisted, missing.unreadable)
            }
            _ => (0, 0),
        };
        job.stage = Stage::Ending;
        job.unwritten += 1;
        let marks = job
            .collection()
            .map(|collection| (1..=job.marks).map(|n| collection.page(self.shard, n)).collect::<Vec<_>>());
        let run = job.run.id.clone();
        let is_proved = certificate.as_ref().map_or(unreadable == 0, |one| one.certified);
        let certified = u64::from(is_proved);
        let ended = Ended { lists: 1, certified, vanished };
        if let (Some(certificate), Some(collection)) = (&certificate, job.collection()) {
            metrics::list_ended(collection.list.name(), certificate.method.name());
            if !certificate.certified {
                tracing::warn!(
                    connector = &*self.shared.task.connector,
                    shard = self.shard,
                    list = certificate.list,
                    company = certificate.company_id.as_ref().map(tracing::field::display),
                    reason = certificate.reason.as_deref().unwrap_or_default(),
                    "a list is uncertified"
                );
            }
        }
        // What is compared proves nothing of what is published.
        let certificate = certificate.filter(|_| !is_verify).map(Box::new);
        let what = Written::End { certificate, marks: marks.unwrap_or_default(), ended };
        self.ready.push_back(Part { run, job: Some(number), what, bytes: 512 });
    }

    /// The provider went back in these records: what is counted of their lists counts nothing.
    pub(super) fn went_back(&mut self, keys: &[&Key]) {
        for job in self.jobs.values_mut() {
            let Some(Collection { list, company, .. }) = job.collection() else { continue };
            let lead = Key::fences_of(list.topic(), company.as_ref());
            if keys.iter().any(|key| key.as_str().starts_with(&lead))
                && matches!(job.stage, Stage::Pages | Stage::Asking)
                && let Some(reading) = &mut job.reading
            {
                reading.end("the provider went back to older versions while it was read");
                // What was asked for comes, and is of no use.
                job.goes_on();
            }
        }
    }

    /// Whether there is anything to commit.
    pub(super) fn has_parts(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When there is something to begin that nobody tells of.
    pub(super) fn wake_at(&self, now: i64) -> Option<i64> {
        let due = self.jobs.values().filter(|job| matches!(job.stage, Stage::Pages | Stage::Missing(_)));
        let due = due.map(|job| job.due.max(self.held_until));
        due.chain([self.held_until]).filter(|at| *at > now).min()
    }

    /// Adds what there is to a batch, at most so many bytes of it.
    ///
    /// # Errors
    /// The store failed.
    pub(super) fn add_to(
        &mut self,
        batch: &mut Batch,
        (shelf, desk): (&Shelf, &Desk),
        room: usize,
        now: i64,
    ) -> Result<(), Failure> {
        let mut compared = Compared::new(batch);
        let mut taken = 0;
        let mut runs: Vec<RunId> = Vec::new();
        while let Some(part) = self.ready.front() {
            if taken > 0 && taken + part.bytes > room {
                break;
            }
            taken += part.bytes;
            let Some(part) = self.ready.pop_front() else { break };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(part.bytes);
            self.add_part(batch, &part, &mut compared, (shelf, desk), now)?;
            if !runs.contains(&part.run) {
                runs.push(part.run.clone());
            }
            self.committing.push(part);
        }
        for run in runs {
            let current: Vec<_> = self.jobs.values().filter(|job| job.run.id == run).collect();
            let current = current.iter().filter_map(|job| job.progress()).take(NAMED).collect();
            let Some(active) = self.runs.get_mut(&run) else { continue };
            (active.progress.updated_at, active.progress.current) = (now, current);
            if active.progress.state.is_over() {
                active.progress.current.clear();
            }
            batch.state.push((active.progress.key(), Some(state::json(&active.progress))));
        }
        Ok(())
    }

    fn add_part(
        &mut self,
        batch: &mut Batch,
        part: &Part,
        compared: &mut Compared,
        (shelf, desk): (&Shelf, &Desk),
        now: i64,
    ) -> Result<(), Failure> {
        let Some(active) = self.runs.get_mut(&part.run) else { return Ok(()) };
        let run = Arc::clone(&active.run);
        let stored = |key: &Key| -> Result<Option<Stamp>, Failure> { shelf.get(key).map_err(unreadable) };
        match &part.what {
            Written::Standing => {}
            Written::Probe(list, probe) => {
                batch.state.push((state::probe(self.shard, *list), Some(state::json(probe))));
            }
            Written::Record(entry) => {
                let before = batch.entries.len();
                compared.add_record(batch, (**entry).clone(), &stored)?;
                let published = (batch.entries.len() - before) as u64;
                active.progress.published += published;
                if let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) {
                    job.published += published;
                }
            }
            Written::Forgotten(marks) => batch.state.extend(marks.iter().map(|mark| (mark.clone(), None))),
            Written::End { certificate, marks, ended } => {
                batch.state.extend(marks.iter().map(|mark| (mark.clone(), None)));
                let asked_at = run.requested_at;
                batch.certificates.extend(certificate.as_deref().map(|one| (one.clone(), asked_at)));
                // With its certificate, and not before: it must not be counted twice.
                let Ended { lists, certified, vanished } = *ended;
                active.progress.ended += lists;
                active.progress.certified += certified;
                active.progress.vanished += vanished;
                if run.kind == RunKind::Verify && vanished > 0 {
                    *active.progress.differences.entry("unlisted".to_owned()).or_default() += vanished;
                }
            }
            Written::Page { fetched, mark, shown } => {
                let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) else { return Ok(()) };
                let Some(collection) = job.collection().cloned() else { return Ok(()) };
                let is_thin = match self.shared.source.snapshot.rows {
                    Rows::Thin => collection.list.resource().is_some(),
                    Rows::Full => false,
                    // What nobody could compare may be less than its record.
                    Rows::Probe => {
                        let probe = self.probes.get(&collection.list);
                        collection.list.resource().is_some() && probe.is_none_or(|probe| probe.thin)
                    }
                };
                let is_own =
                    |key: &Key| !collection.list.spans_companies() || self.shared.shard_of(key) == self.shard;
                let context = rows::Context { run: &run, list: collection.list, is_thin, now, desk };
                let own = fetched.rows.iter().filter(|row| is_own(&row.key) && !shown.contains(&row.key));
                let tally = compared.add_rows(batch, context, own, &stored)?;
                job.published += tally.published;
                active.progress.pages += 1;
                active.progress.rows += tally.rows;
                active.progress.published += tally.published;
                for (kind, count) in tally.differences {
                    *active.progress.differences.entry(kind.to_owned()).or_default() += count;
                }
                metrics::list_rows(collection.list.name(), tally.rows);
                job.unusable += tally.unusable;
                job.asked_for.extend(tally.parked.iter().map(|parked| parked.subject.clone()));
                self.adopting.extend(tally.parked);
                self.looking_back.extend(tally.below);
                batch.state.push((mark.0.clone(), Some(mark.1.clone())));
            }
        }
        Ok(())
    }

    /// The batch is committed.
    pub(super) fn committed(&mut self, desk: &mut Desk, now: i64) {
        for parked in self.adopting.drain(..) {
            desk.adopt_row(parked, now);
        }
        for (wanted, event) in self.looking_back.drain(..) {
            desk.look_back(wanted, event, now);
        }
        for part in std::mem::take(&mut self.committing) {
            let Some(number) = part.job else {
                self.end_if_done(&part.run, now);
                continue;
            };
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            job.unwritten = job.unwritten.saturating_sub(1);
            if matches!(part.what, Written::End { .. }) {
                let collection = job.collection().cloned();
                self.jobs.remove(&number);
                self.done.extend(collection);
                if let Some(active) = self.runs.get_mut(&part.run) {
                    active.open = active.open.saturating_sub(1);
                }
                self.end_if_done(&part.run, now);
            }
        }
    }

    /// A run whose last list is over is over, once that is written.
    fn end_if_done(&mut self, run: &RunId, now: i64) {
        let Some(active) = self.runs.get_mut(run) else { return };
        if active.progress.state.is_over() {
            // It is written: that was the last of it.
            let is_written = !self.ready.iter().any(|part| part.run == *run);
            if is_written && let Some(active) = self.runs.remove(run) {
                self.done.retain(|collection| collection.run != *run);
                self.progress.insert(run.clone(), active.progress);
            }
            return;
        }
        if active.is_planned && active.waiting.is_empty() && active.open == 0 {
            (active.progress.state, active.progress.ended_at) = (ShardState::Ended, Some(now));
            let Progress { lists, certified, rows, published, .. } = active.progress;
            tracing::info!(connector = &*self.shared.task.connector, shard = self.shard, %run, lists, certified, rows,
                published, "a run is over in this shard");
            self.ready.push_back(Part::standing(run));
        }
    }
}

impl Part {
    fn standing(run: &RunId) -> Self {
        Self { run: run.clone(), job: None, what: Written::Standing, bytes: 0 }
    }
}

fn standing(wanted: Wanted) -> ShardState {
    match wanted {
        Wanted::Paused => ShardState::Paused,
        Wanted::Running | Wanted::Stopped => ShardState::Running,
    }
}

/// Reads a page, and compares some of its rows with their records where nobody knows yet what rows are.
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
        let read = shared.pages.read(&asked).await;
        let read = match read {
            Ok(fetched) if probes => {
                let (list, company) = (asked.list, asked.company.as_ref());
                let thin = probe::is_thin(&shared.accounting, list, company, &fetched.rows).await;
                Ok((fetched, thin))
            }
            Ok(fetched) => Ok((fetched, None)),
            Err(error) => {
                let is_alone = may_be_alone(&error) && shared.pages.answers(&asked).await;
                Err(Failed { error, is_alone })
            }
        };
        Got::Page(number, asked.number, read)
    }
    .boxed()
}

/// Whether it says nothing of who is to blame: the page or all that is behind it.
fn may_be_alone(error: &api::Error) -> bool {
    use api::Cause::{Cut, NotJson, Server, Timeout, Unreachable};
    error.reach() == api::Reach::Everything
        && matches!(error.cause, Server { .. } | Unreachable(_) | Timeout { .. } | NotJson | Cut(_))
}

fn ask_record(
    shared: &Arc<Shared>,
    number: u64,
    subject: Subject,
    lane: api::Lane,
    tries: u32,
) -> BoxFuture<'static, Got> {
    let shared = Arc::clone(shared);
    async move {
        // Nobody closes it.
        let _slot = shared.page_slots.acquire().await;
        let ask = Ask::within(lane, READ_LIMIT);
        let read = shared.accounting.record(subject.resource, subject.context(), &subject.id, &ask).await;
        Got::Record(number, subject, tries, read.map(|document| document.json))
    }
    .boxed()
}
