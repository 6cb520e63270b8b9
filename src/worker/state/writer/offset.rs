//! The offset topic's records, for edits through REST.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value};

use kafka::{WriteMark, partition_of};
use model::EncodedRecord;

use crate::worker::state::{
    Tail,
    offsets::{self, Edit, Offsets},
};

/// Makes edits of offsets into records, and waits for them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OffsetWriter {
    partitions: i32,
    offsets: Tail<Offsets>,
}

/// Records that belong into one transaction.
#[derive(Debug, Clone)]
pub struct OffsetRecords {
    /// The records, in the order they are to be written.
    pub records: Vec<EncodedRecord>,
    mark: WriteMark,
}

impl OffsetWriter {
    /// For the topic that this tail follows, with this many partitions.
    #[must_use]
    pub fn new(partitions: i32, offsets: Tail<Offsets>) -> Self {
        Self { partitions, offsets }
    }

    /// The records of these edits: one for each, and tombstones for what others have written for it in another way.
    #[must_use]
    pub fn records(&self, connector: &str, edits: &[Edit]) -> OffsetRecords {
        let each = edits.iter().flat_map(|(partition, offset)| self.edit(connector, partition, offset));
        let mut records: Vec<EncodedRecord> = each.collect();
        let mark = WriteMark::put(&mut records, self.offsets.topic());
        OffsetRecords { records, mark }
    }

    /// Waits until this worker has read records that are committed.
    ///
    /// # Errors
    /// It had not within the limit.
    pub async fn read_back(&self, written: &OffsetRecords, limit: Duration) -> Result<(), kafka::Error> {
        self.offsets.read_back(&written.mark, limit).await
    }

    fn edit(
        &self,
        connector: &str,
        partition: &Map<String, Value>,
        offset: &Option<Map<String, Value>>,
    ) -> Vec<EncodedRecord> {
        let (key, value) = offsets::record(connector, partition, offset.as_ref());
        let others = self.offsets.read(|offsets| offsets.keys(connector, partition));
        let others = others.into_iter().filter(|other| *other != key).map(|other| self.record(other, None));
        let mut records: Vec<EncodedRecord> = others.collect();
        records.push(self.record(key.into(), value.map(Bytes::from)));
        records
    }

    fn record(&self, key: Bytes, value: Option<Bytes>) -> EncodedRecord {
        EncodedRecord {
            topic: Arc::clone(self.offsets.topic()),
            partition: partition_of(&key, self.partitions),
            key,
            value,
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }
}
