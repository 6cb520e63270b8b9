//! Worker processes and the simulated provider, with the records of both sides: the tokens that the provider was shown, and the
//! grants in the topic.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use kafka::{ConsumerRecord, read_to_end};
use provider::{
    auth::grant::Grant,
    auth::seal::{Envelope, Keyring},
};
use serde_json::{Value, json};
use simulator::{
    identity::{Exchange, ExchangeKind},
    settings::Settings,
};
use tokio::time::sleep;
use tributary::config;

use super::cluster::{KEY as ENCRYPTION_KEY, LIMIT};
use crate::product::simulator::{KEY, start};
use crate::support::command::{stdout, tributary};
use crate::support::login::{http, parameter};
use crate::support::stage::{Backend, STEP, Stage};
use crate::support::tributary::Tributary;
use crate::support::{Result, lost, prefix};

/// Limit for a task to reach a state.
const TASK_LIMIT: Duration = Duration::from_secs(60);

/// A provider whose clock runs, and workers of one group.
pub(super) struct GrantScene {
    pub(super) stage: Stage,
}

/// One record of a grant in the topic.
#[derive(Debug, Clone)]
pub(super) struct CommittedGrant {
    /// When, in milliseconds since 1970 by the writer's clock.
    pub(super) at_ms: i64,
    pub(super) grant: Grant,
}

/// The status of all grants, by name.
pub(super) type ReportedGrants = BTreeMap<String, ReportedGrant>;

/// The status of a grant, as a worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReportedGrant {
    pub(super) state: String,
    pub(super) serial: u64,
    pub(super) problem: String,
}

impl GrantScene {
    /// `count` healthy workers, with `properties` over those they need.
    pub(super) async fn start(
        backend: impl Into<Backend>,
        name: &str,
        count: usize,
        properties: &[(&str, &str)],
        adjust: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let simulator = start(|settings| {
            settings.frozen_at = None;
            adjust(settings);
        })
        .await;
        let (backend, group) = (backend.into(), prefix(name));
        let needed = [
            ("grant.encryption.key", ENCRYPTION_KEY),
            ("value.converter.schema.registry.url", &*backend.registry),
            ("log.filter", "info,tributary::logins=debug"),
        ];
        let lines = [&needed[..], properties].concat();
        let workers = (0..count).map(|_| Tributary::start_in(&group, &backend.bootstrap, name, &lines));
        let workers = try_join_all(workers).await?;
        Ok(Self { stage: Stage { simulator, workers, group, http: http() } })
    }

    /// Configures a connector that receives customers, with a grant of the same name and these additional settings.
    pub(super) async fn connect(&self, name: &str, settings: &[(&str, &str)]) -> Result<()> {
        let address = self.stage.simulator.base_url().to_string();
        let mut config = json!({
            "connector.class": "WebhookSource",
            "topic.prefix": format!("{}-{name}", self.stage.group),
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
            "accounting.resources": "customers",
            "accounting.secret": "0123456789abcdef-first",
            "subscriptions.manage": "false",
            "provider.base.url": address,
            "provider.auth.url": address,
            "provider.subscription.key": KEY,
            "oauth.client.id": "simulated-client",
            "oauth.client.secret": "simulated-secret",
            "accounting.oauth.grant": name,
        });
        for (key, value) in settings {
            config[*key] = json!(value);
        }
        self.stage.configure(name, &config).await
    }

    /// Logs in for a connector; the provider's number of the grant.
    pub(super) async fn log_in(&self, connector: &str) -> Result<u64> {
        let code = parameter(&self.stage.login(connector).await?, "code");
        let mut exchanges = self.exchanges().into_iter();
        let redeemed =
            exchanges.find(|exchange| exchange.kind == ExchangeKind::Code && exchange.token == code).unwrap();
        Ok(redeemed.grant.unwrap())
    }

    /// Logs in for several connectors at once.
    pub(super) async fn log_in_all(&self, connectors: &[&str]) -> Result<Vec<u64>> {
        try_join_all(connectors.iter().map(|connector| self.log_in(connector))).await
    }

    /// The token exchanges at the provider, in order.
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        let exchanges = self.stage.simulator.provider().identity.exchanges(0, usize::MAX);
        exchanges.into_iter().map(|(_, exchange)| exchange).collect()
    }

    /// The text that a worker answers at this path.
    pub(super) async fn text(&self, worker: usize, path: &str) -> Result<String> {
        self.stage.workers[worker].ask(&self.stage.http, "GET", path, None).await.map(|(_, text)| text)
    }

    /// The status of all grants with a login, as a worker reports it.
    pub(super) async fn reported(&self, worker: usize) -> Result<ReportedGrants> {
        let (_, health) = self.stage.ask(worker, "GET", "/health", None).await?;
        let grants = health["grants"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let one = |grant: &Value| {
            let serial = grant["serial"].as_u64()?;
            let reported =
                ReportedGrant { state: text(&grant["state"]), serial, problem: text(&grant["problem"]) };
            Some((text(&grant["name"]), reported))
        };
        Ok(grants.iter().filter_map(one).collect())
    }

    /// Waits until this holds for the grants that a worker reports.
    pub(super) async fn until(
        &self,
        worker: usize,
        what: &str,
        limit: Duration,
        so: impl Fn(&ReportedGrants) -> bool,
    ) -> Result<ReportedGrants> {
        let began = Instant::now();
        loop {
            // A request may fail on a busy machine; the next one may succeed.
            let reported = match self.reported(worker).await {
                Ok(reported) if so(&reported) => return Ok(reported),
                reported => reported,
            };
            if lost::fair(began) > limit || !self.stage.workers[worker].runs() {
                return Err(self.stage.workers[worker].error(&format!("not {what}: {reported:?}")));
            }
            sleep(STEP).await;
        }
    }

    /// Every committed record of each grant, in order.
    pub(super) async fn written(&self) -> BTreeMap<String, Vec<CommittedGrant>> {
        let worker = config::Worker::load(Some(self.stage.workers[0].config()), []).unwrap().config;
        let keys = Keyring::new(&ENCRYPTION_KEY.into(), None, &worker.group.id).unwrap();
        let topic = &worker.topics.grant;
        let partitions: Vec<i32> = (0..topic.partitions).collect();
        let mut written: BTreeMap<String, Vec<CommittedGrant>> = BTreeMap::new();
        let each = |record: ConsumerRecord| {
            let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
            let Some(name) = key.strip_prefix("grant/") else { return };
            let envelope: Envelope = serde_json::from_slice(&record.value.unwrap()).unwrap();
            let grant = keys.open(&key, &envelope).unwrap();
            let one = CommittedGrant { at_ms: record.timestamp_ms.unwrap(), grant };
            written.entry(name.to_owned()).or_default().push(one);
        };
        read_to_end(&worker.kafka, &topic.name, &partitions, LIMIT, each).await.unwrap();
        written
    }

    /// Waits until the first task of a connector is in this state; its trace.
    pub(super) async fn until_task(&self, connector: &str, state: &str) -> Result<String> {
        let (path, began) = (format!("/connectors/{connector}/status"), Instant::now());
        loop {
            let status = self.stage.ask(0, "GET", &path, None).await;
            let task = status.as_ref().map(|(_, status)| status["tasks"][0].clone()).unwrap_or_default();
            if task["state"] == state {
                return Ok(task["trace"].as_str().unwrap_or_default().to_owned());
            }
            if lost::fair(began) > TASK_LIMIT || !self.stage.workers[0].runs() {
                return Err(self.stage.workers[0].error(&format!("the task is not {state}: {status:?}")));
            }
            sleep(STEP).await;
        }
    }

    /// Runs `auth` with these arguments: exit code and output.
    pub(super) async fn auth(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let config = self.stage.workers[0].config().display().to_string();
        let output = tributary(&[&["auth"], arguments, &["--config", &config]].concat(), &[]).await;
        (output.status.code(), stdout(&output))
    }
}
