//! The senders' record: which deliveries were sent and answered, and when.
//!
//! A delivery is one [`Entry`], however often it was sent: a repetition has the same id. All times are of one clock, so that the
//! judge knows whether a delivery was acknowledged before another was sent. A test that stops a receiver calls
//! [`Ledger::receiver_stops`] before and [`Ledger::receiver_listens`] after it is back; outside of these times every sending must be
//! answered.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::delivery::Id;

/// The provider ignores later answers.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// One delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: Id,
    pub(crate) company: Id,
    /// When it was first sent.
    pub(crate) sent: Duration,
    /// When it was first answered 2xx in time; from then on it must not be lost.
    pub(crate) acknowledged: Option<Duration>,
}

/// How one sending of a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A status: the time to it, that time without what the machine lost, and whether it is not [`Figures::improper`].
    Status { status: u16, took: Duration, own: Duration, proper: bool },
    /// The connection was refused, after this time.
    Refused(Duration),
    /// The connection broke before an answer, after this time.
    Broken(Duration),
    /// No answer came, in this time without what the machine lost.
    Silent(Duration),
}

/// All deliveries of a run. Senders share it.
#[derive(Debug)]
pub(crate) struct Ledger {
    began: Instant,
    records: Mutex<LedgerRecords>,
}

#[derive(Debug, Default)]
struct LedgerRecords {
    entries: Vec<Entry>,
    figures: Figures,
    /// When the receiver was stopped, from and to; the last period may still last.
    away: Vec<(Duration, Option<Duration>)>,
}

/// Answers by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// By status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Longest time to an answer of that status.
    pub(crate) worst: BTreeMap<u16, Duration>,
    /// Sendings whose connection was refused.
    pub(crate) refused: u64,
    /// Sendings whose connection broke.
    pub(crate) broken: u64,
    /// Refused and broken sendings that began and ended while the receiver listened.
    pub(crate) unanswered: u64,
    /// Sendings that were answered after [`LIMIT`], or not at all.
    pub(crate) late: u64,
    /// Late ones that lost CPU time does not explain.
    pub(crate) slow: u64,
    /// Answers with a body or a cookie, and 503 without Retry-After.
    pub(crate) improper: u64,
}

impl Ledger {
    /// An empty ledger, whose clock starts now.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), records: Mutex::default() }
    }

    /// Records a delivery that is about to be sent for the first time; its index.
    pub(crate) fn sent(&self, id: Id, company: Id) -> usize {
        let mut records = self.records();
        records.entries.push(Entry { id, company, sent: self.began.elapsed(), acknowledged: None });
        records.entries.len() - 1
    }

    /// Records how a sending of the delivery at this index ended; whether it counts as delivered.
    pub(crate) fn answered(&self, index: usize, answer: Answer) -> bool {
        let now = self.began.elapsed();
        let mut records = self.records();
        let done = records.figures.count(answer);
        if let Answer::Refused(took) | Answer::Broken(took) = answer {
            let overlaps = |(from, to): &(Duration, Option<Duration>)| {
                *from <= now && to.is_none_or(|to| now.saturating_sub(took) < to)
            };
            let excused = records.away.iter().any(overlaps);
            records.figures.unanswered += u64::from(!excused);
        }
        if done {
            records.entries[index].acknowledged.get_or_insert(now);
        }
        done
    }

    /// The receiver is about to stop: sendings that are in flight or start from now on need no answer.
    pub(crate) fn receiver_stops(&self) {
        let now = self.began.elapsed();
        self.records().away.push((now, None));
    }

    /// The receiver listens again.
    pub(crate) fn receiver_listens(&self) {
        let now = self.began.elapsed();
        if let Some((_, to)) = self.records().away.last_mut() {
            to.get_or_insert(now);
        }
    }

    /// Answers so far.
    pub(crate) fn figures(&self) -> Figures {
        self.records().figures.clone()
    }

    /// Deliveries acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.records().figures.delivered()
    }

    /// All deliveries so far.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.records().entries.clone()
    }

    fn records(&self) -> MutexGuard<'_, LedgerRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Figures {
    fn count(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Status { status, took, own, proper } => {
                *self.statuses.entry(status).or_default() += 1;
                let worst = self.worst.entry(status).or_default();
                *worst = took.max(*worst);
                self.late += u64::from(took >= LIMIT);
                self.slow += u64::from(own >= LIMIT);
                self.improper += u64::from(!proper);
                return (200..300).contains(&status) && took < LIMIT;
            }
            Answer::Refused(_) => self.refused += 1,
            Answer::Broken(_) => self.broken += 1,
            Answer::Silent(own) => {
                self.late += 1;
                self.slow += u64::from(own >= LIMIT);
            }
        }
        false
    }

    /// How often this status was answered.
    pub(crate) fn status(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or_default()
    }

    /// Sendings answered with success.
    pub(crate) fn delivered(&self) -> u64 {
        self.statuses.range(200..300).map(|(_, count)| count).sum()
    }

    /// Longest time to any answer.
    pub(crate) fn worst(&self) -> Duration {
        self.worst.values().copied().max().unwrap_or_default()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (status, count) in &self.statuses {
            let worst = self.worst.get(status).copied().unwrap_or_default();
            write!(f, "{count} answered {status} (worst {:.0} ms), ", worst.as_secs_f64() * 1000.0)?;
        }
        let Self { refused, broken, unanswered, late, slow, improper, .. } = self;
        write!(
            f,
            "{refused} refused connections, {broken} broken, {unanswered} of these while the receiver listened, {late} late or \
             silent, {slow} of these not explained by lost CPU time, {improper} improper"
        )
    }
}
