//! Receivers, each in its own process, and their resource usage.

use std::process::Command;
use std::time::Duration;

use kafka::{Admin, Kafka, TopicSpec};
use model::Cleanup;
use tributary::config::Worker as WorkerConfig;

use crate::baseline;
use crate::machine::Usage;
use crate::oracle::senders::Target;
use crate::oracle::worker::{Settings, Worker};
use crate::support::process::Process;
use crate::support::{Result, run_directory};

const LIMIT: Duration = Duration::from_secs(60);
/// Partitions of each receiver's topic.
const PARTITIONS: i32 = 12;

pub(crate) struct Receiver {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    pub(crate) usage: Usage,
    worker: Option<Worker>,
    /// Killed when dropped.
    _baseline: Option<Process>,
}

impl Receiver {
    pub(crate) async fn baseline(bootstrap: &str) -> Result<Self> {
        create_topic(bootstrap).await;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(baseline::BASELINE, bootstrap);
        let log = run_directory::create("baseline")?.join("log");
        let process = Process::spawn("baseline", command, &log)?;
        let mut url = String::new();
        let listens = async || {
            let said = process.said();
            let address = said.lines().find_map(|line| line.strip_prefix(baseline::LISTENS));
            url = address
                .map(|address| format!("http://{address}/webhooks/accounting/hooks"))
                .unwrap_or_default();
            !url.is_empty()
        };
        process.ready(LIMIT, listens).await?;
        let target = Target { url, certificate: None };
        let usage = Usage::of(process.id());
        Ok(Self { name: "axum + rdkafka", target, usage, worker: None, _baseline: Some(process) })
    }

    /// Our worker; it may not accept deliveries yet.
    pub(crate) fn ours(bootstrap: &str, registry: &str, tls: bool) -> Result<Self> {
        let settings = Settings {
            bootstrap,
            registry,
            tls,
            properties: &[("log.filter", "warn")],
            connector: &[("topic.creation.default.partitions", "12")],
        };
        let worker = Worker::start("tributary", settings)?;
        let name = if tls { "tributary, TLS" } else { "tributary" };
        let (target, usage) = (worker.target().clone(), Usage::of(worker.id()));
        Ok(Self { name, target, usage, worker: Some(worker), _baseline: None })
    }

    /// Our worker, or `None` for the baseline.
    pub(crate) fn worker(&self) -> Option<&Worker> {
        self.worker.as_ref()
    }
}

async fn create_topic(bootstrap: &str) {
    let spec = TopicSpec {
        name: baseline::TOPIC.to_owned(),
        partitions: PARTITIONS,
        may_grow: false,
        replication_factor: -1,
        min_message_bytes: 0,
        cleanup: Cleanup::Delete,
        configs: Default::default(),
    };
    Admin::Real(kafka(bootstrap)).ensure(&[spec]).await.unwrap();
}

fn kafka(bootstrap: &str) -> Kafka {
    let settings = [
        ("CONNECT_BOOTSTRAP_SERVERS", bootstrap),
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", "http://127.0.0.1:1"),
    ];
    let settings = settings.map(|(key, value)| (key.into(), value.into()));
    WorkerConfig::load(None, settings).unwrap().config.kafka
}
