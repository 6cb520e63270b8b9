//! Slots for connections: a bounded number, and where all are taken, the one that nobody works on gives way.
//!
//! accepted ─▶ [`Slots::take`] ─▶ a free slot, or that of the connection whose last request is longest ago
//!
//! - A connection with a request at work is never closed for another. Where all have one, the newcomer waits.
//! - What counts is when the last request ended, or the connection began: who sends its head one byte at a time is not
//!   younger for it.
//! - Nobody is closed within [`EVICTION_GRACE`] of that, so that a burst of newcomers does not push each other out before they could
//!   ask for anything. This also bounds the work: each connection is looked at once in that time, and once when it is closed.

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

/// How long a connection may be without a request before it can be closed for another. Enough for a handshake and a head over
/// a long line, and a fifth of what the provider waits for its answer.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    taken: Mutex<SlotTable>,
}

#[derive(Debug, Default)]
struct SlotTable {
    next: u64,
    /// Each by a moment since which it may have been at rest: never later than the true one, which moves on with every
    /// request and is only asked for when its turn comes.
    order: BTreeMap<(Instant, u64), Arc<Activity>>,
    /// The moment under which each is in the order.
    keys: HashMap<u64, Instant>,
}

impl Slots {
    /// So many, at least one.
    pub(super) fn new(most: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { free, taken: Mutex::default() })
    }

    /// A slot for a connection that begins now. `None` is never seen: only who has the semaphore could close it.
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

    /// Tells the connection that is longest without a request to end, if one has been for long enough. When to look again
    /// where no slot becomes free.
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
                    // It is gone in a moment; if not, because its thread is held up, another is.
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
        let now = activity.started();
        let mut taken = self.taken.lock();
        let id = taken.next;
        taken.next += 1;
        taken.keys.insert(id, now);
        taken.order.insert((now, id), Arc::clone(&activity));
        drop(taken);
        Slot { activity, id, of: Arc::clone(self), _permit: permit }
    }
}

/// The slot of one connection, for as long as it is kept.
#[derive(Debug)]
pub(super) struct Slot {
    /// What moves on that connection.
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

    /// So many connections, begun one after the other.
    fn filled(slots: &Arc<Slots>, count: usize) -> Vec<Slot> {
        let fill = |_| slots.take().now_or_never().flatten().unwrap();
        (0..count).map(fill).collect()
    }

    /// Which of them were told to end.
    fn told(held: &[Slot]) -> Vec<usize> {
        let told =
            |(index, slot): (usize, &Slot)| slot.activity.end_requested().now_or_never().map(|_| index);
        held.iter().enumerate().filter_map(told).collect()
    }

    /// Makes room so long from now. Who was told to end, and how long after that to look again.
    fn room_in(slots: &Slots, held: &[Slot], later: Duration) -> (Vec<usize>, Duration) {
        let now = Instant::now() + later;
        let again = slots.evict_one(now);
        (told(held), again.saturating_duration_since(now))
    }

    #[tokio::test]
    async fn the_one_whose_last_request_is_longest_ago_gives_way() {
        let slots = Slots::new(4);
        let held = filled(&slots, 4);
        let worked = |index: usize| drop(held[index].activity.work().unwrap());
        worked(2);
        worked(0);

        let order: Vec<_> = (0..5).map(|_| room_in(&slots, &held, EVICTION_GRACE).0).collect();

        assert_eq!(order, [vec![1], vec![3], vec![2], vec![0], vec![]]);
    }

    #[tokio::test]
    async fn one_with_a_request_at_work_never_gives_way_however_long_that_takes() {
        let slots = Slots::new(2);
        let held = filled(&slots, 2);
        let [first, _second] = [0, 1].map(|index| held[index].activity.work().unwrap());

        let years = (1..1_000)
            .map(|step| room_in(&slots, &held, step * EVICTION_GRACE).0)
            .find(|told| !told.is_empty());
        assert_eq!(years, None);
        drop(first);

        assert_eq!(room_in(&slots, &held, 2_000 * EVICTION_GRACE).0, [0]);
    }

    #[tokio::test]
    async fn nobody_gives_way_before_it_could_ask_and_the_next_look_is_when_it_could_have() {
        let slots = Slots::new(1);
        let held = filled(&slots, 1);

        let half = held[0].activity.started() + EVICTION_GRACE / 2;
        let again = slots.evict_one(half).saturating_duration_since(half);
        let early = told(&held);
        assert!(early.is_empty() && again <= EVICTION_GRACE / 2, "{early:?} {again:?}");
        drop(held[0].activity.work());
        // Due by when it began, and not by when its request ended.
        slots.evict_one(held[0].activity.started() + EVICTION_GRACE);

        assert_eq!(told(&held), [0; 0]);
        assert_eq!(room_in(&slots, &held, EVICTION_GRACE).0, [0]);
    }

    #[tokio::test]
    async fn who_gave_way_begins_nothing_more() {
        let slots = Slots::new(1);
        let held = filled(&slots, 1);
        assert!(held[0].activity.work().is_some());

        room_in(&slots, &held, 2 * EVICTION_GRACE);

        assert!(held[0].activity.work().is_none());
    }

    #[tokio::test]
    async fn who_has_ended_leaves_a_slot_and_takes_no_memory() {
        let slots = Slots::new(2);
        let mut held = filled(&slots, 2);
        room_in(&slots, &held, EVICTION_GRACE);

        assert!(slots.take().now_or_never().is_none(), "a third slot");
        held.clear();

        assert!(slots.taken.lock().order.is_empty() && slots.taken.lock().keys.is_empty());
        assert_eq!(filled(&slots, 2).len(), 2);
    }
}
