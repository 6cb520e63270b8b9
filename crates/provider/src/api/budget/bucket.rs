//! A token bucket: a rate of requests per second, with a small burst after a pause.

use std::time::Duration;

use tokio::time::Instant;

/// Tokens of one budget. Rate and burst are arguments, because both change.
#[derive(Debug)]
pub(super) struct TokenBucket {
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    /// A bucket with this many tokens.
    pub(super) fn new(tokens: f64, now: Instant) -> Self {
        Self { tokens, at: now }
    }

    /// Adds the tokens of the time since the last refill.
    pub(super) fn refill(&mut self, now: Instant, rate: f64, burst: f64) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * rate).min(burst);
        self.at = now;
    }

    /// Adds no tokens until `end`, and keeps one token at most.
    pub(super) fn rest_until(&mut self, end: Instant) {
        if self.at < end {
            self.tokens = self.tokens.min(1.0);
            self.at = end;
        }
    }

    /// Whether a token is available. Tolerates rounding, which would otherwise cost another wait.
    pub(super) fn has_token(&self) -> bool {
        self.tokens > 1.0 - 1e-6
    }

    /// Takes a token.
    pub(super) fn take(&mut self) {
        self.tokens = (self.tokens - 1.0).max(0.0);
    }

    /// Returns an unused token.
    pub(super) fn give(&mut self, burst: f64) {
        self.tokens = (self.tokens + 1.0).min(burst);
    }

    /// Time until a token is available at this rate.
    pub(super) fn wait(&self, rate: f64) -> Duration {
        let seconds = (1.0 - self.tokens).max(0.0) / rate.max(f64::MIN_POSITIVE);
        // Bounded, because a rate near zero would overflow.
        Duration::try_from_secs_f64(seconds.min(86_400.0)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_refill_with_time_up_to_the_burst() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(1.0, start);
        bucket.take();
        assert!(!bucket.has_token());
        assert_eq!(bucket.wait(4.0), Duration::from_millis(250));

        bucket.refill(start + bucket.wait(4.0), 4.0, 2.0);
        assert!(bucket.has_token());
        bucket.refill(start + Duration::from_secs(60), 4.0, 2.0);
        bucket.take();
        bucket.take();

        assert!(!bucket.has_token(), "more than the burst was kept");
    }
}
