//! One part of a delivery: from the producer's queue to the answer, and on until it is published or only the spool has it.
//!
//! ```text
//! direct ── report ──▶ acknowledged ─▶ Durable
//!    │         ├─ refused for good ──▶ dead letter ─▶ Durable
//!    │         └─ to be sent again ──▶ its lane goes behind; spool copy at the deadline ─▶ Durable
//!    └─ no report by the deadline ──▶ spool copy ─▶ Durable; the late report removes the copy
//! behind ─▶ spool ─▶ Durable; the drain publishes it
//! ```
//!
//! [`Shared::see_through`] runs all parts of a delivery in the request that waits for the answer: a task for each delivery would
//! cost as much as the rest of its way. When the request ends first, because it has its answer or its sender hangs up, a task
//! runs what is left. A part that panics is answered [`Outcome::Late`] and leaves its lane usable; the other parts go on.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, join, join_all},
};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{SetOnce, oneshot},
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::task::task_tracker::TrackedFuture;

use base::{
    failpoint, metrics,
    retry::{Backoff, Chain, Retry},
};

use super::{
    Intake, Item, Line, Outcome, PUBLISH_BACKOFF, Shared,
    partition_queue::Lane,
    producer::{self, Report, Reports, Sinks},
};
use crate::{
    publish::{Failure, Stage},
    spool::{self, Entry},
    webhooks::{
        dead_letter,
        delivery::{Delivery, Part, Reading, topic_of},
    },
};

/// What an item takes beside its bytes, roughly.
const ITEM: usize = 512;

/// See the module's head.
pub(super) struct InFlight<S: Sinks> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) line: Arc<Line>,
    pub(super) item: Arc<Item>,
    /// When the head of its request was there.
    pub(super) since: Instant,
    /// Takes the answer, once; dropped, it is [`Outcome::Late`]. `None` after the answer, and where no request waits for one.
    pub(super) answer: Option<oneshot::Sender<Outcome>>,
}

/// A future that a task finishes if this is dropped before.
struct FinishedByTask {
    rest: Option<TrackedFuture<BoxFuture<'static, ()>>>,
    runtime: Handle,
}

impl FinishedByTask {
    async fn finish(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.await;
            self.rest = None;
        }
    }
}

impl Drop for FinishedByTask {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            drop(self.runtime.spawn(rest));
        }
    }
}

impl<S: Sinks> Intake<S> {
    /// Takes a delivery that was read, and says how it ended, at the latest [`Times::last`] after `since`.
    pub async fn take(&self, delivery: Delivery, reading: Reading, since: Instant) -> Outcome {
        let shared = &self.0;
        if shared.stopping.is_cancelled() {
            return Outcome::Full;
        }
        let last = since + shared.times.last;
        let ticket = match &reading.outgoing_id {
            Some(id) => match shared.seen.see(&delivery.context.connector, id, &delivery.body) {
                Sight::First(ticket) => Some(ticket),
                Sight::Twin(pending) => {
                    metrics::delivery_repeated();
                    return timeout_at(last, pending.wait()).await.map_or(Outcome::Late, |outcome| *outcome);
                }
                Sight::Before => {
                    metrics::delivery_repeated();
                    return Outcome::Durable;
                }
            },
            None => None,
        };
        shared.see_through(&delivery, reading.parts, since, ticket).await
    }
}

impl<S: Sinks> Shared<S> {
    fn line(&self, id: &spool::Lane) -> Arc<Line> {
        if let Some(line) = self.lines.read().get(id) {
            return Arc::clone(line);
        }
        let mut lines = self.lines.write();
        let new = || Arc::new(Line { id: id.clone(), lane: Lane::new(None) });
        Arc::clone(lines.entry(id.clone()).or_insert_with(new))
    }

    /// Lets a part into its lane. Returns the reports of what was handed to the producer, or `None` where the lane is behind.
    fn enter(&self, delivery: &Delivery, part: Part) -> (Arc<Line>, Arc<Item>, Option<Reports<S>>) {
        let line = self.line(&part.lane);
        let ready = self.openings.ready(&delivery.context);
        let records = ready
            .as_ref()
            .filter(|_| !line.lane.is_behind() && self.memory.has_room())
            .and_then(|ready| producer::records(ready, delivery, part.content));
        let size = records.iter().flatten().map(|prepared| prepared.record.size()).sum::<usize>()
            + delivery.body.len();
        let memory = self.memory.take(size + ITEM);
        let item = |sequence| {
            Arc::new(Item {
                sequence,
                delivery: delivery.clone(),
                positions: part.positions,
                copied: AtomicBool::new(false),
                published: SetOnce::new(),
                _memory: memory,
            })
        };
        let built = records.and_then(|records| Some((self.sinks.get()?, records)));
        let send = built.map(|(built, records)| (built.number, move || self.sinks.send(&built, records)));
        // What cannot be sent soon would only take memory from what can.
        let keep = || ready.is_some() && self.memory.has_plenty();
        let (item, reports) = line.lane.enter(self.times.deadline, &self.numbers, item, send, keep);
        (line, item, reports)
    }

    /// A delivery's time for Kafka is over, or everybody's is.
    async fn due(&self, since: Instant) {
        tokio::select! {
            () = sleep_until(since + self.times.deadline) => {}
            () = self.hurry.cancelled() => {}
        }
    }

    /// Takes all parts of a delivery and returns the answer; `ticket` ends with it, also where the sender hangs up.
    pub(super) async fn see_through(
        self: &Arc<Self>,
        delivery: &Delivery,
        parts: Vec<Part>,
        since: Instant,
        ticket: Option<Ticket>,
    ) -> Outcome {
        let (mut running, mut answers) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for part in parts {
            let (sender, answer) = oneshot::channel();
            answers.push(answer);
            let entered = panic::catch_unwind(AssertUnwindSafe(|| self.enter(delivery, part)));
            let Ok((line, item, reports)) = entered else {
                tracing::error!("handling a delivery panicked; its sender must repeat it");
                continue;
            };
            let part = InFlight { shared: Arc::clone(self), line, item, since, answer: Some(sender) };
            running.push(Box::pin(part.run(reports)));
        }
        let (sender, mut answer) = oneshot::channel();
        let answering = async move {
            let mut outcome = Outcome::Durable;
            for answer in answers {
                match answer.await.unwrap_or(Outcome::Late) {
                    Outcome::Durable => {}
                    other => outcome = other,
                }
            }
            if let Some(ticket) = ticket {
                ticket.end(outcome);
            }
            // The sender may have hung up.
            sender.send(outcome).ok();
        };
        let all: BoxFuture<'static, ()> = Box::pin(async move {
            join(join_all(running), answering).await;
        });
        let mut all =
            FinishedByTask { rest: Some(self.tasks.track_future(all)), runtime: self.runtime.clone() };
        tokio::select! {
            biased;
            () = all.finish() => (&mut answer).await,
            outcome = &mut answer => outcome,
        }
        .unwrap_or(Outcome::Late)
    }

    /// Writes a delivery to the dead letters, whole or in pieces. Whether Kafka has it.
    pub(super) async fn bury(&self, delivery: &Delivery, error: &kafka::Error) -> bool {
        let failure = Failure::new(Stage::Produce, error.class(), error);
        let (Some(ready), Some(built)) = (self.openings.ready(&delivery.context), self.sinks.get()) else {
            return false;
        };
        for pieces in [1, dead_letter::pieces(&delivery.body)] {
            let letters = producer::letters(&ready, delivery, None, &failure, pieces);
            let Some((reports, _)) = self.sinks.send(&built, letters) else { return false };
            match reports.await {
                Report::Landed => {
                    self.troubles.landed(&delivery.context.connector, &delivery.context.dead_letters);
                    return true;
                }
                Report::Refused(_) => {}
                Report::Again(error) => {
                    self.doubt(delivery, &delivery.context.dead_letters, &error);
                    return false;
                }
            }
        }
        false
    }

    /// Kafka did not take a record: the producer or the topic may not be there any more.
    pub(super) fn doubt(&self, delivery: &Delivery, topic: &str, error: &kafka::Error) {
        // A stop purges the producer; what has no report by then is in the spool.
        if !self.stopping.is_cancelled() {
            self.troubles.failed(&delivery.context.connector, topic, error);
        }
        self.sinks.replace_if_over();
        if error.lacks_topic() {
            self.openings.doubt(&delivery.context);
        }
    }

    /// Kafka takes records of this lane.
    pub(super) fn landed(&self, line: &Line, delivery: &Delivery) {
        self.troubles.landed(&delivery.context.connector, topic_of(&line.id));
    }

    /// Kafka has the record: wakes whoever waits for that, and removes the copy in the spool.
    pub(super) fn published(&self, line: &Line, item: &Item) {
        // A second time would say the same.
        item.published.set(()).ok();
        if item.copied.load(Ordering::Acquire) {
            self.spool.remove(&line.id, item.sequence);
        }
    }
}

impl<S: Sinks> InFlight<S> {
    /// Sees the part through. If that panics, the lane stops waiting for the record: otherwise its drain would wait forever.
    async fn run(mut self, reports: Option<Reports<S>>) {
        let is_behind = reports.is_none();
        if AssertUnwindSafe(self.proceed(reports)).catch_unwind().await.is_ok() {
            return;
        }
        let (line, sequence) = (&self.line, self.item.sequence);
        tracing::error!(
            topic = topic_of(&line.id),
            "handling a delivery panicked; its sender must repeat it"
        );
        if is_behind {
            line.lane.appended(sequence, false);
        } else if line.lane.is_flying(sequence) {
            line.lane.failed(sequence, Arc::clone(&self.item));
            self.shared.ensure_drain(line);
        }
    }

    /// With `reports` the producer has the record; without, its lane is behind.
    async fn proceed(&mut self, reports: Option<Reports<S>>) {
        let Some(mut reports) = reports else { return self.behind().await };
        failpoint::reach("intake.sent");
        let report = tokio::select! {
            biased;
            report = &mut reports => report,
            () = self.shared.due(self.since) => {
                let mut stored = pin!(self.store_or_wait());
                tokio::select! {
                    // The append goes on without us; whether it is in time to be of use is seen below.
                    report = &mut reports => report,
                    () = stored.as_mut() => reports.await,
                }
            }
        };
        self.reported(report).await;
    }

    /// The record goes to the spool alone; the drain publishes it.
    async fn behind(&mut self) {
        self.shared.ensure_drain(&self.line);
        let stored = self.store().await;
        self.line.lane.appended(self.item.sequence, stored);
        // A lane that came back may have sent it meanwhile: its report may still be in time.
        if !stored && self.line.lane.is_flying(self.item.sequence) {
            timeout_at(self.since + self.shared.times.last, self.item.published.wait()).await.ok();
        }
        let published = self.item.published.initialized();
        self.give(if published { Outcome::Durable } else { Outcome::Full });
    }

    /// What Kafka's report means for the record, its lane and its sender.
    pub(super) async fn reported(&mut self, report: Report) {
        let sequence = self.item.sequence;
        match report {
            Report::Landed => {
                failpoint::reach("intake.published");
                self.shared.published(&self.line, &self.item);
                self.give(Outcome::Durable);
                self.line.lane.landed(sequence);
                self.shared.landed(&self.line, &self.item.delivery);
            }
            Report::Refused(error) => {
                self.line.lane.landed(sequence);
                self.refused(&error).await;
            }
            Report::Again(error) => {
                self.shared.doubt(&self.item.delivery, topic_of(&self.line.id), &error);
                self.line.lane.failed(sequence, Arc::clone(&self.item));
                self.shared.ensure_drain(&self.line);
                let published = tokio::select! {
                    _ = self.item.published.wait() => true,
                    () = self.shared.due(self.since) => false,
                };
                if published {
                    self.give(Outcome::Durable);
                } else if self.answer.is_some() {
                    self.store_or_wait().await;
                }
            }
        }
    }

    /// Kafka will never take the record: it becomes a dead letter. Where that takes longer than there is time, the record is left
    /// in the spool, and the drain finds it refused again.
    async fn refused(&mut self, error: &kafka::Error) {
        let burying = async {
            let mut backoff = Backoff::new(PUBLISH_BACKOFF, self.item.sequence);
            while !self.shared.bury(&self.item.delivery, error).await {
                sleep(backoff.next_wait(Retry::Later).unwrap_or(PUBLISH_BACKOFF.longest)).await;
            }
        };
        let buried = tokio::select! {
            () = burying => true,
            () = self.shared.due(self.since) => false,
        };
        if buried {
            self.shared.published(&self.line, &self.item);
            self.give(Outcome::Durable);
        } else if self.store().await {
            self.line.lane.left_in_spool(self.item.sequence);
            self.shared.ensure_drain(&self.line);
        } else {
            self.give(Outcome::Full);
        }
    }

    /// Appends a copy to the spool. Where that cannot be done, Kafka has until the last moment.
    async fn store_or_wait(&mut self) {
        if !self.store().await {
            let last = self.since + self.shared.times.last;
            let published = timeout_at(last, self.item.published.wait()).await.is_ok();
            self.give(if published { Outcome::Durable } else { Outcome::Full });
        }
    }

    /// Appends a copy to the spool and answers [`Outcome::Durable`] once it is there, or [`Outcome::Late`] at the last moment.
    /// Returns whether it was stored.
    async fn store(&mut self) -> bool {
        let (shared, line, item) = (Arc::clone(&self.shared), Arc::clone(&self.line), Arc::clone(&self.item));
        item.copied.store(true, Ordering::Release);
        let entry = Entry {
            lane: line.id.clone(),
            sequence: item.sequence,
            payload: item.delivery.to_entry(&item.positions),
        };
        let mut append = pin!(shared.spool.append(entry));
        let stored = match timeout_at(self.since + shared.times.last, append.as_mut()).await {
            Ok(stored) => stored,
            Err(_) => {
                self.give(Outcome::Late);
                append.await
            }
        };
        if stored.is_ok() {
            failpoint::reach("intake.spooled");
        }
        // Kafka may have taken it while the disk was at it.
        if item.published.initialized() {
            shared.spool.remove(&line.id, item.sequence);
            self.give(Outcome::Durable);
            return true;
        }
        match &stored {
            Ok(()) => self.give(Outcome::Durable),
            Err(error) => tracing::debug!(error = %Chain(error), "a delivery could not be stored"),
        }
        stored.is_ok()
    }

    fn give(&mut self, outcome: Outcome) {
        if let Some(answer) = self.answer.take() {
            // The sender may have hung up.
            answer.send(outcome).ok();
        }
    }
}

/// Remembers ids of deliveries. See the module's head.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) window: Mutex<Window>,
    /// Keyed with what nobody outside knows: a sender cannot choose ids that meet.
    hashers: [std::hash::RandomState; 2],
    most: usize,
}

#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) ids: HashMap<u128, Option<Pending>>,
    /// The durable ones, oldest first.
    pub(super) order: VecDeque<u128>,
}

/// How a delivery that is under way will have ended.
pub(super) type Pending = Arc<SetOnce<Outcome>>;

/// Whether a delivery is the first of its id.
#[derive(Debug)]
pub(super) enum Sight {
    /// It is; whoever takes it says how it ended.
    First(Ticket),
    /// Another is under way and ends like this.
    Twin(Pending),
    /// Another is stored.
    Before,
}

/// The first of its id. Dropped without a word, the id is forgotten.
#[derive(Debug)]
pub(super) struct Ticket {
    seen: Arc<Seen>,
    id: u128,
    pending: Pending,
}

impl Seen {
    /// Remembers at most so many.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { window: Mutex::default(), hashers: Default::default(), most: most.max(1) })
    }

    /// Looks a delivery up and, if it is the first, enters it.
    pub(super) fn see(self: &Arc<Self>, connector: &str, id: &str, body: &[u8]) -> Sight {
        let id = self.hash(connector, id, body);
        let mut window = self.window.lock();
        match window.ids.get(&id) {
            Some(Some(pending)) => Sight::Twin(Arc::clone(pending)),
            Some(None) => Sight::Before,
            None => {
                let pending = Pending::default();
                window.ids.insert(id, Some(Arc::clone(&pending)));
                Sight::First(Ticket { seen: Arc::clone(self), id, pending })
            }
        }
    }

    /// Remembers a delivery that is durable already.
    pub(super) fn remember(&self, connector: &str, id: &str, body: &[u8]) {
        let id = self.hash(connector, id, body);
        self.store(id);
    }

    fn store(&self, id: u128) {
        let mut window = self.window.lock();
        if window.ids.insert(id, None).is_none_or(|before| before.is_some()) {
            window.order.push_back(id);
        }
        while window.order.len() > self.most {
            if let Some(oldest) = window.order.pop_front() {
                window.ids.remove(&oldest);
            }
        }
    }

    fn hash(&self, connector: &str, id: &str, body: &[u8]) -> u128 {
        let [first, second] = &self.hashers;
        // The body in one half is enough, and costs half as much.
        let halves = (first.hash_one((connector, id)), second.hash_one((connector, id, body)));
        u128::from(halves.0) << 64 | u128::from(halves.1)
    }
}

impl Ticket {
    /// Says how the delivery ended.
    pub(super) fn end(self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn finish(&self, outcome: Outcome) {
        if self.pending.initialized() {
            return;
        }
        if outcome == Outcome::Durable {
            self.seen.store(self.id);
        } else {
            self.seen.window.lock().ids.remove(&self.id);
        }
        // Set once: only the ticket does it, and only here.
        self.pending.set(outcome).ok();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.finish(Outcome::Late);
    }
}
