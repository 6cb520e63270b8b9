//! Records of the offset topic, for edits through REST.

use std::time::Duration;

use bytes::Bytes;

use kafka::{WriteMark, partition_of};
use model::EncodedRecord;

use crate::state::{
    Table,
    offsets::{self, OffsetEdit, SourceOffsets},
};

/// Edits of offsets as the records of one transaction.
#[derive(Debug, Clone)]
pub struct OffsetRecords {
    /// The records, in the order to write them.
    pub records: Vec<EncodedRecord>,
    mark: WriteMark,
}

impl OffsetRecords {
    /// The records of these edits: one for each, and tombstones for the same partition under other programs' keys.
    #[must_use]
    pub fn of(table: &Table<SourceOffsets>, connector: &str, edits: &[OffsetEdit]) -> Self {
        let mut records: Vec<EncodedRecord> =
            edits.iter().flat_map(|edit| encoded(table, connector, edit)).collect();
        let mark = WriteMark::put(&mut records, table.topic());
        Self { records, mark }
    }

    /// Waits until this worker has read them, once they are committed.
    ///
    /// # Errors
    /// They were not read within the limit.
    pub async fn read_back(&self, table: &Table<SourceOffsets>, limit: Duration) -> Result<(), kafka::Error> {
        table.read_back(&self.mark, limit).await
    }
}

fn encoded(
    table: &Table<SourceOffsets>,
    connector: &str,
    (partition, offset): &OffsetEdit,
) -> Vec<EncodedRecord> {
    let (key, value) = offsets::record(connector, partition, offset.as_ref());
    let mut keys = table.read(|offsets| offsets.keys(connector, partition));
    keys.retain(|other| *other != key);
    let record = |key: Bytes, value: Option<Bytes>| {
        EncodedRecord::new(table.topic(), partition_of(&key, table.partitions()), key, value)
    };
    let mut records: Vec<EncodedRecord> = keys.into_iter().map(|other| record(other, None)).collect();
    records.push(record(key.into(), value.map(Bytes::from)));
    records
}
