//! The offset that may be committed for each event topic.
//!
//! A position is the next offset: the one after an event. Positions settle in any order, but one may be committed only when it and all
//! earlier ones of its topic are settled. [`Offsets`] keeps the open positions of each topic in reading order and returns the newest
//! committable one. Memory grows with
//! [`Offsets::open_positions`], which the scheduler bounds.

use std::collections::{HashMap, VecDeque};

use model::AccountingResource;

/// Names one open position until it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OffsetTicket(u64);

/// Open positions of the shard's partition of each event topic; a topic is named by its resource.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    topics: HashMap<AccountingResource, VecDeque<OpenOffset>>,
    next: u64,
}

#[derive(Debug)]
struct OpenOffset {
    ticket: u64,
    position: i64,
    is_settled: bool,
}

impl Offsets {
    /// Opens the position of an event: `position` is the next offset. Positions of a topic must be opened in ascending order.
    pub(super) fn open(&mut self, resource: AccountingResource, position: i64) -> OffsetTicket {
        let ticket = self.next;
        self.next += 1;
        self.topics.entry(resource).or_default().push_back(OpenOffset {
            ticket,
            position,
            is_settled: false,
        });
        OffsetTicket(ticket)
    }

    /// Settles a position.
    pub(super) fn settle(&mut self, resource: AccountingResource, ticket: OffsetTicket) {
        let Some(open) = self.topics.get_mut(&resource) else { return };
        // Tickets of a topic ascend, so a binary search finds them.
        if let Ok(index) = open.binary_search_by_key(&ticket.0, |open| open.ticket) {
            open[index].is_settled = true;
        }
    }

    /// Takes the newest committable next offset of each topic that moved.
    pub(super) fn take_settled(&mut self) -> Vec<(AccountingResource, i64)> {
        let mut moved = Vec::new();
        self.topics.retain(|resource, open| {
            let settled = open.iter().take_while(|open| open.is_settled).count();
            if let Some(last) = open.drain(..settled).next_back() {
                moved.push((*resource, last.position));
            }
            !open.is_empty()
        });
        moved
    }

    /// Positions that are open, or settled after an open one.
    #[must_use]
    pub(super) fn open_positions(&self) -> usize {
        self.topics.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RESOURCE: AccountingResource = AccountingResource::Customers;
    const OTHER: AccountingResource = AccountingResource::Accounts;

    #[test]
    fn position_waits_for_all_before_it_in_its_topic() {
        let mut offsets = Offsets::default();
        let first = offsets.open(RESOURCE, 1);
        let second = offsets.open(RESOURCE, 2);

        offsets.settle(RESOURCE, second);
        assert_eq!(offsets.take_settled(), []);

        offsets.settle(RESOURCE, first);
        assert_eq!(offsets.take_settled(), [(RESOURCE, 2)]);
        assert_eq!(offsets.open_positions(), 0);
    }

    #[test]
    fn settled_position_behind_an_open_one_still_counts() {
        let mut offsets = Offsets::default();
        let first = offsets.open(RESOURCE, 1);
        let second = offsets.open(RESOURCE, 2);
        offsets.settle(RESOURCE, second);
        offsets.take_settled();
        assert_eq!(offsets.open_positions(), 2);

        offsets.settle(RESOURCE, first);
        offsets.take_settled();

        assert_eq!(offsets.open_positions(), 0);
    }

    #[test]
    fn topics_do_not_wait_for_each_other() {
        let mut offsets = Offsets::default();
        offsets.open(RESOURCE, 1);
        let quick = offsets.open(OTHER, 7);

        offsets.settle(OTHER, quick);

        assert_eq!(offsets.take_settled(), [(OTHER, 7)]);
    }

    proptest! {
        #[test]
        fn no_order_of_settling_passes_an_open_position(
            order in Just((0..40usize).collect::<Vec<_>>()).prop_shuffle()
        ) {
            let mut offsets = Offsets::default();
            let topics = [RESOURCE, OTHER, AccountingResource::Companies];
            let tickets: Vec<_> = (0..40).map(|n| offsets.open(topics[n % 3], i64::try_from(n).unwrap())).collect();
            let mut settled = [false; 40];

            for n in order {
                offsets.settle(topics[n % 3], tickets[n]);
                settled[n] = true;
                for (resource, position) in offsets.take_settled() {
                    let position = usize::try_from(position).unwrap();
                    prop_assert_eq!(resource, topics[position % 3]);
                    prop_assert!((position % 3..=position).step_by(3).all(|earlier| settled[earlier]));
                }
            }

            prop_assert_eq!(offsets.open_positions(), 0);
        }
    }
}
