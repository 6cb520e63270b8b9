//! An adaptive rate with the token bucket that meters it, of the application or of one company: a rate of requests per second,
//! with a small burst after idle time.

use std::time::Duration;

use tokio::time::Instant;

use super::adaptive_rate::AdaptiveRate;

#[derive(Debug)]
pub(super) struct MeteredRate {
    pub(super) adaptive: AdaptiveRate,
    pub(super) tokens: f64,
    /// When tokens were last added, or the end of the last pause.
    pub(super) at: Instant,
    /// Capacity of the bucket, in seconds of the rate.
    burst_seconds: f64,
    /// Whether a request has waited for this rate since the last advance.
    limited: bool,
}

impl MeteredRate {
    /// A rate with this many tokens.
    pub(super) fn new(adaptive: AdaptiveRate, tokens: f64, burst_seconds: f64, now: Instant) -> Self {
        Self { adaptive, tokens, at: now, burst_seconds, limited: false }
    }

    /// Lets the rate grow if requests have waited for it, and still do.
    pub(super) fn advance(&mut self, now: Instant, wanted: bool) {
        self.adaptive.advance(now, self.limited && wanted);
        self.limited = false;
    }

    /// Until when the rate is paused. A pause adds no tokens and leaves one at most: more would be a burst.
    pub(super) fn rest(&mut self, now: Instant) -> Result<(), Instant> {
        if let Some(until) = self.adaptive.paused(now) {
            return Err(until);
        }
        if let Some(end) = self.adaptive.paused_until.filter(|end| self.at < *end) {
            self.tokens = self.tokens.min(1.0);
            self.at = end;
        }
        Ok(())
    }

    /// Whether a token is available; else the time until one is.
    pub(super) fn has_token(&mut self, now: Instant) -> Result<(), Duration> {
        let rate = self.adaptive.rate;
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * rate).min(self.burst());
        self.at = now;
        // Tolerates rounding, which would otherwise cost another wait.
        self.limited = self.tokens <= 1.0 - 1e-6;
        if !self.limited {
            return Ok(());
        }
        let seconds = (1.0 - self.tokens).max(0.0) / rate.max(f64::MIN_POSITIVE);
        // Bounded, because a rate near zero would overflow.
        Err(Duration::try_from_secs_f64(seconds.min(86_400.0)).unwrap_or_default())
    }

    /// Takes a token and returns the number of cuts so far.
    pub(super) fn take(&mut self, now: Instant) -> u64 {
        self.tokens = (self.tokens - 1.0).max(0.0);
        self.adaptive.sent(now);
        self.adaptive.cuts
    }

    /// Returns an unused token.
    pub(super) fn give(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst());
        self.adaptive.unsent();
    }

    /// Whether the bucket fills within this time.
    pub(super) fn fills_in(&self, time: Duration) -> bool {
        time.as_secs_f64() * self.adaptive.rate >= self.burst()
    }

    fn burst(&self) -> f64 {
        (self.adaptive.rate * self.burst_seconds).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_refill_with_time_up_to_the_burst() {
        let start = Instant::now();
        let mut rate = MeteredRate::new(AdaptiveRate::trusting(4.0, start, 1), 1.0, 0.5, start);
        rate.take(start);
        assert_eq!(rate.has_token(start), Err(Duration::from_millis(250)));

        assert_eq!(rate.has_token(start + Duration::from_millis(250)), Ok(()));
        let later = start + Duration::from_secs(60);
        assert_eq!(rate.has_token(later), Ok(()));
        rate.take(later);
        rate.take(later);

        assert!(rate.has_token(later).is_err(), "more than the burst was kept");
    }
}
