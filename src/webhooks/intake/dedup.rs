//! Drops repeated accounting deliveries (same connector, `OutgoingId` and body) that this process has seen: the last `DEDUP_WINDOW` durable
//! ones. Workers do not share them, and a restart loses them, so duplicates in the topic remain possible.
//!
//! A duplicate of a delivery in flight waits for the same outcome. A delivery that was not stored is forgotten at once, so that its
//! repetition is taken. Only a 128-bit hash is remembered.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::SetOnce;

use super::DeliveryOutcome;

/// Remembers deliveries that came before; the module's head says how.
#[derive(Debug)]
pub(super) struct Dedup {
    pub(super) window: Mutex<DedupWindow>,
    /// Randomly keyed: a sender cannot choose ids that collide.
    hashers: [std::hash::RandomState; 2],
    most: usize,
}

#[derive(Debug, Default)]
pub(super) struct DedupWindow {
    pub(super) ids: HashMap<u128, Option<PendingOutcome>>,
    /// The durable ones, oldest first.
    pub(super) order: VecDeque<u128>,
}

/// The outcome of a delivery in flight.
pub(super) type PendingOutcome = Arc<SetOnce<DeliveryOutcome>>;

/// Whether a delivery is the first of its id.
#[derive(Debug)]
pub(super) enum DedupVerdict {
    /// It is the first; the caller reports its outcome.
    First(DedupTicket),
    /// Another one is in flight; this is its outcome.
    Twin(PendingOutcome),
    /// Another one is durable.
    Before,
}

/// Reports the outcome of the first delivery of an id. Dropped without one, the id is forgotten.
#[derive(Debug)]
pub(super) struct DedupTicket {
    dedup: Arc<Dedup>,
    id: u128,
    pending: PendingOutcome,
}

impl Dedup {
    /// Remembers at most `most` ids.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { window: Mutex::default(), hashers: Default::default(), most: most.max(1) })
    }

    /// Looks a delivery up, and enters it if it is the first.
    pub(super) fn see(self: &Arc<Self>, connector: &str, id: &str, body: &[u8]) -> DedupVerdict {
        let id = self.hash(connector, id, body);
        let mut window = self.window.lock();
        match window.ids.get(&id) {
            Some(Some(pending)) => DedupVerdict::Twin(Arc::clone(pending)),
            Some(None) => DedupVerdict::Before,
            None => {
                let pending = PendingOutcome::default();
                window.ids.insert(id, Some(Arc::clone(&pending)));
                DedupVerdict::First(DedupTicket { dedup: Arc::clone(self), id, pending })
            }
        }
    }

    /// Remembers a delivery that is already durable.
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
        // Hashing the body into one half is enough and costs half as much.
        let halves = (first.hash_one((connector, id)), second.hash_one((connector, id, body)));
        u128::from(halves.0) << 64 | u128::from(halves.1)
    }
}

impl DedupTicket {
    /// Reports the outcome.
    pub(super) fn end(self, outcome: DeliveryOutcome) {
        self.finish(outcome);
    }

    fn finish(&self, outcome: DeliveryOutcome) {
        if self.pending.initialized() {
            return;
        }
        if outcome == DeliveryOutcome::Durable {
            self.dedup.store(self.id);
        } else {
            self.dedup.window.lock().ids.remove(&self.id);
        }
        // Set only here, once.
        self.pending.set(outcome).ok();
    }
}

impl Drop for DedupTicket {
    fn drop(&mut self) {
        self.finish(DeliveryOutcome::Late);
    }
}
