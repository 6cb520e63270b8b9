//! The one loop: next → prepare → send → progress → commit, until cancelled or finished.
//!
//! Each item is converted as a whole before its first record is sent, so that an item that cannot be converted becomes
//! one dead letter instead of half a delivery. Converted records wait in `ready`; the loop sends from its front, listens
//! to reports, commits what they settle and asks the source for more only while the byte bound allows.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    Content, DeadLetters, Error, Failure, Item, Original, Publisher, RecordSink, Source, Stage,
    progress::{Progress, Ticket},
};
use crate::{
    kafka, metrics,
    model::EncodedRecord,
    retry::{Backoff, Policy, Retry},
};

/// Bounds of one run.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that may be taken in and not settled; one larger item is let through alone.
    pub in_flight_bytes: usize,
    /// How long to wait for a cause that passes by itself before the run ends with its error.
    pub retry: Policy,
    /// How long to wait for reports once the run is cancelled; what is unsettled then is read again after a restart.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight_bytes: 64 << 20,
            retry: Policy {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(10),
                total: None,
            },
            drain: Duration::from_secs(10),
        }
    }
}

/// How a run ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The source has no more, and everything is settled and committed.
    Finished,
    /// It was told to stop; what was settled is committed.
    Cancelled,
}

/// Runs one source into one publisher.
pub struct Driver<'a, S: Source, K: RecordSink> {
    source: &'a mut S,
    publisher: &'a Publisher<K>,
    /// Where what cannot be published goes; `None` ends the run instead (`errors.tolerance=none`).
    dead_letters: Option<&'a DeadLetters>,
    limits: Limits,
    progress: Progress<S::Lane, S::Position>,
    pending: VecDeque<Item<S::Lane, S::Position>>,
    ready: VecDeque<Flight<S::Lane>>,
    reports: FuturesUnordered<BoxFuture<'static, Report<S::Lane>>>,
    in_flight_bytes: usize,
    backoff: Backoff,
    stalled_until: Option<Instant>,
}

/// One record on its way, with what is needed to settle it or to make it a dead letter.
struct Flight<L> {
    lane: L,
    ticket: Ticket,
    record: EncodedRecord,
    original: Arc<Original>,
    /// Bytes counted against the bound; freed when the flight is settled.
    size: usize,
    /// Origin label of a value, or the stage that made it a dead letter.
    kind: FlightKind,
}

#[derive(Clone, Copy)]
enum FlightKind {
    Value(&'static str),
    DeadLetter(Stage),
}

struct Report<L> {
    flight: Flight<L>,
    sent_at: Instant,
    outcome: Result<kafka::Ack, kafka::Error>,
}

impl<'a, S: Source, K: RecordSink> Driver<'a, S, K> {
    /// A run that has not begun.
    pub fn new(
        source: &'a mut S,
        publisher: &'a Publisher<K>,
        dead_letters: Option<&'a DeadLetters>,
        limits: Limits,
    ) -> Self {
        Self {
            source,
            publisher,
            dead_letters,
            limits,
            progress: Progress::default(),
            pending: VecDeque::new(),
            ready: VecDeque::new(),
            reports: FuturesUnordered::new(),
            in_flight_bytes: 0,
            backoff: Backoff::new(limits.retry, std::process::id().into()),
            stalled_until: None,
        }
    }

    /// Publishes what the source gives until it has no more, `cancel` fires, or something fails for good.
    ///
    /// Whatever the end, what was settled is committed first.
    pub async fn run(mut self, cancel: &CancellationToken) -> Result<End, Error> {
        let ended = self.drive(cancel).await;
        if !matches!(ended, Ok(End::Finished)) {
            self.drain().await;
        }
        self.commit_settled().await?;
        metrics::pipeline_queue(0, self.limits.in_flight_bytes);
        ended
    }

    async fn drive(&mut self, cancel: &CancellationToken) -> Result<End, Error> {
        let mut exhausted = false;
        loop {
            self.advance()?;
            self.commit_settled().await?;
            if exhausted && self.pending.is_empty() && self.progress.is_idle() {
                return Ok(End::Finished);
            }
            metrics::pipeline_queue(self.in_flight_bytes, self.limits.in_flight_bytes);

            let hungry = !exhausted && self.pending.is_empty() && self.stalled_until.is_none();
            let has_room = self.in_flight_bytes < self.limits.in_flight_bytes;
            let stalled_until = self.stalled_until;
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(End::Cancelled),
                Some(report) = self.reports.next(), if !self.reports.is_empty() => self.settle_ready(report)?,
                () = wait_until(stalled_until), if stalled_until.is_some() => self.stalled_until = None,
                items = self.source.next(), if hungry && has_room => match items {
                    Ok(Some(items)) => self.pending.extend(items),
                    Ok(None) => exhausted = true,
                    Err(error) => return Err(source_error(self.source, error)),
                },
            }
        }
    }

    /// Converts and sends as much as the bound and the moment allow.
    fn advance(&mut self) -> Result<(), Error> {
        while self.stalled_until.is_none() {
            if let Some(flight) = self.ready.pop_front() {
                self.send(flight)?;
            } else if self.in_flight_bytes < self.limits.in_flight_bytes
                && let Some(item) = self.pending.pop_front()
            {
                self.convert(item)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Turns an item into flights, or puts it back and stalls where the cause passes.
    fn convert(&mut self, item: Item<S::Lane, S::Position>) -> Result<(), Error> {
        let records = match &item.content {
            Content::Unreadable(failure) => {
                let failure = failure.clone();
                return self.dead_letter_item(item, None, &failure, &[]);
            }
            Content::Records(records) => records,
        };
        let mut prepared = Vec::with_capacity(records.len());
        for record in records {
            match self.publisher.preparer().prepare(record) {
                Ok(encoded) => prepared.push((encoded, FlightKind::Value(record.meta.origin.name()))),
                Err(source) => {
                    metrics::publish_failed(Stage::Convert);
                    let topic = self.publisher.preparer().topic_name(record.topic).to_string();
                    if source.concerns_one_record() {
                        let failure = Failure::new(Stage::Convert, source.class(), &source);
                        let headers = record.headers();
                        return self.dead_letter_item(item, Some(&topic), &failure, &headers);
                    }
                    let verdict = source.retry();
                    let error = Error::Convert { topic, source: Box::new(source) };
                    self.pending.push_front(item);
                    return self.stall(verdict, error);
                }
            }
        }
        self.backoff.reset();
        let ticket = self.progress.open(&item.lane, item.position, prepared.len());
        let original = Arc::new(item.original);
        for (record, kind) in prepared {
            self.enqueue(item.lane.clone(), ticket, record, Arc::clone(&original), kind);
        }
        Ok(())
    }

    fn dead_letter_item(
        &mut self,
        item: Item<S::Lane, S::Position>,
        destination: Option<&str>,
        failure: &Failure,
        headers: &[(&'static str, bytes::Bytes)],
    ) -> Result<(), Error> {
        let record = self.dead_letter(&item.original, destination, failure, headers)?;
        let ticket = self.progress.open(&item.lane, item.position, 1);
        let kind = FlightKind::DeadLetter(failure.stage);
        self.enqueue(item.lane, ticket, record, Arc::new(item.original), kind);
        Ok(())
    }

    fn dead_letter(
        &self,
        original: &Original,
        destination: Option<&str>,
        failure: &Failure,
        headers: &[(&'static str, bytes::Bytes)],
    ) -> Result<EncodedRecord, Error> {
        let Some(dead_letters) = self.dead_letters else {
            return Err(Error::Intolerable { class: failure.class, message: failure.message.clone() });
        };
        warn!(
            topic = %dead_letters.topic,
            class = failure.class,
            error = %failure.message,
            destination,
            "sending to the dead letters"
        );
        Ok(dead_letters.record(original, destination, failure, headers))
    }

    fn enqueue(
        &mut self,
        lane: S::Lane,
        ticket: Ticket,
        record: EncodedRecord,
        original: Arc<Original>,
        kind: FlightKind,
    ) {
        // The original is kept for a possible dead letter, so it counts too.
        let size = record.size() + original.key.len() + original.value.len();
        self.in_flight_bytes += size;
        self.ready.push_back(Flight { lane, ticket, record, original, size, kind });
    }

    /// Hands a record to the producer; a full queue puts it back and waits.
    fn send(&mut self, mut flight: Flight<S::Lane>) -> Result<(), Error> {
        let record = flight.record.clone();
        match self.publisher.sink().send(record) {
            Ok(delivery) => {
                let sent_at = Instant::now();
                self.reports.push(delivery.map(move |outcome| Report { flight, sent_at, outcome }).boxed());
                Ok(())
            }
            Err(kafka::SendError { error, .. }) if error.refuses_record() => {
                flight = self.refused(flight, error)?;
                self.ready.push_front(flight);
                Ok(())
            }
            Err(kafka::SendError { error: source, .. }) => {
                metrics::publish_failed(Stage::Produce);
                let verdict = source.retry();
                let error =
                    Error::Produce { topic: flight.record.topic.to_string(), source: Box::new(source) };
                self.ready.push_front(flight);
                self.stall(verdict, error)
            }
        }
    }

    /// The flight as a dead letter, or the error if it is one already.
    fn refused(&mut self, flight: Flight<S::Lane>, source: kafka::Error) -> Result<Flight<S::Lane>, Error> {
        metrics::publish_failed(Stage::Produce);
        if let FlightKind::DeadLetter(_) = flight.kind {
            return Err(Error::Produce { topic: flight.record.topic.to_string(), source: Box::new(source) });
        }
        let failure = Failure::new(Stage::Produce, source.class(), &source);
        let own: Vec<_> = flight.record.headers.clone();
        let record = self.dead_letter(&flight.original, Some(&flight.record.topic), &failure, &own)?;
        Ok(Flight { record, kind: FlightKind::DeadLetter(Stage::Produce), ..flight })
    }

    /// Takes one report and every further one that is there already, so that a burst costs one commit.
    fn settle_ready(&mut self, first: Report<S::Lane>) -> Result<(), Error> {
        let mut next = Some(first);
        while let Some(report) = next {
            self.settle(report)?;
            next = self.reports.next().now_or_never().flatten();
        }
        Ok(())
    }

    fn settle(&mut self, report: Report<S::Lane>) -> Result<(), Error> {
        let Report { flight, sent_at, outcome } = report;
        match outcome {
            Ok(_) => {
                match flight.kind {
                    FlightKind::Value(origin) => metrics::records_published(origin, 1),
                    FlightKind::DeadLetter(stage) => metrics::dead_letter_written(stage),
                }
                metrics::published_after(sent_at.elapsed());
                self.in_flight_bytes = self.in_flight_bytes.saturating_sub(flight.size);
                self.progress.settle(&flight.lane, flight.ticket);
                self.backoff.reset();
                Ok(())
            }
            Err(source) if source.refuses_record() => {
                let flight = self.refused(flight, source)?;
                self.ready.push_back(flight);
                Ok(())
            }
            // Sending this record again now would put it behind later ones of its key, which may be out already. The
            // run ends instead, and the next one reads from the last commit, in order.
            Err(source) => {
                metrics::publish_failed(Stage::Produce);
                Err(Error::Produce { topic: flight.record.topic.to_string(), source: Box::new(source) })
            }
        }
    }

    /// Waits out a passing cause before the next attempt, or ends the run with it.
    fn stall(&mut self, verdict: Retry, error: Error) -> Result<(), Error> {
        let Some(wait) = self.backoff.next_wait(verdict) else { return Err(error) };
        debug!(error = %error, wait_ms = wait.as_millis(), "waiting before the next attempt");
        self.stalled_until = Some(Instant::now() + wait);
        Ok(())
    }

    /// Listens to what is still in flight, so that as much as possible is committed before the end.
    async fn drain(&mut self) {
        let deadline = tokio::time::sleep(self.limits.drain);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                report = self.reports.next() => match report {
                    Some(Report { flight, outcome: Ok(_), .. }) => self.progress.settle(&flight.lane, flight.ticket),
                    Some(report) => debug!(topic = %report.flight.record.topic, "left unsettled at the end of the run"),
                    None => return,
                },
                () = &mut deadline => {
                    warn!(open = self.reports.len(), "run ended before all reports came; they are read again");
                    return;
                }
            }
        }
    }

    async fn commit_settled(&mut self) -> Result<(), Error> {
        for (lane, position) in self.progress.take_settled() {
            if let Err(error) = self.source.commit(&lane, &position).await {
                return Err(source_error(self.source, error));
            }
        }
        Ok(())
    }
}

fn source_error<S: Source>(source: &S, error: S::Error) -> Error {
    Error::Source { retry: source.retry(&error), source: Box::new(error) }
}

async fn wait_until(moment: Option<Instant>) {
    if let Some(moment) = moment {
        tokio::time::sleep_until(moment.into()).await;
    }
}
