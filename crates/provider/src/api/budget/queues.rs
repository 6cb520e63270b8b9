//! The queues of requests that wait for the budget.
//!
//! Within a priority, requests leave in order of arrival, except those of a company at its limit: each company has a line of its
//! own, and a held line is not examined before its company may have a token. So admitting a request costs the same however many
//! wait.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{Permit, company_rates::CompanyRates};
use crate::api::Priority;

/// Limit of requests that wait in one queue.
const MAX_WAITING: usize = 10_000;
/// Every nth permit goes to a lower priority, so that none starves.
const LOW_PRIORITY_EVERY: u64 = 10;
/// How often a full queue is searched for cancelled requests.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The company of a line; `None` for requests without one.
type CompanyKey = Option<Arc<str>>;

/// A waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) company: CompanyKey,
    pub(super) turn: oneshot::Sender<Permit>,
}

/// The queues of all priorities.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: [Queue; Priority::ALL.len()],
    arrivals: u64,
    given: u64,
}

/// The waiting requests of one priority.
#[derive(Debug, Default)]
struct Queue {
    lines: HashMap<CompanyKey, VecDeque<(u64, Waiter)>>,
    /// Lines whose company may have a token, by the arrival of their first request.
    ready: BTreeMap<u64, CompanyKey>,
    /// Lines whose company has no token until that time, with the arrival of their first request.
    held: BinaryHeap<Reverse<(Instant, u64, CompanyKey)>>,
    /// Requests in the lines, including cancelled ones that were not removed yet.
    waiting: usize,
    swept: Option<Instant>,
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting == 0)
    }

    /// Whether another request may wait.
    pub(super) fn has_room(&mut self, priority: Priority, now: Instant) -> bool {
        let queue = &mut self.queues[priority as usize];
        if queue.waiting >= MAX_WAITING {
            queue.sweep(now);
        }
        queue.waiting < MAX_WAITING
    }

    pub(super) fn push(&mut self, priority: Priority, waiter: Waiter) {
        self.arrivals += 1;
        self.queues[priority as usize].push(self.arrivals, waiter);
    }

    /// Examines all held lines again, because the companies' rates have changed.
    pub(super) fn release(&mut self) {
        for queue in &mut self.queues {
            queue.release_until(None);
        }
    }

    /// Removes the next request, with the number of its company's cuts, and drops cancelled ones on the way. `full` says which
    /// priorities have reached the in-flight limit.
    ///
    /// # Errors
    /// When a held line may continue; `None` if only a change can admit a request.
    pub(super) fn next(
        &mut self,
        companies: &mut CompanyRates,
        now: Instant,
        full: [bool; Priority::ALL.len()],
    ) -> Result<(Waiter, u64), Option<Instant>> {
        let mut held = None::<Instant>;
        for priority in self.order().filter(|priority| !full[*priority as usize]) {
            match self.queues[priority as usize].next(companies, now) {
                Ok(next) => {
                    self.given += 1;
                    return Ok(next);
                }
                Err(until) => held = held.into_iter().chain(until).min(),
            }
        }
        Err(held)
    }

    /// Order of the priorities: first to last, but every tenth time a waiting lower one comes first, in turns.
    fn order(&self) -> impl Iterator<Item = Priority> + use<> {
        let mut below =
            Priority::ALL.into_iter().filter(|priority| self.queues[*priority as usize].waiting > 0);
        below.next();
        let below: Vec<Priority> = below.rev().collect();
        let floors = (self.given / LOW_PRIORITY_EVERY) as usize;
        let first = (self.given % LOW_PRIORITY_EVERY == LOW_PRIORITY_EVERY - 1 && !below.is_empty())
            .then(|| below[floors % below.len()]);
        first.into_iter().chain(Priority::ALL.into_iter().filter(move |priority| Some(*priority) != first))
    }
}

impl Queue {
    fn push(&mut self, arrival: u64, waiter: Waiter) {
        self.waiting += 1;
        let company = waiter.company.clone();
        let line = self.lines.entry(company.clone()).or_default();
        if line.is_empty() {
            self.ready.insert(arrival, company);
        }
        line.push_back((arrival, waiter));
    }

    /// The next request, or until when all lines are held.
    fn next(&mut self, companies: &mut CompanyRates, now: Instant) -> Result<(Waiter, u64), Option<Instant>> {
        self.release_until(Some(now));
        while let Some((arrival, company)) = self.ready.pop_first() {
            let Some(line) = self.lines.get_mut(&company) else { continue };
            while line.front().is_some_and(|(_, waiter)| waiter.turn.is_closed()) {
                line.pop_front();
                self.waiting -= 1;
            }
            if line.is_empty() {
                self.lines.remove(&company);
                continue;
            }
            match companies.take(company.as_ref(), now) {
                Ok(cuts) => {
                    let Some((_, waiter)) = line.pop_front() else { continue };
                    self.waiting -= 1;
                    match line.front() {
                        Some((arrival, _)) => drop(self.ready.insert(*arrival, company)),
                        None => drop(self.lines.remove(&company)),
                    }
                    return Ok((waiter, cuts));
                }
                Err(until) => {
                    // The first request may have been cancelled, so another one may be first now.
                    let arrival = line.front().map_or(arrival, |(first, _)| *first);
                    self.held.push(Reverse((until, arrival, company)));
                }
            }
        }
        Err(self.held.peek().map(|Reverse((until, ..))| *until))
    }

    /// Releases lines whose company may have a token by then; all lines without a time.
    fn release_until(&mut self, now: Option<Instant>) {
        while let Some(Reverse((until, ..))) = self.held.peek()
            && now.is_none_or(|now| *until <= now)
            && let Some(Reverse((_, arrival, company))) = self.held.pop()
        {
            self.ready.insert(arrival, company);
        }
    }

    /// Removes cancelled requests.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP_INTERVAL) {
            return;
        }
        self.swept = Some(now);
        self.lines.retain(|_, line| {
            line.retain(|(_, waiter)| !waiter.turn.is_closed());
            !line.is_empty()
        });
        self.waiting = self.lines.values().map(VecDeque::len).sum();
        // Any line may have another first request now: examine all again.
        self.held.clear();
        self.ready = self
            .lines
            .iter()
            .filter_map(|(company, line)| line.front().map(|(arrival, _)| (*arrival, company.clone())))
            .collect();
    }
}
