//! Runs: requests to read lists, and the progress of each shard.
//!
//! A run consists of three kinds of records, each with one writer, so that no writer overwrites another: the request, which never
//! changes; the command; and the progress of each shard. The end of a run is not written: a run ends when every shard reports
//! that it has finished.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::Sum,
};

use serde::{Deserialize, Serialize};

use crate::{AccountingResource, CompanyId, Key, List, RunId, names::named};

/// A request to read lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The connector.
    pub connector: String,
    /// The run's id, unique within the connector.
    pub id: RunId,
    /// Its kind.
    #[serde(default)]
    pub kind: RunKind,
    /// The lists to read.
    pub lists: BTreeSet<List>,
    /// The companies; all if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub companies: Option<BTreeSet<CompanyId>>,
    /// Resources without lists, of which all known records are read again one by one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub known: BTreeSet<AccountingResource>,
    /// Whether to read only the payroll companies that changed since the last certified run.
    #[serde(default)]
    pub incremental: bool,
    /// How to compare, for a verification.
    #[serde(flatten)]
    pub verification: Verification,
    /// What requested it: `initial`, `schedule`, `schedule-payroll`, a gap, `rest`.
    pub requested_by: String,
    /// When.
    pub requested_at: i64,
}

/// How a verification compares lists with topics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Most rows compared per list; all if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u32>,
    /// Whether differences are repaired by publishing the source's records, where possible.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repair: bool,
}

named! {
    /// The purpose of a run.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum RunKind {
        /// Publish rows that are newer than the published records.
        #[default]
        Snapshot = "snapshot",
        /// Compare rows with the published records; publish differences only if `repair` is set.
        Verify = "verify",
        /// A snapshot for a gap.
        Repair = "repair",
    }
}

impl Run {
    /// First part of its keys.
    pub const KIND: &'static str = "snapshot";

    /// Its key in the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        Self::key_of(&self.connector, &self.id)
    }

    /// The key of a run.
    #[must_use]
    pub fn key_of(connector: &str, id: &RunId) -> Key {
        Key::state(Self::KIND, &[connector, id.as_str()])
    }

    /// Whether both request the same, regardless of who requested it when.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self) -> bool {
        let what = |run: &Self| {
            let how = (run.kind, run.incremental, run.verification);
            (how, run.lists.clone(), run.known.clone(), run.companies.clone())
        };
        what(self) == what(other)
    }
}

/// The command for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunCommand {
    /// The desired state.
    pub wanted: DesiredRunState,
    /// When it was given.
    pub at: i64,
}

/// The command for a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DesiredRunState {
    /// Continue.
    #[default]
    Running,
    /// Pause.
    Paused,
    /// Stop.
    Stopped,
}

impl RunCommand {
    /// First part of its keys.
    pub const KIND: &'static str = "order";

    /// The key of a run's command.
    #[must_use]
    pub fn key(connector: &str, run: &RunId) -> Key {
        Key::state(Self::KIND, &[connector, run.as_str()])
    }
}

/// The progress of a shard in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// The shard and the run.
    #[serde(flatten)]
    pub of: ShardRun,
    /// Its state.
    pub state: ShardState,
    /// Why it is paused, stopped, or ended incompletely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The filter for payroll, if not everything is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// When a list was last held back for a person to check, because too many records were missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub braked_at: Option<i64>,
    /// Lists of this shard.
    #[serde(flatten)]
    pub lists: ListCounts,
    /// What it has read and written.
    #[serde(flatten)]
    pub work: RunWork,
    /// What it has compared.
    #[serde(flatten)]
    pub compared: ListComparison,
    /// The first of the lists that are being read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub current: Vec<ListProgress>,
    /// When it began and ended.
    #[serde(flatten)]
    pub times: ShardTimes,
}

/// A shard's part of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardRun {
    /// The connector.
    pub connector: String,
    /// The run.
    pub run: RunId,
    /// The shard.
    pub shard: i32,
    /// When the run was requested, since an id may be reused. 0 if written by an earlier version.
    #[serde(default)]
    pub requested_at: i64,
}

/// The lists of a run in one shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListCounts {
    /// Known lists.
    #[serde(rename = "lists")]
    pub total: u64,
    /// Finished lists.
    pub ended: u64,
    /// Finished lists that are proved complete.
    pub certified: u64,
    /// Lists whose path the provider does not know.
    #[serde(default)]
    pub absent: u64,
    /// Lists of accounts that the provider does not offer, according to its API document.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unoffered: u64,
    /// A list of accounts was proved complete, so the provider offers them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accounts_proved: bool,
    /// The run's list of companies was proved complete: it has every company.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub companies_proved: bool,
}

/// What a run has read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunWork {
    /// Requests for pages and for records that are on no page, including failed ones; a page that several shards share counts once.
    /// Excludes reads of records whose rows lack members: these go through enrichment.
    #[serde(default)]
    pub requests: u64,
    /// Pages read.
    pub pages: u64,
    /// Rows of the shard on them.
    pub rows: u64,
    /// Records written.
    pub published: u64,
    /// Known records that are in no list and cannot be read by id.
    pub vanished: u64,
}

impl Sum for RunWork {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            requests: sum.requests.saturating_add(one.requests),
            pages: sum.pages.saturating_add(one.pages),
            rows: sum.rows.saturating_add(one.rows),
            published: sum.published.saturating_add(one.published),
            vanished: sum.vanished.saturating_add(one.vanished),
        })
    }
}

/// What a run has compared with the topics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListComparison {
    /// Differences that were not repaired, by kind ([`Difference`](super::Difference)).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub differences: BTreeMap<String, u64>,
    /// Repaired differences, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub repaired: BTreeMap<String, u64>,
    /// Rows whose whole content was compared with the topic.
    #[serde(default)]
    pub contents: u64,
    /// Known records that are in no list and disabled, which is not a difference.
    #[serde(default)]
    pub disabled: u64,
    /// Pages of samples that could not be read.
    #[serde(default)]
    pub unread: u64,
}

/// When a shard began a run and ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardTimes {
    /// When it began.
    pub started_at: i64,
    /// When this record was written.
    pub updated_at: i64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
}

/// The state of a run in one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardState {
    /// Reading.
    Running,
    /// Paused by a command, or waiting for a person.
    Paused,
    /// Stopped by a command.
    Stopped,
    /// Every list is finished.
    Ended,
}

impl ShardState {
    /// Whether it is final.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Stopped | Self::Ended)
    }
}

/// The progress of one list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListProgress {
    /// The company.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company: Option<CompanyId>,
    /// The run.
    pub list: List,
    /// The pass, from 1.
    pub pass: u32,
    /// Pages read in this pass.
    pub pages: u64,
    /// Rows of this pass.
    pub rows: u64,
    /// Rows of the list, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RunProgress {
    /// First part of its keys.
    pub const KIND: &'static str = "progress";

    /// The progress of a run that starts now.
    #[must_use]
    pub fn new(run: &Run, shard: i32, state: ShardState, now: i64) -> Self {
        Self {
            of: ShardRun {
                connector: run.connector.clone(),
                run: run.id.clone(),
                shard,
                requested_at: run.requested_at,
            },
            state,
            reason: None,
            filter: None,
            braked_at: None,
            lists: ListCounts::default(),
            work: RunWork::default(),
            compared: ListComparison::default(),
            current: Vec::new(),
            times: ShardTimes { started_at: now, updated_at: now, ended_at: None },
        }
    }

    /// Whether it is of this run and not of an earlier one with the same id.
    #[must_use]
    pub fn is_of(&self, run: &Run) -> bool {
        let requested_at = self.of.requested_at;
        self.of.run == run.id && (requested_at == 0 || requested_at == run.requested_at)
    }

    /// Its key, in the shard's partition of the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        Self::key_of(self.of.shard, &self.of.connector, &self.of.run)
    }

    /// The key of a shard's progress.
    #[must_use]
    pub fn key_of(shard: i32, connector: &str, run: &RunId) -> Key {
        Key::shard_state(Self::KIND, shard, &[connector, run.as_str()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_run_have_distinct_keys() {
        let id = RunId::new("a/b").unwrap();

        assert_eq!(Run::key_of("c/d", &id).as_str(), "snapshot/c%2Fd/a%2Fb");
        assert_eq!(RunCommand::key("c/d", &id).as_str(), "order/c%2Fd/a%2Fb");
        assert_eq!(RunProgress::key_of(3, "c/d", &id).as_str(), "progress/3/c%2Fd/a%2Fb");
    }

    #[test]
    fn progress_belongs_to_the_run_of_its_request_time() {
        let run = |at: i64| -> Run {
            let text = format!(
                r#"{{"connector":"c","id":"r","lists":["customers"],"requestedBy":"rest","requestedAt":{at}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let progress = RunProgress::new(&run(1), 0, ShardState::Ended, 5);

        assert!(progress.is_of(&run(1)) && !progress.is_of(&run(2)));
        let text = serde_json::to_string(&progress).unwrap().replace(r#""requestedAt":1,"#, "");
        let earlier: RunProgress = serde_json::from_str(&text).unwrap();
        assert!(earlier.is_of(&run(1)) && earlier.is_of(&run(2)), "the request time is unknown");
    }

    #[test]
    fn minimal_request_is_a_snapshot_of_all_companies() {
        let run: Run = serde_json::from_str(
            r#"{"connector":"c","id":"r","lists":["customers"],"requestedBy":"rest","requestedAt":1,"later":true}"#,
        )
        .unwrap();

        assert_eq!((run.kind, run.companies.is_none(), run.incremental), (RunKind::Snapshot, true, false));
        assert_eq!(run.lists, BTreeSet::from([List::Customers]));
    }
}
