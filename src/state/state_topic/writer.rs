//! The fenced writer of a connector's subscriptions.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use kafka::{FencedWriter, Lease, ShardProducers, WriteError, WriterOptions};

use super::{StateTopic, table::StateTable};
use crate::state::subscriptions::SubscriptionChange;

/// Time limit for taking the id and reading the topic to its end.
const TAKE_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for one write.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
/// Transactions of other writers in the same partitions that stay open this long were left hanging.
const TRANSACTION_WAIT: Duration = Duration::from_secs(3);

/// Writes the subscriptions of a connector until a successor has taken over.
///
/// - A write is one transaction and has been read back when it returns: the next read shows it.
/// - A successor takes the same id. From then on every write of this one fails, and so its next call to the provider is not made.
/// - Others write with [`StateTopic::put`]: requests through REST have other keys; the first task of a `RecordSource` updates the
///   state of gaps and repairs that have ended.
pub struct StateWriter {
    handle: StateTopic,
    connector: Arc<str>,
    writer: FencedWriter<StateTable>,
}

impl StateWriter {
    /// Takes over as the only writer of a connector's subscriptions: from here on the broker refuses every earlier one.
    ///
    /// # Errors
    /// The lease has ended, or Kafka did not answer.
    pub async fn take(
        handle: StateTopic,
        connector: &str,
        shards: &ShardProducers,
        lease: Lease,
    ) -> Result<Self, kafka::Error> {
        let options = WriterOptions {
            transactional_id: format!("tributary-{}-subscriptions-{connector}", handle.prefix).into(),
            lease,
            partitions: (0..handle.table.partitions()).collect(),
            other_partitions: Vec::new(),
            transaction_wait: TRANSACTION_WAIT,
            takes_back: false,
            must_read_back: true,
        };
        let mut writer = FencedWriter::new(handle.table.clone(), shards.clone(), options);
        writer.take(Instant::now() + TAKE_LIMIT).await?;
        Ok(Self { handle, connector: connector.into(), writer })
    }

    /// Writes these changes in one transaction.
    ///
    /// # Errors
    /// A successor has taken over, or Kafka did not take it.
    pub async fn commit(&mut self, changes: &[SubscriptionChange]) -> Result<(), kafka::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let record = |change: &SubscriptionChange| {
            self.handle.encoded(&change.key(&self.connector), change.value().as_ref())
        };
        let decide = |_: &StateTable| Ok::<_, Infallible>(((), changes.iter().map(record).collect()));
        let written = self.writer.write(Instant::now() + WRITE_LIMIT, decide).await;
        written.map_err(|error| match error {
            WriteError::Kafka(source) => source,
            other => other.into_error(WRITE_LIMIT),
        })
    }
}

impl fmt::Debug for StateWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateWriter").field("connector", &self.connector).finish_non_exhaustive()
    }
}
