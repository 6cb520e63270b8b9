//! A [`Stage`] with a `WebhookSource` that receives events and a `RecordSource` that fetches the records behind them.
//!
//! It changes records at the provider and waits until all events are done. It observes workers from outside only: by REST, topics,
//! and the provider's journal and control.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka::ConsumerRecord;
use model::{AccountingResource, Topic, TopicPrefix};
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};
use simulator::{
    SimulatedProvider,
    accounting::WebhookState,
    catalog::{Kind, Resource},
    gateway::Request,
    knobs::Latency,
    settings::Settings,
    world::{CompanyNumber, Place, RecordChange, RecordState, WorldChange, WorldRow},
};
use tokio::time::sleep;

use super::checker::{EnrichVerdict, Evidence, RecordName, check};
use super::evidence;
use super::load::{ChangeLoad, Mix, act, create, living};
use crate::product::simulator::{KEY, start};
use crate::support::reader::Reader;
use crate::support::stage::{Backend, LIMIT, STEP, Stage, delivering};
use crate::support::{Error, Result, lost};

/// The `WebhookSource`.
pub(super) const HOOKS: &str = "hooks";
/// The `RecordSource`.
pub(super) const RECORDS: &str = "records";
/// Partitions of every topic of the prefix, and so shards.
pub(super) const PARTITIONS: i32 = 4;
/// `tombstones.confirm.ms`.
pub(super) const CONFIRM: Duration = Duration::from_secs(1);

/// All intervals, so short that a test sees their effect.
const SHORT: [(&str, &str); 9] = [
    ("enrich.window.ms", "50"),
    ("enrich.retry.backoff.ms", "50"),
    ("enrich.retry.backoff.max.ms", "500"),
    ("enrich.park.after.ms", "1500"),
    ("enrich.parked.backoff.ms", "500"),
    ("enrich.parked.backoff.max.ms", "1000"),
    ("companies.refresh.interval.ms", "60000"),
    ("tombstones.confirm.ms", "1000"),
    // Longer than any replica lags here.
    ("epoch.confirm.ms", "7200000"),
];

/// Two connectors of one prefix, their workers and the provider.
pub(super) struct EnrichScene {
    pub(super) stage: Stage,
    pub(super) backend: Backend,
    pub(super) prefix: TopicPrefix,
    /// The resources that are subscribed to and fetched.
    pub(super) resources: Vec<Resource>,
    producer: FutureProducer,
    pub(super) reader: Reader,
}

/// How a scene differs from the default.
pub(super) struct Options<'a> {
    pub(super) workers: usize,
    pub(super) resources: &'a [Resource],
    /// Properties of the workers.
    pub(super) properties: &'a [(&'a str, &'a str)],
    /// Settings of the `RecordSource`.
    pub(super) settings: &'a [(&'a str, &'a str)],
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            workers: 1,
            resources: &[Resource::Customers, Resource::Journals],
            properties: &[],
            settings: &[],
        }
    }
}

impl EnrichScene {
    /// Configures both connectors and logs in; waits until all subscriptions are active and all tasks run.
    pub(super) async fn start(
        backend: Backend,
        name: &str,
        options: Options<'_>,
        adjust: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let scene = Self::prepare(backend, name, &options, adjust).await?;
        scene.stage.configure(HOOKS, &scene.receiving()).await?;
        scene.stage.login(HOOKS).await?;
        scene.stage.configure(RECORDS, &scene.fetching(options.settings)).await?;
        scene
            .until("every subscription active", async || {
                let webhooks = scene.stage.simulator.provider().accounting.webhooks();
                let active = webhooks.iter().filter(|one| one.state == WebhookState::Active);
                Ok(active.count() == scene.resources.len())
            })
            .await?;
        scene.until_taken_over(&(0..scene.stage.workers.len()).collect::<Vec<_>>()).await?;
        Ok(scene)
    }

    /// Workers and the provider, without a connector or a login.
    pub(super) async fn prepare(
        backend: Backend,
        name: &str,
        options: &Options<'_>,
        adjust: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let simulator = start(|settings| {
            delivering(settings);
            // Deliveries to a dead worker are retried until another takes them.
            settings.knobs.accounting.retries = vec![250; 600];
            adjust(settings);
        })
        .await;
        let stage = Stage::start(&backend, name, options.workers, options.properties, simulator).await?;
        let prefix = TopicPrefix::new(format!("{}-t", stage.group)).unwrap();
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &backend.bootstrap)
            .set("acks", "all")
            .create()
            .map_err(|error| Error(format!("make a producer: {error}")))?;
        let reader = Reader::new(&backend.bootstrap);
        Ok(Self { stage, backend, prefix, resources: options.resources.to_vec(), producer, reader })
    }

    fn common(&self, class: &str, resources: &str) -> Value {
        let address = self.stage.simulator.base_url().to_string();
        let names: Vec<&str> = self.resources.iter().map(|one| ours(*one).name()).collect();
        json!({
            "connector.class": class,
            "topic.prefix": self.prefix.as_str(),
            "topic.creation.default.partitions": PARTITIONS.to_string(),
            "topic.creation.default.replication.factor": "1",
            "errors.deadletterqueue.topic.replication.factor": "1",
            "provider.base.url": address,
            "provider.auth.url": address,
            "provider.subscription.key": KEY,
            "provider.request.timeout.ms": "4000",
            "oauth.client.id": "simulated-client",
            "oauth.client.secret": "simulated-secret",
            resources: names.join(","),
        })
    }

    fn receiving(&self) -> Value {
        let mut config = self.common("WebhookSource", "accounting.resources");
        for (key, value) in [
            ("accounting.secret", "0123456789abcdef-first"),
            ("subscriptions.poll.interval.ms", "300"),
            ("gap.margin.ms", "200"),
            ("subscriptions.ready.timeout.ms", "30000"),
            ("subscriptions.retry.backoff.ms", "100"),
            ("subscriptions.retry.backoff.max.ms", "1000"),
        ] {
            config[key] = json!(value);
        }
        config
    }

    /// The configuration of the `RecordSource`.
    pub(super) fn fetching(&self, settings: &[(&str, &str)]) -> Value {
        let mut config = self.common("RecordSource", "enrich.resources");
        let plain = [
            ("tasks.max", "4"),
            ("snapshot.mode", "no_data"),
            ("stream.start.timeout.ms", "30000"),
            ("budget.requests.per.second", "5000"),
            ("budget.company.requests.per.second", "5000"),
            ("tombstones.brake.count", "100000"),
        ];
        for (key, value) in plain.iter().chain(&SHORT).chain(settings) {
            config[*key] = json!(value);
        }
        config
    }

    pub(super) fn provider(&self) -> &Arc<SimulatedProvider> {
        self.stage.simulator.provider()
    }

    pub(super) fn kafka(&self) -> kafka::Kafka {
        kafka::Kafka::plaintext(&self.backend.bootstrap)
    }

    /// Full name of a topic.
    pub(super) fn topic(&self, topic: Topic) -> String {
        topic.name(&self.prefix)
    }

    /// Topics of events, by resource.
    pub(super) fn event_topics(&self) -> Vec<(AccountingResource, String)> {
        let each = self.resources.iter().map(|one| ours(*one));
        each.map(|one| (one, self.topic(Topic::AccountingEvents(one)))).collect()
    }

    /// Adds a record and sends its event.
    pub(super) fn create(&self, resource: Resource, company: Option<CompanyNumber>) -> Place {
        create(self.provider(), resource, company).unwrap_or_else(|| panic!("no {resource} for {company:?}"))
    }

    /// Changes a record and sends its event; its new version.
    pub(super) fn act(&self, place: Place, kind: Kind) -> u64 {
        act(self.provider(), place, kind).unwrap_or_else(|| panic!("{place:?} cannot be {kind:?}"))
    }

    /// Updates these records and sends their events.
    pub(super) fn update(&self, places: &[Place]) {
        for place in places {
            self.act(*place, Kind::Updated);
        }
    }

    /// The provider's id of a record.
    pub(super) fn id(&self, place: Place) -> String {
        self.provider().world().id(place)
    }

    /// The resource and the record key. None of the simulator's ids needs to be encoded.
    pub(super) fn name(&self, place: Place) -> RecordName {
        let world = self.provider().world();
        let company = match (place.resource, place.company) {
            (Resource::Companies, _) => world.id(place),
            (_, Some(company)) => world.company_id(company),
            (_, None) => self.provider().settings.tenant.clone(),
        };
        (ours(place.resource), format!("{company}/{}", world.id(place)))
    }

    /// Records of the scene's resources that are not deleted.
    pub(super) fn living(&self) -> Vec<Place> {
        self.resources.iter().flat_map(|one| living(self.provider(), *one)).collect()
    }

    /// Updates the first record of each resource in each company, and waits: every resource has been read once.
    pub(super) async fn warm(&self) -> Result<()> {
        let first = self.living().into_iter().filter(|place| place.index == 0);
        self.update(&first.collect::<Vec<_>>());
        self.quiesce().await
    }

    /// Ends all faults: the provider sends every event once, in order and without delay.
    pub(super) fn calm(&self) {
        self.provider().turn(|knobs| {
            knobs.faults.clear();
            knobs.gateway.rate = None;
            knobs.gateway.unknown_paths.clear();
            (knobs.reads.replica_lag, knobs.reads.replica_share) = (0, 1.0);
            let delivery = &mut knobs.delivery;
            (delivery.duplicate, delivery.reorder, delivery.lose) = (0.0, 0.0, 0.0);
            delivery.delay = Latency::None;
        });
    }

    /// Starts `rate` changes a second, drawn from this seed, until the load is stopped.
    pub(super) fn load(&self, rate: f64, mix: Mix, seed: u64) -> ChangeLoad {
        ChangeLoad::begin(Arc::clone(self.provider()), self.resources.clone(), rate, mix, seed)
    }

    /// Replaces the events that were lost: updates those records again, and sends the events of deleted ones again. A provider does
    /// not do that, but without it the loss of a delete event could not be noticed.
    pub(super) fn make_up_for_lost(&self) -> usize {
        use simulator::deliveries::End;
        let entries = self.provider().deliveries.entries(0, usize::MAX);
        let lost: BTreeSet<Arc<str>> = entries
            .into_iter()
            .filter(|(_, entry)| entry.end.is_some_and(|end| end != End::Accepted))
            .filter_map(|(_, entry)| entry.about.record)
            .collect();
        let again: Vec<Place> =
            self.living().into_iter().filter(|place| lost.contains(&*self.id(*place))).collect();
        self.update(&again);
        let gone = self.provider().change(|world, _| {
            let records = self.resources.iter().flat_map(|resource| world.records(*resource));
            let gone = records.filter(|(place, row)| {
                row.state == RecordState::Deleted && lost.contains(&*world.id(*place))
            });
            let event = |(place, row): (Place, WorldRow)| {
                let [_, _, kind, _] = place.resource.kinds();
                WorldChange::Record(RecordChange { number: world.changes(), place, kind, row })
            };
            let events: Vec<WorldChange> = gone.map(event).collect();
            (events.len(), events)
        });
        again.len() + gone
    }

    /// Waits until every event is delivered and processed, and nothing is parked.
    pub(super) async fn quiesce(&self) -> Result<()> {
        self.settle().await?;
        self.until("nothing parked", async || Ok(evidence::parked(self).await?.is_empty())).await
    }

    /// Waits until no delivery is under way.
    pub(super) async fn until_delivered(&self) -> Result<()> {
        let idle = lost::timeout(LIMIT, self.provider().deliveries.idle()).await;
        idle.ok_or_else(|| self.stage.error("deliveries never end"))
    }

    /// Waits until every event is delivered and its offset settled; its record may be parked.
    pub(super) async fn settle(&self) -> Result<()> {
        self.until_delivered().await?;
        for worker in 0..self.stage.workers.len() {
            let empty = async || {
                let spooled = self.stage.metric(worker, "tributary_spool_entries").await?;
                Ok(spooled.iter().all(|(_, count)| *count == 0.0))
            };
            self.until("empty spools", empty).await?;
        }
        let ends = self.ends().await?;
        self.until("offsets at the end", async || {
            let settled = self.offsets().await?;
            Ok(ends.iter().all(|(place, end)| settled.get(place).copied().unwrap_or(0) >= *end))
        })
        .await
    }

    /// The end offset of each partition of the events.
    pub(super) async fn ends(&self) -> Result<BTreeMap<(String, i32), i64>> {
        let mut ends = BTreeMap::new();
        for (_, topic) in self.event_topics() {
            let found = self.reader.ends(&topic).await?;
            ends.extend(found.into_iter().map(|(partition, end)| ((topic.clone(), partition), end)));
        }
        Ok(ends)
    }

    /// The offsets from which the events are read, by REST.
    pub(super) async fn offsets(&self) -> Result<BTreeMap<(String, i32), i64>> {
        let asked = self.running()?;
        let (status, answer) =
            self.stage.ask(asked, "GET", &format!("/connectors/{RECORDS}/offsets"), None).await?;
        if status != 200 {
            return Err(Error(format!("offsets: {status} {answer}")));
        }
        let one = |entry: &Value| {
            let (partition, offset) = (&entry["partition"], &entry["offset"]);
            let place = (partition["topic"].as_str()?.to_owned(), partition["partition"].as_i64()? as i32);
            Some((place, offset["offset"].as_i64()?))
        };
        Ok(answer["offsets"].as_array().into_iter().flatten().filter_map(one).collect())
    }

    /// A worker that runs.
    fn running(&self) -> Result<usize> {
        let runs = self.stage.workers.iter().position(|worker| worker.runs());
        runs.ok_or_else(|| self.stage.error("no worker runs"))
    }

    /// Waits until every task of the `RecordSource` runs on one of these workers.
    pub(super) async fn until_taken_over(&self, workers: &[usize]) -> Result<()> {
        let asked = *workers.first().ok_or_else(|| Error("no worker is left".to_owned()))?;
        let all = async || {
            let tasks = self.stage.runs_on(asked, RECORDS).await?;
            Ok(!tasks.is_empty() && tasks.iter().all(|task| task.is_some_and(|one| workers.contains(&one))))
        };
        self.until(&format!("every task on {workers:?}"), all).await
    }

    /// Stops the `RecordSource`, and waits until none of its tasks is left.
    pub(super) async fn stop(&self) -> Result<()> {
        self.command("PUT", "stop", None, &[204]).await?;
        self.until("no task left", async || Ok(self.stage.runs_on(0, RECORDS).await?.is_empty())).await
    }

    /// Resumes the `RecordSource`, and waits until its tasks run.
    pub(super) async fn resume(&self) -> Result<()> {
        self.command("PUT", "resume", None, &[202]).await?;
        self.until_taken_over(&(0..self.stage.workers.len()).collect::<Vec<_>>()).await
    }

    /// Sends a request for the `RecordSource`, until a worker accepts it.
    pub(super) async fn command(
        &self,
        method: &str,
        what: &str,
        body: Option<&Value>,
        taken: &[u16],
    ) -> Result<()> {
        let path = format!("/connectors/{RECORDS}/{what}");
        self.until(&format!("{method} {path} taken"), async || {
            let (status, answer) = self.stage.ask(0, method, &path, body).await?;
            match status {
                status if taken.contains(&status) => Ok(true),
                // Another edit is under way, or tasks are still stopping.
                400 | 409 | 503 => Ok(false),
                status => Err(Error(format!("{method} {path}: {status} {answer}"))),
            }
        })
        .await
    }

    /// Requests for a record by its id, since a number in the provider's journal.
    pub(super) fn reads_of(&self, place: Place, since: u64) -> Vec<Request> {
        let ending = format!("/{}", crate::product::simulator::segment(&self.id(place)));
        let all = self.provider().gateway.requests(since, usize::MAX).into_iter().map(|(_, request)| request);
        all.filter(|request| request.method == "GET" && request.target.ends_with(&ending)).collect()
    }

    /// Waits until each of these was read repeatedly for three times [`CONFIRM`].
    pub(super) async fn until_read_for_long(&self, places: &[Place], since: u64) -> Result<()> {
        let long = |place: &Place| {
            let reads = self.reads_of(*place, since);
            let span = reads.first().zip(reads.last()).map_or(0, |(first, last)| last.at.0 - first.at.0);
            reads.len() >= 3 && span > simulator::clock::ticks(3 * CONFIRM)
        };
        self.until("read repeatedly", async || Ok(places.iter().all(long))).await
    }

    /// Writes a record to a topic; its offset.
    pub(super) async fn produce(&self, topic: &str, partition: i32, key: &[u8], value: &[u8]) -> Result<i64> {
        let record = FutureRecord::to(topic).partition(partition).key(key).payload(value);
        self.send(record).await.map_err(|code| Error(format!("write to {topic}: {code}")))
    }

    /// Writes a record; its offset, or why Kafka refused it.
    pub(super) async fn send(
        &self,
        record: FutureRecord<'_, [u8], [u8]>,
    ) -> std::result::Result<i64, RDKafkaErrorCode> {
        let delivered = self.producer.send(record, LIMIT).await;
        delivered
            .map(|delivered| delivered.offset)
            .map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown))
    }

    /// Writes every event to its topic once more, unchanged; how many there were.
    pub(super) async fn repeat_events(&self) -> Result<usize> {
        let mut count = 0;
        for (_, topic) in self.event_topics() {
            let events: Vec<ConsumerRecord> = evidence::read(self, &topic).await?;
            for event in &events {
                let key = event.key.clone().unwrap_or_default();
                self.produce(&topic, event.partition, &key, &event.value.clone().unwrap_or_default()).await?;
            }
            count += events.len();
        }
        Ok(count)
    }

    /// Collects everything that is visible from outside.
    pub(super) async fn evidence(&self) -> Result<Evidence> {
        evidence::collect(self).await
    }

    /// The checker's verdict on the present evidence.
    pub(super) async fn verdict(&self) -> Result<EnrichVerdict> {
        Ok(check(&self.evidence().await?))
    }

    /// The number of events of each outcome, of all workers since each was last started.
    pub(super) async fn outcomes(&self) -> Result<BTreeMap<String, u64>> {
        let mut outcomes = BTreeMap::new();
        for worker in 0..self.stage.workers.len() {
            for (labels, count) in self.stage.metric(worker, "tributary_enrich_events_total").await? {
                let outcome = labels.split("outcome=\"").nth(1).and_then(|rest| rest.split('"').next());
                *outcomes.entry(outcome.unwrap_or_default().to_owned()).or_default() += count as u64;
            }
        }
        Ok(outcomes)
    }

    /// Waits until this holds. It retries after an error, because workers die in these tests. Time that the machine lost is not
    /// counted: two workers and a broker start here while other tests run.
    pub(super) async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        loop {
            let last = holds().await;
            if let Ok(true) = last {
                return Ok(());
            }
            if lost::fair(began) > LIMIT {
                let offsets = self.offsets().await;
                return Err(self.stage.error(&format!("not {what}: {last:?}, offsets {offsets:?}")));
            }
            sleep(2 * STEP).await;
        }
    }
}

/// The product's name of a resource.
pub(super) fn ours(resource: Resource) -> AccountingResource {
    let same = |one: &AccountingResource| format!("/{}", one.path()) == resource.prefix();
    AccountingResource::all().find(same).unwrap()
}
