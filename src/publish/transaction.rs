//! A shard's writes: values, fences, offsets and state of a batch in one transaction, or none of them.

use base::metrics;
use model::{EncodedRecord, Origin};

use super::{Error, PublishStage};

/// What one transaction carries. Values are made by a [`Preparer`](super::Preparer), one by one: what cannot be encoded concerns
/// one record and not its batch.
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

    /// Adds what must move with them: fences, offsets, state, dead letters.
    pub fn add(&mut self, companion: EncodedRecord) {
        self.records.push(companion);
    }
}

/// Writes the batches of one shard. Taking a shard fences every earlier owner (see [`kafka::ShardProducer`]).
pub struct ShardWriter {
    producer: kafka::ShardProducer,
}

impl ShardWriter {
    /// Writes through a producer that has been initialised, and so owns its shard.
    #[must_use]
    pub fn new(producer: kafka::ShardProducer) -> Self {
        Self { producer }
    }

    /// Commits a batch; on an error nothing of it is visible to read-committed readers, or the error says it may be.
    ///
    /// # Errors
    /// What became of the transaction.
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

    /// The producer, for the owner that must know whether it still stands.
    pub fn producer(&mut self) -> &mut kafka::ShardProducer {
        &mut self.producer
    }
}
