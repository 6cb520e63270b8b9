//! A host that fails is left alone for a while, then asked by one request at a time until it answers.
//!
//! ```text
//! closed ──five failures──▶ open, for a while ──▶ half open: one probe ──answer──▶ closed
//!                              ▲──────────failure, twice as long──┘
//! ```
//!
//! Five failures in a row (no connection, no answer, 502 to 504) open the circuit for a second, then two, up to thirty. After
//! that exactly one request goes as a probe while the others wait. Any answer below 500 closes it: 401 and 429 are answers.
//! A probe that neither succeeds nor fails because its caller went away leaves its place to the next. One that is answered
//! with a 500, which may be about one record or about all, is followed by the next after a second.
//!
//! - There are requests that had better not be the probe, since nobody can tell what became of one that failed: a refresh
//!   token. They go last ([`Circuit::ready_last`]): while another request waits, that one is the probe; alone, they are.
//! - On failure nothing is kept: a process begins with every circuit closed.

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

/// Failures in a row that open it.
const FAILURES: u32 = 5;
/// How long it stays open: at least half of this, doubling.
const REST: BackoffPolicy =
    BackoffPolicy { first: Duration::from_secs(1), longest: Duration::from_secs(30), total: None };

/// One host's circuit.
#[derive(Debug)]
pub struct Circuit {
    host: ApiHost,
    inner: Mutex<CircuitInner>,
    /// Counts changes, for those who wait for one.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct CircuitInner {
    state: CircuitState,
    rest: Backoff,
    /// How many wait for their turn and may be the probe.
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

/// What those who wait see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readiness {
    /// One may go.
    Free,
    /// None may go until then.
    Until(Instant),
    /// The probe is on its way.
    Probing,
}

/// A request that may go now. Dropped without a word, it says nothing about the host.
#[derive(Debug)]
#[must_use]
pub struct RequestPermit<'a> {
    circuit: &'a Circuit,
    probe: bool,
}

/// It stays open beyond the end, for so long where that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaysOpen(pub Option<Duration>);

/// Somebody who waits for their turn.
struct CircuitWaiter<'a>(&'a Circuit);

impl Circuit {
    /// Of a host that has not failed yet.
    #[must_use]
    pub fn new(host: ApiHost) -> Self {
        let rest = Backoff::new(REST, RandomState::new().hash_one("circuit"));
        Self {
            host,
            inner: Mutex::new(CircuitInner { state: CircuitState::Closed { failures: 0 }, rest, waiting: 0 }),
            changed: watch::Sender::new(0),
        }
    }

    /// Waits until a request has a chance to go, and tells how long that took. Others may be quicker: ask [`Self::enter`].
    ///
    /// # Errors
    /// It stays open beyond `end`.
    pub async fn ready(&self, end: Instant) -> Result<Duration, StaysOpen> {
        let since = Instant::now();
        if self.inner.lock().look(since) == Readiness::Free {
            return Ok(Duration::ZERO);
        }
        let _waiting = self.wait();
        self.until(end, CircuitInner::look).await?;
        Ok(since.elapsed())
    }

    /// Lets a request go, as the probe if it has to be one.
    pub fn enter(&self) -> Option<RequestPermit<'_>> {
        let probe = self.inner.lock().enter(Instant::now())?;
        Some(RequestPermit { circuit: self, probe })
    }

    /// Waits until a request may go, and lets it.
    ///
    /// # Errors
    /// It stays open beyond `end`.
    pub async fn pass(&self, end: Instant) -> Result<RequestPermit<'_>, StaysOpen> {
        // Counted until it has entered, so that nobody who goes last is faster.
        let _waiting = self.wait();
        loop {
            self.until(end, CircuitInner::look).await?;
            if let Some(pass) = self.enter() {
                return Ok(pass);
            }
        }
    }

    /// As [`Self::ready`], for a request that is not to be the probe while another could be.
    ///
    /// # Errors
    /// It stays open beyond `end`, or others wait until then.
    pub async fn ready_last(&self, end: Instant) -> Result<(), StaysOpen> {
        self.until(end, CircuitInner::look_last).await
    }

    /// As [`Self::enter`], for a request that is not to be the probe while another could be.
    ///
    /// # Errors
    /// It may not go now.
    pub fn enter_last(&self) -> Result<RequestPermit<'_>, StaysOpen> {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        match inner.look_last(now) {
            Readiness::Free => match inner.enter(now) {
                Some(probe) => Ok(RequestPermit { circuit: self, probe }),
                None => Err(StaysOpen(None)),
            },
            Readiness::Until(until) => Err(StaysOpen(Some(until - now))),
            Readiness::Probing => Err(StaysOpen(None)),
        }
    }

    /// Waits until a look finds the way free.
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

    /// Whether single requests at most are let through.
    pub fn is_open(&self) -> bool {
        self.inner.lock().state.is_open()
    }

    /// Takes a change, and tells everybody of one that is.
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
                tracing::warn!(host, "the provider does not answer; it is asked by single requests only");
            }
            (true, false) => {
                metrics::api_circuit_closed(self.host);
                tracing::info!(host = self.host.label(), "the provider answers again");
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

    /// The same for those who go last: the probe's place is taken as long as somebody waits for it.
    fn look_last(&self, now: Instant) -> Readiness {
        match self.look(now) {
            Readiness::Free if self.state.is_open() && self.waiting > 0 => Readiness::Probing,
            look => look,
        }
    }

    /// Whether as the probe; `None` for those who have to wait.
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

    fn alive(&mut self) {
        self.rest.reset();
        self.state = CircuitState::Closed { failures: 0 };
    }

    fn failing(&mut self, now: Instant, probe: bool) {
        let opens = match &mut self.state {
            CircuitState::Closed { failures } => {
                *failures += 1;
                *failures >= FAILURES
            }
            // A request that was on its way when it opened is no news.
            CircuitState::Open { .. } | CircuitState::Probing => probe,
        };
        if opens {
            let rest = self.rest.next_wait(Retry::Later).unwrap_or(REST.longest);
            self.state = CircuitState::Open { until: now + rest };
        }
    }

    /// A probe was answered in a way that leaves it open: neither does it close nor does it rest longer for it.
    fn unclear(&mut self, now: Instant) {
        if self.state == CircuitState::Probing {
            self.state = CircuitState::Open { until: now + REST.first };
        }
    }

    /// A probe went away without a word: the next may try at once.
    fn forsaken(&mut self, now: Instant) {
        if self.state == CircuitState::Probing {
            self.state = CircuitState::Open { until: now };
        }
    }
}

impl RequestPermit<'_> {
    /// The host answered.
    pub fn alive(mut self) {
        self.probe = false;
        self.circuit.change(CircuitInner::alive);
    }

    /// The host answered with what may be a failure of the whole or of one record.
    pub fn unclear(mut self) {
        if std::mem::take(&mut self.probe) {
            self.circuit.change(|inner| inner.unclear(Instant::now()));
        }
    }

    /// The host failed.
    pub fn failing(mut self) {
        let probe = std::mem::take(&mut self.probe);
        self.circuit.change(|inner| inner.failing(Instant::now(), probe));
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.circuit.change(|inner| inner.forsaken(Instant::now()));
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
        // Whoever goes last may have its turn now.
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
