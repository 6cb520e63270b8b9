//! Missing transaction markers: Kafka 4.3 writes none to partitions without a leader. Readers see a batch whole or not at all.
//!
//! One of three brokers has the only replica of some partitions. It dies while batches are held before their commit; the coordinator
//! on another broker decides them, and takes partitions without a leader for deleted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use kafka::{
    CommitError, CommittedBatch, Kafka, ReadLimits, ShardProducer, ShardProducers, StartOffset,
    TopicPartition, TransactionOptions,
};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};

use model::EncodedRecord;
use tokio::time::timeout;

use crate::support::gate::{Gate, gate};
use crate::support::topics::{LIMIT, content_of, record, text};
use crate::support::{Cluster, Error, Options, Result, prefix};

crate::tests! {
    disturbing readers_see_whole_batches_whichever_markers_are_missing within 240;
}

/// Watchdog of the writer whose commit is held.
const STUCK: Duration = Duration::from_secs(5);
/// The case in which no partition gets a marker.
const NO_MARKERS: &str = "none";
/// The same for two batches in a row, the second of which is in one partition only.
const TWICE: &str = "twice";

/// A batch of one writer in two topics.
struct MarkerCase {
    name: &'static str,
    /// The topic whose partition gets the marker, except in the cases [`NO_MARKERS`] and [`TWICE`].
    marked: Arc<str>,
    /// The topic whose partition gets none.
    unmarked: Arc<str>,
}

impl MarkerCase {
    fn new(name: &'static str) -> Self {
        let prefix = prefix(&format!("outage-markers-{name}"));
        Self {
            name,
            marked: format!("{prefix}-marked").into(),
            unmarked: format!("{prefix}-unmarked").into(),
        }
    }

    /// Creates the topics on one broker each, of which the second will die.
    async fn create(&self, bootstrap: &str) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", bootstrap).create().map_err(failed)?;
        let on = |topic, broker: &'static [&'static [i32]]| {
            NewTopic::new(topic, 1, TopicReplication::Variable(broker)).set("min.insync.replicas", "1")
        };
        let first: &[&[i32]] = if [NO_MARKERS, TWICE].contains(&self.name) { &[&[3]] } else { &[&[1]] };
        let topics = [on(&self.marked, first), on(&self.unmarked, &[&[3]])];
        let made = admin.create_topics(&topics, &AdminOptions::new()).await.map_err(failed)?;
        made.into_iter()
            .collect::<std::result::Result<Vec<_>, _>>()
            .map(drop)
            .map_err(|(topic, code)| Error(format!("create {topic}: {code}")))
    }

    fn id(&self) -> String {
        format!("{}-writer", self.marked)
    }

    /// Starts a writer and holds its batch in both topics before the commit.
    async fn hold(&self, kafka: &Kafka) -> Held {
        let batch = vec![
            record(&self.marked, 0, "a", "1"),
            record(&self.unmarked, 0, "b", "2"),
            record(&self.unmarked, 0, "c", "3"),
        ];
        self.hold_batch(kafka, batch).await
    }

    async fn hold_batch(&self, kafka: &Kafka, batch: Vec<EncodedRecord>) -> Held {
        let (hook, gate) = gate();
        let options = TransactionOptions { before_commit: Some(hook), ..patient() };
        let mut producer = take(kafka, options, &self.id()).await;
        let committing = tokio::spawn(async move {
            let committed = producer.commit(batch).await;
            (producer, committed)
        });
        gate.reached().await;
        Held { gate, committing }
    }

    fn places(&self) -> [TopicPartition; 2] {
        [(Arc::clone(&self.marked), 0), (Arc::clone(&self.unmarked), 0)]
    }

    async fn values(&self, kafka: &Kafka) -> [Vec<String>; 2] {
        let of = async |topic| content_of(kafka, topic, 1).await.iter().map(text).collect::<Vec<String>>();
        [of(&self.marked).await, of(&self.unmarked).await]
    }

    /// Whether readers wait in the partition without a marker.
    async fn hangs(&self, kafka: &Kafka) -> bool {
        let waits =
            ReadLimits { other_partitions: &[], transaction_wait: Duration::from_secs(1), limit: LIMIT };
        let start = [(0, StartOffset::Earliest)].into();
        let read = kafka::read_to_end_from(kafka, &self.unmarked, &start, &waits, drop).await;
        matches!(read, Err(kafka::Error::Undecided { .. }))
    }
}

struct Held {
    gate: Arc<Gate>,
    committing: tokio::task::JoinHandle<(ShardProducer, std::result::Result<CommittedBatch, CommitError>)>,
}

impl Held {
    async fn commit(self) -> (ShardProducer, std::result::Result<CommittedBatch, CommitError>) {
        self.gate.open();
        self.committing.await.unwrap()
    }
}

/// Timeouts longer than the broker is away.
fn patient() -> TransactionOptions {
    let minutes = Duration::from_secs(120);
    TransactionOptions { transaction_timeout: minutes, watchdog: minutes, ..TransactionOptions::default() }
}

async fn take(kafka: &Kafka, options: TransactionOptions, id: &str) -> ShardProducer {
    ShardProducers::new(kafka.clone(), options).take(id, Arc::new(|| true)).await.unwrap()
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error(error.to_string())
}

async fn readers_see_whole_batches_whichever_markers_are_missing() -> Result<()> {
    let mut cluster = Cluster::start(3, Options::default()).await?;
    let bootstrap = format!("{},{}", cluster.brokers[0].bootstrap(), cluster.brokers[1].bootstrap());
    let kafka = Kafka::plaintext(&bootstrap);
    let [live, next, again, aborted, none, twice] =
        ["live", "next", "again", "aborted", NO_MARKERS, TWICE].map(MarkerCase::new);
    let cases = [&live, &next, &again, &aborted, &none, &twice];
    let (at, through) = (&bootstrap, &kafka);
    let held = try_join_all(cases.map(|case| async move {
        case.create(at).await?;
        Ok::<_, Error>(case.hold(through).await)
    }))
    .await?;
    let [of_live, of_next, of_again, of_aborted, of_none, of_twice] =
        <[Held; 6]>::try_from(held).unwrap_or_else(|_| panic!("six are held"));

    cluster.brokers[2].kill();
    until_led(&bootstrap, &live.unmarked, false).await?;
    let (mut writer, committed) = of_live.commit().await;
    committed.unwrap();
    for held in [of_next, of_again, of_none, of_twice] {
        let (gone, committed) = held.commit().await;
        committed.unwrap();
        drop(gone);
    }
    // A new owner aborts the batch that is held before its commit.
    let mut after_aborted = take(&kafka, patient(), &aborted.id()).await;
    cluster.brokers[2].restart().await?;
    let hanging = try_join_all(cases.map(|case| async move {
        until_led(at, &case.unmarked, true).await?;
        Ok::<_, Error>(case.hangs(through).await)
    }))
    .await?;
    for (case, hangs) in cases.iter().zip(hanging) {
        assert!(hangs, "{}: every partition has its marker, so there is nothing to show", case.name);
    }

    // A writer that lost a connection writes nothing before it has checked its last batch.
    let more = vec![record(&live.unmarked, 0, "d", "4")];
    let unsure = writer.commit(more.clone()).await;
    assert!(matches!(unsure, Err(CommitError::Rebuilt { .. })), "{unsure:?}");
    writer.settle(&live.places()).await.unwrap();
    writer.commit(more).await.unwrap();
    // Another writer of the partition ends open transactions that may be its own.
    let mut stranger = take(&kafka, patient(), "stranger").await;
    stranger.settle(&next.places()).await.unwrap();
    stranger.commit(vec![record(&next.unmarked, 0, "s", "x")]).await.unwrap();
    // The next owner completes the batch.
    for case in [&next, &none] {
        let mut after = take(&kafka, patient(), &case.id()).await;
        after.settle(&case.places()).await.unwrap();
    }
    // An owner that is held while it completes the batch loses it to the watchdog, and writes it again.
    let (hook, gate) = gate();
    let options = TransactionOptions { before_commit: Some(hook), watchdog: STUCK, ..patient() };
    let mut after_again = take(&kafka, options, &again.id()).await;
    after_again.settle(&again.places()).await.unwrap();
    gate.open();
    after_aborted.settle(&aborted.places()).await.unwrap();

    let is = |marked: &[&str], unmarked: &[&str]| {
        [marked, unmarked].map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(live.values(&kafka).await, is(&["1"], &["2", "3", "3", "4"]));
    assert_eq!(next.values(&kafka).await, is(&["1"], &["2", "3", "x", "3"]));
    assert_eq!(again.values(&kafka).await, is(&["1"], &["2", "3"]));
    assert_eq!(none.values(&kafka).await, is(&["1", "1"], &["2", "3", "3"]));
    assert_eq!(aborted.values(&kafka).await, is(&[], &[]));
    let (late, committed) = of_aborted.commit().await;
    assert!(matches!(committed, Err(CommitError::Fenced { .. })), "{committed:?}");
    drop(late);

    // A second batch begins behind the first, and its markers are missing too.
    let held = twice.hold_batch(&kafka, vec![record(&twice.unmarked, 0, "d", "4")]).await;
    cluster.brokers[2].kill();
    until_led(&bootstrap, &twice.unmarked, false).await?;
    let (gone, committed) = held.commit().await;
    committed.unwrap();
    drop(gone);
    cluster.brokers[2].restart().await?;
    until_led(&bootstrap, &twice.unmarked, true).await?;
    assert!(twice.hangs(&kafka).await);
    let mut after = take(&kafka, patient(), &twice.id()).await;
    timeout(LIMIT, after.settle(&twice.places()))
        .await
        .expect("it waits for records that are not visible")
        .unwrap();
    assert_eq!(twice.values(&kafka).await, is(&["1", "1"], &["2", "3", "4", "4"]));
    Ok(())
}

/// Waits until a topic's partition has a leader, or none.
async fn until_led(bootstrap: &str, topic: &str, wanted: bool) -> Result<()> {
    let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
    let asking = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", &bootstrap).create().unwrap();
        let end = Instant::now() + LIMIT;
        loop {
            let metadata = client.fetch_metadata(Some(&topic), LIMIT).map_err(failed)?;
            let leader = metadata.topics()[0].partitions().first().map_or(-1, |partition| partition.leader());
            if (leader >= 0) == wanted {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Error(format!("{topic} has leader {leader}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    asking.await.map_err(failed)?
}
