//! Reasons why a run waits, for its progress, which `snapshot status` prints, and for the log.

use std::collections::BTreeMap;

use model::{AccountingResource, DesiredRunState, ShardState};

use super::{Active, Job, Lists, Part, Stage, spanning::ListRole};

/// How often runs are checked, and how long a list waits before its reason is reported; microseconds.
const CHECK_INTERVAL: i64 = 10_000_000;
/// How often a waiting run is logged; microseconds.
const LOG_INTERVAL: i64 = 60_000_000;
/// Reasons to report.
const MAX_REASONS: usize = 3;

/// When runs were last checked, and logged.
#[derive(Debug, Default)]
pub(super) struct Reported {
    looked_at: Option<i64>,
    logged_at: Option<i64>,
}

impl Lists {
    /// Reports for each run what it waits for, or that it has resumed.
    pub(super) fn report_waiting(&mut self, now: i64) {
        if self.reported.looked_at.is_some_and(|at| now < at.saturating_add(CHECK_INTERVAL)) {
            return;
        }
        self.reported.looked_at = Some(now);
        let is_logged = self.reported.logged_at.is_none_or(|at| now >= at.saturating_add(LOG_INTERVAL));
        let held = (now < self.hold.until).then_some(self.hold.why.as_deref()).flatten();
        for (run, active) in &mut self.runs {
            if active.wanted != DesiredRunState::Running || active.progress.state != ShardState::Running {
                continue;
            }
            let jobs = self.jobs.values().filter(|job| job.run.id == *run);
            let failures = self.shared.evidence.failures.all();
            let reason = held
                .map(|why| format!("all lists are paused: {why}"))
                .or_else(|| reason(jobs, &failures, now));
            let has_changed = reason != active.progress.reason;
            log(&self.shared.task.connector, self.shard, active, reason.as_deref(), has_changed, is_logged);
            if has_changed {
                active.progress.reason = reason;
                self.parts.ready.push_back(Part::standing(run));
            }
        }
        if is_logged {
            self.reported.logged_at = Some(now);
        }
    }
}

fn log(connector: &str, shard: i32, active: &Active, reason: Option<&str>, changed: bool, again: bool) {
    let run = &active.run.id;
    match (reason, &active.progress.reason) {
        (Some(reason), before) if again || changed && before.is_none() => {
            tracing::warn!(connector, shard, %run, reason, "a run is waiting");
        }
        (None, Some(_)) => tracing::info!(connector, shard, %run, "a run has resumed"),
        _ => {}
    }
}

/// Why lists of a run wait; `None` if none does.
fn reason<'a>(
    jobs: impl Iterator<Item = &'a Job>,
    failures: &BTreeMap<AccountingResource, String>,
    now: i64,
) -> Option<String> {
    let mut records: BTreeMap<AccountingResource, usize> = BTreeMap::new();
    let mut reasons = Vec::new();
    for job in jobs {
        let is_long = now.saturating_sub(job.requests.answered.max(job.proof.started_at)) >= CHECK_INTERVAL;
        let is_read = matches!(job.stage, Stage::Unlisted(_));
        if !is_long || !(is_read || matches!(job.stage, Stage::Pages | Stage::Asking | Stage::Scan)) {
            continue;
        }
        for subject in &job.rows.asked_for {
            *records.entry(subject.resource).or_default() += 1;
        }
        if !matches!(job.stage, Stage::Scan) {
            reasons.extend(job.requests.problem.clone());
        }
        if let ListRole::Leader(leader) = &job.role
            && let Some((what, list)) = leader.waits_for(is_read).zip(job.list())
        {
            reasons.push(format!("{list}: {what}"));
        }
    }
    let waits = records.into_iter().map(|(resource, count)| {
        let why = failures.get(&resource).map(|why| format!(": {why}")).unwrap_or_default();
        format!("{count} records of {resource} have to be read by id{why}")
    });
    let mut all: Vec<String> = waits.chain(reasons).collect();
    let more = all.len().saturating_sub(MAX_REASONS);
    all.truncate(MAX_REASONS);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    (!all.is_empty()).then(|| format!("waits: {}", all.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{CompanyId, List, RecordId, Run};

    use super::{
        super::{super::state::Collection, What},
        *,
    };
    use crate::records::schedule::Subject;

    fn job(stage: Stage) -> Job {
        let run: Run = serde_json::from_value(serde_json::json!({
            "connector": "records", "id": "r", "lists": ["customers"], "requestedBy": "test", "requestedAt": 1,
        }))
        .unwrap();
        let company = CompanyId::new("c").unwrap();
        let collection = Collection {
            run: run.id.clone(),
            requested_at: 1,
            list: List::Customers,
            company: Some(company.clone()),
        };
        let resource = AccountingResource::Customers;
        let subject = Subject { resource, company, id: RecordId::new("r").unwrap(), in_company: true };
        let job = Job::new(Arc::new(run), What::List(collection), 0);
        let mut job = Job { stage, ..job };
        match job.stage {
            Stage::Pages => job.requests.problem = Some("page 3 answered 500".to_owned()),
            _ => job.rows.asked_for = vec![subject],
        }
        job
    }

    #[test]
    fn run_reports_what_it_waits_for_and_why() {
        let failures = BTreeMap::from([(AccountingResource::Customers, "answered 403".to_owned())]);
        for (stage, now, expected) in [
            (Stage::Scan, CHECK_INTERVAL - 1, None),
            (
                Stage::Scan,
                CHECK_INTERVAL,
                Some("waits: 1 records of customers have to be read by id: answered 403"),
            ),
            (Stage::Pages, CHECK_INTERVAL, Some("waits: page 3 answered 500")),
            (Stage::Ending, CHECK_INTERVAL, None),
        ] {
            assert_eq!(reason([job(stage)].iter(), &failures, now).as_deref(), expected);
        }
    }

    #[test]
    fn reason_names_a_few_lists() {
        let jobs: Vec<Job> = (0..5).map(|_| job(Stage::Pages)).collect();

        let reason = reason(jobs.iter(), &BTreeMap::new(), CHECK_INTERVAL).unwrap();

        assert!(reason.ends_with("; and 2 more"), "{reason}");
    }
}
