//! Taking a shard: its transactional id first, then its offsets, state and fences.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use base::{metrics, random, retry::ErrorChain};
use kafka::{ShardProducer, StartOffset, TopicPartition};
use model::{AccountingResource, Key, Stamp, Topic, TopicPrefix};

use super::{
    Shared,
    state::{self, StoredState},
};
use crate::{
    plugin::Failure,
    publish::{self, ShardBatch, ShardWriter},
    records::fence::{self, ShardFence},
};

/// Time limit to read one topic of a shard to its end; after it, the task fails and is restarted.
const READ_LIMIT: Duration = Duration::from_secs(120);
/// The same for fences and record topics, which may be long.
const FENCE_LIMIT: Duration = Duration::from_secs(900);

/// Fence entries per transaction when they are rebuilt.
const CHUNK: usize = 5_000;

/// The transactional id with which the owner of a shard writes.
pub(in crate::records) fn transactional_id(prefix: &TopicPrefix, shard: u32) -> String {
    format!("tributary-{prefix}-shard-{shard}")
}

impl Shared {
    /// Partitions that the transactions of a shard write to, where hanging transactions are resolved first. Those of dead letters and
    /// gaps are left out, because they follow from the keys.
    pub(super) fn places(&self, shard: i32) -> Vec<TopicPartition> {
        let topics = publish::written_by(&self.source);
        topics.into_iter().map(|topic| (self.output.preparer.topic_name(topic), shard)).collect()
    }

    pub(super) async fn take_writer(&self, shard: i32) -> Result<ShardWriter, Failure> {
        let tools = &self.task.tools;
        let id = transactional_id(&self.source.common.topic_prefix, shard.unsigned_abs());
        let producer = tools.shards.take(id, Arc::clone(&self.task.permission.lease)).await;
        let producer = producer.map_err(|error| Failure::kafka(format!("take shard {shard}"), error))?;
        Ok(ShardWriter::new(producer))
    }

    /// The next offset of each event topic, once no earlier transaction of the id can still be in flight.
    pub(super) async fn starts(
        &self,
        shard: i32,
        producer: &mut ShardProducer,
    ) -> Result<BTreeMap<AccountingResource, StartOffset>, Failure> {
        let resources = &self.source.enrich_resources;
        let partitions: Vec<_> =
            resources.iter().map(|resource| self.source_partition(*resource, shard)).collect();
        let stored = self.task.stored_offsets(producer, &partitions, &self.places(shard)).await?;
        let start = |stored: Option<serde_json::Map<String, serde_json::Value>>| {
            let offset = stored.and_then(|offset| offset.get("offset")?.as_i64());
            offset.map_or(StartOffset::Earliest, StartOffset::Offset)
        };
        Ok(resources.iter().copied().zip(stored.into_iter().map(start)).collect())
    }

    /// Opens and restores the fence of a shard. If the fences topic was lost, its entries are rebuilt from headers of published values.
    pub(super) async fn fence(
        &self,
        shard: i32,
        stored: &StoredState,
        writer: &mut ShardWriter,
    ) -> Result<ShardFence, Failure> {
        let tools = &self.task.tools;
        let begun = Instant::now();
        let prefix = &self.source.common.topic_prefix;
        let mut fence = self.fences.all.shard(prefix, shard).await.map_err(unreadable)?;
        let topic = self.output.preparer.topic_name(Topic::Fences);
        let mut restored = fence.restore(&tools.kafka, &topic, FENCE_LIMIT).await.map_err(unreadable)?;
        if restored.birth.is_none() || stored.rebuilds {
            self.rebuild(shard, restored.birth.is_none(), writer).await?;
            restored = fence.restore(&tools.kafka, &topic, FENCE_LIMIT).await.map_err(unreadable)?;
        }
        metrics::fence_restored(begun.elapsed(), restored.records);
        Ok(fence)
    }

    /// Writes the birth record, if the partition has none, and the fence entries of all published values. Until the last one is
    /// written, a mark in the state topic makes the next owner rebuild again.
    async fn rebuild(&self, shard: i32, is_first: bool, writer: &mut ShardWriter) -> Result<(), Failure> {
        let values: Vec<(Key, Stamp)> = self.published(shard).await?.into_iter().collect();
        let mark = state::rebuild(shard);
        let mut batch = ShardBatch::default();
        if is_first {
            let birth = random::guid().map_err(|error| Failure::retryable("NoRandom", error.to_string()))?;
            let (key, value) = fence::birth_record(shard, &birth);
            batch.add(self.record(Topic::Fences, &key, Some(value)));
        }
        if !values.is_empty() {
            tracing::warn!(shard, records = values.len(), "rebuilding fences from published values");
            batch.add(self.output.preparer.state(&mark, Some(Bytes::from_static(b"{}"))));
        }
        let write = async |writer: &mut ShardWriter, batch| {
            let written = writer.commit(batch).await;
            written.map(drop).map_err(|error| unwritten("write the fences of a shard", error))
        };
        write(writer, batch).await?;
        for chunk in values.chunks(CHUNK) {
            let mut batch = ShardBatch::default();
            for (key, stamp) in chunk {
                let (_, value) = fence::record(key, stamp);
                batch.add(self.record(Topic::Fences, key, Some(value)));
            }
            write(writer, batch).await?;
        }
        if !values.is_empty() {
            let mut batch = ShardBatch::default();
            batch.add(self.output.preparer.state(&mark, None));
            write(writer, batch).await?;
        }
        Ok(())
    }

    /// The fence entries of all published values of a shard. Reads one topic after the other, because they may be long.
    async fn published(&self, shard: i32) -> Result<HashMap<Key, Stamp>, Failure> {
        let mut stamps = HashMap::new();
        let places = self.fences.published.get_or_try_init(|| self.find_published()).await?;
        for &(topic, _) in places.iter().filter(|(_, place)| *place == shard) {
            let name = self.output.preparer.topic_name(topic);
            let each = |record: kafka::ConsumerRecord| stamps.extend(fence::of_value(topic, &record));
            let read = kafka::read_to_end(&self.task.tools.kafka, &name, &[shard], FENCE_LIMIT, each).await;
            read.map_err(|error| Failure::kafka("read what was published", error))?;
        }
        Ok(stamps)
    }

    /// Partitions of this task that have records, of every resource, including those whose events are not read.
    async fn find_published(&self) -> Result<BTreeSet<(Topic, i32)>, Failure> {
        let failed = |error| Failure::kafka("find published records", error);
        let all = AccountingResource::all().map(Topic::AccountingRecords).chain([Topic::PayrollCompanies]);
        let topics: BTreeMap<Arc<str>, Topic> =
            all.map(|topic| (Arc::from(&*self.output.preparer.topic_name(topic)), topic)).collect();
        let names: Vec<&str> = topics.keys().map(|name| &**name).collect();
        let there = self.task.tools.record_writing.admin.partition_counts(&names).await.map_err(failed)?;
        let shards = |topic: &Arc<str>| {
            self.shards.iter().map(|shard| (Arc::clone(topic), *shard)).collect::<Vec<_>>()
        };
        let existing = topics.keys().filter(|topic| there.contains_key(&***topic));
        let places: Vec<kafka::TopicPartition> = existing.flat_map(shards).collect();
        let marks =
            kafka::watermarks_of(&self.task.tools.kafka, &places, READ_LIMIT).await.map_err(failed)?;
        let filled = marks.into_iter().filter(|(_, (low, high))| high > low);
        Ok(filled.filter_map(|((topic, shard), _)| Some((*topics.get(&topic)?, shard))).collect())
    }

    /// Reads the state of a shard from the state topic.
    pub(super) async fn read_state(&self, shard: i32) -> Result<StoredState, Failure> {
        let mut stored = StoredState::default();
        let topic = self.output.preparer.topic_name(Topic::State);
        let grant = &self.source.provider.oauth.logins.accounting.grant;
        let mut strange = BTreeMap::new();
        let each = |record: kafka::ConsumerRecord| {
            let (key, value) = (record.key.as_deref(), record.value.as_ref());
            let Some(Ok(key)) = key.map(std::str::from_utf8) else { return };
            match stored.apply(shard, key, value, grant, &self.task.connector) {
                Ok(()) => drop(strange.remove(key)),
                Err(what) => drop(strange.insert(key.to_owned(), (record.offset, what))),
            }
        };
        let read = kafka::read_to_end(&self.task.tools.kafka, &topic, &[shard], READ_LIMIT, each).await;
        read.map_err(|error| Failure::kafka("read the state of a shard", error))?;
        match strange.into_iter().next() {
            None => Ok(stored),
            // The offset of a parked event has moved on, so skipping the entry would lose the event.
            Some((key, (offset, what))) => Err(Failure::permanent(
                "UnreadableState",
                format!("{topic} partition {shard} offset {offset}, {key}, cannot be read: {what}"),
                "run the version of Tributary that wrote it, or write a tombstone for that key and know that its event is lost",
            )),
        }
    }
}

/// The failure if the fence cannot be read or written.
pub(super) fn unreadable(error: fence::Error) -> Failure {
    Failure { retry: error.retry(), ..Failure::retryable("FenceUnavailable", ErrorChain(&error).to_string()) }
}

/// The failure of a batch that was not committed.
pub(super) fn unwritten(action: &str, error: publish::Error) -> Failure {
    match error {
        publish::Error::Transaction { source, .. } => Failure::transaction(action, *source),
        error => super::unopened(error),
    }
}
