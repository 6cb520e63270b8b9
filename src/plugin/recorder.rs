//! Measurements of a task, for Kafka Connect's task metrics.
//!
//! A class calls these once per batch; a measurement it never makes is not shown. Totals count since this worker first started
//! the task, through all restarts. Averages, extremes and rates cover two samples of 30 seconds, as Kafka's do: the last
//! 30 to 60 seconds.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Length of one sample of a [`Window`].
const SAMPLE_LENGTH: Duration = Duration::from_secs(30);

/// Records the measurements of a task. Cheap to clone; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    counted: Arc<Mutex<Counted>>,
}

impl Recorder {
    /// A batch of `records` was read from the source, which took this long.
    pub fn polled(&self, records: u64, took: Duration) {
        self.with(|counted, now| {
            counted.totals.polled += records;
            counted.polls.add(now, milliseconds(took));
            counted.batches.add(now, records as f64);
            counted.totals.active += records;
            counted.actives.add(now, counted.totals.active as f64);
        });
    }

    /// Kafka acknowledged or committed this many of those.
    pub fn written(&self, records: u64) {
        self.with(|counted, now| {
            counted.totals.written += records;
            counted.writes.add(now, records as f64);
            if records > 0 {
                counted.totals.last_record = Some(SystemTime::now());
            }
            counted.settle(now, records);
        });
    }

    /// This many of those will not be written, or will be read again first.
    pub fn dropped(&self, records: u64) {
        self.with(|counted, now| counted.settle(now, records));
    }

    /// Offsets were committed in a transaction with `records`, which took this long.
    pub fn committed(&self, records: u64, took: Duration) {
        self.with(|counted, now| {
            counted.commits.took.add(now, milliseconds(took));
            counted.commits.successes.add(now, 1.0);
            counted.commits.records.add(now, records as f64);
        });
    }

    /// A commit of offsets failed.
    pub fn commit_failed(&self) {
        self.with(|counted, now| counted.commits.successes.add(now, 0.0));
    }

    /// Counts an error that the task survives.
    pub fn erred(&self) {
        self.with(|counted, _| {
            counted.totals.errors.errors += 1;
            counted.totals.errors.last = Some(SystemTime::now());
        });
    }

    /// Counts an error that ends the task; the task runner logs it.
    pub fn failed(&self) {
        self.with(|counted, _| {
            counted.totals.errors.failures += 1;
            counted.totals.errors.logged += 1;
            counted.totals.errors.last = Some(SystemTime::now());
        });
    }

    /// A failed operation is retried.
    pub fn retried(&self) {
        self.with(|counted, _| counted.totals.errors.retries += 1);
    }

    /// A record was sent to the dead-letter topic; `written`: it arrived there.
    pub fn dead_letter(&self, written: bool) {
        self.with(|counted, _| {
            counted.totals.errors.dead_letters += 1;
            counted.totals.errors.dead_letter_failures += u64::from(!written);
        });
    }

    /// A shard of the task lags this far behind what was received.
    pub fn lags(&self, shard: i32, behind: Duration) {
        self.with(|counted, _| {
            counted.lags.insert(shard, behind);
        });
    }

    /// The task has no shards any more.
    pub fn clear_lags(&self) {
        self.with(|counted, _| {
            counted.lags.clear();
            counted.companies = None;
        });
    }

    /// The list of companies was read to its end, or the task has started reading it.
    pub fn companies_read(&self) {
        self.with(|counted, now| counted.companies = Some(now));
    }

    /// Time since then at `now`; `None` if the task does not read the list.
    pub fn companies_age(&self, now: Instant) -> Option<Duration> {
        self.counted.lock().companies.map(|read| now.saturating_duration_since(read))
    }

    /// The lag of each shard of the task.
    pub fn lag(&self) -> BTreeMap<i32, Duration> {
        self.counted.lock().lags.clone()
    }

    /// All measurements; `None` before the first one.
    pub fn measured(&self) -> Option<Measured> {
        let now = Instant::now();
        let counted = self.counted.lock();
        counted.is_used.then(|| Measured {
            totals: counted.totals,
            poll_rate: counted.batches.rate(now),
            write_rate: counted.writes.rate(now),
            actives: counted.actives.spread(now),
            polls: counted.polls.spread(now),
            batches: counted.batches.spread(now),
            commits: counted.commits.took.spread(now),
            commit_success: counted.commits.successes.spread(now).map(|spread| spread.average),
            transactions: counted.commits.records.spread(now),
        })
    }

    fn with(&self, change: impl FnOnce(&mut Counted, Instant)) {
        let mut counted = self.counted.lock();
        counted.is_used = true;
        change(&mut counted, Instant::now());
    }
}

/// The measurements of a task. Times are in milliseconds; rates and spreads cover the last minute and are `None` without a
/// measurement in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Counted since this worker first started the task.
    pub totals: TaskTotals,
    /// Records read a second.
    pub poll_rate: Option<f64>,
    /// Records acknowledged a second.
    pub write_rate: Option<f64>,
    /// Records read and not acknowledged.
    pub actives: Option<Spread>,
    /// Time to read a batch.
    pub polls: Option<Spread>,
    /// Records of a batch.
    pub batches: Option<Spread>,
    /// Time to commit offsets.
    pub commits: Option<Spread>,
    /// Share of the commits that succeeded, from 0 to 1.
    pub commit_success: Option<f64>,
    /// Records of a transaction.
    pub transactions: Option<Spread>,
}

/// Counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskTotals {
    /// Records read.
    pub polled: u64,
    /// Records acknowledged.
    pub written: u64,
    /// Records read and not acknowledged.
    pub active: u64,
    /// Errors.
    pub errors: Errors,
    /// When a record was last acknowledged.
    pub last_record: Option<SystemTime>,
}

/// Errors, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Errors {
    /// Errors that ended the task.
    pub failures: u64,
    /// Errors after which the task continued.
    pub errors: u64,
    /// Records skipped: always 0, since a record that cannot be written becomes a dead letter. Kafka Connect has the metric.
    pub skipped: u64,
    /// Operations retried.
    pub retries: u64,
    /// Errors logged.
    pub logged: u64,
    /// Records sent to the dead-letter topic.
    pub dead_letters: u64,
    /// Records that the dead-letter topic did not take.
    pub dead_letter_failures: u64,
    /// Time of the last error.
    pub last: Option<SystemTime>,
}

/// Smallest, largest and average of the measured values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Smallest.
    pub least: f64,
    /// Largest.
    pub most: f64,
    /// Average.
    pub average: f64,
}

#[derive(Debug, Default)]
struct Counted {
    is_used: bool,
    totals: TaskTotals,
    polls: Window,
    batches: Window,
    writes: Window,
    actives: Window,
    commits: CommitWindows,
    lags: BTreeMap<i32, Duration>,
    companies: Option<Instant>,
}

#[derive(Debug, Default)]
struct CommitWindows {
    took: Window,
    /// 1 for a success, 0 for a failure.
    successes: Window,
    records: Window,
}

impl Counted {
    fn settle(&mut self, now: Instant, records: u64) {
        self.totals.active = self.totals.active.saturating_sub(records);
        self.actives.add(now, self.totals.active as f64);
    }
}

/// Measurements of the current sample and of the one before it.
#[derive(Debug, Default)]
struct Window {
    before: Option<RecordedSample>,
    present: Option<RecordedSample>,
}

#[derive(Debug, Clone, Copy)]
struct RecordedSample {
    started: Instant,
    count: u64,
    sum: f64,
    least: f64,
    most: f64,
}

impl Window {
    fn add(&mut self, now: Instant, value: f64) {
        if self.present.is_none_or(|sample| now.saturating_duration_since(sample.started) >= SAMPLE_LENGTH) {
            self.before = self.present.take();
        }
        let new = RecordedSample { started: now, count: 0, sum: 0.0, least: value, most: value };
        let sample = self.present.get_or_insert(new);
        sample.count += 1;
        sample.sum += value;
        sample.least = sample.least.min(value);
        sample.most = sample.most.max(value);
    }

    /// Samples that are recent enough.
    fn samples(&self, now: Instant) -> impl Iterator<Item = &RecordedSample> {
        let fresh =
            move |sample: &&RecordedSample| now.saturating_duration_since(sample.started) < 2 * SAMPLE_LENGTH;
        self.before.iter().chain(&self.present).filter(fresh)
    }

    fn spread(&self, now: Instant) -> Option<Spread> {
        let all = self.samples(now).copied().reduce(|one, other| RecordedSample {
            started: one.started,
            count: one.count + other.count,
            sum: one.sum + other.sum,
            least: one.least.min(other.least),
            most: one.most.max(other.most),
        })?;
        Some(Spread { least: all.least, most: all.most, average: all.sum / all.count as f64 })
    }

    /// The sum per second. A new window counts as one whole sample, so that a first batch is no peak.
    fn rate(&self, now: Instant) -> Option<f64> {
        self.present?;
        let started = self.samples(now).map(|sample| sample.started).min();
        let lasted = started
            .map_or(SAMPLE_LENGTH, |started| now.saturating_duration_since(started).max(SAMPLE_LENGTH));
        Some(self.samples(now).map(|sample| sample.sum).sum::<f64>() / lasted.as_secs_f64())
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_recorder_shows_nothing() {
        assert_eq!(Recorder::default().measured(), None);
    }

    #[test]
    fn age_of_the_company_list_resets_when_it_is_read() {
        let recorder = Recorder::default();
        let later = Instant::now() + Duration::from_secs(90);
        assert_eq!(recorder.companies_age(later), None);

        recorder.companies_read();
        let age = recorder.companies_age(later).unwrap();
        assert!((1..=90).contains(&age.as_secs()), "{age:?}");
        recorder.companies_read();
        assert!(recorder.companies_age(later).unwrap() <= age, "it was read again");

        recorder.clear_lags();
        assert_eq!(recorder.companies_age(later), None);
    }

    #[test]
    fn record_is_active_until_it_is_written_or_dropped() {
        let recorder = Recorder::default();
        recorder.polled(5, Duration::from_millis(8));
        recorder.polled(3, Duration::from_millis(2));
        recorder.written(4);
        recorder.dropped(1);
        recorder.committed(4, Duration::from_millis(20));
        recorder.commit_failed();

        let measured = recorder.measured().unwrap();

        assert_eq!((measured.totals.polled, measured.totals.written, measured.totals.active), (8, 4, 3));
        let actives = measured.actives.unwrap();
        assert_eq!((actives.least, actives.most), (3.0, 8.0));
        assert_eq!(
            measured.polls.map(|polls| (polls.least, polls.most, polls.average)),
            Some((2.0, 8.0, 5.0))
        );
        assert_eq!(measured.batches.unwrap().average, 4.0);
        assert_eq!(measured.commits.unwrap().most, 20.0);
        assert_eq!(measured.commit_success, Some(0.5));
        assert_eq!(measured.transactions.unwrap().least, 4.0);
        assert!(measured.totals.last_record.is_some() && measured.totals.errors == Errors::default());
    }

    #[test]
    fn errors_are_counted_by_outcome() {
        let recorder = Recorder::default();
        recorder.erred();
        recorder.retried();
        recorder.failed();
        recorder.dead_letter(true);
        recorder.dead_letter(false);

        let errors = recorder.measured().unwrap().totals.errors;

        assert_eq!((errors.errors, errors.failures, errors.retries), (1, 1, 1));
        assert_eq!((errors.logged, errors.dead_letters, errors.dead_letter_failures), (1, 2, 1));
        assert!(errors.last.is_some());
    }

    #[test]
    fn window_drops_samples_older_than_two_periods() {
        let started = Instant::now();
        let at = |seconds| started + Duration::from_secs(seconds);
        let mut window = Window::default();
        assert_eq!((window.spread(at(0)), window.rate(at(0))), (None, None));

        window.add(at(0), 60.0);
        assert_eq!(window.rate(at(1)), Some(2.0), "over a whole sample");
        window.add(at(31), 30.0);
        assert_eq!(window.spread(at(40)), Some(Spread { least: 30.0, most: 60.0, average: 45.0 }));
        assert_eq!(window.rate(at(45)), Some(2.0));

        assert_eq!(window.spread(at(61)).unwrap().most, 30.0);
        assert_eq!((window.spread(at(100)), window.rate(at(100))), (None, Some(0.0)));
    }
}
