//! Runs of a connector: each task passes the requested runs to its shards, and the first task requests the automatic ones.
//!
//! ```text
//! state topic ─▶ runs and orders ─▶ Orders ─▶ the shards of this task
//!        ▲           └─ first task: snapshot.mode, schedules, gaps ─┐
//!        └─────────────────────────────────────── put ◀─────────────┘
//! ```
//!
//! Payroll has a separate login. While that is unusable, runs are requested without the payroll list, so that the other lists can be
//! certified. Once it is usable, a run of payroll alone follows the one that was requested without it.
//!
//! Payroll has no webhooks, so its changes are found only in its list. `payroll.incremental.schedule` requests runs that read what has
//! changed since the last certified run of the whole list (`changes.rs`). Until there is one, they read the whole list.
//!
//! The id of an automatic run is derived from its cause. So the next first task, or a concurrent one, requests the same run, and
//! nothing is read twice. A gap is closed only by certified lists that were read after it ended. If no list covers the gap, all known
//! records are read again, and the state of the gap shows operators that unknown records may be missing.

mod changes;
mod timetable;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use base::retry::ErrorChain;
use model::{
    AccountingResource, CompanyId, Gap, GapState, Key, List, Repair, RepairState, Run, RunCommand, RunId,
    RunKind, RunProgress, Target, Verification,
};

pub(super) use self::changes::checked_filter;
use self::timetable::{Due, Timetable};
use super::{
    lists::{Ordered, Orders},
    now,
};
use crate::{
    config::{RecordSource, connector::SnapshotMode},
    logins::{GrantWatch, payroll_waits},
    plugin::{Failure, Task},
    state::{
        runs::{RunPhase, Runs},
        state_topic::{self, StateTopic},
        subscriptions::SubscriptionState,
    },
};

/// How often to check for due work without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two checks.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Concurrent repair runs. Other gaps wait, and the same runs may close them.
const MOST_REPAIRS: usize = 4;
/// Finished runs to keep, beside those of the payroll schedule.
const KEPT_RUNS: usize = 50;
/// Finished runs of the payroll schedule to keep. They may be requested every minute, and must not displace others.
const KEPT_PAYROLL_RUNS: usize = 10;
/// Id suffix of a run that reads payroll after the run of the same cause was requested without it.
const PAYROLL_SUFFIX: &str = "-payroll";

/// Follows the runs of a connector, and requests automatic ones if it belongs to the first task.
pub(super) struct Follower {
    pub(super) task: Arc<Task>,
    pub(super) source: RecordSource,
    pub(super) handle: StateTopic,
    pub(super) orders: watch::Sender<Orders>,
    pub(super) begun_at: i64,
    /// The login for payroll, if configured.
    pub(super) payroll: Option<GrantWatch>,
    /// The last logged reason why payroll waits.
    pub(super) waits: Option<String>,
}

impl Follower {
    /// Runs until it is cancelled. Failed writes are retried.
    ///
    /// # Errors
    /// None so far.
    pub(super) async fn run(mut self, cancel: CancellationToken) -> Result<(), Failure> {
        let mut changes = self.handle.changes();
        let mut timetables = Timetable::all(&self.source, self.begun_at);
        loop {
            changes.borrow_and_update();
            self.publish_orders();
            if self.task.number == 0
                && let Some(Err(error)) = cancel.run_until_cancelled(self.request_runs(&mut timetables)).await
            {
                tracing::warn!(connector = &*self.task.connector, error = %ErrorChain(&error), "cannot write runs or repairs to the state topic; retrying");
            }
            // Shards report their progress often.
            if cancel.run_until_cancelled(sleep(MIN_INTERVAL)).await.is_none() {
                return Ok(());
            }
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                changed = changes.changed() => if changed.is_err() { sleep(POLL_INTERVAL).await },
                () = logged_in(&mut self.payroll) => {}
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Configured lists that can be read now; `None` while it is unknown whether the payroll login exists.
    fn readable(&mut self) -> Option<BTreeSet<List>> {
        let mut lists = self.source.snapshot.lists.clone();
        let Some(login) = &mut self.payroll else { return Some(lists) };
        if !login.is_known() {
            return None;
        }
        let waits = login.problem().as_ref().map(payroll_waits);
        if waits.is_some() {
            lists.remove(&List::Payroll);
        }
        if waits != self.waits {
            match &waits {
                Some(why) => tracing::warn!(connector = &*self.task.connector, "{why}"),
                None => {
                    tracing::info!(
                        connector = &*self.task.connector,
                        "the payroll login is usable; reading payroll"
                    )
                }
            }
            self.waits = waits;
        }
        Some(lists)
    }

    /// Publishes the open runs to the shards.
    fn publish_orders(&self) {
        let shards = self.handle.shards();
        let orders = self.handle.read_runs(&self.task.connector, |runs| orders(runs, shards, &self.source));
        let what = |one: &Ordered| (one.run.id.clone(), one.wanted, one.at, one.filter.clone());
        self.orders.send_if_modified(|known| {
            let is_new = !known.iter().map(what).eq(orders.iter().map(what));
            if is_new {
                *known = Arc::new(orders);
            }
            is_new
        });
    }

    async fn request_runs(&mut self, timetables: &mut [Timetable]) -> Result<(), state_topic::Error> {
        let runs = self.handle.runs(&self.task.connector);
        let shards = self.handle.shards();
        if let Some(lists) = self.readable() {
            self.request_by_mode(&runs, shards, &lists).await?;
            for timetable in timetables {
                self.request_by_schedule(&runs, shards, &lists, timetable).await?;
            }
        }
        self.repair_gaps(&runs, shards).await?;
        self.delete_expired(&runs, shards).await
    }

    async fn request_by_mode(
        &self,
        runs: &Runs,
        shards: i32,
        lists: &BTreeSet<List>,
    ) -> Result<(), state_topic::Error> {
        let id = match self.source.snapshot.mode {
            SnapshotMode::Initial | SnapshotMode::InitialOnly | SnapshotMode::WhenNeeded => {
                "initial".to_owned()
            }
            // One open run is enough.
            SnapshotMode::Always if runs.open(shards).iter().any(|run| run.requested_by == "start") => {
                return Ok(());
            }
            SnapshotMode::Always => format!("start-{}", self.task.generation),
            SnapshotMode::NoData => return Ok(()),
        };
        let mode = id.split('-').next().unwrap_or_default().to_owned();
        let (id, lists) = due_by_mode(runs, id, lists);
        self.request_run(runs, &id, &mode, lists, false).await
    }

    async fn request_by_schedule(
        &self,
        runs: &Runs,
        shards: i32,
        readable: &BTreeSet<List>,
        timetable: &mut Timetable,
    ) -> Result<(), state_topic::Error> {
        let lists = timetable.lists(readable);
        if lists.is_empty() {
            return Ok(());
        }
        match timetable.due(runs, shards, now()) {
            Due::Nothing => return Ok(()),
            Due::Skip(open) => {
                tracing::warn!(connector = &*self.task.connector, run = %open.id, "skipped a scheduled run, because the previous one has not finished");
            }
            Due::Run(id) => {
                let companies = self.source.snapshot.companies.as_ref();
                let whole = changes::last_whole(runs, shards, companies, now());
                let is_incremental = timetable.by == timetable::PAYROLL && whole.is_some();
                self.request_run(runs, &id, timetable.by, lists, is_incremental).await?;
            }
        }
        timetable.done_until = Some(now());
        Ok(())
    }

    async fn request_run(
        &self,
        runs: &Runs,
        id: &str,
        by: &str,
        lists: BTreeSet<List>,
        incremental: bool,
    ) -> Result<(), state_topic::Error> {
        let Ok(id) = RunId::new(id) else { return Ok(()) };
        if runs.runs.contains_key(&id) || lists.is_empty() {
            return Ok(());
        }
        let run = Run {
            connector: self.task.connector.to_string(),
            id,
            kind: RunKind::Snapshot,
            lists,
            companies: self.source.snapshot.companies.clone(),
            known: BTreeSet::new(),
            incremental,
            verification: Verification::default(),
            requested_by: by.to_owned(),
            requested_at: now(),
        };
        tracing::info!(connector = &*self.task.connector, run = %run.id, "requested a run");
        self.handle.put(&run.key(), Some(&json!(run))).await
    }

    /// Requests repair runs for gaps, and updates the states of the gaps.
    async fn repair_gaps(&self, runs: &Runs, shards: i32) -> Result<(), state_topic::Error> {
        let ledgers = self.handle.all_subscriptions();
        // Paused runs wait for an operator and must not block other repairs.
        let is_busy = |run: &&Run| {
            run.kind == RunKind::Repair && runs.status(&run.id, shards).state != RunPhase::Paused
        };
        let mut open = runs.open(shards).into_iter().filter(is_busy).count();
        for (ledger, gap) in open_gaps(&ledgers) {
            let Some(repair) = ledger.repairs.get(&gap.id()) else { continue };
            match next_step(gap, repair, runs, shards, &self.source) {
                Step::Wait => {}
                Step::Settle(state) => self.settle(gap, repair, state).await?,
                Step::Read(run) if open < MOST_REPAIRS => {
                    open += 1;
                    let mut run = *run;
                    run.connector = self.task.connector.to_string();
                    tracing::info!(connector = &*self.task.connector, gap = gap.id(), run = %run.id, "requested a repair run for a gap");
                    self.handle.put(&run.key(), Some(&json!(run))).await?;
                    let repair = Repair { state: RepairState::Running, ..repair.clone() };
                    self.handle.put(&repair.key(), Some(&json!(repair))).await?;
                }
                Step::Read(_) => {}
            }
        }
        Ok(())
    }

    async fn settle(&self, gap: &Gap, repair: &Repair, state: GapState) -> Result<(), state_topic::Error> {
        tracing::info!(
            connector = &*self.task.connector,
            gap = gap.id(),
            state = state.name(),
            "a gap has a new state"
        );
        let gap = Gap { state, ..gap.clone() };
        self.handle.put(&gap.key(), Some(&json!(gap))).await?;
        let repair = Repair { state: RepairState::Done, ..repair.clone() };
        self.handle.put(&repair.key(), Some(&json!(repair))).await
    }

    /// Deletes the oldest finished runs.
    async fn delete_expired(&self, runs: &Runs, shards: i32) -> Result<(), state_topic::Error> {
        let companies = self.source.snapshot.companies.as_ref();
        for key in expired_runs(runs, shards, companies).into_iter().flat_map(|run| keys_of(run, shards)) {
            self.handle.put(&key, None).await?;
        }
        Ok(())
    }
}

/// The run that a start requests: `id` with these lists, or payroll alone if the run of that id was requested while payroll was not
/// readable.
fn due_by_mode(runs: &Runs, id: String, lists: &BTreeSet<List>) -> (String, BTreeSet<List>) {
    let payroll = BTreeSet::from([List::Payroll]);
    let asked = RunId::new(id.as_str()).ok().and_then(|id| runs.runs.get(&id));
    match asked {
        Some(run) if lists.is_superset(&payroll) && run.lists.is_disjoint(&payroll) => {
            (id + PAYROLL_SUFFIX, payroll)
        }
        _ => (id, lists.clone()),
    }
}

/// Returns when the state of the login changes; never if none is needed.
async fn logged_in(login: &mut Option<GrantWatch>) {
    match login {
        Some(login) => login.changed().await,
        None => std::future::pending().await,
    }
}

/// Keys of all records of a run, in the order of deletion. The run comes first: without some of its progress it would seem to be
/// unfinished. An interruption leaves only small records.
fn keys_of(run: &Run, shards: i32) -> Vec<Key> {
    let (connector, id) = (&run.connector, &run.id);
    let progress = (0..shards).map(|shard| RunProgress::key_of(shard, connector, id));
    [run.key(), RunCommand::key(connector, id)].into_iter().chain(progress).collect()
}

/// The oldest finished runs beyond [`KEPT_RUNS`] and [`KEPT_PAYROLL_RUNS`]. `companies` are those of the connector.
fn expired_runs<'a>(runs: &'a Runs, shards: i32, companies: Option<&BTreeSet<CompanyId>>) -> Vec<&'a Run> {
    let status = |run: &Run| runs.status(&run.id, shards);
    let mut over: Vec<&Run> = runs.runs.values().filter(|run| status(run).state.is_over()).collect();
    // The metric shows the last verification.
    let verified = over.iter().filter(|run| run.kind == RunKind::Verify);
    let verified = verified.filter(|run| matches!(status(run).state, RunPhase::Ended { .. }));
    let last = verified.max_by_key(|run| status(run).state.ended_at()).map(|run| run.id.clone());
    // The initial run and the last one of a start prevent their repetition; each may have a payroll run.
    let cause = |id: &RunId| id.as_str().strip_suffix(PAYROLL_SUFFIX).unwrap_or(id.as_str()).to_owned();
    let started = over.iter().filter(|run| run.requested_by == "start").max_by_key(|run| run.requested_at);
    let started = started.map(|run| cause(&run.id));
    // Incremental runs start from it.
    let whole = changes::last_whole(runs, shards, companies, i64::MAX).map(|(_, id)| id);
    let is_kept = |id: &RunId| {
        let cause = cause(id);
        cause == "initial"
            || last.as_ref() == Some(id)
            || started.as_ref() == Some(&cause)
            || whole == Some(id)
    };
    over.retain(|run| !is_kept(&run.id));
    over.sort_by_key(|run| run.requested_at);
    let (mut payroll, mut others): (Vec<&Run>, Vec<&Run>) =
        over.into_iter().partition(|run| run.requested_by == timetable::PAYROLL);
    payroll.truncate(payroll.len().saturating_sub(KEPT_PAYROLL_RUNS));
    others.truncate(others.len().saturating_sub(KEPT_RUNS));
    others.extend(payroll);
    others
}

/// Unfinished runs, the oldest first.
fn orders(runs: &Runs, shards: i32, source: &RecordSource) -> Vec<Ordered> {
    let ordered = |run: &Run| Ordered {
        run: Arc::new(run.clone()),
        wanted: runs.wanted(&run.id),
        at: runs.commands.get(&run.id).map_or(0, |command| command.at),
        filter: changes::payroll_filter(runs, run, shards, source),
    };
    runs.open(shards).into_iter().map(ordered).collect()
}

/// Gaps to repair, of all connectors.
fn open_gaps(
    ledgers: &BTreeMap<String, SubscriptionState>,
) -> impl Iterator<Item = (&SubscriptionState, &Gap)> {
    ledgers.values().flat_map(|ledger| ledger.gaps.values().map(move |gap| (ledger, gap))).filter(
        |(_, gap)| {
            // A gap is repaired after it has ended.
            gap.to.is_some() && matches!(gap.state, GapState::Open | GapState::RepairedUncertified)
        },
    )
}

/// The next action for a gap.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Wait,
    Settle(GapState),
    Read(Box<Run>),
}

fn next_step(gap: &Gap, repair: &Repair, runs: &Runs, shards: i32, source: &RecordSource) -> Step {
    let Some((lists, known)) = lists_to_repair(gap, source) else {
        return Step::Settle(GapState::Unrepairable);
    };
    if lists.is_empty() && known.is_empty() {
        // This connector publishes none of its records.
        return Step::Settle(GapState::Unrepairable);
    }
    let ended = gap.to.unwrap_or(repair.to);
    let covers = |run: &&Run| {
        let of_company = match (&run.companies, &gap.company) {
            (None, None) => run.kind == RunKind::Repair || source.snapshot.companies.is_none(),
            (Some(companies), Some(company)) => companies.contains(company),
            // A run of all companies may not have read this one: the company may have left the list of companies.
            (Some(_), None) | (None, Some(_)) => false,
        };
        run.kind != RunKind::Verify
            && !run.incremental
            && run.requested_at >= ended
            && run.lists.is_superset(&lists)
            && of_company
    };
    // A certified list covers all of its records. Resources without a list are read by id, which covers known records only.
    let only_known: BTreeSet<AccountingResource> =
        known.iter().copied().filter(|resource| List::of(*resource).is_none()).collect();
    let is_proved = |run: &&Run| {
        let standing = runs.status(&run.id, shards);
        let is_offered = standing.lists.unoffered == 0 || !lists.contains(&List::Accounts);
        standing.state.certified() == Some(true) && is_offered
    };
    if only_known.is_empty() && runs.runs.values().filter(covers).any(|run| is_proved(&run)) {
        return Step::Settle(GapState::Closed);
    }
    // For an absent list, known records were read instead.
    let outcome = |run: &Run| {
        let lists = runs.status(&run.id, shards).lists;
        let is_read = lists.certified.saturating_add(lists.absent) >= lists.total;
        match (is_read && covers(&run), only_known.is_empty() && lists.absent == 0) {
            (true, true) => GapState::Closed,
            (true, false) => GapState::RepairedKnown,
            (false, _) => GapState::RepairedUncertified,
        }
    };
    let Ok(id) = RunId::new(format!("repair/{}", gap.id())) else { return Step::Wait };
    let Some(run) = runs.runs.get(&id) else {
        // A repair run of another gap may cover this one too: there may be a gap for every record of a company.
        let others =
            runs.runs.values().filter(|run| run.kind == RunKind::Repair && run.known.is_superset(&known));
        for other in others.filter(covers) {
            match runs.status(&other.id, shards).state {
                RunPhase::Ended { .. } if gap.state == GapState::Open => match outcome(other) {
                    GapState::RepairedUncertified => {}
                    state => return Step::Settle(state),
                },
                RunPhase::Ended { .. } | RunPhase::Stopped { .. } => {}
                _ => return Step::Wait,
            }
        }
        // A run proves nothing about a gap unless it starts after the gap, including its margin, has ended.
        if gap.state == GapState::RepairedUncertified || now() < ended {
            return Step::Wait;
        }
        let companies = gap.company.clone().map(|company| BTreeSet::from([company]));
        return Step::Read(Box::new(Run {
            connector: String::new(),
            id,
            kind: RunKind::Repair,
            lists,
            companies,
            known,
            incremental: false,
            verification: Verification::default(),
            requested_by: format!("gap {}", gap.id()),
            requested_at: now(),
        }));
    };
    let standing = runs.status(&id, shards);
    match standing.state {
        RunPhase::Ended { .. } if gap.state == GapState::Open => Step::Settle(outcome(run)),
        RunPhase::Stopped { .. } if gap.state == GapState::Open => {
            Step::Settle(GapState::RepairedUncertified)
        }
        _ => Step::Wait,
    }
}

/// Lists to read for a gap, and resources whose known records to read by id; `None` if there is nothing to read from.
fn lists_to_repair(
    gap: &Gap,
    source: &RecordSource,
) -> Option<(BTreeSet<List>, BTreeSet<AccountingResource>)> {
    let resources: Vec<AccountingResource> = match gap.target {
        Some(Target::Invoicing(_)) => return None,
        Some(Target::Accounting(resource)) => vec![resource],
        None => AccountingResource::all().collect(),
    };
    let (mut lists, mut known) = (BTreeSet::new(), BTreeSet::new());
    for resource in resources {
        let list = List::of(resource);
        let is_published =
            source.enrich_resources.contains(&resource) || list.is_some_and(|list| source.publishes(list));
        if !is_published {
            continue;
        }
        lists.extend(list);
        // Not every provider has the list of accounts.
        if list.is_none() || list == Some(List::Accounts) {
            known.insert(resource);
        }
    }
    if gap.company.is_none()
        && source.publishes(List::Companies)
        && lists.iter().any(|list| !list.spans_companies())
    {
        // The lists of all companies are complete only if the list of companies is certified.
        lists.insert(List::Companies);
    }
    Some((lists, known))
}

#[cfg(test)]
mod tests;
