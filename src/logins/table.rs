//! The grants topic in memory, still encrypted.
//!
//! The last record of a grant counts, unless it is a replay: an attacker who may write to the topic could otherwise append an old
//! envelope again and bring back the tokens of an ended login. If the table has the keys to open envelopes, it refuses
//!
//! - an envelope whose revision is not above that of the newest one it has opened,
//! - an envelope of another group after one of this worker's group,
//! - form 1 after form 2.
//!
//! It keeps the revision of a removed grant too.
//!
//! Limits: an attacker who may write to the topic can still remove a grant or overwrite it. Once the newest envelope is gone from
//! the topic, a worker that starts afterwards does not know its revision and accepts the older one.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use kafka::{ConsumerRecord, partition_of};
use provider::auth::seal::{Envelope, Keyring};

use crate::state::TableState;

/// Key of the record that names the topic's owners.
pub(super) const CLUSTER: &str = "cluster";
const GRANT: &str = "grant/";
const REFUSED: &str = "refused/";

/// A grant's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRecord {
    /// The encrypted grant; `None` if the record is not an envelope.
    pub envelope: Option<Arc<Envelope>>,
    /// Its partition.
    pub partition: i32,
    /// Its offset, which identifies the write.
    pub offset: i64,
    /// When it was written, in milliseconds since 1970.
    pub at_ms: Option<i64>,
}

/// An API has refused an access token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedToken {
    /// Serial of the token.
    pub serial: u64,
    /// Its login: serials restart with a login over an unreadable record.
    #[serde(default)]
    pub login: String,
    /// The worker whose request was refused: `host:port`.
    pub worker: String,
}

/// Which workers refresh the grants of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicOwners {
    /// Their `group.id`.
    #[serde(rename = "group.id")]
    pub group: String,
    /// The topic whose partitions they share.
    #[serde(rename = "work.topic")]
    pub work_topic: String,
}

/// The record of [`CLUSTER`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClusterRecord {
    #[serde(flatten)]
    pub(super) owners: TopicOwners,
    /// Partition count by which grants are placed, even if the topic has grown since.
    #[serde(default)]
    pub(super) partitions: Option<i32>,
}

/// The state of the topic.
#[derive(Debug, Clone, Default)]
pub struct GrantTable {
    grants: BTreeMap<String, GrantRecord>,
    refused: BTreeMap<String, RefusedToken>,
    cluster: Option<ClusterRecord>,
    /// The newest envelope of each grant that could be opened here.
    newest: BTreeMap<String, Arc<Envelope>>,
    /// The keys that open them; without keys the last record counts.
    keys: Option<Arc<Keyring>>,
}

impl GrantTable {
    /// A table that recognizes old envelopes with these keys.
    #[must_use]
    pub fn with_keys(keys: Arc<Keyring>) -> Self {
        Self { keys: Some(keys), ..Self::default() }
    }

    /// The revision for the next write of a grant: above every one that was read, and at least the current time, so that a command
    /// that reads the topic after its old records were compacted away does not start below them.
    pub(super) fn next_revision(&self, name: &str, now_ms: i64) -> u64 {
        let stamp = self.newest.get(name).and_then(|envelope| envelope.stamp.as_ref());
        let now = u64::try_from(now_ms).unwrap_or_default();
        stamp.map_or(0, |stamp| stamp.revision.saturating_add(1)).max(now)
    }

    /// Whether an envelope is older than the newest; if not, it becomes the newest. An envelope that cannot be opened here proves
    /// nothing.
    fn is_old(&mut self, name: &str, envelope: &Arc<Envelope>) -> bool {
        let Some(keys) = &self.keys else { return false };
        if keys.open_bytes(&grant_key(name), envelope).is_err() {
            return false;
        }
        let owner = self.owners().map(|owners| owners.group.clone());
        let is_old = self
            .newest
            .get(name)
            .is_some_and(|newest| !follows(newest, envelope, keys.group(), owner.as_deref()));
        if !is_old {
            self.newest.insert(name.to_owned(), Arc::clone(envelope));
        }
        is_old
    }

    /// Every grant by name.
    #[must_use]
    pub fn grants(&self) -> &BTreeMap<String, GrantRecord> {
        &self.grants
    }

    /// The last refusal of a token of this grant.
    #[must_use]
    pub fn refused(&self, name: &str) -> Option<&RefusedToken> {
        self.refused.get(name)
    }

    /// The workers it belongs to, once the first of them has claimed it.
    #[must_use]
    pub fn owners(&self) -> Option<&TopicOwners> {
        self.cluster.as_ref().map(|cluster| &cluster.owners)
    }

    /// The partition count by which grants are placed, out of those `followed`. It stays if the topic grows: a moved record would
    /// leave its predecessor behind, with a refresh token that ends the grant.
    pub(super) fn placed_among(&self, followed: i32) -> i32 {
        let recorded = self.cluster.as_ref().and_then(|cluster| cluster.partitions);
        recorded.filter(|count| (1..=followed).contains(count)).unwrap_or(followed)
    }

    /// The partition of a grant: where its record already is, else where it is placed.
    pub(super) fn place(&self, name: &str, followed: i32) -> i32 {
        let current = self.grants.get(name).map(|entry| entry.partition);
        current.unwrap_or_else(|| partition_of(name.as_bytes(), self.placed_among(followed)))
    }
}

/// Whether workers of group `ours` accept an envelope after another, both of one record and both opened. `owner` is the group that
/// the topic names as owner at that offset.
fn follows(newest: &Envelope, next: &Envelope, ours: &str, owner: Option<&str>) -> bool {
    match (&newest.stamp, &next.stamp) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(newest_stamp), Some(stamp)) if newest_stamp.group == stamp.group => {
            // Repeating the same record is harmless.
            stamp.revision > newest_stamp.revision || newest == next
        }
        // Workers that take over the topic of another group overwrite its records, and may hand the topic back.
        (Some(newest), Some(stamp)) => {
            newest.group != ours || (owner == Some(stamp.group.as_str()) && stamp.revision > newest.revision)
        }
    }
}

impl TableState for GrantTable {
    fn blank(&self) -> Self {
        Self { keys: self.keys.clone(), ..Self::default() }
    }

    fn apply(&mut self, record: &ConsumerRecord) {
        let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
        let strange = |what: &str| {
            let ConsumerRecord { topic, partition, offset, .. } = record;
            tracing::warn!(%topic, partition, offset, what, "skipped a record of the grants topic");
        };
        let Some(key) = key else { return strange("it has no key") };
        let value = record.value.as_deref();
        if let Some(name) = key.strip_prefix(GRANT) {
            // Growing the topic can leave or make a second copy. Partitions are read in any order, so a fixed one must win.
            if self.grants.get(name).is_some_and(|known| known.partition < record.partition) {
                return strange("the grant is in another partition");
            }
            let Some(value) = value else {
                // Removed on a person's request.
                self.grants.remove(name);
                return;
            };
            let envelope: Option<Arc<Envelope>> = serde_json::from_slice(value).ok().map(Arc::new);
            match &envelope {
                None => strange("it is not an encrypted grant"),
                Some(envelope) if self.is_old(name, envelope) => {
                    let ConsumerRecord { topic, partition, offset, .. } = record;
                    tracing::error!(%topic, partition, offset, grant = name,
                        "refused an old record of a grant that was replayed, or written by an older version; the newer one stays");
                    return;
                }
                Some(_) => {}
            }
            let entry = GrantRecord {
                envelope,
                partition: record.partition,
                offset: record.offset,
                at_ms: record.timestamp_ms,
            };
            self.grants.insert(name.to_owned(), entry);
        } else if let Some(name) = key.strip_prefix(REFUSED) {
            match value.map(serde_json::from_slice) {
                Some(Ok(refused)) => self.take_refused(name, refused),
                Some(Err(_)) => strange("it is not a refusal"),
                None => drop(self.refused.remove(name)),
            }
        } else if key == CLUSTER {
            match value.map(serde_json::from_slice).transpose() {
                Ok(cluster) => self.cluster = cluster,
                Err(_) => strange("it does not name the topic's owners"),
            }
        } else {
            strange("its key is unknown");
        }
    }
}

impl GrantTable {
    /// A late refusal, from a worker that is behind, does not replace one of a later serial.
    fn take_refused(&mut self, name: &str, refused: RefusedToken) {
        let is_late = |known: &RefusedToken| known.login == refused.login && known.serial > refused.serial;
        if !self.refused.get(name).is_some_and(is_late) {
            self.refused.insert(name.to_owned(), refused);
        }
    }
}

/// Key of a grant's record.
#[must_use]
pub fn grant_key(name: &str) -> String {
    format!("{GRANT}{name}")
}

/// Key of the record of a refused token.
#[must_use]
pub(super) fn refused_key(name: &str) -> String {
    format!("{REFUSED}{name}")
}

#[cfg(test)]
mod tests {
    use provider::auth::{grant::samples::ready, seal::unstamped};

    use super::*;
    use crate::state::samples::received;

    #[test]
    fn last_record_of_a_key_counts_and_unknown_ones_are_skipped() {
        let ring = ring("ours");
        let envelope = ring.seal("grant/acc", &ready("acc"), 1).unwrap();
        let sealed = serde_json::to_string(&envelope).unwrap();
        let mut table = GrantTable::default();

        for (offset, (key, value)) in (0..).zip([
            ("grant/acc", Some("{}")),
            ("grant/acc", Some(&*sealed)),
            ("grant/pay", Some("not JSON")),
            ("refused/acc", Some(r#"{"serial":3,"worker":"a:1"}"#)),
            ("refused/acc", Some("[]")),
            ("cluster", Some(r#"{"group.id":"g","work.topic":"w"}"#)),
            ("cluster", Some("3")),
            ("grants", Some("{}")),
            ("grant/gone", Some(&*sealed)),
            ("grant/gone", None),
        ]) {
            table.apply(&received(offset, key, value));
        }

        assert_eq!(table.grants()["acc"].envelope.as_deref(), Some(&envelope));
        assert_eq!((table.grants()["acc"].offset, table.grants()["pay"].envelope.is_none()), (1, true));
        assert_eq!(table.refused("acc").unwrap().serial, 3);
        assert_eq!(table.owners().unwrap().group, "g");
        assert_eq!(table.grants().len(), 2);
    }

    fn ring(group: &str) -> Arc<Keyring> {
        Arc::new(Keyring::new(&"a key of thirty-two bytes, or more".into(), None, group).unwrap())
    }

    /// The offsets at which a table takes these records of one grant.
    fn taken(records: &[Option<&Envelope>]) -> Vec<i64> {
        let mut table = GrantTable::with_keys(ring("ours"));
        let mut taken = Vec::new();
        for (offset, envelope) in (0..).zip(records) {
            let text = envelope.map(|envelope| serde_json::to_string(envelope).unwrap());
            table.apply(&received(offset, "grant/acc", text.as_deref()));
            taken.extend(table.grants().get("acc").map(|entry| entry.offset).filter(|at| *at == offset));
        }
        taken
    }

    #[test]
    fn replayed_envelope_is_refused() {
        let (ours, theirs) = (ring("ours"), ring("theirs"));
        let grant = ready("acc");
        let sealed = |ring: &Keyring, revision| ring.seal("grant/acc", &grant, revision).unwrap();
        let (first, second) = (sealed(&ours, 1), sealed(&ours, 2));
        // A logout keeps the serial: only its revision makes it newer.
        let out = ours.seal("grant/acc", &grant.log_out(1), 3).unwrap();
        let v1 = unstamped(&ours, "grant/acc", &grant);
        let foreign = sealed(&theirs, 9);
        let unknown = Keyring::new(&"another key of thirty-two bytes, or more".into(), None, "ours").unwrap();
        let unknown = sealed(&unknown, 1);
        for (what, records, expected) in [
            ("in order", vec![Some(&v1), Some(&first), Some(&second), Some(&out)], vec![0, 1, 2, 3]),
            ("again", vec![Some(&first), Some(&second), Some(&out), Some(&second)], vec![0, 1, 2]),
            ("the same again", vec![Some(&first), Some(&first)], vec![0, 1]),
            ("form 1", vec![Some(&first), Some(&v1)], vec![0]),
            ("another group's", vec![Some(&first), Some(&foreign)], vec![0]),
            ("taken over", vec![Some(&foreign), Some(&first), Some(&foreign)], vec![0, 1]),
            ("removed", vec![Some(&first), Some(&second), None, Some(&first)], vec![0, 1]),
            ("an unknown key", vec![Some(&second), Some(&unknown), Some(&first)], vec![0, 1]),
        ] {
            assert_eq!(taken(&records), expected, "{what}");
        }
    }

    #[test]
    fn topic_that_is_handed_back_keeps_its_newest_envelope() {
        let grant = ready("acc");
        let mut table = GrantTable::with_keys(ring("ours"));
        let owned = |group: &str| format!(r#"{{"group.id":"{group}","work.topic":"w","partitions":1}}"#);
        let sealed = |group: &str, revision| {
            let envelope = ring(group).seal("grant/acc", &grant, revision).unwrap();
            serde_json::to_string(&envelope).unwrap()
        };
        let records = [
            ("cluster", owned("ours")),
            ("grant/acc", sealed("ours", 1)),
            ("cluster", owned("theirs")),
            ("grant/acc", sealed("theirs", 2)),
            ("cluster", owned("ours")),
        ];
        for (offset, (key, value)) in (0..).zip(&records) {
            table.apply(&received(offset, key, Some(value)));
        }

        assert_eq!(table.grants()["acc"].offset, 3);
    }

    #[test]
    fn next_revision_is_above_all_read_and_at_least_the_time() {
        let mut table = GrantTable::with_keys(ring("ours"));
        assert_eq!(table.next_revision("acc", 5), 5);

        let sealed = ring("ours").seal("grant/acc", &ready("acc"), 70).unwrap();
        table.apply(&received(0, "grant/acc", Some(&serde_json::to_string(&sealed).unwrap())));
        table.apply(&received(1, "grant/acc", None));

        assert_eq!((table.next_revision("acc", 5), table.next_revision("acc", 100)), (71, 100));
        assert_eq!(table.blank().next_revision("acc", 5), 5);
    }

    #[test]
    fn late_refusal_does_not_replace_a_newer_one() {
        let mut table = GrantTable::default();
        let refusal =
            |table: &GrantTable| table.refused("acc").map(|one| (one.login.clone(), one.serial)).unwrap();

        for (offset, serial) in [(0, 5), (1, 4)] {
            let value = format!(r#"{{"serial":{serial},"login":"l","worker":"a:1"}}"#);
            table.apply(&received(offset, "refused/acc", Some(&value)));
        }

        assert_eq!(refusal(&table), ("l".to_owned(), 5));
        table.apply(&received(2, "refused/acc", Some(r#"{"serial":1,"login":"m","worker":"a:1"}"#)));
        assert_eq!(refusal(&table), ("m".to_owned(), 1), "serials restart with another login");
    }

    #[test]
    fn growing_the_topic_moves_no_grant() {
        let sealed = serde_json::json!({"v": 1, "kid": "k", "nonce": "", "sealed": ""}).to_string();
        let moved = (0..)
            .map(|number| format!("grant-{number}"))
            .find(|name| partition_of(name.as_bytes(), 3) == 2)
            .unwrap();
        let mut table = GrantTable::default();
        assert_eq!((table.place(&moved, 1), table.place(&moved, 3)), (0, 2));

        table.apply(&received(0, "cluster", Some(r#"{"group.id":"g","work.topic":"w","partitions":1}"#)));
        assert_eq!(table.place(&moved, 3), 0, "the recorded count");
        assert_eq!(table.owners().unwrap().group, "g");

        let mut unclaimed = GrantTable::default();
        unclaimed.apply(&received(7, &grant_key(&moved), Some(&sealed)));
        assert_eq!(unclaimed.place(&moved, 3), 0, "where its record is");
        let mut copy = received(0, &grant_key(&moved), Some(&sealed));
        copy.partition = 2;
        unclaimed.apply(&copy);
        assert_eq!((unclaimed.grants()[&moved].partition, unclaimed.grants()[&moved].offset), (0, 7));
        let mut read_first = GrantTable::default();
        read_first.apply(&copy);
        read_first.apply(&received(7, &grant_key(&moved), Some(&sealed)));
        assert_eq!(read_first.grants(), unclaimed.grants(), "in any order");
    }
}
