//! Prepares the topics and schema ids of each connector that is received, and of those whose deliveries are still in the spool.
//!
//! ```text
//! connectors ─▶ one opening each: topics, schema ids ─ retried until it works ─▶ ReadyTopics ─▶ the intake
//! spool, of a deleted connector or one with other topics now ─▶ an opening of the topics that exist ┘
//! ```
//!
//! - Nothing is produced before its topic is known to exist: producers create none.
//! - An opening belongs to one connector, prefix and dead-letter topic. One that changes is opened again, and its deliveries wait in the
//!   spool meanwhile: with the old topics they would be refused as records of a foreign topic.
//! - A paused connector is never ready: its deliveries stay in the spool.
//!
//! On failure: a topic or schema that does not fit, or Kafka that is away, is logged once and retried as long as the opening is wanted.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use tokio::{sync::watch, time::sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use kafka::Admin;
use model::{AccountingResource, InvoicingEntity, Topic, TopicPrefix};

use crate::{
    plugin::RecordWriting,
    publish::{self, Layout, Opened, Preparer},
    spool::Spool,
    webhooks::{
        delivery::{self, DeliveryContext},
        intake::{PublishReadiness, ReadyTopics},
    },
};

/// Backoff between two tries to open.
const OPEN_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(250), longest: Duration::from_secs(10), total: None };
/// Interval at which unconfirmed schema ids are confirmed.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(30);

/// Topics and schemas of one connector that are opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TopicOpening {
    pub(super) connector: String,
    pub(super) layout: Layout,
    /// Whether each dead letter is worth a line in the log.
    pub(super) logged: bool,
    pub(super) owner: TopicOwner,
}

/// Which topics are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopicOwner {
    /// Those of the configuration.
    Configured,
    /// Those that exist below the prefix: the connector is gone or has changed.
    Former,
}

/// Knows which connectors can be written for. Cheap to clone.
#[derive(Clone)]
pub(super) struct TopicReadiness(Arc<ReadinessInner>);

struct ReadinessInner {
    store: RecordWriting,
    spool: Spool,
    /// Whether missing topics of connectors that are gone are created.
    create: bool,
    state: RwLock<ReadinessState>,
    /// Changes whenever something was opened or resumed.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct ReadinessState {
    /// By connector: nearly always one.
    slots: HashMap<String, Vec<ReadinessSlot>>,
    paused: HashSet<String>,
}

struct ReadinessSlot {
    opening: Arc<TopicOpening>,
    ready: Option<Arc<ReadyTopics>>,
    /// Why it is not open yet.
    fault: Option<String>,
    /// Opens it; ends with it.
    _task: AbortOnDropHandle<()>,
}

impl TopicReadiness {
    pub(super) fn new(store: RecordWriting, spool: Spool, create: bool) -> Self {
        let (state, changed) = (RwLock::default(), watch::Sender::new(0));
        Self(Arc::new(ReadinessInner { store, spool, create, state, changed }))
    }

    /// Sets the connectors that are received. Openings that are not wanted any more are dropped.
    pub(super) fn set(&self, openings: Vec<TopicOpening>, paused: HashSet<String>) {
        let mut state = self.0.state.write();
        let mut before = std::mem::take(&mut state.slots);
        state.paused = paused;
        for opening in openings {
            let slots = before.remove(&opening.connector).unwrap_or_default();
            let kept = slots.into_iter().find(|slot| *slot.opening == opening);
            let connector = opening.connector.clone();
            state.slots.insert(connector, vec![kept.unwrap_or_else(|| self.slot(opening))]);
        }
        drop(state);
        // Queues of resumed connectors may be drained now.
        self.changed();
    }

    /// The preparer of this prefix, once a connector of it is ready.
    pub(super) fn preparer(&self, prefix: &str) -> Option<Preparer> {
        let state = self.0.state.read();
        let mut slots =
            state.slots.values().flatten().filter(|slot| slot.opening.layout.prefix.as_str() == prefix);
        slots.find_map(|slot| Some(slot.ready.as_ref()?.preparer.clone()))
    }

    /// Connectors that are not ready, and why.
    pub(super) fn faults(&self) -> Vec<(String, String)> {
        let state = self.0.state.read();
        let slots = state.slots.iter().flat_map(|(name, slots)| slots.iter().map(move |slot| (name, slot)));
        slots.filter_map(|(name, slot)| Some((name.clone(), slot.fault.clone()?))).collect()
    }

    /// Changes when a connector may have become ready.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Confirms schema ids with the registry once it is back, until it is cancelled.
    pub(super) async fn confirm_ids(self, cancel: CancellationToken) {
        while cancel.run_until_cancelled(sleep(CONFIRM_INTERVAL)).await.is_some() {
            if self.0.store.ids.unconfirmed() > 0
                && let Some(Err(error)) = cancel.run_until_cancelled(self.0.store.ids.refresh()).await
            {
                tracing::debug!(error = %ErrorChain(&error), "ids of schemas are still not confirmed");
            }
        }
    }

    /// Drops all openings.
    pub(super) fn close(&self) {
        self.0.state.write().slots.clear();
    }

    fn slot(&self, opening: impl Into<Arc<TopicOpening>>) -> ReadinessSlot {
        let opening = opening.into();
        let task = tokio::spawn(Arc::clone(&opening).run(self.clone()));
        ReadinessSlot { opening, ready: None, fault: None, _task: AbortOnDropHandle::new(task) }
    }

    /// Opens for a connector that is gone, or that had another prefix when it received this.
    fn open_former(&self, context: &DeliveryContext) {
        let Ok(prefix) = TopicPrefix::new(&*context.prefix) else { return };
        let layout = Layout {
            dead_letters: context.dead_letter_topic.to_string(),
            create: self.0.create,
            ..Layout::new(prefix, [])
        };
        let mut state = self.0.state.write();
        let slots = state.slots.entry(context.connector.to_string()).or_default();
        // Another thread may have been here first.
        if !slots.iter().any(|slot| slot.is_for(context)) {
            let connector = context.connector.to_string();
            slots.push(self.slot(TopicOpening {
                connector,
                layout,
                logged: true,
                owner: TopicOwner::Former,
            }));
        }
    }

    /// Changes the slot of an opening, if it is still wanted.
    fn settle(&self, opening: &Arc<TopicOpening>, change: impl FnOnce(&mut ReadinessSlot)) {
        let mut state = self.0.state.write();
        let mut slots = state.slots.get_mut(&opening.connector).into_iter().flatten();
        if let Some(slot) = slots.find(|slot| Arc::ptr_eq(&slot.opening, opening)) {
            change(slot);
        }
    }

    fn changed(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }
}

impl PublishReadiness for TopicReadiness {
    fn ready(&self, context: &DeliveryContext) -> Option<Arc<ReadyTopics>> {
        {
            let state = self.0.state.read();
            if state.paused.contains(&*context.connector) {
                return None;
            }
            let mut slots = state.slots.get(&*context.connector).into_iter().flatten();
            if let Some(slot) = slots.find(|slot| slot.is_for(context)) {
                return slot.ready.clone();
            }
        }
        self.open_former(context);
        None
    }

    fn recheck(&self, context: &DeliveryContext) {
        let mut state = self.0.state.write();
        let slots = state.slots.get_mut(&*context.connector).into_iter().flatten();
        // One that is being opened is in doubt already.
        for slot in slots.filter(|slot| slot.is_for(context) && slot.ready.is_some()) {
            tracing::warn!(
                connector = &*context.connector,
                "topics of the connector do not exist any more; opening them again"
            );
            *slot = self.slot(Arc::clone(&slot.opening));
        }
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut changes = self.changes();
        Box::pin(async move {
            // The sender lives as long as we do.
            changes.changed().await.ok();
        })
    }
}

impl ReadinessSlot {
    fn is_for(&self, context: &DeliveryContext) -> bool {
        let layout = &self.opening.layout;
        layout.prefix.as_str() == &*context.prefix && layout.dead_letters == *context.dead_letter_topic
    }
}

impl TopicOpening {
    async fn run(self: Arc<Self>, readiness: TopicReadiness) {
        let mut backoff = Backoff::new(OPEN_BACKOFF, u64::from(kafka::murmur2(self.connector.as_bytes())));
        let mut last_error = None;
        let opened = loop {
            let error = match self.open(&readiness.0).await {
                Ok(opened) => break opened,
                Err(error) => ErrorChain(&error).to_string(),
            };
            if last_error.as_ref() == Some(&error) {
                tracing::debug!(connector = self.connector, error, "topics and schemas are still not ready");
            } else {
                tracing::warn!(
                    connector = self.connector,
                    error,
                    "topics or schemas are not ready; deliveries are kept in the spool until they are"
                );
            }
            readiness.settle(&self, |slot| slot.fault = Some(error.clone()));
            last_error = Some(error);
            sleep(backoff.next_wait(Retry::Later).unwrap_or(OPEN_BACKOFF.longest)).await;
        };
        let signer = &readiness.0.store.signer;
        let dead_letters = opened.dead_letters_of(&self.connector, 0, self.logged, signer);
        let ready = Arc::new(ReadyTopics { preparer: opened.preparer, dead_letters });
        readiness.settle(&self, |slot| (slot.ready, slot.fault) = (Some(ready), None));
        readiness.changed();
    }

    async fn open(&self, inner: &ReadinessInner) -> Result<Opened, publish::Error> {
        let RecordWriting { admin, ids, .. } = &inner.store;
        let mut layout = self.layout.clone();
        layout.topics.extend(self.spooled(&inner.spool).await);
        if self.owner == TopicOwner::Former {
            layout.topics.extend(self.existing(admin).await?);
            layout.topics.insert(Topic::State);
        }
        publish::open(&layout, admin, ids).await
    }

    /// Topics that deliveries in the spool are for, whatever is configured now.
    async fn spooled(&self, spool: &Spool) -> BTreeSet<Topic> {
        // Fails only when the spool is closed, and then nothing is published any more.
        let lanes = spool.lanes().await.unwrap_or_default();
        let names: HashSet<&str> = lanes.iter().map(|lane| delivery::topic_of(&lane.lane)).collect();
        events().filter(|topic| names.contains(topic.name(&self.layout.prefix).as_str())).collect()
    }

    /// Topics of events that the prefix has.
    async fn existing(&self, admin: &Admin) -> Result<BTreeSet<Topic>, publish::Error> {
        let prefix = &self.layout.prefix;
        let names: Vec<String> = events().map(|topic| topic.name(prefix)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let failed = |source| publish::Error::Topics { prefix: prefix.to_string(), source: Box::new(source) };
        let counts = admin.partition_counts(&names).await.map_err(failed)?;
        Ok(events().filter(|topic| counts.contains_key(&topic.name(prefix))).collect())
    }
}

/// Every topic that deliveries become records of.
fn events() -> impl Iterator<Item = Topic> {
    AccountingResource::all()
        .map(Topic::AccountingEvents)
        .chain(InvoicingEntity::all().map(Topic::InvoicingEvents))
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use kafka::embedded::EmbeddedCluster;

    use super::*;
    use crate::{
        avro::{self, Registry},
        config,
        publish::LetterSigner,
        spool::{Lane, SpoolEntry, SpoolOptions},
        webhooks::delivery::ApiFamily,
    };

    const CUSTOMERS: Topic = Topic::AccountingEvents(AccountingResource::Customers);

    /// A cluster and a registry in this process.
    struct Bench {
        readiness: TopicReadiness,
        cluster: Arc<EmbeddedCluster>,
        spool: Spool,
        _registry: avro::embedded::EmbeddedRegistry,
        _state: tempfile::TempDir,
    }

    impl Bench {
        async fn start() -> Self {
            let state = tempfile::tempdir().unwrap();
            let cluster = Arc::new(EmbeddedCluster::start(1).unwrap());
            let server = avro::embedded::EmbeddedRegistry::start().await.unwrap();
            let registry = Registry::new(&config::RegistrySettings::open(server.url().clone())).unwrap();
            let ids = avro::Ids::open(registry, state.path()).await;
            let spool = Spool::open(SpoolOptions::new(state.path().join("spool"), 1 << 20)).unwrap().spool;
            let admin = Admin::Embedded(Arc::clone(&cluster));
            let store = RecordWriting { admin, ids, signer: LetterSigner::default() };
            let readiness = TopicReadiness::new(store, spool.clone(), true);
            Self { readiness, cluster, spool, _registry: server, _state: state }
        }

        fn set(&self, topics: &[Topic], paused: bool) {
            let layout = Layout { partitions: Some(1), ..Layout::new(prefix(), topics.iter().copied()) };
            let connector = "hooks".to_owned();
            let opening = TopicOpening { connector, layout, logged: false, owner: TopicOwner::Configured };
            let paused = if paused { [opening.connector.clone()].into() } else { HashSet::new() };
            self.readiness.set(vec![opening], paused);
        }

        /// Waits until this can be written.
        async fn ready(&self, context: &DeliveryContext) -> Arc<ReadyTopics> {
            let mut changes = self.readiness.changes();
            let ready = async {
                loop {
                    if let Some(ready) = self.readiness.ready(context) {
                        return ready;
                    }
                    changes.changed().await.unwrap();
                }
            };
            timeout(Duration::from_secs(30), ready).await.unwrap()
        }
    }

    fn prefix() -> TopicPrefix {
        TopicPrefix::new("p").unwrap()
    }

    fn context(connector: &str) -> DeliveryContext {
        DeliveryContext {
            connector: connector.into(),
            prefix: "p".into(),
            dead_letter_topic: "p.dead-letters".into(),
            received_at: 1,
            traceparent: None,
            content_ids: true,
            family: ApiFamily::Accounting { resource: None },
        }
    }

    #[tokio::test]
    async fn a_connector_is_ready_with_its_topics_and_not_while_paused() {
        let bench = Bench::start().await;
        let admin = Admin::Embedded(Arc::clone(&bench.cluster));

        bench.set(&[CUSTOMERS], false);
        let ready = bench.ready(&context("hooks")).await;
        let counts =
            admin.partition_counts(&["p.accounting.customers.events", "p.dead-letters"]).await.unwrap();
        bench.set(&[CUSTOMERS], true);
        let paused = bench.readiness.ready(&context("hooks"));
        bench.set(&[CUSTOMERS], false);
        let resumed = bench.readiness.ready(&context("hooks"));

        assert_eq!(counts.len(), 2);
        assert_eq!(
            (&*ready.dead_letters.topic, ready.dead_letters.connector.as_str()),
            ("p.dead-letters", "hooks")
        );
        assert!(paused.is_none());
        assert!(Arc::ptr_eq(&resumed.unwrap(), &ready), "it was opened again without a change");
    }

    #[tokio::test]
    async fn a_changed_connector_is_not_ready_before_its_new_topics() {
        let bench = Bench::start().await;
        bench.set(&[CUSTOMERS], false);
        bench.ready(&context("hooks")).await;
        bench.cluster.set_reachable(false).unwrap();

        bench.set(&[CUSTOMERS, Topic::AccountingEvents(AccountingResource::Accounts)], false);
        let at_once = bench.readiness.ready(&context("hooks"));
        bench.cluster.set_reachable(true).unwrap();

        assert!(at_once.is_none());
        bench.ready(&context("hooks")).await;
        let admin = Admin::Embedded(Arc::clone(&bench.cluster));
        assert_eq!(admin.partition_counts(&["p.accounting.accounts.events"]).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn the_rest_of_a_deleted_connector_creates_only_needed_topics() {
        let bench = Bench::start().await;
        bench.set(&[CUSTOMERS], false);
        bench.ready(&context("hooks")).await;
        let lane = Lane { topic: "p.accounting.suppliers.events".into(), number: 0 };
        bench.spool.append(SpoolEntry { lane, sequence: 1, payload: "x".into() }).await.unwrap();

        bench.readiness.set(Vec::new(), HashSet::new());
        let at_once = bench.readiness.ready(&context("hooks"));
        let ready = bench.ready(&context("hooks")).await;

        assert!(at_once.is_none());
        assert_eq!(ready.preparer.partitions(), 1, "as the prefix has it");
        let admin = Admin::Embedded(Arc::clone(&bench.cluster));
        let names = ["p.accounting.suppliers.events", "p.accounting.accounts.events"];
        let counts = admin.partition_counts(&names).await.unwrap();
        assert_eq!(counts.keys().collect::<Vec<_>>(), [names[0]], "only what is needed is created");
        assert!(bench.readiness.preparer("p").is_some() && bench.readiness.preparer("q").is_none());
    }
}
