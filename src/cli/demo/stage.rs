//! The demo while it runs: what can be asked of it and done to it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use kafka::ConsumerRecord;
use model::{AccountingResource, SchemaKind, Topic, TopicPrefix};
use simulator::{
    accounting::{WebhookState, WebhookTruth},
    catalog::Resource,
    deliveries::Entry,
    world::RecordState,
};

use super::{
    invoicing,
    ledger::{Figures, Verdict},
    records::{Enriched, Letters},
    start::{Ground, RunningWorker},
};
use crate::{
    avro,
    cli::{
        Result,
        client::{self, Method},
        outside,
        table::each,
        until,
    },
    config,
    enrich::{Asked, asked},
    telemetry::{Filters, Metrics},
};

pub(super) const PREFIX: &str = "demo";
pub(super) const CONNECTOR: &str = "webhooks";
pub(super) const RECORDS: &str = "records";
pub(super) const PARTITIONS: i32 = 3;
/// What is subscribed to.
pub(super) const RESOURCES: [AccountingResource; 3] =
    [AccountingResource::Customers, AccountingResource::Accounts, AccountingResource::Journals];
/// The most that starting, stopping and reading back may take.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
const PUBLISHED: &str = "tributary_records_published_total{origin=\"webhook\"}";
const ENRICHED: &str = "tributary_records_published_total{origin=\"enrichment\"}";
const SPOOLED: &str = "tributary_spool_entries";
const REFRESHED: [&str; 2] = [
    "tributary_token_refreshes_total{outcome=\"refreshed\"}",
    "tributary_token_refreshes_total{outcome=\"recovered\"}",
];
/// Pause between two looks at how something stands.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// The same where the time itself is measured.
pub(super) const CLOSE_LOOK: Duration = Duration::from_millis(5);

pub(super) struct Stage {
    pub(super) ground: Ground,
    pub(super) rest: client::Worker,
    pub(super) worker: RunningWorker,
    metrics: Metrics,
    /// Changes a second at the provider.
    rate: watch::Sender<f64>,
    _invoicing: AbortOnDropHandle<()>,
}

impl Stage {
    /// A worker on its ground, without a connector, and the logins that its connectors need.
    pub(super) async fn start(
        ground: Ground,
        logs: Filters,
        metrics: &Metrics,
    ) -> Result<(Self, Vec<String>)> {
        let (logins, worker) =
            tokio::try_join!(Box::pin(ground.log_in()), Box::pin(ground.start(logs, metrics)))?;
        let rest = client::Worker::here(worker.admin.clone(), LIMIT)?;
        let (rate, followed) = watch::channel(0.0);
        let invoicing = invoicing::change(Arc::clone(ground.simulator.provider()), followed);
        let invoicing = AbortOnDropHandle::new(tokio::spawn(invoicing));
        let metrics = metrics.clone();
        let stage = Self { ground, rest, worker, metrics, rate, _invoicing: invoicing };
        Ok((stage, logins))
    }

    /// Has the worker run both connectors.
    pub(super) async fn connect(&self) -> Result {
        tokio::try_join!(self.create(CONNECTOR), self.create(RECORDS)).map(drop)
    }

    /// Waits until something is in the spool, or nothing is.
    pub(super) async fn spool_is_empty(&self, is_empty: bool) {
        until(LOOK, async || ((self.figures().spooled == 0) == is_empty).then_some(())).await
    }

    /// Waits until more events are published than these.
    pub(super) async fn published_more(&self, than: u64) {
        until(CLOSE_LOOK, async || (self.figures().published > than).then_some(())).await
    }

    /// Waits until the connector's path is served and all tasks run, which takes a login.
    pub(super) async fn is_running(&self) {
        for connector in [CONNECTOR, RECORDS] {
            let run = async || {
                let status = self.ask(connector, &["status"]).await;
                let states = [&status["connector"]["state"], &status["tasks"][0]["state"]];
                states.iter().all(|state| **state == "RUNNING").then_some(())
            };
            until(LOOK, run).await;
        }
    }

    /// State of the task that receives deliveries.
    pub(super) async fn state(&self) -> String {
        let status = self.ask(CONNECTOR, &["status"]).await;
        status["tasks"][0]["state"].as_str().unwrap_or("UNKNOWN").to_owned()
    }

    /// How often the access token was renewed.
    pub(super) fn refreshes(&self) -> u64 {
        self.values(&REFRESHED).iter().sum()
    }

    /// Waits until every subscription is active that the connector declares: those of accounting, and hooks of invoicing. Returns
    /// how many there are.
    pub(super) async fn subscribed(&self) -> usize {
        let declared = RESOURCES.len() + invoicing::hooks().count();
        let active = async || {
            let told = self.ask(CONNECTOR, &["subscriptions"]).await;
            let all = each(&told["subscriptions"]);
            (all.len() == declared && all.iter().all(|one| one["phase"] == "active")).then_some(declared)
        };
        until(LOOK, active).await
    }

    /// The provider disables a subscription, as it does after deliveries that failed for too long. What was disabled, and after
    /// how many seconds it was enabled again, with a gap whose repair is asked for; `None` where there is none to disable.
    pub(super) async fn disable_one(&self) -> Option<(String, f64)> {
        let provider = self.ground.simulator.provider();
        // Of customers there is a list, so that a reading of it closes the gap.
        let is_meant =
            |one: &WebhookTruth| one.state == WebhookState::Active && one.resource == Resource::Customers;
        let webhook = provider.accounting.webhooks().into_iter().find(is_meant)?;
        let begun = Instant::now();
        provider.accounting.disable(webhook.id);
        let target = until(LOOK, async || {
            let gaps = self.ask(CONNECTOR, &["gaps"]).await;
            let gap = accounting_gap(&gaps).filter(|gap| !gap["repair"].is_null())?;
            Some(gap["target"].as_str().unwrap_or_default().to_owned())
        })
        .await;
        self.subscribed().await;
        Some((target, begun.elapsed().as_secs_f64()))
    }

    /// What the worker reports of a connector; null if it does not answer.
    pub(super) async fn ask(&self, connector: &str, what: &[&str]) -> Value {
        let path = [&["connectors", connector], what].concat();
        self.rest.get(&path, &[]).await.unwrap_or_default()
    }

    /// Requests a run from the connector that fetches.
    pub(super) async fn request(&self, run: &Value) {
        let path = ["connectors", RECORDS, "snapshots"];
        // What came of it is looked at elsewhere.
        self.rest.send(Method::POST, &path, &[], Some(run)).await.ok();
    }

    pub(super) fn change(&self, per_second: f64) {
        self.rate.send_replace(per_second);
        self.ground.simulator.provider().turn(|knobs| knobs.changes_per_second = per_second);
    }

    pub(super) fn set_reachable(&self, reachable: bool) -> Result {
        self.ground.cluster.set_reachable(reachable).map_err(outside)
    }

    pub(super) fn figures(&self) -> Figures {
        let [published, spooled, records] = self.values(&[PUBLISHED, SPOOLED, ENRICHED]);
        Figures { published, spooled, records, ..Figures::of(&self.entries()) }
    }

    /// What these metrics say; 0 for those that say nothing yet.
    fn values<const COUNT: usize>(&self, names: &[&str; COUNT]) -> [u64; COUNT] {
        let rendered = self.metrics.render();
        names.map(|name| {
            let line = rendered.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_default() as u64
        })
    }

    /// Waits until nothing is on its way any more, neither to the worker nor in it. What was delivered until then.
    pub(super) async fn settled(&self) -> Vec<Entry> {
        self.ground.simulator.provider().deliveries.idle().await;
        // A change from before may still be delivered afterwards; it is not counted.
        let entries = self.entries();
        self.spool_is_empty(true).await;
        entries
    }

    fn entries(&self) -> Vec<Entry> {
        let entries = self.ground.simulator.provider().deliveries.entries(0, usize::MAX);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Compares the answers that the provider got with what the topics hold.
    pub(super) async fn verdict(&self, entries: &[Entry]) -> Result<Verdict> {
        let mut records = Vec::new();
        for topic in RESOURCES.map(Topic::AccountingEvents) {
            records.extend(self.read(topic).await?);
        }
        Ok(Verdict::of(entries, &records))
    }

    pub(super) async fn read(&self, topic: Topic) -> Result<Vec<ConsumerRecord>> {
        let name = topic.name(&TopicPrefix::new(PREFIX)?);
        let (partitions, mut records): (Vec<i32>, _) = ((0..PARTITIONS).collect(), Vec::new());
        kafka::read_to_end(&self.ground.cluster.settings(), &name, &partitions, LIMIT, |record| {
            records.push(record)
        })
        .await?;
        Ok(records)
    }

    pub(super) fn decoder(&self) -> Result<avro::Decoder> {
        let registry = config::Registry::open(self.ground.registry.url().clone());
        Ok(avro::Decoder::new(avro::Registry::new(&registry)?))
    }

    /// What was given up until now.
    pub(super) async fn letters(&self) -> Result<Letters> {
        let letters = self.read(Topic::DeadLetters).await?;
        let gone = self.gone();
        let is_of_gone = |letter: &ConsumerRecord| {
            let company = letter.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
            company.is_some_and(|company| gone.contains(company))
        };
        let of_deleted = letters.iter().filter(|letter| is_of_gone(letter)).count();
        Ok(Letters { given_up: letters.len() - of_deleted, of_deleted })
    }

    /// Companies that the provider has deleted. Their records can no longer be read either.
    fn gone(&self) -> BTreeSet<String> {
        let world = self.ground.simulator.provider().world();
        let companies = world.records(Resource::Companies);
        let gone = companies.filter(|(_, row)| row.state == RecordState::Deleted);
        gone.map(|(place, _)| world.id(place)).collect()
    }

    /// Waits until every record is as new as the last event of it, or the time is up. How they compare.
    pub(super) async fn enriched(&self, limit: Duration) -> Result<Enriched> {
        let end = Instant::now() + limit;
        loop {
            let enriched = self.compare_records().await?;
            if enriched.is_current() || Instant::now() >= end {
                return Ok(enriched);
            }
            sleep(LOOK).await;
        }
    }

    async fn compare_records(&self) -> Result<Enriched> {
        let decoder = self.decoder()?;
        let (mut events, mut published) = (Vec::new(), Vec::new());
        let (companies, mut gone) = (self.gone(), BTreeSet::new());
        for resource in RESOURCES {
            let topic = Topic::AccountingRecords(resource);
            published.extend(self.read(topic).await?.into_iter().map(|record| (topic, record)));
            for event in self.read(Topic::AccountingEvents(resource)).await? {
                let value = event.value.unwrap_or_default();
                let (_, event) = decoder.decode_as(SchemaKind::AccountingEvent, &value).await?;
                if let Asked::Wanted(wanted) = asked(event)
                    && let Some(version) = wanted.floor
                {
                    let key = wanted.subject.key().as_str().to_owned();
                    if companies.contains(wanted.subject.company.as_str()) {
                        gone.insert(key.clone());
                    }
                    events.push((topic, key, version));
                }
            }
        }
        Ok(Enriched::of(&events, &published, &gone))
    }

    pub(super) async fn stop(self) -> Result {
        self.worker.stop.cancel();
        let ended = timeout(LIMIT, self.worker.running).await?;
        self.ground.simulator.stop().await;
        ended?.map_err(outside)
    }
}

/// The first gap of a subscription of accounting: of what an invoicing hook missed there is no list.
pub(super) fn accounting_gap(gaps: &Value) -> Option<&Value> {
    let is_accounting =
        |gap: &&Value| gap["target"].as_str().is_some_and(|one| one.starts_with("accounting/"));
    gaps.as_array()?.iter().find(is_accounting)
}
