//! Workers as processes of their own, the simulated provider, and both sides' books: what the provider was shown, and what stood
//! in the topic.

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
    identity::{Exchange, Kind},
    settings::Settings,
};
use tokio::time::sleep;
use tributary::config;

use super::ground::{KEY as ENCRYPTION_KEY, LIMIT};
use crate::product::simulator::{KEY, start};
use crate::support::command::{stdout, tributary};
use crate::support::login::{http, parameter};
use crate::support::stage::{Ground, STEP, Stage};
use crate::support::tributary::Tributary;
use crate::support::{Result, lost, prefix};

/// A provider whose clock runs, and workers of one group.
pub(super) struct Scene {
    pub(super) stage: Stage,
}

/// One record of a grant in the topic.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// When, in milliseconds since 1970 by the writer's clock.
    pub(super) at_ms: i64,
    pub(super) grant: Grant,
}

/// How all grants stand, by name.
pub(super) type All = BTreeMap<String, Standing>;

/// How a grant stands by the word of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) state: String,
    pub(super) serial: u64,
    pub(super) problem: String,
}

impl Scene {
    /// So many healthy workers, with these lines of properties over those they need.
    pub(super) async fn start(
        ground: impl Into<Ground>,
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
        let (ground, group) = (ground.into(), prefix(name));
        let needed = [
            ("grant.encryption.key", ENCRYPTION_KEY),
            ("value.converter.schema.registry.url", &*ground.registry),
            ("log.filter", "info,tributary::worker::grants=debug"),
        ];
        let lines = [&needed[..], properties].concat();
        let workers = (0..count).map(|_| Tributary::start_in(&group, &ground.bootstrap, name, &lines));
        let workers = try_join_all(workers).await?;
        Ok(Self { stage: Stage { simulator, workers, group, http: http() } })
    }

    /// Has a connector, with a grant of the same name, that receives customers and has these settings too.
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

    /// A person logs in for a connector; the provider's number of the grant.
    pub(super) async fn log_in(&self, connector: &str) -> Result<u64> {
        let code = parameter(&self.stage.login(connector).await?, "code");
        let mut exchanges = self.exchanges().into_iter();
        let redeemed =
            exchanges.find(|exchange| exchange.kind == Kind::Code && exchange.token == code).unwrap();
        Ok(redeemed.grant.unwrap())
    }

    /// The same for several at once.
    pub(super) async fn log_in_all(&self, connectors: &[&str]) -> Result<Vec<u64>> {
        try_join_all(connectors.iter().map(|connector| self.log_in(connector))).await
    }

    /// What the provider was shown, in order.
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        let exchanges = self.stage.simulator.provider().identity.exchanges(0, usize::MAX);
        exchanges.into_iter().map(|(_, exchange)| exchange).collect()
    }

    /// What a worker answers there, to the letter.
    pub(super) async fn text(&self, worker: usize, path: &str) -> Result<String> {
        self.stage.workers[worker].ask(&self.stage.http, "GET", path, None).await.map(|(_, text)| text)
    }

    /// How the grants stand that anybody has logged in for, as a worker says.
    pub(super) async fn standing(&self, worker: usize) -> Result<BTreeMap<String, Standing>> {
        let (_, health) = self.stage.ask(worker, "GET", "/health", None).await?;
        let grants = health["grants"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let one = |grant: &Value| {
            let serial = grant["serial"].as_u64()?;
            let standing =
                Standing { state: text(&grant["state"]), serial, problem: text(&grant["problem"]) };
            Some((text(&grant["name"]), standing))
        };
        Ok(grants.iter().filter_map(one).collect())
    }

    /// Waits until a worker says this of the grants.
    pub(super) async fn until(
        &self,
        worker: usize,
        what: &str,
        limit: Duration,
        so: impl Fn(&BTreeMap<String, Standing>) -> bool,
    ) -> Result<BTreeMap<String, Standing>> {
        let began = Instant::now();
        loop {
            // A worker that the machine gives no time to answer may answer the next time.
            let standing = match self.standing(worker).await {
                Ok(standing) if so(&standing) => return Ok(standing),
                standing => standing,
            };
            if lost::fair(began) > limit || !self.stage.workers[worker].runs() {
                return Err(self.stage.workers[worker].error(&format!("not {what}: {standing:?}")));
            }
            sleep(STEP).await;
        }
    }

    /// Everything that was ever committed of each grant, in order.
    pub(super) async fn written(&self) -> BTreeMap<String, Vec<Written>> {
        let worker = config::Worker::load(Some(self.stage.workers[0].config()), []).unwrap().config;
        let keys = Keyring::new(&ENCRYPTION_KEY.into(), None, &worker.group.id).unwrap();
        let topic = &worker.topics.grant;
        let partitions: Vec<i32> = (0..topic.partitions).collect();
        let mut written: BTreeMap<String, Vec<Written>> = BTreeMap::new();
        let each = |record: ConsumerRecord| {
            let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
            let Some(name) = key.strip_prefix("grant/") else { return };
            let envelope: Envelope = serde_json::from_slice(&record.value.unwrap()).unwrap();
            let grant = keys.open(&key, &envelope).unwrap();
            let one = Written { at_ms: record.timestamp_ms.unwrap(), grant };
            written.entry(name.to_owned()).or_default().push(one);
        };
        read_to_end(&worker.kafka, &topic.name, &partitions, LIMIT, each).await.unwrap();
        written
    }

    /// What `auth` says with these arguments: exit code and output.
    pub(super) async fn auth(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let config = self.stage.workers[0].config().display().to_string();
        let output = tributary(&[&["auth"], arguments, &["--config", &config]].concat(), &[]).await;
        (output.status.code(), stdout(&output))
    }
}
