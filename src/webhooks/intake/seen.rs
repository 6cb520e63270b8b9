//! Deliveries that came before: an id is remembered once its delivery is durable; a twin in flight awaits the same outcome.
//!
//! The window is bounded by count. Ids of deliveries that were not stored are forgotten at once, so that the sender's next
//! try is taken. What is remembered is a hash of id and body, 128 bits, of which two do not meet by chance: another body under
//! an id that was seen is another delivery, whatever the provider promises.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::SetOnce;

use super::Outcome;

/// Remembers ids of deliveries. See the module's head.
#[derive(Debug)]
pub(super) struct Seen {
    window: Mutex<Window>,
    /// Keyed with what nobody outside knows: a sender cannot choose ids that meet.
    hashers: [std::hash::RandomState; 2],
    most: usize,
}

#[derive(Debug, Default)]
struct Window {
    ids: HashMap<u128, Option<Pending>>,
    /// The durable ones, oldest first.
    order: VecDeque<u128>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn first(seen: &Arc<Seen>, id: &str) -> Ticket {
        match seen.see("hooks", id, b"body") {
            Sight::First(ticket) => ticket,
            other => panic!("{id}: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_twin_in_flight_ends_like_the_first() {
        let seen = Seen::new(10);
        for outcome in [Outcome::Full, Outcome::Late, Outcome::Durable] {
            let ticket = first(&seen, "a");
            let Sight::Twin(twin) = seen.see("hooks", "a", b"body") else { panic!("no twin") };

            ticket.end(outcome);

            assert_eq!(twin.wait().await, &outcome);
        }
        assert!(matches!(seen.see("hooks", "a", b"body"), Sight::Before));
    }

    #[test]
    fn what_was_not_stored_is_forgotten_and_may_come_again() {
        let seen = Seen::new(10);
        first(&seen, "a").end(Outcome::Full);
        drop(first(&seen, "a"));

        first(&seen, "a").end(Outcome::Durable);

        assert!(matches!(seen.see("hooks", "a", b"body"), Sight::Before));
        assert!(
            matches!(seen.see("other", "a", b"body"), Sight::First(_)),
            "ids of another connector are its own"
        );
        assert!(
            matches!(seen.see("hooks", "a", b"bodies"), Sight::First(_)),
            "another body is another delivery"
        );
    }

    #[test]
    fn the_window_forgets_the_oldest_and_keeps_its_size() {
        let seen = Seen::new(3);
        for id in ["a", "b", "c", "d"] {
            first(&seen, id).end(Outcome::Durable);
        }
        seen.remember("hooks", "d", b"body");

        assert!(matches!(seen.see("hooks", "b", b"body"), Sight::Before));
        assert!(matches!(seen.see("hooks", "d", b"body"), Sight::Before));
        drop(first(&seen, "a"));
        let window = seen.window.lock();
        assert_eq!((window.ids.len(), window.order.len()), (3, 3));
    }
}
