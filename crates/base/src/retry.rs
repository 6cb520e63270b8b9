//! Whether to retry an error, and the backoff.
//!
//! An error's `retry()` says whether another attempt may succeed. Callers act on this [`Retry`], never on the error's text.
//! [`Backoff`] provides bounded, jittered waits.

use std::{error::Error, fmt, time::Duration};

/// Whether an error may be retried. Of several errors the greatest value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The cause is temporary: retry after the backoff's wait.
    Later,
    /// As [`Retry::Later`], but the other side named the wait (`Retry-After`).
    After(Duration),
    /// A retry gives the same result; a person, another input or a dead letter is needed.
    Never,
}

impl Retry {
    /// Whether a retry can help.
    #[must_use]
    pub fn is_retriable(self) -> bool {
        self != Self::Never
    }

    /// The wait that the other side named, in microseconds, if it did.
    #[must_use]
    pub fn named_micros(self) -> Option<i64> {
        match self {
            Self::After(wait) => Some(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)),
            Self::Later | Self::Never => None,
        }
    }
}

/// How long to wait between attempts, and when to stop.
#[derive(Debug, Clone, Copy)]
pub struct BackoffPolicy {
    /// Wait before the second attempt; doubles with each further one.
    pub first: Duration,
    /// Longest single wait, unless the other side named a longer one.
    pub longest: Duration,
    /// Total wait after which the last error is final; zero never waits, `None` waits forever.
    pub total: Option<Duration>,
}

/// The waits of one operation: doubling, jittered to between 50 % and 100 %, bounded in total.
#[derive(Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    next: Duration,
    spent: Duration,
    jitter: u64,
}

impl Backoff {
    /// A new series of waits. `seed` spreads operations that fail at the same moment.
    #[must_use]
    pub fn new(policy: BackoffPolicy, seed: u64) -> Self {
        Self { policy, next: policy.first, spent: Duration::ZERO, jitter: seed | 1 }
    }

    /// The wait before the next attempt, or `None` to stop.
    pub fn next_wait(&mut self, verdict: Retry) -> Option<Duration> {
        let wait = match verdict {
            Retry::Never => return None,
            Retry::After(named) => named,
            Retry::Later => {
                let whole = self.next;
                self.next = (whole * 2).min(self.policy.longest);
                self.jittered(whole)
            }
        };
        let wait = match self.policy.total.map(|total| total.saturating_sub(self.spent)) {
            Some(Duration::ZERO) => return None,
            // The last wait is cut to the remaining time.
            Some(left) => wait.min(left),
            None => wait,
        };
        self.spent = self.spent.saturating_add(wait);
        Some(wait)
    }

    /// Whether there has been no wait yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.spent.is_zero()
    }

    /// Starts over; call it after a success.
    pub fn reset(&mut self) {
        self.next = self.policy.first;
        self.spent = Duration::ZERO;
    }

    /// Between half and all of `whole`; xorshift is random enough to spread retries.
    fn jittered(&mut self, whole: Duration) -> Duration {
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        let part = (self.jitter % 1000) as u32;
        whole / 2 + whole / 2 * part / 1000
    }
}

/// Shows an error with its causes on one line.
#[derive(Debug)]
pub struct ErrorChain<'a>(pub &'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(first: u64, longest: u64, total: Option<u64>) -> BackoffPolicy {
        BackoffPolicy {
            first: Duration::from_millis(first),
            longest: Duration::from_millis(longest),
            total: total.map(Duration::from_millis),
        }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::new(policy(100, 400, None), 7);

        let waits: Vec<_> = (0..5).map(|_| backoff.next_wait(Retry::Later).unwrap().as_millis()).collect();

        for (wait, whole) in waits.iter().zip([100, 200, 400, 400, 400]) {
            assert!(
                (whole / 2..=whole).contains(wait),
                "{wait} ms is not between half and all of {whole} ms"
            );
        }
    }

    #[test]
    fn permanent_error_is_never_retried() {
        assert_eq!(Backoff::new(policy(1, 1, None), 1).next_wait(Retry::Never), None);
    }

    #[test]
    fn named_wait_may_exceed_the_longest() {
        let named = Duration::from_secs(9);

        assert_eq!(Backoff::new(policy(1, 10, None), 1).next_wait(Retry::After(named)), Some(named));
    }

    #[test]
    fn waiting_stops_at_the_total_and_restarts_after_reset() {
        let mut backoff = Backoff::new(policy(100, 100, Some(150)), 3);
        let first_series: Vec<_> = std::iter::from_fn(|| backoff.next_wait(Retry::Later)).take(10).collect();
        assert_eq!(first_series.iter().sum::<Duration>(), Duration::from_millis(150), "{first_series:?}");

        backoff.reset();

        assert!(backoff.next_wait(Retry::Later).is_some());
    }
}
