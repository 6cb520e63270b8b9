//! The current producer, what the reports of a part say together, and which topics take no records.
//!
//! The producer is built when first needed, and rebuilt once it has failed fatally.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use base::{
    metrics,
    retry::{Backoff, ErrorChain, Retry},
};
use kafka::{Kafka, Persisted, Producer, ProducerOptions};
use model::{EncodedRecord, Origin};

use super::{
    PUBLISH_BACKOFF,
    encode::{PreparedRecord, RecordKind},
    lane_queue::Handed,
};
use crate::publish::PublishStage;

/// Builds producers and uses them: Kafka's, or those of a test.
pub trait ProducerFactory: Send + Sync + 'static {
    /// Takes records in order and reports on each.
    type Producer: Send + Sync + 'static;
    /// The report on a record. Dropping it does not withdraw the record.
    type Report: Future<Output = Result<kafka::Ack, kafka::Error>> + Send + Unpin + 'static;

    /// A new one.
    ///
    /// # Errors
    /// It cannot be made now.
    fn build(&self) -> Result<Self::Producer, kafka::Error>;

    /// Hands over a record before it returns, so the order of calls is the order of records.
    ///
    /// # Errors
    /// The record, with the reason why it was not taken.
    fn send(
        &self,
        producer: &Self::Producer,
        record: EncodedRecord,
    ) -> Result<Self::Report, kafka::SendError>;

    /// Whether this one has failed fatally.
    fn has_failed(&self, producer: &Self::Producer) -> bool;

    /// Waits until everything is reported, at most `limit`.
    fn flush(&self, producer: &Self::Producer, limit: Duration) -> impl Future<Output = ()> + Send;

    /// Reports as failed what has no report.
    fn purge(&self, producer: &Self::Producer);
}

/// Kafka's idempotent producers.
#[derive(Debug)]
pub struct KafkaProducers {
    /// How to reach Kafka.
    pub kafka: Kafka,
    /// What one may use.
    pub options: ProducerOptions,
}

impl ProducerFactory for KafkaProducers {
    type Producer = Producer;
    type Report = kafka::DeliveryFuture;

    fn build(&self) -> Result<Producer, kafka::Error> {
        Producer::new(&self.kafka, &self.options)
    }

    fn send(
        &self,
        producer: &Producer,
        record: EncodedRecord,
    ) -> Result<kafka::DeliveryFuture, kafka::SendError> {
        producer.send(record)
    }

    fn has_failed(&self, producer: &Producer) -> bool {
        producer.fatal().is_some()
    }

    async fn flush(&self, producer: &Producer, limit: Duration) {
        if let Err(error) = producer.flush(limit).await {
            tracing::info!(%error, "flush did not finish; unpublished deliveries stay in the spool");
        }
    }

    fn purge(&self, producer: &Producer) {
        producer.purge();
    }
}

/// The current producer.
pub(super) struct CurrentProducer<S: ProducerFactory> {
    producers: S,
    state: RwLock<ProducerState<S>>,
}

struct ProducerState<S: ProducerFactory> {
    built: Option<Arc<BuiltProducer<S>>>,
    /// After a failed build: when to try again, and the backoff.
    failed: Option<(Instant, Backoff)>,
    /// Number of producers that were built.
    count: u64,
}

/// One of the producers.
pub(super) struct BuiltProducer<S: ProducerFactory> {
    /// Which one: no other has this number.
    pub(super) number: u64,
    producer: S::Producer,
}

impl<S: ProducerFactory> CurrentProducer<S> {
    pub(super) fn new(producers: S) -> Self {
        let current =
            Self { producers, state: RwLock::new(ProducerState { built: None, failed: None, count: 0 }) };
        // At once: the first record of a fresh producer waits for its connection.
        current.get();
        current
    }

    /// The producer; `None` where none can be made now. After a failure it is tried again after growing waits, and each failure
    /// is logged, whatever the number of callers.
    pub(super) fn get(&self) -> Option<Arc<BuiltProducer<S>>> {
        if let Some(built) = &self.state.read().built {
            return Some(Arc::clone(built));
        }
        let mut state = self.state.write();
        let waits = state.failed.as_ref().is_some_and(|(again, _)| Instant::now() < *again);
        if state.built.is_none() && !waits {
            match self.producers.build() {
                Ok(producer) => {
                    let number = state.count;
                    *state = ProducerState {
                        built: Some(Arc::new(BuiltProducer { number, producer })),
                        failed: None,
                        count: number + 1,
                    };
                }
                Err(error) => {
                    let before = state.failed.take();
                    let mut backoff =
                        before.map_or_else(|| Backoff::new(PUBLISH_BACKOFF, 0), |(_, backoff)| backoff);
                    let wait = backoff.next_wait(Retry::Later).unwrap_or(PUBLISH_BACKOFF.longest);
                    state.failed = Some((Instant::now() + wait, backoff));
                    tracing::error!(error = %ErrorChain(&error), ?wait, "no producer can be made; deliveries are kept in the spool");
                }
            }
        }
        state.built.clone()
    }

    /// Lets go of a producer that failed fatally. Its records are reported as failed, and are sent again through the next.
    pub(super) fn replace_if_failed(&self) {
        let mut state = self.state.write();
        if state.built.as_ref().is_some_and(|built| self.producers.has_failed(&built.producer)) {
            tracing::warn!("producer failed fatally; rebuilding it");
            state.built = None;
        }
    }

    pub(super) async fn flush(&self, until: Instant) {
        let built = self.state.read().built.clone();
        if let Some(built) = built {
            self.producers.flush(&built.producer, until.saturating_duration_since(Instant::now())).await;
        }
    }

    pub(super) fn purge(&self) {
        if let Some(built) = &self.state.read().built {
            self.producers.purge(&built.producer);
        }
    }

    /// Hands the records of one part over, in order. `None` where the producer takes nothing now.
    pub(super) fn send(
        &self,
        built: &BuiltProducer<S>,
        records: Vec<PreparedRecord>,
    ) -> Option<(PendingReports<S>, Handed)> {
        let mut reports =
            PendingReports { waiting: VecDeque::new(), sent_at: Instant::now(), again: None, refused: None };
        for PreparedRecord { record, kind } in records {
            match self.producers.send(&built.producer, record) {
                Ok(delivery) => reports.waiting.push_back((kind, delivery)),
                Err(failed) if !reports.waiting.is_empty() => {
                    reports.failed(failed.error);
                    return Some((reports, Handed::InPart));
                }
                Err(failed) if failed.error.refuses_record() => {
                    reports.refused = Some(failed.error);
                    break;
                }
                Err(_) => return None,
            }
        }
        Some((reports, Handed::Whole))
    }
}

/// Records of one part that were handed over, or the first of which was refused; as a future, what their reports say together.
pub(super) struct PendingReports<S: ProducerFactory> {
    /// Those without a report, in order.
    waiting: VecDeque<(RecordKind, S::Report)>,
    sent_at: Instant,
    again: Option<kafka::Error>,
    refused: Option<kafka::Error>,
}

/// What the reports of a part say together.
#[derive(Debug)]
pub(super) enum PartReport {
    /// Kafka has all of them.
    Acknowledged,
    /// Kafka refuses one permanently, and has those before it.
    Refused(kafka::Error),
    /// All have to be sent again.
    Again(kafka::Error),
}

impl<S: ProducerFactory> PendingReports<S> {
    fn failed(&mut self, error: kafka::Error) {
        metrics::publish_failed(PublishStage::Produce);
        if error.refuses_record() {
            self.refused = Some(error);
        } else {
            self.again = Some(error);
        }
    }
}

impl<S: ProducerFactory> Future for PendingReports<S> {
    type Output = PartReport;

    /// Waits for all of them, and counts what Kafka has.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PartReport> {
        let reports = &mut *self;
        while let Some((kind, delivery)) = reports.waiting.front_mut() {
            let kind = *kind;
            match ready!(Pin::new(delivery).poll(context)) {
                Err(error) if error.persisted() != Persisted::Yes => reports.failed(error),
                Ok(_) | Err(_) => acknowledged(kind, reports.sent_at),
            }
            reports.waiting.pop_front();
        }
        Poll::Ready(match (reports.again.take(), reports.refused.take()) {
            (Some(error), _) => PartReport::Again(error),
            (None, Some(error)) => PartReport::Refused(error),
            (None, None) => PartReport::Acknowledged,
        })
    }
}

fn acknowledged(kind: RecordKind, sent_at: Instant) {
    match kind {
        RecordKind::Value(event) => {
            metrics::records_published(Origin::Webhook.name(), 1);
            if let Some((resource, outcome)) = event {
                metrics::accounting_event_published(resource, outcome);
            }
        }
        RecordKind::Letter(stage, class) => metrics::dead_letter_written(stage, class),
        RecordKind::Piece => return,
    }
    metrics::published_after(sent_at.elapsed());
}

/// A topic to which Kafka takes no records of a connector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishError {
    /// The connector's name.
    pub connector: String,
    /// The topic's name.
    pub topic: String,
    /// When Kafka first did not take a record.
    pub since: SystemTime,
    /// Kafka's last error.
    pub cause: String,
}

/// All topics to which Kafka takes no records, for `/health`: at most those that connectors have. A failed report adds its topic, the
/// next success removes it.
///
/// Nothing waits for it: the queue and its drain decide when a record is sent again. It logs when a topic starts to fail, when the cause
/// changes, and when it recovers.
#[derive(Debug, Default)]
pub(super) struct PublishErrors {
    /// Whether there are any: nearly never, and asked for every record.
    any: AtomicBool,
    known: Mutex<BTreeMap<(String, String), PublishError>>,
}

impl PublishErrors {
    /// Kafka did not take a record.
    pub(super) fn failed(&self, connector: &str, topic: &str, error: &kafka::Error) {
        let cause = ErrorChain(error).to_string();
        let mut known = self.known.lock();
        let reported =
            known.entry((connector.to_owned(), topic.to_owned())).or_insert_with(|| PublishError {
                connector: connector.to_owned(),
                topic: topic.to_owned(),
                since: SystemTime::now(),
                cause: String::new(),
            });
        if reported.cause != cause {
            tracing::warn!(
                connector,
                topic,
                error = cause,
                "Kafka does not take records; they are kept and sent again"
            );
        }
        reported.cause = cause;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Kafka took one.
    pub(super) fn acknowledged(&self, connector: &str, topic: &str) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut known = self.known.lock();
        if known.remove(&(connector.to_owned(), topic.to_owned())).is_some() {
            tracing::info!(connector, topic, "Kafka takes records again");
        }
        self.any.store(!known.is_empty(), Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Vec<PublishError> {
        self.known.lock().values().cloned().collect()
    }
}
