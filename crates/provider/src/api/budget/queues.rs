//! The queues of requests that wait for the budget, and which request is next.
//!
//! Within a priority, first come is first served, except for those whose company is at its limit: a company has a line of its
//! own, and a line that is held is not looked at again before its company has a token. So a turn costs the same however many
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

/// Requests that may wait in one queue: more is a caller that has lost count.
const MAX_WAITING: usize = 10_000;
/// One turn in so many goes to a lower priority that waits, so that it is slow and never starved.
const LOW_PRIORITY_EVERY: u64 = 10;
/// A full queue is searched for those who have gone away no more often than this.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Whose turn it is: a company, or nobody's in particular.
type CompanyKey = Option<Arc<str>>;

/// One request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) company: CompanyKey,
    pub(super) turn: oneshot::Sender<Permit>,
}

/// The queues.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: [Queue; Priority::ALL.len()],
    arrivals: u64,
    given: u64,
}

/// Those who wait with one priority.
#[derive(Debug, Default)]
struct Queue {
    lines: HashMap<CompanyKey, VecDeque<(u64, Waiter)>>,
    /// Lines whose company may have a token, by the arrival of their first.
    ready: BTreeMap<u64, CompanyKey>,
    /// Lines whose company has none until then, with the arrival of their first.
    held: BinaryHeap<Reverse<(Instant, u64, CompanyKey)>>,
    /// Those in the lines, and those who have gone away and are not yet missed.
    waiting: usize,
    swept: Option<Instant>,
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting == 0)
    }

    /// Whether another may wait.
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

    /// Nobody is held any longer than it takes to look again: the companies' rates have changed.
    pub(super) fn release(&mut self) {
        for queue in &mut self.queues {
            queue.release_until(None);
        }
    }

    /// Takes out who is next, with the number of its company's cuts, and forgets on the way those who have gone away. Else until when
    /// all who wait are held up by their companies; `None` where time alone changes nothing. `full` tells for which priorities there is
    /// no room now.
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

    /// In which order the queues are asked: first to last, but every tenth time one of those below the first that waits, each
    /// in its turn.
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

    /// CompanyKey is next, or until when all are held.
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
                    // The first of it may be another by now, if the one before went away.
                    let arrival = line.front().map_or(arrival, |(first, _)| *first);
                    self.held.push(Reverse((until, arrival, company)));
                }
            }
        }
        Err(self.held.peek().map(|Reverse((until, ..))| *until))
    }

    /// Lets lines go whose companies may have a token by then; all of them without a time.
    fn release_until(&mut self, now: Option<Instant>) {
        while let Some(Reverse((until, ..))) = self.held.peek()
            && now.is_none_or(|now| *until <= now)
            && let Some(Reverse((_, arrival, company))) = self.held.pop()
        {
            self.ready.insert(arrival, company);
        }
    }

    /// Forgets all who have gone away.
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
        // Every line has another first now: all are looked at once more.
        self.held.clear();
        self.ready = self
            .lines
            .iter()
            .filter_map(|(company, line)| line.front().map(|(arrival, _)| (*arrival, company.clone())))
            .collect();
    }
}
