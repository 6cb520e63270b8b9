//! Runs and certificates as REST shows them: summed over shards, with readable times.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use model::{Certificate, CompanyId, List, ListProgress, Run, RunId};

use super::{ConnectorRuns, FoundCertificates};
use crate::{
    connect::herder::shapes::time,
    state::runs::{Collections, RunStatus, RunTotals, Shards},
};

/// `GET /connectors/{name}/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunsInfo {
    /// Newest first.
    pub snapshots: Vec<RunInfo>,
    /// Configured lists that wait for a login.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<ListAwaitingLogin>,
}

/// A configured list that no run reads for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListAwaitingLogin {
    /// The list.
    pub list: List,
    /// Why, and what to do about it.
    pub reason: String,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunInfo {
    /// What was requested.
    #[serde(flatten)]
    pub request: RequestedRun,
    /// `waiting`, `running`, `paused`, `stopped` or `ended`.
    pub state: &'static str,
    /// Why it waits or has stopped, if there is more to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it started and ended.
    #[serde(flatten)]
    pub times: RunTimes,
    /// Shards.
    pub shards: Shards,
    /// Lists.
    pub collections: Collections,
    /// Its work.
    #[serde(flatten)]
    pub totals: RunTotals,
    /// Whether every list that the provider offers is certified complete; null until the run is over.
    pub certified: Option<bool>,
    /// Only in the answer for one run.
    #[serde(flatten)]
    pub detail: Option<RunDetail>,
}

/// What a run reads, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestedRun {
    /// Its id.
    pub id: RunId,
    /// `snapshot`, `verify` or `repair`.
    pub kind: &'static str,
    /// Lists it reads.
    pub lists: BTreeSet<List>,
    /// Companies it reads; null for all.
    pub companies: Option<BTreeSet<CompanyId>>,
    /// Whether it reads only what changed.
    pub incremental: bool,
    /// Limit on the rows of each list that are compared; null for all.
    pub sample: Option<u32>,
    /// Whether differences are repaired.
    pub repair: bool,
    /// Who requested it.
    pub requested_by: String,
    /// When it was requested.
    pub requested_at: String,
}

/// When a run started and ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunTimes {
    /// When the first shard started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When a shard last reported progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// When the last shard ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

/// What only the answer for one run shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunDetail {
    /// Requests a second that the connector may make, for this and everything else.
    pub budget: f64,
    /// Lists that are being read, the first of each shard.
    pub current: Vec<ListProgress>,
    /// Configured lists that wait for a login.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<ListAwaitingLogin>,
}

/// `GET /connectors/{name}/certificates`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CertificatesInfo {
    /// Newest first; members as in the schema, with readable times.
    pub certificates: Vec<Value>,
    /// Whether there may be more.
    pub truncated: bool,
}

/// Every run, the last requested first.
pub(super) fn runs(stored: &ConnectorRuns, waiting: BTreeMap<List, String>) -> RunsInfo {
    let mut all: Vec<&Run> = stored.runs.runs.values().collect();
    all.sort_by(|one, other| (other.requested_at, &other.id).cmp(&(one.requested_at, &one.id)));
    let status = |run: &Run| stored.runs.status(&run.id, stored.shards);
    let each = all.into_iter().map(|run| info(run, status(run), None));
    RunsInfo { snapshots: each.collect(), waiting: listed(waiting) }
}

fn listed(waiting: BTreeMap<List, String>) -> Vec<ListAwaitingLogin> {
    waiting.into_iter().map(|(list, reason)| ListAwaitingLogin { list, reason }).collect()
}

/// One run in detail, of a connector with this budget of requests a second.
pub(super) fn detailed(
    stored: &ConnectorRuns,
    id: &RunId,
    budget: f64,
    waiting: BTreeMap<List, String>,
) -> Option<RunInfo> {
    let run = stored.runs.runs.get(id)?;
    let mut status = stored.runs.status(id, stored.shards);
    let current = std::mem::take(&mut status.current);
    Some(info(run, status, Some(RunDetail { budget, current, waiting: listed(waiting) })))
}

fn info(run: &Run, status: RunStatus, detail: Option<RunDetail>) -> RunInfo {
    let Run { id, kind, lists, companies, incremental, verification, requested_by, requested_at, .. } =
        run.clone();
    RunInfo {
        request: RequestedRun {
            id,
            kind: kind.name(),
            lists,
            companies,
            incremental,
            sample: verification.sample,
            repair: verification.repair,
            requested_by,
            requested_at: time(requested_at),
        },
        state: status.state.name(),
        reason: status.reason,
        times: RunTimes {
            started_at: status.started_at.map(time),
            updated_at: status.updated_at.map(time),
            ended_at: status.state.ended_at().map(time),
        },
        shards: status.shards,
        collections: status.lists,
        totals: status.totals,
        certified: status.state.certified(),
        detail,
    }
}

/// The newest `limit` of them.
pub(super) fn certificates(certificates: FoundCertificates, limit: usize) -> CertificatesInfo {
    let FoundCertificates { mut found, truncated } = certificates;
    let place = |one: &Certificate| (one.scope.list.clone(), one.scope.company_id.clone(), one.scope.shard);
    found.sort_by(|one, other| {
        other.reading.ended_at.cmp(&one.reading.ended_at).then_with(|| place(one).cmp(&place(other)))
    });
    let truncated = truncated || found.len() > limit;
    found.truncate(limit);
    CertificatesInfo { certificates: found.iter().map(certificate).collect(), truncated }
}

fn certificate(certificate: &Certificate) -> Value {
    // Strings, numbers and lists of strings: serializing them cannot fail.
    let mut members = serde_json::to_value(certificate).unwrap_or_default();
    for name in ["cutAfter", "cutBefore", "startedAt", "endedAt"] {
        if let Some(micros) = members[name].as_i64() {
            members[name] = time(micros).into();
        }
    }
    members
}
