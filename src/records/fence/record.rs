//! Formats of the fences: records of their topic, and keys of the database that caches them.
//!
//! ```text
//! {prefix} 00 {shard, 4 bytes} e {key}             an entry: the stamp as in the topic
//! {prefix} 00 {shard, 4 bytes} l {SHA-256 of key}  an entry with a key above 1,024 bytes
//! {prefix} 00 {shard, 4 bytes} m                   metadata of the fence
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use kafka::ConsumerRecord;
use model::{CompanyId, Epoch, Key, Rank, RecordId, Stamp, Topic, TopicPrefix};

const ENTRY: u8 = b'e';
const LONG_ENTRY: u8 = b'l';
/// Sorts after all entries.
const META: u8 = b'm';
/// Longer keys are replaced by their hash, because the store panics above 64 KiB.
const MAX_KEY_BYTES: usize = 1024;

/// Value of a birth record.
#[derive(Serialize, Deserialize)]
struct Birth {
    birth: String,
}

/// A parsed record of the topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FenceRecord {
    /// Key and unparsed stamp; `None` for a tombstone.
    Entry(Bytes, Option<Bytes>),
    Birth(String),
    /// A record that does not concern the fence.
    Other,
}

/// Key and value of an entry; `key` comes from [`Key::fence`].
#[must_use]
pub fn record(key: &Key, stamp: &Stamp) -> (Bytes, Bytes) {
    (Bytes::copy_from_slice(key.as_str().as_bytes()), json(stamp))
}

/// Key and value of a birth record. The first owner of a partition writes it once, before any other record.
#[must_use]
pub fn birth_record(shard: i32, birth: &str) -> (Key, Bytes) {
    (Key::shard(shard), json(&Birth { birth: birth.to_owned() }))
}

/// Derives the fence entry of a published value from its headers; `None` if they are missing or invalid.
#[must_use]
pub fn of_value(topic: Topic, value: &ConsumerRecord) -> Option<(Key, Stamp)> {
    let header = |name: &str| {
        let (_, text) = value.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(text).ok()
    };
    let parts = Key::parts(std::str::from_utf8(value.key.as_deref()?).ok()?).ok()?;
    let [company, id] = &parts[..] else { return None };
    let record = Key::record(&CompanyId::new(company.as_str()).ok()?, &RecordId::new(id.as_str()).ok()?);
    let stamp = Stamp {
        epoch: Epoch(header("tributary.epoch").map_or(Ok(0), str::parse).ok()?),
        version: header("tributary.version")?.parse().ok()?,
        // A list row may be less than the record.
        rank: if header("tributary.origin") == Some("snapshot") { Rank::List } else { Rank::ById },
        deleted: value.value.is_none(),
    };
    Some((Key::fence(topic, &record), stamp))
}

/// Parses a record of a shard's partition.
pub(super) fn parse(received: &ConsumerRecord, shard: i32) -> Result<FenceRecord, serde_json::Error> {
    let Some(key) = &received.key else { return Ok(FenceRecord::Other) };
    let value = received.value.as_ref();
    if **key == *Key::shard(shard).as_str().as_bytes() {
        let Some(value) = value else { return Ok(FenceRecord::Other) };
        return serde_json::from_slice(value).map(|Birth { birth }| FenceRecord::Birth(birth));
    }
    // Keys of records about the shard itself; later versions may add some.
    if key.starts_with(b"~") {
        return Ok(FenceRecord::Other);
    }
    if let Some(value) = value {
        serde_json::from_slice::<Stamp>(value)?;
    }
    Ok(FenceRecord::Entry(key.clone(), value.cloned()))
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("text and numbers make JSON").into()
}

/// Builds the database keys of one shard.
#[derive(Debug, Clone)]
pub(super) struct ShardKeys(Vec<u8>);

/// Metadata of a fence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardMeta {
    /// The fence has all records below this offset; `None` means that any may be missing.
    pub(super) position: Option<i64>,
    /// Birth of the log to which the position belongs.
    pub(super) birth: Option<String>,
    /// Number of entries.
    pub(super) entries: u64,
    /// Number of entries by topic.
    #[serde(default)]
    pub(super) topics: BTreeMap<String, u64>,
}

impl ShardMeta {
    /// Counts an entry that is added (`comes`) or removed.
    pub(super) fn count(&mut self, key: &[u8], comes: bool) {
        let topic = key.split(|byte| *byte == b'/').next().unwrap_or_default();
        let topic = self.topics.entry(String::from_utf8_lossy(topic).into_owned()).or_default();
        if comes {
            self.entries += 1;
            *topic += 1;
        } else {
            self.entries = self.entries.saturating_sub(1);
            *topic = topic.saturating_sub(1);
        }
    }
}

impl ShardKeys {
    pub(super) fn new(prefix: &TopicPrefix, shard: i32) -> Self {
        // Prefixes contain no zero byte, so no lead is the beginning of another.
        let mut lead = prefix.as_str().as_bytes().to_vec();
        lead.push(0);
        lead.extend(shard.to_be_bytes());
        Self(lead)
    }

    /// Database key of an entry.
    pub(super) fn entry(&self, key: &[u8]) -> Vec<u8> {
        if key.len() <= MAX_KEY_BYTES {
            self.of(ENTRY, key)
        } else {
            self.of(LONG_ENTRY, &Sha256::digest(key))
        }
    }

    pub(super) fn meta(&self) -> Vec<u8> {
        self.of(META, &[])
    }

    /// Half-open range of all entries.
    pub(super) fn entries(&self) -> (Vec<u8>, Vec<u8>) {
        (self.of(ENTRY, &[]), self.of(META, &[]))
    }

    /// Half-open range of all entries whose key starts with `lead`, except those with hashed keys.
    pub(super) fn entries_under(&self, lead: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let from = self.of(ENTRY, lead);
        let mut to = from.clone();
        // Keys are UTF-8, which has no such byte.
        to.push(0xff);
        (from, to)
    }

    /// The fence key in a database key.
    pub(super) fn key_of<'a>(&self, entry: &'a [u8]) -> &'a [u8] {
        entry.get(self.0.len() + 1..).unwrap_or_default()
    }

    fn of(&self, kind: u8, rest: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.0.len() + 1 + rest.len());
        key.extend(&self.0);
        key.push(kind);
        key.extend(rest);
        key
    }
}
