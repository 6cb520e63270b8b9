//! Rate and quota: requests per subscription key in a window that starts with its first request.
//!
//! A refused request does not count, so `Retry-After` says exactly when the next one passes. A new window starts when the
//! numbers of a limit change, or when the clock is set back before the start of the current one.

use parking_lot::Mutex;

use crate::{
    clock::{SECOND, Ticks, ticks},
    error_answer::{ApiError, throttled, used_up},
    knobs::{GatewayKnobs, Rate},
};

/// Counts per subscription key.
#[derive(Debug)]
pub(super) struct RateLimits {
    /// The windows of rate and quota, by the index of the key in the settings.
    used: Mutex<Vec<[Option<RateWindow>; 2]>>,
}

#[derive(Debug, Clone, Copy)]
struct RateWindow {
    began: Ticks,
    passed: u32,
}

impl RateLimits {
    /// For this number of keys.
    pub(super) fn new(keys: usize) -> Self {
        Self { used: Mutex::new(vec![[None; 2]; keys]) }
    }

    /// Drops the windows of limits whose numbers have changed.
    pub(super) fn turned(&self, before: &GatewayKnobs, now: &GatewayKnobs) {
        let numbers = |limit: Option<Rate>| limit.map(|limit| (limit.requests, length(limit.seconds)));
        let pairs = [(before.rate, now.rate), (before.quota, now.quota)];
        let changed = pairs.map(|(before, now)| numbers(before) != numbers(now));
        for windows in self.used.lock().iter_mut() {
            for (window, _) in windows.iter_mut().zip(changed).filter(|(_, changed)| *changed) {
                *window = None;
            }
        }
    }

    /// Counts a request of a key, or refuses it.
    pub(super) fn count(&self, key: usize, knobs: &GatewayKnobs, now: Ticks) -> Result<(), ApiError> {
        let mut used = self.used.lock();
        let Some([rate, quota]) = used.get_mut(key) else { return Ok(()) };
        if let Some(limit) = &knobs.rate {
            pass(rate, limit, now).map_err(|seconds| throttled(seconds, limit.tells))?;
        }
        if let Some(limit) = &knobs.quota {
            pass(quota, limit, now).map_err(|seconds| used_up(seconds, limit.tells))?;
        }
        Ok(())
    }
}

/// Counts a request in its window, or returns the whole seconds until the next one passes.
fn pass(window: &mut Option<RateWindow>, limit: &Rate, now: Ticks) -> Result<(), u64> {
    let length = length(limit.seconds);
    let running = window.filter(|window| (0..length).contains(&now.0.saturating_sub(window.began.0)));
    let mut running = running.unwrap_or(RateWindow { began: now, passed: 0 });
    let passes = running.passed < limit.requests;
    running.passed += u32::from(passes);
    *window = Some(running);
    if passes {
        return Ok(());
    }
    let left = running.began.0.saturating_add(length).saturating_sub(now.0);
    Err(u64::try_from(left).unwrap_or(0).div_ceil(SECOND.unsigned_abs()).max(1))
}

/// A window's length in ticks.
fn length(seconds: f64) -> i64 {
    std::time::Duration::try_from_secs_f64(seconds).map_or(i64::MAX, ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::RetryHint;

    const RATE: Rate = Rate { requests: 2, seconds: 10.0, tells: RetryHint::Both };

    fn at(seconds: i64) -> Ticks {
        Ticks(seconds * SECOND)
    }

    fn rate(rate: Rate) -> GatewayKnobs {
        GatewayKnobs { rate: Some(rate), ..GatewayKnobs::default() }
    }

    #[test]
    fn changed_numbers_or_a_clock_set_back_start_a_new_window() {
        let limits = RateLimits::new(1);
        let (one, two) = (rate(Rate { requests: 1, ..RATE }), rate(RATE));
        let told_less = rate(Rate { tells: RetryHint::Nothing, ..RATE });
        let passes = |knobs: &GatewayKnobs, second| limits.count(0, knobs, at(second)).is_ok();

        assert_eq!([passes(&one, 100), passes(&one, 100)], [true, false]);
        limits.turned(&one, &two);
        assert_eq!([passes(&two, 100), passes(&two, 100), passes(&two, 100)], [true, true, false]);
        limits.turned(&two, &told_less);
        assert!(!passes(&told_less, 100));
        assert!(passes(&told_less, 50));
    }

    #[test]
    fn quota_and_rate_are_counted_separately() {
        let limits = RateLimits::new(1);
        let quota = Rate { requests: 2, seconds: 100.0, tells: RetryHint::Both };
        let knobs = GatewayKnobs {
            rate: Some(Rate { requests: 1, seconds: 1.0, tells: RetryHint::Both }),
            quota: Some(quota),
            ..GatewayKnobs::default()
        };

        let answers = [0, 0, 1, 2].map(|second| limits.count(0, &knobs, at(second)).err());

        assert_eq!(
            answers,
            [None, Some(throttled(1, RetryHint::Both)), None, Some(used_up(98, RetryHint::Both))]
        );
    }
}
