//! Offsets of a connector and the topics it is seen to use: read, changed, forgotten.

use std::sync::Arc;

use futures::future::try_join_all;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::{Budget, Error, FRESH, Herder, Message, Offset, Offsets};
use crate::{
    config::connector::TargetState,
    kafka,
    worker::{
        plugins::{Past, Plugin},
        state::configs::Connector,
    },
};

type Edits = Vec<(Map<String, Value>, Option<Map<String, Value>>)>;

impl Herder {
    /// Offsets a connector has stored.
    ///
    /// # Errors
    /// There is no such connector, or the worker is starting.
    pub async fn offsets(&self, name: &str) -> Result<Offsets, Error> {
        self.connector(name).await?;
        let offsets = self.parts.state.offsets.read(|offsets| {
            let each = offsets.of(name).map(|(partition, offset)| Offset {
                partition: partition.clone(),
                offset: Some(offset.clone()),
            });
            each.collect()
        });
        Ok(Offsets { offsets })
    }

    /// Sets offsets of a stopped connector; `None` as an offset forgets its partition.
    ///
    /// # Errors
    /// Nothing was given, there is no such connector, it is not stopped, its class does not take them, or Kafka did not.
    pub async fn alter_offsets(&self, name: &str, offsets: Offsets) -> Result<Message, Error> {
        let budget = Budget::start();
        if offsets.offsets.is_empty() {
            let told = "Partitions / offsets need to be provided for an alter offsets request";
            return Err(Error::BadRequest(told.to_owned()));
        }
        let (connector, plugin) = self.editable(name, budget).await?;
        let edits: Edits = offsets.offsets.into_iter().map(|one| (one.partition, one.offset)).collect();
        plugin.check_offsets(&edits).map_err(Error::BadRequest)?;
        self.edit_offsets(name, &connector, plugin, edits, budget).await?;
        Ok(Message { message: "The offsets for this connector have been altered successfully".to_owned() })
    }

    /// Forgets every offset of a stopped connector.
    ///
    /// # Errors
    /// There is no such connector, it is not stopped, or Kafka did not take it.
    pub async fn reset_offsets(&self, name: &str) -> Result<Message, Error> {
        let budget = Budget::start();
        let (connector, plugin) = self.editable(name, budget).await?;
        // What a task wrote last, on whichever worker, has to go too.
        let read = self.parts.state.offsets.read_to_end(budget.left().min(FRESH)).await;
        read.map_err(Error::kafka("read the offset topic to its end"))?;
        let edits: Edits = self
            .parts
            .state
            .offsets
            .read(|offsets| offsets.of(name).map(|(partition, _)| (partition.clone(), None)).collect());
        self.edit_offsets(name, &connector, plugin, edits, budget).await?;
        Ok(Message { message: "The offsets for this connector have been reset successfully".to_owned() })
    }

    /// Forgets which topics a connector has written to; the next record of each brings it back.
    ///
    /// # Errors
    /// The worker is starting, or Kafka did not take it.
    pub async fn reset_topics(&self, name: &str) -> Result<(), Error> {
        let budget = Budget::start();
        self.ready().await?;
        let topics: Vec<String> = self
            .parts
            .state
            .statuses
            .read(|statuses| statuses.topics(name).into_iter().map(str::to_owned).collect());
        for topic in &topics {
            self.parts.statuses.remove_topic(name, topic);
        }
        let doing = "write the reset to the status topic";
        self.parts.statuses.flush(budget.left()).await.map_err(Error::kafka(doing))?;
        let read = self.parts.state.statuses.read_to_end(budget.left()).await;
        read.map_err(Error::kafka("read the status topic to its end"))
    }

    /// A connector whose offsets may be edited: stopped, without tasks, of a class we have.
    async fn editable(&self, name: &str, budget: Budget) -> Result<(Connector, Arc<dyn Plugin>), Error> {
        let connector = self.newest(name, budget).await?.ok_or_else(|| Error::no_connector(name))?;
        if connector.target != TargetState::Stopped || !connector.tasks.is_empty() {
            return Err(Error::BadRequest(format!(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the \
                 specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
            )));
        }
        let plugin = self.class_of(&connector.config)?;
        Ok((connector, plugin))
    }

    /// Takes the writers' transactional ids, so that no task left behind on a frozen worker can write over the edit, then
    /// writes it.
    async fn edit_offsets(
        &self,
        name: &str,
        connector: &Connector,
        plugin: Arc<dyn Plugin>,
        edits: Edits,
        budget: Budget,
    ) -> Result<(), Error> {
        let state = &self.parts.state;
        let past = Past {
            tasks: state.configs.read(|configs| configs.highest_task(name)),
            partitions: state
                .offsets
                .read(|offsets| offsets.of(name).map(|(partition, _)| partition.clone()).collect()),
        };
        let writers = plugin.writers(name, &connector.config, &past);
        let ours: kafka::Lease = Arc::new(|| true);
        let taken = try_join_all(writers.into_iter().map(|id| self.parts.shards.take(id, Arc::clone(&ours))));
        let doing = "take over from tasks of the connector that may still be writing; no offset was changed";
        // The producers are not used: to have been initialised is all they are for.
        match timeout(budget.left(), taken).await {
            Ok(Ok(_)) => {}
            Ok(Err(source)) => return Err(Error::kafka(doing)(source)),
            Err(_) => return Err(Error::TimedOut { doing }),
        }
        // Meanwhile somebody may have resumed it, and its tasks would go on from the old offsets.
        let now = self.newest(name, budget).await?;
        if now.is_none_or(|now| now.target != TargetState::Stopped) {
            return Err(Error::Stale);
        }
        let doing = "write the offsets (ask for them to see whether they were taken)";
        let written = self.parts.offsets.write(name, &edits, budget.left()).await;
        written.map_err(Error::kafka(doing))
    }
}
