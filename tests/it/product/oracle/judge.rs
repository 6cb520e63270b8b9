//! Compares the topics with the acknowledged deliveries: none lost, none out of order, none made up.
//!
//! Deliveries of a [`Ledger`](super::ledger::Ledger) and [`Appearance`]s in the log ─▶ [`judge`] ─▶ [`DeliveryVerdict`].
//!
//! - An acknowledged delivery that is in no topic is *lost*.
//! - A delivery is *early* if it was sent after another one of its company was acknowledged, and yet appears before it. First
//!   appearances count: readers recognize later copies by their id. Deliveries in flight at the same time have no order.
//! - A delivery that was never acknowledged may be anywhere or missing; it is counted.
//! - A record that was never sent is *foreign*, one under another company's key *misplaced*, one with another content
//!   *damaged*, a company in two partitions *scattered*.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use super::delivery::Id;
use super::ledger::Entry;

/// Faults of each kind that are named.
const NAMED: usize = 5;

/// A record in a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appearance {
    /// Its `tributary.id`; `None` if it has none, or one that senders do not use.
    pub(crate) id: Option<Id>,
    /// Its key; `None` if it is no company of a sender.
    pub(crate) key: Option<Id>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// Whether it holds what the delivery of this id held.
    pub(crate) intact: bool,
}

/// Counts and faults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeliveryVerdict {
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    /// Records in the topics.
    pub(crate) records: u64,
    /// Records beyond the first of their delivery.
    pub(crate) copies: u64,
    /// Deliveries that are in a topic and were never acknowledged.
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
pub(crate) fn judge(entries: &[Entry], appearances: &[Appearance]) -> DeliveryVerdict {
    let mut verdict = DeliveryVerdict { sent: entries.len() as u64, ..DeliveryVerdict::default() };
    let indices: HashMap<Id, usize> =
        entries.iter().enumerate().map(|(index, entry)| (entry.id, index)).collect();
    let mut first: Vec<Option<u64>> = vec![None; entries.len()];
    let mut homes: HashMap<Id, i32> = HashMap::new();
    let mut scattered: HashSet<Id> = HashSet::new();
    for (at, found) in appearances.iter().enumerate() {
        verdict.records += 1;
        let Some(&index) = found.id.and_then(|id| indices.get(&id)) else {
            verdict.foreign.add(|| format!("{found:?}"));
            continue;
        };
        let entry = &entries[index];
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
        match &mut first[index] {
            Some(_) => verdict.copies += 1,
            unseen => *unseen = Some(at as u64),
        }
    }
    let mut companies: HashMap<Id, Vec<SeenDelivery>> = HashMap::new();
    for (entry, first) in entries.iter().zip(first) {
        match (entry.acknowledged, first) {
            (Some(acknowledged), Some(first)) => {
                let seen = SeenDelivery { id: entry.id, sent: entry.sent, acknowledged, first };
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

/// An acknowledged delivery that is in a topic.
struct SeenDelivery {
    id: Id,
    sent: Duration,
    acknowledged: Duration,
    first: u64,
}

/// Finds deliveries that appear before one that was acknowledged before they were sent.
fn early(seen: &mut [SeenDelivery], faults: &mut Faults) {
    seen.sort_unstable_by_key(|seen| seen.first);
    // From the end of the log: of all that follow, the one that was acknowledged first.
    let mut soonest: Option<&SeenDelivery> = None;
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

impl DeliveryVerdict {
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
    /// Counts a fault, and names it if it is one of the first.
    pub(crate) fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(name());
        }
    }
}

impl fmt::Display for DeliveryVerdict {
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
