//! Reads a dead-letter topic from a given place to its current end.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc, time::Duration};

use tokio::time::timeout;

use kafka::{Assignment, Consumer, ConsumerEvent, ConsumerOptions, ConsumerRecord, Error, StartOffset};

use super::DeadLetterTopic;
use crate::{
    cli::{CommandError, Result, failure},
    webhooks::dead_letter::LetterPosition,
};

/// Without a record or an end for this long, the read fails.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

impl DeadLetterTopic {
    /// Passes every record to `visit`, in order within a partition, until the end or until `visit` breaks.
    pub(super) async fn scan(
        &self,
        visit: impl AsyncFnMut(ConsumerRecord) -> Result<ControlFlow<()>>,
    ) -> Result {
        self.scan_from((0..self.partitions).map(|partition| (partition, StartOffset::Earliest)), visit).await
    }

    /// The record at a place; `None` if there is none, or no longer.
    pub(super) async fn record(&self, place: LetterPosition) -> Result<Option<ConsumerRecord>> {
        if !(0..self.partitions).contains(&place.partition) {
            return Ok(None);
        }
        let mut found = None;
        let visit = async |record: ConsumerRecord| {
            found = (record.offset == place.offset).then_some(record);
            Ok(ControlFlow::Break(()))
        };
        match self.scan_from([(place.partition, StartOffset::Offset(place.offset))], visit).await {
            Ok(()) => Ok(found),
            Err(CommandError::Outside(error))
                if matches!(error.downcast_ref(), Some(Error::OffsetOutOfRange { .. })) =>
            {
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The same, with a start for each partition.
    pub(super) async fn scan_from(
        &self,
        starts: impl IntoIterator<Item = (i32, StartOffset)>,
        mut visit: impl AsyncFnMut(ConsumerRecord) -> Result<ControlFlow<()>>,
    ) -> Result {
        let assignment = |(partition, start)| Assignment { topic: Arc::clone(&self.topic), partition, start };
        let assignments: Vec<_> = starts.into_iter().map(assignment).collect();
        let mut open: BTreeSet<i32> = assignments.iter().map(|assigned| assigned.partition).collect();
        let consumer = Consumer::assign(&self.worker.kafka, assignments, &ConsumerOptions::default()).await;
        let mut consumer = consumer?;
        while !open.is_empty() {
            let silent = |_| {
                failure(format!("read {}: no answer from Kafka for {} s", self.topic, READ_TIMEOUT.as_secs()))
            };
            match timeout(READ_TIMEOUT, consumer.next()).await.map_err(silent)?? {
                ConsumerEvent::End { partition, .. } => drop(open.remove(&partition)),
                ConsumerEvent::Record(record) => {
                    if visit(record).await?.is_break() {
                        break;
                    }
                }
            }
        }
        consumer.stop().await;
        Ok(())
    }
}
