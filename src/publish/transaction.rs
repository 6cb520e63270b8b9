//! A shard's writes: values, fences, offsets and state of a batch in one atomic transaction.

use base::metrics;
use model::{EncodedRecord, Origin};

use super::{Error, PublishStage};

/// The records of one transaction. A [`Preparer`](super::Preparer) encodes values one by one, so that an encoding error affects
/// only its record and not the batch.
#[derive(Debug, Default)]
pub struct ShardBatch {
    records: Vec<EncodedRecord>,
    published: Vec<Origin>,
}

impl ShardBatch {
    /// Adds a record of a record topic.
    pub fn publish(&mut self, record: EncodedRecord, origin: Origin) {
        self.records.push(record);
        self.published.push(origin);
    }

    /// Adds a record that belongs to the same transaction: a fence, offsets, state, a dead letter.
    pub fn add(&mut self, companion: EncodedRecord) {
        self.records.push(companion);
    }
}

/// Writes the batches of one shard. Taking a shard fences every earlier owner (see [`kafka::ShardProducer`]).
pub struct ShardWriter {
    producer: kafka::ShardProducer,
}

impl ShardWriter {
    /// Writes through a producer that has been initialized and so owns its shard.
    #[must_use]
    pub fn new(producer: kafka::ShardProducer) -> Self {
        Self { producer }
    }

    /// Commits a batch.
    ///
    /// # Errors
    /// Nothing of the batch is visible to read-committed consumers, unless the error says that it may be.
    pub async fn commit(&mut self, batch: ShardBatch) -> Result<kafka::CommittedBatch, Error> {
        let committed = self.producer.commit(batch.records).await;
        let committed = committed.map_err(|source| {
            metrics::publish_failed(PublishStage::Produce);
            Error::Transaction {
                transactional_id: self.producer.transactional_id().to_owned(),
                source: Box::new(source),
            }
        })?;
        for origin in batch.published {
            metrics::records_published(origin.name(), 1);
        }
        Ok(committed)
    }

    /// The producer, so that the owner can check whether it is still valid.
    pub fn producer(&mut self) -> &mut kafka::ShardProducer {
        &mut self.producer
    }
}
