//! All parts of the demo, started, joined and stopped.

use std::{
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    access::Access,
    ledger::{Figures, Verdict},
    records::Enriched,
};
use crate::{
    avro,
    cli::{Failure, outside, scratch::ScratchDirectory},
    config,
    enrich::{Asked, asked},
    kafka::{self, Admin},
    model::{AccountingResource, SchemaKind, Topic, TopicPrefix},
    random,
    simulator::{
        Simulator,
        accounting::WebhookState,
        deliveries::Entry,
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
pub(super) const RECORDS: &str = "records";
const PARTITIONS: i32 = 3;
/// What is subscribed to.
const RESOURCES: [AccountingResource; 3] =
    [AccountingResource::Customers, AccountingResource::Accounts, AccountingResource::Journals];
/// Where the provider finds the worker: it delivers to port 443 and nowhere else, so it is told where that name really is.
const HOST: &str = "hooks.demo.example";
/// Names under which the worker finds the secret of the webhooks, what the provider knows it by, and what grants are encrypted
/// with.
const SECRET: &str = "DEMO_WEBHOOK_SECRET";
const SUBSCRIPTION_KEY: &str = "DEMO_SUBSCRIPTION_KEY";
const CLIENT_SECRET: &str = "DEMO_CLIENT_SECRET";
const ENCRYPTION_KEY: &str = "DEMO_GRANT_ENCRYPTION_KEY";
/// The most that starting, stopping and reading back may take.
const LIMIT: Duration = Duration::from_secs(60);
const PUBLISHED: &str = "tributary_records_published_total{origin=\"webhook\"}";
const SPOOLED: &str = "tributary_spool_entries";
const REFRESHED: [&str; 2] = [
    "tributary_token_refreshes_total{outcome=\"refreshed\"}",
    "tributary_token_refreshes_total{outcome=\"recovered\"}",
];
/// Pause between two looks at how the task stands.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// Everything, running.
pub(super) struct Stage {
    cluster: Arc<kafka::embedded::Cluster>,
    registry: avro::embedded::Server,
    simulator: Simulator,
    metrics: Metrics,
    access: Access,
    client: reqwest::Client,
    /// Where deliveries go, and where the worker answers.
    receiver: String,
    admin: String,
    stop: CancellationToken,
    running: JoinHandle<Result<(), service::Error>>,
    _state: ScratchDirectory,
}

impl Stage {
    /// `token_life` is how long an access token lives.
    pub(super) async fn start(
        token_life: Duration,
        logs: Filters,
        metrics: &Metrics,
    ) -> Result<Self, Failure> {
        let state = ScratchDirectory::create("demo").map_err(outside)?;
        let cluster = Arc::new(kafka::embedded::Cluster::start(1).map_err(outside)?);
        let registry = avro::embedded::Server::start().await.map_err(outside)?;
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).map_err(outside)?;
        let certificate = made.cert.pem();
        let world = WorldSettings { companies: 20, customers: 20, accounts: 20, ..WorldSettings::default() };
        let mut settings =
            Settings { world, receiver_roots: vec![certificate.clone()], ..Settings::default() };
        settings.address.set_port(0);
        settings.knobs.changes_per_second = 0.0;
        settings.knobs.identity.access_seconds = token_life.as_secs();
        let simulator = Simulator::start(settings).await.map_err(outside)?;

        let files =
            Files { directory: &state.0, certificate: &certificate, key: &made.signing_key.serialize_pem() };
        files.write(&cluster, &registry, &simulator).map_err(outside)?;
        let known = &simulator.provider().settings;
        let environment = [
            (SECRET, secret()?),
            (SUBSCRIPTION_KEY, known.subscription_keys.first().cloned().unwrap_or_default()),
            (CLIENT_SECRET, known.client.secret.clone()),
            (ENCRYPTION_KEY, secret()?),
        ]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let loaded = config::Worker::load(Some(&state.0.join("worker.properties")), environment);
        let worker = Arc::new(loaded.map_err(|rejected| Failure::Configuration(rejected.problems))?.config);
        // Before the worker starts: its task would fail without a login, and then wait for a person.
        let admin = Admin::Embedded(Arc::clone(&cluster));
        let access = Box::pin(Access::log_in(&worker, &admin, &files.connector(), LIMIT)).await?;
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
        let receives = service.webhook_addresses();
        let receiver = format!("https://{HOST} (really 127.0.0.1:{})", port(&receives));
        simulator.provider().turn(|knobs| {
            knobs.delivery.resolve.extend(receives.first().map(|address| (HOST.to_owned(), *address)));
        });
        let admin = format!("http://127.0.0.1:{}", port(service.addresses()));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(async move { service.run(&process, stopped).await });
        let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().map_err(outside)?;
        let metrics = metrics.clone();
        let stage = Self {
            cluster,
            registry,
            simulator,
            metrics,
            access,
            client,
            receiver,
            admin,
            stop,
            running,
            _state: state,
        };
        timeout(LIMIT, stage.is_running()).await.map_err(outside)?;
        Ok(stage)
    }

    /// Waits until the connector's path is served and all tasks run, which takes a login.
    async fn is_running(&self) {
        for connector in [CONNECTOR, RECORDS] {
            loop {
                let status = self.ask_of(connector, "status").await;
                let task = &status["tasks"][0]["state"];
                if status["connector"]["state"] == "RUNNING" && task == "RUNNING" {
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// In one line, how the task stands with its login. Whether it runs.
    pub(super) async fn standing(&self, limit: Duration) -> (bool, String) {
        // It may be on its way back to its worker after the outage.
        let runs = timeout(limit, self.is_running()).await.is_ok();
        let state = self.ask("status").await["tasks"][0]["state"].as_str().unwrap_or("UNKNOWN").to_owned();
        let refreshed: u64 = self.values(&REFRESHED).iter().sum();
        (runs, format!("login: the task is {state}, refreshes of its access token: {refreshed}"))
    }

    /// Waits until the worker has every subscription that its connector declares. How many there are.
    pub(super) async fn subscribed(&self) -> Result<usize, Failure> {
        timeout(LIMIT, self.are_active()).await.map_err(outside)?;
        Ok(RESOURCES.len())
    }

    async fn are_active(&self) {
        let is_active = |one: &Value| one["phase"] == "active";
        loop {
            let told = self.ask("subscriptions").await;
            let all = told["subscriptions"].as_array().map(Vec::as_slice).unwrap_or_default();
            if all.len() == RESOURCES.len() && all.iter().all(is_active) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The provider disables a subscription, as it does after deliveries that failed for too long. In one line, what the worker
    /// makes of it; `None` where that is nothing.
    pub(super) async fn disable_one(&self, limit: Duration) -> Option<String> {
        let provider = self.simulator.provider();
        let webhook =
            provider.accounting.webhooks().into_iter().find(|one| one.state == WebhookState::Active)?;
        let begun = Instant::now();
        provider.accounting.disable(provider, webhook.id);
        let mended = async {
            loop {
                let gaps = self.ask("gaps").await;
                if let Some(gap) = gaps.as_array().and_then(|gaps| gaps.first())
                    && !gap["repair"].is_null()
                {
                    return gap["target"].as_str().unwrap_or_default().to_owned();
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let target = timeout(limit, mended).await.ok()?;
        timeout(limit, self.are_active()).await.ok()?;
        let seconds = begun.elapsed().as_secs_f64();
        Some(format!(
            "the provider disabled {target}: {seconds:.1} s later it was enabled again, with a gap for the time between and a repair asked for"
        ))
    }

    /// What the worker tells of the connector that receives.
    pub(super) async fn ask(&self, what: &str) -> Value {
        self.ask_of(CONNECTOR, what).await
    }

    pub(super) async fn ask_of(&self, connector: &str, what: &str) -> Value {
        let address = format!("{}/connectors/{connector}/{what}", self.admin);
        match self.client.get(&address).send().await {
            Ok(answer) => answer.json().await.unwrap_or_default(),
            Err(_) => Value::Null,
        }
    }

    /// Asks the connector that fetches for something.
    pub(super) async fn post(&self, what: &str, body: &Value) {
        let address = format!("{}/connectors/{RECORDS}/{what}", self.admin);
        // What came of it is looked at elsewhere.
        self.client.post(&address).json(body).send().await.ok();
    }

    pub(super) fn change(&self, per_second: f64) {
        self.simulator.provider().turn(|knobs| knobs.changes_per_second = per_second);
    }

    pub(super) fn set_reachable(&self, reachable: bool) -> Result<(), Failure> {
        self.cluster.set_reachable(reachable).map_err(outside)
    }

    pub(super) fn figures(&self) -> Figures {
        let [published, spooled] = self.values(&[PUBLISHED, SPOOLED]);
        Figures::of(&self.entries(), published, spooled)
    }

    /// What these metrics say; 0 for those that say nothing yet.
    fn values<const COUNT: usize>(&self, names: &[&str; COUNT]) -> [u64; COUNT] {
        let rendered = self.metrics.render();
        names.map(|name| {
            let line = rendered.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_default() as u64
        })
    }

    /// Waits until nothing is on its way any more, neither to the worker nor in it. What was delivered until then, if that came
    /// in time.
    pub(super) async fn settled(&self, limit: Duration) -> Option<Vec<Entry>> {
        let settled = async {
            self.simulator.provider().deliveries.idle().await;
            // A change that was decided on before may still be delivered afterwards; it is nobody's matter any more.
            let entries = self.entries();
            while self.figures().spooled > 0 {
                tokio::time::sleep(LOOK).await;
            }
            entries
        };
        timeout(limit, settled).await.ok()
    }

    fn entries(&self) -> Vec<Entry> {
        let entries = self.simulator.provider().deliveries.entries(0, usize::MAX);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Compares what the provider was told with what the topics hold.
    pub(super) async fn verdict(&self, entries: &[Entry]) -> Result<Verdict, Failure> {
        let prefix = TopicPrefix::new(PREFIX).map_err(outside)?;
        let partitions: Vec<i32> = (0..PARTITIONS).collect();
        let (mut records, mut letters) = (Vec::new(), Vec::new());
        let events = RESOURCES.map(Topic::AccountingEvents);
        for topic in events.into_iter().chain([Topic::DeadLetters]) {
            let into = if topic == Topic::DeadLetters { &mut letters } else { &mut records };
            let name = topic.name(&prefix);
            kafka::read_to_end(&self.cluster.settings(), &name, &partitions, LIMIT, |record| {
                into.push(record)
            })
            .await
            .map_err(outside)?;
        }
        Ok(Verdict::of(entries, &records, letters.len()))
    }

    /// Waits until every record is as new as the last event of it, or the time is up. How they compare.
    pub(super) async fn enriched(&self, limit: Duration) -> Result<Enriched, Failure> {
        let end = Instant::now() + limit;
        loop {
            let enriched = self.compare().await?;
            if enriched.holds() || Instant::now() >= end {
                return Ok(enriched);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn compare(&self) -> Result<Enriched, Failure> {
        let prefix = TopicPrefix::new(PREFIX).map_err(outside)?;
        let partitions: Vec<i32> = (0..PARTITIONS).collect();
        let registry = config::Registry::open(self.registry.url().clone());
        let decoder = avro::Decoder::new(avro::Registry::new(&registry).map_err(outside)?);
        let (mut events, mut published) = (Vec::new(), Vec::new());
        for resource in RESOURCES {
            let mut read = Vec::new();
            for (topic, into) in [
                (Topic::AccountingEvents(resource), &mut read),
                (Topic::AccountingRecords(resource), &mut published),
            ] {
                let record = Topic::AccountingRecords(resource);
                kafka::read_to_end(
                    &self.cluster.settings(),
                    &topic.name(&prefix),
                    &partitions,
                    LIMIT,
                    |one| {
                        into.push((record, one));
                    },
                )
                .await
                .map_err(outside)?;
            }
            for (topic, event) in read {
                let value = event.value.unwrap_or_default();
                let (_, event) =
                    decoder.decode_as(SchemaKind::AccountingEvent, &value).await.map_err(outside)?;
                if let Asked::Wanted(wanted) = asked(event)
                    && let Some(version) = wanted.floor
                {
                    events.push((topic, wanted.subject.key().as_str().to_owned(), version));
                }
            }
        }
        Ok(Enriched::of(&events, &published))
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
        writeln!(f, "receiver   {}", self.receiver)?;
        writeln!(f, "REST API   {}/connectors, metrics at /metrics", self.admin)?;
        writeln!(f, "Kafka      {} (embedded)", self.cluster.bootstrap_servers())?;
        writeln!(f, "registry   {} (embedded)", self.registry.url())?;
        write!(f, "login      {}", self.access)
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
            ("webhook.advertised.url", format!("https://{HOST}")),
            ("webhook.ssl.certificate.location", at("certificate.pem").display().to_string()),
            ("webhook.ssl.key.location", at("key.pem").display().to_string()),
            ("connectors.dir", at("connectors").display().to_string()),
            ("state.dir", at("state").display().to_string()),
            ("config.storage.replication.factor", "1".to_owned()),
            ("offset.storage.replication.factor", "1".to_owned()),
            ("status.storage.replication.factor", "1".to_owned()),
            ("work.storage.replication.factor", "1".to_owned()),
            ("grant.storage.replication.factor", "1".to_owned()),
            ("grant.encryption.key", format!("${{env:{ENCRYPTION_KEY}}}")),
            // Its brokers never wake a waiting fetch, so waiting only delays.
            ("consumer.fetch.wait.max.ms", "1".to_owned()),
        ];
        let text: String = lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        fs::write(at("worker.properties"), text)?;
        let names = RESOURCES.map(AccountingResource::name);
        let common = json!({
            "topic.prefix": PREFIX,
            "topic.creation.default.partitions": PARTITIONS.to_string(),
            "topic.creation.default.replication.factor": "1",
            "provider.base.url": simulator.base_url().to_string(),
            "provider.auth.url": simulator.auth_url().to_string(),
            "provider.subscription.key": format!("${{env:{SUBSCRIPTION_KEY}}}"),
            "oauth.client.id": simulator.provider().settings.client.id,
            "oauth.client.secret": format!("${{env:{CLIENT_SECRET}}}"),
        });
        let connector = |name: &str, own: Value| {
            let mut config = common.clone();
            if let (Value::Object(config), Value::Object(own)) = (&mut config, own) {
                config.extend(own);
            }
            json!({ "name": name, "config": config }).to_string()
        };
        let webhooks = json!({
            "connector.class": "WebhookSource",
            "accounting.resources": names.join(","),
            "accounting.secret": format!("${{env:{SECRET}}}"),
            "subscriptions.poll.interval.ms": "500",
        });
        let records = json!({
            "connector.class": "RecordSource",
            "tasks.max": "1",
            "enrich.resources": names.join(","),
            // Of companies nobody tells here, so that their list would differ by the end.
            "snapshot.lists": "customers,accounts",
            // A provider that is in the same process bears more, and is asked about a deleted record sooner again.
            "budget.requests.per.second": "2000",
            "budget.company.requests.per.second": "500",
            "tombstones.confirm.ms": "1000",
        });
        fs::write(at("connectors").join("records.json"), connector(RECORDS, records))?;
        fs::write(self.connector(), connector(CONNECTOR, webhooks))
    }

    /// Where the connector's file is.
    fn connector(&self) -> PathBuf {
        self.directory.join("connectors").join("webhooks.json")
    }
}

/// Nobody knows it but this process.
fn secret() -> Result<String, Failure> {
    random::hex::<32>().map_err(outside)
}
