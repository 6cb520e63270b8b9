//! Keys of the database.
//!
//! ```text
//! {prefix} 00 {shard, 4 bytes} e {key}             an entry: the stamp as in the topic
//! {prefix} 00 {shard, 4 bytes} l {SHA-256 of key}  an entry with a key above 1,024 bytes
//! {prefix} 00 {shard, 4 bytes} m                   metadata of the fence
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use model::TopicPrefix;

const ENTRY: u8 = b'e';
const LONG_ENTRY: u8 = b'l';
/// Sorts after all entries.
const META: u8 = b'm';
/// Longer keys are replaced by their hash, because the store panics above 64 KiB.
const MAX_KEY_BYTES: usize = 1024;

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
