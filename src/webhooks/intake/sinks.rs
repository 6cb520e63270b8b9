//! The producer of the moment: built when first needed, built anew once it is over.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::RwLock;
use tokio::time::Instant;

use base::{
    metrics,
    retry::{Backoff, ErrorChain, Retry},
};
use kafka::{Kafka, Persisted, Producer, ProducerOptions};
use model::{EncodedRecord, Origin};

use super::{
    PUBLISH_BACKOFF,
    lane::Handed,
    prepare::{Kind, Prepared},
};
use crate::publish::PublishStage;

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
    type Delivery = kafka::DeliveryFuture;

    fn build(&self) -> Result<Producer, kafka::Error> {
        Producer::new(&self.kafka, &self.options)
    }

    fn send(
        &self,
        sink: &Producer,
        record: EncodedRecord,
    ) -> Result<kafka::DeliveryFuture, kafka::SendError> {
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
                    tracing::error!(error = %ErrorChain(&error), ?wait, "no producer can be made; deliveries are kept in the spool");
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
        metrics::publish_failed(PublishStage::Produce);
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
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Report> {
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
