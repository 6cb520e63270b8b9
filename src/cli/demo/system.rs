//! The running demo: queries and actions.

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
    deliveries::JournalEntry,
    world::RecordState,
};

use super::{
    deliveries::{DeliveryCheck, DeliveryFigures},
    invoicing,
    records::{DeadLetterCounts, RecordCheck},
    start::{DemoServices, RunningWorker},
};
use crate::{
    avro,
    cli::{
        Result,
        client::{self, Method},
        outside, poll_until,
        table::each,
    },
    config,
    records::schedule::ReadRequest,
    telemetry::{Filters, Metrics},
};

pub(super) const PREFIX: &str = "demo";
pub(super) const CONNECTOR: &str = "webhooks";
pub(super) const RECORDS: &str = "records";
pub(super) const PARTITIONS: i32 = 3;
/// Accounting resources with subscriptions.
pub(super) const RESOURCES: [AccountingResource; 3] =
    [AccountingResource::Customers, AccountingResource::Accounts, AccountingResource::Journals];
/// Time limit for starting, stopping and reading back.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
const PUBLISHED: &str = "tributary_records_published_total{origin=\"webhook\"}";
const ENRICHED: &str = "tributary_records_published_total{origin=\"enrichment\"}";
const SPOOLED: &str = "tributary_spool_entries";
const REFRESHED: [&str; 2] = [
    "tributary_token_refreshes_total{outcome=\"refreshed\"}",
    "tributary_token_refreshes_total{outcome=\"recovered\"}",
];
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Poll interval where the elapsed time is reported.
pub(super) const FAST_POLL: Duration = Duration::from_millis(5);

pub(super) struct DemoSystem {
    pub(super) services: DemoServices,
    pub(super) rest: client::RestClient,
    pub(super) worker: RunningWorker,
    metrics: Metrics,
    /// Changes per second at the provider.
    rate: watch::Sender<f64>,
    _invoicing: AbortOnDropHandle<()>,
}

impl DemoSystem {
    /// Starts a worker without connectors, and does the logins that they need.
    pub(super) async fn start(
        services: DemoServices,
        logs: Filters,
        metrics: &Metrics,
    ) -> Result<(Self, Vec<String>)> {
        let (logins, worker) =
            tokio::try_join!(Box::pin(services.log_in()), Box::pin(services.start(logs, metrics)))?;
        let rest = client::RestClient::local(worker.admin.clone(), TIMEOUT)?;
        let (rate, followed) = watch::channel(0.0);
        let invoicing = invoicing::change(Arc::clone(services.simulator.provider()), followed);
        let invoicing = AbortOnDropHandle::new(tokio::spawn(invoicing));
        let metrics = metrics.clone();
        let system = Self { services, rest, worker, metrics, rate, _invoicing: invoicing };
        Ok((system, logins))
    }

    /// Creates both connectors.
    pub(super) async fn connect(&self) -> Result {
        tokio::try_join!(self.create(CONNECTOR), self.create(RECORDS)).map(drop)
    }

    /// Waits until the spool is empty, or not empty.
    pub(super) async fn spool_is_empty(&self, is_empty: bool) {
        poll_until(POLL_INTERVAL, async || ((self.figures().spooled == 0) == is_empty).then_some(())).await
    }

    /// Waits until more than this number of events is published.
    pub(super) async fn published_more(&self, than: u64) {
        poll_until(FAST_POLL, async || (self.figures().published > than).then_some(())).await
    }

    /// Waits until both connectors and their tasks are running.
    pub(super) async fn is_running(&self) {
        for connector in [CONNECTOR, RECORDS] {
            let run = async || {
                let status = self.ask(connector, &["status"]).await;
                let states = [&status["connector"]["state"], &status["tasks"][0]["state"]];
                states.iter().all(|state| **state == "RUNNING").then_some(())
            };
            poll_until(POLL_INTERVAL, run).await;
        }
    }

    /// State of the task that receives deliveries.
    pub(super) async fn state(&self) -> String {
        let status = self.ask(CONNECTOR, &["status"]).await;
        status["tasks"][0]["state"].as_str().unwrap_or("UNKNOWN").to_owned()
    }

    /// Number of token refreshes.
    pub(super) fn refreshes(&self) -> u64 {
        self.values(&REFRESHED).iter().sum()
    }

    /// Waits until all declared subscriptions and hooks are active, and returns their number.
    pub(super) async fn subscribed(&self) -> usize {
        let declared = RESOURCES.len() + invoicing::hooks().count();
        let active = async || {
            let found = self.ask(CONNECTOR, &["subscriptions"]).await;
            let all = each(&found["subscriptions"]);
            (all.len() == declared && all.iter().all(|one| one["phase"] == "active")).then_some(declared)
        };
        poll_until(POLL_INTERVAL, active).await
    }

    /// Disables a subscription, as the provider does after failed deliveries. Returns the target and the seconds until it was enabled
    /// again, with a gap whose repair is requested; `None` if there is none to disable.
    pub(super) async fn disable_one(&self) -> Option<(String, f64)> {
        let provider = self.services.simulator.provider();
        // Customers have a list, so reading it closes the gap.
        let is_meant =
            |one: &WebhookTruth| one.state == WebhookState::Active && one.resource == Resource::Customers;
        let webhook = provider.accounting.webhooks().into_iter().find(is_meant)?;
        let start = Instant::now();
        provider.accounting.disable(webhook.id);
        let target = poll_until(POLL_INTERVAL, async || {
            let gaps = self.ask(CONNECTOR, &["gaps"]).await;
            let gap = accounting_gap(&gaps).filter(|gap| !gap["repair"].is_null())?;
            Some(gap["target"].as_str().unwrap_or_default().to_owned())
        })
        .await;
        self.subscribed().await;
        Some((target, start.elapsed().as_secs_f64()))
    }

    /// The worker's answer about a connector; null if it does not answer.
    pub(super) async fn ask(&self, connector: &str, what: &[&str]) -> Value {
        let path = [&["connectors", connector], what].concat();
        self.rest.get(&path, &[]).await.unwrap_or_default()
    }

    /// Requests a run of the `RecordSource`.
    pub(super) async fn request(&self, run: &Value) {
        let path = ["connectors", RECORDS, "snapshots"];
        // The caller polls the run.
        self.rest.send(Method::POST, &path, &[], Some(run)).await.ok();
    }

    /// Sets the rate of changes at the provider. After 0 no change follows: each asks for the rate with the world locked.
    pub(super) fn change(&self, per_second: f64) {
        let provider = self.services.simulator.provider();
        self.rate.send_replace(per_second);
        provider.turn(|knobs| knobs.changes_per_second = per_second);
        drop(provider.world());
    }

    pub(super) fn set_reachable(&self, reachable: bool) -> Result {
        self.services.cluster.set_reachable(reachable).map_err(outside)
    }

    pub(super) fn figures(&self) -> DeliveryFigures {
        let [published, spooled, records] = self.values(&[PUBLISHED, SPOOLED, ENRICHED]);
        DeliveryFigures { published, spooled, records, ..DeliveryFigures::of(&self.entries()) }
    }

    /// Values of metrics; 0 for those without a value.
    fn values<const COUNT: usize>(&self, names: &[&str; COUNT]) -> [u64; COUNT] {
        let rendered = self.metrics.render();
        names.map(|name| {
            let line = rendered.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_default() as u64
        })
    }

    /// Waits until no delivery is in flight and the spool is empty. Returns the journal until then.
    pub(super) async fn settled(&self) -> Vec<JournalEntry> {
        self.services.simulator.provider().deliveries.idle().await;
        // Later deliveries are not counted.
        let entries = self.entries();
        self.spool_is_empty(true).await;
        entries
    }

    fn entries(&self) -> Vec<JournalEntry> {
        let entries = self.services.simulator.provider().deliveries.entries(0, usize::MAX);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Compares the answered deliveries with the topics.
    pub(super) async fn delivery_check(&self, entries: &[JournalEntry]) -> Result<DeliveryCheck> {
        let mut records = Vec::new();
        for topic in RESOURCES.map(Topic::AccountingEvents) {
            records.extend(self.read(topic).await?);
        }
        Ok(DeliveryCheck::of(entries, &records))
    }

    pub(super) async fn read(&self, topic: Topic) -> Result<Vec<ConsumerRecord>> {
        let name = topic.name(&TopicPrefix::new(PREFIX)?);
        let (partitions, mut records): (Vec<i32>, _) = ((0..PARTITIONS).collect(), Vec::new());
        kafka::read_to_end(&self.services.cluster.settings(), &name, &partitions, TIMEOUT, |record| {
            records.push(record)
        })
        .await?;
        Ok(records)
    }

    pub(super) fn decoder(&self) -> Result<avro::Decoder> {
        let registry = config::RegistrySettings::open(self.services.registry.url().clone());
        Ok(avro::Decoder::new(avro::Registry::new(&registry)?))
    }

    /// Counts dead letters.
    pub(super) async fn letters(&self) -> Result<DeadLetterCounts> {
        let letters = self.read(Topic::DeadLetters).await?;
        let gone = self.gone();
        let is_of_gone = |letter: &ConsumerRecord| {
            let company = letter.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
            company.is_some_and(|company| gone.contains(company))
        };
        let of_deleted = letters.iter().filter(|letter| is_of_gone(letter)).count();
        Ok(DeadLetterCounts { given_up: letters.len() - of_deleted, of_deleted })
    }

    /// Companies that the provider has deleted; their records can no longer be read.
    fn gone(&self) -> BTreeSet<String> {
        let world = self.services.simulator.provider().world();
        let companies = world.records(Resource::Companies);
        let gone = companies.filter(|(_, row)| row.state == RecordState::Deleted);
        gone.map(|(place, _)| world.id(place)).collect()
    }

    /// Compares records with events until every record is as new as its last event, or the time limit.
    pub(super) async fn enriched(&self, limit: Duration) -> Result<RecordCheck> {
        let end = Instant::now() + limit;
        loop {
            let enriched = self.compare_records().await?;
            if enriched.is_current() || Instant::now() >= end {
                return Ok(enriched);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn compare_records(&self) -> Result<RecordCheck> {
        let decoder = self.decoder()?;
        let (mut events, mut published) = (Vec::new(), Vec::new());
        let (companies, mut gone) = (self.gone(), BTreeSet::new());
        for resource in RESOURCES {
            let topic = Topic::AccountingRecords(resource);
            published.extend(self.read(topic).await?.into_iter().map(|record| (topic, record)));
            for event in self.read(Topic::AccountingEvents(resource)).await? {
                let value = event.value.unwrap_or_default();
                let (_, event) = decoder.decode_as(SchemaKind::AccountingEvent, &value).await?;
                if let ReadRequest::Wanted(wanted) = ReadRequest::of(event)
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
        Ok(RecordCheck::of(&events, &published, &gone))
    }

    pub(super) async fn stop(self) -> Result {
        self.worker.stop.cancel();
        let ended = timeout(TIMEOUT, self.worker.running).await?;
        self.services.simulator.stop().await;
        ended?.map_err(outside)
    }
}

/// The first gap of an accounting subscription. Gaps of invoicing hooks cannot be repaired, since there is no list.
pub(super) fn accounting_gap(gaps: &Value) -> Option<&Value> {
    let is_accounting =
        |gap: &&Value| gap["target"].as_str().is_some_and(|one| one.starts_with("accounting/"));
    gaps.as_array()?.iter().find(is_accounting)
}
