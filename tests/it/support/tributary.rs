//! Our binary as a worker: `tributary run` with the test connector class, on topics that no other group uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::process::Process;
use super::{ALLOWED_HOSTS, Error, Result, prefix, run_directory};

/// Loaded machines take their time.
const START_LIMIT: Duration = Duration::from_secs(180);

/// One worker, killed when dropped.
pub(crate) struct Tributary {
    name: String,
    url: String,
    config: PathBuf,
    directory: PathBuf,
    process: Process,
    /// How often it was started; each start has its own log.
    starts: u32,
}

impl Tributary {
    /// A worker that is healthy, with these lines of properties over those it needs.
    pub(crate) async fn start(bootstrap: &str, name: &str, properties: &[(&str, &str)]) -> Result<Self> {
        Self::start_in(&prefix(name), bootstrap, name, properties).await
    }

    /// The same, in a group that others may be in already: its topics are named after it.
    pub(crate) async fn start_in(
        group: &str,
        bootstrap: &str,
        name: &str,
        properties: &[(&str, &str)],
    ) -> Result<Self> {
        let directory = run_directory::create(name)?;
        let config = directory.join("worker.properties");
        let text = text(bootstrap, group, &directory.join("state").display().to_string(), properties);
        std::fs::write(&config, text)
            .map_err(|error| Error(format!("write {}: {error}", config.display())))?;
        let process = spawn(name, &config, &directory, 0, &[])?;
        let mut worker =
            Self { name: name.to_owned(), url: String::new(), config, directory, process, starts: 1 };
        worker.ready().await?;
        Ok(worker)
    }

    /// SIGKILL, and wait until it is gone.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn pause(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// SIGCONT, after [`Tributary::pause`].
    pub(crate) fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// SIGTERM, and an orderly end.
    pub(crate) async fn stop(&self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(START_LIMIT).await?;
        if status.success() { Ok(()) } else { Err(self.error(&format!("the worker ended with {status}"))) }
    }

    /// Starts it on the same disk and waits until it is healthy.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        self.start_again_with(&[]).await
    }

    /// The same with these variables in its environment.
    pub(crate) async fn start_again_with(&mut self, environment: &[(&str, &str)]) -> Result<()> {
        self.process = spawn(&self.name, &self.config, &self.directory, self.starts, environment)?;
        self.starts += 1;
        self.ready().await
    }

    /// Starts it to die at a fail point ([`base::failpoint`]), and waits until it is healthy or dead.
    pub(crate) async fn start_again_to_die(&mut self, failpoint: &str) -> Result<()> {
        match self.start_again_with(&[(base::failpoint::VARIABLE, failpoint)]).await {
            Err(error) if self.runs() => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until it has died at its fail point.
    pub(crate) async fn dead(&self) -> Result<()> {
        self.process.killed(START_LIMIT).await
    }

    /// Its process id.
    #[allow(dead_code, reason = "for the benchmark, which measures its memory and CPU time")]
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The address of its REST API.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request to its REST API: status and text of the answer.
    pub(crate) async fn ask(
        &self,
        http: &reqwest::Client,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, String)> {
        let failed = |error: reqwest::Error| self.error(&format!("{method} {path}: {error}"));
        let mut request = http.request(method.parse().unwrap(), format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.map_err(failed)?;
        Ok((answer.status().as_u16(), answer.text().await.map_err(failed)?))
    }

    /// Its properties file.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Its state directory.
    pub(crate) fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// All it has written so far.
    pub(crate) fn said(&self) -> String {
        self.process.said()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&self) -> bool {
        self.process.ended().is_none()
    }

    /// `text` with the end of the worker's log below it.
    pub(crate) fn error(&self, text: &str) -> Error {
        self.process.error(text)
    }

    async fn ready(&mut self) -> Result<()> {
        let mut url = String::new();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build();
        let client = client.map_err(|error| Error(format!("build a client: {error}")))?;
        let healthy = async || {
            let said = self.process.said();
            let listens = said.lines().find_map(|line| line.split_once(" listens on "));
            let Some((_, address)) = listens else { return false };
            url = format!("http://{address}");
            let answer = client.get(format!("{url}/health")).send().await;
            answer.is_ok_and(|answer| answer.status().is_success())
        };
        self.process.ready(START_LIMIT, healthy).await?;
        self.url = url;
        Ok(())
    }
}

fn spawn(
    name: &str,
    config: &Path,
    directory: &Path,
    start: u32,
    environment: &[(&str, &str)],
) -> Result<Process> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["run", "--config"]).arg(config).env("TRIBUTARY_TEST_PLUGINS", "true");
    command.envs(environment.iter().copied());
    Process::spawn(name, command, &directory.join(format!("worker-{start}.log")))
}

fn text(bootstrap: &str, group: &str, state: &str, properties: &[(&str, &str)]) -> String {
    let mut all = BTreeMap::from(
        [
            ("bootstrap.servers", bootstrap),
            ("group.id", group),
            ("listeners", "http://127.0.0.1:0"),
            ("state.dir", state),
            // Never called: numbers have no schema.
            ("value.converter.schema.registry.url", "http://127.0.0.1:1"),
            // Test connectors may refer to any secret but the worker's.
            ("config.providers", "env,file,dir"),
            ("config.providers.env.param.allowlist.pattern", ".*"),
            ("config.providers.file.param.allowed.paths", "/"),
            ("config.providers.dir.param.allowed.paths", "/"),
            ("provider.hosts.allowed", ALLOWED_HOSTS),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    for (topic, partitions) in [("config", 1), ("offset", 3), ("status", 2), ("work", 8), ("grant", 1)] {
        all.insert(format!("{topic}.storage.topic"), format!("{group}-{topic}"));
        all.insert(format!("{topic}.storage.partitions"), partitions.to_string());
        all.insert(format!("{topic}.storage.replication.factor"), "1".to_owned());
    }
    all.extend(properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    all.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}
