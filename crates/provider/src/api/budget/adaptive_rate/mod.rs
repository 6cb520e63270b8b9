//! A rate that adapts to the provider's limit, which is not documented.
//!
//! The rule, for the application and for each company:
//! 1. Start with a part of the setting and double each second, until the first refusal (429, or 403 for a quota).
//! 2. A refusal pauses everything for the time that the provider names, or for a growing time if it names none, and cuts the rate
//!    to 85% of the refused one.
//! 3. Return within seconds to 93% of the refused rate, then creep: the creep accelerates while there is no refusal, so that any
//!    distance up to the setting takes minutes. A constant limit is touched about once a minute.
//! 4. If the provider names five seconds or more, its window is long, and the rate is set at once to what passed in it.
//! 5. Refusals in close succession may be a burst. If the rate before them was sustained for [`BURST_OVER_SECONDS`], then after
//!    that time without a refusal it doubles every [`RISE_DOUBLING_SECONDS`] until it is back at 93% of the former rate. If that
//!    is refused too, the lower limit is real, and the rate creeps from there.
//! 6. A refusal before anything has passed says nothing about the rate: it doubles the last pause and cuts nothing.
//!
//! - One pause, one cut: refusals of requests that were sent before the cut only lengthen the pause.
//! - The rate grows only while requests wait for it, because an unused rate is not known to be allowed. For the same reason,
//!   passed requests are counted only while requests wait all the time: a quiet day says nothing about a limit.
//!
//! Under endless demand, with a setting ten times the limit, and waits named in whole seconds (this module's tests verify it):
//!
//! | limit | part that is used | the same after an hour at 0.02/s |
//! |---|---|---|
//! | 50 in 1 s | 0.95 | 0.95 |
//! | 100 in 2 s | 0.95 | 0.95 |
//! | 10 in 1 s | 0.95 | 0.95 |
//! | 100 in 10 s | 0.96 | 0.96 |
//! | 600 in 60 s | 0.99 | 0.99 |
//!
//! After ten minutes of refusals only: 93% of the setting within half a minute. After half a minute in which every second request
//! is refused: 93% of the former rate within a minute. A limit raised tenfold is used after 11 minutes. A limit cut to a tenth is
//! kept after half a minute, or from the second refusal of a long window.

use std::time::Duration;

use tokio::time::Instant;

use base::retry::{Backoff, BackoffPolicy, Retry};

/// Start rate, as a part of the setting.
const START_FRACTION: f64 = 0.05;
/// Lower bound of the start rate in requests per second, unless the setting is lower.
const MIN_START_RATE: f64 = 1.0;
/// Part of the rate that remains after a refusal.
const CUT_FACTOR: f64 = 0.85;
/// Return after a cut, per second, as a part of the refused rate.
const RETURN_PER_SECOND: f64 = 0.2;
/// Where the return ends, as a part of the refused rate.
const RETURN_TARGET: f64 = 0.93;
/// Growth per second after the return, as a part of the rate; doubled after [`CREEP_DOUBLING_SECONDS`], tripled after twice that.
const CREEP_PER_SECOND: f64 = 0.0005;
/// Seconds of creeping that double its speed.
const CREEP_DOUBLING_SECONDS: f64 = 60.0;
/// Seconds without a refusal that end a burst of refusals.
const BURST_OVER_SECONDS: f64 = 15.0;
/// Seconds in which the rate doubles after a burst: from the minimum to the setting in 27.
const RISE_DOUBLING_SECONDS: f64 = 4.0;
/// Up to this long after a pause, the average since then describes the refused rate better than the current rate.
const AVERAGING_LIMIT: Duration = Duration::from_secs(10);
/// From this named wait on, the passed requests determine the rate.
const LONG_WINDOW: Duration = Duration::from_secs(5);
/// Fewer requests prove nothing: other callers may have used up the window.
const LONG_WINDOW_MIN_PASSED: u64 = 5;
/// Margin on what passed in a long window.
const LONG_MARGIN: f64 = 1.1;
/// Lower bound of the rate as a part of the setting: something must pass to learn from.
const MIN_FRACTION: f64 = 0.01;
/// After this long without waiting requests, a new stretch begins.
const IDLE_GAP: Duration = Duration::from_secs(1);
/// Upper bound of a doubled pause.
const MAX_FRUITLESS_PAUSE: Duration = Duration::from_secs(30);
/// Pauses if the provider names none.
const UNNAMED_WAIT: BackoffPolicy =
    BackoffPolicy { first: Duration::from_secs(1), longest: MAX_FRUITLESS_PAUSE, total: None };

/// The adaptive rate of the application or of one company.
#[derive(Debug)]
pub(super) struct AdaptiveRate {
    setting: f64,
    /// Current requests per second.
    pub(super) rate: f64,
    limit: LearnedLimit,
    /// When the rate was last updated.
    at: Instant,
    /// End of the last pause.
    pub(super) paused_until: Option<Instant>,
    /// Number of cuts. Requests carry it, to match a refusal with the cut before its request.
    pub(super) cuts: u64,
    /// When a request last waited for the rate.
    wanted: Option<Instant>,
    stretch: RequestStretch,
    pauses: PauseGrowth,
    /// Seconds without a refusal, at the setting or creeping.
    creep_seconds: f64,
}

/// What refusals have shown of the provider's limit.
#[derive(Debug, Default)]
struct LearnedLimit {
    /// The rate at the last refusal.
    ceiling: Option<f64>,
    /// The rate that was sustained before the last burst of refusals; 0 if there was none, or if it was refused again.
    before_burst: f64,
    /// Whether the rate is rising back to it.
    is_rising: bool,
}

/// Requests since the last cut or idle time.
#[derive(Debug, Default)]
struct RequestStretch {
    /// When the first one was sent.
    began: Option<Instant>,
    sent: u64,
    accepted: u64,
}

/// How long the next pause is.
#[derive(Debug)]
struct PauseGrowth {
    /// Length of the last pause.
    last: Duration,
    /// Whether any request has passed since the last refusal.
    passed: bool,
    unnamed_wait: Backoff,
}

impl AdaptiveRate {
    /// Starts low and learns the rate.
    pub(super) fn new(setting: f64, now: Instant, seed: u64) -> Self {
        let rate = (setting * START_FRACTION).max(MIN_START_RATE).min(setting);
        Self { rate, ..Self::trusting(setting, now, seed) }
    }

    /// Starts with the whole setting.
    pub(super) fn trusting(setting: f64, now: Instant, seed: u64) -> Self {
        Self {
            setting,
            rate: setting,
            limit: LearnedLimit::default(),
            at: now,
            paused_until: None,
            cuts: 0,
            wanted: None,
            stretch: RequestStretch::default(),
            pauses: PauseGrowth {
                last: Duration::ZERO,
                passed: true,
                unnamed_wait: Backoff::new(UNNAMED_WAIT, seed),
            },
            creep_seconds: 0.0,
        }
    }

    /// The rate as a part of the setting; 1 before the first refusal.
    pub(super) fn ratio(&self) -> f64 {
        if self.is_untouched() { 1.0 } else { self.rate / self.setting }
    }

    /// Whether nothing was learned yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.limit.ceiling.is_none()
    }

    /// Until when nothing may be sent.
    pub(super) fn paused(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| now < *until)
    }

    /// Changes the setting. The provider's limit stays the same.
    pub(super) fn set(&mut self, setting: f64) {
        self.setting = setting;
        self.rate = self.rate.clamp(setting * MIN_FRACTION, setting);
    }

    /// Scales everything that is known, because this worker's share has changed.
    pub(super) fn scale(&mut self, by: f64) {
        self.setting *= by;
        self.rate *= by;
        self.limit.ceiling = self.limit.ceiling.map(|ceiling| ceiling * by);
        self.limit.before_burst *= by;
    }

    /// Updates the rate. `wanted`: whether requests have waited for it.
    pub(super) fn advance(&mut self, now: Instant, wanted: bool) {
        let from = self.paused_until.map_or(self.at, |until| until.max(self.at));
        let mut left = now.saturating_duration_since(from).as_secs_f64();
        self.at = now.max(self.at);
        if !wanted {
            return;
        }
        self.reset_after_idle(now);
        self.wanted = Some(now);
        if left <= 0.0 {
            return;
        }
        let Some(ceiling) = self.limit.ceiling else {
            self.creep_seconds += if self.rate < self.setting { 0.0 } else { left };
            self.rate = (self.rate * left.min(60.0).exp2()).min(self.setting);
            return;
        };
        let near = ceiling * RETURN_TARGET;
        if self.rate < near {
            let needed = (near - self.rate) / (ceiling * RETURN_PER_SECOND);
            let returned = left.min(needed);
            self.rate += ceiling * RETURN_PER_SECOND * returned;
            left -= returned;
        }
        let slowly = left.min((BURST_OVER_SECONDS - self.creep_seconds).max(0.0));
        self.creep(slowly);
        left -= slowly;
        let back = (self.limit.before_burst * RETURN_TARGET).min(self.setting);
        if left > 0.0 && self.rate < back {
            let risen = left.min((back / self.rate).log2() * RISE_DOUBLING_SECONDS);
            self.rate *= (risen / RISE_DOUBLING_SECONDS).exp2();
            left -= risen;
            self.limit.is_rising = true;
        }
        self.creep(left);
        self.rate = self.rate.min(self.setting);
        // Sustained again for long enough.
        self.limit.is_rising &= self.creep_seconds < 2.0 * BURST_OVER_SECONDS;
    }

    /// Grows for that many seconds, with a speed that grows linearly.
    fn creep(&mut self, seconds: f64) {
        let (from, to) = (self.creep_seconds, self.creep_seconds + seconds);
        let grown = CREEP_PER_SECOND * (seconds + (to * to - from * from) / (2.0 * CREEP_DOUBLING_SECONDS));
        self.rate *= grown.exp();
        self.creep_seconds = to;
    }

    /// A request is sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.reset_after_idle(now);
        self.stretch.began.get_or_insert(now);
        self.stretch.sent += 1;
    }

    /// An admitted request was not sent.
    pub(super) fn unsent(&mut self) {
        self.stretch.sent = self.stretch.sent.saturating_sub(1);
    }

    /// A request has passed.
    pub(super) fn accepted(&mut self) {
        self.stretch.accepted += 1;
        self.pauses.passed = true;
        self.pauses.unnamed_wait.reset();
    }

    /// A request was refused that was sent after `cuts` cuts. Returns how long everything pauses.
    pub(super) fn refused(&mut self, now: Instant, retry_after: Option<Duration>, cuts: u64) -> Duration {
        let fresh = cuts == self.cuts;
        let fruitless = fresh && !self.pauses.passed;
        let pause = match retry_after {
            Some(retry_after) if fruitless => {
                retry_after.max((self.pauses.last * 2).min(MAX_FRUITLESS_PAUSE))
            }
            Some(retry_after) => retry_after,
            // Further refusals of one storm add nothing.
            None if !fresh => return self.left(now),
            None => self.pauses.unnamed_wait.next_wait(Retry::Later).unwrap_or(UNNAMED_WAIT.longest),
        };
        let until = now + pause;
        if self.paused_until.is_none_or(|standing| standing < until) {
            self.paused_until = Some(until);
        }
        if fresh {
            if !fruitless {
                self.cut(now, pause);
            }
            self.cuts += 1;
            self.stretch = RequestStretch::default();
            (self.pauses.passed, self.pauses.last) = (false, pause);
        }
        self.left(now)
    }

    fn left(&self, now: Instant) -> Duration {
        self.paused_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Starts a new stretch after an idle time, which says nothing about the limit.
    fn reset_after_idle(&mut self, now: Instant) {
        if self.wanted.is_none_or(|wanted| now.saturating_duration_since(wanted) > IDLE_GAP) {
            self.stretch = RequestStretch::default();
        }
    }

    fn cut(&mut self, now: Instant, pause: Duration) {
        let mut ceiling = self.rate;
        let RequestStretch { began, sent, accepted } = self.stretch;
        if let Some(began) = began {
            let elapsed = now.saturating_duration_since(began);
            if elapsed <= AVERAGING_LIMIT {
                // Not below the cut: few requests may have been sent because few were wanted.
                let average = sent as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
                ceiling = average.clamp(CUT_FACTOR * self.rate, self.rate);
            }
            let passed = accepted as f64 / (elapsed + pause).as_secs_f64() * LONG_MARGIN;
            if pause >= LONG_WINDOW && accepted >= LONG_WINDOW_MIN_PASSED && passed < CUT_FACTOR * self.rate {
                ceiling = passed;
            }
        }
        let ceiling = ceiling.max(self.setting * MIN_FRACTION);
        if self.creep_seconds >= BURST_OVER_SECONDS {
            self.limit.before_burst = if self.limit.is_rising { 0.0 } else { ceiling };
        }
        self.limit.is_rising = false;
        self.limit.ceiling = Some(ceiling);
        self.rate = (ceiling * CUT_FACTOR).max(self.setting * MIN_FRACTION);
        self.creep_seconds = 0.0;
    }
}

#[cfg(test)]
mod tests;
