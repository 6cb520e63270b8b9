//! Deliveries of both webhook families: queue, attempts, retries, and the journal of all.
//!
//! ```text
//! send ──▶ knobs: lose, duplicate, reorder, delay ──▶ lane ──▶ first attempt ──▶ accepted
//!                                                               │      ▲
//!                                                               ▼      │ (off the lane)
//!                                                             timer ─ retry ──▶ given up ──▶ the family
//! ```
//!
//! - First attempts of one lane go one after the other; lanes go side by side. A retry waits beside its lane and holds up
//!   nobody.
//! - What the knobs do to a delivery follows from the seed and its number in the journal.
//! - A delivery ends once: its family hears of it (accepted, given up) before it stops counting for [`Deliveries::idle`].
//! - One webhook has only a part of those on their way at once, so that a receiver which never answers holds up its own.
//! - Waiting deliveries cost memory up to a limit and nothing else: no task, no timer of their own.
//!
//! A failed attempt is tried again after the order's waits; after the last the delivery is given up. When `run` is stopped,
//! attempts on their way are dropped and what waits is forgotten; the journal then shows them without an end.

use std::{fmt, sync::Arc, time::Duration};

use aws_lc_rs::hmac;
use axum::http::{HeaderName, HeaderValue};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use url::Url;

use super::{
    clock::Ticks,
    core::Core,
    journal::Journal,
    knobs::DeliveryKnobs,
    random::{Guid, Random, mix},
};

mod attempt;
mod client;
mod queue;
mod run;

pub(super) use attempt::cause;
pub(super) use run::run;

use queue::{DeliveryQueue, QueuedDelivery};

/// The stream of numbers that knobs draw from.
const KNOB_PURPOSE: u64 = 0x6465_6C69_7665_7279;
/// The most later deliveries that go before one held back.
const MAX_REORDER_DISTANCE: u64 = 4;

/// The queue, the client and the journal.
#[derive(Debug)]
pub struct Deliveries {
    core: Arc<Core>,
    journal: Journal<Entry>,
    queue: Mutex<DeliveryQueue>,
    clients: client::DeliveryClients,
    /// Something may be due: tells the loop.
    due: Notify,
    /// Nothing is left: tells those who wait for it.
    idle_notify: Notify,
}

/// An order that is in the journal and counts as waiting, but is queued only when this is dropped: when the answer that
/// must come first has gone, or will never go.
#[derive(Debug)]
pub(super) struct ReservedDelivery {
    deliveries: Arc<Deliveries>,
    job: Option<QueuedDelivery>,
}

/// The webhook families as deliveries see them. The provider implements it, because this module must not import the families.
pub(super) trait WebhookFamilies {
    /// Whether a delivery is still wanted: its webhook may have been disabled, deleted or moved since.
    fn wants(&self, order: &DeliveryOrder) -> bool;

    /// A delivery has ended for good: accepted, or given up.
    fn ended(&self, order: &DeliveryOrder, accepted: bool);
}

/// Which family a delivery belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Family {
    /// Accounting, core, import.
    Accounting,
    /// Invoicing.
    Invoicing,
}

/// Why it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// To make the contract: only 200 will do.
    Acknowledge,
    /// To tell a change.
    Event,
}

/// A delivery to be made.
#[derive(Debug)]
pub(super) struct DeliveryOrder {
    /// Family.
    pub(super) family: Family,
    /// Webhook or hook.
    pub(super) webhook: Guid,
    /// Why.
    pub(super) purpose: Purpose,
    /// Where to.
    pub(super) url: Url,
    /// What is sent.
    pub(super) body: DeliveryBody,
    /// Name of the signature header.
    pub(super) signature_header: Option<HeaderName>,
    /// Deliveries with the same lane number are first tried one after the other, in order: (webhook, company).
    pub(super) lane: u64,
    /// Waits before each further attempt, milliseconds.
    pub(super) retries: Arc<[u64]>,
    /// 410 ends the attempts at once.
    pub(super) gone_ends: bool,
    /// What it tells, for the journal.
    pub(super) about: About,
}

/// What is sent, with the value of the signature header if there is one.
pub(super) enum DeliveryBody {
    /// The same at every attempt.
    Same(Bytes, Option<HeaderValue>),
    /// Written for each attempt, which is counted from 1.
    Numbered(Box<dyn Fn(u32) -> (Bytes, Option<HeaderValue>) + Send + Sync>),
}

impl fmt::Debug for DeliveryBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeliveryBody")
    }
}

/// What a delivery tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Semantic name, or `Customer.Created`.
    pub event: Arc<str>,
    /// Company correlation id, or invoicing tenant.
    pub company: Option<Arc<str>>,
    /// Correlation id or entity id of the record.
    pub record: Option<Arc<str>>,
    /// `SequenceVersion`.
    pub sequence: Option<u64>,
    /// `OutgoingId`; none for invoicing.
    pub outgoing: Option<Guid>,
}

impl About {
    /// An event that is about no company and no record.
    pub(super) fn new(event: &Arc<str>) -> Self {
        Self { event: Arc::clone(event), company: None, record: None, sequence: None, outgoing: None }
    }
}

/// A delivery as the journal keeps it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Family.
    pub family: Family,
    /// Webhook or hook.
    pub webhook: Guid,
    /// Why.
    pub purpose: Purpose,
    /// What it tells.
    pub about: About,
    /// When it was ordered.
    pub at: Ticks,
    /// A 64-bit hash of the body of the first attempt, so that two runs can be compared; 0 where none was made.
    pub body_hash: u64,
    /// Every attempt and its answer.
    pub attempts: Vec<Attempt>,
    /// How it ended; `None` while it is on its way.
    pub end: Option<End>,
}

/// One attempt.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// When it was sent.
    pub at: Ticks,
    /// Milliseconds until the answer, or until it was given up.
    pub took: u32,
    /// Status of the answer.
    pub status: Option<u16>,
    /// Why it failed, if not by its status alone: time limit, connection, cookies.
    pub error: Option<String>,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// The receiver has it.
    Accepted,
    /// Every attempt failed.
    GivenUp,
    /// Its webhook was disabled, deleted or moved before it could be delivered.
    Abandoned,
    /// The webhook was not active when it happened: never sent.
    Missed,
    /// A knob lost it.
    Lost,
    /// Too many were waiting.
    Overflown,
}

/// A 64-bit hash that is the same on every machine.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// The value of the signature header: `sha256=` and the HMAC of the bytes sent, in upper-case hexadecimal digits.
pub fn signature(key: &hmac::Key, body: &[u8]) -> HeaderValue {
    let hash = hmac::sign(key, body);
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    HeaderValue::try_from(format!("sha256={digits}")).unwrap_or_else(|error| unreachable!("digits: {error}"))
}

impl Deliveries {
    pub(super) fn new(core: &Arc<Core>) -> Result<Self, super::Error> {
        let settings = &core.settings;
        Ok(Self {
            core: Arc::clone(core),
            journal: Journal::new(settings.journal_limit),
            queue: Mutex::new(DeliveryQueue::default()),
            clients: client::DeliveryClients::new(&settings.receiver_roots)?,
            due: Notify::new(),
            idle_notify: Notify::new(),
        })
    }

    /// Takes a delivery; never waits. Applies the knobs that lose, duplicate, delay and reorder (to events, never to an
    /// Acknowledge). Where too many wait already, its family does not hear of it again.
    pub(super) fn send(&self, order: DeliveryOrder) {
        let knobs = self.core.knobs();
        let knobs = &knobs.delivery;
        let order = Arc::new(order);
        let number = self.note_order(&order);
        let faults = self.faults(number, order.purpose, knobs);
        if faults.lose {
            return self.end(number, End::Lost);
        }
        // The second one is numbered before the first can leave, so that numbers do not depend on how fast it is sent.
        let duplicate = faults.duplicate.then(|| self.note_order(&order));
        self.enqueue(QueuedDelivery::new(number, Arc::clone(&order)), &faults);
        if let Some(number) = duplicate {
            let faults = self.faults(number, order.purpose, knobs);
            self.enqueue(QueuedDelivery::new(number, order), &faults);
        }
    }

    /// Takes a delivery that must not leave before an answer has: it is numbered now and queued when the result is dropped.
    pub(super) fn reserve(self: &Arc<Self>, order: DeliveryOrder) -> ReservedDelivery {
        let order = Arc::new(order);
        let number = self.note_order(&order);
        let admitted = self.queue.lock().admit();
        if !admitted {
            self.end(number, End::Overflown);
        }
        ReservedDelivery {
            deliveries: Arc::clone(self),
            job: admitted.then(|| QueuedDelivery::new(number, order)),
        }
    }

    /// Takes a delivery and waits for the end of its first attempt, however it goes.
    pub(super) async fn send_and_wait(&self, order: DeliveryOrder) {
        let order = Arc::new(order);
        let number = self.note_order(&order);
        let (done, first) = oneshot::channel();
        let job = QueuedDelivery { first: Some(done), ..QueuedDelivery::new(number, order) };
        self.enqueue(job, &DeliveryFaults::default());
        // An error means that it was dropped without an attempt, and waiting longer would not help.
        first.await.ok();
    }

    /// Notes an event that was not sent because its webhook is not active.
    pub(super) fn missed(&self, family: Family, webhook: Guid, about: About) {
        self.note((family, webhook, Purpose::Event), about, Some(End::Missed));
    }

    /// The HTTP client that deliveries use: hosts resolved by the knobs, certificates trusted by the settings.
    pub(super) fn client(&self) -> reqwest::Client {
        self.clients.get(&self.core.knobs())
    }

    /// Deliveries since the start, in order, within the journal's limit: `(number, entry)` from a number on.
    pub fn entries(&self, from: u64, limit: usize) -> Vec<(u64, Entry)> {
        self.journal.from(from, limit)
    }

    /// How many there ever were.
    pub fn count(&self) -> u64 {
        self.journal.count()
    }

    /// Resolves once nothing is queued, waiting for a retry or on its way.
    pub async fn idle(&self) {
        loop {
            let mut idle_notify = std::pin::pin!(self.idle_notify.notified());
            // Listening before looking: what ends in between is not missed.
            idle_notify.as_mut().enable();
            if self.queue.lock().is_empty() {
                return;
            }
            idle_notify.await;
        }
    }

    /// Has the loop look again at what is due, because a knob may have changed that.
    pub(super) fn wake(&self) {
        self.due.notify_one();
    }

    fn note_order(&self, order: &DeliveryOrder) -> u64 {
        self.note((order.family, order.webhook, order.purpose), order.about.clone(), None)
    }

    fn note(
        &self,
        (family, webhook, purpose): (Family, Guid, Purpose),
        about: About,
        end: Option<End>,
    ) -> u64 {
        let at = self.core.clock.now();
        let attempts = Vec::new();
        self.journal.push(Entry { family, webhook, purpose, about, at, body_hash: 0, attempts, end })
    }

    fn end(&self, number: u64, end: End) {
        self.journal.update(number, |entry| entry.end = Some(end));
    }

    /// Queues what was not admitted before, unless too many are waiting.
    fn enqueue(&self, mut job: QueuedDelivery, faults: &DeliveryFaults) {
        let now = Instant::now();
        job.due = (!faults.delay.is_zero()).then(|| now + faults.delay);
        let mut queue = self.queue.lock();
        if queue.admit() {
            queue.enqueue(job, faults.hold_back, now);
            drop(queue);
            self.due.notify_one();
        } else {
            drop(queue);
            self.end(job.number, End::Overflown);
        }
    }

    /// What the knobs do to a delivery: every draw is made, so that turning one knob leaves the others' choices alone.
    fn faults(&self, number: u64, purpose: Purpose, knobs: &DeliveryKnobs) -> DeliveryFaults {
        if purpose == Purpose::Acknowledge {
            return DeliveryFaults::default();
        }
        let mut random = Random::new(self.core.seed() ^ mix(number), KNOB_PURPOSE);
        let (lose, duplicate, reorder) = (random.unit(), random.unit(), random.unit());
        let behind = 1 + random.below(MAX_REORDER_DISTANCE);
        DeliveryFaults {
            lose: lose < knobs.lose,
            duplicate: duplicate < knobs.duplicate,
            hold_back: (reorder < knobs.reorder).then_some(behind),
            delay: knobs.delay.sample(&mut random),
        }
    }
}

/// What the knobs do to one delivery.
#[derive(Debug, Default)]
struct DeliveryFaults {
    lose: bool,
    duplicate: bool,
    /// How many later ones of its lane go first.
    hold_back: Option<u64>,
    delay: Duration,
}

impl Drop for ReservedDelivery {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.deliveries.queue.lock().enqueue(job, None, Instant::now());
            self.deliveries.due.notify_one();
        }
    }
}
