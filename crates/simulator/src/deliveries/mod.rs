//! Deliveries of both webhook families: queue, attempts, retries, and the journal of all.
//!
//! ```text
//! send ──▶ knobs: lose, duplicate, reorder, delay ──▶ lane ──▶ first attempt ──▶ accepted
//!                                                               │      ▲
//!                                                               ▼      │ (off the lane)
//!                                                             timer ─ retry ──▶ given up ──▶ the family
//! ```
//!
//! - First attempts of one lane run one after the other; lanes run concurrently. A retry does not block its lane.
//! - What the knobs do to a delivery follows from the seed and its journal number.
//! - A delivery ends once: its family is notified (accepted, given up) before [`Deliveries::idle`] stops counting it.
//! - Each webhook has an in-flight limit, so that a receiver which never answers delays only its own deliveries.
//! - Waiting deliveries need memory up to a limit, but no tasks and no timers.
//!
//! A failed attempt is retried after the delays of its order; after the last retry the delivery is given up. When `run` is
//! stopped, attempts in flight and waiting deliveries are dropped; the journal shows them without an end.

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

/// The random stream of delivery faults.
const KNOB_PURPOSE: u64 = 0x6465_6C69_7665_7279;
/// Later deliveries that overtake a held one at most.
const MAX_REORDER_DISTANCE: u64 = 4;

/// The queue, the client and the journal.
#[derive(Debug)]
pub struct Deliveries {
    core: Arc<Core>,
    journal: Journal<JournalEntry>,
    queue: Mutex<DeliveryQueue>,
    clients: client::DeliveryClients,
    /// Wakes the loop: a delivery may be due.
    due: Notify,
    /// Wakes [`Deliveries::idle`]: the queue is empty.
    idle_notify: Notify,
}

/// A delivery that must follow an answer. It is in the journal and counts as waiting; dropping this queues it, once the answer
/// has been sent or never will be.
#[derive(Debug)]
pub(super) struct ReservedDelivery {
    deliveries: Arc<Deliveries>,
    job: Option<QueuedDelivery>,
}

/// The webhook families, as deliveries see them. Implemented by the provider, because this module must not import them.
pub(super) trait WebhookFamilies {
    /// Whether a delivery is still wanted; its webhook may have been disabled, deleted or moved.
    fn wants(&self, order: &DeliveryOrder) -> bool;

    /// A delivery was accepted or given up.
    fn ended(&self, order: &DeliveryOrder, accepted: bool);
}

/// The family of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Family {
    /// The accounting family.
    Accounting,
    /// The invoicing API.
    Invoicing,
}

/// The purpose of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// Establishes the contract; only 200 is accepted.
    Acknowledge,
    /// Announces a change.
    Event,
}

/// A delivery to make.
#[derive(Debug)]
pub(super) struct DeliveryOrder {
    /// Its family.
    pub(super) family: Family,
    /// Its webhook or hook.
    pub(super) webhook: Guid,
    /// Its purpose.
    pub(super) purpose: Purpose,
    /// Receiver address.
    pub(super) url: Url,
    /// Its body.
    pub(super) body: DeliveryBody,
    /// Name of the signature header.
    pub(super) signature_header: Option<HeaderName>,
    /// First attempts with the same lane number run in order; a lane is a webhook and a company.
    pub(super) lane: u64,
    /// Delays before each retry, milliseconds.
    pub(super) retries: Arc<[u64]>,
    /// Whether 410 ends the attempts.
    pub(super) gone_ends: bool,
    /// Content, for the journal.
    pub(super) about: About,
}

/// A body, with the value of the signature header if there is one.
pub(super) enum DeliveryBody {
    /// The same for every attempt.
    Same(Bytes, Option<HeaderValue>),
    /// Created for each attempt, numbered from 1.
    Numbered(Box<dyn Fn(u32) -> (Bytes, Option<HeaderValue>) + Send + Sync>),
}

impl fmt::Debug for DeliveryBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeliveryBody")
    }
}

/// The content of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Semantic name, or such as `Customer.Created`.
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
    /// An event without company and record.
    pub(super) fn new(event: &Arc<str>) -> Self {
        Self { event: Arc::clone(event), company: None, record: None, sequence: None, outgoing: None }
    }
}

/// A delivery in the journal.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalEntry {
    /// Its family.
    pub family: Family,
    /// Its webhook or hook.
    pub webhook: Guid,
    /// Its purpose.
    pub purpose: Purpose,
    /// Its content.
    pub about: About,
    /// When it was created.
    pub at: Ticks,
    /// Hash of the body of the first attempt, to compare runs; 0 without an attempt.
    pub body_hash: u64,
    /// Its attempts.
    pub attempts: Vec<Attempt>,
    /// How it ended; `None` until then.
    pub end: Option<End>,
}

/// One attempt.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// When it was sent.
    pub at: Ticks,
    /// Milliseconds until the answer or the failure.
    pub took: u32,
    /// Status of the answer.
    pub status: Option<u16>,
    /// Why it failed, if not by its status: time limit, connection, cookies.
    pub error: Option<String>,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// The receiver accepted it.
    Accepted,
    /// All attempts failed.
    GivenUp,
    /// Its webhook was disabled, deleted or moved first.
    Abandoned,
    /// Its webhook was not active; never sent.
    Missed,
    /// A knob dropped it.
    Lost,
    /// Too many deliveries were waiting.
    Overflown,
}

/// A 64-bit hash, the same on every machine.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// The value of the signature header: `sha256=` and the HMAC of the body in upper-case hexadecimal digits.
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

    /// Queues a delivery without waiting. Applies the knobs that lose, duplicate, delay and reorder events; they spare an
    /// Acknowledge. Where too many deliveries wait, it is dropped.
    pub(super) fn send(&self, order: DeliveryOrder) {
        let knobs = self.core.knobs();
        let knobs = &knobs.delivery;
        let order = Arc::new(order);
        let number = self.record(&order);
        let faults = self.faults(number, order.purpose, knobs);
        if faults.lose {
            return self.end(number, End::Lost);
        }
        // Numbered before the first one is sent, so that numbers do not depend on timing.
        let duplicate = faults.duplicate.then(|| self.record(&order));
        self.enqueue(QueuedDelivery::new(number, Arc::clone(&order)), &faults);
        if let Some(number) = duplicate {
            let faults = self.faults(number, order.purpose, knobs);
            self.enqueue(QueuedDelivery::new(number, order), &faults);
        }
    }

    /// Adds a delivery to the journal; it is queued when the result is dropped.
    pub(super) fn reserve(self: &Arc<Self>, order: DeliveryOrder) -> ReservedDelivery {
        let order = Arc::new(order);
        let number = self.record(&order);
        let admitted = self.queue.lock().admit();
        if !admitted {
            self.end(number, End::Overflown);
        }
        ReservedDelivery {
            deliveries: Arc::clone(self),
            job: admitted.then(|| QueuedDelivery::new(number, order)),
        }
    }

    /// Queues a delivery and waits until its first attempt has ended.
    pub(super) async fn send_and_wait(&self, order: DeliveryOrder) {
        let order = Arc::new(order);
        let number = self.record(&order);
        let (done, first) = oneshot::channel();
        let job = QueuedDelivery { first: Some(done), ..QueuedDelivery::new(number, order) };
        self.enqueue(job, &DeliveryFaults::default());
        // An error means that it was dropped without an attempt.
        first.await.ok();
    }

    /// Records an event that is not sent because its webhook is not active.
    pub(super) fn missed(&self, family: Family, webhook: Guid, about: About) {
        self.push(family, webhook, Purpose::Event, about, Some(End::Missed));
    }

    /// The HTTP client of deliveries.
    pub(super) fn client(&self) -> reqwest::Client {
        self.clients.get(&self.core.knobs())
    }

    /// Deliveries from number `from` on that the journal still has: `(number, entry)`.
    pub fn entries(&self, from: u64, limit: usize) -> Vec<(u64, JournalEntry)> {
        self.journal.from(from, limit)
    }

    /// Deliveries so far.
    pub fn count(&self) -> u64 {
        self.journal.count()
    }

    /// Resolves once nothing is queued, waiting for a retry or in flight.
    pub async fn idle(&self) {
        loop {
            let mut idle_notify = std::pin::pin!(self.idle_notify.notified());
            // Registered first, so that no notification is missed.
            idle_notify.as_mut().enable();
            if self.queue.lock().is_empty() {
                return;
            }
            idle_notify.await;
        }
    }

    /// Wakes the loop, because knobs may have changed what is due.
    pub(super) fn wake(&self) {
        self.due.notify_one();
    }

    fn record(&self, order: &DeliveryOrder) -> u64 {
        self.push(order.family, order.webhook, order.purpose, order.about.clone(), None)
    }

    fn push(&self, family: Family, webhook: Guid, purpose: Purpose, about: About, end: Option<End>) -> u64 {
        let (at, attempts) = (self.core.clock.now(), Vec::new());
        self.journal.push(JournalEntry { family, webhook, purpose, about, at, body_hash: 0, attempts, end })
    }

    fn end(&self, number: u64, end: End) {
        self.journal.update(number, |entry| entry.end = Some(end));
    }

    /// Queues a delivery, unless too many are waiting.
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

    /// What the knobs do to a delivery. Every number is drawn, so that one knob does not change the draws of others.
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

/// What the knobs do to a delivery.
#[derive(Debug, Default)]
struct DeliveryFaults {
    lose: bool,
    duplicate: bool,
    /// How many later deliveries of its lane overtake it.
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
