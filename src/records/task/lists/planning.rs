//! Which runs are taken up, and which of their lists are this shard's.

use std::{collections::VecDeque, sync::Arc};

use model::{CompanyId, DesiredRunState, Key, List, Run, RunId, RunKind, RunProgress, ShardState};

use super::{
    super::directory::Listed, Active, Job, Lists, MOST_HELD, MOST_RUNS, Ordered, Part, Plan, Strangers, What,
    writing::kept_of,
};
use crate::records::schedule::Companies as _;

impl Lists {
    /// Looks at what is asked for, and begins, holds or ends runs.
    pub(in crate::records::task) fn look(&mut self, now: i64) {
        let orders = Arc::clone(&*self.orders.borrow_and_update());
        for Ordered { run, wanted, at, filter } in &*orders {
            let is_over = |progress: &RunProgress| progress.is_of(run) && progress.state.is_over();
            if self.state.progress.get(&run.id).is_some_and(is_over) {
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
            if *wanted == DesiredRunState::Stopped {
                self.stop(&run.id, now);
            }
        }
        self.plan(now);
    }

    /// Whether one more run may be taken up: those that wait for people keep nobody waiting, and one that shall stop is heard.
    fn may_begin(&self, wanted: DesiredRunState) -> bool {
        let is_busy = |active: &&Active| {
            active.wanted == DesiredRunState::Running && active.progress.state == ShardState::Running
        };
        let busy = self.runs.values().filter(is_busy).count();
        wanted == DesiredRunState::Stopped
            || (busy < MOST_RUNS && self.runs.len() < MOST_HELD && self.shared.stream.borrow().is_some())
    }

    fn begin_run(&mut self, run: &Arc<Run>, wanted: DesiredRunState, filter: Option<String>, now: i64) {
        let fresh = || RunProgress::new(run, self.shard, standing(wanted), now);
        let begun = self.state.progress.get(&run.id).filter(|progress| progress.is_of(run));
        let is_begun = begun.is_some();
        let mut progress = begun.cloned().unwrap_or_else(fresh);
        if run.kind == RunKind::Verify {
            // What was compared is not kept: it is compared anew.
            let (started_at, filter) = (progress.started_at, progress.filter.clone());
            progress = RunProgress { started_at, filter, ..fresh() };
        }
        (progress.state, progress.reason) = (standing(wanted), None);
        progress.requested_at = run.requested_at;
        // What was begun with one filter is not gone on with another.
        if !is_begun {
            progress.filter = filter;
        }
        // Lists are counted as they are planned, anew after a crash.
        progress.lists = progress.ended;
        // One that is not configured any more has no topic.
        let source = &self.shared.source;
        let lists: Vec<List> = run.lists.iter().copied().filter(|list| source.publishes(*list)).collect();
        let is_of_all = Plan::is_of_all(run, source.snapshot.companies.is_some());
        let active = Active {
            run: Arc::clone(run),
            wanted,
            ordered_at: 0,
            waiting: VecDeque::new(),
            open: 0,
            progress,
            plan: Plan::new(run, &lists, is_of_all),
            strangers: Strangers::of(run, &lists),
        };
        self.runs.insert(run.id.clone(), active);
        self.ready.push_back(Part::standing(&run.id));
        self.plan_at_once(run, &lists, now);
    }

    /// Plans what needs no company, and companies that an owner before has seen in the run's own list of them.
    fn plan_at_once(&mut self, run: &Run, lists: &[List], now: i64) {
        let Some(active) = self.runs.get_mut(&run.id) else { return };
        let is_over = |again| self.state.cursors.get(&again).is_some_and(|cursor| cursor.is_over);
        let again = run.known.iter().filter(|one| !is_over((run.id.clone(), run.requested_at, **one)));
        let spanning = lists.iter().filter(|list| list.spans_companies());
        let spanning = spanning.map(|list| active.plan.collection(*list, None));
        let spanning = spanning.filter(|collection| !self.state.over.contains(collection));
        let all: Vec<What> =
            again.map(|resource| What::Known(*resource)).chain(spanning.map(What::List)).collect();
        active.progress.lists += all.len() as u64;
        active.waiting.extend(all);
        let mut shown = Vec::new();
        self.state.pages.retain(|kept, _| {
            let company = active.plan.shown_in(kept);
            let is_list = company.is_none();
            shown.extend(company);
            is_list
        });
        for company in &shown {
            active.plan.show(company);
        }
        self.plan_companies(&run.id, shown);
        self.end_if_done(&run.id, now);
    }

    /// Plans the lists of companies once these are known, or it is known that they cannot be.
    fn plan(&mut self, now: i64) {
        let is_open = |active: &&Active| !active.plan.is_settled();
        let runs: Vec<Arc<Run>> =
            self.runs.values().filter(is_open).map(|active| Arc::clone(&active.run)).collect();
        for run in runs {
            let (companies, unknown) = match self.companies_of(&run) {
                Listed::Unread => {
                    self.shared.directory.ask();
                    continue;
                }
                Listed::Whole(companies) => (companies, None),
                Listed::Part(companies, why) => (companies, Some(why)),
            };
            self.plan_companies(&run.id, companies);
            let Some(active) = self.runs.get_mut(&run.id) else { continue };
            active.plan.settle(unknown);
            self.ready.push_back(Part::standing(&run.id));
            self.end_if_done(&run.id, now);
        }
    }

    /// Whose lists a run reads, in whichever shard.
    fn companies_of(&self, run: &Run) -> Listed {
        match (&run.companies, &self.shared.source.snapshot.companies) {
            (Some(named), _) => Listed::Whole(named.iter().cloned().collect()),
            (None, Some(named)) if run.kind != RunKind::Repair => {
                Listed::Whole(named.iter().cloned().collect())
            }
            (None, _) => {
                // A company that came during a gap is in no reading from before its end; a snapshot may close that gap, too, and
                // has to know of the company by itself where its own lists do not tell.
                let is_told = run.kind != RunKind::Repair && run.lists.contains(&List::Companies);
                let since = if is_told { i64::MIN } else { run.requested_at };
                self.shared.directory.listed_since(since)
            }
        }
    }

    /// Plans the lists of those of these companies that are this shard's.
    pub(super) fn plan_companies(&mut self, run: &RunId, companies: Vec<CompanyId>) {
        let Some(active) = self.runs.get_mut(run) else { return };
        let is_own = |company: &CompanyId| self.shared.shard_of(&Key::company(company)) == self.shard;
        let lists = active.plan.add(companies.into_iter().filter(is_own)).into_iter();
        let open: Vec<What> =
            lists.filter(|collection| !self.state.over.contains(collection)).map(What::List).collect();
        active.progress.lists += open.len() as u64;
        active.waiting.extend(open);
    }

    /// Lists that wait because too much is missing go on once a person has said so since.
    fn release(&mut self, run: &RunId, wanted: DesiredRunState, at: i64) {
        if wanted != DesiredRunState::Running {
            return;
        }
        let mut is_released = false;
        for job in self.jobs.values_mut().filter(|job| job.run.id == *run) {
            is_released |= job.release(at);
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
        // Nothing more is planned.
        active.plan.settle(None);
        let own: Vec<&Job> = self.jobs.values().filter(|job| job.run.id == *run).collect();
        let mut forgotten: Vec<Key> = own.iter().flat_map(|job| job.kept(self.shard)).collect();
        // One of them may be ending just now.
        let over =
            own.iter().filter_map(|job| job.collection()).map(|collection| collection.over(self.shard));
        forgotten.extend(over);
        forgotten.extend(kept_of(active, &self.state.over, self.shard));
        let void = self.state.void.extract_if(|collection| collection.run == *run);
        forgotten.extend(void.map(|collection| collection.void(self.shard)));
        self.jobs.retain(|_, job| job.run.id != *run);
        self.state.pages.retain(|collection, pages| {
            let is_other = collection.run != *run;
            if !is_other {
                forgotten.extend(pages.keys().map(|n| collection.page(self.shard, *n)));
            }
            is_other
        });
        // Pages that wait would be kept again after they are forgotten.
        self.ready.retain(|part| part.run != *run);
        self.waiting_bytes = self.ready.iter().map(|part| part.bytes).sum();
        // Some at a time, once it is written that it is over.
        self.forgotten.extend(forgotten);
        self.ready.push_back(Part::standing(run));
    }
}

fn standing(wanted: DesiredRunState) -> ShardState {
    match wanted {
        DesiredRunState::Paused => ShardState::Paused,
        DesiredRunState::Running | DesiredRunState::Stopped => ShardState::Running,
    }
}
