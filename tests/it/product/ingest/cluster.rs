//! The topics and workers of a group, and a sender that delivers to them over HTTPS.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kafka::{Admin, ConsumerRecord, Kafka};
use model::{AccountingResource, Topic};
use reqwest::{Certificate, Client, RequestBuilder, Response};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::delivery::{Delivery, signature};
use crate::support::process::Process;
use crate::support::{Result, lost, place, run_directory, traced};

/// Limit for each step on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// Limit for the start of a worker.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The provider waits this long for an answer.
pub(super) const PROVIDER_WAITS: Duration = Duration::from_secs(5);
pub(super) const CONNECTOR: &str = "hooks";
pub(super) const SECRET: &str = "0123456789abcdef-first";

/// Topics of one group of workers, and of one connector's prefix.
pub(super) struct IngestCluster {
    pub(super) topics: place::Place,
    bootstrap: String,
    registry: String,
    certificate: PathBuf,
    key: PathBuf,
    /// Lines of the workers' properties, over those they need.
    more: String,
}

impl IngestCluster {
    pub(super) fn at(bootstrap: &str, registry: &str, name: &str) -> Result<Self> {
        let kafka = Kafka::plaintext(bootstrap);
        let topics = place::Place::at(kafka.clone(), Admin::Real(kafka), registry, name)?;
        let directory = run_directory::create(name)?;
        let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let (bootstrap, registry, more) = (bootstrap.to_owned(), registry.to_owned(), String::new());
        Ok(Self { topics, bootstrap, registry, certificate, key, more })
    }

    /// Sets a property of the workers that are started later.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        self.more += &format!("{key}={value}\n");
    }

    /// A healthy worker on a new disk.
    pub(super) async fn start(&self) -> Result<IngestWorker> {
        let worker = self.spawn(&run_directory::create("ingest")?).await?;
        worker.until_healthy().await?;
        Ok(worker)
    }

    /// A worker on this disk that receives, with or without Kafka.
    pub(super) async fn spawn(&self, directory: &Path) -> Result<IngestWorker> {
        let properties = directory.join("worker.properties");
        fs::write(&properties, self.properties(directory)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(["run", "--config"]).arg(properties).env_clear();
        // A new log each time, since its addresses are read from the log.
        let before = fs::read_dir(directory).unwrap().count();
        let process = Process::spawn("ingest", command, &directory.join(format!("log-{before}")))?;
        let said = |what: &str| {
            let said = process.said();
            said.lines().rev().find_map(|line| Some(line.split_once(what)?.1.to_owned()))
        };
        process.ready(START_LIMIT, async || said(" receives deliveries on ").is_some()).await?;
        let (rest, hooks) = (said(" listens on ").unwrap(), said(" receives deliveries on ").unwrap());
        let certificate = Certificate::from_pem(&fs::read(&self.certificate).unwrap()).unwrap();
        let http = Client::builder().no_proxy().tls_certs_only([certificate]).timeout(LIMIT).build().unwrap();
        let (rest, hooks) = (format!("http://{rest}"), format!("https://{hooks}"));
        Ok(IngestWorker { process, rest, hooks, http, directory: directory.to_owned() })
    }

    /// A connector that receives changes of customers.
    pub(super) fn connector(&self) -> Value {
        traced::hide("the accounting secret", SECRET);
        json!({
            "connector.class": "WebhookSource",
            "topic.prefix": self.topics.prefix.as_str(),
            "topic.creation.default.partitions": place::PARTITIONS.to_string(),
            "topic.creation.default.replication.factor": "1",
            "accounting.resources": "customers",
            "accounting.secret": SECRET,
            "subscriptions.manage": "false",
        })
    }

    /// Ids of the deliveries in their topic, each partition in its order. If Kafka is slow, the spool may publish one again: only the
    /// first copy counts.
    pub(super) async fn published(&self) -> Vec<String> {
        let records = self.read(Topic::AccountingEvents(AccountingResource::Customers)).await;
        let ids = records.iter().map(|record| place::header(record, "tributary.id").unwrap().to_owned());
        let mut seen = HashSet::new();
        ids.filter(|id| seen.insert(id.clone())).collect()
    }

    /// Waits until exactly these are published in this order, for deliveries of one company.
    pub(super) async fn until_published(&self, ids: &[&str]) {
        let mut found = Vec::new();
        let all = until(async || {
            found = self.published().await;
            found.len() >= ids.len()
        });
        assert!(all.await, "{found:?} of {ids:?}");
        assert_eq!(found, ids);
    }

    /// All records of a topic; nothing if it does not exist.
    pub(super) async fn read(&self, topic: Topic) -> Vec<ConsumerRecord> {
        let name = self.topics.name(topic);
        match self.topics.admin.partition_counts(&[&name]).await.unwrap().is_empty() {
            true => Vec::new(),
            false => self.topics.read(&name).await,
        }
    }

    /// The last record of the state topic whose key begins with this.
    pub(super) async fn state(&self, beginning: &str) -> Option<Value> {
        let records = self.read(Topic::State).await;
        let is_wanted = |record: &&ConsumerRecord| {
            record.key.as_deref().is_some_and(|key| key.starts_with(beginning.as_bytes()))
        };
        let record = records.iter().rfind(is_wanted)?;
        Some(serde_json::from_slice(record.value.as_deref().unwrap()).unwrap())
    }

    fn properties(&self, directory: &Path) -> String {
        let group = format!("{}-group", self.topics.prefix);
        let mut lines = format!(
            "bootstrap.servers={}\ngroup.id={group}\nlisteners=http://127.0.0.1:0\nstate.dir={}\n\
             value.converter.schema.registry.url={}\nvalue.converter.schema.registry.request.timeout.ms=2000\n\
             webhook.listeners=https://127.0.0.1:0\nwebhook.ssl.certificate.location={}\n\
             webhook.ssl.key.location={}\nshutdown.timeout.ms=8000\nsecrets.reload.interval.ms=200\n\
             config.providers=file,dir\nconfig.providers.file.param.allowed.paths=/\n\
             config.providers.dir.param.allowed.paths=/\n",
            self.bootstrap,
            directory.join("state").display(),
            self.registry,
            self.certificate.display(),
            self.key.display(),
        );
        for (topic, partitions) in [("config", 1), ("offset", 3), ("status", 3), ("work", 6), ("grant", 1)] {
            lines += &format!(
                "{topic}.storage.topic={group}-{topic}\n{topic}.storage.partitions={partitions}\n\
                 {topic}.storage.replication.factor=1\n"
            );
        }
        lines + &self.more
    }
}

/// A worker process.
pub(super) struct IngestWorker {
    process: Process,
    rest: String,
    hooks: String,
    http: Client,
    pub(super) directory: PathBuf,
}

impl IngestWorker {
    pub(super) async fn until_healthy(&self) -> Result<()> {
        self.process.ready(START_LIMIT, async || self.health().await.0 == 200).await
    }

    pub(super) async fn health(&self) -> (u16, Value) {
        self.ask("GET", "/health", None).await
    }

    /// Waits until the worker receives the connector in this state, or not at all.
    pub(super) async fn until_received(&self, state: Option<&str>) {
        let mut health = Value::Null;
        let received = until(async || {
            health = self.health().await.1;
            health["ingest"]["receivers"][CONNECTOR].as_str() == state
        });
        assert!(received.await, "{state:?}: {health}\n{}", self.process.said());
    }

    pub(super) async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.rest));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null))
    }

    /// The text of an answer of the REST API.
    pub(super) async fn text(&self, method: &str, path: &str, body: Option<&Value>) -> String {
        let mut request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.rest));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        request.send().await.unwrap().text().await.unwrap()
    }

    /// A request to the public listener, not yet sent.
    pub(super) fn post(&self, path: &str) -> RequestBuilder {
        self.http.post(format!("{}{path}", self.hooks))
    }

    /// Sends a change to the REST API, which must accept it.
    pub(super) async fn change(&self, method: &str, path: &str, body: Option<&Value>) {
        let (status, answer) = self.ask(method, &format!("/connectors/{CONNECTOR}{path}"), body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    }

    /// Sends a delivery signed with this secret; the answer, which must be in time.
    pub(super) async fn send(&self, delivery: &Delivery, secret: &str) -> Response {
        let begun = Instant::now();
        let answer = self.request(CONNECTOR, delivery, secret).send().await.unwrap();
        let took = lost::promised(begun);
        assert!(took < PROVIDER_WAITS, "answered after {took:?}");
        answer
    }

    /// A delivery to this connector, not yet sent.
    pub(super) fn request(&self, connector: &str, delivery: &Delivery, secret: &str) -> RequestBuilder {
        let body = delivery.body();
        let request = self.http.post(format!("{}/webhooks/accounting/{connector}/customers", self.hooks));
        request.header("svc-webhook-signature", signature(secret, &body)).body(body)
    }

    /// Sends a delivery; the status of the answer.
    pub(super) async fn deliver(&self, delivery: &Delivery) -> u16 {
        self.send(delivery, SECRET).await.status().as_u16()
    }

    /// Its output so far.
    pub(super) fn said(&self) -> String {
        self.process.said()
    }

    pub(super) fn kill(&self) {
        self.process.kill();
    }

    /// Stops it; its output.
    pub(super) async fn stop(self) -> Result<String> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(LIMIT).await?;
        let said = self.process.said();
        assert_eq!(status.code(), Some(0), "{said}");
        Ok(said)
    }
}

/// Waits until this holds, at most [`LIMIT`]; whether it did.
pub(super) async fn until(mut holds: impl AsyncFnMut() -> bool) -> bool {
    let began = Instant::now();
    while lost::fair(began) < LIMIT {
        if holds().await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}
