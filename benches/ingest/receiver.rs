//! Receivers as processes of their own, and what they take of the machine.

use std::fs;
use std::process::Command;
use std::time::Duration;

use kafka::{Admin, Kafka, TopicSpec};
use model::Cleanup;
use tributary::config::Worker as WorkerConfig;

use crate::baseline;
use crate::oracle::senders::Target;
use crate::oracle::worker::{Settings, Worker};
use crate::support::process::Process;
use crate::support::{Result, run_directory};

const LIMIT: Duration = Duration::from_secs(60);
/// Of the topics of all receivers.
const PARTITIONS: i32 = 12;
/// Of a second; the same on every Linux that counts.
const TICKS: u64 = 100;

/// One receiver.
pub(crate) struct Receiver {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    process: Running,
}

enum Running {
    Baseline(Process),
    Ours(Worker),
}

impl Receiver {
    /// The plain one.
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
        Ok(Self { name: "axum + rdkafka", target, process: Running::Baseline(process) })
    }

    /// A worker of ours; it may not receive yet.
    pub(crate) fn ours(bootstrap: &str, registry: &str, tls: bool) -> Result<Self> {
        Self::ours_with(bootstrap, registry, tls, &[])
    }

    /// The same with more settings of its connector.
    pub(crate) fn ours_with(
        bootstrap: &str,
        registry: &str,
        tls: bool,
        more: &[(&str, &str)],
    ) -> Result<Self> {
        let connector = [&[("topic.creation.default.partitions", "12")], more].concat();
        let settings = Settings {
            bootstrap,
            registry,
            tls,
            properties: &[("log.filter", "warn")],
            connector: &connector,
        };
        let worker = Worker::start("tributary", settings)?;
        let name = if tls { "tributary, TLS" } else { "tributary" };
        Ok(Self { name, target: worker.target().clone(), process: Running::Ours(worker) })
    }

    /// The worker, where it is one of ours.
    pub(crate) fn worker(&self) -> Option<&Worker> {
        match &self.process {
            Running::Baseline(_) => None,
            Running::Ours(worker) => Some(worker),
        }
    }

    fn id(&self) -> u32 {
        match &self.process {
            Running::Baseline(process) => process.id(),
            Running::Ours(worker) => worker.id(),
        }
    }

    /// Processor time of the process so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // The name before it may hold spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 1000 / TICKS)
    }

    /// Forgets how much memory it once had.
    pub(crate) fn reset_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.id()), "5").unwrap();
    }

    /// Megabytes of memory, at most since [`Receiver::reset_peak`].
    pub(crate) fn peak(&self) -> f64 {
        self.memory("VmHWM:")
    }

    /// Megabytes of memory now.
    pub(crate) fn resident(&self) -> f64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, name: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
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
