//! Metrics of a state topic: the same on every worker that follows it.

use base::metrics::live::{self, ScrapePage};
use model::{Difference, GapCause, Run, RunKind, Subscription, SubscriptionPhase};

use crate::state::{
    runs::{RunPhase, RunStatus, Runs},
    subscriptions::SubscriptionState,
};

/// Subscriptions by phase and open gaps by cause.
pub(super) fn subscriptions(page: &mut ScrapePage, connector: &str, state: &SubscriptionState, now: i64) {
    for family in ["accounting", "invoicing"] {
        for phase in SubscriptionPhase::ALL.into_iter().filter(|phase| phase.may_live()) {
            let is_one = |one: &&Subscription| one.target.family() == family && one.phase == phase;
            let count = state.subscriptions.values().filter(is_one).count();
            page.put(&live::SUBSCRIPTIONS, &[connector, family, phase.name()], count as f64);
        }
    }
    for cause in GapCause::ALL {
        let open = state.gaps.values().filter(|gap| gap.cause == cause && !gap.state.is_over());
        let opened: Vec<i64> = open.map(|gap| gap.opened_at).collect();
        let Some(oldest) = opened.iter().min() else { continue };
        page.put(&live::GAPS_OPEN, &[connector, cause.name()], opened.len() as f64);
        let age = now.saturating_sub(*oldest).max(0) as f64 / 1e6;
        page.put(&live::GAP_OPEN_SECONDS, &[connector, cause.name()], age);
    }
}

/// Runs by phase, remaining lists of open runs, and the findings of the last verification that has ended.
///
/// Every series exists from the first run on, and those of a verification from the first one that has ended, with 0 if there is
/// nothing: an alert needs an existing series.
pub(super) fn runs(page: &mut ScrapePage, connector: &str, runs: &Runs, shards: i32) {
    let status_of = |run: &Run| ((run.kind, run.verification.sample.is_some()), runs.status(&run.id, shards));
    let all: Vec<((RunKind, bool), RunStatus)> = runs.runs.values().map(status_of).collect();
    if all.is_empty() {
        return;
    }
    for name in RunPhase::NAMES {
        let count = all.iter().filter(|(_, status)| status.state.name() == name).count();
        page.put(&live::SNAPSHOT_STATE, &[connector, name], count as f64);
    }
    let open = || all.iter().map(|(_, status)| status).filter(|status| !status.state.is_over());
    let lists: u64 = open().map(|status| status.lists.total).sum();
    let ended: u64 = open().map(|status| status.lists.ended).sum();
    page.put(&live::SNAPSHOT_COLLECTIONS, &[connector], lists as f64);
    page.put(&live::SNAPSHOT_COLLECTIONS_REMAINING, &[connector], lists.saturating_sub(ended) as f64);
    let verified = |((kind, _), status): &&((RunKind, bool), RunStatus)| {
        *kind == RunKind::Verify && matches!(status.state, RunPhase::Ended { .. })
    };
    let last = all.iter().filter(verified).max_by_key(|(_, status)| status.state.ended_at());
    let Some(((_, is_sample), last)) = last else { return };
    for kind in Difference::ALL {
        let count = last.totals.differences.get(kind.name()).copied().unwrap_or_default();
        page.put(&live::RECONCILE_MISMATCHES, &[connector, kind.name()], count as f64);
    }
    page.put(&live::RECONCILE_COMPARED, &[connector], last.totals.work.rows as f64);
    // A sample does not certify anything.
    let lists = last.lists;
    let unproved = if *is_sample { 0 } else { lists.total.saturating_sub(lists.certified + lists.unoffered) };
    page.put(&live::RECONCILE_UNPROVED, &[connector], unproved as f64);
    let ended = last.state.ended_at().unwrap_or_default();
    page.put(&live::RECONCILE_ENDED, &[connector], ended as f64 / 1e6);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use model::{
        List, ListComparison, ListCounts, RunId, RunProgress, RunWork, ShardState, ShardTimes, Verification,
    };

    use super::*;

    fn put(
        runs: &mut Runs,
        name: &str,
        kind: RunKind,
        state: Option<ShardState>,
        ended_at: i64,
        missing: u64,
    ) {
        let id = RunId::new(name).unwrap();
        let run = Run {
            connector: "c".to_owned(),
            id: id.clone(),
            kind,
            lists: BTreeSet::from([List::Customers]),
            companies: None,
            known: std::collections::BTreeSet::new(),
            incremental: false,
            verification: Verification::default(),
            requested_by: "rest".to_owned(),
            requested_at: 1,
        };
        runs.runs.insert(id.clone(), run.clone());
        let Some(state) = state else { return };
        let progress = RunProgress {
            lists: ListCounts { total: 5, ended: 2, certified: 2, ..ListCounts::default() },
            work: RunWork { rows: 40, ..RunWork::default() },
            compared: ListComparison {
                differences: BTreeMap::from([("missing".to_owned(), missing)]),
                ..ListComparison::default()
            },
            times: ShardTimes {
                started_at: 1,
                updated_at: ended_at,
                ended_at: state.is_over().then_some(ended_at),
            },
            ..RunProgress::new(&run, 0, state, 1)
        };
        runs.progress.insert((id, 0), progress);
    }

    #[test]
    fn metrics_show_runs_remaining_lists_and_the_last_verification() {
        let mut all = Runs::default();
        put(&mut all, "a", RunKind::Snapshot, Some(ShardState::Running), 10, 0);
        put(&mut all, "b", RunKind::Verify, Some(ShardState::Ended), 20_000_000, 7);
        put(&mut all, "c", RunKind::Verify, Some(ShardState::Ended), 15, 9);
        put(&mut all, "d", RunKind::Verify, Some(ShardState::Stopped), 30, 11);
        put(&mut all, "e", RunKind::Snapshot, None, 0, 0);
        let mut page = ScrapePage::default();

        runs(&mut page, "r", &all, 1);

        let text = page.to_string();
        let samples: BTreeSet<&str> =
            text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        let none = Difference::ALL.map(Difference::name).into_iter().filter(|kind| *kind != "missing");
        let none = none
            .map(|kind| format!(r#"tributary_reconcile_mismatch_records{{connector="r",kind="{kind}"}} 0"#));
        let none: Vec<String> = none.collect();
        let expected = [
            r#"tributary_reconcile_compared_records{connector="r"} 40"#,
            r#"tributary_reconcile_ended_timestamp_seconds{connector="r"} 20"#,
            r#"tributary_reconcile_mismatch_records{connector="r",kind="missing"} 7"#,
            r#"tributary_reconcile_unproved_lists{connector="r"} 3"#,
            r#"tributary_snapshot_collections_remaining{connector="r"} 3"#,
            r#"tributary_snapshot_collections{connector="r"} 5"#,
            r#"tributary_snapshot_state{connector="r",state="ended"} 2"#,
            r#"tributary_snapshot_state{connector="r",state="paused"} 0"#,
            r#"tributary_snapshot_state{connector="r",state="running"} 1"#,
            r#"tributary_snapshot_state{connector="r",state="stopped"} 1"#,
            r#"tributary_snapshot_state{connector="r",state="waiting"} 1"#,
        ];
        let expected = expected.into_iter().chain(none.iter().map(String::as_str));
        assert_eq!(samples, expected.collect());
    }

    #[test]
    fn sample_leaves_no_list_unproved() {
        let mut all = Runs::default();
        put(&mut all, "s", RunKind::Verify, Some(ShardState::Ended), 20, 0);
        all.runs.values_mut().for_each(|run| run.verification.sample = Some(100));
        let mut page = ScrapePage::default();

        runs(&mut page, "r", &all, 1);

        assert!(page.to_string().contains(r#"tributary_reconcile_unproved_lists{connector="r"} 0"#));
    }

    #[test]
    fn connector_without_runs_has_no_series() {
        let mut page = ScrapePage::default();

        runs(&mut page, "r", &Runs::default(), 1);

        assert_eq!(page.to_string(), "");
    }
}
