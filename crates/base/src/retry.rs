//! The verdict on a failure, and the backoff that obeys it.
//!
//! `retry()` of an error says whether another attempt may succeed. Callers act on that [`Retry`] and never on the error's text. [`Backoff`] turns "again, later" into bounded, jittered waits.

use std::{error::Error, fmt, time::Duration};

/// What may be done about a failure. Of several failures the greatest verdict holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The cause passes by itself: try again after the backoff's own wait.
    Later,
    /// As [`Retry::Later`], but the other side named the wait.
    After(Duration),
    /// Trying the same thing again gives the same answer; a person, a new input or a dead letter is needed.
    Never,
}

impl Retry {
    /// Whether trying again can help.
    #[must_use]
    pub fn is_retriable(self) -> bool {
        self != Self::Never
    }

    /// The wait that the other side named, in microseconds; `None` where it did not.
    #[must_use]
    pub fn named_micros(self) -> Option<i64> {
        match self {
            Self::After(wait) => Some(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)),
            Self::Later | Self::Never => None,
        }
    }
}

/// How long to wait between tries, and when to stop trying.
#[derive(Debug, Clone, Copy)]
pub struct BackoffPolicy {
    /// Wait before the second try; it doubles with each further one.
    pub first: Duration,
    /// No single wait is longer than this, unless the other side named a longer one.
    pub longest: Duration,
    /// Once this much time has been spent waiting, the last error is final; zero never waits, `None` waits for ever.
    pub total: Option<Duration>,
}

/// The waits of one operation: doubling, jittered to between half and all of their length, bounded in sum.
#[derive(Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    next: Duration,
    spent: Duration,
    jitter: u64,
}

impl Backoff {
    /// A fresh series of waits. `seed` spreads the jitter of operations that fail at the same moment.
    #[must_use]
    pub fn new(policy: BackoffPolicy, seed: u64) -> Self {
        Self { policy, next: policy.first, spent: Duration::ZERO, jitter: seed | 1 }
    }

    /// The wait before the next try, or `None` when the verdict or the policy says to stop.
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
            // The last wait is cut to what is left.
            Some(left) => wait.min(left),
            None => wait,
        };
        self.spent = self.spent.saturating_add(wait);
        Some(wait)
    }

    /// Whether nothing has been waited for yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.spent.is_zero()
    }

    /// Forgets the waits so far; called after a success.
    pub fn reset(&mut self) {
        self.next = self.policy.first;
        self.spent = Duration::ZERO;
    }

    /// Between half and all of `whole`: xorshift is enough to keep a crowd from marching in step.
    fn jittered(&mut self, whole: Duration) -> Duration {
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        let part = (self.jitter % 1000) as u32;
        whole / 2 + whole / 2 * part / 1000
    }
}

/// An error with its causes on one line, for people.
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
    fn waits_double_up_to_the_longest_and_keep_at_least_half() {
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
    fn a_final_verdict_is_never_waited_for() {
        assert_eq!(Backoff::new(policy(1, 1, None), 1).next_wait(Retry::Never), None);
    }

    #[test]
    fn a_named_wait_is_obeyed_even_above_the_longest() {
        let named = Duration::from_secs(9);

        assert_eq!(Backoff::new(policy(1, 10, None), 1).next_wait(Retry::After(named)), Some(named));
    }

    #[test]
    fn waiting_stops_at_the_total_and_starts_anew_after_a_success() {
        let mut backoff = Backoff::new(policy(100, 100, Some(150)), 3);
        let first_series: Vec<_> = std::iter::from_fn(|| backoff.next_wait(Retry::Later)).take(10).collect();
        assert_eq!(first_series.iter().sum::<Duration>(), Duration::from_millis(150), "{first_series:?}");

        backoff.reset();

        assert!(backoff.next_wait(Retry::Later).is_some());
    }
}
