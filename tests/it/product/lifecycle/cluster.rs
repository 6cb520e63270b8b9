//! A cluster as an operator sees it: edits of the config topic, statuses, and the numbers that tasks have written.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use kafka::{Admin, read_to_end};
use tokio::time::Instant;
use tributary::{
    config::{self, connector::TargetState},
    connect::config_writer::ConfigWriter,
    state::{
        StateTables,
        configs::{self, Configs, Properties, Write},
        statuses::{RunState, Status, Statuses},
        topics,
    },
};

use crate::support::lost::timeout;
use crate::support::topics::LIMIT;
use crate::support::{prefix, worker_config};

/// Partitions of every cluster's work topic.
pub(super) const WORK_PARTITIONS: usize = 8;

/// Partitions of every cluster's offset topic.
pub(super) const OFFSET_PARTITIONS: i32 = 3;

/// A group of workers, seen from outside.
pub(super) struct WorkerGroup {
    pub(super) prefix: String,
    pub(super) config: Arc<config::Worker>,
    pub(super) state: StateTables,
    config_writer: ConfigWriter,
}

/// The configuration of every worker of a cluster.
pub(super) fn config(bootstrap: &str, prefix: &str) -> Arc<config::Worker> {
    let offset = ("OFFSET", OFFSET_PARTITIONS as usize);
    worker_config(bootstrap, prefix, [offset, ("STATUS", 2), ("WORK", WORK_PARTITIONS), ("GRANT", 1)], &[])
}

impl WorkerGroup {
    /// A group without workers yet.
    pub(super) async fn create(bootstrap: &str, name: &str) -> Self {
        let prefix = prefix(name);
        let config = config(bootstrap, &prefix);
        let admin = Admin::Real(config.kafka.clone());
        let partitions = topics::ensure(&admin, &config.topics).await.unwrap();
        let state = StateTables::follow(&config.kafka, &config.topics, &partitions).await.unwrap();
        state.caught_up().await;
        let config_writer =
            ConfigWriter::new(&config.kafka, state.configs.clone(), state.offsets.topic_partitions());
        Self { prefix, config, state, config_writer }
    }

    /// The arbiter of one more worker.
    pub(super) fn another_config_writer(&self) -> ConfigWriter {
        ConfigWriter::new(
            &self.config.kafka,
            self.state.configs.clone(),
            self.state.offsets.topic_partitions(),
        )
    }

    /// The transactional id for edits of the config topic.
    pub(super) fn arbiter_id(&self) -> String {
        format!("{}-arbiter", self.config.topics.config.name)
    }

    /// Creates a connector that writes numbers to a topic named after it.
    pub(super) async fn create_connector(&self, name: &str, pairs: &[(&str, &str)]) {
        self.write(vec![configs::connector(name, Some(&self.test_source(name, pairs)))]).await;
    }

    /// The configuration of such a connector.
    pub(super) fn test_source(&self, name: &str, pairs: &[(&str, &str)]) -> Properties {
        let topic = self.topic(name);
        let own = [("name", name), ("connector.class", "TestSource"), ("topic", &topic), ("messages", "100")];
        own.iter().chain(pairs).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    pub(super) fn topic(&self, connector: &str) -> String {
        format!("{}-{connector}-numbers", self.prefix)
    }

    pub(super) async fn set_target(&self, name: &str, target: TargetState) {
        let mut writes = vec![configs::target_state(name, Some(target))];
        if target == TargetState::Stopped {
            writes.extend(configs::tasks(name, &[]));
        }
        self.write(writes).await;
    }

    pub(super) async fn restart(&self, name: &str, tasks: bool, only_failed: bool, task: Option<u32>) {
        self.write(vec![configs::restart(name, tasks, only_failed, task)]).await;
    }

    pub(super) async fn delete(&self, name: &str) {
        let decide = |configs: &Configs| Ok::<_, Infallible>(((), configs.deletion(name)));
        self.config_writer.write(LIMIT, decide).await.unwrap();
    }

    pub(super) async fn write(&self, writes: Vec<Write>) {
        self.config_writer.write(LIMIT, |_| Ok::<_, Infallible>(((), writes.clone()))).await.unwrap();
    }

    /// Waits until the status topic shows this.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&Statuses) -> bool) {
        let mut changes = self.state.statuses.changes();
        let waiting = async {
            while !self.state.statuses.read(&holds) {
                changes.changed().await.unwrap();
            }
        };
        if timeout(LIMIT, waiting).await.is_none() {
            panic!("not within {LIMIT:?}: {what}\n{}", self.shown());
        }
    }

    /// Waits until connector and tasks show these states.
    pub(super) async fn until_states(&self, name: &str, connector: RunState, tasks: &[RunState]) {
        let shown = |statuses: &Statuses| {
            let found: Vec<RunState> = statuses.tasks(name).values().map(|status| status.state).collect();
            statuses.connector(name).is_some_and(|status| status.state == connector) && found == tasks
        };
        self.until(&format!("{name} is {connector:?} with tasks {tasks:?}"), shown).await;
    }

    pub(super) async fn until_running(&self, name: &str, tasks: usize) {
        self.until_states(name, RunState::Running, &vec![RunState::Running; tasks]).await;
    }

    pub(super) fn task(&self, name: &str, task: u32) -> Status {
        self.state.statuses.read(|statuses| (*statuses.tasks(name).get(&task).unwrap()).clone())
    }

    /// The number that a task has counted to, by its stored offset.
    pub(super) fn count(&self, name: &str, task: u32) -> u64 {
        self.state.offsets.read(|offsets| {
            let mut all = offsets.of(name);
            let own = all.find(|(partition, _)| partition.get("task").unwrap().as_u64() == Some(task.into()));
            own.map_or(0, |(_, offset)| offset.get("count").unwrap().as_u64().unwrap())
        })
    }

    /// Waits until a task has counted `more` numbers; how long that took.
    pub(super) async fn until_counted(&self, name: &str, task: u32, more: u64) -> std::time::Duration {
        self.until_counted_to(name, task, self.count(name, task) + more).await
    }

    /// Waits until a task has counted to `wanted`; how long that took.
    pub(super) async fn until_counted_to(&self, name: &str, task: u32, wanted: u64) -> std::time::Duration {
        let begun = Instant::now();
        let mut changes = self.state.offsets.changes();
        let looking = async {
            while self.count(name, task) < wanted {
                changes.changed().await.unwrap();
            }
        };
        if timeout(LIMIT, looking).await.is_none() {
            let count = self.count(name, task);
            panic!("{name}-{task} has counted to {count}, not {wanted}, within {LIMIT:?}\n{}", self.shown());
        }
        begun.elapsed()
    }

    /// Checks that the committed numbers of every task are 0, 1, 2 … without gap or repetition; how many there are by key.
    pub(super) async fn check_numbers(&self, connector: &str) -> BTreeMap<String, u64> {
        let (kafka, topic) = (&self.config.kafka, self.topic(connector));
        let counts = Admin::Real(kafka.clone()).partition_counts(&[topic.as_str()]).await.unwrap();
        let partitions: Vec<i32> = (0..counts[&topic]).collect();
        let mut next: BTreeMap<String, u64> = BTreeMap::new();
        let each = |record: kafka::ConsumerRecord| {
            let text = |bytes: Option<bytes::Bytes>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
            let expected = next.entry(text(record.key)).or_default();
            let found: u64 = text(record.value).parse().unwrap();
            assert_eq!(found, *expected, "{topic} partition {} offset {}", record.partition, record.offset);
            *expected += 1;
        };
        read_to_end(kafka, &topic, &partitions, LIMIT, each).await.unwrap();
        next
    }

    /// All statuses as text, for a failing test.
    fn shown(&self) -> String {
        self.state.statuses.read(|statuses| {
            let mut text = String::new();
            for name in statuses.names() {
                writeln!(text, "{name}: {:?}", statuses.connector(name)).unwrap();
                for (task, status) in statuses.tasks(name) {
                    writeln!(text, "{name}-{task}: {status:?}").unwrap();
                }
            }
            text
        })
    }
}
