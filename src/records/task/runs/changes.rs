//! What an incremental run reads: the payroll companies that changed since the last certified run of the whole list.

use std::collections::BTreeSet;

use model::{CompanyId, List, Moment, Run, RunId, RunKind};

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
    let (whole, _) = last_whole(runs, shards, run.companies.as_ref(), run.requested_at)?;
    let since = Moment::from_micros(whole.saturating_sub(OVERLAP)).to_string();
    // The provider is only known to understand a date.
    since.get(..10).map(|date| format!("{CHANGED_SINCE}{date}"))
}

/// When the last certified run of the whole payroll list began, and its id; of the runs requested before a moment.
///
/// Incremental runs do not count. They may have omitted rows, and one that was stopped has not read all of them: so the next one starts
/// from the same bound.
pub(super) fn last_whole<'a>(
    runs: &'a Runs,
    shards: i32,
    companies: Option<&BTreeSet<CompanyId>>,
    before: i64,
) -> Option<(i64, &'a RunId)> {
    let is_filtered = |one: &Run| {
        let mut progress = (0..shards).filter_map(|shard| runs.progress.get(&(one.id.clone(), shard)));
        progress.any(|progress| progress.filter.is_some())
    };
    let is_whole = |one: &&Run| {
        one.lists.contains(&List::Payroll)
            && one.kind != RunKind::Verify
            && !one.incremental
            && (one.companies.is_none() || one.companies.as_ref() == companies)
            && one.requested_at < before
            && !is_filtered(one)
    };
    let began = |one: &'a Run| {
        let status = runs.status(&one.id, shards);
        let began = status.started_at.filter(|_| status.state.certified() == Some(true))?;
        Some((began, &one.id))
    };
    runs.runs.values().filter(is_whole).filter_map(began).max()
}

/// How the answer to a filter can be checked.
pub(in crate::records::task) fn checked_filter(filter: &str) -> Filter {
    let date = filter.strip_prefix(CHANGED_SINCE).map(|date| format!("{date}T00:00:00Z"));
    let moment = date.and_then(|date| Moment::parse(&date));
    moment.map_or(Filter::Configured, |at| Filter::Changed { after: at.micros(), margin: DAY })
}
