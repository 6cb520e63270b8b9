//! Reads a dead-letter topic from a given place to its current end.

use std::{ops::ControlFlow, sync::Arc};

use kafka::{ConsumerOptions, ConsumerRecord, Error, StartOffset};

use super::DeadLetterTopic;
use crate::{
    cli::{CommandError, Result, scan},
    webhooks::dead_letter::LetterPosition,
};

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
        visit: impl AsyncFnMut(ConsumerRecord) -> Result<ControlFlow<()>>,
    ) -> Result {
        let starts =
            starts.into_iter().map(|(partition, start)| ((Arc::clone(&self.topic), partition), start));
        scan::scan(&self.worker.kafka, starts, &ConsumerOptions::default(), visit).await
    }
}
