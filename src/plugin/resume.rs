//! Where a task resumes: the offsets that earlier instances have stored, and the records that store its own.
//!
//! A task takes its transactional id, calls [`Task::stored_offsets`], works, and commits each batch together with the
//! [`Task::offset_record`]s for it. After its producer was rebuilt it calls [`Task::stored_offsets`] again before it continues.
//!
//! - It waits only for the partitions of the offset topic that hold its own keys: open transactions elsewhere do not delay it.
//! - Transactions that an earlier instance left hanging, in the offset topic or in the partitions the task writes to, are ended:
//!   committed if the batch is whole in the log and nothing contradicts it, else aborted ([`ShardProducer::settle`]).
//!
//! On failure: open transactions of other writers restart the task until they end; the trace names them.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value};

use kafka::{ReadLimits, ShardProducer, TopicPartition, partition_of};
use model::EncodedRecord;

use super::{Failure, Task};
use crate::state::offsets;

/// How long reading the offsets may take before the task restarts.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// A transaction that stays open this long, in partitions that other tasks write to as well, counts as left hanging.
const TRANSACTION_WAIT: Duration = Duration::from_secs(3);

impl Task {
    /// The offsets stored for these partitions of the source, in their order. Call it after taking `producer` and after each
    /// rebuild; `writes` are the other partitions that its batches go to.
    ///
    /// # Errors
    /// The offsets cannot be read. Retryable, unless Kafka refuses permanently.
    pub async fn stored_offsets(
        &self,
        producer: &mut ShardProducer,
        partitions: &[Map<String, Value>],
        writes: &[TopicPartition],
    ) -> Result<Vec<Option<Map<String, Value>>>, Failure> {
        let table = &self.tools.offsets;
        let places = self.offset_partitions(partitions);
        let waits =
            ReadLimits { other_partitions: writes, transaction_wait: TRANSACTION_WAIT, limit: READ_LIMIT };
        let read = table.read_settled(producer, &places, waits).await;
        read.map_err(|error| Failure::kafka("read the task's offset", error))?;
        Ok(table.read(|offsets| {
            partitions.iter().map(|partition| offsets.get(&self.connector, partition).cloned()).collect()
        }))
    }

    /// The record that stores an offset for a partition of the source; commit it together with the batch it belongs to.
    pub fn offset_record(
        &self,
        partition: &Map<String, Value>,
        offset: &Map<String, Value>,
    ) -> EncodedRecord {
        let table = &self.tools.offsets;
        let (key, value) = offsets::record(&self.connector, partition, Some(offset));
        let partition = partition_of(&key, table.partitions());
        EncodedRecord::new(table.topic(), partition, key, value.map(Bytes::from))
    }

    /// Partitions of the offset topic that may hold these offsets: those of our keys, and those of keys that other programs wrote
    /// for the same partition in another member order.
    fn offset_partitions(&self, partitions: &[Map<String, Value>]) -> Vec<i32> {
        let count = self.tools.offsets.partitions();
        let own = partitions.iter().map(|one| Bytes::from(offsets::record(&self.connector, one, None).0));
        let others = self.tools.offsets.read(|offsets| {
            let keys = |one| offsets.keys(&self.connector, one);
            partitions.iter().flat_map(keys).collect::<Vec<Bytes>>()
        });
        let places: BTreeSet<i32> = own.chain(others).map(|key| partition_of(&key, count)).collect();
        places.into_iter().collect()
    }
}
