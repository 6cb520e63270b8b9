//! A circuit breaker: a failing host gets no requests for a while, then one probe at a time until it answers.
//!
//! ```text
//! closed ──five failures──▶ open, for a while ──▶ half open: one probe ──answer──▶ closed
//!                              ▲──────────failure, twice as long──┘
//! ```
//!
//! Five failures in a row (no connection, no answer, 502 to 504) open the circuit for 1 s, then 2 s, up to 30 s. After that one
//! request is sent as the probe while the others wait. Any response below 500 closes the circuit, also 401 and 429. If the
//! probe's caller goes away, another request becomes the probe. If the response is a 500, which may concern one record or
//! the whole host, the next probe follows after 1 s.
//!
//! - Some requests should not be the probe, because the outcome of a failed one is unknown: token refreshes. They yield
//!   ([`Circuit::ready_yielding`]): while another request waits, that one becomes the probe.
//! - The state is not persisted: a process starts with every circuit closed.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    metrics::{self, ApiHost},
    retry::{Backoff, BackoffPolicy, Retry},
};

/// Failures in a row that open the circuit.
const OPENING_FAILURES: u32 = 5;
/// How long it stays open: between half and all of this, doubling.
const OPEN_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_secs(1), longest: Duration::from_secs(30), total: None };

/// One host's circuit.
#[derive(Debug)]
pub struct Circuit {
    host: ApiHost,
    inner: Mutex<CircuitInner>,
    /// A counter of changes, to wait for the next one.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct CircuitInner {
    state: CircuitState,
    open_backoff: Backoff,
    /// Number of waiting requests that may be the probe.
    waiting: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CircuitState {
    Closed { failures: u32 },
    Open { until: Instant },
    Probing,
}

impl CircuitState {
    fn is_open(self) -> bool {
        !matches!(self, Self::Closed { .. })
    }
}

/// Whether a request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readiness {
    /// It may be sent.
    Free,
    /// Not before this time.
    Until(Instant),
    /// A probe is in flight.
    Probing,
}

/// Permission to send a request now. Dropping it without reporting a result says nothing about the host.
#[derive(Debug)]
#[must_use]
pub struct RequestPermit<'a> {
    circuit: &'a Circuit,
    probe: bool,
}

/// The circuit stays open beyond the deadline; for how long, if known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaysOpen(pub Option<Duration>);

/// Counts a waiting request while it exists.
struct CircuitWaiter<'a>(&'a Circuit);

impl Circuit {
    /// A closed circuit.
    #[must_use]
    pub fn new(host: ApiHost) -> Self {
        let open_backoff = Backoff::new(OPEN_BACKOFF, RandomState::new().hash_one("circuit"));
        Self {
            host,
            inner: Mutex::new(CircuitInner {
                state: CircuitState::Closed { failures: 0 },
                open_backoff,
                waiting: 0,
            }),
            changed: watch::Sender::new(0),
        }
    }

    /// Waits until a request may be sent, and returns how long that took. Another one may be faster, so call [`Self::enter`]
    /// then.
    ///
    /// # Errors
    /// The circuit stays open beyond `end`.
    pub async fn ready(&self, end: Instant) -> Result<Duration, StaysOpen> {
        let since = Instant::now();
        if self.inner.lock().look(since) == Readiness::Free {
            return Ok(Duration::ZERO);
        }
        let _waiting = self.wait();
        self.until(end, CircuitInner::look).await?;
        Ok(since.elapsed())
    }

    /// Permission to send a request, as the probe if the circuit is open.
    pub fn enter(&self) -> Option<RequestPermit<'_>> {
        let probe = self.inner.lock().enter(Instant::now())?;
        Some(RequestPermit { circuit: self, probe })
    }

    /// Waits for permission to send a request.
    ///
    /// # Errors
    /// The circuit stays open beyond `end`.
    pub async fn pass(&self, end: Instant) -> Result<RequestPermit<'_>, StaysOpen> {
        // Counted until it has entered, so that no yielding request is faster.
        let _waiting = self.wait();
        loop {
            self.until(end, CircuitInner::look).await?;
            if let Some(pass) = self.enter() {
                return Ok(pass);
            }
        }
    }

    /// As [`Self::ready`], for a request that yields: it is not the probe while another waits.
    ///
    /// # Errors
    /// The circuit stays open beyond `end`, or others wait until then.
    pub async fn ready_yielding(&self, end: Instant) -> Result<(), StaysOpen> {
        self.until(end, CircuitInner::look_yielding).await
    }

    /// As [`Self::enter`], for a request that yields: it is not the probe while another waits.
    ///
    /// # Errors
    /// It may not be sent now.
    pub fn enter_yielding(&self) -> Result<RequestPermit<'_>, StaysOpen> {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        match inner.look_yielding(now) {
            Readiness::Free => match inner.enter(now) {
                Some(probe) => Ok(RequestPermit { circuit: self, probe }),
                None => Err(StaysOpen(None)),
            },
            Readiness::Until(until) => Err(StaysOpen(Some(until - now))),
            Readiness::Probing => Err(StaysOpen(None)),
        }
    }

    /// Waits until a request may be sent.
    async fn until(
        &self,
        end: Instant,
        looks: impl Fn(&CircuitInner, Instant) -> Readiness,
    ) -> Result<(), StaysOpen> {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let now = Instant::now();
            let look = looks(&self.inner.lock(), now);
            match look {
                Readiness::Free => return Ok(()),
                Readiness::Until(until) if until >= end => return Err(StaysOpen(Some(until - now))),
                Readiness::Until(until) => {
                    tokio::select! {
                        () = sleep_until(until) => {}
                        // The sender is ours.
                        _ = changed.changed() => {}
                    }
                }
                Readiness::Probing => {
                    if timeout_at(end, changed.changed()).await.is_err() {
                        return Err(StaysOpen(None));
                    }
                }
            }
        }
    }

    fn wait(&self) -> CircuitWaiter<'_> {
        self.inner.lock().waiting += 1;
        CircuitWaiter(self)
    }

    /// Whether only probes are sent.
    pub fn is_open(&self) -> bool {
        self.inner.lock().state.is_open()
    }

    /// Applies a change; logs it and wakes the waiting requests if the state has changed.
    fn change(&self, change: impl FnOnce(&mut CircuitInner)) {
        let (was, is) = {
            let mut inner = self.inner.lock();
            let was = inner.state;
            change(&mut inner);
            (was, inner.state)
        };
        if was == is {
            return;
        }
        match (was.is_open(), is.is_open()) {
            (false, true) => {
                metrics::api_circuit_opened(self.host);
                let host = self.host.label();
                tracing::warn!(
                    host,
                    "the provider does not answer; circuit opened, sending single probes only"
                );
            }
            (true, false) => {
                metrics::api_circuit_closed(self.host);
                tracing::info!(host = self.host.label(), "the provider answers again; circuit closed");
            }
            _ => {}
        }
        self.changed.send_modify(|count| *count += 1);
    }
}

impl CircuitInner {
    fn look(&self, now: Instant) -> Readiness {
        match self.state {
            CircuitState::Closed { .. } => Readiness::Free,
            CircuitState::Open { until } if until <= now => Readiness::Free,
            CircuitState::Open { until } => Readiness::Until(until),
            CircuitState::Probing => Readiness::Probing,
        }
    }

    /// The same for a request that yields: while another waits, that one becomes the probe.
    fn look_yielding(&self, now: Instant) -> Readiness {
        match self.look(now) {
            Readiness::Free if self.state.is_open() && self.waiting > 0 => Readiness::Probing,
            look => look,
        }
    }

    /// Whether the request is the probe; `None` if it must wait.
    fn enter(&mut self, now: Instant) -> Option<bool> {
        match self.state {
            CircuitState::Closed { .. } => Some(false),
            CircuitState::Open { until } if until <= now => {
                self.state = CircuitState::Probing;
                Some(true)
            }
            CircuitState::Open { .. } | CircuitState::Probing => None,
        }
    }

    fn succeeded(&mut self) {
        self.open_backoff.reset();
        self.state = CircuitState::Closed { failures: 0 };
    }

    fn failed(&mut self, now: Instant, probe: bool) {
        let opens = match &mut self.state {
            CircuitState::Closed { failures } => {
                *failures += 1;
                *failures >= OPENING_FAILURES
            }
            // A request that was in flight when the circuit opened changes nothing.
            CircuitState::Open { .. } | CircuitState::Probing => probe,
        };
        if opens {
            let rest = self.open_backoff.next_wait(Retry::Later).unwrap_or(OPEN_BACKOFF.longest);
            self.state = CircuitState::Open { until: now + rest };
        }
    }

    /// The probe's response was inconclusive: the circuit stays open, without a longer wait.
    fn inconclusive(&mut self, now: Instant) {
        if self.state == CircuitState::Probing {
            self.state = CircuitState::Open { until: now + OPEN_BACKOFF.first };
        }
    }

    /// The probe was dropped without a result: the next may be sent at once.
    fn abandoned(&mut self, now: Instant) {
        if self.state == CircuitState::Probing {
            self.state = CircuitState::Open { until: now };
        }
    }
}

impl RequestPermit<'_> {
    /// The host answered.
    pub fn succeeded(mut self) {
        self.probe = false;
        self.circuit.change(CircuitInner::succeeded);
    }

    /// The response may concern the whole host or one record.
    pub fn inconclusive(mut self) {
        if std::mem::take(&mut self.probe) {
            self.circuit.change(|inner| inner.inconclusive(Instant::now()));
        }
    }

    /// The host failed.
    pub fn failed(mut self) {
        let probe = std::mem::take(&mut self.probe);
        self.circuit.change(|inner| inner.failed(Instant::now(), probe));
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.circuit.change(|inner| inner.abandoned(Instant::now()));
        }
    }
}

impl Drop for CircuitWaiter<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut inner = self.0.inner.lock();
            inner.waiting -= 1;
            inner.waiting == 0 && inner.state.is_open()
        };
        // A yielding request may be sent now.
        if is_last {
            self.0.changed.send_modify(|count| *count += 1);
        }
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        if self.inner.lock().state.is_open() {
            metrics::api_circuit_closed(self.host);
        }
    }
}

#[cfg(test)]
mod tests;
