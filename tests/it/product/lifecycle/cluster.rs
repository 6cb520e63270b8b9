//! What an operator sees and does: edits of the config topic, statuses, and the numbers that tasks have written.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use kafka::{Admin, read_to_end};
use tokio::time::Instant;
use tributary::config::{self, connector::TargetState};
use tributary::worker::arbiter::Arbiter;
use tributary::worker::state::State;
use tributary::worker::state::configs::{self, Configs, Properties, Write};
use tributary::worker::state::statuses::{RunState, Status, Statuses};
use tributary::worker::topics;

use crate::support::lost::timeout;
use crate::support::prefix;
use crate::support::topics::LIMIT;

/// Of every cluster's work topic.
pub(super) const WORK_PARTITIONS: usize = 8;

/// Of every cluster's offset topic.
pub(super) const OFFSET_PARTITIONS: i32 = 3;

/// A group of workers, from outside.
pub(super) struct Cluster {
    pub(super) prefix: String,
    pub(super) config: Arc<config::Worker>,
    pub(super) state: State,
    arbiter: Arbiter,
}

/// The configuration of every worker of a cluster.
pub(super) fn config(bootstrap: &str, prefix: &str) -> Arc<config::Worker> {
    let mut settings = vec![
        ("CONNECT_BOOTSTRAP_SERVERS".to_owned(), bootstrap.to_owned()),
        ("CONNECT_GROUP_ID".to_owned(), prefix.to_owned()),
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL".to_owned(), "http://127.0.0.1:1".to_owned()),
    ];
    for (topic, partitions) in [
        ("CONFIG", 1),
        ("OFFSET", OFFSET_PARTITIONS as usize),
        ("STATUS", 2),
        ("WORK", WORK_PARTITIONS),
        ("GRANT", 1),
    ] {
        let key = |rest: &str| format!("CONNECT_{topic}_STORAGE_{rest}");
        settings.push((key("TOPIC"), format!("{prefix}-{}", topic.to_lowercase())));
        settings.push((key("PARTITIONS"), partitions.to_string()));
        settings.push((key("REPLICATION_FACTOR"), "1".to_owned()));
    }
    let environment = settings.into_iter().map(|(key, value)| (key.into(), value.into()));
    Arc::new(config::Worker::load(None, environment).unwrap().config)
}

impl Cluster {
    /// One without workers yet.
    pub(super) async fn create(bootstrap: &str, name: &str) -> Self {
        let prefix = prefix(name);
        let config = config(bootstrap, &prefix);
        let admin = Admin::Real(config.kafka.clone());
        let partitions = topics::ensure(&admin, &config.topics).await.unwrap();
        let state = State::follow(&config.kafka, &config.topics, &partitions).await.unwrap();
        state.caught_up().await;
        let arbiter = Arbiter::new(&config.kafka, state.configs.clone(), state.offsets.topic_partitions());
        Self { prefix, config, state, arbiter }
    }

    /// What edits for one more worker.
    pub(super) fn another_arbiter(&self) -> Arbiter {
        Arbiter::new(&self.config.kafka, self.state.configs.clone(), self.state.offsets.topic_partitions())
    }

    /// The transactional id that whoever edits the config topic takes.
    pub(super) fn arbiter_id(&self) -> String {
        format!("{}-arbiter", self.config.topics.config.name)
    }

    /// A connector that counts, in a topic of its own name.
    pub(super) async fn create_connector(&self, name: &str, pairs: &[(&str, &str)]) {
        self.write(vec![configs::connector(name, Some(&self.test_source(name, pairs)))]).await;
    }

    /// Its configuration.
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
        self.arbiter.write(LIMIT, decide).await.unwrap();
    }

    pub(super) async fn write(&self, writes: Vec<Write>) {
        self.arbiter.write(LIMIT, |_| Ok::<_, Infallible>(((), writes.clone()))).await.unwrap();
    }

    /// Waits until the status topic shows this.
    pub(super) async fn until(&self, what: &str, shown: impl Fn(&Statuses) -> bool) {
        let mut changes = self.state.statuses.changes();
        let looking = async {
            while !self.state.statuses.read(&shown) {
                changes.changed().await.unwrap();
            }
        };
        if timeout(LIMIT, looking).await.is_none() {
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

    /// How far a task has counted, by its stored offset.
    pub(super) fn count(&self, name: &str, task: u32) -> u64 {
        self.state.offsets.read(|offsets| {
            let mut all = offsets.of(name);
            let own = all.find(|(partition, _)| partition.get("task").unwrap().as_u64() == Some(task.into()));
            own.map_or(0, |(_, offset)| offset.get("count").unwrap().as_u64().unwrap())
        })
    }

    /// Waits until a task has counted so many more, and says how long that took.
    pub(super) async fn until_counted(&self, name: &str, task: u32, more: u64) -> std::time::Duration {
        self.until_counted_to(name, task, self.count(name, task) + more).await
    }

    /// The same, to this number.
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

    /// Looks that committed numbers of every task are 0, 1, 2 … without a gap and without one twice, and hands back how
    /// many there are by key.
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

    /// All statuses, for a test that fails.
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
