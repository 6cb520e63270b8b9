//! State and decisions of a budget, under one lock, at a moment that the caller names.
//!
//! The provider does not document what it counts by. A refusal therefore pauses and cuts its company, and the others continue. If
//! another company's request is refused before any later request has passed, the application counts as refused too: everything
//! pauses and is cut. A request without a company counts for the application at once. A company that was cut because of the
//! application recovers within seconds, see [`super::adaptive_rate`].

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
    company_rates::CompanyRates,
    metered_rate::MeteredRate,
    queues::{Queues, Waiter},
};
use crate::api::Priority;

/// Capacity of the application's bucket, in seconds of its rate.
const BURST_SECONDS: f64 = 0.1;
/// The rate grows while requests wait for it, so a wait is recomputed after this time.
const MAX_RATE_WAIT: Duration = Duration::from_millis(100);

/// State of a budget.
#[derive(Debug)]
pub(super) struct BudgetState {
    pub(super) rates: Rates,
    /// Requested rates by registration number; `None` requests nothing.
    pub(super) requested_rates: Vec<(u64, Option<Rates>)>,
    /// This worker's share of the application's rate.
    pub(super) share: f64,
    pub(super) application: MeteredRate,
    pub(super) companies: CompanyRates,
    pub(super) queues: Queues,
    suspicion: Option<Suspicion>,
    pub(super) in_flight: usize,
    /// Requests admitted so far.
    number: u64,
    /// Whether the dispatcher runs. It does only while requests wait.
    pub(super) dispatching: bool,
}

/// Admission of one request.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) company: Option<Arc<str>>,
    /// Sequence number of the request.
    number: u64,
    /// Cuts of the application at admission.
    cuts: u64,
    /// Cuts of its company at admission.
    company_cuts: u64,
}

/// A refusal of one company, until a later request passes.
#[derive(Debug)]
struct Suspicion {
    company: Arc<str>,
    /// Sequence number of the refused request.
    number: u64,
    until: Instant,
}

/// Next action of the dispatcher.
pub(super) enum DispatchStep {
    /// Admit this request.
    Grant(oneshot::Sender<Permit>, Ticket),
    /// Wait until then, or for a change.
    Wait(Option<Instant>),
    /// No request waits.
    Done,
}

impl BudgetState {
    /// No requests, and nothing learned.
    pub(super) fn new(rates: Rates) -> Self {
        let now = Instant::now();
        let seed = RandomState::new().hash_one("budget");
        Self {
            rates,
            requested_rates: Vec::new(),
            share: 1.0,
            application: MeteredRate::new(
                AdaptiveRate::new(rates.application, now, seed),
                1.0,
                BURST_SECONDS,
                now,
            ),
            companies: CompanyRates::new(rates.company),
            queues: Queues::default(),
            suspicion: None,
            in_flight: 0,
            number: 0,
            dispatching: false,
        }
    }

    /// Adds requested rates; returns their registration number.
    pub(super) fn register(&mut self, rates: Option<Rates>) -> u64 {
        // Unique among those that have not left: the last one has the highest.
        let number = self.requested_rates.last().map_or(0, |(last, _)| last + 1);
        self.requested_rates.push((number, rates));
        self.set_rates();
        number
    }

    /// Removes the requested rates of a registration.
    pub(super) fn leave(&mut self, number: u64) {
        self.requested_rates.retain(|(known, _)| *known != number);
        // After the last one nothing is sent, and the next one brings its own.
        if !self.requested_rates.is_empty() {
            self.set_rates();
        }
    }

    fn set_rates(&mut self) {
        let mut requested = self.requested_rates.iter().filter_map(|(_, rates)| *rates);
        let first = requested.next();
        let larger = requested.fold(first.unwrap_or_default(), Rates::max);
        if first.is_some_and(|first| first != larger) {
            let Rates { application, company, in_flight } = larger;
            tracing::info!(
                application,
                company,
                in_flight,
                "connectors with the same subscription key request different budgets; using the larger values"
            );
        }
        if larger == self.rates {
            return;
        }
        self.rates = larger;
        self.application.adaptive.set(larger.application * self.share);
        self.companies.set_rate(larger.company);
        self.queues.release();
    }

    /// Until when the company or everything is paused.
    pub(super) fn paused(&self, company: Option<&str>, now: Instant) -> Option<Instant> {
        self.application.adaptive.paused(now).max(self.companies.paused(company, now))
    }

    /// What a request has waited for since then, and how much longer it would wait, if known.
    pub(super) fn waited_for(
        &self,
        company: Option<&str>,
        since: Instant,
        now: Instant,
    ) -> (ApiWait, Option<Duration>) {
        let paused = self.application.adaptive.paused_until.is_some_and(|end| end > since);
        let what = if paused { ApiWait::Throttled } else { self.companies.held_since(company, since) };
        (what, self.paused(company, now).map(|until| until - now))
    }

    /// Lets the rate grow for the time that requests have waited for it.
    pub(super) fn advance(&mut self, now: Instant) {
        self.application.advance(now, !self.queues.is_empty());
    }

    /// Whether this priority has reached the in-flight limit.
    pub(super) fn is_full(&self, priority: Priority) -> bool {
        let most = self.rates.in_flight.max(1);
        let most = if priority == Priority::Snapshot { most - most / 4 } else { most };
        self.in_flight >= most
    }

    /// Whether the application may send; else when to try again, `None` if only an ended request can change it.
    pub(super) fn can_send(&mut self, now: Instant) -> Result<(), Option<Instant>> {
        self.application.rest(now).map_err(Some)?;
        if self.is_full(Priority::Webhook) {
            return Err(None);
        }
        self.application.has_token(now).map_err(|wait| Some(now + wait.min(MAX_RATE_WAIT)))
    }

    /// Admits a request.
    pub(super) fn give(&mut self, company: Option<Arc<str>>, company_cuts: u64, now: Instant) -> Ticket {
        self.in_flight += 1;
        self.number += 1;
        Ticket { company, number: self.number, cuts: self.application.take(now), company_cuts }
    }

    /// The request was not sent: returns its tokens.
    pub(super) fn unsent(&mut self, turn: &Ticket) {
        self.application.give();
        self.companies.give(turn.company.as_deref());
    }

    /// The request was answered and not rate limited.
    pub(super) fn accepted(&mut self, turn: &Ticket) {
        self.application.adaptive.accepted();
        self.companies.accepted(turn.company.as_deref());
        self.suspicion.take_if(|suspicion| suspicion.number < turn.number);
    }

    /// The request was rate limited: pauses and cuts its company, the application, or both. Returns for how long.
    pub(super) fn refused(&mut self, turn: &Ticket, now: Instant, retry_after: Option<Duration>) -> Duration {
        // No company, or sent before the application's last cut.
        let (Some(company), true) = (&turn.company, turn.cuts == self.application.adaptive.cuts) else {
            return self.application.adaptive.refused(now, retry_after, turn.cuts);
        };
        let pause = self.companies.refused(company, now, retry_after, turn.company_cuts);
        let standing = self.suspicion.take().filter(|suspicion| now < suspicion.until);
        if standing.as_ref().is_some_and(|suspicion| suspicion.company != *company) {
            return pause.max(self.application.adaptive.refused(now, retry_after, turn.cuts));
        }
        let number = standing.map_or(turn.number, |suspicion| suspicion.number);
        self.suspicion = Some(Suspicion { company: Arc::clone(company), number, until: now + pause });
        pause
    }

    /// Admits one request, or says when to try again.
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
