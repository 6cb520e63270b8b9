//! Where a task resumes: the offsets that earlier instances have stored, and the records that store its own.
//!
//! A task takes its transactional id, calls [`Task::stored_offsets`], works, and commits each batch together with the
//! [`Task::offset_record`]s for it. After its producer was rebuilt it calls [`Task::stored_offsets`] again before it continues.
//!
//! - A stopped task does not start again. Its worker may not have read the stop yet when an edit of the offsets takes the id, and the
//!   task takes it back. The stop was written before the edit took the id, so a read of the config topic after that shows it; and if it
//!   shows a later resume, the offsets that are read next contain the edit, which was written before.
//! - It waits only for the partitions of the offset topic that hold its own keys: open transactions elsewhere do not delay it.
//! - Transactions that an earlier instance left hanging, in the offset topic or in the partitions the task writes to, are ended:
//!   committed if the batch is whole in the log and nothing contradicts it, else aborted ([`ShardProducer::settle`]).
//!
//! On failure: open transactions of other writers restart the task until they end; the trace names them. A config topic that cannot
//! be read to its end restarts it too, so a task needs that topic after each takeover and rebuild. One hole is accepted: if
//! the producer breaks while `read_settled` ends a hanging transaction, its rebuild takes the id back without reading the config
//! topic again. If the connector was stopped and its offsets were edited within these seconds, the task can overwrite the edit.

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
    /// The task was stopped, or the offsets cannot be read. Retryable, unless Kafka refuses permanently.
    pub async fn stored_offsets(
        &self,
        producer: &mut ShardProducer,
        partitions: &[Map<String, Value>],
        writes: &[TopicPartition],
    ) -> Result<Vec<Option<Map<String, Value>>>, Failure> {
        let is_wanted = (self.permission.is_wanted)().await;
        if !is_wanted.map_err(|error| Failure::kafka("read the config topic to its end", error))? {
            return Err(Failure::retryable("Stopped", "the task was stopped before it resumed"));
        }
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

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use futures::FutureExt as _;
    use tokio::sync::watch;

    use kafka::{Admin, ShardProducers, TransactionOptions, embedded::EmbeddedCluster};

    use super::*;
    use crate::{
        avro::{Ids, Registry},
        logins::{Grants, IdentityHosts, access::ApiAccess},
        plugin::{RecordWriting, TaskPermission, TaskReports, Tools, WantedCheck, samples},
        publish::LetterSigner,
        state::{Table, state_topic::StateTopics},
    };

    /// A task on this cluster whose connector has no offsets.
    async fn task(cluster: &EmbeddedCluster, state_dir: &Path, is_wanted: WantedCheck) -> Task {
        let kafka = cluster.settings();
        let worker = Arc::new(samples::worker());
        let admin = Admin::Real(kafka.clone());
        Task {
            connector: "c".into(),
            number: 0,
            config: Arc::default(),
            generation: 1,
            cancel: Default::default(),
            paused: watch::Sender::new(false).subscribe(),
            tools: Tools {
                shards: ShardProducers::new(kafka.clone(), TransactionOptions::default()),
                offsets: Table::follow(&kafka, "offsets", 1).await.unwrap(),
                configs: Table::follow(&kafka, "configs", 1).await.unwrap(),
                faults: watch::Sender::default().subscribe(),
                access: ApiAccess::new(
                    Grants::default(),
                    Arc::new(IdentityHosts::new(worker.clock_skew_max)),
                    |_| true,
                ),
                state_topics: StateTopics::new(Arc::clone(&worker), admin.clone()),
                record_writing: RecordWriting {
                    ids: Ids::open(Registry::new(&worker.registry).unwrap(), state_dir).await,
                    admin,
                    signer: LetterSigner::default(),
                },
                worker_id: "w:1".into(),
                worker,
                kafka,
            },
            permission: TaskPermission { lease: Arc::new(|| true), is_wanted },
            recorder: Default::default(),
            reports: TaskReports {
                startup: Arc::default(),
                pause_reached: Arc::default(),
                uses_topic: Arc::new(|_| {}),
            },
        }
    }

    #[tokio::test]
    async fn stopped_task_fails_before_its_offsets_are_read() {
        let cluster = EmbeddedCluster::start(1).unwrap();
        ["configs", "offsets"].iter().for_each(|topic| cluster.create_topic(topic, 1).unwrap());
        let state_dir = tempfile::tempdir().unwrap();
        let (stop, stopped) = watch::channel(false);
        let is_wanted: WantedCheck = Arc::new(move || {
            let is_stopped = *stopped.borrow();
            async move { Ok(!is_stopped) }.boxed()
        });
        let task = task(&cluster, state_dir.path(), is_wanted).await;
        let mut producer = task.tools.shards.take("c-0", Arc::clone(&task.permission.lease)).await.unwrap();
        let partitions = [samples::object(&[("file", "a".into())])];

        let running = task.stored_offsets(&mut producer, &partitions, &[]).await;
        stop.send(true).unwrap();
        // A task that reads its offsets before the check fails for lack of a broker instead.
        cluster.set_reachable(false).unwrap();
        let failure = task.stored_offsets(&mut producer, &partitions, &[]).await.unwrap_err();

        assert_eq!(running.unwrap(), [None]);
        assert_eq!((failure.kind, failure.retry.is_retriable()), ("Stopped", true), "{failure}");
    }
}
