//! A shard's writes: values, fences, offsets and state of a batch in one transaction, or none of them.

use super::{Error, Preparer, Stage};
use crate::{
    kafka, metrics,
    model::{EncodedRecord, Outgoing},
};

/// What one transaction carries.
#[derive(Debug, Default)]
pub struct ShardBatch {
    /// Records for the record topics.
    pub values: Vec<Outgoing>,
    /// Everything that must move with them: fences, offsets, state.
    pub companions: Vec<EncodedRecord>,
}

/// Writes the batches of one shard. Taking a shard fences every earlier owner (see [`kafka::ShardProducer`]).
pub struct ShardWriter {
    preparer: Preparer,
    producer: kafka::ShardProducer,
}

impl ShardWriter {
    /// Writes through a producer that has been initialised, and so owns its shard.
    #[must_use]
    pub fn new(preparer: Preparer, producer: kafka::ShardProducer) -> Self {
        Self { preparer, producer }
    }

    /// Commits a batch and tells where it stands; on an error nothing of it is visible to read-committed readers, or the error says it may be.
    pub async fn commit(&mut self, batch: &ShardBatch) -> Result<kafka::Committed, Error> {
        let mut records = Vec::with_capacity(batch.values.len() + batch.companions.len());
        for value in &batch.values {
            records.push(self.preparer.prepare(value).map_err(|source| {
                metrics::publish_failed(Stage::Convert);
                Error::Convert {
                    topic: self.preparer.topic_name(value.topic).to_string(),
                    source: Box::new(source),
                }
            })?);
        }
        records.extend(batch.companions.iter().cloned());
        let committed = self.producer.commit(records).await.map_err(|source| {
            metrics::publish_failed(Stage::Produce);
            Error::Transaction {
                transactional_id: self.producer.transactional_id().to_owned(),
                source: Box::new(source),
            }
        })?;
        for value in &batch.values {
            metrics::records_published(value.meta.origin.name(), 1);
        }
        Ok(committed)
    }

    /// The producer, for the owner that must know whether it still stands.
    pub fn producer(&mut self) -> &mut kafka::ShardProducer {
        &mut self.producer
    }
}
