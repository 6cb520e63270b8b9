//! The one loop: next → prepare → send → progress → commit, until cancelled or finished.
//!
//! Each item is converted as a whole before its first record is sent, so that an item that cannot be converted becomes
//! one dead letter instead of half a delivery. Converted records wait in `ready`; the loop sends from its front, listens
//! to reports, commits what they settle and asks the source for more only while the bounds allow.

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
    config, kafka, metrics,
    model::EncodedRecord,
    retry::{Backoff, Policy, Retry},
};

/// Bounds of one run.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that may be taken in and not settled. An item is taken in whole while there is room at all, so the sum may
    /// pass the bound by one item.
    pub in_flight_bytes: usize,
    /// Positions that may be open; items without records weigh no bytes but are remembered behind a slow one.
    pub open_positions: usize,
    /// How long to wait for a cause that passes by itself before the run ends with its error.
    pub retry: Policy,
    /// How long to wait for reports once the run is cancelled; what is unsettled then is read again after a restart.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight_bytes: 32 << 20,
            open_positions: 100_000,
            retry: PATIENT,
            drain: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// What a connector's configuration asks for.
    #[must_use]
    pub fn of(worker: &config::Worker, errors: &config::connector::Errors) -> Self {
        Self {
            in_flight_bytes: worker.pipeline_in_flight_bytes,
            retry: errors.retry,
            // A quarter of what there is: listeners, other tasks and the producer want their share.
            drain: worker.shutdown_timeout / 4,
            ..Self::default()
        }
    }
}

/// For what always passes, such as a full queue.
const PATIENT: Policy =
    Policy { first: Duration::from_millis(10), longest: Duration::from_secs(10), total: None };

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
    /// Settled and not yet committed, in the order it was settled.
    uncommitted: Vec<(S::Lane, S::Position)>,
    backoff: Backoff,
    queue_backoff: Backoff,
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
    /// Origin label of a value, or the stage and the class of error that made it a dead letter.
    kind: FlightKind,
}

#[derive(Clone, Copy)]
enum FlightKind {
    Value(&'static str),
    DeadLetter(Stage, &'static str),
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
            uncommitted: Vec::new(),
            backoff: Backoff::new(limits.retry, std::process::id().into()),
            queue_backoff: Backoff::new(PATIENT, std::process::id().into()),
            stalled_until: None,
        }
    }

    /// Publishes what the source gives until it has no more, `cancel` fires, or something fails for good.
    ///
    /// Whatever the end, what was settled is committed first, as far as the drain limit lets it.
    pub async fn run(mut self, cancel: &CancellationToken) -> Result<End, Error> {
        metrics::pipeline_limit_changed(signed(self.limits.in_flight_bytes));
        let ended = tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(End::Cancelled),
            ended = self.drive() => ended,
        };
        if !matches!(ended, Ok(End::Finished)) {
            let limit = self.limits.drain;
            let rest = async {
                self.drain().await;
                self.commit_settled().await
            };
            match tokio::time::timeout(limit, rest).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    warn!(error = %error, "what was settled last is not committed and comes again")
                }
                Err(_) => {
                    warn!(?limit, "the run ended before all was reported and committed; the rest comes again")
                }
            }
        }
        metrics::pipeline_queue_changed(-signed(self.in_flight_bytes));
        metrics::pipeline_limit_changed(-signed(self.limits.in_flight_bytes));
        ended
    }

    /// Everything kept in `self` is whole at every await: the run is cancelled by dropping this.
    async fn drive(&mut self) -> Result<End, Error> {
        let mut exhausted = false;
        loop {
            self.advance()?;
            self.commit_settled().await?;
            if exhausted && self.pending.is_empty() && self.progress.is_idle() {
                return Ok(End::Finished);
            }

            let hungry = !exhausted && self.pending.is_empty() && self.stalled_until.is_none();
            let has_room = self.has_room();
            let stalled_until = self.stalled_until;
            tokio::select! {
                biased;
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
            } else if self.has_room()
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
                metrics::publish_failed(failure.stage);
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
        // The original is kept for a possible dead letter, so it weighs too; once, however many records it became.
        let mut kept = item.original.size();
        let original = Arc::new(item.original);
        for (record, kind) in prepared {
            let size = record.size() + std::mem::take(&mut kept);
            let original = Arc::clone(&original);
            self.enqueue(Flight { lane: item.lane.clone(), ticket, record, original, size, kind });
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
        let (size, kind) = (record.size(), FlightKind::DeadLetter(failure.stage, failure.class));
        self.enqueue(Flight {
            lane: item.lane,
            ticket,
            record,
            original: Arc::new(item.original),
            size,
            kind,
        });
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
        dead_letters.log(destination, failure);
        Ok(dead_letters.record(original, destination, failure, headers))
    }

    fn enqueue(&mut self, flight: Flight<S::Lane>) {
        self.in_flight_bytes += flight.size;
        metrics::pipeline_queue_changed(signed(flight.size));
        self.ready.push_back(flight);
    }

    fn has_room(&self) -> bool {
        self.in_flight_bytes < self.limits.in_flight_bytes
            && self.progress.open_positions() < self.limits.open_positions
    }

    /// Hands a record to the producer; a full queue puts it back and waits.
    fn send(&mut self, mut flight: Flight<S::Lane>) -> Result<(), Error> {
        let record = flight.record.clone();
        match self.publisher.sink().send(record) {
            Ok(delivery) => {
                self.queue_backoff.reset();
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
                let Some(wait) = self.queue_backoff.next_wait(source.retry()) else {
                    return Err(produce_error(&flight.record, source));
                };
                // The queue is full: not a failure, only a moment too early, however short retries are set.
                self.ready.push_front(flight);
                self.stalled_until = Some(Instant::now() + wait);
                Ok(())
            }
        }
    }

    /// The flight as a dead letter, or the error if it is one already.
    fn refused(&mut self, flight: Flight<S::Lane>, source: kafka::Error) -> Result<Flight<S::Lane>, Error> {
        if let FlightKind::DeadLetter(..) = flight.kind {
            return Err(produce_error(&flight.record, source));
        }
        metrics::publish_failed(Stage::Produce);
        let failure = Failure::new(Stage::Produce, source.class(), &source);
        let own: Vec<_> = flight.record.headers.clone();
        let record = self.dead_letter(&flight.original, Some(&flight.record.topic), &failure, &own)?;
        Ok(Flight { record, kind: FlightKind::DeadLetter(failure.stage, failure.class), ..flight })
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
                self.acknowledged(&flight, sent_at);
                Ok(())
            }
            Err(source) if source.refuses_record() => {
                let flight = self.refused(flight, source)?;
                self.ready.push_back(flight);
                Ok(())
            }
            // Sending this record again now would put it behind later ones of its key, which may be out already. The
            // run ends instead, and the next one reads from the last commit, in order.
            Err(source) => Err(produce_error(&flight.record, source)),
        }
    }

    fn acknowledged(&mut self, flight: &Flight<S::Lane>, sent_at: Instant) {
        match flight.kind {
            FlightKind::Value(origin) => metrics::records_published(origin, 1),
            FlightKind::DeadLetter(stage, class) => metrics::dead_letter_written(stage, class),
        }
        metrics::published_after(sent_at.elapsed());
        metrics::pipeline_queue_changed(-signed(flight.size));
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(flight.size);
        self.progress.settle(&flight.lane, flight.ticket);
    }

    /// Waits out a passing cause before the next attempt, or ends the run with it.
    fn stall(&mut self, verdict: Retry, error: Error) -> Result<(), Error> {
        let first = self.backoff.is_fresh();
        let Some(wait) = self.backoff.next_wait(verdict) else { return Err(error) };
        if first {
            warn!(error = %error, "the pipeline waits for this to pass");
        }
        self.stalled_until = Some(Instant::now() + wait);
        Ok(())
    }

    /// Listens to what is still in flight, so that as much as possible is committed before the end.
    async fn drain(&mut self) {
        while let Some(Report { flight, sent_at, outcome }) = self.reports.next().await {
            match outcome {
                Ok(_) => self.acknowledged(&flight, sent_at),
                Err(error) => {
                    debug!(topic = %flight.record.topic, %error, "left unsettled at the end of the run")
                }
            }
        }
    }

    /// Commits every lane that moved. One that fails does not hold back the others; the first error is returned.
    async fn commit_settled(&mut self) -> Result<(), Error> {
        for (lane, position) in self.progress.take_settled() {
            self.uncommitted.retain(|(other, _)| *other != lane);
            self.uncommitted.push((lane, position));
        }
        let mut first_error = None;
        let mut failed = Vec::new();
        // A position leaves the list only once it is committed: this may be dropped at the await and called again.
        while let Some((lane, position)) = self.uncommitted.last().cloned() {
            let committed = self.source.commit(&lane, &position).await;
            failed.extend(self.uncommitted.pop().filter(|_| committed.is_err()));
            if let Err(error) = committed {
                first_error.get_or_insert(source_error(self.source, error));
            }
        }
        self.uncommitted = failed;
        first_error.map_or(Ok(()), Err)
    }
}

fn produce_error(record: &EncodedRecord, source: kafka::Error) -> Error {
    metrics::publish_failed(Stage::Produce);
    Error::Produce { topic: record.topic.to_string(), source: Box::new(source) }
}

/// Sizes in memory fit.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn source_error<S: Source>(source: &S, error: S::Error) -> Error {
    Error::Source { retry: source.retry(&error), source: Box::new(error) }
}

async fn wait_until(moment: Option<Instant>) {
    if let Some(moment) = moment {
        tokio::time::sleep_until(moment.into()).await;
    }
}
