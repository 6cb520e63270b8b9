//! Writes events to their topic as the receiver does, and keeps a book of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kafka::{DeliveryFuture, Producer};
use model::{
    AccountingEvent, CompanyId, Key, Moment, Origin, Outgoing, Reception, RecordId, RecordMeta, Value,
};
use serde_json::json;
use simulator::{
    SimulatedProvider,
    catalog::{Kind, Resource},
    world::{CompanyNumber, Place, WorldChange},
};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tributary::{publish::Preparer, records::schedule::ReadRequest};

use crate::{
    provider,
    site::RESOURCE,
    support::{Error, Result},
};

/// Delay before the next attempt when the producer's queue is full.
const QUEUE_FULL_BACKOFF: Duration = Duration::from_millis(5);

/// Writes events of one prefix.
pub(crate) struct Feed {
    provider: Arc<SimulatedProvider>,
    preparer: Preparer,
    producer: Producer,
    book: Mutex<Book>,
    next: AtomicU64,
}

/// The events that were written.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// By the id of the event.
    pub(crate) events: HashMap<String, Written>,
    /// Newest version of each record, by its key in the record topic.
    pub(crate) newest: HashMap<String, u64>,
}

/// One event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// Microseconds since 1970.
    pub(crate) received_at: i64,
    pub(crate) company: CompanyNumber,
}

impl Feed {
    pub(crate) fn new(provider: &Arc<SimulatedProvider>, preparer: Preparer, producer: Producer) -> Self {
        let (provider, book, next) = (Arc::clone(provider), Mutex::default(), AtomicU64::new(0));
        Self { provider, preparer, producer, book, next }
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// Writes one event for each record; all are in the topic when this returns.
    pub(crate) async fn backlog(&self, records: &[(Place, u64)]) -> Result<()> {
        let mut deliveries = Vec::with_capacity(records.len());
        for (place, version) in records {
            deliveries.push(self.announce("backlog", *place, *version).await?);
        }
        for delivery in deliveries {
            delivery.await.map_err(|error| Error(format!("write an event: {error}")))?;
        }
        Ok(())
    }

    /// Changes one record after the other, over and over and this many a second, and writes an event for each change until it is
    /// stopped. Ids begin with `phase`.
    pub(crate) async fn steady(
        &self,
        phase: &str,
        rate: u32,
        places: &[Place],
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut ticks = interval(Duration::from_secs_f64(1.0 / f64::from(rate)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for place in places.iter().cycle() {
            if stop.run_until_cancelled(ticks.tick()).await.is_none() {
                break;
            }
            let version = self.change(*place)?;
            // [`check`](crate::check) finds out whether it arrived.
            drop(self.announce(phase, *place, version).await?);
        }
        Ok(())
    }

    /// Changes a record and returns its new version.
    fn change(&self, place: Place) -> Result<u64> {
        let changed = self.provider.change(|world, clock| match world.act(place, Kind::Updated, clock) {
            Some(change) => (Some(change.row.sequence), vec![WorldChange::Record(change)]),
            None => (None, Vec::new()),
        });
        changed.ok_or_else(|| Error(format!("{place:?} cannot be changed")))
    }

    async fn announce(&self, phase: &str, place: Place, version: u64) -> Result<DeliveryFuture> {
        let id = format!("{phase}-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let received_at = Moment::now().micros();
        let outgoing = event(&self.provider, &id, place, version, received_at);
        let encoded = self.preparer.prepare(&outgoing);
        let mut encoded = encoded.map_err(|error| Error(format!("encode an event: {error}")))?;
        {
            let mut book = self.book();
            book.events.insert(id, Written { received_at, company: place.company.unwrap_or_default() });
            let newest = book.newest.entry(key(&self.provider, place)).or_default();
            *newest = version.max(*newest);
        }
        loop {
            let refused = match self.producer.send(encoded) {
                Ok(delivery) => return Ok(delivery),
                Err(refused) => refused,
            };
            if !refused.error.retry().is_retriable() {
                return Err(Error(format!("write an event: {}", refused.error)));
            }
            encoded = *refused.record;
            sleep(QUEUE_FULL_BACKOFF).await;
        }
    }
}

/// The event of a change, as a receiver publishes it.
fn event(provider: &SimulatedProvider, id: &str, place: Place, version: u64, received_at: i64) -> Outgoing {
    let (company, record) = ids(provider, place);
    let (app, domain) = (Resource::Customers.app_name(), Resource::Customers.domain());
    let (resource, kind) = (Resource::Customers.plural(), Resource::Customers.event_type(Kind::Updated));
    let data = json!({
        "CorrelationId": record, "SequenceVersion": version.to_string(), "SvcSourceInterface": "Application",
        "SvcProcessId": id, "SvcSourceAction": "Update",
    });
    let body = json!({
        "WebhookId": "bench", "OutgoingId": id, "ConversationId": id, "TenantId": provider.settings.tenant,
        "ExtraPartitionInformation": { "PartitionClientId": company, "UserName": "a user" },
        "EventType": {
            "AppName": app, "Domain": domain, "Resource": resource, "EventType": kind,
            "SemanticName": format!("{app}.{domain}.{resource}.{kind}"),
        },
        "Timestamp": 638_505_760_891_234_567_i64,
        "JsonData": data.to_string(),
        "UserIdentifier": "a user",
    });
    let reception = Reception { connector: "hooks", received_at };
    let event = AccountingEvent::from_json(body.to_string().as_bytes(), RESOURCE, reception).unwrap();
    Outgoing::new(event.into(), RecordMeta::new(id, Origin::Webhook)).unwrap()
}

/// The key of a record in the record topic.
fn key(provider: &SimulatedProvider, place: Place) -> String {
    let (company, record) = ids(provider, place);
    let (company, record) = (CompanyId::new(company).unwrap(), RecordId::new(record).unwrap());
    Key::record(&company, &record).as_str().to_owned()
}

/// The ids of a record's company and of the record.
fn ids(provider: &SimulatedProvider, place: Place) -> (String, String) {
    let naming = provider.world().naming();
    let company =
        Place { resource: Resource::Companies, company: None, index: place.company.unwrap_or_default() };
    (naming.id(company), naming.id(place))
}

/// Builds one event and checks that it requests its record.
pub(crate) async fn try_out() {
    let simulator = provider::start(2, 2).await.unwrap();
    let (place, version) = provider::customers(simulator.provider())[1];
    let outgoing = event(simulator.provider(), "one", place, version, Moment::now().micros());

    let Some(Value::AccountingEvent(event)) = outgoing.value.as_deref() else {
        panic!("{outgoing:?} is no event")
    };
    let ReadRequest::Wanted(wanted) = ReadRequest::of((**event).clone()) else {
        panic!("it requests nothing")
    };
    assert_eq!(wanted.subject.key().as_str(), key(simulator.provider(), place));
    assert_eq!(wanted.floor.as_ref().map(|floor| floor.as_str()), Some(&*version.to_string()));
    simulator.stop().await;
}
