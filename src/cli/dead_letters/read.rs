//! Reads a topic of dead letters, from a given place to the end that it has now.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc, time::Duration};

use tokio::time::timeout;

use kafka::{Assignment, Consumer, ConsumerOptions, Error, Event, Received, Start};

use super::Letters;
use crate::{
    cli::{Failure, Result, failure},
    webhooks::dead_letter::LetterPosition,
};

/// Without a record or an end for this long, Kafka counts as away.
const SILENCE: Duration = Duration::from_secs(30);

impl Letters {
    /// Hands every record to `visit`, in order within a partition, until there are no more or it has seen enough.
    pub(super) async fn scan(&self, visit: impl AsyncFnMut(Received) -> Result<ControlFlow<()>>) -> Result {
        self.scan_from((0..self.partitions).map(|partition| (partition, Start::Earliest)), visit).await
    }

    /// The record at a place; `None` where there is none, or none any more.
    pub(super) async fn record(&self, place: LetterPosition) -> Result<Option<Received>> {
        if !(0..self.partitions).contains(&place.partition) {
            return Ok(None);
        }
        let mut found = None;
        let visit = async |record: Received| {
            found = (record.offset == place.offset).then_some(record);
            Ok(ControlFlow::Break(()))
        };
        match self.scan_from([(place.partition, Start::Offset(place.offset))], visit).await {
            Ok(()) => Ok(found),
            Err(Failure::Outside(error))
                if matches!(error.downcast_ref(), Some(Error::OffsetOutOfRange { .. })) =>
            {
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The same for partitions from a start each.
    pub(super) async fn scan_from(
        &self,
        starts: impl IntoIterator<Item = (i32, Start)>,
        mut visit: impl AsyncFnMut(Received) -> Result<ControlFlow<()>>,
    ) -> Result {
        let assignment = |(partition, start)| Assignment { topic: Arc::clone(&self.topic), partition, start };
        let assignments: Vec<_> = starts.into_iter().map(assignment).collect();
        let mut open: BTreeSet<i32> = assignments.iter().map(|assigned| assigned.partition).collect();
        let consumer = Consumer::assign(&self.worker.kafka, assignments, &ConsumerOptions::default()).await;
        let mut consumer = consumer?;
        while !open.is_empty() {
            let silent = |_| {
                failure(format!("read {}: Kafka has said nothing for {} s", self.topic, SILENCE.as_secs()))
            };
            match timeout(SILENCE, consumer.next()).await.map_err(silent)?? {
                Event::End { partition, .. } => drop(open.remove(&partition)),
                Event::Record(record) => {
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
