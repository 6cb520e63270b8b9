//! Our binary as a receiver of deliveries, with a connector in a file, a certificate and a disk that outlives it. It needs a Kafka and
//! a registry.
//!
//! It restarts on the same ports and the same `state.dir`, however it ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::senders::Target;
use crate::support::process::Process;
use crate::support::{Error, Result, ports, prefix, run_directory};

/// The secret that signs its deliveries.
pub(crate) const SECRET: &str = "a-secret-that-oracle-and-worker-share";
/// Limit for each step on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const CONNECTOR: &str = "hooks";

/// How workers differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings<'a> {
    pub(crate) bootstrap: &'a str,
    /// Address of the registry.
    pub(crate) registry: &'a str,
    /// Whether it receives over TLS, or else as if behind a proxy on this machine.
    pub(crate) tls: bool,
    /// Lines of the worker's properties, over those it needs.
    pub(crate) properties: &'a [(&'a str, &'a str)],
    /// Settings of the connector, over those it needs.
    pub(crate) connector: &'a [(&'a str, &'a str)],
}

/// One worker, killed when dropped.
pub(crate) struct Worker {
    directory: PathBuf,
    prefix: String,
    target: Target,
    rest: String,
    process: Process,
    /// How often it was started.
    starts: u32,
}

impl Worker {
    /// Starts one; it may not receive yet when this returns.
    pub(crate) fn start(name: &str, settings: Settings<'_>) -> Result<Self> {
        let (directory, prefix) = (run_directory::create(name)?, prefix(name));
        let [rest, public] = ports::free()?;
        let connectors = directory.join("connectors");
        fs::create_dir(&connectors)
            .map_err(|error| Error(format!("create {}: {error}", connectors.display())))?;
        write(&connectors.join("hooks.json"), &connector(&prefix, settings.connector))?;
        let mut properties = properties(&directory, &prefix, settings, rest);
        let certificate = if settings.tls {
            properties += &format!("webhook.listeners=https://127.0.0.1:{public}\n");
            Some(certificate(&directory, &mut properties)?)
        } else {
            properties += &format!("webhook.listeners=http://127.0.0.1:{public}\n");
            properties += "webhook.plaintext=true\nwebhook.proxies=127.0.0.0/8\n";
            None
        };
        write(&directory.join("worker.properties"), &properties)?;
        let scheme = if settings.tls { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{public}/webhooks/accounting/{CONNECTOR}");
        Ok(Self {
            process: spawn(&directory, 0, None)?,
            directory,
            prefix,
            target: Target { url, certificate },
            rest: format!("http://127.0.0.1:{rest}"),
            starts: 1,
        })
    }

    /// Where it receives deliveries.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The topic of the events that it receives.
    pub(crate) fn events(&self) -> String {
        format!("{}.accounting.customers.events", self.prefix)
    }

    /// The topic of dead letters.
    pub(crate) fn dead_letters(&self) -> String {
        format!("{}.dead-letters", self.prefix)
    }

    /// Its process id.
    #[allow(dead_code, reason = "for the benchmark, which measures its memory and CPU time")]
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until this holds, as long as the worker lives.
    pub(crate) async fn until(&self, what: &str, so: impl AsyncFnMut() -> bool) -> Result<()> {
        let waited = self.process.ready(LIMIT, so).await;
        waited.map_err(|error| Error(format!("wait for {what}: {error}")))
    }

    /// The sum of a metric over all labels; `None` while the worker does not answer.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let answer = reqwest::get(format!("{}/metrics", self.rest)).await.ok()?;
        let text = answer.text().await.ok()?;
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let lines = lines.filter(|rest| rest.starts_with(['{', ' ']));
        let values = lines.map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.reduce(|sum, one| Some(sum? + one?)).flatten()
    }

    /// Whether it reports that it receives its connector.
    #[allow(dead_code, reason = "the benchmark sends until it is answered")]
    pub(crate) async fn is_received(&self) -> bool {
        let Ok(answer) = reqwest::get(format!("{}/health", self.rest)).await else { return false };
        let health: serde_json::Value =
            answer.text().await.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        health["ingest"]["receivers"][CONNECTOR].is_string()
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// SIGTERM, and an orderly end.
    pub(crate) async fn stop(&self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(LIMIT).await?;
        if status.success() { Ok(()) } else { Err(self.error(&format!("the worker ended with {status}"))) }
    }

    /// Starts it again, after its end.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.restart(None)
    }

    /// Starts it to die at a fail point ([`base::failpoint`]).
    pub(crate) fn start_again_to_die(&mut self, failpoint: &str) -> Result<()> {
        self.restart(Some(failpoint))
    }

    /// Waits until it has died at its fail point.
    pub(crate) async fn dead(&self) -> Result<()> {
        self.process.killed(LIMIT).await
    }

    fn restart(&mut self, failpoint: Option<&str>) -> Result<()> {
        self.process = spawn(&self.directory, self.starts, failpoint)?;
        self.starts += 1;
        Ok(())
    }

    /// `text` with the end of its log below it.
    pub(crate) fn error(&self, text: &str) -> Error {
        self.process.error(text)
    }
}

fn spawn(directory: &Path, start: u32, failpoint: Option<&str>) -> Result<Process> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.arg("run").arg("--config").arg(directory.join("worker.properties"));
    command.env_clear().env("SECRET", SECRET);
    command.envs(failpoint.map(|failpoint| (base::failpoint::VARIABLE, failpoint)));
    Process::spawn("tributary", command, &directory.join(format!("log-{start}")))
}

fn connector(prefix: &str, settings: &[(&str, &str)]) -> String {
    let mut config = json!({
        "connector.class": "WebhookSource",
        "topic.prefix": prefix,
        "accounting.resources": "customers",
        "accounting.secret": "${env:SECRET}",
        "subscriptions.manage": "false",
        "topic.creation.default.replication.factor": "1",
        "errors.deadletterqueue.topic.replication.factor": "1",
    });
    for (key, value) in settings {
        config[*key] = json!(value);
    }
    json!({ "name": CONNECTOR, "config": config }).to_string()
}

fn properties(directory: &Path, prefix: &str, settings: Settings<'_>, rest: u16) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut text = format!(
        "bootstrap.servers={}\ngroup.id={prefix}\nlisteners=http://127.0.0.1:{rest}\nstate.dir={}\n\
         value.converter.schema.registry.url={}\nconnectors.dir={}\nconnectors.dir.interval.ms=500\n\
         config.providers=env\nconfig.providers.env.param.allowlist.pattern=SECRET\n",
        settings.bootstrap,
        at("state"),
        settings.registry,
        at("connectors"),
    );
    for (topic, partitions) in [("config", 1), ("offset", 2), ("status", 2), ("work", 4), ("grant", 1)] {
        text += &format!("{topic}.storage.topic={prefix}-{topic}\n{topic}.storage.partitions={partitions}\n");
        text += &format!("{topic}.storage.replication.factor=1\n");
    }
    for (key, value) in settings.properties {
        text += &format!("{key}={value}\n");
    }
    text
}

/// Makes a certificate for this machine and names its files in the properties; the certificate as PEM.
fn certificate(directory: &Path, properties: &mut String) -> Result<String> {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])
        .map_err(|error| Error(format!("make a certificate: {error}")))?;
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    write(&certificate, &certified.cert.pem())?;
    write(&key, &certified.signing_key.serialize_pem())?;
    *properties += &format!("webhook.ssl.certificate.location={}\n", certificate.display());
    *properties += &format!("webhook.ssl.key.location={}\n", key.display());
    Ok(certified.cert.pem())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| Error(format!("write {}: {error}", path.display())))
}
