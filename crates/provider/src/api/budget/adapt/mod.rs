//! The rate that the provider bears, found out by trying: it is documented nowhere.
//!
//! The rule, for the application and for each company alike:
//! 1. Begin with a part of the setting and double each second, until the first refusal (429, or a quota's 403).
//! 2. A refusal stops everything for the time that the provider names, or for a growing one where it names none, and cuts the
//!    rate to 85% of what was refused.
//! 3. Come back within seconds to 93% of what was refused, then creep on: a speed that grows with the time without a refusal,
//!    so that any distance up to the setting is a matter of minutes. A limit that stands is touched about once a minute.
//! 4. A long window (the provider names five seconds or more) tells its rate by what it let pass: the rate goes there at once.
//! 5. Refusals that follow each other closely may be a burst. If the rate before them was borne for [`QUIET`], then after so long
//!    without a refusal it doubles every [`RISE_DOUBLES`] until it is back at 93% of that. Where this is refused too, the lower
//!    limit stands, and the rate creeps from there.
//! 6. A refusal after which nothing had passed says nothing about the rate: its pause is twice the last one, and nothing is cut.
//!
//! - One pause, one cut: refusals of requests that were sent before the cut only lengthen the pause.
//! - The rate grows only while somebody waits for it: what was never tried is not known to be allowed. For the same reason
//!   what passed is counted only over a stretch in which somebody waited all the time: a quiet day says nothing about a limit.
//!
//! Under endless demand, setting ten times the limit, told in whole seconds (the tests of this module hold these):
//!
//! | allowed | of it used | the same after an hour at 0.02/s |
//! |---|---|---|
//! | 50 in 1 s | 0.95 | 0.95 |
//! | 100 in 2 s | 0.95 | 0.95 |
//! | 10 in 1 s | 0.95 | 0.95 |
//! | 100 in 10 s | 0.96 | 0.96 |
//! | 600 in 60 s | 0.99 | 0.99 |
//!
//! Ten minutes of nothing but refusals, then none: 93% of the setting after half a minute at most. Half a minute in which every
//! second request is refused, then none: 93% of the rate before it within a minute. A limit raised tenfold is
//! used after 11 minutes; one cut to a tenth is kept to after half a minute, or at the second refusal of a long window.

use std::time::Duration;

use tokio::time::Instant;

use base::retry::{Backoff, BackoffPolicy, Retry};

/// Of the setting, for the first second.
const FIRST: f64 = 0.05;
/// Requests a second to begin with at least, unless the setting is lower.
const FIRST_AT_LEAST: f64 = 1.0;
/// What a refusal leaves of the rate.
const CUT: f64 = 0.85;
/// Of the refused rate, each second, until it is nearly reached.
const RETURN: f64 = 0.2;
/// Of the refused rate: near enough.
const NEAR: f64 = 0.93;
/// Of the rate, each second, beyond that; twice as much after [`CREEP_DOUBLES`], three times after twice that.
const CREEP: f64 = 0.0005;
/// Seconds of creeping after which it has become twice as quick.
const CREEP_DOUBLES: f64 = 60.0;
/// Seconds of creeping after which a burst of refusals is over.
const QUIET: f64 = 15.0;
/// Seconds in which the rate doubles on its way back after a burst: from its least to the setting in 27.
const RISE_DOUBLES: f64 = 4.0;
/// What was sent within so long after a pause tells the refused rate better than the rate of its last moment.
const AVERAGED: Duration = Duration::from_secs(10);
/// A named wait from which on what passed before tells the rate.
const LONG_WINDOW: Duration = Duration::from_secs(5);
/// Fewer than this tell nothing: others may have used the window up.
const LONG_LEAST: u64 = 5;
/// What passed in a long window may be a little less than was allowed.
const LONG_MARGIN: f64 = 1.1;
/// No rate is cut below this part of the setting: at least something must pass to learn from.
const LEAST: f64 = 0.01;
/// Nobody waited for so long: what comes now is another stretch.
const STILL: Duration = Duration::from_secs(1);
/// A pause that is doubled because nothing passes does not become longer than this by itself.
const LONGEST_FRUITLESS: Duration = Duration::from_secs(30);
/// Where the provider refuses and names no wait.
const UNTOLD: BackoffPolicy =
    BackoffPolicy { first: Duration::from_secs(1), longest: LONGEST_FRUITLESS, total: None };

/// The rate of now.
#[derive(Debug)]
pub(super) struct Adapt {
    setting: f64,
    /// Requests a second.
    pub(super) rate: f64,
    /// The rate at the last refusal.
    ceiling: Option<f64>,
    /// The rate that was borne until the first refusal of the last burst; 0 where none was, or it was refused again.
    before_burst: f64,
    /// Whether the rate is on its way back there.
    rises: bool,
    /// When the rate was last brought up to date.
    at: Instant,
    /// When the last pause ended or will end.
    pub(super) paused_until: Option<Instant>,
    /// How often it was cut, which a request takes along: a refusal belongs to the cut after its request.
    pub(super) cuts: u64,
    /// When somebody last waited for the rate.
    wanted: Option<Instant>,
    /// When the first request of this stretch was let through.
    began: Option<Instant>,
    /// Requests let through since then.
    sent: u64,
    /// Those of them that were answered and not refused.
    accepted: u64,
    /// Whether anything was since the last refusal.
    passed: bool,
    /// How long the last pause was.
    pause: Duration,
    /// Seconds without a refusal, at the setting or creeping.
    crept: f64,
    untold: Backoff,
}

impl Adapt {
    /// Nothing known yet: it is found out from below.
    pub(super) fn new(setting: f64, now: Instant, seed: u64) -> Self {
        let rate = (setting * FIRST).max(FIRST_AT_LEAST).min(setting);
        Self { rate, ..Self::trusting(setting, now, seed) }
    }

    /// All of the setting, until it is refused.
    pub(super) fn trusting(setting: f64, now: Instant, seed: u64) -> Self {
        Self {
            setting,
            rate: setting,
            ceiling: None,
            before_burst: 0.0,
            rises: false,
            at: now,
            paused_until: None,
            cuts: 0,
            wanted: None,
            began: None,
            sent: 0,
            accepted: 0,
            passed: true,
            pause: Duration::ZERO,
            crept: 0.0,
            untold: Backoff::new(UNTOLD, seed),
        }
    }

    /// As a part of the setting; all of it as long as nothing was refused.
    pub(super) fn ratio(&self) -> f64 {
        if self.ceiling.is_none() { 1.0 } else { self.rate / self.setting }
    }

    /// Whether it has learnt anything that is worth keeping.
    pub(super) fn is_untouched(&self) -> bool {
        self.ceiling.is_none()
    }

    /// Until when nothing may be sent.
    pub(super) fn paused(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| now < *until)
    }

    /// Another setting, because it was configured otherwise. What the provider bears has not changed by that.
    pub(super) fn set(&mut self, setting: f64) {
        self.setting = setting;
        self.rate = self.rate.clamp(setting * LEAST, setting);
    }

    /// Another part of what the provider bears is ours, so everything known about it is so much more or less.
    pub(super) fn scale(&mut self, by: f64) {
        self.setting *= by;
        self.rate *= by;
        self.ceiling = self.ceiling.map(|ceiling| ceiling * by);
        self.before_burst *= by;
    }

    /// Lets time pass. `wanted` tells whether somebody waited for the rate meanwhile.
    pub(super) fn advance(&mut self, now: Instant, wanted: bool) {
        let from = self.paused_until.map_or(self.at, |until| until.max(self.at));
        let mut left = now.saturating_duration_since(from).as_secs_f64();
        self.at = now.max(self.at);
        if !wanted {
            return;
        }
        self.begin_anew_after_rest(now);
        self.wanted = Some(now);
        if left <= 0.0 {
            return;
        }
        let Some(ceiling) = self.ceiling else {
            self.crept += if self.rate < self.setting { 0.0 } else { left };
            self.rate = (self.rate * left.min(60.0).exp2()).min(self.setting);
            return;
        };
        let near = ceiling * NEAR;
        if self.rate < near {
            let needed = (near - self.rate) / (ceiling * RETURN);
            let returned = left.min(needed);
            self.rate += ceiling * RETURN * returned;
            left -= returned;
        }
        let slowly = left.min((QUIET - self.crept).max(0.0));
        self.creep(slowly);
        left -= slowly;
        let back = (self.before_burst * NEAR).min(self.setting);
        if left > 0.0 && self.rate < back {
            let risen = left.min((back / self.rate).log2() * RISE_DOUBLES);
            self.rate *= (risen / RISE_DOUBLES).exp2();
            left -= risen;
            self.rises = true;
        }
        self.creep(left);
        self.rate = self.rate.min(self.setting);
        // It was borne again for long enough.
        self.rises &= self.crept < 2.0 * QUIET;
    }

    /// Grows for so many seconds by the sum of a speed that grows evenly.
    fn creep(&mut self, seconds: f64) {
        let (from, to) = (self.crept, self.crept + seconds);
        let grown = CREEP * (seconds + (to * to - from * from) / (2.0 * CREEP_DOUBLES));
        self.rate *= grown.exp();
        self.crept = to;
    }

    /// A request is let through.
    pub(super) fn sent(&mut self, now: Instant) {
        self.begin_anew_after_rest(now);
        self.began.get_or_insert(now);
        self.sent += 1;
    }

    /// One that was let through was not sent after all.
    pub(super) fn unsent(&mut self) {
        self.sent = self.sent.saturating_sub(1);
    }

    /// A request was answered and not refused.
    pub(super) fn accepted(&mut self) {
        self.accepted += 1;
        self.passed = true;
        self.untold.reset();
    }

    /// A request was refused that was let through after so many cuts. How long everything stops.
    pub(super) fn refused(&mut self, now: Instant, told: Option<Duration>, cuts: u64) -> Duration {
        let fresh = cuts == self.cuts;
        let fruitless = fresh && !self.passed;
        let pause = match told {
            Some(told) if fruitless => told.max((self.pause * 2).min(LONGEST_FRUITLESS)),
            Some(told) => told,
            // The others of one storm add nothing to what the first has made of it.
            None if !fresh => return self.left(now),
            None => self.untold.next_wait(Retry::Later).unwrap_or(UNTOLD.longest),
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
            self.began = None;
            (self.sent, self.accepted) = (0, 0);
            (self.passed, self.pause) = (false, pause);
        }
        self.left(now)
    }

    fn left(&self, now: Instant) -> Duration {
        self.paused_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// What was sent while hardly anybody wanted anything does not tell what may be sent.
    fn begin_anew_after_rest(&mut self, now: Instant) {
        if self.wanted.is_none_or(|wanted| now.saturating_duration_since(wanted) > STILL) {
            self.began = None;
            (self.sent, self.accepted) = (0, 0);
        }
    }

    fn cut(&mut self, now: Instant, pause: Duration) {
        let mut ceiling = self.rate;
        if let Some(began) = self.began {
            let elapsed = now.saturating_duration_since(began);
            if elapsed <= AVERAGED {
                // No lower than the cut: few may have been sent because few were wanted.
                let average = self.sent as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
                ceiling = average.clamp(CUT * self.rate, self.rate);
            }
            let passed = self.accepted as f64 / (elapsed + pause).as_secs_f64() * LONG_MARGIN;
            if pause >= LONG_WINDOW && self.accepted >= LONG_LEAST && passed < CUT * self.rate {
                ceiling = passed;
            }
        }
        let ceiling = ceiling.max(self.setting * LEAST);
        if self.crept >= QUIET {
            self.before_burst = if self.rises { 0.0 } else { ceiling };
        }
        self.rises = false;
        self.ceiling = Some(ceiling);
        self.rate = (ceiling * CUT).max(self.setting * LEAST);
        self.crept = 0.0;
    }
}

#[cfg(test)]
mod tests;
