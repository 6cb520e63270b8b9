//! The last earlier states of each record, for stale reads and restores.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use super::WorldRow;
use crate::clock::Ticks;

/// Records with a history. Beyond it all history is dropped: 300 MB at most.
const MAX_KEYS: usize = 1 << 19;

/// Earlier states by record.
#[derive(Debug)]
pub(super) struct History<K> {
    /// Newest first.
    states: HashMap<K, VecDeque<WorldRow>>,
    /// States kept per record.
    depth: usize,
}

impl<K: Copy + Eq + Hash> History<K> {
    /// Keeps up to `depth` earlier states per record.
    pub(super) fn new(depth: usize) -> Self {
        Self { states: HashMap::new(), depth }
    }

    /// Adds a state that has just ended.
    pub(super) fn push(&mut self, key: K, state: WorldRow) {
        if self.depth > 0 {
            if self.states.len() >= MAX_KEYS && !self.states.contains_key(&key) {
                self.states.clear();
            }
            let states = self.states.entry(key).or_default();
            states.push_front(state);
            states.truncate(self.depth);
        }
    }

    /// The state at a moment, given the current one, and how many states have been passed to get there. `None` if the record did
    /// not exist; where history was dropped, the oldest known state.
    pub(super) fn at_moment(&self, key: K, now: WorldRow, moment: Ticks) -> (Option<WorldRow>, usize) {
        let mut oldest = now;
        let mut passed = 0;
        for state in std::iter::once(&now).chain(self.states.get(&key).into_iter().flatten()) {
            if state.changed <= moment {
                return (Some(*state), passed);
            }
            (oldest, passed) = (*state, passed + 1);
        }
        ((oldest.revision > 0).then_some(oldest), passed - 1)
    }

    /// Drops the newest `count` states of a record.
    pub(super) fn forget(&mut self, key: K, count: usize) {
        if let Some(states) = self.states.get_mut(&key) {
            states.drain(..count.min(states.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::RecordState;

    fn since(moment: i64) -> WorldRow {
        let revision = u32::from(moment > 0);
        WorldRow { sequence: 0, changed: Ticks(moment), revision, lineage: 0, state: RecordState::Enabled }
    }

    #[test]
    fn beyond_the_depth_the_oldest_known_state_shows() {
        let mut history = History::new(1);
        for moment in [0, 10, 20] {
            history.push('a', since(moment));
        }

        assert_eq!(history.at_moment('a', since(30), Ticks(-1)), (Some(since(20)), 1));
        assert_eq!(history.at_moment('b', since(30), Ticks(-1)), (Some(since(30)), 0));
        assert_eq!(History::new(0).at_moment('a', since(0), Ticks(-1)), (None, 0));
    }
}
