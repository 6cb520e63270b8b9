//! An adaptive rate with the bucket that meters it: of the application, or of one company.

use std::time::Duration;

use tokio::time::Instant;

use super::{adaptive_rate::AdaptiveRate, bucket::TokenBucket};

#[derive(Debug)]
pub(super) struct MeteredRate {
    pub(super) adaptive: AdaptiveRate,
    pub(super) bucket: TokenBucket,
    /// Capacity of the bucket, in seconds of the rate.
    burst_seconds: f64,
    /// Whether a request has waited for this rate since the last advance.
    limited: bool,
}

impl MeteredRate {
    pub(super) fn new(adaptive: AdaptiveRate, tokens: f64, burst_seconds: f64, now: Instant) -> Self {
        Self { adaptive, bucket: TokenBucket::new(tokens, now), burst_seconds, limited: false }
    }

    /// Lets the rate grow if requests have waited for it, and still do.
    pub(super) fn advance(&mut self, now: Instant, wanted: bool) {
        self.adaptive.advance(now, self.limited && wanted);
        self.limited = false;
    }

    /// Until when the rate is paused. After a pause, its tokens are dropped: they would be a burst.
    pub(super) fn rest(&mut self, now: Instant) -> Result<(), Instant> {
        if let Some(until) = self.adaptive.paused(now) {
            return Err(until);
        }
        if let Some(end) = self.adaptive.paused_until {
            self.bucket.rest_until(end);
        }
        Ok(())
    }

    /// Whether a token is available; else the time until one is.
    pub(super) fn has_token(&mut self, now: Instant) -> Result<(), Duration> {
        let rate = self.adaptive.rate;
        self.bucket.refill(now, rate, self.burst());
        self.limited = !self.bucket.has_token();
        if self.limited { Err(self.bucket.wait(rate)) } else { Ok(()) }
    }

    /// Takes a token and returns the number of cuts so far.
    pub(super) fn take(&mut self, now: Instant) -> u64 {
        self.bucket.take();
        self.adaptive.sent(now);
        self.adaptive.cuts
    }

    /// Returns an unused token.
    pub(super) fn give(&mut self) {
        self.bucket.give(self.burst());
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
