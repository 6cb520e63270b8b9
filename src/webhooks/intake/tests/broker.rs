//! The broker in memory.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use kafka::{Persisted, samples};
use model::EncodedRecord;

use super::fixture::{LONG, TOPIC};
use crate::webhooks::intake::ProducerFactory;

type Reported = Result<kafka::Ack, kafka::Error>;

/// A cluster in memory with a log. Held, it acknowledges only on request.
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
    /// It is full after this many records.
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
    number: u64,
}

impl Broker {
    /// Answers nothing from here on.
    pub(super) fn hold(&self) {
        self.0.lock().held = true;
    }

    /// Takes what waits, and everything from here on.
    pub(super) fn release(&self) {
        self.0.lock().held = false;
        self.let_through(usize::MAX);
    }

    /// Takes this many of the waiting records.
    pub(super) fn let_through(&self, count: usize) {
        for _ in 0..count {
            let mut inner = self.0.lock();
            let Some(first) = inner.waiting.pop_front() else { break };
            inner.log.push(first.record);
            drop(inner);
            first.report.send(Ok(kafka::Ack { partition: 0, offset: 0, timestamp_ms: None })).ok();
        }
        self.1.send_replace(());
    }

    /// Fails the current producers: the log takes this many of the waiting records without a report; the rest is lost.
    pub(super) fn break_producers(&self, taken: usize) {
        let mut inner = self.0.lock();
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
        self.0.lock().largest = largest;
    }

    pub(super) fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// The producers' queue is full after this many records.
    pub(super) fn take_only(&self, count: usize) {
        self.0.lock().room = Some(count);
    }

    /// Kafka may not be written to, or may again.
    pub(super) fn set_forbidden(&self, forbidden: bool) {
        self.0.lock().forbidden = forbidden;
    }

    /// No producer can be made any more, or they can again. Since then none was tried to be.
    pub(super) fn set_unbuildable(&self, unbuildable: bool) {
        let mut inner = self.0.lock();
        (inner.unbuildable, inner.tries) = (unbuildable, 0);
    }

    /// How often it was tried to make one since.
    pub(super) fn tries(&self) -> u64 {
        self.0.lock().tries
    }

    /// Waits until it was tried so often.
    pub(super) async fn was_tried(&self, count: u64) {
        self.until(|inner| inner.tries >= count).await;
    }

    /// How many records wait for an answer.
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Waits until this many records wait for an answer.
    pub(super) async fn waits_for(&self, count: usize) {
        self.until(|inner| inner.waiting.len() >= count).await;
    }

    /// Waits until the log of a topic has this many different ids.
    pub(super) async fn has(&self, topic: &str, count: usize) {
        self.until(|inner| ids(inner, topic).len() >= count).await;
    }

    /// Ids of the records of a topic in the order of their first appearance.
    pub(super) fn ids(&self, topic: &str) -> Vec<String> {
        ids(&self.0.lock(), topic)
    }

    /// The records of a topic.
    pub(super) fn records(&self, topic: &str) -> Vec<EncodedRecord> {
        self.0.lock().log.iter().filter(|record| &*record.topic == topic).cloned().collect()
    }

    async fn until(&self, reached: impl Fn(&Inner) -> bool) {
        let mut bell = self.1.subscribe();
        let waiting = async {
            while !reached(&self.0.lock()) {
                bell.changed().await.unwrap();
            }
        };
        timeout(LONG, waiting).await.expect("the broker never came to that");
    }
}

fn ids(inner: &Inner, topic: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let records = inner.log.iter().filter(|record| &*record.topic == topic);
    records.map(|record| header(record, "tributary.id")).filter(|id| seen.insert(id.clone())).collect()
}

fn header(record: &EncodedRecord, name: &str) -> String {
    let value = record.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_vec());
    String::from_utf8(value.unwrap_or_default()).unwrap()
}

impl ProducerFactory for Broker {
    type Producer = Producer;
    type Report = Pin<Box<dyn Future<Output = Reported> + Send>>;

    fn build(&self) -> Result<Producer, kafka::Error> {
        let mut inner = self.0.lock();
        inner.tries += 1;
        self.1.send_replace(());
        if inner.unbuildable {
            return Err(samples::queue_full());
        }
        inner.built += 1;
        Ok(Producer { number: inner.built - 1 })
    }

    fn send(&self, producer: &Producer, record: EncodedRecord) -> Result<Self::Report, kafka::SendError> {
        let mut inner = self.0.lock();
        let refusal = if inner.over.contains(&producer.number) {
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
        inner.waiting.push_back(Waiting { producer: producer.number, record, report });
        let held = inner.held;
        drop(inner);
        if held {
            self.1.send_replace(());
        } else {
            self.let_through(usize::MAX);
        }
        Ok(Box::pin(async move { reported.await.unwrap_or_else(|_| Err(samples::purged())) }))
    }

    fn has_failed(&self, producer: &Producer) -> bool {
        self.0.lock().over.contains(&producer.number)
    }

    async fn flush(&self, _: &Producer, limit: Duration) {
        timeout(limit, self.until(|inner| inner.waiting.is_empty())).await.ok();
    }

    fn purge(&self, producer: &Producer) {
        let mut inner = self.0.lock();
        let (gone, stay): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut inner.waiting).into_iter().partition(|one| one.producer == producer.number);
        inner.waiting = stay;
        drop(inner);
        for one in gone {
            one.report.send(Err(samples::purged())).ok();
        }
    }
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
