//! The offset topic: `["connector", {partition}]` → `{offset}`, byte-compatible with Kafka Connect.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Apply;
use crate::kafka::Received;

/// Source offsets of every connector.
#[derive(Debug, Default)]
pub struct Offsets {
    /// Connector → partition as canonical JSON → (partition, offset).
    connectors: BTreeMap<String, BTreeMap<String, (Map<String, Value>, Map<String, Value>)>>,
}

impl Offsets {
    /// Partition and offset of everything a connector has stored, in a stable order.
    pub fn of(&self, connector: &str) -> impl Iterator<Item = (&Map<String, Value>, &Map<String, Value>)> {
        self.connectors.get(connector).into_iter().flat_map(|all| all.values().map(|(one, two)| (one, two)))
    }
}

impl Apply for Offsets {
    fn apply(&mut self, record: &Received) {
        todo!()
    }
}

/// Key and value of an offset record, as Kafka Connect's converter writes them; `None` resets.
#[must_use]
pub fn record(
    connector: &str,
    partition: &Map<String, Value>,
    offset: Option<&Map<String, Value>>,
) -> (Vec<u8>, Option<Vec<u8>>) {
    todo!()
}
