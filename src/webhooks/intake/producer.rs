//! From a delivery to Kafka: its records as bytes, the producer of the moment, and what the reports of a part say together.
//!
//! The producer is built when first needed, and rebuilt once it has failed fatally. What Kafka does not take of a connector is kept
//! for people in [`Troubles`]: a report that is not a success puts its topic there, the next success takes it out again. Nothing waits
//! for it: whether and when a record is sent again is the lane's and the drain's. The log gets a line when it begins, when Kafka
//! gives another cause, and when it is over, however many records that concerns.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    iter,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context as TaskContext, Poll, ready},
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use base::{
    metrics,
    retry::{Backoff, Chain, Retry},
};
use kafka::{Kafka, Persisted, Producer, ProducerOptions};
use model::{EncodedRecord, Error as ModelError, Origin, Outgoing};

use super::{PUBLISH_BACKOFF, partition_queue::Handed};
use crate::{
    publish::{DeadLetters, Failure, Preparer, Stage},
    webhooks::{
        dead_letter,
        delivery::{Context, Delivery},
    },
};

/// What it takes to write for a connector.
#[derive(Clone)]
pub struct Ready {
    /// Makes records.
    pub preparer: Preparer,
    /// Makes dead letters.
    pub dead_letters: DeadLetters,
}

/// Who knows which connectors can be written for.
pub trait Openings: Send + Sync {
    /// The means to write for the connector that received this; `None` while its topics or schemas are not there yet, and
    /// while it is paused.
    fn ready(&self, context: &Context) -> Option<Arc<Ready>>;

    /// The topics that this is written to are not there any more: they are to be looked for, or made, again.
    fn doubt(&self, context: &Context);

    /// Returns when that may have changed.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// What goes to Kafka.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) record: EncodedRecord,
    pub(super) kind: Kind,
}

/// What a record counts as once Kafka has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An event.
    Value,
    /// A dead letter, or the first piece of one; for an error of this class.
    Letter(Stage, &'static str),
    /// Another piece.
    Piece,
}

/// The records of a part; `None` where something is missing that comes by itself. What the schema refuses becomes a dead letter.
pub(super) fn records(
    ready: &Ready,
    delivery: &Delivery,
    content: Result<Vec<Outgoing>, ModelError>,
) -> Option<Vec<Prepared>> {
    let outgoing = match content {
        Ok(outgoing) => outgoing,
        Err(error) => {
            let failure = Failure::new(Stage::Read, error.class(), &error);
            return Some(letters(ready, delivery, None, &failure, 1));
        }
    };
    let mut records = Vec::with_capacity(outgoing.len());
    let mut refused = Vec::new();
    for record in outgoing {
        match ready.preparer.prepare(&record) {
            Ok(record) => records.push(Prepared { record, kind: Kind::Value }),
            Err(error) if error.retry().is_retriable() => return None,
            Err(error) => refused.push((record, Failure::new(Stage::Convert, error.class(), &error))),
        }
    }
    if let Some((record, failure)) = refused.first() {
        // Each letter has the whole body: of many, one stands for the delivery.
        let meant = (refused.len() == 1).then_some(record);
        records.extend(letters(ready, delivery, meant, failure, 1));
    }
    Some(records)
}

/// The dead letter of a delivery, ready to be sent; see [`dead_letter::records`].
pub(super) fn letters(
    ready: &Ready,
    delivery: &Delivery,
    meant: Option<&Outgoing>,
    failure: &Failure,
    pieces: usize,
) -> Vec<Prepared> {
    let topic = meant.map(|record| ready.preparer.topic_name(record.topic));
    let meant = meant.map(|record| &*record.meta.id).zip(topic.as_deref());
    let records = dead_letter::records(&ready.dead_letters, delivery, meant, failure, pieces);
    let first = iter::once(Kind::Letter(failure.stage, failure.class));
    let kinds = first.chain(iter::repeat(Kind::Piece));
    records.into_iter().zip(kinds).map(|(record, kind)| Prepared { record, kind }).collect()
}

/// Makes producers and uses them: Kafka's, or those of a test.
pub trait Sinks: Send + Sync + 'static {
    /// Takes records in order and reports on each.
    type Sink: Send + Sync + 'static;
    /// The report on a record. Dropping it does not withdraw the record.
    type Delivery: Future<Output = Result<kafka::Ack, kafka::Error>> + Send + Unpin + 'static;

    /// A new one.
    ///
    /// # Errors
    /// It cannot be made now.
    fn build(&self) -> Result<Self::Sink, kafka::Error>;

    /// Hands over a record before it returns, so the order of calls is the order of records.
    ///
    /// # Errors
    /// The record, with the reason why it was not taken.
    fn send(&self, sink: &Self::Sink, record: EncodedRecord) -> Result<Self::Delivery, kafka::SendError>;

    /// Whether this one sends nothing any more.
    fn is_over(&self, sink: &Self::Sink) -> bool;

    /// Waits until everything is reported, or the time is over.
    fn flush(&self, sink: &Self::Sink, limit: Duration) -> impl Future<Output = ()> + Send;

    /// Gives up what is not reported.
    fn purge(&self, sink: &Self::Sink);
}

/// Kafka's idempotent producers.
#[derive(Debug)]
pub struct Producers {
    /// How to reach Kafka.
    pub kafka: Kafka,
    /// What one may use.
    pub options: ProducerOptions,
}

impl Sinks for Producers {
    type Sink = Producer;
    type Delivery = kafka::Delivery;

    fn build(&self) -> Result<Producer, kafka::Error> {
        Producer::new(&self.kafka, &self.options)
    }

    fn send(&self, sink: &Producer, record: EncodedRecord) -> Result<kafka::Delivery, kafka::SendError> {
        sink.send(record)
    }

    fn is_over(&self, sink: &Producer) -> bool {
        sink.fatal().is_some()
    }

    async fn flush(&self, sink: &Producer, limit: Duration) {
        if let Err(error) = sink.flush(limit).await {
            tracing::info!(%error, "what is not published is in the spool");
        }
    }

    fn purge(&self, sink: &Producer) {
        sink.purge();
    }
}

/// The producer of the moment.
pub(super) struct Current<S: Sinks> {
    sinks: S,
    state: RwLock<State<S>>,
}

struct State<S: Sinks> {
    built: Option<Arc<Built<S>>>,
    /// When the next is tried after one that could not be made, and how long to wait if it cannot be either.
    failed: Option<(Instant, Backoff)>,
    /// How many were built.
    count: u64,
}

/// One of the producers.
pub(super) struct Built<S: Sinks> {
    /// Which one: no other has this number.
    pub(super) number: u64,
    sink: S::Sink,
}

impl<S: Sinks> Current<S> {
    pub(super) fn new(sinks: S) -> Self {
        let current = Self { sinks, state: RwLock::new(State { built: None, failed: None, count: 0 }) };
        // At once: the first record of a fresh producer waits for its connection.
        current.get();
        current
    }

    /// The producer; `None` where none can be made now. After a failure it is tried again after growing waits, and each failure
    /// is logged, whatever the number of callers.
    pub(super) fn get(&self) -> Option<Arc<Built<S>>> {
        if let Some(built) = &self.state.read().built {
            return Some(Arc::clone(built));
        }
        let mut state = self.state.write();
        let waits = state.failed.as_ref().is_some_and(|(again, _)| Instant::now() < *again);
        if state.built.is_none() && !waits {
            match self.sinks.build() {
                Ok(sink) => {
                    let number = state.count;
                    *state = State {
                        built: Some(Arc::new(Built { number, sink })),
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
                    tracing::error!(error = %Chain(&error), ?wait, "no producer can be made; deliveries are kept in the spool");
                }
            }
        }
        state.built.clone()
    }

    /// Lets go of a producer that failed fatally. Its records are reported as failed, and are sent again through the next.
    pub(super) fn replace_if_over(&self) {
        let mut state = self.state.write();
        if state.built.as_ref().is_some_and(|built| self.sinks.is_over(&built.sink)) {
            tracing::warn!("producer failed fatally; rebuilding it");
            state.built = None;
        }
    }

    pub(super) async fn flush(&self, until: Instant) {
        let built = self.state.read().built.clone();
        if let Some(built) = built {
            self.sinks.flush(&built.sink, until.saturating_duration_since(Instant::now())).await;
        }
    }

    pub(super) fn purge(&self) {
        if let Some(built) = &self.state.read().built {
            self.sinks.purge(&built.sink);
        }
    }

    /// Hands the records of one part over, in order. `None` where the producer takes nothing now.
    pub(super) fn send(&self, built: &Built<S>, records: Vec<Prepared>) -> Option<(Reports<S>, Handed)> {
        let mut reports =
            Reports { waiting: VecDeque::new(), sent_at: Instant::now(), again: None, refused: None };
        for Prepared { record, kind } in records {
            match self.sinks.send(&built.sink, record) {
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
pub(super) struct Reports<S: Sinks> {
    /// Those without a report, in order.
    waiting: VecDeque<(Kind, S::Delivery)>,
    sent_at: Instant,
    again: Option<kafka::Error>,
    refused: Option<kafka::Error>,
}

/// What the reports of a part say together.
#[derive(Debug)]
pub(super) enum Report {
    /// Kafka has all of them.
    Landed,
    /// Kafka refuses one for good, and has those before it.
    Refused(kafka::Error),
    /// All have to be sent again.
    Again(kafka::Error),
}

impl<S: Sinks> Reports<S> {
    fn failed(&mut self, error: kafka::Error) {
        metrics::publish_failed(Stage::Produce);
        if error.refuses_record() {
            self.refused = Some(error);
        } else {
            self.again = Some(error);
        }
    }
}

impl<S: Sinks> Future for Reports<S> {
    type Output = Report;

    /// Waits for all of them, and counts what Kafka has.
    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Report> {
        let reports = &mut *self;
        while let Some((kind, delivery)) = reports.waiting.front_mut() {
            let kind = *kind;
            match ready!(Pin::new(delivery).poll(context)) {
                Err(error) if error.persisted() != Persisted::Yes => reports.failed(error),
                Ok(_) | Err(_) => landed(kind, reports.sent_at),
            }
            reports.waiting.pop_front();
        }
        Poll::Ready(match (reports.again.take(), reports.refused.take()) {
            (Some(error), _) => Report::Again(error),
            (None, Some(error)) => Report::Refused(error),
            (None, None) => Report::Landed,
        })
    }
}

fn landed(kind: Kind, sent_at: Instant) {
    match kind {
        Kind::Value => metrics::records_published(Origin::Webhook.name(), 1),
        Kind::Letter(stage, class) => metrics::dead_letter_written(stage, class),
        Kind::Piece => return,
    }
    metrics::published_after(sent_at.elapsed());
}

/// A connector whose records Kafka does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Its name.
    pub connector: String,
    /// The topic they are for.
    pub topic: String,
    /// The first of them was reported then.
    pub since: SystemTime,
    /// What Kafka said last.
    pub cause: String,
}

/// All of them. There are no more than connectors have topics.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// Whether there are any: nearly never, and asked for every record.
    any: AtomicBool,
    known: Mutex<BTreeMap<(String, String), Trouble>>,
}

impl Troubles {
    /// Kafka did not take a record.
    pub(super) fn failed(&self, connector: &str, topic: &str, error: &kafka::Error) {
        let cause = Chain(error).to_string();
        let mut known = self.known.lock();
        let trouble = known.entry((connector.to_owned(), topic.to_owned())).or_insert_with(|| Trouble {
            connector: connector.to_owned(),
            topic: topic.to_owned(),
            since: SystemTime::now(),
            cause: String::new(),
        });
        if trouble.cause != cause {
            tracing::warn!(
                connector,
                topic,
                error = cause,
                "Kafka does not take records; they are kept and sent again"
            );
        }
        trouble.cause = cause;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Kafka took one.
    pub(super) fn landed(&self, connector: &str, topic: &str) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut known = self.known.lock();
        if known.remove(&(connector.to_owned(), topic.to_owned())).is_some() {
            tracing::info!(connector, topic, "Kafka takes records again");
        }
        self.any.store(!known.is_empty(), Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Vec<Trouble> {
        self.known.lock().values().cloned().collect()
    }
}
