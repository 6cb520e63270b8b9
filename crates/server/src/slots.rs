//! Connection slots: a fixed number. When all are taken, the idle connection that waited longest loses its slot.
//!
//! accepted ─▶ [`Slots::take`] ─▶ a free slot, or the slot of the connection that has been without a request for longest
//!
//! - A connection with a running request is never evicted. If all connections have one, the new connection waits.
//! - Idle time starts when the last request ended, or when the connection started. Sending a head byte by byte does not reset it.
//! - No connection is evicted within [`EVICTION_GRACE`] of that moment, so that a burst of new connections cannot evict each
//!   other before they send a request. It also bounds the work: each connection is examined once per grace time, and once when it
//!   ends.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use base::metrics;

use super::activity::Activity;

/// How long a connection may be without a request before it can be evicted. Enough for a handshake and a request head on a slow
/// line, and a fifth of the time that the provider waits for a response.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// See the module head.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    taken: Mutex<SlotTable>,
}

#[derive(Debug, Default)]
struct SlotTable {
    next: u64,
    /// Connections by a lower bound of their idle start. Each request moves the true value, which is read only when the
    /// connection comes first.
    order: BTreeMap<(Instant, u64), Arc<Activity>>,
    /// The key of each connection in `order`.
    keys: HashMap<u64, Instant>,
}

impl Slots {
    /// `most` slots, at least one.
    pub(super) fn new(most: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { free, taken: Mutex::default() })
    }

    /// Waits for a slot. `None` only if the semaphore is closed, which never happens.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Slot> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(self.fill(permit));
        }
        let mut freed = std::pin::pin!(Arc::clone(&self.free).acquire_owned());
        loop {
            let look_again = self.evict_one(Instant::now());
            tokio::select! {
                permit = freed.as_mut() => return Some(self.fill(permit.ok()?)),
                () = sleep_until(look_again) => {}
            }
        }
    }

    /// Evicts the connection that has been idle for longest, if its grace time is over. Returns when to try again if no slot
    /// becomes free until then.
    fn evict_one(&self, now: Instant) -> Instant {
        let mut taken = self.taken.lock();
        while let Some(first) = taken.order.first_entry() {
            let (since, id) = *first.key();
            if now.saturating_duration_since(since) < EVICTION_GRACE {
                return since + EVICTION_GRACE;
            }
            let activity = first.remove();
            let idle_since = match activity.evict(since) {
                Ok(()) => {
                    taken.keys.remove(&id);
                    metrics::connection_gave_way();
                    // It ends in a moment. If a blocked thread delays it, the next attempt evicts another one.
                    return now + EVICTION_GRACE;
                }
                Err(idle_since) => idle_since.unwrap_or(now),
            };
            taken.keys.insert(id, idle_since);
            taken.order.insert((idle_since, id), activity);
        }
        now + EVICTION_GRACE
    }

    fn fill(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Slot {
        let activity = Arc::new(Activity::new());
        let now = activity.started;
        let mut taken = self.taken.lock();
        let id = taken.next;
        taken.next += 1;
        taken.keys.insert(id, now);
        taken.order.insert((now, id), Arc::clone(&activity));
        drop(taken);
        Slot { activity, id, of: Arc::clone(self), _permit: permit }
    }
}

/// The slot of one connection, until dropped.
#[derive(Debug)]
pub(super) struct Slot {
    /// Activity of that connection.
    pub(super) activity: Arc<Activity>,
    id: u64,
    of: Arc<Slots>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        if let Some(since) = taken.keys.remove(&self.id) {
            taken.order.remove(&(since, self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// `count` connections, started one after the other.
    fn filled(slots: &Arc<Slots>, count: usize) -> Vec<Slot> {
        let fill = |_| slots.take().now_or_never().flatten().unwrap();
        (0..count).map(fill).collect()
    }

    /// Indices of the connections that were evicted.
    fn evicted(held: &[Slot]) -> Vec<usize> {
        let evicted =
            |(index, slot): (usize, &Slot)| slot.activity.end_requested().now_or_never().map(|_| index);
        held.iter().enumerate().filter_map(evicted).collect()
    }

    /// Evicts at now + `later`. Returns the evicted indices and the wait until the next attempt.
    fn room_in(slots: &Slots, held: &[Slot], later: Duration) -> (Vec<usize>, Duration) {
        let now = Instant::now() + later;
        let again = slots.evict_one(now);
        (evicted(held), again.saturating_duration_since(now))
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_evicted() {
        let slots = Slots::new(4);
        let held = filled(&slots, 4);
        let worked = |index: usize| drop(held[index].activity.work().unwrap());
        worked(2);
        worked(0);

        let order: Vec<_> = (0..5).map(|_| room_in(&slots, &held, EVICTION_GRACE).0).collect();

        assert_eq!(order, [vec![1], vec![3], vec![2], vec![0], vec![]]);
    }

    #[tokio::test]
    async fn no_connection_is_evicted_within_its_grace_time() {
        let slots = Slots::new(1);
        let held = filled(&slots, 1);

        let half = held[0].activity.started + EVICTION_GRACE / 2;
        let again = slots.evict_one(half).saturating_duration_since(half);
        let early = evicted(&held);
        assert!(early.is_empty() && again <= EVICTION_GRACE / 2, "{early:?} {again:?}");
        drop(held[0].activity.work());
        // Due by its start, but not by the end of its request.
        slots.evict_one(held[0].activity.started + EVICTION_GRACE);

        assert_eq!(evicted(&held), [0; 0]);
        assert_eq!(room_in(&slots, &held, EVICTION_GRACE).0, [0]);
    }

    #[tokio::test]
    async fn an_evicted_connection_starts_no_request() {
        let slots = Slots::new(1);
        let held = filled(&slots, 1);
        assert!(held[0].activity.work().is_some());

        room_in(&slots, &held, 2 * EVICTION_GRACE);

        assert!(held[0].activity.work().is_none());
    }

    #[tokio::test]
    async fn an_ended_connection_frees_its_slot_and_memory() {
        let slots = Slots::new(2);
        let mut held = filled(&slots, 2);
        room_in(&slots, &held, EVICTION_GRACE);

        assert!(slots.take().now_or_never().is_none(), "a third slot");
        held.clear();

        assert!(slots.taken.lock().order.is_empty() && slots.taken.lock().keys.is_empty());
        assert_eq!(filled(&slots, 2).len(), 2);
    }
}
