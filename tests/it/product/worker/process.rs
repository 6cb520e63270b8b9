//! Workers in separate processes.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use reqwest::Client;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::process::Process;
use crate::support::{Result, ports, prefix, run_directory};

/// For busy machines; nothing waits this long normally.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The topics and group of workers.
#[derive(Clone)]
pub(super) struct Topics {
    bootstrap: String,
    /// Beginning of the config, offset and status topics.
    pub(super) prefix: String,
    pub(super) group: String,
    /// Beginning of the work and grant topics.
    pub(super) work: String,
}

impl Topics {
    pub(super) fn new(bootstrap: &str, name: &str) -> Self {
        let prefix = prefix(name);
        Self { bootstrap: bootstrap.to_owned(), group: prefix.clone(), work: prefix.clone(), prefix }
    }

    /// The same config, offset and status topics for another group with another work topic.
    pub(super) fn of_another_group(&self) -> Self {
        let other = format!("{}-other", self.group);
        Self { group: other.clone(), work: other, ..self.clone() }
    }

    pub(super) fn config_topic(&self) -> String {
        format!("{}-configs", self.prefix)
    }

    /// Names of all five.
    pub(super) fn names(&self) -> [String; 5] {
        let Self { prefix, work, .. } = self;
        [
            self.config_topic(),
            format!("{prefix}-offsets"),
            format!("{prefix}-status"),
            format!("{work}-work"),
            format!("{work}-grants"),
        ]
    }
}

/// A worker.
pub(super) struct Worker {
    process: Process,
    pub(super) url: String,
    port: u16,
}

impl Worker {
    /// Spawns a worker on a free port, without waiting for its start.
    pub(super) fn spawn(topics: &Topics, arguments: &[&str]) -> Result<Self> {
        let [port] = ports::free()?;
        Self::spawn_at(topics, arguments, port)
    }

    pub(super) fn spawn_at(topics: &Topics, arguments: &[&str], port: u16) -> Result<Self> {
        let directory = run_directory::create("run")?;
        let properties = write_properties(topics, &directory, port);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.arg("run").arg("--config").arg(properties).args(arguments);
        command.env_clear().env("TRIBUTARY_TEST_PLUGINS", "true");
        let process = Process::spawn(&format!("worker at {port}"), command, &directory.join("log"))?;
        Ok(Self { process, url: format!("http://127.0.0.1:{port}"), port })
    }

    /// Starts a worker and waits until it is healthy.
    pub(super) async fn start(topics: &Topics, arguments: &[&str]) -> Result<Self> {
        let worker = Self::spawn(topics, arguments)?;
        worker.until_healthy().await?;
        Ok(worker)
    }

    pub(super) async fn until_healthy(&self) -> Result<()> {
        let client = client();
        let healthy = async || {
            let asked = client.get(format!("{}/health", self.url)).send().await;
            asked.is_ok_and(|answer| answer.status().is_success())
        };
        self.process.ready(LIMIT, healthy).await
    }

    /// Stops it by SIGTERM and starts another with the same port.
    pub(super) async fn restart(self, topics: &Topics) -> Result<Self> {
        let port = self.port;
        let status = self.stop().await?;
        assert_eq!(status.code(), Some(0), "{}", self.process.said());
        drop(self);
        let next = Self::spawn_at(topics, &[], port)?;
        next.until_healthy().await?;
        Ok(next)
    }

    pub(super) async fn stop(&self) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.ended().await
    }

    pub(super) async fn ended(&self) -> Result<ExitStatus> {
        self.process.wait(LIMIT).await
    }

    pub(super) fn said(&self) -> String {
        self.process.said()
    }

    /// Status and body; null for a body that is no JSON.
    pub(super) async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let method = method.parse().unwrap();
        let mut request = client().request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null))
    }
}

pub(super) fn client() -> Client {
    Client::builder().timeout(Duration::from_secs(20)).build().unwrap()
}

/// A connector that writes a few numbers.
pub(super) fn numbers(topics: &Topics) -> Value {
    json!({
        "connector.class": "TestSource",
        "topic": format!("{}.numbers", topics.prefix),
        "tasks.max": "1",
        "messages": "1",
    })
}

fn write_properties(topics: &Topics, directory: &std::path::Path, port: u16) -> PathBuf {
    let [config, offset, status, work, grant] = topics.names();
    let mut lines = format!(
        "bootstrap.servers={}\ngroup.id={}\nlisteners=http://127.0.0.1:{port}\nstate.dir={}\n\
         value.converter.schema.registry.url=http://127.0.0.1:9\nlog.filter=info\n",
        topics.bootstrap,
        topics.group,
        directory.join("state").display()
    );
    let counts = [("config", config, 1), ("offset", offset, 3), ("status", status, 3)];
    for (kind, name, partitions) in counts.into_iter().chain([("work", work, 6), ("grant", grant, 1)]) {
        lines += &format!("{kind}.storage.topic={name}\n{kind}.storage.replication.factor=1\n");
        if kind != "config" {
            lines += &format!("{kind}.storage.partitions={partitions}\n");
        }
    }
    let path = directory.join("worker.properties");
    fs::write(&path, lines).unwrap();
    path
}
