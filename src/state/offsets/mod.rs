//! The offset topic: `["connector", {partition}]` → `{offset}`, byte-compatible with Kafka Connect.
//!
//! Compaction compares the bytes of keys, readers compare the content of partitions. Our keys have one byte form ([`record`]). If
//! another program wrote the same partition with another member order, the topic has both, ours counts, and an edit through REST
//! leaves only ours. A null value resets.
//!
//! On failure: a record that cannot be parsed is logged and skipped.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value};

use kafka::ConsumerRecord;

use super::{TableState, java};

/// A partition and its new offset; `None` resets it.
pub type OffsetEdit = (Map<String, Value>, Option<Map<String, Value>>);

/// Source offsets of every connector.
#[derive(Debug, Default)]
pub struct SourceOffsets {
    /// Connector → partition as we write its key → stored offsets.
    connectors: BTreeMap<String, BTreeMap<Bytes, Stored>>,
}

impl SourceOffsets {
    /// Partition and offset of everything a connector has stored, in a stable order.
    pub fn of(&self, connector: &str) -> impl Iterator<Item = (&Map<String, Value>, &Map<String, Value>)> {
        let stored = self.connectors.get(connector).into_iter().flatten();
        stored.filter_map(|(ours, stored)| Some((&stored.partition, stored.offset(ours)?)))
    }

    /// The offset a connector has stored for a partition.
    #[must_use]
    pub fn get(&self, connector: &str, partition: &Map<String, Value>) -> Option<&Map<String, Value>> {
        let ours = key(connector, partition);
        self.connectors.get(connector)?.get(&ours)?.offset(&ours)
    }

    /// All keys in the topic for a partition, ours and others.
    pub(crate) fn keys(&self, connector: &str, partition: &Map<String, Value>) -> Vec<Bytes> {
        let stored = self.connectors.get(connector).and_then(|all| all.get(&key(connector, partition)));
        stored.into_iter().flat_map(|stored| stored.offsets.keys().cloned()).collect()
    }
}

impl TableState for SourceOffsets {
    fn apply(&mut self, record: &ConsumerRecord) {
        match parse(record) {
            Ok(ParsedOffset { connector, partition, key: written, offset }) => {
                let ours = key(&connector, &partition);
                let all = self.connectors.entry(connector.clone()).or_default();
                let stored =
                    all.entry(ours.clone()).or_insert_with(|| Stored { partition, offsets: BTreeMap::new() });
                match offset {
                    Some(offset) => drop(stored.offsets.insert(written, offset)),
                    None => drop(stored.offsets.remove(&written)),
                }
                if stored.offsets.is_empty() {
                    all.remove(&ours);
                    if all.is_empty() {
                        self.connectors.remove(&connector);
                    }
                }
            }
            Err(reason) => {
                let (topic, partition, offset) = (&*record.topic, record.partition, record.offset);
                tracing::warn!(topic, partition, offset, reason, "skipped a record of the offset topic");
            }
        }
    }
}

/// Key and value of an offset record, as Kafka Connect's converter writes them; `None` resets.
#[must_use]
pub fn record(
    connector: &str,
    partition: &Map<String, Value>,
    offset: Option<&Map<String, Value>>,
) -> (Vec<u8>, Option<Vec<u8>>) {
    (key(connector, partition).into(), offset.map(|offset| java::object(offset).into_bytes()))
}

/// Everything in the topic for one partition.
#[derive(Debug)]
struct Stored {
    partition: Map<String, Value>,
    /// By the key as written; more than one only if another program orders members differently.
    offsets: BTreeMap<Bytes, Map<String, Value>>,
}

impl Stored {
    /// The offset that counts: ours, else the first of the others, so that all workers agree.
    fn offset(&self, ours: &Bytes) -> Option<&Map<String, Value>> {
        self.offsets.get(ours).or_else(|| self.offsets.values().next())
    }
}

fn key(connector: &str, partition: &Map<String, Value>) -> Bytes {
    format!("[{},{}]", java::string(connector), java::object(partition)).into()
}

struct ParsedOffset {
    connector: String,
    partition: Map<String, Value>,
    key: Bytes,
    offset: Option<Map<String, Value>>,
}

fn parse(record: &ConsumerRecord) -> Result<ParsedOffset, &'static str> {
    let key = record.key.clone().ok_or("it has no key")?;
    let (connector, partition) =
        serde_json::from_slice(&key).map_err(|_| "its key is not a connector and a partition")?;
    let offset = match record.value.as_deref() {
        None => None,
        Some(value) => serde_json::from_slice(value).map_err(|_| "its value is not an offset")?,
    };
    Ok(ParsedOffset { connector, partition, key, offset })
}
