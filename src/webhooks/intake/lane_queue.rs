//! One queue's order: which parts are in flight or must be sent again, and whether new parts go straight to Kafka or behind the spool. A
//! part has one sequence number for all its records.
//!
//! A queue is *direct* or *behind*. Direct: a part is handed to the producer under the queue's lock, in the order of the
//! sequence numbers given out there, and the producer keeps that order. Behind: parts are only appended to the spool, and
//! one drain publishes them in sequence. The order argument:
//!
//! 1. Sequence numbers grow in the order of the calls of [`LaneQueue::enter`], because they are given out under the lock.
//! 2. Direct parts reach the producer in that order, because they are sent under the same lock; the producer, idempotent
//!    and without a message time-out, keeps it in the log.
//! 3. A queue goes behind for everything after some number and stays so until the drain has sent all of it: no part can
//!    overtake one in the spool, because nothing is sent directly meanwhile.
//! 4. The drain starts only when nothing is in flight, so everything before is decided: it is in Kafka, or it waits in `again` or in
//!    the spool under its own number. It takes the lowest number first, and nothing above one whose append is under way.
//! 5. Coming back to direct happens under the lock, and only by sending there all that is left: what enters next comes after.
//! 6. All parts of a queue that are in flight at one time went through one producer. A new one is used once all parts of the old
//!    one are decided.
//!
//! A part that fails *after* later ones were accepted by the broker cannot be put before them; the producer never does
//! that for a cause that passes (it retries in place), and what Kafka refuses permanently goes to the dead letters.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Parts that entered behind and are kept in memory too, so that a busy queue can come back: by then they are fewer than this.
const MAX_TAIL: usize = 256;

/// One queue; the module's head says how it keeps order. `I`: a queued part.
#[derive(Debug)]
pub(super) struct LaneQueue<I> {
    state: Mutex<QueueState<I>>,
    /// Notified whenever the drain may have something to do.
    bell: Notify,
}

/// The marks of a queue on the line of its sequence numbers:
///
/// ```text
///   handled by the drain     │ in the spool     │ in `tail` too
/// ───────────┼───────────────┼──────────────────┼───────────────┼──▶
///       resend_from       drained           uncovered        newest
/// ```
///
/// `resend_from` is nearly always `None`; otherwise the next read starts there and not at `drained`. The queue can become direct once
/// `drained` has reached `uncovered`, because then `tail` has all the rest.
#[derive(Debug)]
struct QueueState<I> {
    mode: QueueMode,
    /// Sent directly and not reported yet, with the time they were sent.
    in_flight: BTreeMap<u64, Instant>,
    /// The producer through which these were sent.
    producer: u64,
    /// Failed, to be sent again from memory; kept until they are published.
    again: BTreeMap<u64, Arc<I>>,
    /// Being appended to the spool, and not in it for certain.
    appending: BTreeSet<u64>,
    /// The last ones that entered behind, contiguous up to the newest.
    tail: VecDeque<(u64, Arc<I>)>,
    /// The highest number that may be in the spool and is not in `tail`.
    uncovered: u64,
    /// The highest number that entered behind.
    newest: u64,
    /// The drain has handled everything up to here: it is published, left in the spool as unreadable, or sent directly, and then in
    /// `in_flight`, or in `again` if it failed.
    drained: u64,
    /// A part after this number was left in the spool: the next read starts here, below `drained`.
    resend_from: Option<u64>,
}

/// Where new parts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueMode {
    /// Straight to the producer.
    Direct,
    /// To the spool; no drain has been started.
    Behind,
    /// To the spool, from which a drain publishes, or is about to.
    Draining,
}

/// How many of a part's records the producer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    /// All.
    Whole,
    /// Some; the part has to be sent again.
    InPart,
}

/// What the drain finds.
#[derive(Debug)]
pub(super) struct DrainWork<I> {
    /// To be sent again from memory, by number.
    pub(super) again: BTreeMap<u64, Arc<I>>,
    /// The read of the spool starts after this number.
    pub(super) after: u64,
    /// The last number to publish: no append up to it is under way any more.
    pub(super) up_to: u64,
}

impl<I> LaneQueue<I> {
    /// A queue of which the spool holds parts up to this number, or nothing.
    pub(super) fn new(spooled: Option<u64>) -> Self {
        let state = QueueState {
            mode: if spooled.is_some() { QueueMode::Behind } else { QueueMode::Direct },
            in_flight: BTreeMap::new(),
            producer: 0,
            again: BTreeMap::new(),
            appending: BTreeSet::new(),
            tail: VecDeque::new(),
            uncovered: spooled.unwrap_or(0),
            newest: spooled.unwrap_or(0),
            drained: 0,
            resend_from: None,
        };
        Self { state: Mutex::new(state), bell: Notify::new() }
    }

    /// Lets a part in, under the next number. `send` is a producer's number and what hands the part to it; that is only
    /// called where the queue is direct, and returns `None` where the producer takes nothing now. `keep` says whether there is
    /// memory to keep the part beside the spool.
    ///
    /// Returns what `send` did, or `None` where the part has to be appended to the spool and [`LaneQueue::appended`] called.
    ///
    /// A queue whose oldest part has been without a report for `patience` goes behind: the next part would only wait as long.
    pub(super) fn enter<T>(
        &self,
        patience: Duration,
        numbers: &AtomicU64,
        queued: impl FnOnce(u64) -> Arc<I>,
        send: Option<(u64, impl FnOnce() -> Option<(T, Handed)>)>,
        keep: impl FnOnce() -> bool,
    ) -> (Arc<I>, Option<T>) {
        let mut state = self.state.lock();
        let sequence = numbers.fetch_add(1, Ordering::Relaxed);
        let queued = queued(sequence);
        let now = Instant::now();
        let stalled =
            state.in_flight.values().next().is_some_and(|sent| now.duration_since(*sent) >= patience);
        if let Some((producer, send)) = send
            && state.mode == QueueMode::Direct
            && !stalled
            && (state.in_flight.is_empty() || state.producer == producer)
            && let Some((sent, handed)) = send()
        {
            // The rest of it comes later, and so must everything behind it.
            if handed == Handed::InPart {
                state.mode = QueueMode::Behind;
            }
            state.producer = producer;
            state.in_flight.insert(sequence, now);
            return (queued, Some(sent));
        }
        state.go_behind();
        state.newest = sequence;
        state.appending.insert(sequence);
        if keep() {
            if state.tail.len() == MAX_TAIL
                && let Some((oldest, _)) = state.tail.pop_front()
            {
                state.uncovered = oldest;
            }
            state.tail.push_back((sequence, Arc::clone(&queued)));
        } else {
            state.tail.clear();
            state.uncovered = sequence;
        }
        (queued, None)
    }

    /// A direct part is in Kafka, or in the dead letters.
    pub(super) fn acknowledged(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.in_flight.remove(&sequence);
        if state.in_flight.is_empty() {
            self.bell.notify_one();
        }
    }

    /// A part that was sent must be sent again; the queue is behind from here on.
    pub(super) fn failed(&self, sequence: u64, queued: Arc<I>) {
        let mut state = self.state.lock();
        state.go_behind();
        state.in_flight.remove(&sequence);
        // No later part may have gone behind, and the drain reads only up to `newest`.
        state.newest = state.newest.max(sequence);
        state.again.insert(sequence, queued);
        if state.in_flight.is_empty() {
            self.bell.notify_one();
        }
    }

    /// A part was left in the spool: the drain must read it again.
    pub(super) fn left_in_spool(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.go_behind();
        state.newest = state.newest.max(sequence);
        state.uncovered = state.uncovered.max(sequence);
        let before = sequence.saturating_sub(1);
        state.resend_from = Some(state.resend_from.map_or(before, |from| from.min(before)));
        self.bell.notify_one();
    }

    /// An append has ended, well or not. One that failed is not in the spool, and its part must not be sent: its sender
    /// gets 503 and repeats it.
    pub(super) fn appended(&self, sequence: u64, stored: bool) {
        let mut state = self.state.lock();
        state.appending.remove(&sequence);
        if !stored {
            state.tail.retain(|(number, _)| *number != sequence);
        }
        self.bell.notify_one();
    }

    /// Whether the caller has to start a drain; returns `true` once until the queue is direct again.
    pub(super) fn wants_drain(&self) -> bool {
        let mut state = self.state.lock();
        let wanted = state.mode == QueueMode::Behind;
        if wanted {
            state.mode = QueueMode::Draining;
        }
        wanted
    }

    /// What is to be done, once nothing is in flight. The tail may have been given back to direct meanwhile by `send`, which hands
    /// a part to a producer (to the named one, if any) and returns which: then the drain is over, and `None`.
    pub(super) async fn work<T>(
        &self,
        mut send: impl FnMut(&Arc<I>, Option<u64>) -> Option<(u64, T, Handed)>,
        mut sent: impl FnMut(Arc<I>, T),
    ) -> Option<DrainWork<I>> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(from) = state.resend_from.take() {
                    // What else was there is removed, and is not found twice.
                    state.drained = state.drained.min(from);
                }
                if state.in_flight.is_empty() && state.come_back(&mut send, &mut sent) {
                    return None;
                }
                // Asked again: a try to come back may have sent some.
                if state.in_flight.is_empty() {
                    let up_to = state.appending.first().map_or(state.newest, |first| first - 1);
                    return Some(DrainWork { again: state.again.clone(), after: state.drained, up_to });
                }
            }
            self.bell.notified().await;
        }
    }

    /// The drain has sent everything up to here, and it is settled.
    pub(super) fn drained(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.drained = state.drained.max(sequence);
        while state.tail.front().is_some_and(|(number, _)| *number <= sequence) {
            state.tail.pop_front();
        }
    }

    /// The drain has published a part that it was given from memory. Until then it is given again, whatever ends the drain.
    pub(super) fn settled(&self, sequence: u64) {
        self.state.lock().again.remove(&sequence);
    }

    /// Waits until something has changed that the drain may wait for.
    pub(super) async fn changed(&self) {
        self.bell.notified().await;
    }

    /// Whether a part has been sent directly and is not reported.
    pub(super) fn is_in_flight(&self, sequence: u64) -> bool {
        self.state.lock().in_flight.contains_key(&sequence)
    }

    /// Whether new parts go behind the spool.
    pub(super) fn is_behind(&self) -> bool {
        self.state.lock().mode != QueueMode::Direct
    }
}

impl<I> QueueState<I> {
    fn go_behind(&mut self) {
        if self.mode == QueueMode::Direct {
            self.mode = QueueMode::Behind;
        }
    }

    /// Makes the queue direct again if all that is not sent is in memory, by sending it. Whether that has been done; what was
    /// sent is in flight from here on, and what could not be stays for the next time.
    fn come_back<T>(
        &mut self,
        send: &mut impl FnMut(&Arc<I>, Option<u64>) -> Option<(u64, T, Handed)>,
        sent: &mut impl FnMut(Arc<I>, T),
    ) -> bool {
        if !self.again.is_empty() || self.drained < self.uncovered {
            return false;
        }
        let now = Instant::now();
        // Taken out once it is sent: whatever happens to `send`, the tail stays contiguous.
        while let Some((sequence, queued)) = self.tail.front().cloned() {
            if sequence <= self.drained {
                self.tail.pop_front();
                continue;
            }
            let producer = (!self.in_flight.is_empty()).then_some(self.producer);
            match send(&queued, producer) {
                Some((producer, delivery, handed)) => {
                    self.tail.pop_front();
                    self.producer = producer;
                    self.in_flight.insert(sequence, now);
                    self.drained = sequence;
                    sent(queued, delivery);
                    if handed == Handed::InPart {
                        return false;
                    }
                }
                None => return false,
            }
        }
        self.mode = QueueMode::Direct;
        true
    }
}
