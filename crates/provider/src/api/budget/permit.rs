//! A request on its way, and whose a refusal is: its company's or the application's.
//!
//! The provider does not say what it counts by. A refusal stops and cuts its company, and the others go on. If another
//! company's request is refused before anything has passed that was sent later, it is the application's as well: then
//! everything stops and is cut. A request of no company is the application's at once. A company that was cut for the
//! application's sake is back within seconds, as [`super::adapt`] has it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Shared, state::State};
use crate::api::Lane;

/// A request that may be sent now. Dropped, it makes room for the next.
#[derive(Debug)]
pub struct Permit {
    pub(super) shared: Arc<Shared>,
    pub(super) lane: Lane,
    pub(super) company: Option<Arc<str>>,
    /// Which request it is, of all.
    pub(super) number: u64,
    /// Cuts of the application when it was let through.
    pub(super) cuts: u64,
    /// Cuts of its company when it was let through.
    pub(super) company_cuts: u64,
}

/// A refusal of one company, while nothing that was sent later has passed.
#[derive(Debug)]
pub(super) struct Suspicion {
    company: Arc<str>,
    /// The number of the request.
    number: u64,
    until: Instant,
}

impl Permit {
    /// The request was answered, and not refused for its rate.
    pub fn accepted(&self) {
        let mut state = self.shared.lock();
        state.adapt.accepted();
        if let Some(company) = &self.company {
            state.companies.accepted(company);
        }
        if state.suspicion.as_ref().is_some_and(|suspicion| suspicion.number < self.number) {
            state.suspicion = None;
        }
    }

    /// The request was refused for its rate or a quota; with the wait that the provider names. How long it, or everything,
    /// stops.
    pub fn refused(&self, told: Option<Duration>) -> Duration {
        self.refused_at(Instant::now(), told)
    }

    /// The request was not sent after all: what it took is given back.
    pub fn unused(self) {
        let mut state = self.shared.lock();
        state.unsend(self.lane);
        if let Some(company) = &self.company {
            state.companies.give(company);
        }
    }

    pub(super) fn refused_at(&self, now: Instant, told: Option<Duration>) -> Duration {
        let mut state = self.shared.lock();
        state.counts[self.lane as usize].refused += 1;
        let pause = state.blame(self, now, told);
        drop(state);
        self.shared.changed.notify_one();
        pause
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.lock().in_flight -= 1;
        self.shared.changed.notify_one();
    }
}

impl State {
    /// Stops and cuts whoever a refusal is about.
    fn blame(&mut self, permit: &Permit, now: Instant, told: Option<Duration>) -> Duration {
        // Either nobody else's, or on its way when the application was cut.
        let (Some(company), true) = (&permit.company, permit.cuts == self.adapt.cuts()) else {
            return self.adapt.refused(now, told, permit.cuts);
        };
        let pause = self.companies.refused(company, now, told, permit.company_cuts);
        let standing = self.suspicion.take().filter(|suspicion| now < suspicion.until);
        if standing.as_ref().is_some_and(|suspicion| suspicion.company != *company) {
            return pause.max(self.adapt.refused(now, told, permit.cuts));
        }
        let number = standing.map_or(permit.number, |suspicion| suspicion.number);
        self.suspicion = Some(Suspicion { company: Arc::clone(company), number, until: now + pause });
        pause
    }
}
