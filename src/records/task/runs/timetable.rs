//! Which run of a schedule is due. No I/O.
//!
//! All times that were missed, while no worker ran or the payroll login was unusable, lead to one run: the first of them gives it its
//! id. While a run of the schedule is open, its next times are skipped, so its runs never pile up.

use std::collections::BTreeSet;

use model::{List, Moment, Run};

use crate::{
    config::{RecordSource, Schedule},
    state::runs::Runs,
};

/// What requests the runs of `snapshot.schedule`; the beginning of their ids.
const SNAPSHOT: &str = "schedule";
/// The same for `payroll.incremental.schedule`. Ids that begin with `schedule-` are refused in requests.
pub(super) const PAYROLL: &str = "schedule-payroll";

/// A schedule, and the runs that it has requested.
#[derive(Debug)]
pub(super) struct Timetable {
    /// What requests its runs.
    pub(super) by: &'static str,
    schedule: Schedule,
    /// When the task began: the times of a schedule that has no runs yet count from then.
    begun_at: i64,
    /// Up to when this task has requested or skipped runs.
    pub(super) done_until: Option<i64>,
}

/// What a schedule requires.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due<'a> {
    /// Nothing yet.
    Nothing,
    /// To skip a time, because this run is open.
    Skip(&'a Run),
    /// A run with this id.
    Run(String),
}

impl Timetable {
    /// The schedules of a connector.
    pub(super) fn all(source: &RecordSource, begun_at: i64) -> Vec<Self> {
        let schedules = [(SNAPSHOT, &source.snapshot.schedule), (PAYROLL, &source.snapshot.payroll_schedule)];
        let timetable = |(by, schedule): (_, &Option<Schedule>)| {
            Some(Self { by, schedule: schedule.clone()?, begun_at, done_until: None })
        };
        schedules.into_iter().filter_map(timetable).collect()
    }

    /// The lists of its runs, of those that can be read.
    pub(super) fn lists(&self, readable: &BTreeSet<List>) -> BTreeSet<List> {
        let is_own = |list: &&List| self.by == SNAPSHOT || **list == List::Payroll;
        readable.iter().filter(is_own).copied().collect()
    }

    /// What is due now.
    pub(super) fn due<'a>(&self, runs: &'a Runs, shards: i32, now: i64) -> Due<'a> {
        let is_own = |run: &&Run| run.requested_by == self.by;
        // The last run counts, so that a restart skips none and another first task requests no second one.
        let last = runs.runs.values().filter(is_own).map(|run| run.requested_at).max();
        let since = self.done_until.max(last).unwrap_or(self.begun_at);
        let Some(due) = self.schedule.next(since).filter(|due| *due <= now) else { return Due::Nothing };
        match runs.open(shards).into_iter().find(is_own) {
            Some(open) => Due::Skip(open),
            None => Due::Run(format!("{}-{}", self.by, Moment::from_micros(due))),
        }
    }
}
