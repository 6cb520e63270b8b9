//! Whose turn a batch is: events come first, and lists have their turn all the same.
//!
//! A row is compared with what is committed, and with what is in its batch. So parts of lists enter a batch only where nothing is left
//! behind it that the scheduler has decided. Of a shard whose events do not end they would never be written, and the pages behind them would
//! keep the room that all shards of the task share. Therefore, once lists were passed over in some batches, nothing more is taken in or
//! read until the scheduler has nothing left to commit.
//!
//! An event that comes meanwhile loses little: it would be committed behind all that is there already. It waits for its own read, and
//! for the parts of lists in one batch.

/// Batches in a row that lists may be passed over in.
const MOST: u32 = 8;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Batches in a row that had no parts of lists, although there were some.
    passed_over: u32,
}

impl Turns {
    /// A batch begins, and the scheduler has so many entries left behind it. Whether parts of lists may be in it.
    pub(super) fn begin(&mut self, left: usize, have_parts: bool) -> bool {
        let is_theirs = left == 0;
        self.passed_over = if is_theirs || !have_parts { 0 } else { self.passed_over.saturating_add(1) };
        is_theirs
    }

    /// Whether nothing more is taken in until lists have had their turn.
    pub(super) fn are_due(&self) -> bool {
        self.passed_over >= MOST
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{AccountingResource, Origin};

    use super::*;
    use crate::{
        publish::Original,
        records::schedule::{ReadRequest, Scheduler, Source, rules},
    };

    /// As many events come as are taken in, always more than a batch has. In which of so many batches lists have their turn.
    fn turns(batches: u32, have_parts: bool) -> Vec<u32> {
        let (mut scheduler, mut turns) = (Scheduler::new(rules()), Turns::default());
        let event = Arc::new(Source {
            original: Original::default(),
            id: "e".into(),
            trace: None,
            received_at: 1,
            happened_at: 1,
            origin: Origin::Enrichment,
        });
        let (mut next, mut theirs) = (0, Vec::new());
        for number in 0..batches {
            while !scheduler.is_full() && !turns.are_due() {
                next += 1;
                scheduler.take(
                    AccountingResource::Charges,
                    next,
                    ReadRequest::Nothing,
                    Arc::clone(&event),
                    None,
                    1,
                );
            }
            let batch = scheduler.batch(500, 8 << 20);
            assert!(!batch.entries.is_empty(), "nothing is committed while lists wait");
            if turns.begin(scheduler.ready(), have_parts) {
                theirs.push(number);
            }
            scheduler.committed(&[], &|_| None, 1);
        }
        theirs
    }

    #[test]
    fn lists_have_their_turn_however_many_events_there_are() {
        assert_eq!(turns(20, true), [MOST, 2 * MOST + 1]);
    }

    #[test]
    fn nothing_waits_for_lists_that_have_nothing_to_write() {
        assert!(turns(20, false).is_empty());

        let mut turns = Turns::default();
        for _ in 0..MOST {
            turns.begin(1, true);
        }
        assert!(turns.are_due());
        turns.begin(1, false);
        assert!(!turns.are_due(), "their run was stopped");
    }
}
