//! A [`Stage`] with one connector that subscribes, and a view of the provider's webhooks and of the ledger.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka::Admin;
use model::{Moment, SubscriptionCommand, SubscriptionPhase, Target, TopicPrefix};
use serde_json::{Value, json};
use simulator::{
    accounting::{WebhookState, WebhookTruth},
    settings::Settings,
};
use tokio::time::sleep;
use tributary::{
    config,
    state::{
        state_topic::{StateTopic, StateTopics},
        subscriptions::{SubscriptionChange, SubscriptionState},
    },
};

pub(super) use crate::support::stage::{HOST, LIMIT};
use crate::{
    product::simulator::{KEY, start},
    support::{
        Error, Result, Shared, lost,
        stage::{STEP, Stage, delivering},
    },
};

pub(super) const CONNECTOR: &str = "hooks";
/// `subscriptions.poll.interval.ms`.
pub(super) const POLL: Duration = Duration::from_millis(300);
pub(super) const SECRET: &str = "0123456789abcdef-first";

/// A provider whose clock runs, workers of one group, and one connector.
pub(super) struct SubscriptionScene {
    pub(super) stage: Stage,
    pub(super) prefix: String,
}

impl SubscriptionScene {
    /// `count` healthy workers that receive; the provider delivers to the first.
    pub(super) async fn start(
        shared: &Shared,
        name: &str,
        count: usize,
        adjust: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let properties = [
            // Short, since a restarted worker waits for the session of the killed one.
            ("session.timeout.ms", "2500"),
            ("heartbeat.interval.ms", "500"),
            ("secrets.reload.interval.ms", "1000"),
            ("log.filter", "info,tributary::webhooks::reconciler=debug"),
        ];
        let simulator = start(|settings| {
            delivering(settings);
            adjust(settings);
        })
        .await;
        let stage = Stage::start(&shared.into(), name, count, &properties, simulator).await?;
        let prefix = format!("{}-{CONNECTOR}", stage.group);
        Ok(Self { stage, prefix })
    }

    /// Sets the host name of the receivers, which they use after a restart.
    pub(super) fn rename(&self, host: &str) -> Result<()> {
        let failed = |error: std::io::Error| Error(format!("rename: {error}"));
        for worker in &self.stage.workers {
            let text = fs::read_to_string(worker.config()).map_err(failed)?;
            let line = |line: &str| match line.strip_prefix("webhook.advertised.url=") {
                Some(_) => format!("webhook.advertised.url=https://{host}\n"),
                None => format!("{line}\n"),
            };
            fs::write(worker.config(), text.lines().map(line).collect::<String>()).map_err(failed)?;
        }
        Ok(())
    }

    /// Configures the connector with these settings over those it needs, and logs in for it.
    pub(super) async fn connect(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.configure(settings).await?;
        self.stage.login(CONNECTOR).await.map(drop)
    }

    /// Configures the connector with these settings.
    pub(super) async fn configure(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.stage.configure(CONNECTOR, &self.config(settings)).await
    }

    /// The connector's configuration with these settings over those it needs.
    pub(super) fn config(&self, settings: &[(&str, &str)]) -> Value {
        let address = self.stage.simulator.base_url().to_string();
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

    /// The worker that runs the task.
    pub(super) async fn runs_on(&self) -> Result<usize> {
        let tasks = self.stage.runs_on(0, CONNECTOR).await?;
        let worker = tasks.first().copied().flatten();
        worker.ok_or_else(|| self.stage.error("no worker runs the task"))
    }

    /// The ledger, followed by this process.
    pub(super) async fn ledger(&self) -> Result<FollowedLedger> {
        self.ledger_of(CONNECTOR).await
    }

    /// The same for another connector with this prefix.
    pub(super) async fn ledger_of(&self, connector: &'static str) -> Result<FollowedLedger> {
        let worker = Arc::new(config::Worker::load(Some(self.stage.workers[0].config()), []).unwrap().config);
        let state_topics = StateTopics::new(Arc::clone(&worker), Admin::Real(worker.kafka.clone()));
        let (prefix, began) = (TopicPrefix::new(&*self.prefix).unwrap(), Instant::now());
        loop {
            match state_topics.of(&prefix).await {
                Ok(Some(handle)) => {
                    return Ok(FollowedLedger { handle, connector, _state_topics: state_topics });
                }
                _ if lost::fair(began) < LIMIT => sleep(STEP).await,
                other => return Err(self.stage.workers[0].error(&format!("no ledger: {other:?}"))),
            }
        }
    }

    /// Every webhook at the provider that has not ended.
    pub(super) fn webhooks(&self) -> Vec<WebhookTruth> {
        let mut webhooks = self.stage.simulator.provider().accounting.webhooks();
        webhooks.retain(|one| !matches!(one.state, WebhookState::Deleted | WebhookState::Unsubscribed));
        webhooks
    }
}

/// A ledger that this process follows.
pub(super) struct FollowedLedger {
    handle: StateTopic,
    connector: &'static str,
    _state_topics: StateTopics,
}

impl FollowedLedger {
    /// The present ledger.
    pub(super) fn now(&self) -> SubscriptionState {
        self.handle.subscriptions(self.connector)
    }

    /// Requests to apply or remove.
    pub(super) async fn command(&self, number: u64, removed: bool) {
        let command = SubscriptionCommand { number, removed, at: Moment::now().micros() };
        let change = SubscriptionChange::Command(command);
        self.handle.put(&change.key(self.connector), change.value().as_ref()).await.unwrap();
    }

    /// Waits until this holds for the ledger.
    pub(super) async fn until(
        &self,
        scene: &SubscriptionScene,
        what: &str,
        holds: impl Fn(&SubscriptionState) -> bool,
    ) -> Result<SubscriptionState> {
        let mut changes = self.handle.changes();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                let ledger = self.now();
                if holds(&ledger) {
                    return ledger;
                }
                changes.changed().await.unwrap();
            }
        };
        let found = lost::timeout(LIMIT, waiting).await;
        found.ok_or_else(|| scene.stage.error(&format!("not {what}: {:#?}", short(&self.now()))))
    }
}

/// A summary of a ledger for error messages.
fn short(ledger: &SubscriptionState) -> Vec<String> {
    let subscriptions = ledger.subscriptions.values();
    let mut lines: Vec<String> = subscriptions
        .map(|one| format!("{} {} {:?} {:?}", one.target, one.phase, one.problem, one.history.last()))
        .collect();
    lines.extend(ledger.gaps.values().map(|gap| format!("gap {} {:?} {:?}", gap.id(), gap.to, gap.state)));
    lines.extend(ledger.repairs.keys().map(|gap| format!("repair of {gap}")));
    lines.push(format!("start {}, command {:?}", ledger.start.is_some(), ledger.requests.command));
    lines
}

/// Targets that have exactly one living subscription, which is active.
pub(super) fn active(ledger: &SubscriptionState) -> Vec<Target> {
    let living = ledger.subscriptions.values().filter(|one| one.phase.may_live());
    let mut targets: Vec<Target> = living.map(|one| one.target).collect();
    targets.sort();
    let is_active = |target: &Target| {
        let all: Vec<SubscriptionPhase> = ledger.living(*target).map(|one| one.phase).collect();
        all == [SubscriptionPhase::Active]
    };
    targets.into_iter().filter(is_active).collect()
}
