//! The delivery queue: lanes for first attempts, timers for what is due later, and a parking list per webhook at its in-flight
//! limit.
//!
//! It has no clock and sends nothing. `admit` and `finish` count everything in it, so one limit bounds lanes, timers, ready
//! list and parked deliveries together.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::DeliveryOrder;
use crate::random::Guid;

/// In-flight limit of a webhook: a part of all, so that a receiver which never answers leaves room for others.
pub(super) const MAX_IN_FLIGHT_PER_WEBHOOK: usize = 32;
/// Deliveries that wait or are in flight; further ones are dropped.
const MAX_OUTSTANDING: usize = 100_000;
/// How long a held delivery waits for later ones.
const HOLD_BACK_TIMEOUT: Duration = Duration::from_secs(2);

/// A delivery in the queue.
#[derive(Debug)]
pub(super) struct QueuedDelivery {
    /// Its number in the journal.
    pub(super) number: u64,
    pub(super) order: Arc<DeliveryOrder>,
    pub(super) attempts: u32,
    /// Earliest time of the first attempt.
    pub(super) due: Option<Instant>,
    /// Notified when the first attempt has ended.
    pub(super) first: Option<oneshot::Sender<()>>,
}

impl QueuedDelivery {
    pub(super) fn new(number: u64, order: Arc<DeliveryOrder>) -> Self {
        Self { number, order, attempts: 0, due: None, first: None }
    }
}

/// Lanes, timers and ready list.
#[derive(Debug, Default)]
pub(super) struct DeliveryQueue {
    /// Lanes with a delivery that waits, is held or in flight.
    lanes: HashMap<u64, DeliveryLane>,
    ready: VecDeque<ReadyItem>,
    /// Webhooks with deliveries in flight.
    webhooks: HashMap<Guid, WebhookLoad>,
    /// By time, then in the order they were set.
    timers: BTreeMap<(Instant, u64), TimerItem>,
    /// Timers set so far.
    timer_number: u64,
    /// Admitted and not finished.
    outstanding: usize,
}

#[derive(Debug, Default)]
struct DeliveryLane {
    waiting: VecDeque<QueuedDelivery>,
    /// A held delivery, and how many later ones may still overtake it.
    held: Option<(u64, QueuedDelivery)>,
    position: DeliveryLaneState,
}

#[derive(Debug, Default)]
struct WebhookLoad {
    in_flight: usize,
    /// Ready, but over the in-flight limit.
    parked: VecDeque<ReadyItem>,
}

/// The state of a lane.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum DeliveryLaneState {
    /// Nothing is ready, due or in flight.
    #[default]
    Idle,
    /// In the ready list, parked, or in a timer until its first delivery is due.
    Listed,
    /// Its first attempt is in flight.
    Busy,
}

#[derive(Debug)]
enum ReadyItem {
    Lane(u64),
    Retry(QueuedDelivery),
}

#[derive(Debug)]
enum TimerItem {
    /// A retry, or the first delivery of a lane.
    Ready(ReadyItem),
    /// The delivery with this number has been held long enough.
    Held { lane: u64, number: u64 },
}

impl DeliveryQueue {
    /// Counts a delivery, if there is room.
    pub(super) fn admit(&mut self) -> bool {
        let room = self.outstanding < MAX_OUTSTANDING;
        self.outstanding += usize::from(room);
        room
    }

    /// An admitted delivery has ended; returns whether the queue is now empty.
    pub(super) fn finish(&mut self) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    /// Appends a delivery to its lane, or holds it until `hold_back` later ones have been appended. They are counted when they are
    /// appended, so that the order depends only on the order of calls. A lane holds one delivery at a time: if it held all, none
    /// would overtake another.
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

    /// The next delivery to send whose webhook is below its in-flight limit. It is in flight, and its lane busy unless it is a
    /// retry, until [`Self::attempt_ended`].
    pub(super) fn take(&mut self, now: Instant) -> Option<QueuedDelivery> {
        self.tick(now);
        while let Some(ready) = self.ready.pop_front() {
            let first = match &ready {
                ReadyItem::Retry(job) => Some(job),
                ReadyItem::Lane(id) => self.lanes.get(id).and_then(|lane| lane.waiting.front()),
            };
            // A listed lane is not empty.
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
                    lane.position = DeliveryLaneState::Busy;
                    return lane.waiting.pop_front();
                }
            }
        }
        None
    }

    /// An attempt ended or was not made: another delivery of the webhook may be sent, and after a first attempt the next of the
    /// lane.
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
            lane.position = DeliveryLaneState::Idle;
            self.list(order.lane, now);
        }
    }

    /// Schedules a retry.
    pub(super) fn retry(&mut self, job: QueuedDelivery, at: Instant) {
        self.time(at, TimerItem::Ready(ReadyItem::Retry(job)));
    }

    /// When the next timer is due.
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
                TimerItem::Ready(item) => self.ready.push_back(item),
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

    /// Makes an idle lane ready, schedules it, or removes it if it is empty.
    fn list(&mut self, id: u64, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if lane.position != DeliveryLaneState::Idle {
            return;
        }
        let Some(first) = lane.waiting.front() else {
            if lane.held.is_none() {
                self.lanes.remove(&id);
            }
            return;
        };
        lane.position = DeliveryLaneState::Listed;
        match first.due {
            Some(due) if due > now => self.time(due, TimerItem::Ready(ReadyItem::Lane(id))),
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

    /// Everything that can be taken now, ending each attempt at once.
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
    fn a_held_delivery_goes_after_as_many_of_its_lane_as_drawn() {
        let all = [(1, Some(1)); 6];
        let others = [(1, Some(2)), (2, None), (1, None), (2, None), (1, None), (1, None)];
        for (deliveries, of_lane_one) in [(all, vec![1, 0, 3, 2, 5, 4]), (others, vec![2, 4, 0, 5])] {
            let (mut queue, now) = (DeliveryQueue::default(), Instant::now());
            for (number, (lane, hold_back)) in (0..).zip(deliveries) {
                enqueue(&mut queue, job(number, lane), hold_back, now);
            }

            let mut order = drain(&mut queue, now);
            order.retain(|number| deliveries[*number as usize].0 == 1);
            assert_eq!(order, of_lane_one);
        }
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
