//! Which runs are taken up, and which of their lists are this shard's.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::{Active, Collection, Lists, MOST_HELD, MOST_RUNS, Ordered, Part, Stage, What, Written, job::Job};
use crate::{
    enrich::Companies as _,
    model::{CompanyId, Key, List, Progress, Run, RunId, RunKind, ShardState, Wanted},
};

impl Lists {
    /// Looks at what is asked for, and begins, holds or ends runs.
    pub(in crate::worker::records) fn look(&mut self, now: i64) {
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
            repaired: BTreeMap::new(),
            contents: 0,
            disabled: 0,
            unread: 0,
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
}

fn standing(wanted: Wanted) -> ShardState {
    match wanted {
        Wanted::Paused => ShardState::Paused,
        Wanted::Running | Wanted::Stopped => ShardState::Running,
    }
}
