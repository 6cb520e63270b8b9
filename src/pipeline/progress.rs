//! Per lane, the highest position below which everything is settled.
//!
//! Records settle in any order; a position may be committed only when it and all before it in its lane are settled.
//! [`Progress`] keeps the open positions of each lane in reading order and answers with the newest that may be
//! committed. Memory grows with [`Progress::open_positions`], which the driver bounds.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// Names one open position until it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// Open positions of all lanes.
#[derive(Debug)]
pub struct Progress<L, P> {
    lanes: HashMap<L, VecDeque<Open<P>>>,
    next: u64,
    open: usize,
}

#[derive(Debug)]
struct Open<P> {
    ticket: u64,
    position: P,
    unsettled: usize,
}

impl<L: Clone + Eq + Hash, P> Default for Progress<L, P> {
    fn default() -> Self {
        Self { lanes: HashMap::new(), next: 0, open: 0 }
    }
}

impl<L: Clone + Eq + Hash, P> Progress<L, P> {
    /// Opens a position made of `records` records, which settle one by one. Positions of a lane are opened in order.
    pub fn open(&mut self, lane: &L, position: P, records: usize) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.open += 1;
        self.lanes.entry(lane.clone()).or_default().push_back(Open { ticket, position, unsettled: records });
        Ticket(ticket)
    }

    /// One record of this position is settled.
    pub fn settle(&mut self, lane: &L, ticket: Ticket) {
        let Some(open) = self.lanes.get_mut(lane) else { return };
        // Tickets of a lane ascend, so the search is logarithmic however much is in flight.
        if let Ok(index) = open.binary_search_by_key(&ticket.0, |open| open.ticket) {
            open[index].unsettled = open[index].unsettled.saturating_sub(1);
        }
    }

    /// Takes, for every lane that moved, the newest position below which nothing is open.
    pub fn take_settled(&mut self) -> Vec<(L, P)> {
        let mut moved = Vec::new();
        let count = &mut self.open;
        self.lanes.retain(|lane, open| {
            let settled = open.iter().take_while(|open| open.unsettled == 0).count();
            *count -= settled;
            if let Some(last) = open.drain(..settled).next_back() {
                moved.push((lane.clone(), last.position));
            }
            !open.is_empty()
        });
        moved
    }

    /// Positions that are open, or settled behind an open one.
    #[must_use]
    pub fn open_positions(&self) -> usize {
        self.open
    }

    /// Whether nothing is open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_position_waits_for_all_before_it_in_its_lane() {
        let mut progress = Progress::default();
        let first = progress.open(&"a", 1, 1);
        let second = progress.open(&"a", 2, 1);

        progress.settle(&"a", second);
        assert_eq!(progress.take_settled(), []);

        progress.settle(&"a", first);
        assert_eq!(progress.take_settled(), [("a", 2)]);
        assert!(progress.is_idle());
    }

    #[test]
    fn a_settled_position_counts_as_open_until_all_before_it_are_settled() {
        let mut progress = Progress::default();
        let first = progress.open(&"a", 1, 1);
        progress.open(&"a", 2, 0);
        progress.take_settled();
        assert_eq!(progress.open_positions(), 2);

        progress.settle(&"a", first);
        progress.take_settled();

        assert_eq!(progress.open_positions(), 0);
    }

    #[test]
    fn lanes_do_not_wait_for_each_other() {
        let mut progress = Progress::default();
        progress.open(&"slow", 1, 1);
        let quick = progress.open(&"quick", 7, 1);

        progress.settle(&"quick", quick);

        assert_eq!(progress.take_settled(), [("quick", 7)]);
    }

    #[test]
    fn a_position_of_several_records_waits_for_the_last_of_them() {
        let mut progress = Progress::default();
        let ticket = progress.open(&"a", 1, 2);

        progress.settle(&"a", ticket);
        assert_eq!(progress.take_settled(), []);

        progress.settle(&"a", ticket);
        assert_eq!(progress.take_settled(), [("a", 1)]);
    }

    proptest! {
        #[test]
        fn whatever_the_order_of_settling_nothing_open_is_ever_passed(
            order in Just((0..40usize).collect::<Vec<_>>()).prop_shuffle()
        ) {
            let mut progress = Progress::default();
            let tickets: Vec<_> = (0..40).map(|n| progress.open(&(n % 3), n, 1)).collect();
            let mut settled = [false; 40];

            for n in order {
                progress.settle(&(n % 3), tickets[n]);
                settled[n] = true;
                for (lane, position) in progress.take_settled() {
                    prop_assert!((lane..=position).step_by(3).all(|earlier| settled[earlier]));
                }
            }

            prop_assert!(progress.is_idle());
        }
    }
}
