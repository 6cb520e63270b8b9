//! A worker in its own process with a `RecordSource` connector: commands, status, metrics and usage.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::machine::Usage;
use crate::site::{RECORDS, Site};
use crate::support::login::{Login, http};
use crate::support::tributary::Tributary;
use crate::support::{Error, Result, run_directory};

/// Enough for hundreds of shards on a busy machine; never reached in a good run.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
/// Interval between two checks of a condition.
const STEP: Duration = Duration::from_millis(25);
const ENCRYPTION_KEY: &str = "the key of the grants here, long enough";

/// One worker, killed when dropped.
pub(crate) struct Worker {
    process: Tributary,
    http: reqwest::Client,
    pub(crate) usage: Usage,
}

/// The metrics of a worker at one moment.
pub(crate) struct Metrics(String);

impl Metrics {
    /// The sum of a metric over all lines with this text among their labels.
    pub(crate) fn sum(&self, name: &str, label: &str) -> f64 {
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(name));
        let lines = lines.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Events settled by a new value.
    pub(crate) fn published(&self) -> f64 {
        self.sum("tributary_enrich_events_total", "outcome=\"published\"")
    }

    /// Committed transactions.
    pub(crate) fn committed(&self) -> f64 {
        self.sum("tributary_kafka_transactions_total", "outcome=\"committed\"")
    }
}

impl Worker {
    /// Starts a worker and waits until it is healthy. Its group may already have other workers and a connector.
    pub(crate) async fn start(site: &Site) -> Result<Self> {
        let properties = [
            ("grant.encryption.key", ENCRYPTION_KEY),
            ("log.filter", "warn"),
            ("value.converter.schema.registry.url", &*site.registry),
        ];
        let process = Tributary::start_in(&site.group, &site.bootstrap, &site.name, &properties).await?;
        let usage = Usage::of(process.id());
        Ok(Self { process, http: http(), usage })
    }

    /// Creates the connector in the state STOPPED and logs in for it.
    pub(crate) async fn prepare(&self, site: &Site) -> Result<()> {
        let body = json!({ "name": RECORDS, "config": site.config, "initial_state": "STOPPED" });
        self.command("POST", "/connectors", Some(&body), 201).await?;
        let log = run_directory::create("login")?.join("log");
        let login = Login::begin(Path::new(RECORDS), self.process.config(), &log, &[])?;
        login.finish(&self.http).await.map(drop)
    }

    /// Resumes the connector.
    pub(crate) async fn begin(&self) -> Result<()> {
        self.command("PUT", &format!("/connectors/{RECORDS}/resume"), None, 202).await
    }

    /// Waits until the task runs on this worker; it has taken all its shards then.
    pub(crate) async fn until_running(&self) -> Result<()> {
        self.until("a task that runs", async || self.runs_task().await).await
    }

    /// Whether the task runs on this worker.
    ///
    /// # Errors
    /// The task has failed.
    pub(crate) async fn runs_task(&self) -> Result<bool> {
        let path = format!("/connectors/{RECORDS}/status");
        let (status, text) = self.process.ask(&self.http, "GET", &path, None).await?;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let task = &answer["tasks"][0];
        match task["state"].as_str() {
            Some("FAILED") => Err(self.process.error(&format!("the task has failed: {}", task["trace"]))),
            Some("RUNNING") if status == 200 => {
                let id = task["worker_id"].as_str().filter(|id| !id.is_empty());
                Ok(id.is_some_and(|id| self.process.url().ends_with(id)))
            }
            _ => Ok(false),
        }
    }

    /// Requests a run over all lists.
    pub(crate) async fn ask_for_run(&self, id: &str) -> Result<()> {
        self.command("POST", &format!("/connectors/{RECORDS}/snapshots"), Some(&json!({ "id": id })), 202)
            .await
    }

    /// The status of a run.
    pub(crate) async fn run(&self, id: &str) -> Result<Value> {
        let path = format!("/connectors/{RECORDS}/snapshots/{id}");
        let (_, text) = self.process.ask(&self.http, "GET", &path, None).await?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    pub(crate) async fn metrics(&self) -> Result<Metrics> {
        let (_, text) = self.process.ask(&self.http, "GET", "/metrics", None).await?;
        Ok(Metrics(text))
    }

    /// Waits until this is true, as long as the worker lives.
    pub(crate) async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !so().await? {
            if Instant::now() > end || !self.process.runs() {
                return Err(self.process.error(&format!("wait for {what}")));
            }
            sleep(STEP).await;
        }
        Ok(())
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// An error with this text and the end of the worker's log.
    pub(crate) fn error(&self, text: &str) -> Error {
        self.process.error(text)
    }

    async fn command(&self, method: &str, path: &str, body: Option<&Value>, taken: u16) -> Result<()> {
        self.until(&format!("{method} {path}"), async || {
            let (status, text) = self.process.ask(&self.http, method, path, body).await?;
            match status {
                status if status == taken => Ok(true),
                // Another worker is writing, or the group is not complete yet.
                409 | 503 => Ok(false),
                status => Err(Error(format!("{method} {path}: {status} {text}"))),
            }
        })
        .await
    }
}
