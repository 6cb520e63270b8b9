//! When a request may be sent: the application's rate, its company's rate, its priority, and how many are on their way.
//!
//! ```text
//! request ─▶ priority: webhook ▶ repair ▶ snapshot ─▶ company's bucket ─▶ application's bucket ─▶ so many on their way ─▶ sent
//!                  FIFO; every tenth turn to a lower one                   ▲ rate: adaptive_rate ◀── 429, quota ◀── answer
//! ```
//!
//! - The provider counts by subscription key, so all clients of a key in this process share one budget ([`Budgets`]).
//! - A lower priority gets what the higher ones leave, and the lower ones together a tenth of the turns whatever those want.
//! - A company at its limit holds up nobody but itself.
//! - A refusal stops its company, or everything, for as long as the provider names, and cuts the rate: which of the two,
//!   `state` says, and by how much, `adaptive_rate`.
//! - The last quarter of those that may be on their way is not for the snapshot: pages that hang let events through.
//! - Whoever goes away while waiting takes no turn; a [`Permit`] that is dropped makes room for the next.
//!
//! On failure: a request whose turn cannot come before its end is told so, with how long it would have been.

mod adaptive_rate;
mod bucket;
mod company_rates;
mod queues;
mod registry;
mod state;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until, timeout_at},
};

use base::{
    circuit::Circuit,
    metrics::{self, ApiHost, ApiWait},
};

pub use self::registry::Budgets;
use self::{
    queues::Waiter,
    registry::Registration,
    state::{BudgetState, DispatchStep, Ticket},
};
use super::Priority;

/// A worker has at least this part of a budget: one that owns nothing may still have to ask for something.
const MIN_SHARE: f64 = 0.01;

/// How much may be asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Requests a second for all that one subscription key does, over all workers.
    pub application: f64,
    /// Requests a second for one company.
    pub company: f64,
    /// Requests of this worker on their way at once.
    pub in_flight: usize,
}

impl Default for Rates {
    /// Those of `budget.requests.per.second`, `budget.company.requests.per.second` and `budget.requests.in.flight`.
    fn default() -> Self {
        Self { application: 10.0, company: 2.0, in_flight: 32 }
    }
}

impl Rates {
    /// The larger of each.
    fn max(self, other: Self) -> Self {
        Self {
            application: self.application.max(other.application),
            company: self.company.max(other.company),
            in_flight: self.in_flight.max(other.in_flight),
        }
    }
}

/// One subscription key's budget. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    shared: Arc<SharedBudget>,
    /// Whose wishes count for as long as this or a clone of it is kept.
    _registration: Option<Arc<Registration>>,
}

/// A turn that does not come in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetTimeout {
    /// What it waited for.
    pub what: ApiWait,
    /// How much longer it would have been, where that is known.
    pub left: Option<Duration>,
}

/// A request that may be sent now. Dropped, it makes room for the next.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<SharedBudget>,
    turn: Ticket,
}

/// How a budget stands.
#[cfg(any(test, feature = "samples"))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetStatus {
    /// Requests a second that connectors want, over all workers.
    pub setting: f64,
    /// Requests a second that are sent at most, now.
    pub rate: f64,
    /// Requests on their way.
    pub in_flight: usize,
}

#[derive(Debug)]
struct SharedBudget {
    state: Mutex<BudgetState>,
    /// Somebody came, or something was freed, while the dispatcher rests.
    changed: Notify,
    /// What is known about the host behind the key.
    circuit: Circuit,
}

impl Budget {
    /// A budget of its own. Most want one of [`Budgets`].
    pub fn new(rates: Rates) -> Self {
        Self { shared: SharedBudget::new(rates), _registration: None }
    }

    /// This worker's part of the application's rate: up to 1, and never nothing.
    pub fn set_share(&self, share: f64) {
        let share = if share.is_nan() { 1.0 } else { share.clamp(MIN_SHARE, 1.0) };
        let mut state = self.shared.state.lock();
        let by = share / state.share;
        state.share = share;
        state.adaptive.scale(by);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Waits for the turn of a request.
    ///
    /// # Errors
    /// It does not come before `end`.
    pub async fn admit(
        &self,
        priority: Priority,
        company: Option<&str>,
        end: Instant,
    ) -> Result<Permit, BudgetTimeout> {
        let since = Instant::now();
        let waiting = match self.enter(priority, company, since, end)? {
            Entry::Now(permit) => return Ok(permit),
            Entry::Waits(waiting) => waiting,
        };
        let turn = timeout_at(end, waiting).await;
        let (what, left) = self.shared.state.lock().waited_for(company, since, Instant::now());
        metrics::api_waited(priority.label(), what, since.elapsed());
        match turn {
            Ok(Ok(permit)) => Ok(permit),
            // The dispatcher ends before its waiters only with the runtime.
            Ok(Err(_)) | Err(_) => Err(BudgetTimeout { what, left }),
        }
    }

    /// Whether the host that this budget is for answers.
    pub(super) fn circuit(&self) -> &Circuit {
        &self.shared.circuit
    }

    /// How it stands.
    #[cfg(any(test, feature = "samples"))]
    pub fn status(&self) -> BudgetStatus {
        let state = self.shared.state.lock();
        BudgetStatus {
            setting: state.rates.application,
            rate: state.adaptive.rate,
            in_flight: state.in_flight,
        }
    }

    /// Whether two are one.
    #[cfg(any(test, feature = "samples"))]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A turn at once, or a place in a queue.
    fn enter(
        &self,
        priority: Priority,
        company: Option<&str>,
        now: Instant,
        end: Instant,
    ) -> Result<Entry, BudgetTimeout> {
        let mut state = self.shared.state.lock();
        state.advance(now);
        if let Some(until) = state.paused(company, now)
            && until >= end
        {
            return Err(BudgetTimeout { what: ApiWait::Throttled, left: Some(until - now) });
        }
        if !state.queues.has_room(priority, now) {
            return Err(BudgetTimeout { what: ApiWait::Budget, left: None });
        }
        let company = company.map(|company| state.companies.name(company, now));
        if state.queues.is_empty()
            && !state.is_full(priority)
            && state.can_send(now).is_ok()
            && let Ok(cuts) = state.companies.take(company.as_ref(), now)
        {
            let turn = state.give(company, cuts, now);
            return Ok(Entry::Now(Permit { shared: Arc::clone(&self.shared), turn }));
        }
        let (turn, waiting) = oneshot::channel();
        state.queues.push(priority, Waiter { company, turn });
        if state.dispatching {
            drop(state);
            self.shared.changed.notify_one();
        } else {
            state.dispatching = true;
            drop(state);
            // It ends when nobody waits any more; until then the waiters keep what it works on alive.
            tokio::spawn(dispatch(Arc::clone(&self.shared)));
        }
        Ok(Entry::Waits(waiting))
    }
}

impl SharedBudget {
    fn new(rates: Rates) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(BudgetState::new(rates)),
            changed: Notify::new(),
            circuit: Circuit::new(ApiHost::Api),
        })
    }
}

impl Permit {
    /// The request was answered, and not refused for its rate.
    pub fn accepted(&self) {
        self.shared.state.lock().accepted(&self.turn);
    }

    /// The request was refused for its rate or a quota; with the wait that the provider names. How long it, or everything,
    /// stops.
    pub fn refused(&self, retry_after: Option<Duration>) -> Duration {
        self.refused_at(Instant::now(), retry_after)
    }

    /// The request was not sent after all: what it took is given back.
    pub fn unused(self) {
        self.shared.state.lock().unsent(&self.turn);
    }

    fn refused_at(&self, now: Instant, retry_after: Option<Duration>) -> Duration {
        let pause = self.shared.state.lock().refused(&self.turn, now, retry_after);
        self.shared.changed.notify_one();
        pause
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.state.lock().in_flight -= 1;
        self.shared.changed.notify_one();
    }
}

enum Entry {
    Now(Permit),
    Waits(oneshot::Receiver<Permit>),
}

/// Hands out turns until nobody waits.
async fn dispatch(shared: Arc<SharedBudget>) {
    loop {
        // Apart from the match, so that the lock is free again: a permit that nobody takes locks when it is dropped.
        let step = shared.state.lock().next_step(Instant::now());
        match step {
            // Who has gone away meanwhile has sent nothing.
            DispatchStep::Grant(waiting, turn) => {
                if let Err(permit) = waiting.send(Permit { shared: Arc::clone(&shared), turn }) {
                    permit.unused();
                }
            }
            DispatchStep::Wait(Some(again)) => {
                tokio::select! {
                    () = sleep_until(again) => {}
                    () = shared.changed.notified() => {}
                }
            }
            DispatchStep::Wait(None) => shared.changed.notified().await,
            DispatchStep::Done => return,
        }
    }
}
