//! Tables of the config, offset and status topics. Only [`crate::connect::config_writer`] writes configs and, for edits through
//! REST, offsets; statuses have their own writer.
//!
//! ```text
//! config topic ─▶ Table<Configs>       offset topic ─▶ Table<Offsets> ◀── OffsetRecords (made here, written by the config writer)
//! status topic ─▶ Table<Statuses>
//!      ▲
//!      └── StatusWriter (latest of each key, retried without a limit)
//! ```
//!
//! Keys and JSON are Kafka Connect's, so that its tools can read and repair these topics. A record that cannot be
//! parsed is logged and skipped, and never stops anything.

pub mod configs;
mod java;
pub mod offsets;
pub mod runs;
pub mod state_topic;
pub mod statuses;
pub mod subscriptions;
pub mod topics;
pub mod writer;

pub use kafka::{Table, TableState};

use kafka::Kafka;

use self::{configs::Configs, offsets::SourceOffsets, statuses::Statuses, topics::Partitions};

use crate::config::worker;

/// The three tables. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StateTables {
    /// Connector configurations, target states, task configurations, commands.
    pub configs: Table<Configs>,
    /// Source offsets.
    pub offsets: Table<SourceOffsets>,
    /// States of connectors and tasks, and the topics they use.
    pub statuses: Table<Statuses>,
}

impl StateTables {
    /// Starts to follow the three topics.
    ///
    /// # Errors
    /// The client cannot be built.
    pub async fn follow(
        kafka: &Kafka,
        topics: &worker::InternalTopics,
        partitions: &Partitions,
    ) -> Result<Self, kafka::Error> {
        Ok(Self {
            configs: Table::follow(kafka, &topics.config.name, partitions.config).await?,
            offsets: Table::follow(kafka, &topics.offset.name, partitions.offset).await?,
            statuses: Table::follow(kafka, &topics.status.name, partitions.status).await?,
        })
    }

    /// Waits until all three have been read to their end once.
    pub async fn caught_up(&self) {
        tokio::join!(self.configs.caught_up(), self.offsets.caught_up(), self.statuses.caught_up());
    }

    /// The first topic that has not been read to its end; `None` once all three have been.
    #[must_use]
    pub fn behind(&self) -> Option<&'static str> {
        let tables = [
            (self.configs.is_caught_up(), "config"),
            (self.offsets.is_caught_up(), "offset"),
            (self.statuses.is_caught_up(), "status"),
        ];
        tables.into_iter().find(|(caught_up, _)| !caught_up).map(|(_, topic)| topic)
    }
}

/// Sample records, to test the state they produce.
#[cfg(test)]
pub(crate) mod samples {
    use bytes::Bytes;

    use kafka::ConsumerRecord;

    use super::TableState;

    /// Records that Kafka Connect 4.3.1 wrote: lines of partition, offset, key and value.
    pub(super) fn records(file: &str) -> Vec<ConsumerRecord> {
        let line = |line: &str| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [partition, offset, key, value] = fields[..] else { panic!("{line}") };
            let value = (value != "null").then_some(value);
            ConsumerRecord {
                partition: partition.parse().unwrap(),
                ..received(offset.parse().unwrap(), key, value)
            }
        };
        file.lines().map(line).collect()
    }

    pub(crate) fn received(offset: i64, key: &str, value: Option<&str>) -> ConsumerRecord {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        ConsumerRecord {
            topic: "topic".into(),
            partition: 0,
            offset,
            key: Some(bytes(key)),
            value: value.map(bytes),
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    /// The state after records with these keys and values, at offsets from 0.
    pub(super) fn state<S: TableState>(records: &[(&str, Option<&str>)]) -> S {
        let mut state = S::default();
        for (offset, (key, value)) in (0..).zip(records) {
            state.apply(&received(offset, key, *value));
        }
        state
    }
}
