//! The producer of the moment: built when first needed, built anew once it is over.

use std::{
    future::Future,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    lane::NotSent,
    prepare::{Kind, Prepared},
};
use crate::{
    config::Kafka,
    kafka::{self, Persisted, Producer, ProducerOptions},
    metrics,
    model::Origin,
    pipeline::{RecordSink, Stage},
};

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
        let current = Self { sinks, current: RwLock::new(None), count: AtomicU64::new(0) };
        // At once: the first record of a fresh producer waits for its connection.
        current.get();
        current
    }

    /// The producer; `None` where none can be made now.
    pub(super) fn get(&self) -> Option<Built<S::Sink>> {
        if let Some(built) = &*self.current.read().unwrap_or_else(PoisonError::into_inner) {
            return Some(built.clone());
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.is_none() {
            match self.sinks.build() {
                Ok(sink) => {
                    let number = self.count.fetch_add(1, Ordering::Relaxed);
                    *current = Some(Built { number, sink: Arc::new(sink) });
                }
                Err(error) => tracing::error!(%error, "no producer can be made"),
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

/// Records of one part that were handed over.
pub(super) struct Reports<K: RecordSink> {
    first: Option<(Kind, K::Delivery)>,
    others: Vec<(Kind, K::Delivery)>,
    sent_at: Instant,
    /// Why not all of them were.
    broken: Option<kafka::Error>,
}

/// What the reports of a part say together.
#[derive(Debug)]
pub(super) enum Report {
    /// Kafka has all of them.
    Landed,
    /// Kafka refuses one for good, and has the others.
    Refused(kafka::Error),
    /// All have to be sent again.
    Again(kafka::Error),
}

/// Hands records over, in order.
pub(super) fn send<K: RecordSink>(
    sink: &K,
    records: Vec<Prepared>,
) -> Result<Reports<K>, NotSent<kafka::Error>> {
    let mut reports = Reports { first: None, others: Vec::new(), sent_at: Instant::now(), broken: None };
    for Prepared { record, kind } in records {
        match sink.send(record) {
            Ok(delivery) if reports.first.is_none() => reports.first = Some((kind, delivery)),
            Ok(delivery) => reports.others.push((kind, delivery)),
            Err(refused) if reports.first.is_some() => {
                reports.broken = Some(refused.error);
                break;
            }
            Err(refused) if refused.error.refuses_record() => return Err(NotSent::Refused(refused.error)),
            Err(_) => return Err(NotSent::Later),
        }
    }
    Ok(reports)
}

impl<K: RecordSink> Reports<K> {
    /// Waits for all of them, and counts what Kafka has.
    pub(super) async fn all(self) -> Report {
        let (mut again, mut refused) = (None, None);
        let mut sort = |kind: Option<Kind>, error: kafka::Error| {
            if error.persisted() == Persisted::Yes {
                if let Some(kind) = kind {
                    landed(kind, self.sent_at);
                }
            } else if error.refuses_record() {
                metrics::publish_failed(Stage::Produce);
                refused = Some(error);
            } else {
                metrics::publish_failed(Stage::Produce);
                again = Some(error);
            }
        };
        for (kind, delivery) in self.first.into_iter().chain(self.others) {
            match delivery.await {
                Ok(_) => landed(kind, self.sent_at),
                Err(error) => sort(Some(kind), error),
            }
        }
        if let Some(error) = self.broken {
            sort(None, error);
        }
        match (again, refused) {
            (Some(error), _) => Report::Again(error),
            (None, Some(error)) => Report::Refused(error),
            (None, None) => Report::Landed,
        }
    }
}

fn landed(kind: Kind, sent_at: Instant) {
    match kind {
        Kind::Value => metrics::records_published(Origin::Webhook.name(), 1),
        Kind::Letter(stage) => metrics::dead_letter_written(stage),
        Kind::Piece => return,
    }
    metrics::published_after(sent_at.elapsed());
}
