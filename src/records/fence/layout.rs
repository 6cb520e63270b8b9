//! Where things are in the store.
//!
//! ```text
//! {prefix} 00 {shard, 4 bytes} e {key}             an entry: the stamp as the topic has it
//! {prefix} 00 {shard, 4 bytes} l {SHA-256 of key}  an entry whose key is too long for the store
//! {prefix} 00 {shard, 4 bytes} m                   what is known of the fence
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use model::TopicPrefix;

const ENTRY: u8 = b'e';
const LONG_ENTRY: u8 = b'l';
/// Behind all entries.
const META: u8 = b'm';
/// Bytes of a key above which its hash stands for it; the store takes 64 KiB and panics beyond.
const MAX_KEY_BYTES: usize = 1024;

/// The part of the store that one shard has.
#[derive(Debug, Clone)]
pub(super) struct ShardKeys(Vec<u8>);

/// What is known of a fence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardMeta {
    /// Everything below this offset is on the fence; without one, anything may be missing.
    pub(super) position: Option<i64>,
    /// Of the log that the position is about.
    pub(super) birth: Option<String>,
    /// How many entries there are.
    pub(super) entries: u64,
    /// How many of each topic.
    #[serde(default)]
    pub(super) topics: BTreeMap<String, u64>,
}

impl ShardMeta {
    /// An entry of this key comes or goes.
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
        // No prefix has a zero in it, hence none is the beginning of another.
        let mut lead = prefix.as_str().as_bytes().to_vec();
        lead.push(0);
        lead.extend(shard.to_be_bytes());
        Self(lead)
    }

    /// The entry of a key.
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

    /// All entries are from the first on and below the second.
    pub(super) fn entries(&self) -> (Vec<u8>, Vec<u8>) {
        (self.of(ENTRY, &[]), self.of(META, &[]))
    }

    /// All entries whose key begins so are from the first on and below the second; without those whose key is too long.
    pub(super) fn entries_under(&self, lead: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let from = self.of(ENTRY, lead);
        let mut to = from.clone();
        // Keys are text, which has no such byte.
        to.push(0xff);
        (from, to)
    }

    /// The key of an entry.
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
