//! One connector's runs in the state topic, and the status of each.
//!
//! ```text
//! Run (the request) + RunCommand (what people want) + RunProgress of each shard ──▶ RunStatus
//! ```
//!
//! - A run is over once every shard has reported its end. That is derived, never written, so it cannot be too early.
//! - Numbers are sums over shards. Progress of shards beyond the topic's partitions is ignored.
//! - A run is certified if it has ended and every list that the provider offers is certified; a stopped run never is.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use model::{DesiredRunState, ListProgress, Run, RunCommand, RunId, RunProgress, RunWork, ShardState};

/// Limit on the distinct reasons shown; rarely more than one.
const MAX_REASONS: usize = 3;

/// One connector's runs in the state topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// The requests.
    pub runs: BTreeMap<RunId, Run>,
    /// The last command for each run, if there is one.
    pub commands: BTreeMap<RunId, RunCommand>,
    /// Progress of each shard.
    pub progress: BTreeMap<(RunId, i32), RunProgress>,
}

/// The phase of a run. Times are microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPhase {
    /// No shard has started.
    Waiting,
    /// Lists are being read.
    Running,
    /// Every shard that has started is over or paused, and at least one is paused or a pause is requested.
    Paused,
    /// Over, and at least one shard was stopped: it is not certified.
    Stopped {
        /// When the last shard ended.
        ended_at: i64,
    },
    /// Over; every list is finished, perhaps uncertified.
    Ended {
        /// When the last shard ended.
        ended_at: i64,
        /// Whether every list that the provider offers is certified complete.
        certified: bool,
    },
}

impl RunPhase {
    /// The name of every phase.
    pub const NAMES: [&'static str; 5] = ["waiting", "running", "paused", "stopped", "ended"];

    /// Its name, for people and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        let [waiting, running, paused, stopped, ended] = Self::NAMES;
        match self {
            Self::Waiting => waiting,
            Self::Running => running,
            Self::Paused => paused,
            Self::Stopped { .. } => stopped,
            Self::Ended { .. } => ended,
        }
    }

    /// Whether the run is over.
    #[must_use]
    pub const fn is_over(self) -> bool {
        self.ended_at().is_some()
    }

    /// When the last shard ended, once all have.
    #[must_use]
    pub const fn ended_at(self) -> Option<i64> {
        match self {
            Self::Stopped { ended_at } | Self::Ended { ended_at, .. } => Some(ended_at),
            Self::Waiting | Self::Running | Self::Paused => None,
        }
    }

    /// Whether it is certified; `None` until it is over.
    #[must_use]
    pub const fn certified(self) -> Option<bool> {
        match self {
            Self::Ended { certified, .. } => Some(certified),
            Self::Stopped { .. } => Some(false),
            Self::Waiting | Self::Running | Self::Paused => None,
        }
    }
}

/// The status of a run, over all shards. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStatus {
    /// Its phase.
    pub state: RunPhase,
    /// Why it waits, was stopped or ended without reading everything, if there is more to say.
    pub reason: Option<String>,
    /// When the first shard started.
    pub started_at: Option<i64>,
    /// When the last shard reported progress.
    pub updated_at: Option<i64>,
    /// Its shards.
    pub shards: Shards,
    /// Its lists.
    pub lists: Collections,
    /// Its work.
    pub totals: RunTotals,
    /// Lists that are being read, the first of each shard.
    pub current: Vec<ListProgress>,
}

/// Shards of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shards {
    /// All of them.
    pub total: i32,
    /// Those that are over.
    pub ended: i32,
}

/// Lists of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Collections {
    /// Lists known so far.
    pub total: u64,
    /// Lists that are over.
    pub ended: u64,
    /// Lists that are certified complete.
    pub certified: u64,
    /// Lists whose path the provider does not know.
    #[serde(skip)]
    pub absent: u64,
    /// Lists of accounts that the provider does not offer. 0 if it offers the list of another company: then the missing ones are
    /// uncertified lists.
    #[serde(rename = "notOffered", skip_serializing_if = "is_zero")]
    pub unoffered: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The work of a run, summed over shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunTotals {
    /// What was read and written.
    #[serde(flatten)]
    pub work: RunWork,
    /// Differences between source and topic that were not repaired, by kind.
    pub differences: BTreeMap<String, u64>,
    /// Differences that were repaired, by kind.
    pub repaired: BTreeMap<String, u64>,
    /// Rows whose whole content was compared with what the topic holds.
    pub contents: u64,
    /// Known records that no list shows because they are disabled, which is no difference.
    pub disabled: u64,
    /// Pages of samples that could not be read.
    pub unread: u64,
}

impl Runs {
    /// Whether there is nothing in the topic.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.commands.is_empty() && self.progress.is_empty()
    }

    /// The desired state of a run.
    #[must_use]
    pub fn wanted(&self, id: &RunId) -> DesiredRunState {
        self.commands.get(id).map(|command| command.wanted).unwrap_or_default()
    }

    /// The status of a run, in a state topic with `shards` partitions.
    #[must_use]
    pub fn status(&self, id: &RunId, shards: i32) -> RunStatus {
        let all: Vec<&RunProgress> = self.of(id, shards).collect();
        let over = all.iter().filter(|one| one.state.is_over()).count();
        let shards = Shards { total: shards, ended: i32::try_from(over).unwrap_or(i32::MAX) };
        let command = self.commands.get(id);
        let sum = |number: fn(&RunProgress) -> u64| {
            all.iter().fold(0_u64, |sum, one| sum.saturating_add(number(one)))
        };
        let are_offered = all.iter().any(|one| one.lists.accounts_proved);
        let lists = Collections {
            total: sum(|one| one.lists.total),
            ended: sum(|one| one.lists.ended),
            certified: sum(|one| one.lists.certified),
            absent: sum(|one| one.lists.absent),
            unoffered: if are_offered { 0 } else { sum(|one| one.lists.unoffered) },
        };
        // Lists that the provider does not offer certify nothing by themselves.
        let is_proved =
            lists.certified + lists.unoffered == lists.total && (lists.certified > 0 || lists.unoffered == 0);
        let is_over = shards.ended >= shards.total && shards.total > 0;
        let state = state(&all, is_over.then_some(is_proved), command);
        let by_kind = |counts: fn(&RunProgress) -> &BTreeMap<String, u64>| {
            let mut sums = BTreeMap::<String, u64>::new();
            for (kind, count) in all.iter().flat_map(|one| counts(one)) {
                let total = sums.entry(kind.clone()).or_default();
                *total = total.saturating_add(*count);
            }
            sums
        };
        RunStatus {
            state,
            reason: reason(&all, state, command),
            started_at: all.iter().map(|one| one.times.started_at).min(),
            updated_at: all.iter().map(|one| one.times.updated_at).max(),
            shards,
            lists,
            totals: RunTotals {
                work: all.iter().map(|one| one.work).sum(),
                differences: by_kind(|one| &one.compared.differences),
                repaired: by_kind(|one| &one.compared.repaired),
                contents: sum(|one| one.compared.contents),
                disabled: sum(|one| one.compared.disabled),
                unread: sum(|one| one.compared.unread),
            },
            current: all
                .iter()
                .filter(|one| !one.state.is_over())
                .flat_map(|one| one.current.clone())
                .collect(),
        }
    }

    /// Runs that are not over, in the order of their requests.
    #[must_use]
    pub fn open(&self, shards: i32) -> Vec<&Run> {
        let is_open = |run: &&Run| {
            let over = self.of(&run.id, shards).filter(|one| one.state.is_over()).count();
            shards <= 0 || i32::try_from(over).unwrap_or(i32::MAX) < shards
        };
        let mut open: Vec<&Run> = self.runs.values().filter(is_open).collect();
        open.sort_by_key(|run| (run.requested_at, &run.id));
        open
    }

    /// Progress of a run's existing shards.
    fn of(&self, id: &RunId, shards: i32) -> impl Iterator<Item = &RunProgress> {
        let run = self.runs.get(id);
        let all = self.progress.range((id.clone(), 0)..(id.clone(), shards.max(0)));
        let is_own = move |progress: &&RunProgress| run.is_none_or(|run| progress.is_of(run));
        all.map(|(_, progress)| progress).filter(is_own)
    }
}

/// Whether a shard waits and was not resumed since.
fn waits(one: &RunProgress, command: Option<&RunCommand>) -> bool {
    let is_resumed = command.is_some_and(|command| {
        command.wanted == DesiredRunState::Running && one.braked_at.is_none_or(|braked| braked < command.at)
    });
    one.state == ShardState::Paused && !is_resumed
}

/// `over`: once all shards are over, whether their lists are proved.
fn state(all: &[&RunProgress], over: Option<bool>, command: Option<&RunCommand>) -> RunPhase {
    let wanted = command.map(|command| command.wanted).unwrap_or_default();
    if let Some(certified) = over {
        let ended = all.iter().map(|one| one.times.ended_at.unwrap_or(one.times.updated_at));
        let ended_at = ended.max().unwrap_or_default();
        let stopped = all.iter().any(|one| one.state == ShardState::Stopped);
        return if stopped {
            RunPhase::Stopped { ended_at }
        } else {
            RunPhase::Ended { ended_at, certified }
        };
    }
    let mut started = all.iter().filter(|one| !one.state.is_over()).peekable();
    match (all.is_empty(), started.peek().is_none()) {
        (true, _) => RunPhase::Waiting,
        // All shards that have started are over; the others will do what is wanted.
        (false, true) if wanted == DesiredRunState::Paused => RunPhase::Paused,
        (false, true) => RunPhase::Running,
        (false, false) if started.all(|one| waits(one, command)) => RunPhase::Paused,
        (false, false) => RunPhase::Running,
    }
}

/// The reasons of shards, else the command that is not carried out yet.
fn reason(all: &[&RunProgress], state: RunPhase, command: Option<&RunCommand>) -> Option<String> {
    let wanted = command.map(|command| command.wanted).unwrap_or_default();
    let reasons: BTreeSet<&str> = all
        .iter()
        .filter(|one| one.state.is_over() || waits(one, command))
        .filter_map(|one| one.reason.as_deref())
        .collect();
    if !reasons.is_empty() {
        return Some(reasons.into_iter().take(MAX_REASONS).collect::<Vec<_>>().join("; "));
    }
    match (wanted, state) {
        (DesiredRunState::Stopped, RunPhase::Waiting | RunPhase::Running | RunPhase::Paused) => {
            Some("stop requested; not every shard has stopped".to_owned())
        }
        (DesiredRunState::Paused, RunPhase::Waiting | RunPhase::Running) => {
            Some("pause requested; not every shard has paused".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use model::{List, ListComparison, ListCounts, RunKind, ShardTimes, Verification};

    use super::*;

    fn id(text: &str) -> RunId {
        RunId::new(text).unwrap()
    }

    fn run(name: &str, requested_at: i64) -> Run {
        Run {
            connector: "c".to_owned(),
            id: id(name),
            kind: RunKind::Snapshot,
            lists: BTreeSet::from([List::Customers]),
            companies: None,
            known: std::collections::BTreeSet::new(),
            incremental: false,
            verification: Verification::default(),
            requested_by: "rest".to_owned(),
            requested_at,
        }
    }

    fn progress(shard: i32, state: ShardState) -> RunProgress {
        let ended = if state.is_over() { 3 } else { 1 };
        RunProgress {
            lists: ListCounts { total: 3, ended, certified: ended, ..ListCounts::default() },
            work: RunWork { pages: 10, rows: 100, published: 50, vanished: 1, ..RunWork::default() },
            compared: ListComparison {
                differences: BTreeMap::from([("missing".to_owned(), 2)]),
                ..ListComparison::default()
            },
            current: vec![ListProgress {
                company: None,
                list: List::Customers,
                pass: 1,
                pages: 1,
                rows: 7,
                of: Some(9),
            }],
            times: ShardTimes {
                started_at: 100 - i64::from(shard),
                updated_at: 200 + i64::from(shard),
                ended_at: state.is_over().then_some(300 + i64::from(shard)),
            },
            ..RunProgress::new(&run("r", 0), shard, state, 0)
        }
    }

    fn runs(wanted: Option<DesiredRunState>, shards: &[(i32, ShardState)]) -> Runs {
        let mut runs = Runs::default();
        runs.runs.insert(id("r"), run("r", 5));
        runs.commands.extend(wanted.map(|wanted| (id("r"), RunCommand { wanted, at: 6 })));
        runs.progress.extend(shards.iter().map(|&(shard, state)| ((id("r"), shard), progress(shard, state))));
        runs
    }

    #[test]
    fn phase_follows_from_shards_and_the_command() {
        use ShardState::{Ended, Paused, Running, Stopped};
        type Case<'a> = (Option<DesiredRunState>, &'a [(i32, ShardState)], RunPhase);
        // Shard n ends at 300 + n.
        let ended = RunPhase::Ended { ended_at: 301, certified: true };
        let table: &[Case<'_>] = &[
            (None, &[], RunPhase::Waiting),
            (Some(DesiredRunState::Paused), &[], RunPhase::Waiting),
            (None, &[(0, Running)], RunPhase::Running),
            (None, &[(0, Ended)], RunPhase::Running),
            (Some(DesiredRunState::Paused), &[(0, Ended)], RunPhase::Paused),
            (Some(DesiredRunState::Paused), &[(0, Paused), (1, Running)], RunPhase::Running),
            (Some(DesiredRunState::Paused), &[(0, Paused), (1, Ended)], RunPhase::Paused),
            (None, &[(0, Paused), (1, Paused)], RunPhase::Paused),
            (None, &[(0, Ended), (1, Ended)], ended),
            (None, &[(0, Ended), (1, Stopped)], RunPhase::Stopped { ended_at: 301 }),
            (Some(DesiredRunState::Stopped), &[(0, Stopped), (1, Running)], RunPhase::Running),
            // A shard beyond the topic's partitions does not count.
            (None, &[(0, Ended), (7, Ended)], RunPhase::Running),
        ];

        for (wanted, shards, expected) in table {
            let status = runs(*wanted, shards).status(&id("r"), 2);
            assert_eq!(status.state, *expected, "{wanted:?} {shards:?}");
        }
    }

    #[test]
    fn lists_that_are_not_offered_do_not_prevent_certification() {
        for (certified, unoffered, accounts_proved, expected) in [
            (3, 0, false, true),
            (2, 0, false, false),
            (2, 1, false, true),
            (1, 1, false, false),
            // The provider offers it for another company: this list was not read.
            (2, 1, true, false),
            // None of the requested lists is certified.
            (0, 3, false, false),
        ] {
            let mut runs = runs(None, &[(0, ShardState::Ended)]);
            let shard = runs.progress.get_mut(&(id("r"), 0)).unwrap();
            (shard.lists.certified, shard.lists.unoffered, shard.lists.accounts_proved) =
                (certified, unoffered, accounts_proved);

            let status = runs.status(&id("r"), 1);

            let case = (certified, unoffered, accounts_proved);
            assert_eq!(status.state.certified(), Some(expected), "{case:?}");
        }
    }

    #[test]
    fn resumed_run_shows_running_before_its_shards_report_it() {
        for (wanted, braked_at, expected) in [
            (Some(DesiredRunState::Paused), None, RunPhase::Paused),
            (Some(DesiredRunState::Running), None, RunPhase::Running),
            (Some(DesiredRunState::Running), Some(5), RunPhase::Running),
            // Too many records went missing after the resume: it needs a person again.
            (Some(DesiredRunState::Running), Some(7), RunPhase::Paused),
            (None, Some(5), RunPhase::Paused),
        ] {
            let mut runs = runs(wanted, &[(0, ShardState::Paused)]);
            let shard = runs.progress.get_mut(&(id("r"), 0)).unwrap();
            (shard.braked_at, shard.reason) = (braked_at, Some("why".to_owned()));

            let status = runs.status(&id("r"), 1);

            let reason = (expected == RunPhase::Paused).then(|| "why".to_owned());
            assert_eq!((status.state, status.reason), (expected, reason), "{wanted:?} {braked_at:?}");
        }
    }

    #[test]
    fn numbers_are_sums_and_times_first_and_last() {
        let runs = runs(None, &[(0, ShardState::Ended), (1, ShardState::Ended)]);

        let status = runs.status(&id("r"), 2);

        let (lists, totals) = (status.lists, status.totals);
        assert_eq!((lists.total, lists.ended, lists.certified), (6, 6, 6));
        assert_eq!((totals.work.pages, totals.work.rows), (20, 200));
        assert_eq!((totals.work.published, totals.work.vanished), (100, 2));
        assert_eq!(totals.differences, BTreeMap::from([("missing".to_owned(), 4)]));
        assert_eq!(
            (status.started_at, status.updated_at, status.state.ended_at()),
            (Some(99), Some(201), Some(301))
        );
        assert_eq!((status.shards, status.state.certified()), (Shards { total: 2, ended: 2 }, Some(true)));
        assert!(status.current.is_empty(), "nothing is read any more");
    }

    #[test]
    fn stopped_run_or_uncertified_list_is_not_certified() {
        let stopped = runs(None, &[(0, ShardState::Ended), (1, ShardState::Stopped)]);
        let mut unproved = runs(None, &[(0, ShardState::Ended), (1, ShardState::Ended)]);
        unproved.progress.get_mut(&(id("r"), 1)).unwrap().lists.certified = 2;

        for runs in [stopped, unproved] {
            assert_eq!(runs.status(&id("r"), 2).state.certified(), Some(false));
        }
    }

    #[test]
    fn shard_reason_comes_before_the_pending_command() {
        let mut brake = runs(None, &[(0, ShardState::Paused), (1, ShardState::Paused)]);
        for shard in [0, 1] {
            brake.progress.get_mut(&(id("r"), shard)).unwrap().reason = Some("the brake".to_owned());
        }
        let ordered = runs(Some(DesiredRunState::Stopped), &[(0, ShardState::Running)]);
        let done = runs(Some(DesiredRunState::Paused), &[(0, ShardState::Paused), (1, ShardState::Paused)]);

        assert_eq!(brake.status(&id("r"), 2).reason.as_deref(), Some("the brake"));
        assert_eq!(
            ordered.status(&id("r"), 2).reason.as_deref(),
            Some("stop requested; not every shard has stopped")
        );
        assert_eq!(done.status(&id("r"), 2).reason, None);
    }

    #[test]
    fn progress_of_an_earlier_run_with_the_same_id_does_not_count() {
        let mut runs = runs(None, &[(0, ShardState::Ended), (1, ShardState::Ended)]);
        for progress in runs.progress.values_mut() {
            progress.of.requested_at = 4;
        }

        assert_eq!(runs.status(&id("r"), 2).state, RunPhase::Waiting);
        assert_eq!(runs.open(2).len(), 1);
        runs.progress.get_mut(&(id("r"), 1)).unwrap().of.requested_at = 5;
        assert_eq!(runs.status(&id("r"), 2).state, RunPhase::Running);
    }

    #[test]
    fn open_runs_are_ordered_by_request() {
        let mut runs = runs(None, &[(0, ShardState::Ended), (1, ShardState::Ended)]);
        for (name, at) in [("z", 1), ("b", 3), ("a", 3)] {
            runs.runs.insert(id(name), run(name, at));
        }

        let open: Vec<&str> = runs.open(2).iter().map(|run| run.id.as_str()).collect();

        assert_eq!(open, ["z", "a", "b"]);
    }
}
