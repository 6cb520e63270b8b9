//! Whether what is in the topics is what was acknowledged: nothing lost, nothing before its time, nothing made up.
//!
//! Deliveries of a [`Ledger`](super::ledger::Ledger) and [`Appearance`]s in the log ─▶ [`judge`] ─▶ [`Verdict`].
//!
//! - An acknowledged delivery that is nowhere is *lost*.
//! - Of two acknowledged deliveries of a company the second is *early* when it was sent after the first was acknowledged
//!   and yet appears before it. First appearances count: later copies carry the same id, and readers know them by it. Of
//!   deliveries that were on their way at the same time either may be first.
//! - A delivery that was sent and never acknowledged may be there or not, wherever; it is counted.
//! - A record that nobody sent is *foreign*, one under another company's key *misplaced*, one with another content
//!   *damaged*, a company in two partitions *scattered*.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use super::delivery::Id;
use super::ledger::Entry;

/// Of each kind of fault, so many are named.
const NAMED: usize = 5;

/// A record in a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appearance {
    /// Its `tributary.id`; `None` where there is none that any sender gives.
    pub(crate) id: Option<Id>,
    /// Its key; `None` where that is no company of any sender.
    pub(crate) key: Option<Id>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// Whether it holds what the delivery of this id held.
    pub(crate) intact: bool,
}

/// What came of it all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    /// Records in the topics.
    pub(crate) records: u64,
    /// Records beyond the first of their delivery.
    pub(crate) copies: u64,
    /// Deliveries that are there though their sender was never told so.
    pub(crate) unacknowledged: u64,
    pub(crate) lost: Faults,
    pub(crate) early: Faults,
    pub(crate) foreign: Faults,
    pub(crate) misplaced: Faults,
    pub(crate) damaged: Faults,
    pub(crate) scattered: Faults,
}

/// Faults of one kind: how many, and the first few.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) count: u64,
    pub(crate) named: Vec<String>,
}

/// Compares both sides. Appearances of one partition come in the order of its log.
pub(crate) fn judge(entries: &[Entry], appearances: &[Appearance]) -> Verdict {
    let mut verdict = Verdict { sent: entries.len() as u64, ..Verdict::default() };
    let places: HashMap<Id, usize> =
        entries.iter().enumerate().map(|(place, entry)| (entry.id, place)).collect();
    let mut first: Vec<Option<u64>> = vec![None; entries.len()];
    let mut homes: HashMap<Id, i32> = HashMap::new();
    let mut scattered: HashSet<Id> = HashSet::new();
    for (at, found) in appearances.iter().enumerate() {
        verdict.records += 1;
        let Some(&place) = found.id.and_then(|id| places.get(&id)) else {
            verdict.foreign.add(|| format!("{found:?}"));
            continue;
        };
        let entry = &entries[place];
        if found.key != Some(entry.company) {
            verdict.misplaced.add(|| format!("{found:?} belongs to {:?}", entry.company));
            continue;
        }
        if !found.intact {
            verdict.damaged.add(|| format!("{found:?}"));
            continue;
        }
        if *homes.entry(entry.company).or_insert(found.partition) != found.partition
            && scattered.insert(entry.company)
        {
            verdict.scattered.add(|| format!("{found:?}"));
        }
        match &mut first[place] {
            Some(_) => verdict.copies += 1,
            unseen => *unseen = Some(at as u64),
        }
    }
    let mut companies: HashMap<Id, Vec<Seen>> = HashMap::new();
    for (entry, first) in entries.iter().zip(first) {
        match (entry.acknowledged, first) {
            (Some(acknowledged), Some(first)) => {
                let seen = Seen { id: entry.id, sent: entry.sent, acknowledged, first };
                companies.entry(entry.company).or_default().push(seen);
            }
            (Some(_), None) => verdict.lost.add(|| format!("{entry:?}")),
            (None, Some(_)) => verdict.unacknowledged += 1,
            (None, None) => {}
        }
        verdict.acknowledged += u64::from(entry.acknowledged.is_some());
    }
    for seen in companies.values_mut() {
        early(seen, &mut verdict.early);
    }
    verdict
}

/// An acknowledged delivery that is there.
struct Seen {
    id: Id,
    sent: Duration,
    acknowledged: Duration,
    first: u64,
}

/// Finds those that appear before one that was acknowledged before they were sent.
fn early(seen: &mut [Seen], faults: &mut Faults) {
    seen.sort_unstable_by_key(|seen| seen.first);
    // From the end of the log: the one of all that follow that was acknowledged first.
    let mut soonest: Option<&Seen> = None;
    for one in seen.iter().rev() {
        if let Some(later) = soonest.filter(|later| later.acknowledged < one.sent) {
            faults.add(|| {
                format!(
                    "{:?} sent at {:?} is before {:?} acknowledged at {:?}",
                    one.id, one.sent, later.id, later.acknowledged
                )
            });
        }
        if soonest.is_none_or(|soonest| one.acknowledged < soonest.acknowledged) {
            soonest = Some(one);
        }
    }
}

impl Verdict {
    /// Whether every promise was kept.
    pub(crate) fn is_sound(&self) -> bool {
        self.faults().iter().all(|(_, faults)| faults.count == 0)
    }

    /// # Panics
    /// With the whole verdict, if a promise was broken.
    pub(crate) fn check(&self) {
        assert!(self.is_sound(), "{self}");
    }

    fn faults(&self) -> [(&'static str, &Faults); 6] {
        [
            ("lost", &self.lost),
            ("early", &self.early),
            ("foreign", &self.foreign),
            ("misplaced", &self.misplaced),
            ("damaged", &self.damaged),
            ("scattered", &self.scattered),
        ]
    }
}

impl Faults {
    /// One more, which is named if it is one of the first.
    pub(crate) fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(name());
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, acknowledged, records, copies, unacknowledged, .. } = self;
        let million = *copies as f64 * 1e6 / (*records).max(1) as f64;
        write!(f, "{sent} sent, {acknowledged} acknowledged, {records} in the topics, ")?;
        write!(
            f,
            "{copies} extra copies ({million:.0} per million), {unacknowledged} there without an answer"
        )?;
        for (kind, faults) in self.faults() {
            write!(f, ", {} {kind}", faults.count)?;
        }
        for (kind, faults) in self.faults() {
            for named in &faults.named {
                write!(f, "\n  {kind}: {named}")?;
            }
        }
        Ok(())
    }
}
