//! Runs and certificates as REST shows them: summed over shards, with readable times.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use model::{Certificate, CompanyId, List, ListProgress, Run, RunId};

use super::{Certificates, ConnectorRuns};
use crate::{
    connect::herder::shapes::time,
    state::runs::{Collections, RunStatus, Shards},
};

/// `GET /connectors/{name}/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunsInfo {
    /// Newest first.
    pub snapshots: Vec<RunInfo>,
    /// Configured lists that wait for a login.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingList>,
}

/// A configured list that no run reads for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingList {
    /// The list.
    pub list: List,
    /// Why, and what to do about it.
    pub reason: String,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunInfo {
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
    /// `waiting`, `running`, `paused`, `stopped` or `ended`.
    pub state: &'static str,
    /// Why it waits or has stopped, if there is more to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the first shard started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When a shard last reported progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// When the last shard ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Shards.
    pub shards: Shards,
    /// Lists.
    pub collections: Collections,
    /// Requests for pages, and for records that are on no page.
    pub requests: u64,
    /// Requests a second that the connector may make, for this and everything else; only in the answer for one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// Pages read.
    pub pages: u64,
    /// Rows on them.
    pub rows: u64,
    /// Records written.
    pub published: u64,
    /// Known records that no list shows and that do not exist by id.
    pub vanished: u64,
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
    /// Whether every list that the provider offers is certified complete; null until the run is over.
    pub certified: Option<bool>,
    /// Lists that are being read, the first of each shard; only in the answer for one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<Vec<ListProgress>>,
    /// Configured lists that wait for a login; only in the answer for one run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingList>,
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
    let each = all.into_iter().map(|run| info(run, stored.runs.status(&run.id, stored.shards), None));
    RunsInfo { snapshots: each.collect(), waiting: listed(waiting) }
}

fn listed(waiting: BTreeMap<List, String>) -> Vec<WaitingList> {
    waiting.into_iter().map(|(list, reason)| WaitingList { list, reason }).collect()
}

/// One run in detail, of a connector with this budget of requests a second.
pub(super) fn detailed(
    stored: &ConnectorRuns,
    id: &RunId,
    budget: f64,
    waiting: BTreeMap<List, String>,
) -> Option<RunInfo> {
    let run = stored.runs.runs.get(id)?;
    let info = info(run, stored.runs.status(id, stored.shards), Some(budget));
    Some(RunInfo { waiting: listed(waiting), ..info })
}

/// With `budget`: in detail.
fn info(run: &Run, status: RunStatus, budget: Option<f64>) -> RunInfo {
    let Run { id, kind, lists, companies, incremental, sample, repair, requested_by, requested_at, .. } =
        run.clone();
    RunInfo {
        id,
        kind: kind.name(),
        lists,
        companies,
        incremental,
        sample,
        repair,
        requested_by,
        requested_at: time(requested_at),
        state: status.state.name(),
        reason: status.reason,
        started_at: status.started_at.map(time),
        updated_at: status.updated_at.map(time),
        ended_at: status.ended_at.map(time),
        shards: status.shards,
        collections: status.lists,
        requests: status.totals.requests,
        budget,
        pages: status.totals.pages,
        rows: status.totals.rows,
        published: status.totals.published,
        vanished: status.totals.vanished,
        differences: status.totals.differences,
        repaired: status.totals.repaired,
        contents: status.totals.contents,
        disabled: status.totals.disabled,
        unread: status.totals.unread,
        certified: status.certified,
        current: budget.map(|_| status.current),
        waiting: Vec::new(),
    }
}

/// The newest `limit` of them.
pub(super) fn certificates(certificates: Certificates, limit: usize) -> CertificatesInfo {
    let Certificates { mut found, truncated } = certificates;
    let place = |one: &Certificate| (one.list.clone(), one.company_id.clone(), one.shard);
    found.sort_by(|one, other| other.ended_at.cmp(&one.ended_at).then_with(|| place(one).cmp(&place(other))));
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
