//! Starts, pauses and stops runs, and plans which companies' lists a run reads in this shard.
//!
//! Companies come from three sources: the run or the configuration names them, the directory shows them, or the run's own list of
//! companies shows them, page by page. The first source that has a company plans its lists. Companies from the run's own list are
//! stored until the run ends: after a crash its pages are not read again, and the directory may show less by then.
//!
//! The plan is complete once the directory has been read to its end and the run's own list has ended. If the directory cannot be read
//! to its end, the run continues with the companies that it knows. At its end it reports that, unless its own list is certified:
//! then the lists of every listed company have been planned.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use model::{CompanyId, DesiredRunState, Key, List, Run, RunId, RunKind, RunProgress, ShardState};

use super::{
    super::{directory::Listed, state::Collection},
    Active, Job, Lists, MOST_HELD, MOST_RUNS, Ordered, Part, Strangers, What,
    writing::kept_of,
};
use crate::records::schedule::Companies as _;

/// The companies of a run whose lists are planned.
#[derive(Debug)]
pub(super) struct Plan {
    run: RunId,
    requested_at: i64,
    /// Lists to read of each company.
    lists: Vec<List>,
    /// Whether the run reads all companies, and not only named ones.
    is_of_all: bool,
    /// Companies whose lists are planned.
    planned: HashSet<CompanyId>,
    /// Companies that the run's own list has shown.
    shown: HashSet<CompanyId>,
    /// No more companies will come from the directory.
    is_settled: bool,
    /// Why there may be unknown companies.
    unknown: Option<String>,
}

impl Plan {
    /// A plan without companies. `lists` are the lists of the run that this connector publishes.
    pub(super) fn new(run: &Run, lists: &[List], is_of_all: bool) -> Self {
        let lists: Vec<List> = lists.iter().copied().filter(|list| !list.spans_companies()).collect();
        Self {
            run: run.id.clone(),
            requested_at: run.requested_at,
            is_settled: lists.is_empty(),
            lists,
            is_of_all,
            planned: HashSet::new(),
            shown: HashSet::new(),
            unknown: None,
        }
    }

    /// Whether a run reads all companies. `configured`: the configuration names companies.
    pub(super) fn is_of_all(run: &Run, configured: bool) -> bool {
        // A gap may affect every company whose events are read, not only the configured ones.
        run.companies.is_none() && (!configured || run.kind == RunKind::Repair)
    }

    /// Adds companies. Returns their lists that were not planned yet, company by company, so that the lists of one company end early.
    pub(super) fn add(&mut self, companies: impl IntoIterator<Item = CompanyId>) -> Vec<Collection> {
        let mut found = Vec::new();
        for company in companies {
            if self.lists.is_empty() || !self.planned.insert(company.clone()) {
                continue;
            }
            found.extend(self.lists.iter().map(|list| self.collection(*list, Some(company.clone()))));
        }
        found
    }

    /// Adds a company that the run's own list shows. Returns whether it is new and has to be stored.
    pub(super) fn show(&mut self, company: &CompanyId) -> bool {
        self.is_of_all && !self.lists.is_empty() && self.shown.insert(company.clone())
    }

    /// The stored marks of all shown companies.
    pub(super) fn kept(&self) -> impl Iterator<Item = Collection> {
        self.shown.iter().map(|company| self.shown_as(company))
    }

    /// The stored mark of a shown company. Its key looks like a list of the company that has page 0 only.
    pub(super) fn shown_as(&self, company: &CompanyId) -> Collection {
        self.collection(List::Companies, Some(company.clone()))
    }

    /// The company of a mark, if the mark is of this run.
    pub(super) fn shown_in(&self, kept: &Collection) -> Option<CompanyId> {
        let is_own =
            (&kept.run, kept.requested_at, kept.list) == (&self.run, self.requested_at, List::Companies);
        kept.company.clone().filter(|_| is_own)
    }

    /// Completes the plan; `unknown` says why there may be unknown companies.
    pub(super) fn settle(&mut self, unknown: Option<String>) {
        (self.is_settled, self.unknown) = (true, unknown);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Why there may be companies whose lists were not read; `None` if the run's own list of companies is certified.
    pub(super) fn unknown(&self, is_proved: bool) -> Option<&str> {
        self.unknown.as_deref().filter(|_| !is_proved)
    }

    pub(super) fn collection(&self, list: List, company: Option<CompanyId>) -> Collection {
        Collection { run: self.run.clone(), requested_at: self.requested_at, list, company }
    }
}

impl Lists {
    /// Applies the orders: starts, pauses, resumes or stops runs.
    pub(in crate::records::task) fn apply_orders(&mut self, now: i64) {
        let orders = Arc::clone(&*self.shared.lists.orders.borrow());
        for Ordered { run, wanted, at, filter } in &*orders {
            let is_over = |progress: &RunProgress| progress.is_of(run) && progress.state.is_over();
            if self.state.progress.get(&run.id).is_some_and(is_over) {
                continue;
            }
            if let Some(active) = self.runs.get_mut(&run.id) {
                if active.wanted != *wanted {
                    active.wanted = *wanted;
                    active.progress.state = standing(*wanted);
                    self.parts.ready.push_back(Part::standing(&run.id));
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

    /// Whether one more run may start. Runs that wait for an operator do not count, and a run to stop is always taken.
    fn may_begin(&self, wanted: DesiredRunState) -> bool {
        let is_busy = |active: &&Active| {
            active.wanted == DesiredRunState::Running && active.progress.state == ShardState::Running
        };
        let busy = self.runs.values().filter(is_busy).count();
        wanted == DesiredRunState::Stopped
            || (busy < MOST_RUNS
                && self.runs.len() < MOST_HELD
                && self.shared.lists.stream.borrow().is_some())
    }

    fn begin_run(&mut self, run: &Arc<Run>, wanted: DesiredRunState, filter: Option<String>, now: i64) {
        let fresh = || RunProgress::new(run, self.shard, standing(wanted), now);
        let begun = self.state.progress.get(&run.id).filter(|progress| progress.is_of(run));
        let is_begun = begun.is_some();
        let mut progress = begun.cloned().unwrap_or_else(fresh);
        if run.kind == RunKind::Verify {
            // Results of comparisons are not stored, so a verification starts from zero.
            let (started_at, filter) = (progress.times.started_at, progress.filter.take());
            progress = RunProgress { filter, ..fresh() };
            progress.times.started_at = started_at;
        }
        (progress.state, progress.reason) = (standing(wanted), None);
        progress.of.requested_at = run.requested_at;
        // A started run keeps its filter.
        if !is_begun {
            progress.filter = filter;
        }
        // Lists are counted when they are planned, and again after a crash.
        progress.lists.total = progress.lists.ended;
        // A list that is no longer configured has no topic.
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
            views: BTreeMap::new(),
        };
        self.runs.insert(run.id.clone(), active);
        self.parts.ready.push_back(Part::standing(&run.id));
        self.plan_at_once(run, &lists, now);
    }

    /// Plans the lists that need no company, and companies that the run's own list has shown to a previous owner.
    fn plan_at_once(&mut self, run: &Run, lists: &[List], now: i64) {
        let Some(active) = self.runs.get_mut(&run.id) else { return };
        let is_over = |again| self.state.cursors.get(&again).is_some_and(|cursor| cursor.is_over);
        let again = run.known.iter().filter(|one| !is_over((run.id.clone(), run.requested_at, **one)));
        let spanning = lists.iter().filter(|list| list.spans_companies());
        let spanning = spanning.map(|list| active.plan.collection(*list, None));
        let spanning = spanning.filter(|collection| !self.state.over.contains(collection));
        let (led, followed): (Vec<_>, Vec<_>) =
            spanning.partition(|collection| self.shared.lists.spanning.leads(collection, self.shard));
        let all: Vec<What> =
            again.map(|resource| What::Known(*resource)).chain(led.into_iter().map(What::List)).collect();
        active.progress.lists.total += (all.len() + followed.len()) as u64;
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
        // The leader requests nothing before all followers have started, so these do not wait for a place among the open lists.
        let run = Arc::clone(&active.run);
        for collection in followed {
            self.begin_job(Arc::clone(&run), What::List(collection), now);
        }
        self.plan_companies(&run.id, shown);
        self.end_if_done(&run.id, now);
    }

    /// Plans the lists of companies once the directory has been read, or has turned out to be incomplete.
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
            self.parts.ready.push_back(Part::standing(&run.id));
            self.end_if_done(&run.id, now);
        }
    }

    /// The companies whose lists a run reads, of all shards.
    fn companies_of(&self, run: &Run) -> Listed {
        match (&run.companies, &self.shared.source.snapshot.companies) {
            (Some(named), _) => Listed::Whole(named.iter().cloned().collect()),
            (None, Some(named)) if run.kind != RunKind::Repair => {
                Listed::Whole(named.iter().cloned().collect())
            }
            (None, _) => {
                // An earlier reading lacks companies that were created during a gap, which this run may close. A snapshot with its own
                // list of companies finds them there.
                let is_told = run.kind != RunKind::Repair && run.lists.contains(&List::Companies);
                let since = if is_told { i64::MIN } else { run.requested_at };
                self.shared.directory.listed_since(since)
            }
        }
    }

    /// Plans the lists of companies that belong to this shard.
    pub(super) fn plan_companies(&mut self, run: &RunId, companies: Vec<CompanyId>) {
        let Some(active) = self.runs.get_mut(run) else { return };
        let is_own = |company: &CompanyId| self.shared.shard_of(&Key::company(company)) == self.shard;
        let lists = active.plan.add(companies.into_iter().filter(is_own)).into_iter();
        let open: Vec<What> =
            lists.filter(|collection| !self.state.over.contains(collection)).map(What::List).collect();
        active.progress.lists.total += open.len() as u64;
        active.waiting.extend(open);
    }

    /// Continues braked lists after an operator resumed the run.
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
            self.parts.ready.push_back(Part::standing(run));
        }
    }

    /// Stops a run, and removes the stored state of its lists.
    fn stop(&mut self, run: &RunId, now: i64) {
        let Some(active) = self.runs.get_mut(run) else { return };
        if active.progress.state.is_over() {
            return;
        }
        (active.progress.state, active.progress.times.ended_at) = (ShardState::Stopped, Some(now));
        active.waiting.clear();
        // Nothing more is planned.
        active.plan.settle(None);
        let own: Vec<&Job> = self.jobs.values().filter(|job| job.run.id == *run).collect();
        let mut forgotten: Vec<Key> = own.iter().flat_map(|job| job.kept(self.shard)).collect();
        // The end of a list may be in the batch in flight.
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
        // Waiting parts would write pages again after their removal.
        self.parts.ready.retain(|part| part.run != *run);
        self.parts.waiting_bytes = self.parts.ready.iter().map(|part| part.bytes).sum();
        // They are removed in parts, after the state "stopped" is written.
        self.parts.forgotten.extend(forgotten);
        self.shared.lists.spanning.forget(run);
        self.parts.ready.push_back(Part::standing(run));
    }
}

fn standing(wanted: DesiredRunState) -> ShardState {
    match wanted {
        DesiredRunState::Paused => ShardState::Paused,
        DesiredRunState::Running | DesiredRunState::Stopped => ShardState::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: RunKind, companies: Option<&[&str]>) -> Run {
        serde_json::from_value(serde_json::json!({
            "connector": "records", "id": "r", "kind": kind.name(), "lists": ["companies", "customers", "accounts"],
            "companies": companies, "requestedBy": "test", "requestedAt": 1,
        }))
        .unwrap()
    }

    fn company(id: &str) -> CompanyId {
        CompanyId::new(id).unwrap()
    }

    fn plan(lists: &[List]) -> Plan {
        Plan::new(&run(RunKind::Snapshot, None), lists, true)
    }

    #[test]
    fn lists_of_a_company_are_planned_once() {
        let mut plan = plan(&List::ALL);

        let first = plan.add([company("a")]);
        let rest = plan.add([company("a"), company("b")]);

        let names = |found: Vec<Collection>| -> Vec<(String, List)> {
            found.into_iter().map(|one| (one.company.unwrap().to_string(), one.list)).collect()
        };
        let both = |id: &str| vec![(id.to_owned(), List::Customers), (id.to_owned(), List::Accounts)];
        assert_eq!((names(first), names(rest)), (both("a"), both("b")));
    }

    #[test]
    fn a_run_waits_for_companies_only_where_it_reads_lists_of_theirs() {
        assert!(plan(&[List::Companies, List::Payroll]).is_settled());

        let mut plan = plan(&List::ALL);
        assert!(!plan.is_settled());
        plan.settle(Some("it is empty".to_owned()));
        assert_eq!((plan.is_settled(), plan.unknown(false)), (true, Some("it is empty")));
    }

    #[test]
    fn a_proved_list_of_companies_leaves_nothing_unknown_and_ends_no_waiting() {
        let mut plan = plan(&List::ALL);
        assert_eq!(plan.unknown(true), None);
        assert!(!plan.is_settled(), "the directory may know of companies that an empty list does not show");

        plan.settle(Some("it repeats itself".to_owned()));
        assert_eq!((plan.is_settled(), plan.unknown(true)), (true, None));
        assert_eq!(plan.unknown(false), Some("it repeats itself"));
    }

    #[test]
    fn where_companies_were_named_no_other_is_read() {
        let mut plan = Plan::new(&run(RunKind::Snapshot, Some(&["a"])), &List::ALL, false);

        assert!(!plan.show(&company("b")));
        for (kind, named, configured, is_of_all) in [
            (RunKind::Snapshot, None, false, true),
            (RunKind::Snapshot, None, true, false),
            (RunKind::Repair, None, true, true),
            (RunKind::Repair, Some(&["a"][..]), false, false),
        ] {
            assert_eq!(Plan::is_of_all(&run(kind, named), configured), is_of_all, "{kind:?} {named:?}");
        }
    }

    #[test]
    fn shown_companies_are_restored_for_their_run_only() {
        let mut plan = plan(&List::ALL);
        assert!(plan.show(&company("a/b")) && !plan.show(&company("a/b")));

        let kept: Vec<Collection> = plan.kept().collect();

        assert_eq!(kept.len(), 1);
        assert_eq!(plan.shown_in(&kept[0]), Some(company("a/b")));
        assert_eq!(plan.shown_in(&plan.collection(List::Companies, None)), None, "the list itself");
        assert_eq!(plan.shown_in(&plan.collection(List::Customers, Some(company("c")))), None, "a list");
        let other = Collection { requested_at: 2, ..kept[0].clone() };
        assert_eq!(plan.shown_in(&other), None, "of an earlier run of that name");
    }
}
