//! Where a task resumes: the offsets that instances before it have stored, and the records that store its own.
//!
//! A task takes its transactional id, asks [`Task::stored_offsets`], works, and commits each batch together with the
//! [`Task::offset_record`]s that stand for it. After its producer was rebuilt it asks again before it continues.
//!
//! - It waits for the partitions of the offset topic that its own keys live in, and for no others: transactions left open
//!   elsewhere do not delay it.
//! - What an instance before it has left hanging, in the offset topic or in the partitions the task writes to, is ended: committed
//!   where the batch is whole in the log and nothing says otherwise, else aborted ([`ShardProducer::settle`]).
//!
//! On failure: transactions of others that stay open restart the task for as long as that lasts; the trace names them.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value};

use kafka::{ReadLimits, ShardProducer, TopicPartition, partition_of};
use model::EncodedRecord;

use super::{Failure, Task};
use crate::state::offsets;

/// How long reading the offsets may take before the task starts over.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// A transaction that is still open after this long, in partitions that other tasks write to as well, was left hanging.
const PATIENCE: Duration = Duration::from_secs(3);

impl Task {
    /// The offsets stored for these partitions of the source, in their order. To be called once `producer` has been taken,
    /// and whenever it was rebuilt; `writes` is where else its batches go.
    ///
    /// # Errors
    /// The offsets cannot be read; that passes, unless Kafka refuses it permanently.
    pub async fn stored_offsets(
        &self,
        producer: &mut ShardProducer,
        partitions: &[Map<String, Value>],
        writes: &[TopicPartition],
    ) -> Result<Vec<Option<Map<String, Value>>>, Failure> {
        let tail = &self.tools.offsets;
        let places = self.offset_partitions(partitions);
        let waits = ReadLimits { other_partitions: writes, transaction_wait: PATIENCE, limit: READ_LIMIT };
        let read = tail.read_settled(producer, &places, waits).await;
        read.map_err(|error| Failure::kafka("read the task's offset", error))?;
        Ok(tail.read(|offsets| {
            partitions.iter().map(|partition| offsets.get(&self.connector, partition).cloned()).collect()
        }))
    }

    /// The record that stores an offset for a partition of the source, to be committed with what it stands for.
    pub fn offset_record(
        &self,
        partition: &Map<String, Value>,
        offset: &Map<String, Value>,
    ) -> EncodedRecord {
        let tail = &self.tools.offsets;
        let (key, value) = offsets::record(&self.connector, partition, Some(offset));
        let partition = partition_of(&key, tail.partitions());
        EncodedRecord::new(tail.topic(), partition, key, value.map(Bytes::from))
    }

    /// Partitions of the offset topic with anything about these: where our keys live, and keys that other programs have
    /// written for the same partition in another member order.
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
