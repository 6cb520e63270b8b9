//! Decides when a request may be sent: by the application's rate, the company's rate, priority, and requests in flight.
//!
//! ```text
//! request ─▶ priority: webhook ▶ repair ▶ snapshot ─▶ company's bucket ─▶ application's bucket ─▶ in-flight limit ─▶ sent
//!                  FIFO; every tenth to a lower one                         ▲ rate: adaptive_rate ◀── 429, quota ◀── response
//! ```
//!
//! - The provider counts by subscription key, so all clients of a key in this process share one budget ([`Budgets`]).
//! - A lower priority gets what the higher ones leave, and the lower ones together at least a tenth of the requests.
//! - A company at its limit delays only its own requests.
//! - A refusal pauses its company or everything for the time that the provider names, and cuts the rate. `state` decides which of
//!   the two, `adaptive_rate` by how much.
//! - The last quarter of the in-flight limit is not for snapshots, so that slow pages do not block events.
//! - A caller that stops waiting uses no budget; dropping a [`Permit`] admits the next request.
//!
//! On failure: a request that cannot be admitted before its deadline fails at once if that is known, with the wait that is left.

mod adaptive_rate;
mod company_rates;
mod metered_rate;
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

/// Lower bound of a worker's share: a worker without partitions may still have to send something.
const MIN_SHARE: f64 = 0.01;

/// Limits of a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Requests per second for one subscription key, over all workers.
    pub application: f64,
    /// Requests per second for one company.
    pub company: f64,
    /// Requests in flight of this worker.
    pub in_flight: usize,
}

impl Default for Rates {
    /// The defaults of `budget.requests.per.second`, `budget.company.requests.per.second` and `budget.requests.in.flight`.
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

/// The budget of one subscription key. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    shared: Arc<SharedBudget>,
    /// Its requested rates count until the last clone is dropped.
    _registration: Option<Arc<Registration>>,
}

/// The deadline came before a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetTimeout {
    /// What it waited for.
    pub what: ApiWait,
    /// How much longer it would have waited, if known.
    pub left: Option<Duration>,
}

/// Permission to send one request. Counts as in flight until it is dropped.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<SharedBudget>,
    turn: Ticket,
}

/// State of a budget, for tests.
#[cfg(any(test, feature = "samples"))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetStatus {
    /// Configured requests per second, over all workers.
    pub setting: f64,
    /// Current requests per second.
    pub rate: f64,
    /// Requests in flight.
    pub in_flight: usize,
}

#[derive(Debug)]
struct SharedBudget {
    state: Mutex<BudgetState>,
    /// Wakes the dispatcher: a request arrived, or something was freed.
    changed: Notify,
    /// Circuit of the host behind the key.
    circuit: Circuit,
}

impl Budget {
    /// A budget that is not shared. Most callers need one of [`Budgets`].
    pub fn new(rates: Rates) -> Self {
        Self { shared: SharedBudget::new(rates), _registration: None }
    }

    /// Sets this worker's share of the application's rate, from above 0 to 1.
    pub fn set_share(&self, share: f64) {
        let share = if share.is_nan() { 1.0 } else { share.clamp(MIN_SHARE, 1.0) };
        let mut state = self.shared.state.lock();
        let by = share / state.share;
        state.share = share;
        state.application.adaptive.scale(by);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// None is available before `end`.
    pub async fn admit(
        &self,
        priority: Priority,
        company: Option<&str>,
        end: Instant,
    ) -> Result<Permit, BudgetTimeout> {
        let since = Instant::now();
        let waiting = match self.enter(priority, company, since, end)? {
            PermitClaim::Now(permit) => return Ok(permit),
            PermitClaim::Waits(waiting) => waiting,
        };
        let turn = timeout_at(end, waiting).await;
        let (what, left) = self.shared.state.lock().waited_for(company, since, Instant::now());
        metrics::api_waited(priority.label(), what, since.elapsed());
        match turn {
            Ok(Ok(permit)) => Ok(permit),
            // The dispatcher ends before its waiters only when the runtime does.
            Ok(Err(_)) | Err(_) => Err(BudgetTimeout { what, left }),
        }
    }

    /// Circuit of the host behind the key.
    pub(super) fn circuit(&self) -> &Circuit {
        &self.shared.circuit
    }

    /// The current state.
    #[cfg(any(test, feature = "samples"))]
    pub fn status(&self) -> BudgetStatus {
        let state = self.shared.state.lock();
        BudgetStatus {
            setting: state.rates.application,
            rate: state.application.adaptive.rate,
            in_flight: state.in_flight,
        }
    }

    /// Whether two budgets are the same.
    #[cfg(any(test, feature = "samples"))]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A permit at once, or a place in a queue.
    fn enter(
        &self,
        priority: Priority,
        company: Option<&str>,
        now: Instant,
        end: Instant,
    ) -> Result<PermitClaim, BudgetTimeout> {
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
            return Ok(PermitClaim::Now(Permit { shared: Arc::clone(&self.shared), turn }));
        }
        let (turn, waiting) = oneshot::channel();
        state.queues.push(priority, Waiter { company, turn });
        if state.dispatching {
            drop(state);
            self.shared.changed.notify_one();
        } else {
            state.dispatching = true;
            drop(state);
            // The dispatcher ends when no request waits; until then the waiters keep the shared state alive.
            tokio::spawn(dispatch(Arc::clone(&self.shared)));
        }
        Ok(PermitClaim::Waits(waiting))
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
    /// The request was answered and not rate limited.
    pub fn accepted(&self) {
        self.shared.state.lock().accepted(&self.turn);
    }

    /// The request was rate limited, with the wait that the provider names. Returns how long its company, or everything, pauses.
    pub fn refused(&self, retry_after: Option<Duration>) -> Duration {
        self.refused_at(Instant::now(), retry_after)
    }

    /// The request was not sent: returns its tokens.
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

enum PermitClaim {
    Now(Permit),
    Waits(oneshot::Receiver<Permit>),
}

/// Hands out permits until no request waits.
async fn dispatch(shared: Arc<SharedBudget>) {
    loop {
        // Outside the match, to release the lock: dropping an unclaimed permit takes it again.
        let step = shared.state.lock().next_step(Instant::now());
        match step {
            // The caller has stopped waiting and sent nothing.
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
