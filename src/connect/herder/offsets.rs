//! Offsets of a connector and the topics it uses: read, altered, reset.
//!
//! Only a stopped connector's offsets are edited, but a task of it may still be running on a worker that was frozen:
//!
//! ```text
//! transactional ids     fence_writers                read_offsets                        edit_offsets
//! of the tasks          taken by this operation ───▶ ends what hangs under them ───────▶ (held)
//! of the config writer                               ends what earlier edits left ─────▶ one transaction: offsets and target state
//! ```
//!
//! - Taking a task's id ([`Plugin::transactional_ids`]) makes the broker refuse the frozen task, so it cannot overwrite the edit. A
//!   task whose worker has not read the stop yet may take its id back, but then it reads the stop before it writes
//!   (`plugin::start_offsets`).
//! - The producers that hold these ids stay open until the edit: the read shows whether a transaction hangs in the offset topic,
//!   and only the holder of its id can end it. Each is a Kafka client, so one edit at a time has such producers.
//! - The edit is written under the config writer's id, not under a task's, so that it is in order with all changes of connectors.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};

use kafka::{ReadLimits, ShardProducer, TopicPartition};
use model::EncodedRecord;

use super::{
    ConnectorOffsets, Error, Herder, MAX_RECORD_BYTES, Message, Offset, READ_LIMIT, TimeBudget,
    limits::Permit,
};
use crate::{
    config::connector::TargetState,
    connect::config_writer::Changes,
    plugin::{Past, Plugin},
    state::{
        configs::{self, Configs, StoredConnector},
        offsets::OffsetEdit,
        writer::OffsetRecords,
    },
};

type Edits = Vec<OffsetEdit>;

/// Transactional ids that one request takes at the same time: each is a Kafka client with its own threads.
const TAKEN_AT_ONCE: usize = 8;
/// How long to wait for open transactions in the offset topic, which all tasks write to.
const TRANSACTION_WAIT: Duration = Duration::from_secs(1);

/// Producers that hold the transactional ids of a connector's tasks, and the place of the edit that has taken them. Both are held
/// until the edit is over; the producers' threads close their clients shortly after that.
struct FencedTasks {
    producers: Vec<ShardProducer>,
    _place: Permit,
}

impl Herder {
    /// Stored offsets of a connector.
    ///
    /// # Errors
    /// There is no such connector, or the worker is starting.
    pub async fn offsets(&self, name: &str) -> Result<ConnectorOffsets, Error> {
        self.connector(name).await?;
        let offsets = self.parts.state.offsets.read(|offsets| {
            let each = offsets.of(name).map(|(partition, offset)| Offset {
                partition: partition.clone(),
                offset: Some(offset.clone()),
            });
            each.collect()
        });
        Ok(ConnectorOffsets { offsets })
    }

    /// Sets offsets of a stopped connector; `None` as an offset resets its partition.
    ///
    /// # Errors
    /// No offsets, no such connector, it is not stopped, its class refuses them, or Kafka did not take the write.
    pub async fn alter_offsets(&self, name: &str, offsets: ConnectorOffsets) -> Result<Message, Error> {
        let budget = TimeBudget::start();
        if offsets.offsets.is_empty() {
            let message = "Partitions / offsets need to be provided for an alter offsets request";
            return Err(Error::BadRequest(message.to_owned()));
        }
        let (connector, plugin) = self.editable(name, budget).await?;
        let edits: Edits = offsets.offsets.into_iter().map(|one| (one.partition, one.offset)).collect();
        plugin.check_offsets(&edits).map_err(Error::BadRequest)?;
        let written = OffsetRecords::of(&self.parts.state.offsets, name, &edits);
        let size = |record: &EncodedRecord| record.key.len() + record.value.as_ref().map_or(0, Bytes::len);
        if written.records.iter().any(|record| size(record) > MAX_RECORD_BYTES) {
            let message = format!("A partition and its offset may have at most {MAX_RECORD_BYTES} bytes");
            return Err(Error::BadRequest(message));
        }
        let partitions: BTreeSet<i32> = written.records.iter().map(|record| record.partition).collect();
        let partitions: Vec<i32> = partitions.into_iter().collect();
        let mut fenced = self.fence_writers(name, &connector, plugin, budget).await?;
        self.read_offsets(&partitions, &mut fenced.producers, budget).await?;
        self.edit_offsets(name, &connector, &edits, budget).await?;
        Ok(Message { message: "The offsets for this connector have been altered successfully".to_owned() })
    }

    /// Resets every offset of a stopped connector.
    ///
    /// # Errors
    /// There is no such connector, it is not stopped, or Kafka did not take the write.
    pub async fn reset_offsets(&self, name: &str) -> Result<Message, Error> {
        let budget = TimeBudget::start();
        let (connector, plugin) = self.editable(name, budget).await?;
        let mut fenced = self.fence_writers(name, &connector, plugin, budget).await?;
        // The last offsets of a task on any worker have to be reset too, in whichever partition they are; the fence keeps the
        // task from writing more.
        let partitions: Vec<i32> = (0..self.parts.state.offsets.partitions()).collect();
        self.read_offsets(&partitions, &mut fenced.producers, budget).await?;
        let edits: Edits = self
            .parts
            .state
            .offsets
            .read(|offsets| offsets.of(name).map(|(partition, _)| (partition.clone(), None)).collect());
        self.edit_offsets(name, &connector, &edits, budget).await?;
        Ok(Message { message: "The offsets for this connector have been reset successfully".to_owned() })
    }

    /// Resets the topics a connector has written to; its next record for a topic adds that topic again.
    ///
    /// # Errors
    /// The worker is starting, or Kafka did not take the write.
    pub async fn reset_topics(&self, name: &str) -> Result<(), Error> {
        let budget = TimeBudget::start();
        self.ready().await?;
        for topic in self.known_topics(name) {
            self.parts.writers.statuses.remove_topic(name, &topic);
        }
        let doing = "write the reset to the status topic";
        self.parts.writers.statuses.flush(budget.left()).await.map_err(Error::kafka(doing))?;
        let read = self.parts.state.statuses.read_to_end(budget.left()).await;
        read.map_err(Error::kafka("read the status topic to its end"))
    }

    /// A connector whose offsets may be edited: stopped, without tasks, of a known class.
    async fn editable(
        &self,
        name: &str,
        budget: TimeBudget,
    ) -> Result<(StoredConnector, Arc<dyn Plugin>), Error> {
        let connector = self.newest(name, budget).await?.ok_or_else(|| Error::no_connector(name))?;
        if connector.target != TargetState::Stopped || !connector.tasks.is_empty() {
            return Err(Error::BadRequest(format!(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the \
                 specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
            )));
        }
        let plugin = self.class_of(&connector.config)?;
        Ok((connector, plugin))
    }

    /// Takes the writers' transactional ids, so that a task on a frozen worker cannot overwrite an edit.
    async fn fence_writers(
        &self,
        name: &str,
        connector: &StoredConnector,
        plugin: Arc<dyn Plugin>,
        budget: TimeBudget,
    ) -> Result<FencedTasks, Error> {
        let state = &self.parts.state;
        let past = Past {
            tasks: state.configs.read(|configs| configs.tasks_ever(name)),
            partitions: state
                .offsets
                .read(|offsets| offsets.of(name).map(|(partition, _)| partition.clone()).collect()),
        };
        let doing = "take over from tasks of the connector that may still be writing; no offset was changed";
        let (name, config) = (name.to_owned(), Arc::clone(&connector.config));
        let ours: kafka::Lease = Arc::new(|| true);
        let taken = async {
            let place = self.limits.offset_edits.permit(budget, doing).await?;
            // Outside the runtime's threads: references are read from files, which may be slow.
            let permit = self.limits.threads.permit(budget, doing).await?;
            let doing_so = (doing, "find the writers of the connector");
            let ids = budget
                .blocking(doing_so, plugin.class(), permit, move || {
                    plugin.transactional_ids(&name, &config, &past)
                })
                .await?;
            let taking = stream::iter(ids).map(|id| async {
                self.parts.writers.shards.take(id, Arc::clone(&ours)).await.map_err(Error::kafka(doing))
            });
            let producers = taking.buffer_unordered(TAKEN_AT_ONCE).try_collect().await?;
            Ok(FencedTasks { producers, _place: place })
        };
        budget.within(doing, taken).await
    }

    /// Reads partitions of the offset topic to their end. Ends transactions that the connector's tasks, or earlier edits, left
    /// hanging there.
    async fn read_offsets(
        &self,
        partitions: &[i32],
        writers: &mut [ShardProducer],
        budget: TimeBudget,
    ) -> Result<(), Error> {
        let _permit = self.limits.clients.permit(budget, "waiting to read the offset topic").await?;
        let doing = "read the offset topic to its end";
        let table = &self.parts.state.offsets;
        let limit = budget.left().min(READ_LIMIT);
        let waits =
            ReadLimits { other_partitions: &[], transaction_wait: TRANSACTION_WAIT.min(limit / 2), limit };
        let open = match table.read_partitions_to_end(partitions, waits).await {
            Err(kafka::Error::Undecided { open, .. }) => open,
            other => return other.map_err(Error::kafka(doing)),
        };
        let places: Vec<TopicPartition> = open.into_iter().map(|one| (one.topic, one.partition)).collect();
        let settling = async {
            for some in writers.chunks_mut(TAKEN_AT_ONCE) {
                let settled = try_join_all(some.iter_mut().map(|writer| writer.settle(&places))).await;
                settled.map_err(Error::kafka(doing))?;
            }
            Ok(())
        };
        budget.within(doing, settling).await?;
        let settled = self.parts.writers.configs.settle(budget.left()).await;
        settled.map_err(|error| match error.passing(budget.left()) {
            Ok(source) => Error::kafka(doing)(source),
            Err(never) => match never {},
        })?;
        let read =
            table.read_partitions_to_end(partitions, ReadLimits::up_to(budget.left().min(READ_LIMIT))).await;
        read.map_err(Error::kafka(doing))
    }

    /// Writes an edit, all of it or nothing, in order with all changes of connectors: a resume either comes first, and the edit
    /// is refused, or after it, and the tasks read the edited offsets.
    async fn edit_offsets(
        &self,
        name: &str,
        seen: &StoredConnector,
        edits: &[OffsetEdit],
        budget: TimeBudget,
    ) -> Result<(), Error> {
        let table = &self.parts.state.offsets;
        let written = OffsetRecords::of(table, name, edits);
        if written.records.is_empty() {
            return Ok(());
        }
        let decide = |configs: &Configs| {
            // Resumed and stopped again, or reconfigured: its tasks may have written since its offsets were read.
            let same = configs.connectors().get(name).is_some_and(|now| {
                let marks = |one: &StoredConnector| (one.target, one.revision, one.task_revision);
                marks(now) == marks(seen)
            });
            if !same {
                return Err(Error::Stale);
            }
            // Rewrites the state: every transaction of the config writer needs a record in the config topic.
            let writes = vec![configs::target_state(name, Some(seen.target))];
            Ok(((), Changes { writes, other_records: written.records.clone() }))
        };
        self.parts.writers.configs.change(budget.left(), decide).await?;
        let read = written.read_back(table, budget.left()).await;
        read.map_err(Error::kafka("read the offsets back, which have been written"))
    }
}
