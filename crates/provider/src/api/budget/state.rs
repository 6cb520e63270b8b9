//! What a budget knows, and the decisions on it. Everything here happens under one lock and at a moment that the caller names.
//!
//! The provider does not say what it counts by. A refusal therefore pauses and cuts its company, and the others go on. If
//! another company's request is refused before any later request has passed, the refusal counts for the application as well:
//! everything pauses and is cut. A request of no company counts for the application at once. A company that was cut for the
//! application's sake is back within seconds, as [`super::adaptive_rate`] has it.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use base::metrics::ApiWait;

use super::{
    Permit, Rates,
    adaptive_rate::AdaptiveRate,
    bucket::TokenBucket,
    company_rates::CompanyRates,
    queues::{Queues, Waiter},
};
use crate::api::Priority;

/// What the application's bucket keeps for later, in seconds of its rate.
const BURST_SECONDS: f64 = 0.1;
/// The rate grows while it is waited for, so the wait is looked at again after so long.
const MAX_RATE_WAIT: Duration = Duration::from_millis(100);

/// What a budget knows.
#[derive(Debug)]
pub(super) struct BudgetState {
    pub(super) rates: Rates,
    /// Who wants how much, by number; `None` has no wish.
    pub(super) wishes: Vec<(u64, Option<Rates>)>,
    pub(super) registered: u64,
    /// This worker's part of the application's rate.
    pub(super) share: f64,
    pub(super) adaptive: AdaptiveRate,
    pub(super) bucket: TokenBucket,
    pub(super) companies: CompanyRates,
    pub(super) queues: Queues,
    suspicion: Option<Suspicion>,
    pub(super) in_flight: usize,
    /// Requests let through so far.
    number: u64,
    /// Whether it is the application's rate that those who wait, wait for.
    limited: bool,
    /// Whether somebody hands out turns. Nobody does while nobody waits.
    pub(super) dispatching: bool,
}

/// The turn of one request.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) company: Option<Arc<str>>,
    /// Which request it is, of all.
    number: u64,
    /// Cuts of the application when it was let through.
    cuts: u64,
    /// Cuts of its company when it was let through.
    company_cuts: u64,
}

/// A refusal of one company, while nothing that was sent later has passed.
#[derive(Debug)]
struct Suspicion {
    company: Arc<str>,
    /// The number of the request.
    number: u64,
    until: Instant,
}

/// What the dispatcher does next.
pub(super) enum DispatchStep {
    /// Gives this turn.
    Grant(oneshot::Sender<Permit>, Ticket),
    /// Rests until then, or until something has changed.
    Wait(Option<Instant>),
    /// Nobody waits.
    Done,
}

impl BudgetState {
    /// Nobody waits and nothing is known.
    pub(super) fn new(rates: Rates) -> Self {
        let now = Instant::now();
        let seed = RandomState::new().hash_one("budget");
        Self {
            rates,
            wishes: Vec::new(),
            registered: 0,
            share: 1.0,
            adaptive: AdaptiveRate::new(rates.application, now, seed),
            bucket: TokenBucket::new(1.0, now),
            companies: CompanyRates::new(rates.company),
            queues: Queues::default(),
            suspicion: None,
            in_flight: 0,
            number: 0,
            limited: false,
            dispatching: false,
        }
    }

    /// Takes a wish into account; its number.
    pub(super) fn register(&mut self, rates: Option<Rates>) -> u64 {
        self.registered += 1;
        self.wishes.push((self.registered, rates));
        self.set_rates();
        self.registered
    }

    /// Whoever has this number wishes nothing any more.
    pub(super) fn leave(&mut self, number: u64) {
        self.wishes.retain(|(known, _)| *known != number);
        // The last one leaves no trace: nobody sends, and the next one comes with his own wishes.
        if !self.wishes.is_empty() {
            self.set_rates();
        }
    }

    fn set_rates(&mut self) {
        let mut wished = self.wishes.iter().filter_map(|(_, rates)| *rates);
        let first = wished.next();
        let larger = wished.fold(first.unwrap_or_default(), Rates::max);
        if first.is_some_and(|first| first != larger) {
            let Rates { application, company, in_flight } = larger;
            tracing::info!(
                application,
                company,
                in_flight,
                "connectors with one subscription key have different budgets; the larger counts"
            );
        }
        if larger == self.rates {
            return;
        }
        self.rates = larger;
        self.adaptive.set(larger.application * self.share);
        self.companies.set_rate(larger.company);
        self.queues.release();
    }

    /// Until when nothing of a company, or nothing at all, may be sent.
    pub(super) fn paused(&self, company: Option<&str>, now: Instant) -> Option<Instant> {
        self.adaptive.paused(now).max(self.companies.paused(company, now))
    }

    /// What a request has waited for since then, and how much longer it would wait, if known.
    pub(super) fn waited_for(
        &self,
        company: Option<&str>,
        since: Instant,
        now: Instant,
    ) -> (ApiWait, Option<Duration>) {
        let paused = self.adaptive.paused_until.is_some_and(|end| end > since);
        let what = if paused { ApiWait::Throttled } else { self.companies.held_since(company, since) };
        (what, self.paused(company, now).map(|until| until - now))
    }

    /// Lets the rate grow for the time that somebody has waited for it.
    pub(super) fn advance(&mut self, now: Instant) {
        self.adaptive.advance(now, self.limited && !self.queues.is_empty());
        self.limited = false;
    }

    /// Whether no more of this priority may be on their way.
    pub(super) fn is_full(&self, priority: Priority) -> bool {
        let most = self.rates.in_flight.max(1);
        let most = if priority == Priority::Snapshot { most - most / 4 } else { most };
        self.in_flight >= most
    }

    /// Whether the application may send, or when to look again; never, if only an answer can change it.
    pub(super) fn can_send(&mut self, now: Instant) -> Result<(), Option<Instant>> {
        if let Some(until) = self.adaptive.paused(now) {
            return Err(Some(until));
        }
        // What might have gathered during a pause is not sent in one go after it.
        if let Some(end) = self.adaptive.paused_until {
            self.bucket.rest_until(end);
        }
        if self.is_full(Priority::Webhook) {
            return Err(None);
        }
        let rate = self.adaptive.rate;
        self.bucket.refill(now, rate, burst(rate));
        self.limited = !self.bucket.has_token();
        if self.limited { Err(Some(now + self.bucket.wait(rate).min(MAX_RATE_WAIT))) } else { Ok(()) }
    }

    /// Lets a request through.
    pub(super) fn give(&mut self, company: Option<Arc<str>>, company_cuts: u64, now: Instant) -> Ticket {
        self.bucket.take();
        self.adaptive.sent(now);
        self.in_flight += 1;
        self.number += 1;
        Ticket { company, number: self.number, cuts: self.adaptive.cuts, company_cuts }
    }

    /// A request was not sent after all: what it took is given back.
    pub(super) fn unsent(&mut self, turn: &Ticket) {
        self.bucket.give(burst(self.adaptive.rate));
        self.adaptive.unsent();
        self.companies.give(turn.company.as_deref());
    }

    /// A request was answered, and not refused for its rate.
    pub(super) fn accepted(&mut self, turn: &Ticket) {
        self.adaptive.accepted();
        self.companies.accepted(turn.company.as_deref());
        self.suspicion.take_if(|suspicion| suspicion.number < turn.number);
    }

    /// A request was refused: pauses and cuts its company, the application, or both. For how long.
    pub(super) fn refused(&mut self, turn: &Ticket, now: Instant, retry_after: Option<Duration>) -> Duration {
        // The request belongs to no company, or was in flight when the application's rate was cut.
        let (Some(company), true) = (&turn.company, turn.cuts == self.adaptive.cuts) else {
            return self.adaptive.refused(now, retry_after, turn.cuts);
        };
        let pause = self.companies.refused(company, now, retry_after, turn.company_cuts);
        let standing = self.suspicion.take().filter(|suspicion| now < suspicion.until);
        if standing.as_ref().is_some_and(|suspicion| suspicion.company != *company) {
            return pause.max(self.adaptive.refused(now, retry_after, turn.cuts));
        }
        let number = standing.map_or(turn.number, |suspicion| suspicion.number);
        self.suspicion = Some(Suspicion { company: Arc::clone(company), number, until: now + pause });
        pause
    }

    /// Hands out one turn, or tells when to look again.
    pub(super) fn next_step(&mut self, now: Instant) -> DispatchStep {
        self.advance(now);
        if !self.queues.is_empty() {
            if let Err(again) = self.can_send(now) {
                return DispatchStep::Wait(again);
            }
            let full = Priority::ALL.map(|priority| self.is_full(priority));
            match self.queues.next(&mut self.companies, now, full) {
                Ok((Waiter { company, turn }, cuts)) => {
                    return DispatchStep::Grant(turn, self.give(company, cuts, now));
                }
                Err(until) if !self.queues.is_empty() => return DispatchStep::Wait(until),
                Err(_) => {}
            }
        }
        self.dispatching = false;
        DispatchStep::Done
    }
}

fn burst(rate: f64) -> f64 {
    (rate * BURST_SECONDS).max(1.0)
}
