//! What the tests share: the broker in memory, connectors that open when told, and an intake over both.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    future::Future,
    path::Path,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

use crate::{
    avro::{self, Ids, Registry, embedded::Server},
    config,
    kafka::{self, Persisted, samples},
    model::{AccountingResource, EncodedRecord, InvoicingEntity, Topic, TopicPrefix},
    pipeline::{DeadLetters, Preparer, RecordSink},
    spool::{Options, Spool, fault::Faulty},
    webhooks::{
        delivery::{Context, Delivery, Family},
        intake::{Intake, Openings, Outcome, Ready, Sinks, Times},
    },
};

pub(super) const TOPIC: &str = "p.accounting.customers.events";
pub(super) const INVOICING: &str = "p.invoicing.customer.events";
pub(super) const DEAD_LETTERS: &str = "p.dead-letters";
/// Longer than anything takes on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// Kafka is given up for the spool at once; nothing else is ever late.
const HASTY: Times = Times { deadline: Duration::from_millis(20), last: LONG };

type Reported = Result<kafka::Ack, kafka::Error>;

/// A cluster in memory. Held, it answers only when told; what it has is its log.
#[derive(Clone, Default)]
pub(super) struct Broker(Arc<Mutex<Inner>>, Arc<watch::Sender<()>>);

#[derive(Default)]
struct Inner {
    held: bool,
    waiting: VecDeque<Waiting>,
    log: Vec<EncodedRecord>,
    over: HashSet<u64>,
    built: u64,
    /// Larger values are refused.
    largest: Option<usize>,
    /// Nothing is taken: the producers' queue is full.
    full: bool,
    /// It is once it has taken so many.
    room: Option<usize>,
    /// Every record is taken, and reported as forbidden.
    forbidden: bool,
    /// No producer can be made.
    unbuildable: bool,
    /// How often one was tried to.
    tries: u64,
}

struct Waiting {
    producer: u64,
    record: EncodedRecord,
    report: oneshot::Sender<Reported>,
}

/// One of its producers.
pub(super) struct Producer {
    broker: Broker,
    number: u64,
}

impl Broker {
    /// Answers nothing from here on.
    pub(super) fn hold(&self) {
        self.lock().held = true;
    }

    /// Takes what waits, and everything from here on.
    pub(super) fn release(&self) {
        self.lock().held = false;
        self.let_through(usize::MAX);
    }

    /// Takes so many of those that wait.
    pub(super) fn let_through(&self, count: usize) {
        for _ in 0..count {
            let mut inner = self.lock();
            let Some(first) = inner.waiting.pop_front() else { break };
            inner.log.push(first.record);
            drop(inner);
            first.report.send(Ok(kafka::Ack { partition: 0, offset: 0, timestamp_ms: None })).ok();
        }
        self.1.send_replace(());
    }

    /// The producers of now are over: the log takes so many of what waits, without telling; the rest is gone.
    pub(super) fn break_producers(&self, taken: usize) {
        let mut inner = self.lock();
        let built = inner.built;
        inner.over.extend(0..built);
        let waiting = std::mem::take(&mut inner.waiting);
        for (place, waiting) in waiting.into_iter().enumerate() {
            if place < taken {
                inner.log.push(waiting.record);
            }
            waiting.report.send(Err(samples::purged())).ok();
        }
        drop(inner);
        self.1.send_replace(());
    }

    pub(super) fn refuse_above(&self, largest: Option<usize>) {
        self.lock().largest = largest;
    }

    pub(super) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// The producers' queue is full once it has taken so many.
    pub(super) fn take_only(&self, count: usize) {
        self.lock().room = Some(count);
    }

    /// Kafka may not be written to, or may again.
    pub(super) fn set_forbidden(&self, forbidden: bool) {
        self.lock().forbidden = forbidden;
    }

    /// No producer can be made any more, or they can again. Since then none was tried to be.
    pub(super) fn set_unbuildable(&self, unbuildable: bool) {
        let mut inner = self.lock();
        (inner.unbuildable, inner.tries) = (unbuildable, 0);
    }

    /// How often it was tried to make one since.
    pub(super) fn tries(&self) -> u64 {
        self.lock().tries
    }

    /// Waits until it was tried so often.
    pub(super) async fn was_tried(&self, count: u64) {
        self.until(|inner| inner.tries >= count).await;
    }

    /// Waits until so many records wait for an answer.
    pub(super) async fn waits_for(&self, count: usize) {
        self.until(|inner| inner.waiting.len() >= count).await;
    }

    /// Waits until the log of a topic has so many records of different ids.
    pub(super) async fn has(&self, topic: &str, count: usize) {
        self.until(|inner| ids(inner, topic).len() >= count).await;
    }

    /// Ids of the records of a topic in the order of their first appearance.
    pub(super) fn ids(&self, topic: &str) -> Vec<String> {
        ids(&self.lock(), topic)
    }

    /// The records of a topic.
    pub(super) fn records(&self, topic: &str) -> Vec<EncodedRecord> {
        self.lock().log.iter().filter(|record| &*record.topic == topic).cloned().collect()
    }

    async fn until(&self, reached: impl Fn(&Inner) -> bool) {
        let mut bell = self.1.subscribe();
        let waiting = async {
            while !reached(&self.lock()) {
                bell.changed().await.unwrap();
            }
        };
        timeout(LONG, waiting).await.expect("the broker never came to that");
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }
}

fn ids(inner: &Inner, topic: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let records = inner.log.iter().filter(|record| &*record.topic == topic);
    records.map(|record| header(record, "tributary.id")).filter(|id| seen.insert(id.clone())).collect()
}

pub(super) fn header(record: &EncodedRecord, name: &str) -> String {
    let value = record.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_vec());
    String::from_utf8(value.unwrap_or_default()).unwrap()
}

impl RecordSink for Producer {
    type Delivery = Pin<Box<dyn Future<Output = Reported> + Send>>;

    fn send(&self, record: EncodedRecord) -> Result<Self::Delivery, kafka::SendError> {
        let mut inner = self.broker.lock();
        let refusal = if inner.over.contains(&self.number) {
            Some(samples::purged())
        } else if inner.full {
            Some(samples::queue_full())
        } else if record
            .value
            .as_ref()
            .is_some_and(|value| inner.largest.is_some_and(|largest| value.len() > largest))
        {
            Some(samples::too_large())
        } else {
            None
        };
        if let Some(error) = refusal {
            return Err(kafka::SendError { record: Box::new(record), error });
        }
        if let Some(room) = inner.room {
            inner.full = room <= 1;
            inner.room = (room > 1).then(|| room - 1);
        }
        if inner.forbidden {
            return Ok(Box::pin(async { Err(samples::unauthorised()) }));
        }
        let (report, reported) = oneshot::channel();
        inner.waiting.push_back(Waiting { producer: self.number, record, report });
        let held = inner.held;
        drop(inner);
        if held {
            self.broker.1.send_replace(());
        } else {
            self.broker.let_through(usize::MAX);
        }
        Ok(Box::pin(async move { reported.await.unwrap_or_else(|_| Err(samples::purged())) }))
    }
}

impl Sinks for Broker {
    type Sink = Producer;

    fn build(&self) -> Result<Producer, kafka::Error> {
        let mut inner = self.lock();
        inner.tries += 1;
        self.1.send_replace(());
        if inner.unbuildable {
            return Err(samples::queue_full());
        }
        inner.built += 1;
        Ok(Producer { broker: self.clone(), number: inner.built - 1 })
    }

    fn is_over(&self, sink: &Producer) -> bool {
        self.lock().over.contains(&sink.number)
    }

    async fn flush(&self, _: &Producer, limit: Duration) {
        timeout(limit, self.until(|inner| inner.waiting.is_empty())).await.ok();
    }

    fn purge(&self, sink: &Producer) {
        let mut inner = self.lock();
        let (gone, stay): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut inner.waiting).into_iter().partition(|one| one.producer == sink.number);
        inner.waiting = stay;
        drop(inner);
        for one in gone {
            one.report.send(Err(samples::purged())).ok();
        }
    }
}

/// Opens and closes every connector.
pub(super) struct Doors {
    ready: Arc<Ready>,
    open: watch::Sender<bool>,
    /// Whether who asks next panics.
    trap: AtomicBool,
}

impl Doors {
    /// Whoever asks next panics, once.
    pub(super) fn set_trap(&self) {
        self.trap.store(true, Ordering::SeqCst);
    }

    /// Whether somebody has.
    pub(super) fn has_sprung(&self) -> bool {
        !self.trap.load(Ordering::SeqCst)
    }

    pub(super) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

impl Openings for Doors {
    fn ready(&self, _: &Context) -> Option<Arc<Ready>> {
        assert!(!self.trap.swap(false, Ordering::SeqCst), "told to panic");
        self.open.borrow().then(|| Arc::clone(&self.ready))
    }

    fn doubt(&self, _: &Context) {}

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut open = self.open.subscribe();
        Box::pin(async move { open.changed().await.unwrap_or(()) })
    }
}

/// An intake with all its strings in the test's hands.
pub(super) struct Bench {
    pub(super) intake: Intake<Broker>,
    pub(super) broker: Broker,
    pub(super) doors: Arc<Doors>,
    pub(super) disk: Faulty,
    pub(super) spool: Spool,
    /// Of the intake alone: dropped, everything under way ends where it is.
    runtime: Option<Runtime>,
    directory: Option<TempDir>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // In an asynchronous test nothing may be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Bench {
    /// Kafka is given up for the spool after 20 ms; nothing else is ever late.
    pub(super) async fn new() -> Self {
        Self::with(HASTY, 1 << 30, 64 << 20).await
    }

    pub(super) async fn with(times: Times, spool_bytes: u64, memory_bytes: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let doors = Arc::new(Doors {
            ready: Arc::new(ready(directory.path()).await),
            open: watch::Sender::new(true),
            trap: AtomicBool::new(false),
        });
        let remains = Remains { broker: Broker::default(), doors, directory };
        Self::on(remains, Faulty::default(), times, spool_bytes, memory_bytes).await
    }

    async fn on(remains: Remains, disk: Faulty, times: Times, spool_bytes: u64, memory_bytes: usize) -> Self {
        let Remains { broker, doors, directory } = remains;
        let storage = Arc::new(disk.clone());
        let options = Options {
            storage,
            reserve_bytes: 0,
            ..Options::new(directory.path().join("spool"), spool_bytes)
        };
        let opened = tokio::task::spawn_blocking(|| Spool::open(options)).await.unwrap().unwrap();
        let spool = opened.spool;
        let openings = Arc::clone(&doors) as _;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let start = Intake::start(broker.clone(), spool.clone(), openings, memory_bytes, times);
        let intake = runtime.spawn(start).await.unwrap().unwrap();
        Self { intake, broker, doors, disk, spool, runtime: Some(runtime), directory: Some(directory) }
    }

    /// Ends without a word, as a kill would: what was appended stays, what is in memory is gone. The broker forgets what
    /// it has not taken.
    pub(super) async fn die(mut self) -> Remains {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        assert!(self.spool.close(LONG).await, "the spool is still in use");
        self.broker.break_producers(0);
        Remains {
            broker: self.broker.clone(),
            doors: Arc::clone(&self.doors),
            directory: self.directory.take().unwrap(),
        }
    }

    pub(super) fn take(&self, company: &str, id: &str) -> impl Future<Output = Outcome> + Send + use<> {
        self.take_body(body(company, id))
    }

    pub(super) fn take_body(&self, body: Bytes) -> impl Future<Output = Outcome> + Send + use<> {
        self.take_of(body, Family::Accounting { resource: Some(AccountingResource::Customers) })
    }

    pub(super) fn take_invoicing(&self, body: Bytes) -> impl Future<Output = Outcome> + Send + use<> {
        self.take_of(body, Family::Invoicing { hook: None, tenants: Arc::default() })
    }

    fn take_of(&self, body: Bytes, family: Family) -> impl Future<Output = Outcome> + Send + use<> {
        let intake = self.intake.clone();
        let taking = self.runtime.as_ref().unwrap().spawn(async move {
            let delivery = of_family(body, family);
            let reading = delivery.read();
            intake.take(delivery, reading, Instant::now()).await
        });
        async move { timeout(LONG, taking).await.expect("no answer").unwrap() }
    }

    /// Waits until no lane goes through the spool.
    pub(super) async fn is_direct(&self) {
        let direct = async {
            while self.intake.behind() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, direct).await.expect("a lane stays behind");
    }

    /// Waits until the spool is empty.
    pub(super) async fn is_drained(&self) {
        let drained = async {
            while self.spool.lanes().await.unwrap().iter().any(|lane| lane.entries > 0) {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, drained).await.expect("the spool is never drained");
    }
}

/// What a kill leaves, and a start begins with.
pub(super) struct Remains {
    broker: Broker,
    doors: Arc<Doors>,
    directory: TempDir,
}

impl Remains {
    pub(super) async fn start(self) -> Bench {
        self.start_without(0).await
    }

    /// As if it had no right to open so many of its databases.
    pub(super) async fn start_without(self, databases: usize) -> Bench {
        let disk = Faulty::default();
        disk.refuse_opens(databases);
        Bench::on(self, disk, HASTY, 1 << 30, 64 << 20).await
    }

    pub(super) fn broker(&self) -> &Broker {
        &self.broker
    }
}

pub(super) fn body(company: &str, id: &str) -> Bytes {
    Bytes::from(format!(
        r#"{{"OutgoingId":"{id}","EventType":{{"Resource":"Customer","Type":"CustomerUpdated"}},"ExtraPartitionInformation":{{"PartitionClientId":"{company}"}}}}"#
    ))
}

pub(super) fn delivery(body: Bytes) -> Delivery {
    of_family(body, Family::Accounting { resource: Some(AccountingResource::Customers) })
}

fn of_family(body: Bytes, family: Family) -> Delivery {
    static CLOCK: AtomicI64 = AtomicI64::new(1);
    let context = Context {
        connector: "hooks".into(),
        prefix: "p".into(),
        dead_letters: DEAD_LETTERS.into(),
        received_at: CLOCK.fetch_add(1, Ordering::Relaxed),
        traceparent: None,
        family,
    };
    Delivery { context: Arc::new(context), body }
}

async fn ready(state: &Path) -> Ready {
    let server = Server::start().await.unwrap();
    let registry = Registry::new(&config::Registry::open(server.url().clone())).unwrap();
    let ids = Ids::open(registry, state).await;
    let prefix = TopicPrefix::new("p").unwrap();
    let topics = [
        Topic::AccountingEvents(AccountingResource::Customers),
        Topic::InvoicingEvents(InvoicingEntity::Customer),
    ];
    let subjects: Vec<_> = topics.into_iter().filter_map(|topic| avro::Subject::of(topic, &prefix)).collect();
    ids.prepare(&subjects).await.unwrap();
    let preparer = Preparer::new(&prefix, 3, avro::Encoder::new(&ids, &subjects));
    let topic = DEAD_LETTERS.into();
    let dead_letters =
        DeadLetters { topic, partitions: 3, connector: "hooks".into(), task: 0, logged: false };
    Ready { preparer, dead_letters }
}

/// Ids by company, in the order of the log.
pub(super) fn by_company(broker: &Broker) -> BTreeMap<String, Vec<String>> {
    let mut companies: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in broker.records(TOPIC) {
        let company = String::from_utf8(record.key.to_vec()).unwrap();
        let ids = companies.entry(company).or_default();
        let id = header(&record, "tributary.id");
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    companies
}

#[test]
fn a_purged_record_may_be_there() {
    // What the broker in memory reports, and the intake must send again.
    assert_ne!(samples::purged().persisted(), Persisted::Yes);
}
