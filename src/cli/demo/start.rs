//! Starts the parts of the demo, concurrently where possible.
//!
//! ```text
//! Kafka ───┐
//! registry ┼▶ login ────────────────────────┐
//! provider ┘ └▶ worker: listeners, topics ──┴▶ connectors, over REST ─▶ subscriptions ─▶ first event
//! ```
//!
//! Connectors come last: a task without a login fails and stays failed.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::Path, sync::Arc, time::Duration};

use reqwest::StatusCode;
use serde_json::json;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use url::Url;

use base::{durable, random};
use kafka::Admin;
use model::AccountingResource;
use provider::{Provider, auth::Area};
use simulator::{
    Simulator,
    settings::{Settings, Tls, WorldSettings},
};

use super::{
    invoicing,
    system::{DemoSystem, PARTITIONS, POLL_INTERVAL, PREFIX, RECORDS, RESOURCES, TIMEOUT},
};
use crate::{
    avro,
    cli::{
        Result,
        auth::{
            callback::{CallbackListener, DEFAULT_PATH, ListenAddress},
            flow::LoginFlow,
            grants_topic::GrantsTopic,
            login::provider,
            simulated,
        },
        client::Method,
        failure, outside,
        scratch::ScratchDirectory,
        table::{harmless, moment},
    },
    config::{Connector, Worker},
    plugin::Plugins,
    telemetry::{Filters, Metrics},
    worker::{self, Process, Service},
};

/// Host name of the worker for the provider. The provider delivers only to port 443, so its resolver maps this name to the real
/// address.
const HOST: &str = "hooks.demo.example";
/// Environment variables with the worker's secrets.
const SECRET: &str = "DEMO_WEBHOOK_SECRET";
const INVOICING_SECRET: &str = "DEMO_INVOICING_SECRET";
const INVOICING_PASSWORD: &str = "DEMO_INVOICING_PASSWORD";
const SUBSCRIPTION_KEY: &str = "DEMO_SUBSCRIPTION_KEY";
const CLIENT_SECRET: &str = "DEMO_CLIENT_SECRET";
const ENCRYPTION_KEY: &str = "DEMO_GRANT_ENCRYPTION_KEY";
/// Files in the scratch directory.
const PROVIDER_CERTIFICATE: &str = "provider.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
const PROPERTIES: &str = "worker.properties";

/// The running services that a worker needs.
pub(super) struct DemoServices {
    pub(super) cluster: Arc<kafka::embedded::EmbeddedCluster>,
    pub(super) registry: avro::embedded::EmbeddedRegistry,
    pub(super) simulator: Simulator,
    pub(super) directory: ScratchDirectory,
    worker: Arc<Worker>,
}

pub(super) struct RunningWorker {
    pub(super) running: JoinHandle<Result<(), worker::Error>>,
    pub(super) stop: CancellationToken,
    /// Address of the REST API.
    pub(super) admin: Url,
    /// Address of the receiver, for display.
    pub(super) receiver: String,
}

impl DemoServices {
    /// `token_life` is the lifetime of access tokens, `deliveries` the size of the journal.
    pub(super) async fn prepare(token_life: Duration, deliveries: usize) -> Result<Self> {
        let directory = ScratchDirectory::create("demo")?;
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()])?;
        let world = WorldSettings { companies: 20, customers: 20, accounts: 20, ..WorldSettings::default() };
        let mut settings = Settings {
            world,
            tls: Tls::Generated,
            receiver_roots: vec![made.cert.pem()],
            ..Settings::default()
        };
        settings.address.set_port(0);
        settings.journal_limit = settings.journal_limit.max(deliveries);
        settings.knobs.changes_per_second = 0.0;
        settings.knobs.identity.access_seconds = token_life.as_secs();
        // Repeat notifications as early as accounting deliveries.
        settings.knobs.invoicing.retries = settings.knobs.accounting.retries.clone();
        // Start both concurrently: the cluster blocks, the simulator generates keys and data.
        let cluster = spawn_blocking(|| kafka::embedded::EmbeddedCluster::start(1));
        let simulator = tokio::spawn(Simulator::start(settings));
        let registry = avro::embedded::EmbeddedRegistry::start().await?;
        let simulator = simulator.await??;
        let cluster = Arc::new(cluster.await??);

        let at = |name: &str| directory.0.join(name);
        durable::replace(&at(CERTIFICATE), made.cert.pem().as_bytes())?;
        durable::replace(&at(KEY), made.signing_key.serialize_pem().as_bytes())?;
        durable::replace(&at(PROVIDER_CERTIFICATE), simulator.certificate().unwrap_or_default().as_bytes())?;
        let properties = properties(&directory.0, cluster.bootstrap_servers(), registry.url());
        durable::replace(&at(PROPERTIES), properties.as_bytes())?;
        let known = &simulator.provider().settings;
        let environment = [
            (SECRET, secret()?),
            (INVOICING_SECRET, secret()?),
            (INVOICING_PASSWORD, known.invoicing.password.clone()),
            (SUBSCRIPTION_KEY, known.subscription_keys.first().cloned().unwrap_or_default()),
            (CLIENT_SECRET, known.client.secret.clone()),
            (ENCRYPTION_KEY, secret()?),
        ]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let loaded = Worker::load(Some(&at(PROPERTIES)), environment);
        let worker = Arc::new(loaded.map_err(|rejected| rejected.problems)?.config);
        Ok(Self { cluster, registry, simulator, directory, worker })
    }

    /// Logs in for accounting and payroll.
    pub(super) async fn log_in(&self) -> Result<Vec<String>> {
        let parsed = Connector::parse(RECORDS, &self.connector(RECORDS), &self.worker.providers);
        let (connector, _) = parsed?;
        let provider = provider(&connector)?;
        let mut logins = Vec::new();
        for area in [Area::Accounting, Area::Payroll] {
            logins.push(Box::pin(timeout(TIMEOUT, self.log_in_for(area, provider))).await??);
        }
        Ok(logins)
    }

    /// Logs in as `tributary auth login --simulated` does. Returns a line for display.
    async fn log_in_for(&self, area: Area, provider: &Provider) -> Result<String> {
        let grants = GrantsTopic::create(&self.worker, &Admin::Embedded(Arc::clone(&self.cluster))).await?;
        let flow = LoginFlow::new(Some(&grants), provider, area, self.worker.clock_skew_max);
        let listener =
            CallbackListener::bind(&ListenAddress { port: 0, path: DEFAULT_PATH.to_owned() }).await?;
        let redirect = listener.redirect().to_owned();
        let grant = simulated::log_in(&flow, flow.begin(&redirect)?, listener, &redirect, TIMEOUT).await?;

        let scopes = grant.tokens().map(|tokens| tokens.scopes.join(" ")).unwrap_or_default();
        let (end, _) = grant.ends_ms(provider.oauth.login_lifetime, provider.oauth.idle_lifetime);
        let until = end.map_or_else(|| "without an end".to_owned(), |end| format!("until {}", moment(end)));
        let who = harmless(grant.login.who());
        Ok(format!("{who} is logged in for {area} ({}), {until}", harmless(&scopes)))
    }

    /// Starts the worker, without connectors.
    pub(super) async fn start(&self, logs: Filters, metrics: &Metrics) -> Result<RunningWorker> {
        let rendered = metrics.clone();
        let process = Process {
            loggers: Arc::new(logs),
            metrics: Arc::new(move || rendered.render()),
            plugins: Plugins::of(&self.worker, false),
            adopt: false,
            embedded: Some(Arc::clone(&self.cluster)),
        };
        let service = Service::bind(Arc::clone(&self.worker), &process).await?;
        let port = |addresses: &[std::net::SocketAddr]| addresses.first().map_or(0, |address| address.port());
        let receives = service.webhook_addresses();
        let receiver = format!("https://{HOST} (really 127.0.0.1:{})", port(&receives));
        self.simulator.provider().turn(|knobs| {
            knobs.delivery.resolve.extend(receives.first().map(|address| (HOST.to_owned(), *address)));
        });
        let admin = Url::parse(&format!("http://127.0.0.1:{}", port(&service.addresses())))?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(async move { service.run(&process, stopped).await });
        Ok(RunningWorker { running, stop, admin, receiver })
    }

    /// The configuration of a connector.
    pub(super) fn connector(&self, name: &str) -> BTreeMap<String, String> {
        let names = RESOURCES.map(AccountingResource::name).join(",");
        let of = |name: &str| format!("${{env:{name}}}");
        let text = str::to_owned;
        let mut config = vec![
            ("topic.prefix", text(PREFIX)),
            ("topic.creation.default.partitions", PARTITIONS.to_string()),
            ("topic.creation.default.replication.factor", text("1")),
            ("provider.base.url", self.simulator.base_url().to_string()),
            ("provider.auth.url", self.simulator.auth_url().to_string()),
            ("provider.ssl.ca.location", self.directory.0.join(PROVIDER_CERTIFICATE).display().to_string()),
            ("provider.subscription.key", of(SUBSCRIPTION_KEY)),
            ("oauth.client.id", self.simulator.provider().settings.client.id.clone()),
            ("oauth.client.secret", of(CLIENT_SECRET)),
        ];
        config.extend(match name {
            RECORDS => vec![
                ("connector.class", text("RecordSource")),
                ("tasks.max", text("1")),
                ("enrich.resources", names),
                // Without companies: no webhook reports them here, so their list would differ at the end.
                ("snapshot.lists", text("customers,accounts,payroll")),
                // The provider in the same process can serve more requests, and deletes can be confirmed sooner.
                ("budget.requests.per.second", text("2000")),
                ("budget.company.requests.per.second", text("500")),
                ("tombstones.confirm.ms", text("1000")),
                // Lists show companies before events do here, so the backoff can be short.
                ("enrich.parked.backoff.ms", text("1000")),
            ],
            _ => vec![
                ("connector.class", text("WebhookSource")),
                ("accounting.resources", names),
                ("accounting.secret", of(SECRET)),
                ("invoicing.hooks", invoicing::declared()),
                ("invoicing.secret", of(INVOICING_SECRET)),
                ("invoicing.login.mail", self.simulator.provider().settings.invoicing.mail.clone()),
                ("invoicing.login.password", of(INVOICING_PASSWORD)),
                ("subscriptions.poll.interval.ms", text("500")),
                // The clocks are the same, so the repair can start at once.
                ("gap.margin.ms", text("1000")),
            ],
        });
        config.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// The worker's properties file.
fn properties(directory: &Path, kafka: &str, registry: &Url) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let lines = [
        ("bootstrap.servers", kafka.to_owned()),
        ("value.converter.schema.registry.url", registry.to_string()),
        ("group.id", "tributary-demo".to_owned()),
        // The simulated provider's API and its identity service.
        ("provider.hosts.allowed", "127.0.0.1,localhost".to_owned()),
        ("listeners", "http://127.0.0.1:0".to_owned()),
        ("webhook.listeners", "https://127.0.0.1:0".to_owned()),
        ("webhook.advertised.url", format!("https://{HOST}")),
        ("webhook.ssl.certificate.location", at(CERTIFICATE)),
        ("webhook.ssl.key.location", at(KEY)),
        ("state.dir", at("state")),
        ("config.storage.replication.factor", "1".to_owned()),
        ("offset.storage.replication.factor", "1".to_owned()),
        ("status.storage.replication.factor", "1".to_owned()),
        ("work.storage.replication.factor", "1".to_owned()),
        ("grant.storage.replication.factor", "1".to_owned()),
        ("grant.encryption.key", format!("${{env:{ENCRYPTION_KEY}}}")),
        ("config.providers", "env".to_owned()),
        (
            "config.providers.env.param.allowlist.pattern",
            [SECRET, INVOICING_SECRET, INVOICING_PASSWORD, SUBSCRIPTION_KEY, CLIENT_SECRET].join("|"),
        ),
        // The embedded brokers never wake a waiting fetch, so waiting only delays.
        ("consumer.fetch.wait.max.ms", "1".to_owned()),
    ];
    lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

impl DemoSystem {
    /// Creates a connector; retries while the worker starts.
    pub(super) async fn create(&self, name: &str) -> Result {
        let (config, end) = (json!(self.services.connector(name)), Instant::now() + TIMEOUT);
        loop {
            let path = ["connectors", name, "config"];
            let answer = self.rest.request(Method::PUT, &path, &[], Some(&config)).await?;
            let status = answer.status;
            if status.is_success() {
                return Ok(());
            }
            // A starting worker answers 5xx or 409.
            let is_early = status.is_server_error() || status == StatusCode::CONFLICT;
            if !is_early || Instant::now() >= end {
                let (status, message) = (status.as_u16(), answer.message().unwrap_or_default());
                return Err(failure(format!("create the connector {name}: {status} {message}")));
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

impl fmt::Display for DemoServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.simulator.base_url();
        let base = base.as_str().trim_end_matches('/');
        let certificate = self.directory.0.join(PROVIDER_CERTIFICATE);
        writeln!(f, "provider   {base} (simulated; knobs at /_control, trust {})", certificate.display())?;
        writeln!(f, "Kafka      {} (embedded)", self.cluster.bootstrap_servers())?;
        write!(f, "registry   {} (embedded)", self.registry.url().as_str().trim_end_matches('/'))
    }
}

fn secret() -> Result<String> {
    random::hex::<32>().map_err(outside)
}
