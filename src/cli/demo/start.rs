//! How the parts of the demo come up: at once where they can.
//!
//! ```text
//! Kafka ───┐
//! registry ┼▶ login ────────────────────────┐
//! provider ┘ └▶ worker: listeners, topics ──┴▶ connectors, over REST ─▶ subscriptions ─▶ first event
//! ```
//!
//! Connectors come last: a task without a login would fail, and then wait for a person.

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
    stage::{LIMIT, LOOK, PARTITIONS, PREFIX, RECORDS, RESOURCES, Stage},
};
use crate::{
    avro,
    cli::{
        Result,
        auth::{
            button,
            callback::{Listener, PATH, Place},
            desk::Desk,
            keep::Keep,
            login::provider,
        },
        client::Method,
        failure, outside,
        scratch::ScratchDirectory,
        table::{harmless, moment},
    },
    config::{Connector, Worker},
    telemetry::{Filters, Metrics},
    worker::{
        plugins::Plugins,
        service::{self, Process, Service},
    },
};

/// Where the provider finds the worker. It delivers to port 443 only, so its resolver maps this name to the real address.
const HOST: &str = "hooks.demo.example";
/// Names under which the worker finds the secrets of the webhooks, what the provider knows it by, and what grants are encrypted
/// with.
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

/// What a worker needs around it, running.
pub(super) struct Ground {
    pub(super) cluster: Arc<kafka::embedded::EmbeddedCluster>,
    pub(super) registry: avro::embedded::Server,
    pub(super) simulator: Simulator,
    pub(super) directory: ScratchDirectory,
    worker: Arc<Worker>,
}

pub(super) struct RunningWorker {
    pub(super) running: JoinHandle<Result<(), service::Error>>,
    pub(super) stop: CancellationToken,
    /// Where the worker answers.
    pub(super) admin: Url,
    /// Where deliveries go.
    pub(super) receiver: String,
}

impl Ground {
    /// `token_life` is how long an access token lives, `deliveries` how many are remembered.
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
        // A notification that has to be repeated comes as soon as a delivery of accounting would.
        settings.knobs.invoicing.retries = settings.knobs.accounting.retries.clone();
        // On two threads: one waits for its thread, the other makes keys and a world.
        let cluster = spawn_blocking(|| kafka::embedded::EmbeddedCluster::start(1));
        let simulator = tokio::spawn(Simulator::start(settings));
        let registry = avro::embedded::Server::start().await?;
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

    /// Logs in as the connectors' client, for each area.
    pub(super) async fn log_in(&self) -> Result<Vec<String>> {
        let parsed = Connector::parse(RECORDS, &self.connector(RECORDS), &self.worker.providers);
        let (connector, _) = parsed?;
        let provider = provider(&connector)?;
        let mut logins = Vec::new();
        for area in [Area::Accounting, Area::Payroll] {
            logins.push(Box::pin(timeout(LIMIT, self.log_in_for(area, provider))).await??);
        }
        Ok(logins)
    }

    /// Does what `tributary auth login` does, with a client that presses the provider's button in place of a person. Returns a line
    /// about it.
    async fn log_in_for(&self, area: Area, provider: &Provider) -> Result<String> {
        let keep = Keep::create(&self.worker, &Admin::Embedded(Arc::clone(&self.cluster))).await?;
        let desk = Desk::new(&keep, provider, area, self.worker.clock_skew_max);
        let listener = Listener::bind(&Place { port: 0, path: PATH.to_owned() }).await?;
        let redirect = listener.redirect().to_owned();
        let grant = button::log_in(&desk, desk.begin(&redirect)?, listener, &redirect, LIMIT).await?;

        let scopes = grant.tokens.as_ref().map(|tokens| tokens.scopes.join(" ")).unwrap_or_default();
        let (end, _) = grant.ends_ms(provider.oauth.login_lifetime, provider.oauth.idle_lifetime);
        let until = end.map_or_else(|| "without an end".to_owned(), |end| format!("until {}", moment(end)));
        let who = harmless(grant.login.who());
        Ok(format!("{who} is logged in for {area} ({}), {until}", harmless(&scopes)))
    }

    /// Starts the worker; it has no connectors yet.
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
        let admin = Url::parse(&format!("http://127.0.0.1:{}", port(service.addresses())))?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(async move { service.run(&process, stopped).await });
        Ok(RunningWorker { running, stop, admin, receiver })
    }

    /// The settings of a connector, as a person would write them.
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
                // No webhook reports companies here, so their list would differ at the end.
                ("snapshot.lists", text("customers,accounts,payroll")),
                // A provider that is in the same process bears more, and is asked about a deleted record sooner again.
                ("budget.requests.per.second", text("2000")),
                ("budget.company.requests.per.second", text("500")),
                ("tombstones.confirm.ms", text("1000")),
                // No company is reported before a list shows it here, so waiting for one can be short.
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
                // Clocks do not differ here: what the gap may have cost is read at once.
                ("gap.margin.ms", text("1000")),
            ],
        });
        config.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// What the worker reads at its start.
fn properties(directory: &Path, kafka: &str, registry: &Url) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let lines = [
        ("bootstrap.servers", kafka.to_owned()),
        ("value.converter.schema.registry.url", registry.to_string()),
        ("group.id", "tributary-demo".to_owned()),
        // The simulated provider: its API, and its identity service under another name.
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
        // Its brokers never wake a waiting fetch, so waiting only delays.
        ("consumer.fetch.wait.max.ms", "1".to_owned()),
    ];
    lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

impl Stage {
    /// Creates a connector, as soon as the worker takes one.
    pub(super) async fn create(&self, name: &str) -> Result {
        let (config, end) = (json!(self.ground.connector(name)), Instant::now() + LIMIT);
        loop {
            let path = ["connectors", name, "config"];
            let answer = self.rest.ask(Method::PUT, &path, &[], Some(&config)).await?;
            let status = answer.status;
            if status.is_success() {
                return Ok(());
            }
            // A worker that is still on its way says so.
            let is_early = status.is_server_error() || status == StatusCode::CONFLICT;
            if !is_early || Instant::now() >= end {
                let (status, told) = (status.as_u16(), answer.message().unwrap_or_default());
                return Err(failure(format!("create the connector {name}: {status} {told}")));
            }
            sleep(LOOK).await;
        }
    }
}

impl fmt::Display for Ground {
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
