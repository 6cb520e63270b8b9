//! What an incremental run reads: the payroll companies that changed since the last certified run of the whole list.

use std::collections::BTreeSet;

use model::{List, Moment, Run, RunKind};

use crate::{config::RecordSource, records::proof::Filter, state::runs::Runs};

/// A day, in microseconds.
pub(super) const DAY: i64 = 86_400_000_000;
/// Period before the last full run that an incremental run reads again; microseconds. The filter names a date. A provider that compares
/// whole days returns changes from the next day on, in its own time zone, so one day may not suffice.
const OVERLAP: i64 = 2 * DAY;

/// Beginning of the filter of an incremental run.
const CHANGED_SINCE: &str = "lastUpdate gt ";

/// The payroll filter of a run: none, the configured one, or changes since the last certified run of the whole list.
pub(super) fn payroll_filter(runs: &Runs, run: &Run, shards: i32, source: &RecordSource) -> Option<String> {
    if let Some(filter) = &source.snapshot.payroll_filter {
        return Some(filter.clone());
    }
    if !run.incremental {
        return None;
    }
    let before = runs.runs.values().filter(|one| {
        one.lists.contains(&List::Payroll)
            && one.kind != RunKind::Verify
            && (one.companies.is_none() || one.companies == run.companies)
            && one.requested_at < run.requested_at
    });
    let started = |one: &Run| {
        let standing = runs.status(&one.id, shards);
        standing.started_at.filter(|_| standing.state.certified() == Some(true))
    };
    let filters = |one: &Run| {
        let progress = (0..shards).filter_map(|shard| runs.progress.get(&(one.id.clone(), shard)));
        progress.filter_map(|progress| progress.filter.clone()).collect::<BTreeSet<String>>()
    };
    // Only runs of the whole list count: an incremental run may have omitted rows, which are then read again.
    let whole = before.filter(|one| !one.incremental && filters(one).is_empty()).filter_map(started).max()?;
    let since = Moment::from_micros(whole.saturating_sub(OVERLAP)).to_string();
    // The provider is only known to understand a date.
    since.get(..10).map(|date| format!("{CHANGED_SINCE}{date}"))
}

/// How the answer to a filter can be checked.
pub(in super::super) fn checked_filter(filter: &str) -> Filter {
    let date = filter.strip_prefix(CHANGED_SINCE).map(|date| format!("{date}T00:00:00Z"));
    let moment = date.and_then(|date| Moment::parse(&date));
    moment.map_or(Filter::Configured, |at| Filter::Changed { after: at.micros(), margin: DAY })
}
