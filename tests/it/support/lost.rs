//! Time that a busy machine took away: no limit of a test counts it.
//!
//! Two figures are kept, and the larger one counts.
//!
//! - The kernel's own: `total` of `/proc/pressure/cpu` grows while at least one runnable task of the machine waits for a CPU. A thread
//!   samples it; between two samples it is interpolated.
//! - How late that thread wakes up. This also shows time that a hypervisor took from the machine, and is the only figure where the
//!   kernel has no pressure figures.
//!
//! On a fully loaded machine nearly all time is lost by the first figure. [`fair`] therefore counts at least one part in [`LONGEST`]
//! of the wall time, so that a hang fails there, too.

use std::{
    collections::VecDeque,
    fs,
    pin::pin,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Interval between two wake-ups of the watching thread, and how late a wake-up may be before its delay counts.
const TICK: Duration = Duration::from_millis(10);
const LATE: Duration = Duration::from_millis(20);
/// Late wake-ups that are kept.
const MOST_SPANS: usize = 100_000;
/// Interval between two samples of the kernel's figure.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// Samples that are kept: nearly three hours of them. Time before the oldest counts as not lost.
const MOST_SAMPLES: usize = 200_000;
/// A limit lasts at most this many times its length, however busy the machine is.
pub(crate) const LONGEST: u32 = 10;
/// A promise may take at most this many times its length.
const PROMISE_STRETCH: u32 = 2;

static LOST: Mutex<LostTime> =
    Mutex::new(LostTime { spans: VecDeque::new(), due: None, samples: VecDeque::new() });
static WATCHING: Once = Once::new();

struct LostTime {
    /// Late wake-ups: when each was due, and when it came.
    spans: VecDeque<(Instant, Instant)>,
    /// When the next wake-up is due: it may be late already.
    due: Option<Instant>,
    /// The kernel's figure and when it was read, oldest first.
    samples: VecDeque<(Instant, Duration)>,
}

impl LostTime {
    /// Reads the kernel's figure, unless the last sample is recent.
    fn sample(&mut self) {
        let now = Instant::now();
        let is_recent = |(at, _): &(Instant, Duration)| now.saturating_duration_since(*at) < SAMPLE_INTERVAL;
        if self.samples.back().is_some_and(is_recent) {
            return;
        }
        let Some(pressure) = pressure() else { return };
        if self.samples.len() == MOST_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, pressure));
    }
}

/// Starts to keep both figures.
pub(crate) fn watch() {
    WATCHING.call_once(|| {
        // Without the thread nothing counts as lost, and limits are wall time.
        let _unwatched = thread::Builder::new().name("lost".to_owned()).spawn(|| {
            loop {
                {
                    let mut lost = locked();
                    lost.sample();
                    lost.due = Some(Instant::now() + TICK);
                }
                thread::sleep(TICK);
                let mut lost = locked();
                let span = lost.due.take().and_then(|due| late(due, Instant::now()));
                if lost.spans.len() == MOST_SPANS {
                    lost.spans.pop_front();
                }
                lost.spans.extend(span);
            }
        });
    });
}

fn locked() -> MutexGuard<'static, LostTime> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn late(due: Instant, now: Instant) -> Option<(Instant, Instant)> {
    (now.saturating_duration_since(due) > LATE).then_some((due, now))
}

/// How long runnable tasks have waited for a CPU since the machine started; `None` where the kernel has no such figure.
pub(crate) fn pressure() -> Option<Duration> {
    parse_pressure(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

/// Separate from [`pressure`] for tests on kernels without the figure.
pub(crate) fn parse_pressure(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

/// The kernel's figure at a moment, interpolated between the samples around it; outside of them that of the nearest.
pub(crate) fn pressure_at(samples: &VecDeque<(Instant, Duration)>, moment: Instant) -> Duration {
    let next = samples.partition_point(|(at, _)| *at <= moment);
    let before = next.checked_sub(1).and_then(|last| samples.get(last));
    match (before, samples.get(next)) {
        (Some((from, low)), Some((to, high))) => {
            let share = moment.saturating_duration_since(*from).as_secs_f64()
                / to.saturating_duration_since(*from).as_secs_f64();
            *low + high.saturating_sub(*low).mul_f64(share)
        }
        (Some((_, nearest)), None) | (None, Some((_, nearest))) => *nearest,
        (None, None) => Duration::ZERO,
    }
}

/// Time that was lost between two moments.
pub(crate) fn between(from: Instant, to: Instant) -> Duration {
    let mut lost = locked();
    // The thread that samples may itself be waiting for a CPU.
    if !lost.samples.is_empty() {
        lost.sample();
    }
    let last = lost.due.and_then(|due| late(due, to));
    let spans = last.iter().chain(lost.spans.iter().rev().take_while(|(_, end)| *end > from));
    let late: Duration =
        spans.map(|(begin, end)| (*end).min(to).saturating_duration_since((*begin).max(from))).sum();
    let waited = pressure_at(&lost.samples, to).saturating_sub(pressure_at(&lost.samples, from));
    late.max(waited).min(to.saturating_duration_since(from))
}

/// Time since a moment as limits count it: without the time that was lost, but at least one part in [`LONGEST`] of the wall time.
pub(crate) fn fair(began: Instant) -> Duration {
    let now = Instant::now();
    counted(now.saturating_duration_since(began), between(began, now))
}

/// Time since a moment as a promise counts it, such as an answer within 5 s: as [`fair`], but at least half of the wall time. The
/// worker itself keeps the machine busy, which is no excuse for a slow answer.
pub(crate) fn promised(began: Instant) -> Duration {
    let took = began.elapsed();
    fair(began).max(took / PROMISE_STRETCH)
}

/// The wall time after which a promise is broken in any case.
pub(crate) const fn promised_longest(limit: Duration) -> Duration {
    limit.saturating_mul(PROMISE_STRETCH)
}

/// The part of a span of wall time that counts, given how much of it was lost.
pub(crate) fn counted(took: Duration, lost: Duration) -> Duration {
    took.saturating_sub(lost).max(took / LONGEST)
}

/// The wall time after which a limit is over in any case: for calls that take a wall-clock timeout.
pub(crate) const fn longest(limit: Duration) -> Duration {
    limit.saturating_mul(LONGEST)
}

/// As [`tokio::time::timeout`], by [`fair`] time; `None` where the limit is over.
pub(crate) async fn timeout<Waiting: Future>(limit: Duration, waiting: Waiting) -> Option<Waiting::Output> {
    let began = Instant::now();
    let mut waiting = pin!(waiting);
    let mut left = limit;
    loop {
        if let Ok(output) = tokio::time::timeout(left, waiting.as_mut()).await {
            return Some(output);
        }
        left = limit.saturating_sub(fair(began));
        if left.is_zero() {
            return None;
        }
    }
}
