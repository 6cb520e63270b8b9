//! The topics of a group of workers, and a worker's state.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka::{Admin, ConsumerRecord, Kafka, TransactionOptions};
use tributary::{
    config::worker::{InternalTopic, InternalTopics},
    connect::config_writer::ConfigWriter,
    state::{
        StateTables,
        configs::{self, Configs, Properties, Write},
        topics::{self, Partitions},
    },
};

use crate::support::topics::content_of;
use crate::support::{lost::timeout, prefix};

/// Limit for one call on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The topics of one group.
pub(super) struct StateCluster {
    pub(super) kafka: Kafka,
    pub(super) topics: InternalTopics,
    pub(super) partitions: Partitions,
}

impl StateCluster {
    /// Creates the topics of a new group.
    pub(super) async fn create(bootstrap: &str, name: &str) -> Self {
        let (kafka, topics) = (Kafka::plaintext(bootstrap), names(&prefix(name)));
        let partitions = topics::ensure(&Admin::Real(kafka.clone()), &topics).await.unwrap();
        Self { kafka, topics, partitions }
    }

    /// One more worker that has read everything.
    pub(super) async fn worker(&self) -> StateWorker {
        self.worker_with(TransactionOptions::default()).await
    }

    pub(super) async fn worker_with(&self, options: TransactionOptions) -> StateWorker {
        let state = StateTables::follow(&self.kafka, &self.topics, &self.partitions).await.unwrap();
        timeout(LIMIT, state.caught_up()).await.unwrap();
        let beside = state.offsets.topic_partitions();
        let config_writer = ConfigWriter::with_options(&self.kafka, state.configs.clone(), beside, options);
        StateWorker { state, config_writer }
    }

    /// Everything committed in the config topic, in the order of the log.
    pub(super) async fn log(&self) -> Vec<ConsumerRecord> {
        content_of(&self.kafka, &self.topics.config.name, 1).await
    }

    /// Every key of the config topic, and how often it was written.
    pub(super) async fn keys(&self) -> BTreeMap<String, usize> {
        let mut keys = BTreeMap::new();
        for record in self.log().await {
            *keys.entry(String::from_utf8(record.key.unwrap().to_vec()).unwrap()).or_default() += 1;
        }
        keys
    }
}

/// The state of a worker, and its arbiter.
pub(super) struct StateWorker {
    pub(super) state: StateTables,
    pub(super) config_writer: ConfigWriter,
}

/// The five topics of a group, each with several partitions if that is allowed.
pub(super) fn names(group: &str) -> InternalTopics {
    let topic = |kind: &str, partitions| InternalTopic {
        name: format!("{group}-{kind}"),
        partitions,
        replication_factor: -1,
        settings: BTreeMap::new(),
    };
    InternalTopics {
        config: topic("configs", 1),
        offset: topic("offsets", 25),
        status: topic("status", 5),
        work: topic("work", 8),
        grant: topic("grants", 3),
    }
}

/// An edit that creates a connector with two tasks, all with the setting `by`; refused if the name exists.
pub(super) fn create(
    name: &str,
    by: &str,
) -> impl Fn(&Configs) -> Result<((), Vec<Write>), &'static str> + Send + use<> {
    let (name, config) = (name.to_owned(), Properties::from([("by".to_owned(), by.to_owned())]));
    move |configs| {
        if configs.connectors().contains_key(&name) {
            return Err("already exists");
        }
        let mut writes = vec![configs::connector(&name, Some(&config))];
        writes.extend(configs::tasks(&name, &[config.clone(), config.clone()]));
        Ok(((), writes))
    }
}
