//! Shared by the tests: connectors that are ready on request, and an intake over them and the broker in memory.

use std::{
    future::Future,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    sync::watch,
    time::{Instant, timeout},
};

use model::{AccountingResource, InvoicingEntity, Topic, TopicPrefix};

use super::broker::Broker;
use crate::{
    avro::{self, Ids, Registry, embedded::EmbeddedRegistry},
    config,
    publish::{DeadLetters, LetterSigner, Preparer},
    spool::{Spool, SpoolOptions, fault::Faulty},
    webhooks::{
        delivery::{ApiFamily, Delivery, DeliveryContext},
        intake::{AnswerTimes, DeliveryOutcome, Intake, PublishReadiness, ReadyTopics},
    },
};

pub(super) const TOPIC: &str = "p.accounting.customers.events";
pub(super) const INVOICING: &str = "p.invoicing.customer.events";
pub(super) const DEAD_LETTERS: &str = "p.dead-letters";
/// Longer than anything takes on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// Kafka is given up for the spool at once; nothing else is ever late.
const HASTY: AnswerTimes = AnswerTimes { spool_after: Duration::from_millis(20), answer_by: LONG };

/// Opens and closes every connector.
pub(super) struct Doors {
    ready: Arc<ReadyTopics>,
    open: watch::Sender<bool>,
    /// How many may ask until one panics; 0 where none does.
    trap: AtomicUsize,
}

impl Doors {
    /// The one that asks as this number from now on panics.
    pub(super) fn set_trap(&self, number: usize) {
        self.trap.store(number, Ordering::SeqCst);
    }

    /// Whether it has.
    pub(super) fn has_sprung(&self) -> bool {
        self.trap.load(Ordering::SeqCst) == 0
    }

    pub(super) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

impl PublishReadiness for Doors {
    fn ready(&self, _: &DeliveryContext) -> Option<Arc<ReadyTopics>> {
        let left = self.trap.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert_ne!(left, Ok(1), "a trap was set");
        self.open.borrow().then(|| Arc::clone(&self.ready))
    }

    fn recheck(&self, _: &DeliveryContext) {}

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut open = self.open.subscribe();
        Box::pin(async move { open.changed().await.unwrap_or(()) })
    }
}

/// An intake with all its strings in the test's hands.
pub(super) struct Fixture {
    pub(super) intake: Intake<Broker>,
    pub(super) broker: Broker,
    pub(super) doors: Arc<Doors>,
    pub(super) disk: Faulty,
    pub(super) spool: Spool,
    /// Of the intake alone: dropped, everything under way ends where it is.
    runtime: Option<Runtime>,
    directory: Option<TempDir>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // In an asynchronous test nothing may be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fixture {
    /// Kafka is given up for the spool after 20 ms; nothing else is ever late.
    pub(super) async fn new() -> Self {
        Self::with(HASTY, 1 << 30, 64 << 20).await
    }

    pub(super) async fn with(times: AnswerTimes, spool_bytes: u64, memory_bytes: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let doors = Arc::new(Doors {
            ready: Arc::new(ready(directory.path()).await),
            open: watch::Sender::new(true),
            trap: AtomicUsize::new(0),
        });
        let remains = Remains { broker: Broker::default(), doors, directory };
        Self::on(remains, Faulty::default(), times, spool_bytes, memory_bytes).await
    }

    async fn on(
        remains: Remains,
        disk: Faulty,
        times: AnswerTimes,
        spool_bytes: u64,
        memory_bytes: usize,
    ) -> Self {
        let Remains { broker, doors, directory } = remains;
        let storage = Arc::new(disk.clone());
        let options = SpoolOptions {
            storage,
            reserve_bytes: 0,
            ..SpoolOptions::new(directory.path().join("spool"), spool_bytes)
        };
        let opened = tokio::task::spawn_blocking(|| Spool::open(options)).await.unwrap().unwrap();
        let spool = opened.spool;
        let readiness = Arc::clone(&doors) as _;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let start = Intake::start(broker.clone(), spool.clone(), readiness, memory_bytes, times);
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

    pub(super) fn take(
        &self,
        company: &str,
        id: &str,
    ) -> impl Future<Output = DeliveryOutcome> + Send + use<> {
        self.take_body(body(company, id))
    }

    pub(super) fn take_body(&self, body: Bytes) -> impl Future<Output = DeliveryOutcome> + Send + use<> {
        self.take_of(body, ApiFamily::Accounting { resource: Some(AccountingResource::Customers) })
    }

    pub(super) fn take_invoicing(&self, body: Bytes) -> impl Future<Output = DeliveryOutcome> + Send + use<> {
        self.take_of(body, ApiFamily::Invoicing { hook: None, tenants: Arc::default() })
    }

    fn take_of(
        &self,
        body: Bytes,
        family: ApiFamily,
    ) -> impl Future<Output = DeliveryOutcome> + Send + use<> {
        let intake = self.intake.clone();
        let taking = self.runtime.as_ref().unwrap().spawn(async move {
            let delivery = of_family(body, family);
            let content = delivery.read();
            intake.take(delivery, content, Instant::now()).await
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
    pub(super) async fn start(self) -> Fixture {
        self.start_without(0).await
    }

    /// With this many databases that may not be opened.
    pub(super) async fn start_without(self, databases: usize) -> Fixture {
        let disk = Faulty::default();
        disk.refuse_opens(databases);
        Fixture::on(self, disk, HASTY, 1 << 30, 64 << 20).await
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
    of_family(body, ApiFamily::Accounting { resource: Some(AccountingResource::Customers) })
}

fn of_family(body: Bytes, family: ApiFamily) -> Delivery {
    static CLOCK: AtomicI64 = AtomicI64::new(1);
    let context = DeliveryContext {
        connector: "hooks".into(),
        prefix: "p".into(),
        dead_letter_topic: DEAD_LETTERS.into(),
        received_at: CLOCK.fetch_add(1, Ordering::Relaxed),
        traceparent: None,
        content_ids: true,
        family,
    };
    Delivery { context: Arc::new(context), body }
}

async fn ready(state: &Path) -> ReadyTopics {
    let server = EmbeddedRegistry::start().await.unwrap();
    let registry = Registry::new(&config::RegistrySettings::open(server.url().clone())).unwrap();
    let ids = Ids::open(registry, state).await;
    let prefix = TopicPrefix::new("p").unwrap();
    let topics = [
        Topic::AccountingEvents(AccountingResource::Customers),
        Topic::InvoicingEvents(InvoicingEntity::Customer),
    ];
    let subjects: Vec<_> =
        topics.into_iter().filter_map(|topic| avro::ValueSubject::of(topic, &prefix)).collect();
    ids.prepare(&subjects).await.unwrap();
    let preparer = Preparer::new(&prefix, 3, avro::Encoder::new(&ids, &subjects));
    let topic = DEAD_LETTERS.into();
    let dead_letters = DeadLetters {
        topic,
        partitions: 3,
        prefix,
        connector: "hooks".into(),
        task: 0,
        logged: false,
        signer: LetterSigner::default(),
    };
    ReadyTopics { preparer, dead_letters }
}
