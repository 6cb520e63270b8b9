//! Readings of lists that somebody has asked for, and how far each shard has come.
//!
//! A run is three kinds of record, each with one writer, so that nobody writes over what another has said: the request, which
//! never changes; what shall become of it; and, of each shard, how far it is. Whether a run is over is not written anywhere: it is
//! once every shard says so.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{AccountingResource, CompanyId, Key, List, RunId, names::named};

/// The request to read lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Whose lists.
    pub connector: String,
    /// Which run: no other of the connector has the same.
    pub id: RunId,
    /// What for.
    #[serde(default)]
    pub kind: RunKind,
    /// Which lists.
    pub lists: BTreeSet<List>,
    /// Of which companies; of all where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub companies: Option<BTreeSet<CompanyId>>,
    /// Records of these resources, which no list has, are read again one by one: as many as are known.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub known: BTreeSet<AccountingResource>,
    /// Of payroll only what has changed since the last run of it that was certified.
    #[serde(default)]
    pub incremental: bool,
    /// Of each list so many rows at most are compared; all where there is none. Only of a verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u32>,
    /// What is found to differ is published as the source shows it, where that mends it. Only of a verification.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repair: bool,
    /// Who or what has asked: `initial`, `schedule`, a gap, `rest`.
    pub requested_by: String,
    /// When.
    pub requested_at: i64,
}

named! {
    /// What lists are read for.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum RunKind {
        /// Rows that are newer than what is published are published.
        #[default]
        Snapshot = "snapshot",
        /// Rows are compared with what is published; differences are published only where the run shall repair.
        Verify = "verify",
        /// As a snapshot, for a gap.
        Repair = "repair",
    }
}

impl Run {
    /// The kind of its keys.
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

    /// Whether both ask for the same, whoever asks and when.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self) -> bool {
        let what = |run: &Self| {
            let how = (run.kind, run.incremental, run.sample, run.repair);
            (how, run.lists.clone(), run.known.clone(), run.companies.clone())
        };
        what(self) == what(other)
    }
}

/// What shall become of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunCommand {
    /// This.
    pub wanted: DesiredRunState,
    /// When it was said.
    pub at: i64,
}

/// What shall become of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DesiredRunState {
    /// It goes on.
    #[default]
    Running,
    /// It waits.
    Paused,
    /// It ends where it is.
    Stopped,
}

impl RunCommand {
    /// The kind of its keys.
    pub const KIND: &'static str = "order";

    /// The key of what shall become of a run.
    #[must_use]
    pub fn key(connector: &str, run: &RunId) -> Key {
        Key::state(Self::KIND, &[connector, run.as_str()])
    }
}

/// How far a shard has come with a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// Whose run.
    pub connector: String,
    /// Which.
    pub run: RunId,
    /// Which shard.
    pub shard: i32,
    /// When the run was asked for: an id may be used again. 0 where an earlier worker has written it.
    #[serde(default)]
    pub requested_at: i64,
    /// How it stands.
    pub state: ShardState,
    /// Why it waits, has stopped or has ended without all it was to read, where that needs words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What of payroll is read, where it is not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Lists of this shard, as far as is known.
    pub lists: u64,
    /// Those that are over.
    pub ended: u64,
    /// Those of them that are proved complete.
    pub certified: u64,
    /// Requests for pages, and for records that no page shows, also those that failed; a page that several shards share is asked
    /// for once. Records that are read because their rows are thin are not among them: they are read as those of events are.
    #[serde(default)]
    pub requests: u64,
    /// When a list of it last lacked so much that it waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub braked_at: Option<i64>,
    /// Pages that were read.
    pub pages: u64,
    /// Rows on them that are this shard's.
    pub rows: u64,
    /// Records that were written.
    pub published: u64,
    /// Known records that no list shows and that are not there by id.
    pub vanished: u64,
    /// By kind ([`Difference`](super::Difference)), what differs between source and topic and was not mended.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub differences: BTreeMap<String, u64>,
    /// By kind, what differed and was mended.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub repaired: BTreeMap<String, u64>,
    /// Rows whose whole content was compared with what the topic holds.
    #[serde(default)]
    pub contents: u64,
    /// Known records that no list shows and that are disabled: that is no difference.
    #[serde(default)]
    pub disabled: u64,
    /// Pages of samples that could not be read.
    #[serde(default)]
    pub unread: u64,
    /// Lists whose path the provider does not know.
    #[serde(default)]
    pub absent: u64,
    /// Lists of accounts whose path the provider does not offer: its document shows none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unoffered: u64,
    /// A list of accounts is proved, so the provider offers them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accounts_proved: bool,
    /// The run's own list of companies is proved: it has shown every one that there is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub companies_proved: bool,
    /// Lists that are being read, the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub current: Vec<ListProgress>,
    /// When it began.
    pub started_at: i64,
    /// When this was written.
    pub updated_at: i64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
}

/// How a run stands in one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardState {
    /// Pages are read.
    Running,
    /// It was told to wait, or something needs a person first.
    Paused,
    /// It was told to stop.
    Stopped,
    /// Every list is over.
    Ended,
}

impl ShardState {
    /// Whether nothing more comes.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Stopped | Self::Ended)
    }
}

/// How far one list is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListProgress {
    /// Whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company: Option<CompanyId>,
    /// Which.
    pub list: List,
    /// From 1.
    pub pass: u32,
    /// Pages of this pass that were read.
    pub pages: u64,
    /// Rows of this pass.
    pub rows: u64,
    /// Rows that the list has, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RunProgress {
    /// The kind of its keys.
    pub const KIND: &'static str = "progress";

    /// Of a run that begins now.
    #[must_use]
    pub fn new(run: &Run, shard: i32, state: ShardState, now: i64) -> Self {
        Self {
            connector: run.connector.clone(),
            run: run.id.clone(),
            shard,
            requested_at: run.requested_at,
            state,
            reason: None,
            filter: None,
            lists: 0,
            ended: 0,
            certified: 0,
            requests: 0,
            braked_at: None,
            pages: 0,
            rows: 0,
            published: 0,
            vanished: 0,
            differences: BTreeMap::new(),
            repaired: BTreeMap::new(),
            contents: 0,
            disabled: 0,
            unread: 0,
            absent: 0,
            unoffered: 0,
            accounts_proved: false,
            companies_proved: false,
            current: Vec::new(),
            started_at: now,
            updated_at: now,
            ended_at: None,
        }
    }

    /// Whether it is of this run, and not of one that had its id before.
    #[must_use]
    pub fn is_of(&self, run: &Run) -> bool {
        self.run == run.id && (self.requested_at == 0 || self.requested_at == run.requested_at)
    }

    /// Its key, in the shard's partition of the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        Self::key_of(self.shard, &self.connector, &self.run)
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
    fn the_records_of_a_run_have_keys_of_their_own() {
        let id = RunId::new("a/b").unwrap();

        assert_eq!(Run::key_of("c/d", &id).as_str(), "snapshot/c%2Fd/a%2Fb");
        assert_eq!(RunCommand::key("c/d", &id).as_str(), "order/c%2Fd/a%2Fb");
        assert_eq!(RunProgress::key_of(3, "c/d", &id).as_str(), "progress/3/c%2Fd/a%2Fb");
    }

    #[test]
    fn progress_is_of_the_run_that_was_asked_for_then() {
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
        assert!(earlier.is_of(&run(1)) && earlier.is_of(&run(2)), "nobody knows");
    }

    #[test]
    fn a_request_with_the_least_reads_as_a_snapshot_of_all_companies() {
        let run: Run = serde_json::from_str(
            r#"{"connector":"c","id":"r","lists":["customers"],"requestedBy":"rest","requestedAt":1,"later":true}"#,
        )
        .unwrap();

        assert_eq!((run.kind, run.companies.is_none(), run.incremental), (RunKind::Snapshot, true, false));
        assert_eq!(run.lists, BTreeSet::from([List::Customers]));
    }
}
