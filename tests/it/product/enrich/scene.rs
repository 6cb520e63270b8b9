//! A [`Stage`] whose connectors tell of changes and fetch the records behind them; what changes, and when all is quiet again.
//!
//! Seen from outside alone: by REST, topics, and the provider's own books and control.

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
    Provider,
    accounting::WebhookState,
    catalog::{Kind, Resource},
    gateway::Request,
    knobs::Latency,
    settings::Settings,
    world::{Change, CompanyNumber, Place, RecordChange, RecordState, Row},
};
use tokio::time::sleep;

use super::checker::{Evidence, Name, Verdict, check};
use super::evidence;
use super::load::{Load, Mix, act, create, living};
use crate::product::simulator::{KEY, start};
use crate::support::reader::Reader;
use crate::support::stage::{Ground, LIMIT, STEP, Stage, delivering};
use crate::support::{Error, Result, lost};

/// Receives.
pub(super) const HOOKS: &str = "hooks";
/// Fetches.
pub(super) const RECORDS: &str = "records";
/// Of every topic of the prefix, hence shards.
pub(super) const PARTITIONS: i32 = 4;
/// How long a record has to be gone here.
pub(super) const CONFIRM: Duration = Duration::from_secs(1);

/// All settings of time, so short that a test sees what they lead to.
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

/// Two connectors of one prefix, and what they work on.
pub(super) struct Scene {
    pub(super) stage: Stage,
    pub(super) ground: Ground,
    pub(super) prefix: TopicPrefix,
    /// What is subscribed to and fetched.
    pub(super) resources: Vec<Resource>,
    producer: FutureProducer,
    pub(super) reader: Reader,
}

/// How a scene differs from the plain one.
pub(super) struct Options<'a> {
    pub(super) workers: usize,
    pub(super) resources: &'a [Resource],
    /// Of the workers.
    pub(super) properties: &'a [(&'a str, &'a str)],
    /// Of the connector that fetches.
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

impl Scene {
    /// Everything subscribed, logged in and running.
    pub(super) async fn start(
        ground: Ground,
        name: &str,
        options: Options<'_>,
        adjust: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let scene = Self::prepare(ground, name, &options, adjust).await?;
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
        ground: Ground,
        name: &str,
        options: &Options<'_>,
        adjust: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let simulator = start(|settings| {
            delivering(settings);
            // What was under way to a worker that dies is repeated until there is another.
            settings.knobs.accounting.retries = vec![250; 600];
            adjust(settings);
        })
        .await;
        let stage = Stage::start(&ground, name, options.workers, options.properties, simulator).await?;
        let prefix = TopicPrefix::new(format!("{}-t", stage.group)).unwrap();
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &ground.bootstrap)
            .set("acks", "all")
            .create()
            .map_err(|error| Error(format!("make a producer: {error}")))?;
        let reader = Reader::new(&ground.bootstrap);
        Ok(Self { stage, ground, prefix, resources: options.resources.to_vec(), producer, reader })
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

    /// The configuration of the connector that fetches.
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

    pub(super) fn provider(&self) -> &Arc<Provider> {
        self.stage.simulator.provider()
    }

    pub(super) fn kafka(&self) -> kafka::Kafka {
        kafka::Kafka::plaintext(&self.ground.bootstrap)
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

    /// Adds a record, and tells of it.
    pub(super) fn create(&self, resource: Resource, company: Option<CompanyNumber>) -> Place {
        create(self.provider(), resource, company).unwrap_or_else(|| panic!("no {resource} for {company:?}"))
    }

    /// Does something to a record, and tells of it; its version since.
    pub(super) fn act(&self, place: Place, kind: Kind) -> u64 {
        act(self.provider(), place, kind).unwrap_or_else(|| panic!("{place:?} cannot be {kind:?}"))
    }

    /// These records change, and are told of.
    pub(super) fn update(&self, places: &[Place]) {
        for place in places {
            self.act(*place, Kind::Updated);
        }
    }

    /// What a record is called by the provider.
    pub(super) fn id(&self, place: Place) -> String {
        self.provider().world().id(place)
    }

    /// What a record is called by us. None of the simulator's ids needs to be encoded.
    pub(super) fn name(&self, place: Place) -> Name {
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

    /// The first record of each resource in each company changes, and is there: of every resource one has been read.
    pub(super) async fn warm(&self) -> Result<()> {
        let first = self.living().into_iter().filter(|place| place.index == 0);
        self.update(&first.collect::<Vec<_>>());
        self.quiesce().await
    }

    /// The provider is well and tells everything once, in order and at once.
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

    /// Changes begin, so many a second and drawn from this seed, until what is given back is stopped.
    pub(super) fn load(&self, rate: f64, mix: Mix, seed: u64) -> Load {
        Load::begin(Arc::clone(self.provider()), self.resources.clone(), rate, mix, seed)
    }

    /// What was told and never arrived is made up for: those records change again, and of those that are gone it is told again. A
    /// provider does not do that; but of a delete that nobody is told of, nobody ever hears.
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
            let tell = |(place, row): (Place, Row)| {
                let [_, _, kind, _] = place.resource.kinds();
                Change::Record(RecordChange { number: world.changes(), place, kind, row })
            };
            let told: Vec<Change> = gone.map(tell).collect();
            (told.len(), told)
        });
        again.len() + gone
    }

    /// Waits until everything that was told has come to its end: delivered, read, and nothing parked.
    pub(super) async fn quiesce(&self) -> Result<()> {
        self.settle().await?;
        self.until("nothing parked", async || Ok(evidence::parked(self).await?.is_empty())).await
    }

    /// Waits until no delivery is under way.
    pub(super) async fn until_delivered(&self) -> Result<()> {
        let idle = lost::timeout(LIMIT, self.provider().deliveries.idle()).await;
        idle.ok_or_else(|| self.stage.error("deliveries never end"))
    }

    /// Waits until everything that was told is delivered and its offset settled; it may be parked.
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

    /// Where each partition of the events ends.
    pub(super) async fn ends(&self) -> Result<BTreeMap<(String, i32), i64>> {
        let mut ends = BTreeMap::new();
        for (_, topic) in self.event_topics() {
            let found = self.reader.ends(&topic).await?;
            ends.extend(found.into_iter().map(|(partition, end)| ((topic.clone(), partition), end)));
        }
        Ok(ends)
    }

    /// Where reading the events goes on, by REST.
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

    /// Waits until every task that fetches runs on one of these workers.
    pub(super) async fn until_taken_over(&self, workers: &[usize]) -> Result<()> {
        let asked = *workers.first().ok_or_else(|| Error("nobody is left".to_owned()))?;
        let all = async || {
            let tasks = self.stage.runs_on(asked, RECORDS).await?;
            Ok(!tasks.is_empty() && tasks.iter().all(|task| task.is_some_and(|one| workers.contains(&one))))
        };
        self.until(&format!("every task on {workers:?}"), all).await
    }

    /// The connector that fetches is stopped, and none of its tasks is left.
    pub(super) async fn stop(&self) -> Result<()> {
        self.command("PUT", "stop", None, &[204]).await?;
        self.until("no task left", async || Ok(self.stage.runs_on(0, RECORDS).await?.is_empty())).await
    }

    /// It runs again.
    pub(super) async fn resume(&self) -> Result<()> {
        self.command("PUT", "resume", None, &[202]).await?;
        self.until_taken_over(&(0..self.stage.workers.len()).collect::<Vec<_>>()).await
    }

    /// Tells the connector that fetches something, until a worker takes it.
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
                // Somebody else is writing, or tasks are still stopping.
                400 | 409 | 503 => Ok(false),
                status => Err(Error(format!("{method} {path}: {status} {answer}"))),
            }
        })
        .await
    }

    /// Reads by id of a record at the provider since a number in its journal.
    pub(super) fn reads_of(&self, place: Place, since: u64) -> Vec<Request> {
        let ending = format!("/{}", crate::product::simulator::segment(&self.id(place)));
        let all = self.provider().gateway.requests(since, usize::MAX).into_iter().map(|(_, request)| request);
        all.filter(|request| request.method == "GET" && request.target.ends_with(&ending)).collect()
    }

    /// Waits until each of these was read again for longer than a delete has to be confirmed.
    pub(super) async fn until_read_for_long(&self, places: &[Place], since: u64) -> Result<()> {
        let long = |place: &Place| {
            let reads = self.reads_of(*place, since);
            let span = reads.first().zip(reads.last()).map_or(0, |(first, last)| last.at.0 - first.at.0);
            reads.len() >= 3 && span > simulator::clock::ticks(3 * CONFIRM)
        };
        self.until("read again and again", async || Ok(places.iter().all(long))).await
    }

    /// Puts a record straight into a topic; its offset.
    pub(super) async fn produce(&self, topic: &str, partition: i32, key: &[u8], value: &[u8]) -> Result<i64> {
        let record = FutureRecord::to(topic).partition(partition).key(key).payload(value);
        self.send(record).await.map_err(|code| Error(format!("write to {topic}: {code}")))
    }

    /// Its offset, or why Kafka does not take it.
    pub(super) async fn send(
        &self,
        record: FutureRecord<'_, [u8], [u8]>,
    ) -> std::result::Result<i64, RDKafkaErrorCode> {
        let delivered = self.producer.send(record, LIMIT).await;
        delivered
            .map(|delivered| delivered.offset)
            .map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown))
    }

    /// Every event there is, put into its topic once more, as it stands there.
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

    /// Everything that can be seen from outside.
    pub(super) async fn evidence(&self) -> Result<Evidence> {
        evidence::collect(self).await
    }

    /// What the checker says of it.
    pub(super) async fn verdict(&self) -> Result<Verdict> {
        Ok(check(&self.evidence().await?))
    }

    /// Events by what became of them, all workers together since each was last started.
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

    /// Waits until this is so. An error is a reason to look again: workers die here. Time that the machine lost is not counted: two
    /// workers and a broker start here while other tests run.
    pub(super) async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        loop {
            let looked = so().await;
            if let Ok(true) = looked {
                return Ok(());
            }
            if lost::fair(began) > LIMIT {
                let offsets = self.offsets().await;
                return Err(self.stage.error(&format!("not {what}: {looked:?}, offsets {offsets:?}")));
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
