//! What was sent, what was answered, and when: the senders' side of the story.
//!
//! A delivery is one [`Entry`], however often it was sent: a repetition has the same id. Times are those of one clock, so
//! that whoever judges knows which of two deliveries was acknowledged before the other was sent at all. Whoever ends a receiver
//! says so before ([`Ledger::nobody_listens`]), and when it is back: every sending between those times must be answered.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::delivery::Id;

/// The provider takes later answers for none.
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
    /// This status, after this time; how much of it the machine did not take away; proper as [`Figures::improper`] means it.
    Status { status: u16, took: Duration, own: Duration, proper: bool },
    /// Nobody listened, which was known after this time.
    Refused(Duration),
    /// The connection broke before an answer, after this time.
    Broken(Duration),
    /// No answer came, for this long without what the machine took away.
    Silent(Duration),
}

/// All deliveries of a run. Senders share it.
#[derive(Debug)]
pub(crate) struct Ledger {
    began: Instant,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    entries: Vec<Entry>,
    figures: Figures,
    /// When nobody listened, from and to; the last may go on.
    away: Vec<(Duration, Option<Duration>)>,
}

/// Answers by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// By status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Longest time to an answer of that status.
    pub(crate) worst: BTreeMap<u16, Duration>,
    /// Sendings that found nobody.
    pub(crate) refused: u64,
    /// Sendings whose connection broke.
    pub(crate) broken: u64,
    /// Those of both kinds that began and ended while somebody listened.
    pub(crate) unanswered: u64,
    /// Sendings that were answered too late for the provider, or not at all.
    pub(crate) late: u64,
    /// Those of them that lost CPU time does not explain.
    pub(crate) slow: u64,
    /// Answers with a body or a cookie, and 503 without Retry-After.
    pub(crate) improper: u64,
}

impl Ledger {
    /// An empty one, whose clock starts now.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), pages: Mutex::default() }
    }

    /// A delivery is about to be sent for the first time; the number is its place in this book.
    pub(crate) fn sent(&self, id: Id, company: Id) -> usize {
        let mut pages = self.pages();
        pages.entries.push(Entry { id, company, sent: self.began.elapsed(), acknowledged: None });
        pages.entries.len() - 1
    }

    /// A sending of the delivery at this place has ended; whether that counts as delivered.
    pub(crate) fn answered(&self, place: usize, answer: Answer) -> bool {
        let now = self.began.elapsed();
        let mut pages = self.pages();
        let done = pages.figures.count(answer);
        if let Answer::Refused(took) | Answer::Broken(took) = answer {
            let overlaps = |(from, to): &(Duration, Option<Duration>)| {
                *from <= now && to.is_none_or(|to| now.saturating_sub(took) < to)
            };
            let excused = pages.away.iter().any(overlaps);
            pages.figures.unanswered += u64::from(!excused);
        }
        if done {
            pages.entries[place].acknowledged.get_or_insert(now);
        }
        done
    }

    /// The receiver is about to end: nobody has to answer what is on its way now, or is sent from here on.
    pub(crate) fn nobody_listens(&self) {
        let now = self.began.elapsed();
        self.pages().away.push((now, None));
    }

    /// The receiver listens again.
    pub(crate) fn somebody_listens(&self) {
        let now = self.began.elapsed();
        if let Some((_, to)) = self.pages().away.last_mut() {
            to.get_or_insert(now);
        }
    }

    /// Answers so far.
    pub(crate) fn figures(&self) -> Figures {
        self.pages().figures.clone()
    }

    /// Deliveries acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.pages().figures.delivered()
    }

    /// All of it, once nobody sends any more.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.pages().entries.clone()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
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
            "{refused} found nobody, {broken} cut off, {unanswered} of these while somebody listened, {late} late or silent, \
             {slow} of these not for lost CPU time, {improper} improper"
        )
    }
}
