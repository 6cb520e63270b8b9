//! What a budget knows, and the decisions on it. Everything here happens under one lock and at a moment that is told.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use base::metrics::ApiWait;

use super::{
    LaneLook, Permit, Rates, Shared,
    adapt::Adapt,
    bucket::Bucket,
    companies::{Companies, Hold},
    lanes::{Lanes, Next, Waiter},
    permit::Suspicion,
};
use crate::api::Lane;

/// What the application's bucket keeps for later, in seconds of its rate.
const BURST: f64 = 0.1;
/// The rate grows while it is waited for, so the wait is looked at again after so long.
const LOOK: Duration = Duration::from_millis(100);
/// What a budget knows.
#[derive(Debug)]
pub(super) struct State {
    pub(super) rates: Rates,
    /// Who wants how much, by number; `None` has no wish.
    pub(super) wishes: Vec<(u64, Option<Rates>)>,
    pub(super) registered: u64,
    /// This worker's part of the application's rate.
    pub(super) share: f64,
    pub(super) adapt: Adapt,
    pub(super) bucket: Bucket,
    pub(super) companies: Companies,
    pub(super) lanes: Lanes,
    pub(super) suspicion: Option<Suspicion>,
    pub(super) in_flight: usize,
    /// Requests let through so far.
    pub(super) number: u64,
    /// What became of those of each lane; who waits is not kept here.
    pub(super) counts: [LaneLook; Lane::ALL.len()],
    /// Whether it is the application's rate that those who wait, wait for.
    pub(super) limited: bool,
    /// Whether somebody hands out turns. Nobody does while nobody waits.
    pub(super) dispatching: bool,
}

/// What the dispatcher does next.
pub(super) enum Step {
    /// Gives this turn.
    Turn(oneshot::Sender<Permit>, Permit),
    /// Rests until then, or until something has changed.
    Rest(Option<Instant>),
    /// Nobody waits.
    Over,
}

impl State {
    /// Nobody waits and nothing is known.
    pub(super) fn new(rates: Rates) -> Self {
        let now = Instant::now();
        let seed = RandomState::new().hash_one("budget");
        Self {
            rates,
            wishes: Vec::new(),
            registered: 0,
            share: 1.0,
            adapt: Adapt::new(rates.application, now, seed),
            bucket: Bucket::new(1.0, now),
            companies: Companies::new(rates.company),
            lanes: Lanes::new(),
            suspicion: None,
            in_flight: 0,
            number: 0,
            counts: Default::default(),
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
        self.adapt.set(larger.application * self.share);
        self.companies.set_rate(larger.company);
        self.lanes.release();
    }

    /// What somebody has waited for since then, and how much longer it would be where that is known.
    pub(super) fn waited_for(
        &self,
        company: Option<&str>,
        since: Instant,
        now: Instant,
    ) -> (ApiWait, Option<Duration>) {
        let held = company.map_or(Hold::Not, |company| self.companies.held_since(company, since));
        let paused = self.adapt.pause_end().is_some_and(|end| end > since);
        let what = match held {
            _ if paused => ApiWait::Throttled,
            Hold::Pause => ApiWait::Throttled,
            Hold::Rate => ApiWait::Company,
            Hold::Not => ApiWait::Budget,
        };
        let company_pause = company.and_then(|company| self.companies.paused(company, now));
        (what, self.adapt.paused(now).max(company_pause).map(|until| until - now))
    }

    /// Lets the rate grow for the time that somebody has waited for it.
    pub(super) fn advance(&mut self, now: Instant) {
        self.adapt.advance(now, self.limited && !self.lanes.is_empty());
        self.limited = false;
    }

    /// Whether no more of this lane may be on their way.
    pub(super) fn is_full(&self, lane: Lane) -> bool {
        let most = self.rates.in_flight.max(1);
        let most = if lane == Lane::Snapshot { most - most / 4 } else { most };
        self.in_flight >= most
    }

    /// Whether the application may send, or when to look again; never, if only an answer can change it.
    pub(super) fn is_free(&mut self, now: Instant) -> Result<(), Option<Instant>> {
        if let Some(until) = self.adapt.paused(now) {
            return Err(Some(until));
        }
        // What might have gathered during a pause is not sent in one go after it.
        if let Some(end) = self.adapt.pause_end() {
            self.bucket.rest_until(end);
        }
        if self.is_full(Lane::Webhook) {
            return Err(None);
        }
        let rate = self.adapt.rate();
        self.bucket.refill(now, rate, burst(rate));
        self.limited = !self.bucket.has_token();
        if self.limited { Err(Some(now + self.bucket.wait(rate).min(LOOK))) } else { Ok(()) }
    }

    pub(super) fn give(
        &mut self,
        shared: &Arc<Shared>,
        lane: Lane,
        company: Option<Arc<str>>,
        company_cuts: u64,
        now: Instant,
    ) -> Permit {
        self.bucket.take();
        self.adapt.sent(now);
        self.in_flight += 1;
        self.number += 1;
        self.counts[lane as usize].sent += 1;
        let (shared, number, cuts) = (Arc::clone(shared), self.number, self.adapt.cuts());
        Permit { shared, lane, company, number, cuts, company_cuts }
    }

    /// Takes back what a request took that was not sent.
    pub(super) fn unsend(&mut self, lane: Lane) {
        self.bucket.give(burst(self.adapt.rate()));
        self.adapt.unsent();
        self.counts[lane as usize].sent -= 1;
    }

    /// Hands out one turn, or tells when to look again.
    pub(super) fn step(&mut self, shared: &Arc<Shared>, now: Instant) -> Step {
        self.advance(now);
        if self.lanes.is_empty() {
            self.dispatching = false;
            return Step::Over;
        }
        if let Err(again) = self.is_free(now) {
            return Step::Rest(again);
        }
        let full = Lane::ALL.map(|lane| self.is_full(lane));
        match self.lanes.next(&mut self.companies, now, |lane| full[lane as usize]) {
            Next::Waiter(lane, Waiter { company, turn }, cuts) => {
                Step::Turn(turn, self.give(shared, lane, company, cuts, now))
            }
            Next::Held(until) => Step::Rest(until),
            Next::Nobody => {
                self.dispatching = false;
                Step::Over
            }
        }
    }
}

fn burst(rate: f64) -> f64 {
    (rate * BURST).max(1.0)
}
