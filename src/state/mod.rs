//! What the topics of a cluster and of a topic prefix say: a table of each topic, and its writers.
//!
//! ```text
//! config topic   ─▶ Table<Configs>       ◀── the config writer
//! offset topic   ─▶ Table<SourceOffsets> ◀── tasks, in the transactions of their batches; the config writer, for edits through REST
//! status topic   ─▶ Table<Statuses>      ◀── StatusWriter
//! {prefix}.state ─▶ Table<StateTable>    ◀── see `state_topic`
//! ```
//!
//! Only [`crate::connect::config_writer`] writes the config topic. Tasks commit offsets in their own transactions; edits through REST
//! go through the config writer.
//!
//! Keys and JSON of the first three are Kafka Connect's, so that its tools can read and repair these topics. A record that cannot be
//! parsed is logged and skipped, and never stops anything.
//!
//! | module | job |
//! |---|---|
//! | `topics` | creates the worker's own topics, or refuses them if their settings are wrong |
//! | `configs` | the config topic: configurations, target states, task configurations, commands |
//! | `offsets` | the offset topic: source offsets |
//! | `statuses` | the status topic: states of connectors and tasks, and the topics they use |
//! | `writer` | writes the status topic; builds the records of the offset topic for edits through REST |
//! | `state_topic` | follows, reads and writes `{prefix}.state` |
//! | `subscriptions` | one connector's subscriptions, gaps and requests in `{prefix}.state` |
//! | `runs` | one connector's runs in `{prefix}.state`, and the status of each |
//! | `java` | JSON as Kafka Connect's converter writes it, for the keys of the offset topic |

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
