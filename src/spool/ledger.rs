//! What a database holds, by lane, without asking it: counted at open, kept up to date with every commit.
//!
//! Memory grows with the number of lanes, not of entries. The price is that after the oldest entry of a lane has gone the
//! next oldest is known only as "not below this" until somebody [looks](Ledger::settle).

use std::collections::{HashMap, hash_map};

use super::Lane;

/// One lane of one database. There is none for a lane without entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) entries: u64,
    /// Of keys and values.
    pub(super) bytes: u64,
    /// No entry has a lower sequence.
    pub(super) oldest: u64,
    /// No entry is older, in milliseconds since 1970.
    pub(super) oldest_at: u64,
    /// Whether an entry with exactly that sequence and time is there.
    pub(super) exact: bool,
    /// No entry has a higher sequence.
    pub(super) highest: u64,
}

/// All lanes of one database.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    lanes: HashMap<Lane, Tally>,
    highest: u64,
}

impl Ledger {
    /// A new entry.
    pub(super) fn add(&mut self, lane: &Lane, sequence: u64, size: u64, at: u64) {
        self.highest = self.highest.max(sequence);
        let tally = self.lanes.entry(lane.clone()).or_insert(Tally {
            entries: 0,
            bytes: 0,
            oldest: sequence,
            oldest_at: at,
            exact: true,
            highest: sequence,
        });
        tally.entries += 1;
        tally.bytes += size;
        tally.highest = tally.highest.max(sequence);
        if sequence < tally.oldest {
            (tally.oldest, tally.oldest_at, tally.exact) = (sequence, at.min(tally.oldest_at), true);
        }
    }

    /// An entry of this size has gone.
    pub(super) fn subtract(&mut self, lane: &Lane, sequence: u64, size: u64) {
        let hash_map::Entry::Occupied(mut found) = self.lanes.entry(lane.clone()) else { return };
        let tally = found.get_mut();
        tally.entries = tally.entries.saturating_sub(1);
        tally.bytes = tally.bytes.saturating_sub(size);
        if tally.entries == 0 {
            found.remove();
        } else if tally.oldest == sequence {
            (tally.oldest, tally.exact) = (sequence.saturating_add(1), false);
        }
    }

    /// The oldest entry of the lane is this one.
    pub(super) fn settle(&mut self, lane: &Lane, sequence: u64, at: u64) {
        if let Some(tally) = self.lanes.get_mut(lane) {
            (tally.oldest, tally.oldest_at, tally.exact) = (sequence, at, true);
        }
    }

    /// The lane holds what this ledger of it alone says.
    pub(super) fn replace(&mut self, lane: &Lane, counted: &Self) {
        self.lanes.remove(lane);
        self.lanes.extend(counted.lane(lane).map(|tally| (lane.clone(), tally)));
    }

    pub(super) fn lane(&self, lane: &Lane) -> Option<Tally> {
        self.lanes.get(lane).copied()
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = (&Lane, &Tally)> {
        self.lanes.iter()
    }

    pub(super) fn entries(&self) -> u64 {
        self.lanes.values().map(|tally| tally.entries).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lanes.values().map(|tally| tally.bytes).sum()
    }

    /// The highest sequence that was ever added.
    pub(super) fn highest(&self) -> u64 {
        self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(number: u8) -> Lane {
        Lane { topic: "t".into(), number }
    }

    #[test]
    fn the_oldest_is_a_lower_bound_after_it_has_gone_and_exact_once_looked_up() {
        let mut ledger = Ledger::default();
        for sequence in [5, 7, 9] {
            ledger.add(&lane(0), sequence, 10, sequence * 100);
        }

        ledger.subtract(&lane(0), 5, 10);
        let after = ledger.lane(&lane(0)).unwrap();
        ledger.settle(&lane(0), 7, 700);
        let settled = ledger.lane(&lane(0)).unwrap();

        assert_eq!((after.oldest, after.oldest_at, after.exact), (6, 500, false));
        assert_eq!((settled.oldest, settled.oldest_at, settled.exact), (7, 700, true));
        assert_eq!((settled.entries, settled.bytes, settled.highest), (2, 20, 9));
    }

    #[test]
    fn an_entry_that_comes_late_with_a_low_sequence_is_the_oldest() {
        let mut ledger = Ledger::default();
        ledger.add(&lane(0), 8, 1, 100);

        ledger.add(&lane(0), 3, 1, 200);

        let tally = ledger.lane(&lane(0)).unwrap();
        assert_eq!((tally.oldest, tally.exact), (3, true));
        assert_eq!(tally.oldest_at, 100, "the one that waits longest decides the age");
    }

    #[test]
    fn a_lane_without_entries_takes_no_memory_and_no_removal_counts_twice() {
        let mut ledger = Ledger::default();
        ledger.add(&lane(1), 4, 6, 1);

        ledger.subtract(&lane(1), 4, 6);
        ledger.subtract(&lane(1), 4, 6);

        assert_eq!(ledger.lanes().count(), 0);
        assert_eq!((ledger.entries(), ledger.bytes(), ledger.highest()), (0, 0, 4));
    }
}
