//! A copy of this binary that uses a broker with every Kafka client of the product, with the product's logs and metrics, and
//! reports the outcome of each client. It is a separate process, because logs and metrics are the process's.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::retry::Retry;
use kafka::{
    Admin, CommitError, Error, Kafka, Producer, ProducerOptions, ShardProducers, TransactionOptions,
    read_to_end,
};
use model::Cleanup;
use serde::{Deserialize, Serialize};
use tributary::config::worker::LogFormat;
use tributary::telemetry::{self, Metrics};

use super::process::Process;
use super::topics::{self, PARTITIONS};
use super::{Result, prefix, run_directory};

/// Set for the copy: the visit as JSON.
pub(crate) const VISIT: &str = "TRIBUTARY_TEST_VISIT";
/// Set for a copy that is in a hurry: the visit as JSON.
pub(crate) const HURRY: &str = "TRIBUTARY_TEST_HURRY";
/// Duration of such a visit: its client is at its first connections.
const HURRY_TIME: Duration = Duration::from_millis(300);
/// Limit for one client to report an error.
const CLIENT_LIMIT: Duration = Duration::from_secs(20);
/// Limit for the transactional client, which takes all of it.
const INIT_LIMIT: Duration = Duration::from_secs(20);
/// More than all of them in sum.
const VISIT_LIMIT: Duration = Duration::from_secs(100);
/// Between two looks at the metrics.
const STEP: Duration = Duration::from_millis(25);
/// Records each producer writes.
pub(crate) const RECORDS: usize = 10;
/// Least size of each record.
pub(crate) const RECORD_BYTES: usize = 1000;

/// Where to go and how.
#[derive(Serialize, Deserialize)]
pub(crate) struct Visit {
    bootstrap: String,
    topic: String,
    settings: Vec<(String, String)>,
}

impl Visit {
    /// With these settings for every client.
    pub(crate) fn new(bootstrap: &str, settings: &[(&str, &str)]) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let settings = settings.iter().map(owned).collect();
        Self { bootstrap: bootstrap.to_owned(), topic: prefix("visit"), settings }
    }

    /// Runs a visit to its end.
    pub(crate) async fn run(&self) -> Result<VisitReport> {
        let process = self.spawn(VISIT)?;
        let status = process.wait(VISIT_LIMIT).await?;
        let said = process.said();
        if !status.success() {
            return Err(process.error(&format!("visit {}: {status}", self.bootstrap)));
        }
        Ok(VisitReport(said))
    }

    /// Starts one and ends it before the broker has answered.
    pub(crate) async fn hurry(&self) -> Result<()> {
        let process = self.spawn(HURRY)?;
        let status = process.wait(VISIT_LIMIT).await?;
        let ended = status.success().then_some(());
        ended.ok_or_else(|| process.error(&format!("a visit in a hurry: {status}")))
    }

    fn spawn(&self, how: &str) -> Result<Process> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(how, serde_json::to_string(self).unwrap());
        Process::spawn("visit", command, &run_directory::create("visit")?.join("log"))
    }

    fn kafka(&self) -> Kafka {
        let mut kafka = Kafka::plaintext(&self.bootstrap);
        let secret = |(key, value): &(String, String)| (key.clone(), value.as_str().into());
        kafka.common = self.settings.iter().map(secret).collect();
        kafka
    }
}

/// The output of a visit: a line for each client, every log line as JSON, and the metrics at its end.
pub(crate) struct VisitReport(pub(crate) String);

/// How a client fared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fared {
    Well,
    /// The verdict, then the error as text and as `Debug`.
    Badly(String),
}

impl VisitReport {
    /// Client is `admin`, `producer`, `consumer` or `transactional`.
    pub(crate) fn fared(&self, client: &str) -> Fared {
        let outcome = self.0.lines().find_map(|line| line.strip_prefix(&format!("{client} fared ")));
        match outcome.unwrap_or_else(|| panic!("no outcome of {client} in {}", self.0)) {
            "well" => Fared::Well,
            badly => Fared::Badly(badly.to_owned()),
        }
    }

    /// Whether all clients did well.
    pub(crate) fn is_well(&self) -> bool {
        CLIENTS.iter().all(|client| self.fared(client) == Fared::Well)
    }
}

/// Every kind of client.
pub(crate) const CLIENTS: [&str; 4] = ["admin", "producer", "consumer", "transactional"];

/// The copy's whole life.
pub(crate) fn visit() -> ExitCode {
    let visit: Visit = serde_json::from_str(&std::env::var(VISIT).unwrap()).unwrap();
    telemetry::install_logs(LogFormat::Json, "debug").unwrap();
    let metrics = Metrics::install().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rendered = runtime.block_on(async {
        let (kafka, topic) = (visit.kafka(), Arc::from(visit.topic));
        print("admin", create(&kafka, &topic).await);
        // Kept until the statistics are in.
        let producer = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
        let (produced, committed) = tokio::join!(produce(&producer, &topic), commit(&kafka, &topic));
        let well = produced.is_ok();
        print("producer", produced);
        print("transactional", committed);
        print("consumer", consume(&kafka, &topic).await);
        let deadline = Instant::now() + CLIENT_LIMIT;
        while well && !has_statistics(&metrics.render()) && Instant::now() < deadline {
            tokio::time::sleep(STEP).await;
        }
        // While the producer exists: without it its brokers are not counted any more.
        metrics.render()
    });
    println!("{rendered}");
    ExitCode::SUCCESS
}

/// The copy's life if it is in a hurry: it leaves while its client still tries to come in.
pub(crate) fn hurry() -> ExitCode {
    let visit: Visit = serde_json::from_str(&std::env::var(HURRY).unwrap()).unwrap();
    let producer = Producer::new(&visit.kafka(), &ProducerOptions::default()).unwrap();
    std::thread::sleep(HURRY_TIME);
    std::mem::forget(producer);
    ExitCode::SUCCESS
}

/// Whether librdkafka has counted all that the producer has sent.
fn has_statistics(metrics: &str) -> bool {
    let name = r#"tributary_kafka_sent_bytes_total{client="producer"} "#;
    let sent = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
    sent.is_some_and(|sent| sent > (RECORDS * RECORD_BYTES) as f64)
}

async fn create(kafka: &Kafka, topic: &Arc<str>) -> std::result::Result<(), Error> {
    Admin::Real(kafka.clone()).ensure(&[topics::spec(topic, PARTITIONS, Cleanup::Delete)]).await
}

async fn produce(producer: &Producer, topic: &Arc<str>) -> std::result::Result<(), Error> {
    producer.warm_up(vec![topic.to_string()], CLIENT_LIMIT).await?;
    for _ in 0..RECORDS {
        let record = topics::record(topic, 0, "key", topics::noise(RECORD_BYTES));
        producer.send(record).map_err(|refused| refused.error)?.await?;
    }
    Ok(())
}

async fn commit(kafka: &Kafka, topic: &Arc<str>) -> std::result::Result<(), Error> {
    let options = TransactionOptions { init_limit: INIT_LIMIT, ..TransactionOptions::default() };
    let mut shard =
        ShardProducers::new(kafka.clone(), options).take(topic.to_string(), Arc::new(|| true)).await?;
    let batch = vec![topics::record(topic, 0, "key", "value"); RECORDS];
    shard.commit(batch).await.map(drop).map_err(|failure| match failure {
        CommitError::Aborted { source }
        | CommitError::Rebuilt { source }
        | CommitError::Fenced { source }
        | CommitError::Over { source } => source,
    })
}

/// Reads back what both producers have written.
async fn consume(kafka: &Kafka, topic: &str) -> std::result::Result<(), Error> {
    let mut count = 0;
    while count < 2 * RECORDS {
        count = 0;
        read_to_end(kafka, topic, &[0], CLIENT_LIMIT, |_| count += 1).await?;
    }
    Ok(())
}

fn print(client: &str, outcome: std::result::Result<(), Error>) {
    match outcome {
        Ok(()) => println!("{client} fared well"),
        Err(error) => {
            let never = if error.retry() == Retry::Never { "never" } else { "later" };
            println!("{client} fared {never} {error} {error:?}");
        }
    }
}
