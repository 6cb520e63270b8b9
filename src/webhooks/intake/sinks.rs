//! The producer of the moment: built when first needed, built anew once it is over.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

use base::{
    metrics,
    retry::{Backoff, Chain, Retry},
};
use kafka::{Kafka, Persisted, Producer, ProducerOptions};
use model::{EncodedRecord, Origin};

use super::{
    AGAIN,
    lane::{Handed, NotSent},
    prepare::{Kind, Prepared},
};
use crate::pipeline::Stage;

/// Takes records in order and reports on each: a Kafka producer, or the double of a test.
///
/// `send` hands over the record before it returns, so the order of calls is the order of records. The returned future is only the
/// report: dropping it does not withdraw the record.
pub trait RecordSink: Send + Sync {
    /// The report.
    type Delivery: Future<Output = Result<kafka::Ack, kafka::Error>> + Send + Unpin + 'static;

    /// Hands over a record.
    ///
    /// # Errors
    /// The record, with the reason why it was not taken.
    fn send(&self, record: EncodedRecord) -> Result<Self::Delivery, kafka::SendError>;
}

impl RecordSink for Producer {
    type Delivery = kafka::Delivery;

    fn send(&self, record: EncodedRecord) -> Result<kafka::Delivery, kafka::SendError> {
        Self::send(self, record)
    }
}

/// Makes producers. Kafka's, or those of a test.
pub trait Sinks: Send + Sync + 'static {
    /// What records are handed to.
    type Sink: RecordSink + 'static;

    /// A new one.
    ///
    /// # Errors
    /// It cannot be made now.
    fn build(&self) -> Result<Self::Sink, kafka::Error>;

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

    fn build(&self) -> Result<Producer, kafka::Error> {
        Producer::new(&self.kafka, &self.options)
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
    current: RwLock<Option<Built<S::Sink>>>,
    /// When the next is tried after one that could not be made, and how long to wait if it cannot be either.
    failed: Mutex<Option<(Instant, Backoff)>>,
    /// How many were built.
    count: AtomicU64,
}

/// One of the producers.
pub(super) struct Built<K> {
    /// Which one: no other has this number.
    pub(super) number: u64,
    pub(super) sink: Arc<K>,
}

impl<K> Clone for Built<K> {
    fn clone(&self) -> Self {
        Self { number: self.number, sink: Arc::clone(&self.sink) }
    }
}

impl<S: Sinks> Current<S> {
    pub(super) fn new(sinks: S) -> Self {
        let (current, failed) = (RwLock::new(None), Mutex::new(None));
        let current = Self { sinks, current, failed, count: AtomicU64::new(0) };
        // At once: the first record of a fresh producer waits for its connection.
        current.get();
        current
    }

    /// The producer; `None` where none can be made now. That is tried and told after growing waits, however many ask.
    pub(super) fn get(&self) -> Option<Built<S::Sink>> {
        if let Some(built) = &*self.current.read().unwrap_or_else(PoisonError::into_inner) {
            return Some(built.clone());
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.as_ref().is_some_and(|(again, _)| Instant::now() < *again) {
            return None;
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.is_none() {
            match self.sinks.build() {
                Ok(sink) => {
                    *failed = None;
                    let number = self.count.fetch_add(1, Ordering::Relaxed);
                    *current = Some(Built { number, sink: Arc::new(sink) });
                }
                Err(error) => {
                    let mut backoff =
                        failed.take().map_or_else(|| Backoff::new(AGAIN, 0), |(_, backoff)| backoff);
                    let wait = backoff.next_wait(Retry::Later).unwrap_or(AGAIN.longest);
                    *failed = Some((Instant::now() + wait, backoff));
                    tracing::error!(error = %Chain(&error), ?wait, "no producer can be made; deliveries are kept in the spool");
                }
            }
        }
        current.clone()
    }

    /// Lets go of a producer that is over. Its records are reported as failed, and are sent again through the next.
    pub(super) fn replace_if_over(&self) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|built| self.sinks.is_over(&built.sink)) {
            tracing::warn!("the producer is over and is built anew");
            *current = None;
        }
    }

    pub(super) async fn flush(&self, until: Instant) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(Built { sink, .. }) = current {
            self.sinks.flush(&sink, until.saturating_duration_since(Instant::now())).await;
        }
    }

    pub(super) fn purge(&self) {
        if let Some(Built { sink, .. }) = &*self.current.read().unwrap_or_else(PoisonError::into_inner) {
            self.sinks.purge(sink);
        }
    }
}

/// Records of one part that were handed over; as a future, what their reports say together.
pub(super) struct Reports<K: RecordSink> {
    /// The one whose report is awaited.
    next: Option<(Kind, K::Delivery)>,
    others: VecDeque<(Kind, K::Delivery)>,
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

/// Hands records over, in order.
pub(super) fn send<K: RecordSink>(
    sink: &K,
    records: Vec<Prepared>,
) -> Result<(Reports<K>, Handed), NotSent<kafka::Error>> {
    let mut reports =
        Reports { next: None, others: VecDeque::new(), sent_at: Instant::now(), again: None, refused: None };
    for Prepared { record, kind } in records {
        match sink.send(record) {
            Ok(delivery) if reports.next.is_none() => reports.next = Some((kind, delivery)),
            Ok(delivery) => reports.others.push_back((kind, delivery)),
            Err(failed) if reports.next.is_some() => {
                reports.failed(failed.error);
                return Ok((reports, Handed::InPart));
            }
            Err(failed) if failed.error.refuses_record() => return Err(NotSent::Refused(failed.error)),
            Err(_) => return Err(NotSent::Later),
        }
    }
    Ok((reports, Handed::Whole))
}

impl<K: RecordSink> Reports<K> {
    fn failed(&mut self, error: kafka::Error) {
        metrics::publish_failed(Stage::Produce);
        if error.refuses_record() {
            self.refused = Some(error);
        } else {
            self.again = Some(error);
        }
    }
}

impl<K: RecordSink> Future for Reports<K> {
    type Output = Report;

    /// Waits for all of them, and counts what Kafka has.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Report> {
        let reports = &mut *self;
        while let Some((kind, delivery)) = &mut reports.next {
            let kind = *kind;
            match ready!(Pin::new(delivery).poll(context)) {
                Err(error) if error.persisted() != Persisted::Yes => reports.failed(error),
                Ok(_) | Err(_) => landed(kind, reports.sent_at),
            }
            reports.next = reports.others.pop_front();
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
