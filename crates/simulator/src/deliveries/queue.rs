//! What waits to be sent: lanes for first attempts, a timer for everything that is due later, and a place apart for what
//! would be one too many of its webhook.
//!
//! Pure bookkeeping: the time is given, nothing is sent here. Everything in it is counted by `admit` and `finish`, so the
//! limit of waiting deliveries bounds the lanes, the timer, the ready list and what is parked together.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::DeliveryOrder;
use crate::random::Guid;

/// Deliveries to one webhook on their way at once: a part of all, so that a receiver which never answers leaves room for
/// others.
pub(super) const MAX_IN_FLIGHT_PER_WEBHOOK: usize = 32;
/// Deliveries that wait or are in flight; further ones are dropped, and the journal says so.
const MAX_OUTSTANDING: usize = 100_000;
/// How long one that is held back waits for later ones that do not come.
const HOLD_BACK_TIMEOUT: Duration = Duration::from_secs(2);

/// One delivery under way.
#[derive(Debug)]
pub(super) struct QueuedDelivery {
    /// Number in the journal.
    pub(super) number: u64,
    pub(super) order: Arc<DeliveryOrder>,
    pub(super) attempts: u32,
    /// Not before this, for the first attempt.
    pub(super) due: Option<Instant>,
    /// Told when the first attempt is attempt_ended.
    pub(super) first: Option<oneshot::Sender<()>>,
}

impl QueuedDelivery {
    pub(super) fn new(number: u64, order: Arc<DeliveryOrder>) -> Self {
        Self { number, order, attempts: 0, due: None, first: None }
    }
}

/// Lanes, timer and ready list.
#[derive(Debug, Default)]
pub(super) struct DeliveryQueue {
    /// Lanes that have something waiting, held back or on its way; others are not kept.
    lanes: HashMap<u64, Lane>,
    ready: VecDeque<ReadyItem>,
    /// Webhooks with deliveries on their way; others are not kept.
    webhooks: HashMap<Guid, WebhookLoad>,
    /// By moment, and those of one moment in the order they were set.
    timers: BTreeMap<(Instant, u64), TimerItem>,
    /// Timers set so far.
    timer_number: u64,
    /// Admitted and not finished.
    outstanding: usize,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<QueuedDelivery>,
    /// Held back, with how many later ones it still lets go first.
    held: Option<(u64, QueuedDelivery)>,
    position: LaneState,
}

#[derive(Debug, Default)]
struct WebhookLoad {
    in_flight: usize,
    /// What is ready and waits for one of those to end.
    parked: VecDeque<ReadyItem>,
}

/// Where a lane stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LaneState {
    /// Nothing of it is ready, due or on its way.
    #[default]
    Idle,
    /// In the ready list or parked, or in the timer until its first is due.
    Listed,
    /// Its first attempt is on its way.
    Busy,
}

#[derive(Debug)]
enum ReadyItem {
    Lane(u64),
    Retry(QueuedDelivery),
}

#[derive(Debug)]
enum TimerItem {
    /// The first of a lane is due.
    Lane(u64),
    /// A further attempt is due.
    Retry(QueuedDelivery),
    /// The delivery with this number has been held back long enough.
    Held { lane: u64, number: u64 },
}

impl DeliveryQueue {
    /// Counts one more, if there is room.
    pub(super) fn admit(&mut self) -> bool {
        let room = self.outstanding < MAX_OUTSTANDING;
        self.outstanding += usize::from(room);
        room
    }

    /// One that was admitted has ended. Whether it was the last.
    pub(super) fn finish(&mut self) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    /// Puts one at the end of its lane, or holds it back until so many later ones have passed it. They are counted as they
    /// are put here, not as they go: the order in a lane so follows from the order of the calls alone. A lane holds back
    /// one at a time: if all were, none would pass another.
    pub(super) fn enqueue(&mut self, job: QueuedDelivery, hold_back: Option<u64>, now: Instant) {
        let id = job.order.lane;
        let lane = self.lanes.entry(id).or_default();
        match (&mut lane.held, hold_back) {
            (held @ None, Some(behind)) => {
                let what = TimerItem::Held { lane: id, number: job.number };
                *held = Some((behind, job));
                self.time(now + HOLD_BACK_TIMEOUT, what);
            }
            (held, _) => {
                lane.waiting.push_back(job);
                if let Some((left, _)) = held {
                    *left = left.saturating_sub(1);
                }
                let released = held.take_if(|(left, _)| *left == 0);
                lane.waiting.extend(released.map(|(_, job)| job));
            }
        }
        self.list(id, now);
    }

    /// The next one to send, if its webhook has not so many on their way already. It is on its way, and its lane busy unless
    /// it is a retry, until [`Self::attempt_ended`].
    pub(super) fn take(&mut self, now: Instant) -> Option<QueuedDelivery> {
        self.tick(now);
        while let Some(ready) = self.ready.pop_front() {
            let first = match &ready {
                ReadyItem::Retry(job) => Some(job),
                ReadyItem::Lane(id) => self.lanes.get(id).and_then(|lane| lane.waiting.front()),
            };
            // A lane that is listed has a first one.
            let Some(webhook) = first.map(|job| job.order.webhook) else { continue };
            let webhook = self.webhooks.entry(webhook).or_default();
            if webhook.in_flight >= MAX_IN_FLIGHT_PER_WEBHOOK {
                webhook.parked.push_back(ready);
                continue;
            }
            webhook.in_flight += 1;
            match ready {
                ReadyItem::Retry(job) => return Some(job),
                ReadyItem::Lane(id) => {
                    let Some(lane) = self.lanes.get_mut(&id) else { continue };
                    lane.position = LaneState::Busy;
                    return lane.waiting.pop_front();
                }
            }
        }
        None
    }

    /// An attempt is attempt_ended, or was not made after all: another of its webhook may go, and if it was the first attempt the next
    /// of its lane.
    pub(super) fn attempt_ended(&mut self, order: &DeliveryOrder, first: bool, now: Instant) {
        if let Some(webhook) = self.webhooks.get_mut(&order.webhook) {
            webhook.in_flight = webhook.in_flight.saturating_sub(1);
            self.ready.extend(webhook.parked.pop_front());
            if webhook.in_flight == 0 && webhook.parked.is_empty() {
                self.webhooks.remove(&order.webhook);
            }
        }
        if !first {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&order.lane) {
            lane.position = LaneState::Idle;
            self.list(order.lane, now);
        }
    }

    /// Tries again at a moment.
    pub(super) fn retry(&mut self, job: QueuedDelivery, at: Instant) {
        self.time(at, TimerItem::Retry(job));
    }

    /// When something that waits for a moment is due next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    fn time(&mut self, at: Instant, what: TimerItem) {
        self.timer_number += 1;
        self.timers.insert((at, self.timer_number), what);
    }

    fn tick(&mut self, now: Instant) {
        while self.next_due().is_some_and(|at| at <= now) {
            let Some((_, what)) = self.timers.pop_first() else { return };
            match what {
                TimerItem::Lane(id) => self.ready.push_back(ReadyItem::Lane(id)),
                TimerItem::Retry(job) => self.ready.push_back(ReadyItem::Retry(job)),
                TimerItem::Held { lane: id, number } => {
                    let Some(lane) = self.lanes.get_mut(&id) else { continue };
                    if let Some((_, job)) = lane.held.take_if(|(_, job)| job.number == number) {
                        lane.waiting.push_back(job);
                        self.list(id, now);
                    }
                }
            }
        }
    }

    /// Lists an idle lane where its first one will be found, or forgets it when it is empty.
    fn list(&mut self, id: u64, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if lane.position != LaneState::Idle {
            return;
        }
        let Some(first) = lane.waiting.front() else {
            if lane.held.is_none() {
                self.lanes.remove(&id);
            }
            return;
        };
        lane.position = LaneState::Listed;
        match first.due {
            Some(due) if due > now => self.time(due, TimerItem::Lane(id)),
            _ => self.ready.push_back(ReadyItem::Lane(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliveries::{About, DeliveryBody, Family, Purpose};

    fn job(number: u64, lane: u64) -> QueuedDelivery {
        let about = About { event: "e".into(), company: None, record: None, sequence: None, outgoing: None };
        let order = DeliveryOrder {
            family: Family::Accounting,
            webhook: Guid(0),
            purpose: Purpose::Event,
            url: url::Url::parse("http://receiver.example/").unwrap(),
            body: DeliveryBody::Same(bytes::Bytes::new(), None),
            signature_header: None,
            lane,
            retries: Arc::new([]),
            gone_ends: false,
            about,
        };
        QueuedDelivery::new(number, Arc::new(order))
    }

    fn enqueue(queue: &mut DeliveryQueue, job: QueuedDelivery, hold_back: Option<u64>, now: Instant) {
        assert!(queue.admit());
        queue.enqueue(job, hold_back, now);
    }

    /// Everything that can be taken now, each attempt attempt_ended at once.
    fn drain(queue: &mut DeliveryQueue, now: Instant) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(job) = queue.take(now) {
            numbers.push(job.number);
            queue.attempt_ended(&job.order, job.attempts == 0, now);
            queue.finish();
        }
        numbers
    }

    #[test]
    fn a_webhook_at_its_in_flight_limit_delays_no_other() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
        let of = |webhook, number| {
            let mut job = job(number, number);
            Arc::get_mut(&mut job.order).unwrap().webhook = Guid(webhook);
            job
        };
        let most = MAX_IN_FLIGHT_PER_WEBHOOK as u64;
        for number in 0..=most {
            enqueue(&mut queue, of(1, number), None, now);
        }
        assert!(queue.admit());
        queue.retry(QueuedDelivery { attempts: 1, ..of(1, 100) }, now);
        enqueue(&mut queue, of(2, 200), None, now);

        let take_all = |queue: &mut DeliveryQueue| -> Vec<QueuedDelivery> {
            std::iter::from_fn(|| queue.take(now)).collect()
        };
        let numbers = |jobs: &[QueuedDelivery]| jobs.iter().map(|job| job.number).collect::<Vec<_>>();
        let first = take_all(&mut queue);
        queue.attempt_ended(&first[0].order, true, now);
        let second = take_all(&mut queue);
        for job in first[1..].iter().chain(&second) {
            queue.attempt_ended(&job.order, job.attempts == 0, now);
        }
        let last = take_all(&mut queue);
        queue.attempt_ended(&last[0].order, false, now);

        assert_eq!(numbers(&first), (0..most).chain([200]).collect::<Vec<_>>());
        assert_eq!([numbers(&second), numbers(&last)], [vec![most], vec![100]]);
        assert!(queue.webhooks.is_empty() && queue.ready.is_empty() && queue.lanes.is_empty());
    }

    #[test]
    fn where_all_are_held_back_neighbors_swap_places() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());

        for number in 0..6 {
            enqueue(&mut queue, job(number, 1), Some(1), now);
        }

        assert_eq!(drain(&mut queue, now), [1, 0, 3, 2, 5, 4]);
    }

    #[test]
    fn a_held_delivery_goes_after_as_many_of_its_lane_as_drawn() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());

        enqueue(&mut queue, job(0, 1), Some(2), now);
        for number in 1..=3 {
            enqueue(&mut queue, job(number, 2), None, now);
            enqueue(&mut queue, job(10 + number, 1), None, now);
        }

        let of_the_lane: Vec<u64> =
            drain(&mut queue, now).into_iter().filter(|number| !(1..=3).contains(number)).collect();
        assert_eq!(of_the_lane, [11, 12, 0, 13]);
    }

    #[test]
    fn a_held_delivery_goes_by_itself_after_a_timeout() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
        enqueue(&mut queue, job(0, 1), Some(1), now);

        let before = drain(&mut queue, now);
        let due = queue.next_due().unwrap();
        let after = drain(&mut queue, due);

        assert_eq!((before, due - now, after), (vec![], HOLD_BACK_TIMEOUT, vec![0]));
    }

    #[test]
    fn a_delayed_delivery_blocks_its_lane_and_a_retry_does_not() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
        let soon = now + Duration::from_secs(1);
        let late = now + Duration::from_secs(2);
        enqueue(&mut queue, QueuedDelivery { due: Some(late), ..job(0, 1) }, None, now);
        enqueue(&mut queue, job(1, 1), None, now);
        assert!(queue.admit());
        queue.retry(QueuedDelivery { attempts: 1, ..job(2, 1) }, soon);

        let at_once = drain(&mut queue, now);
        let then = (queue.next_due(), drain(&mut queue, soon));
        let last = (queue.next_due(), drain(&mut queue, late));

        assert_eq!(at_once, [0; 0]);
        assert_eq!((then, last), ((Some(soon), vec![2]), (Some(late), vec![0, 1])));
    }

    #[test]
    fn no_more_are_admitted_than_the_limit() {
        let mut queue = DeliveryQueue { outstanding: MAX_OUTSTANDING - 1, ..DeliveryQueue::default() };

        assert_eq!([queue.admit(), queue.admit()], [true, false]);
        queue.finish();
        assert!(queue.admit());
    }

    #[test]
    fn ended_deliveries_leave_nothing_in_the_queue() {
        let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
        for number in 0..100 {
            enqueue(&mut queue, job(number, number % 7), (number % 3 == 0).then_some(2), now);
        }

        let ended = drain(&mut queue, now).len() + drain(&mut queue, now + HOLD_BACK_TIMEOUT).len();

        assert_eq!(ended, 100);
        assert!(
            queue.is_empty() && queue.lanes.is_empty() && queue.ready.is_empty() && queue.timers.is_empty()
        );
        assert!(queue.webhooks.is_empty());
    }
}
