//! The topics a group of workers has in common, and what one of its workers makes of them.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka::{Admin, ConsumerRecord, Kafka, TransactionOptions, read_to_end};
use tributary::config::worker::{Topic, Topics};
use tributary::worker::arbiter::Arbiter;
use tributary::worker::state::State;
use tributary::worker::state::configs::{self, Configs, Properties, Write};
use tributary::worker::topics::{self, Partitions};

use crate::support::lost::timeout;
use crate::support::prefix;

/// What a busy machine may need for one call; nothing waits this long when all is well.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The topics of one group.
pub(super) struct Ground {
    pub(super) kafka: Kafka,
    pub(super) topics: Topics,
    pub(super) partitions: Partitions,
}

impl Ground {
    /// Creates the topics of a group nobody else is in.
    pub(super) async fn create(bootstrap: &str, name: &str) -> Self {
        let (kafka, topics) = (Kafka::plaintext(bootstrap), names(&prefix(name)));
        let partitions = topics::ensure(&Admin::Real(kafka.clone()), &topics).await.unwrap();
        Self { kafka, topics, partitions }
    }

    /// One more worker that has read everything.
    pub(super) async fn worker(&self) -> Worker {
        self.worker_with(TransactionOptions::default()).await
    }

    pub(super) async fn worker_with(&self, options: TransactionOptions) -> Worker {
        let state = State::follow(&self.kafka, &self.topics, &self.partitions).await.unwrap();
        timeout(LIMIT, state.caught_up()).await.unwrap();
        let beside = state.offsets.topic_partitions();
        let arbiter = Arbiter::with_options(&self.kafka, state.configs.clone(), beside, options);
        Worker { state, arbiter }
    }

    /// Everything committed in the config topic, in the order of the log.
    pub(super) async fn log(&self) -> Vec<ConsumerRecord> {
        let mut log = Vec::new();
        read_to_end(&self.kafka, &self.topics.config.name, &[0], LIMIT, |record| log.push(record))
            .await
            .unwrap();
        log
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

/// What a worker has of the state.
pub(super) struct Worker {
    pub(super) state: State,
    pub(super) arbiter: Arbiter,
}

/// The five topics of a group, each with more than one partition where it may.
pub(super) fn names(group: &str) -> Topics {
    let topic = |kind: &str, partitions| Topic {
        name: format!("{group}-{kind}"),
        partitions,
        replication_factor: -1,
        settings: BTreeMap::new(),
    };
    Topics {
        config: topic("configs", 1),
        offset: topic("offsets", 25),
        status: topic("status", 5),
        work: topic("work", 8),
        grant: topic("grants", 3),
    }
}

/// What creates a connector with two tasks, all of which say `by`; refused where there is one of that name.
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
