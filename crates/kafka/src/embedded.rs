//! An in-process Kafka cluster: librdkafka's mock cluster, over real sockets, for the demo and for tests.
//!
//! Producing, fetching, groups and lost brokers behave as in Kafka. Transactions (no isolation), compaction, topic
//! administration, retention (5 MB per partition) and timestamps do not: test those against a real broker.
//!
//! The cluster has its own thread, since its handle may not move between threads. Dropping [`EmbeddedCluster`] stops it.

use std::{sync::mpsc, thread, time::Duration};

use rdkafka::{
    ClientConfig,
    error::KafkaError,
    mocking::MockCluster,
    producer::{BaseProducer, DefaultProducerContext, Producer as _},
};

use super::{Error, client, sys};
use crate::Kafka;

/// How long the cluster's thread waits for a command before it polls its client.
const COMMAND_WAIT: Duration = Duration::from_millis(100);

/// A running cluster. Dropping it stops it; clients then lose their brokers.
#[derive(Debug)]
pub struct EmbeddedCluster {
    commands: Option<mpsc::Sender<ClusterCommand>>,
    thread: Option<thread::JoinHandle<()>>,
    bootstrap_servers: String,
}

impl EmbeddedCluster {
    /// Starts a cluster of this many brokers, at least 1, on free ports.
    pub fn start(brokers: u16) -> Result<Self, Error> {
        let (commands, inbox) = mpsc::channel();
        let (started, start) = mpsc::channel();
        let failed = |reason: String| Error::Create { client: "embedded cluster", reason };
        let thread = thread::Builder::new()
            .name("kafka-embedded".into())
            .spawn(move || run(brokers.max(1), &started, &inbox))
            .map_err(|error| failed(error.to_string()))?;
        let bootstrap_servers = start
            .recv()
            .map_err(|_| failed("its thread ended".into()))?
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { commands: Some(commands), thread: Some(thread), bootstrap_servers })
    }

    /// `host:port` of every broker.
    #[must_use]
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Settings for clients of this cluster.
    #[must_use]
    pub fn settings(&self) -> Kafka {
        let mut kafka = Kafka::plaintext(&self.bootstrap_servers);
        // Its brokers never wake a waiting fetch, so waiting would only delay.
        kafka.consumer.insert("fetch.wait.max.ms".into(), "1".into());
        kafka
    }

    /// Creates a topic. If it exists (perhaps because a client asked for it), the error's cause is `TopicAlreadyExists`.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), Error> {
        let topic = name.to_owned();
        let action = format!("create topic {name} with {partitions} partitions");
        self.call(action, move |cluster| cluster.create_topic(&topic, partitions, 1))
    }

    /// Disconnects all brokers, or makes them reachable again.
    pub fn set_reachable(&self, reachable: bool) -> Result<(), Error> {
        const ALL: i32 = -1;
        self.call("change whether brokers are reachable".into(), move |cluster| match reachable {
            true => cluster.broker_up(ALL),
            false => cluster.broker_down(ALL),
        })
    }

    /// Delays every broker response by this long.
    #[cfg(test)]
    pub(super) fn delay_answers(&self, delay: Duration) {
        const ALL: i32 = -1;
        self.call("delay answers".into(), move |cluster| cluster.broker_round_trip_time(ALL, delay)).unwrap();
    }

    fn call(
        &self,
        action: String,
        call: impl FnOnce(&MockBrokers<'_>) -> Result<(), KafkaError> + Send + 'static,
    ) -> Result<(), Error> {
        let (answer, answered) = mpsc::channel();
        // The caller waits for the answer below.
        let command: ClusterCommand = Box::new(move |cluster| drop(answer.send(call(cluster))));
        let sent = self.commands.as_ref().and_then(|commands| commands.send(command).ok());
        match sent.and_then(|()| answered.recv().ok()) {
            Some(called) => called.map_err(|error| Error::request(action, error)),
            None => Err(Error::Stopped { action }),
        }
    }
}

impl Drop for EmbeddedCluster {
    fn drop(&mut self) {
        self.commands.take();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of that thread; there is nothing left to clean up.
            drop(thread.join());
        }
    }
}

type MockBrokers<'c> = MockCluster<'c, DefaultProducerContext>;

type ClusterCommand = Box<dyn FnOnce(&MockBrokers<'_>) + Send>;

fn run(
    brokers: u16,
    started: &mpsc::Sender<Result<String, KafkaError>>,
    inbox: &mpsc::Receiver<ClusterCommand>,
) {
    client::prepare_tls();
    let mut config = ClientConfig::new();
    config.set("test.mock.num.brokers", brokers.to_string()).set("client.id", "tributary-embedded");
    let owner: BaseProducer = match config.create() {
        Ok(owner) => owner,
        Err(error) => return drop(started.send(Err(error))),
    };
    sys::rebalance_at_once(owner.client());
    let Some(cluster) = owner.client().mock_cluster() else {
        return drop(started.send(Err(KafkaError::ClientCreation("no in-process cluster".into()))));
    };
    if started.send(Ok(cluster.bootstrap_servers())).is_err() {
        return;
    }
    loop {
        match inbox.recv_timeout(COMMAND_WAIT) {
            Ok(command) => command(&cluster),
            Err(mpsc::RecvTimeoutError::Timeout) => owner.poll(Duration::ZERO),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_has_the_requested_brokers_and_topics() {
        let cluster = EmbeddedCluster::start(3).unwrap();

        cluster.create_topic("one", 7).unwrap();

        assert_eq!(cluster.bootstrap_servers().split(',').count(), 3);
        let again = cluster.create_topic("one", 7).unwrap_err();
        assert!(again.to_string().contains("create topic one with 7 partitions"), "{again}");
    }

    #[test]
    fn dropped_cluster_stops_listening() {
        let cluster = EmbeddedCluster::start(1).unwrap();
        let address = cluster.bootstrap_servers().to_owned();
        assert!(std::net::TcpStream::connect(&address).is_ok());

        drop(cluster);

        assert!(std::net::TcpStream::connect(&address).is_err());
    }
}
