//! All parts of the demo, started, joined and stopped.

use std::{ffi::OsString, fmt, fs, io, path::Path, sync::Arc, time::Duration};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::ledger::{Figures, Verdict};
use crate::{
    avro,
    cli::{Failure, outside, scratch::ScratchDirectory},
    config, kafka,
    model::{AccountingResource, Topic, TopicPrefix},
    simulator::{
        Simulator,
        deliveries::Entry,
        knobs::ReceiverUrls,
        settings::{Settings, WorldSettings},
    },
    telemetry::{Filters, Metrics},
    worker::{
        plugins::Plugins,
        service::{self, Process, Service},
    },
};

const PREFIX: &str = "demo";
const CONNECTOR: &str = "webhooks";
const PARTITIONS: i32 = 3;
/// What is subscribed to, with where the provider has it.
const RESOURCES: [(AccountingResource, &str); 3] = [
    (AccountingResource::Customers, "/accounting/api/customers"),
    (AccountingResource::Accounts, "/accounting/api/accounts"),
    (AccountingResource::Journals, "/accounting/api/journals"),
];
const SCOPES: [&str; 3] = ["openid", "SVC.ES.NEWPOL.ACC.API", "SVC.ES.Webhooks"];
/// Name under which the worker finds the secret of the webhooks.
const SECRET: &str = "DEMO_WEBHOOK_SECRET";
/// The most that starting, stopping and reading back may take.
const LIMIT: Duration = Duration::from_secs(60);
const PUBLISHED: &str = "tributary_records_published_total{origin=\"webhook\"}";
const SPOOLED: &str = "tributary_spool_entries";

/// Everything, running.
pub(super) struct Stage {
    cluster: Arc<kafka::embedded::Cluster>,
    registry: avro::embedded::Server,
    simulator: Simulator,
    metrics: Metrics,
    client: reqwest::Client,
    /// Where deliveries go, and where the worker answers.
    receiver: String,
    admin: String,
    secret: String,
    stop: CancellationToken,
    running: JoinHandle<Result<(), service::Error>>,
    _state: ScratchDirectory,
}

impl Stage {
    pub(super) async fn start(logs: Filters, metrics: &Metrics) -> Result<Self, Failure> {
        let state = ScratchDirectory::create("demo").map_err(outside)?;
        let cluster = Arc::new(kafka::embedded::Cluster::start(1).map_err(outside)?);
        let registry = avro::embedded::Server::start().await.map_err(outside)?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).map_err(outside)?;
        let certificate = made.cert.pem();
        let world = WorldSettings { companies: 20, customers: 20, accounts: 20, ..WorldSettings::default() };
        let mut settings =
            Settings { world, receiver_roots: vec![certificate.clone()], ..Settings::default() };
        settings.address.set_port(0);
        settings.knobs.delivery.receivers = ReceiverUrls::Https;
        settings.knobs.changes_per_second = 0.0;
        let simulator = Simulator::start(settings).await.map_err(outside)?;

        let secret = secret();
        let files =
            Files { directory: &state.0, certificate: &certificate, key: &made.signing_key.serialize_pem() };
        files.write(&cluster, &registry, &simulator).map_err(outside)?;
        let environment = [(OsString::from(SECRET), OsString::from(&secret))];
        let loaded = config::Worker::load(Some(&state.0.join("worker.properties")), environment);
        let worker = Arc::new(loaded.map_err(|rejected| Failure::Configuration(rejected.problems))?.config);
        let rendered = metrics.clone();
        let process = Process {
            loggers: Arc::new(logs),
            metrics: Arc::new(move || rendered.render()),
            plugins: Plugins::of(&worker, false),
            adopt: false,
            embedded: Some(Arc::clone(&cluster)),
        };
        let service = Service::bind(worker, &process).await.map_err(outside)?;
        let port = |addresses: &[std::net::SocketAddr]| addresses.first().map_or(0, |address| address.port());
        let receiver = format!("https://localhost:{}", port(&service.webhook_addresses()));
        let admin = format!("http://127.0.0.1:{}", port(service.addresses()));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(async move { service.run(&process, stopped).await });
        let client = client(&simulator)?;
        let metrics = metrics.clone();
        let stage = Self {
            cluster,
            registry,
            simulator,
            metrics,
            client,
            receiver,
            admin,
            secret,
            stop,
            running,
            _state: state,
        };
        timeout(LIMIT, stage.is_received()).await.map_err(outside)?;
        Ok(stage)
    }

    /// Waits until the worker is healthy and the connector's path is served.
    async fn is_received(&self) {
        let status = format!("{}/connectors/{CONNECTOR}/status", self.admin);
        loop {
            let answer = match self.client.get(&status).send().await {
                Ok(answer) => answer.json::<Value>().await.unwrap_or_default(),
                Err(_) => Value::Null,
            };
            if answer["connector"]["state"] == "RUNNING" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Subscribes to every event of a few resources. How many there are.
    pub(super) async fn subscribe(&self) -> Result<usize, Failure> {
        let provider = self.simulator.base_url();
        for (resource, path) in RESOURCES {
            let at =
                |operation: &str| provider.join(&format!("{path}/webhooks/{operation}")).map_err(outside);
            let events: Value = self.call(self.client.get(at("events")?)).await?;
            let url = format!("{}/webhooks/accounting/{CONNECTOR}/{}", self.receiver, resource.name());
            let body = json!({
                "thirdPartyApplicationName": "tributary demo",
                "url": url,
                "secret": self.secret,
                "eventTypes": events,
            });
            let body = serde_json::to_vec(&body).map_err(outside)?;
            let request = self.client.post(at("subscribe")?).body(body);
            self.call(request).await?;
        }
        timeout(LIMIT, self.simulator.provider().deliveries.idle()).await.map_err(outside)?;
        Ok(RESOURCES.len())
    }

    async fn call(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        let answer = request.send().await.and_then(reqwest::Response::error_for_status).map_err(outside)?;
        answer.json().await.map_err(outside)
    }

    pub(super) fn change(&self, per_second: f64) {
        self.simulator.provider().turn(|knobs| knobs.changes_per_second = per_second);
    }

    pub(super) fn set_reachable(&self, reachable: bool) -> Result<(), Failure> {
        self.cluster.set_reachable(reachable).map_err(outside)
    }

    pub(super) fn figures(&self) -> Figures {
        let rendered = self.metrics.render();
        let value = |name: &str| {
            let line = rendered.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_default() as u64
        };
        Figures::of(&self.entries(), value(PUBLISHED), value(SPOOLED))
    }

    /// Waits until nothing is on its way any more, neither to the worker nor in it. Whether that came in time.
    pub(super) async fn settled(&self, limit: Duration) -> bool {
        let settled = async {
            self.simulator.provider().deliveries.idle().await;
            while self.figures().spooled > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(limit, settled).await.is_ok()
    }

    fn entries(&self) -> Vec<Entry> {
        let entries = self.simulator.provider().deliveries.entries(0, usize::MAX);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Compares what the provider was told with what the topics hold.
    pub(super) async fn verdict(&self) -> Result<Verdict, Failure> {
        let prefix = TopicPrefix::new(PREFIX).map_err(outside)?;
        let partitions: Vec<i32> = (0..PARTITIONS).collect();
        let mut records = Vec::new();
        for (resource, _) in RESOURCES {
            let topic = Topic::AccountingEvents(resource).name(&prefix);
            kafka::read_to_end(&self.cluster.settings(), &topic, &partitions, LIMIT, |record| {
                records.push(record)
            })
            .await
            .map_err(outside)?;
        }
        Ok(Verdict::of(&self.entries(), &records))
    }

    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.stop.cancel();
        let ended = timeout(LIMIT, self.running).await.map_err(outside)?;
        self.simulator.stop().await;
        ended.map_err(outside)?.map_err(outside)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "provider   {} (simulated)", self.simulator.base_url())?;
        writeln!(f, "receiver   {}/webhooks/accounting/{CONNECTOR}", self.receiver)?;
        writeln!(f, "REST API   {}/connectors, metrics at /metrics", self.admin)?;
        writeln!(f, "Kafka      {} (embedded)", self.cluster.bootstrap_servers())?;
        write!(f, "registry   {} (embedded)", self.registry.url())
    }
}

/// What the worker reads at its start.
struct Files<'a> {
    directory: &'a Path,
    certificate: &'a str,
    key: &'a str,
}

impl Files<'_> {
    fn write(
        &self,
        cluster: &kafka::embedded::Cluster,
        registry: &avro::embedded::Server,
        simulator: &Simulator,
    ) -> io::Result<()> {
        let at = |name: &str| self.directory.join(name);
        fs::create_dir_all(at("connectors"))?;
        fs::write(at("certificate.pem"), self.certificate)?;
        fs::write(at("key.pem"), self.key)?;
        let lines = [
            ("bootstrap.servers", cluster.bootstrap_servers().to_owned()),
            ("value.converter.schema.registry.url", registry.url().to_string()),
            ("group.id", "tributary-demo".to_owned()),
            ("listeners", "http://127.0.0.1:0".to_owned()),
            ("webhook.listeners", "https://127.0.0.1:0".to_owned()),
            ("webhook.ssl.certificate.location", at("certificate.pem").display().to_string()),
            ("webhook.ssl.key.location", at("key.pem").display().to_string()),
            ("connectors.dir", at("connectors").display().to_string()),
            ("state.dir", at("state").display().to_string()),
            ("config.storage.replication.factor", "1".to_owned()),
            ("offset.storage.replication.factor", "1".to_owned()),
            ("status.storage.replication.factor", "1".to_owned()),
            ("work.storage.replication.factor", "1".to_owned()),
            ("grant.storage.replication.factor", "1".to_owned()),
            // Its brokers never wake a waiting fetch, so waiting only delays.
            ("consumer.fetch.wait.max.ms", "1".to_owned()),
        ];
        let text: String = lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        fs::write(at("worker.properties"), text)?;
        let names: Vec<_> = RESOURCES.iter().map(|(resource, _)| resource.name()).collect();
        let connector = json!({
            "name": CONNECTOR,
            "config": {
                "connector.class": "WebhookSource",
                "topic.prefix": PREFIX,
                "topic.creation.default.partitions": PARTITIONS.to_string(),
                "topic.creation.default.replication.factor": "1",
                "accounting.resources": names.join(","),
                "accounting.secret": format!("${{env:{SECRET}}}"),
                "provider.base.url": simulator.base_url().to_string(),
                "provider.auth.url": simulator.auth_url().to_string(),
                "provider.subscription.key": "${env:DEMO_WEBHOOK_SECRET}",
                "oauth.client.id": "demo",
                "oauth.client.secret": "${env:DEMO_WEBHOOK_SECRET}",
            },
        });
        fs::write(at("connectors").join("webhooks.json"), connector.to_string())
    }
}

/// A client with all that the provider's API asks for.
fn client(simulator: &Simulator) -> Result<reqwest::Client, Failure> {
    let provider = simulator.provider();
    let (access, _) = provider.identity.grant(provider, &SCOPES);
    let key = provider.settings.subscription_keys.first().cloned().unwrap_or_default();
    let value = |text: &str| HeaderValue::from_str(text).map_err(outside);
    let headers = HeaderMap::from_iter([
        (AUTHORIZATION, value(&format!("Bearer {access}"))?),
        (HeaderName::from_static("ocp-apim-subscription-key"), value(&key)?),
        (HeaderName::from_static("context"), value("none")?),
        (CONTENT_TYPE, value("application/json")?),
    ]);
    reqwest::Client::builder().no_proxy().default_headers(headers).timeout(LIMIT).build().map_err(outside)
}

/// Nobody knows it but this process.
fn secret() -> String {
    use std::hash::{BuildHasher, RandomState};
    (0..4).map(|part| format!("{:016x}", RandomState::new().hash_one(part))).collect()
}
