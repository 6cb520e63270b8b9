//! Workers that receive over TLS, the simulated provider that finds them under one name, and both sides' books.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tributary::config;
use tributary::kafka::Admin;
use tributary::model::{Moment, Phase, Target, TopicPrefix, Wish};
use tributary::simulator::Simulator;
use tributary::simulator::accounting::{WebhookState, WebhookTruth};
use tributary::simulator::settings::Settings;
use tributary::webhooks::subscriptions::{Change, Ledger};
use tributary::worker::ledger::{Handle, Ledgers};

use crate::simulator::{KEY, start};
use crate::support::login::{Login, http};
use crate::support::tributary::Tributary;
use crate::support::{Error, Result, Shared, prefix, run_directory};

pub(super) const CONNECTOR: &str = "hooks";
/// What a busy machine may need; nothing waits this long when all is well.
pub(super) const LIMIT: Duration = Duration::from_secs(90);
/// How often the provider is asked how a subscription stands.
pub(super) const POLL: Duration = Duration::from_millis(300);
/// How often a condition is looked at that gives no sign.
const STEP: Duration = Duration::from_millis(50);
/// The receivers' name, which leads to one of them.
pub(super) const HOST: &str = "hooks.example.com";
const ENCRYPTION_KEY: &str = "the key of the grants here, long enough";
pub(super) const SECRET: &str = "0123456789abcdef-first";

/// A provider whose clock runs, workers of one group, and one connector.
pub(super) struct Scene {
    pub(super) simulator: Simulator,
    pub(super) workers: Vec<Tributary>,
    pub(super) prefix: String,
    http: reqwest::Client,
}

impl Scene {
    /// So many healthy workers that receive; the first is who the provider reaches.
    pub(super) async fn start(
        shared: &Shared,
        name: &str,
        count: usize,
        adjust: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let simulator = start(|settings| {
            settings.frozen_at = None;
            settings.knobs.delivery.trust_any = true;
            settings.knobs.accounting.retries = vec![100, 200];
            adjust(settings);
        })
        .await;
        let group = prefix(name);
        let directory = run_directory::create(name)?;
        let (certificate, key) = certificate(&directory)?;
        let advertised = format!("https://{HOST}");
        let properties = [
            ("grant.encryption.key", ENCRYPTION_KEY),
            ("value.converter.schema.registry.url", shared.registry()),
            ("webhook.listeners", "https://127.0.0.1:0"),
            ("webhook.ssl.certificate.location", &*certificate),
            ("webhook.ssl.key.location", &*key),
            ("webhook.advertised.url", &*advertised),
            ("secrets.reload.interval.ms", "1000"),
            ("log.filter", "info,tributary::worker::reconciler=debug"),
        ];
        let workers = (0..count).map(|_| Tributary::start_in(&group, shared.bootstrap(), name, &properties));
        let workers = try_join_all(workers).await?;
        let scene = Self { simulator, workers, prefix: format!("{group}-{CONNECTOR}"), http: http() };
        scene.reach(0)?;
        Ok(scene)
    }

    /// Deliveries come to this worker from now on.
    pub(super) fn reach(&self, worker: usize) -> Result<()> {
        let said = self.workers[worker].said();
        let address = said.lines().find_map(|line| line.split_once(" receives deliveries on "));
        let address = address.and_then(|(_, address)| address.trim().parse::<SocketAddr>().ok());
        let address = address.ok_or_else(|| self.workers[worker].error("it receives nowhere"))?;
        self.resolve(address);
        Ok(())
    }

    /// Both names of the receivers lead here.
    pub(super) fn resolve(&self, address: SocketAddr) {
        self.simulator.provider().turn(|knobs| {
            let names = [HOST.to_owned(), format!("other.{HOST}")];
            knobs.delivery.resolve.extend(names.map(|name| (name, address)));
        });
    }

    /// The receivers have this name from their next life on.
    pub(super) fn rename(&self, host: &str) -> Result<()> {
        let failed = |error: std::io::Error| Error(format!("rename: {error}"));
        for worker in &self.workers {
            let text = fs::read_to_string(worker.config()).map_err(failed)?;
            let line = |line: &str| match line.strip_prefix("webhook.advertised.url=") {
                Some(_) => format!("webhook.advertised.url=https://{host}\n"),
                None => format!("{line}\n"),
            };
            fs::write(worker.config(), text.lines().map(line).collect::<String>()).map_err(failed)?;
        }
        Ok(())
    }

    /// Has the connector, with these settings over those it needs, and somebody logged in for it.
    pub(super) async fn connect(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.configure(settings).await?;
        let log = run_directory::create("login")?.join("log");
        let login = Login::begin(Path::new(CONNECTOR), self.workers[0].config(), &log, &[])?;
        login.finish(&self.http).await.map(drop)
    }

    /// Asks once for the connector with this configuration.
    pub(super) async fn put(&self, config: &Value) -> Result<(u16, Value)> {
        self.ask(0, "PUT", &format!("/connectors/{CONNECTOR}/config"), Some(config)).await
    }

    /// Has the connector with these settings.
    pub(super) async fn configure(&self, settings: &[(&str, &str)]) -> Result<()> {
        let config = self.config(settings);
        let end = Instant::now() + LIMIT;
        loop {
            match self.put(&config).await {
                Ok((200 | 201, _)) => return Ok(()),
                Ok((503, _)) | Err(_) if Instant::now() < end => sleep(STEP).await,
                other => return Err(Error(format!("connect: {other:?}"))),
            }
        }
    }

    /// The connector's configuration with these settings over those it needs.
    pub(super) fn config(&self, settings: &[(&str, &str)]) -> Value {
        let address = self.simulator.base_url().to_string();
        let mut config = json!({
            "connector.class": "WebhookSource",
            "topic.prefix": self.prefix,
            "topic.creation.default.partitions": "2",
            "topic.creation.default.replication.factor": "1",
            "errors.deadletterqueue.topic.replication.factor": "1",
            "accounting.resources": "customers",
            "accounting.secret": SECRET,
            "provider.base.url": address,
            "provider.auth.url": address,
            "provider.subscription.key": KEY,
            "provider.request.timeout.ms": "4000",
            "oauth.client.id": "simulated-client",
            "oauth.client.secret": "simulated-secret",
            "subscriptions.poll.interval.ms": POLL.as_millis().to_string(),
            "subscriptions.overlap.ms": "500",
            "subscriptions.ready.timeout.ms": "30000",
            "subscriptions.retry.backoff.ms": "100",
            "subscriptions.retry.backoff.max.ms": "1000",
            "gap.margin.ms": "1000",
        });
        for (key, value) in settings {
            config[*key] = json!(value);
        }
        config
    }

    /// Asks a worker over its REST API.
    pub(super) async fn ask(
        &self,
        worker: usize,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let (status, text) = self.workers[worker].ask(&self.http, method, path, body).await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// What a worker shows of a metric: its lines, by labels.
    pub(super) async fn metric(&self, worker: usize, name: &str) -> Result<Vec<(String, f64)>> {
        let (_, text) = self.workers[worker].ask(&self.http, "GET", "/metrics", None).await?;
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
        let one = |line: &str| {
            let (labels, value) = line.rsplit_once("} ")?;
            Some((labels.to_owned(), value.parse().ok()?))
        };
        Ok(lines.filter_map(one).collect())
    }

    /// Which worker runs the task, by the word of the first that answers.
    pub(super) async fn runs_on(&self) -> Result<usize> {
        let (_, status) = self.ask(0, "GET", &format!("/connectors/{CONNECTOR}/status"), None).await?;
        let id = status["tasks"][0]["worker_id"].as_str().unwrap_or_default().to_owned();
        let place = self.workers.iter().position(|worker| worker.url().ends_with(&id) && !id.is_empty());
        place.ok_or_else(|| self.workers[0].error(&format!("the task is nowhere: {status}")))
    }

    /// The ledger, followed by this process.
    pub(super) async fn ledger(&self) -> Result<Watched> {
        let worker = Arc::new(config::Worker::load(Some(self.workers[0].config()), []).unwrap().config);
        let ledgers = Ledgers::new(Arc::clone(&worker), Admin::Real(worker.kafka.clone()));
        let (prefix, end) = (TopicPrefix::new(&*self.prefix).unwrap(), Instant::now() + LIMIT);
        loop {
            match ledgers.of(&prefix).await {
                Ok(Some(handle)) => return Ok(Watched { handle, _ledgers: ledgers }),
                _ if Instant::now() < end => sleep(STEP).await,
                other => return Err(self.workers[0].error(&format!("no ledger: {other:?}"))),
            }
        }
    }

    /// Every webhook at the provider that has not ended.
    pub(super) fn webhooks(&self) -> Vec<WebhookTruth> {
        let mut webhooks = self.simulator.provider().accounting.webhooks();
        webhooks.retain(|one| !matches!(one.state, WebhookState::Deleted | WebhookState::Unsubscribed));
        webhooks
    }
}

/// A ledger that is followed.
pub(super) struct Watched {
    handle: Handle,
    _ledgers: Ledgers,
}

impl Watched {
    /// As it stands.
    pub(super) fn now(&self) -> Ledger {
        self.handle.ledger(CONNECTOR)
    }

    /// Writes what a person wishes.
    pub(super) async fn wish(&self, number: u64, removed: bool) {
        let wish = Wish { number, removed, at: Moment::now().micros() };
        self.handle.put(CONNECTOR, &Change::Wish(wish)).await.unwrap();
    }

    /// Waits until it says this.
    pub(super) async fn until(
        &self,
        scene: &Scene,
        what: &str,
        so: impl Fn(&Ledger) -> bool,
    ) -> Result<Ledger> {
        let mut changes = self.handle.changes();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                let ledger = self.now();
                if so(&ledger) {
                    return ledger;
                }
                changes.changed().await.unwrap();
            }
        };
        let said = timeout(LIMIT, waiting).await;
        said.map_err(|_| {
            let log: String = scene.workers.iter().map(|one| one.error("").to_string()).collect();
            Error(format!("not {what}: {:#?}\n{log}", short(&self.now())))
        })
    }
}

/// Phases by target, and what else tells how far things are.
fn short(ledger: &Ledger) -> Vec<String> {
    let subscriptions = ledger.subscriptions.values();
    let mut lines: Vec<String> = subscriptions
        .map(|one| format!("{} {} {:?} {:?}", one.target, one.phase, one.problem, one.history.last()))
        .collect();
    lines.extend(ledger.gaps.values().map(|gap| format!("gap {} {:?} {:?}", gap.id(), gap.to, gap.state)));
    lines.extend(ledger.repairs.keys().map(|gap| format!("repair of {gap}")));
    lines.push(format!("start {}, wish {:?}", ledger.start.is_some(), ledger.wish));
    lines
}

/// Targets that have exactly one living subscription, which is active.
pub(super) fn active(ledger: &Ledger) -> Vec<Target> {
    let living = ledger.subscriptions.values().filter(|one| one.phase.may_live());
    let mut targets: Vec<Target> = living.map(|one| one.target).collect();
    targets.sort();
    let is_active = |target: &Target| {
        let all: Vec<Phase> = ledger.living(*target).map(|one| one.phase).collect();
        all == [Phase::Active]
    };
    targets.into_iter().filter(is_active).collect()
}

/// Makes a certificate for the receivers; its file and that of its key.
fn certificate(directory: &Path) -> Result<(String, String)> {
    let certified = rcgen::generate_simple_self_signed([HOST.to_owned()])
        .map_err(|error| Error(format!("make a certificate: {error}")))?;
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(|error| Error(format!("write {}: {error}", path.display())))
    };
    write(&certificate, certified.cert.pem())?;
    write(&key, certified.signing_key.serialize_pem())?;
    Ok((certificate.display().to_string(), key.display().to_string()))
}
