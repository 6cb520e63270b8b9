//! The rule against simulated providers, step by step at chosen moments.

use std::collections::VecDeque;

use super::*;
use crate::api::budget::metered_rate::MeteredRate;

/// Seconds between two requests of a quiet time.
const QUIET_REQUEST_INTERVAL: u64 = 50;

/// A provider like the simulator: a number of requests in a window that starts with the first one; waits in whole seconds.
struct Window {
    most: u32,
    length: Duration,
    began: Option<Instant>,
    passed: u32,
}

impl Window {
    fn new(most: u32, seconds: f64) -> Self {
        Self { most, length: Duration::from_secs_f64(seconds), began: None, passed: 0 }
    }

    fn ask(&mut self, now: Instant) -> Result<(), Duration> {
        if self.began.is_none_or(|began| now >= began + self.length) {
            (self.began, self.passed) = (Some(now), 0);
        }
        if self.passed < self.most {
            self.passed += 1;
            return Ok(());
        }
        let left = self.began.unwrap() + self.length - now;
        Err(Duration::from_secs(left.as_secs_f64().ceil() as u64))
    }
}

/// Requests under endless demand, with delayed responses.
struct Run {
    start: Instant,
    rate: MeteredRate,
    answers: VecDeque<(Instant, Result<(), Duration>, u64)>,
    step: u64,
}

impl Run {
    fn new(setting: f64) -> Self {
        let start = Instant::now();
        let rate = MeteredRate::new(AdaptiveRate::new(setting, start, 7), 1.0, 0.1, start);
        Self { start, rate, answers: VecDeque::new(), step: 0 }
    }

    /// Few requests for this long.
    fn quiet(&mut self, seconds: u64, provider: &mut impl FnMut(Instant) -> Result<(), Duration>) {
        for second in (0..seconds).step_by(QUIET_REQUEST_INTERVAL as usize) {
            let now = self.start + Duration::from_secs(second);
            self.rate.adaptive.advance(now, false);
            self.rate.adaptive.sent(now);
            assert_eq!(provider(now), Ok(()));
            self.rate.adaptive.accepted();
        }
        self.step = seconds * 500;
    }

    /// Requests that pass in each second.
    fn busy(
        &mut self,
        seconds: usize,
        provider: &mut impl FnMut(Instant) -> Result<(), Duration>,
    ) -> Vec<u32> {
        let mut counts = vec![0; seconds];
        for step in 0..seconds * 500 {
            let now = self.start + Duration::from_millis(2 * self.step);
            self.step += 1;
            while self.answers.front().is_some_and(|(at, ..)| *at <= now) {
                match self.answers.pop_front() {
                    Some((_, Ok(()), _)) => self.rate.adaptive.accepted(),
                    Some((_, Err(told), cuts)) => drop(self.rate.adaptive.refused(now, Some(told), cuts)),
                    None => {}
                }
            }
            let is_paused = self.rate.rest(now).is_err();
            self.rate.adaptive.advance(now, !is_paused && step > 0);
            while !is_paused && self.rate.has_token(now).is_ok() {
                let cuts = self.rate.take(now);
                let answer = provider(now);
                counts[step / 500] += u32::from(answer.is_ok());
                self.answers.push_back((now + Duration::from_millis(5), answer, cuts));
            }
        }
        counts
    }
}

fn share(counts: &[u32], allowed: f64) -> f64 {
    f64::from(counts.iter().sum::<u32>()) / counts.len() as f64 / allowed
}

#[test]
fn the_rate_settles_within_a_tenth_of_the_limit() {
    for (most, seconds, settle, run) in [
        (50, 1.0, 20, 60),
        (100, 2.0, 30, 90),
        (10, 1.0, 25, 75),
        (100, 10.0, 40, 200),
        (600, 60.0, 120, 600),
    ] {
        let allowed = f64::from(most) / seconds;
        // The last one leaves a half-used window at the start.
        for quiet in [0, 3_600, 3_600 + QUIET_REQUEST_INTERVAL - (seconds / 2.0) as u64] {
            let mut window = Window::new(most, seconds);
            let mut scene = Run::new(allowed * 10.0);
            scene.quiet(quiet, &mut |now| window.ask(now));

            let counts = scene.busy(run, &mut |now| window.ask(now));

            let share = share(&counts[settle..], allowed);
            assert!((0.9..=1.1).contains(&share), "{most} in {seconds} s, {quiet}: {share:.3}: {counts:?}");
        }
    }
}

#[test]
fn ten_minutes_of_refusals_cut_the_rate_once() {
    let mut scene = Run::new(10.0);
    scene.busy(60, &mut |_| Ok(()));
    let mut asked = 0;
    scene.busy(600, &mut |_| {
        asked += 1;
        Err(Duration::from_secs(1))
    });
    assert!(asked < 100, "a provider that refuses everything was asked {asked} times");

    scene.busy(60, &mut |_| Ok(()));

    assert!(scene.rate.adaptive.ratio() >= 0.9, "{}", scene.rate.adaptive.ratio());
}

#[test]
fn the_rate_recovers_from_a_burst_within_a_minute() {
    for (name, every, told) in [("half", 2, 1), ("one in ten", 10, 2), ("half, long waits", 2, 5)] {
        let mut scene = Run::new(50.0);
        scene.busy(60, &mut |_| Ok(()));
        let mut asked = 0_u32;
        scene.busy(30, &mut |_| {
            asked += 1;
            if asked.is_multiple_of(every) { Err(Duration::from_secs(told)) } else { Ok(()) }
        });
        let deepest = scene.rate.adaptive.ratio();

        scene.busy(60, &mut |_| Ok(()));

        let ratio = scene.rate.adaptive.ratio();
        println!("{name}: {deepest:.3} of the setting after the burst, {ratio:.3} a minute later");
        assert!(deepest < 0.5 && ratio >= 0.9, "{name}: {deepest} {ratio}");
    }
}

#[test]
fn a_limit_raised_tenfold_is_used_after_15_minutes() {
    let mut window = Window::new(20, 1.0);
    let mut scene = Run::new(200.0);
    scene.busy(120, &mut |now| window.ask(now));
    window.most = 200;

    scene.busy(900, &mut |now| window.ask(now));

    let counts = scene.busy(60, &mut |now| window.ask(now));
    assert!(share(&counts, 200.0) > 0.9, "{counts:?}");
}

#[test]
fn a_limit_cut_to_a_tenth_is_soon_kept() {
    for (most, seconds, settle) in [(500, 1.0, 50), (600, 60.0, 200)] {
        let allowed = f64::from(most) / seconds / 10.0;
        let mut window = Window::new(most, seconds);
        let mut scene = Run::new(allowed * 10.0);
        scene.busy(120, &mut |now| window.ask(now));
        window.most /= 10;

        scene.busy(settle, &mut |now| window.ask(now));

        let counts = scene.busy(300, &mut |now| window.ask(now));
        let share = share(&counts, allowed);
        assert!((0.9..=1.1).contains(&share), "{most} in {seconds} s: {share:.3}: {counts:?}");
    }
}

#[test]
fn without_a_refusal_the_rate_reaches_the_setting_in_seconds() {
    let start = Instant::now();
    let mut adaptive = AdaptiveRate::new(200.0, start, 1);
    assert!(adaptive.rate <= 10.0);

    adaptive.advance(start + Duration::from_secs(5), true);

    assert!((adaptive.rate - 200.0).abs() < 1e-9, "{}", adaptive.rate);
    adaptive.advance(start + Duration::from_secs(500), true);
    assert!((adaptive.rate - 200.0).abs() < 1e-9, "{}", adaptive.rate);
    assert!((adaptive.ratio() - 1.0).abs() < 1e-9);
}

#[test]
fn a_long_pause_without_own_requests_cuts_no_deeper() {
    let start = Instant::now();
    let mut adaptive = AdaptiveRate::new(10.0, start, 1);
    let now = start + Duration::from_secs(9);
    adaptive.advance(now, true);
    adaptive.sent(now);

    adaptive.refused(now, Some(Duration::from_secs(600)), 0);

    assert!((adaptive.rate - 8.5).abs() < 1e-9, "{}", adaptive.rate);
}

#[test]
fn an_unused_rate_does_not_grow() {
    let start = Instant::now();
    let mut adaptive = AdaptiveRate::new(100.0, start, 1);
    let before = adaptive.rate;

    adaptive.advance(start + Duration::from_secs(60), false);

    assert!((adaptive.rate - before).abs() < 1e-9);
}

#[test]
fn refusals_of_one_storm_cut_once_and_pause_for_the_longest() {
    let start = Instant::now();
    let mut adaptive = AdaptiveRate::new(10.0, start, 1);
    adaptive.advance(start + Duration::from_secs(9), true);
    let now = start + Duration::from_secs(9);

    for told in [1, 3, 2] {
        adaptive.refused(now, Some(Duration::from_secs(told)), 0);
    }
    adaptive.refused(now, None, 0);

    assert!((adaptive.rate - 8.5).abs() < 1e-9, "{}", adaptive.rate);
    assert_eq!(adaptive.paused(now), Some(now + Duration::from_secs(3)));
    assert_eq!(adaptive.paused(now + Duration::from_secs(3)), None);
    // Nothing grows during the pause.
    adaptive.advance(now + Duration::from_secs(3), true);
    assert!((adaptive.rate - 8.5).abs() < 1e-9, "{}", adaptive.rate);
}

#[test]
fn a_fruitless_pause_doubles_up_to_30_s_and_cuts_nothing() {
    let mut now = Instant::now();
    let mut adaptive = AdaptiveRate::trusting(10.0, now, 1);
    let second = Duration::from_secs(1);

    let mut pauses = Vec::new();
    for _ in 0..7 {
        pauses.push(adaptive.refused(now, Some(second), adaptive.cuts).as_secs());
        now = adaptive.paused_until.unwrap();
    }

    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    assert!((adaptive.rate - 8.5).abs() < 1e-9, "{}", adaptive.rate);
    adaptive.accepted();
    assert_eq!(adaptive.refused(now, Some(second), adaptive.cuts), second);
    assert!(adaptive.rate < 8.0, "{}", adaptive.rate);
    let hour = Duration::from_secs(3_600);
    assert_eq!(adaptive.refused(now, Some(hour), adaptive.cuts), hour, "what is named is never shortened");
}

#[test]
fn a_new_share_scales_the_rate_and_a_new_setting_does_not() {
    let now = Instant::now();
    let mut adaptive = AdaptiveRate::trusting(5.0, now, 1);
    adaptive.refused(now, Some(Duration::from_secs(1)), 0);
    let found = adaptive.rate;

    adaptive.scale(2.0);
    assert!((adaptive.rate - found * 2.0).abs() < 1e-9);
    adaptive.set(100.0);
    assert!((adaptive.rate - found * 2.0).abs() < 1e-9);
    adaptive.set(1.0);

    assert!((adaptive.rate - 1.0).abs() < 1e-9);
}

#[test]
fn an_unnamed_wait_doubles_until_a_request_passes() {
    let start = Instant::now();
    let mut adaptive = AdaptiveRate::new(10.0, start, 1);
    let whole = |pause: Duration, seconds: u64| {
        (Duration::from_secs(seconds) / 2..=Duration::from_secs(seconds)).contains(&pause)
    };

    let pauses: Vec<_> = (0..8)
        .map(|cuts| {
            let now = adaptive.paused_until.unwrap_or(start);
            adaptive.refused(now, None, cuts)
        })
        .collect();

    for (pause, seconds) in pauses.iter().zip([1, 2, 4, 8, 16, 30, 30, 30]) {
        assert!(whole(*pause, seconds), "{pauses:?}");
    }
    adaptive.accepted();
    let now = adaptive.paused_until.unwrap();
    assert!(whole(adaptive.refused(now, None, 8), 1));
}
