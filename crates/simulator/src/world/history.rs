//! Earlier states of what has changed, for stale reads and for going back.
//!
//! One ring holds the earlier states of everything in the order in which they ended; each knows the one before it of the
//! same record. Only what changed costs anything, and when the ring is full the oldest state goes.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    num::NonZeroU64,
};

use crate::clock::Ticks;

/// The most earlier states kept of everything together: some 50 MB at the worst.
pub(super) const LIMIT: usize = 1 << 19;

/// A state with the moment at which it began.
pub(super) trait State: Copy {
    /// When it began.
    fn since(&self) -> Ticks;
    /// Whether nothing was before it.
    fn is_first(&self) -> bool;
}

/// Earlier states by what they are of.
#[derive(Debug)]
pub(super) struct History<K, S> {
    ring: VecDeque<Earlier<K, S>>,
    /// Number of the oldest in the ring; numbers begin at 1.
    first: u64,
    /// Number of the newest of each key; it is always still in the ring.
    newest: HashMap<K, NonZeroU64>,
    /// The most states told of one key.
    depth: usize,
    limit: usize,
}

#[derive(Debug)]
struct Earlier<K, S> {
    key: K,
    state: S,
    /// Number of the state before it, which may have left the ring.
    before: Option<NonZeroU64>,
}

impl<K: Copy + Eq + Hash, S: State> History<K, S> {
    /// Keeps up to `depth` earlier states of each key, and `limit` of all.
    pub(super) fn new(depth: usize, limit: usize) -> Self {
        let limit = if depth == 0 { 0 } else { limit };
        Self { ring: VecDeque::new(), first: 1, newest: HashMap::new(), depth, limit }
    }

    /// Keeps a state that has just ended.
    pub(super) fn push(&mut self, key: K, state: S) {
        if self.limit == 0 {
            return;
        }
        if self.ring.len() == self.limit {
            self.drop_oldest();
        }
        let number = NonZeroU64::new(self.first + self.ring.len() as u64);
        let before = number.and_then(|number| self.newest.insert(key, number));
        self.ring.push_back(Earlier { key, state, before });
    }

    /// The earlier states of a key that are still known, newest first.
    pub(super) fn states(&self, key: K) -> impl Iterator<Item = S> + '_ {
        std::iter::successors(self.at(self.newest.get(&key).copied()), |earlier| self.at(earlier.before))
            .take(self.depth)
            .map(|earlier| earlier.state)
    }

    /// The state a key had at a moment, given the one it has now, and how many earlier states lie between the two with it
    /// counted in. `None` if it did not exist then; where its history was not kept, the oldest state known.
    pub(super) fn at_moment(&self, key: K, now: S, moment: Ticks) -> (Option<S>, usize) {
        let mut oldest = now;
        let mut passed = 0;
        if now.since() <= moment {
            return (Some(now), 0);
        }
        for state in self.states(key) {
            (oldest, passed) = (state, passed + 1);
            if state.since() <= moment {
                return (Some(state), passed);
            }
        }
        ((!oldest.is_first()).then_some(oldest), passed)
    }

    /// Forgets the newest `count` states of a key.
    pub(super) fn forget(&mut self, key: K, count: usize) {
        for _ in 0..count {
            let Some(newest) = self.newest.get(&key).copied() else { return };
            let before = self.at(Some(newest)).and_then(|earlier| earlier.before);
            match before.filter(|&before| self.at(Some(before)).is_some()) {
                Some(before) => self.newest.insert(key, before),
                None => self.newest.remove(&key),
            };
        }
    }

    fn at(&self, number: Option<NonZeroU64>) -> Option<&Earlier<K, S>> {
        let place = number?.get().checked_sub(self.first)?;
        self.ring.get(usize::try_from(place).ok()?)
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.ring.pop_front() {
            if self.newest.get(&oldest.key).is_some_and(|newest| newest.get() == self.first) {
                self.newest.remove(&oldest.key);
            }
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Since(i64);

    impl State for Since {
        fn since(&self) -> Ticks {
            Ticks(self.0)
        }

        fn is_first(&self) -> bool {
            self.0 == 0
        }
    }

    #[test]
    fn no_more_states_than_the_depth_are_told_newest_first() {
        let mut history = History::new(2, 10);

        for moment in 0..4 {
            history.push('a', Since(moment));
        }

        assert_eq!(history.states('a').collect::<Vec<_>>(), [Since(3), Since(2)]);
        assert_eq!(history.states('b').count(), 0);
    }

    #[test]
    fn a_full_ring_loses_the_oldest_state_of_all_and_forgets_its_key() {
        let mut history = History::new(8, 3);

        history.push('a', Since(0));
        for moment in 0..3 {
            history.push('b', Since(moment));
        }
        history.push('b', Since(3));

        assert_eq!(history.states('a').count(), 0);
        assert_eq!(history.states('b').collect::<Vec<_>>(), [Since(3), Since(2), Since(1)]);
        assert_eq!((history.ring.len(), history.newest.len()), (3, 1));
    }

    #[test]
    fn a_moment_shows_the_state_that_had_begun_by_then() {
        let mut history = History::new(8, 10);
        for moment in [0, 10, 20] {
            history.push('a', Since(moment));
        }

        let at = |moment| history.at_moment('a', Since(30), Ticks(moment));

        assert_eq!(at(31), (Some(Since(30)), 0));
        assert_eq!(at(30), (Some(Since(30)), 0));
        assert_eq!(at(29), (Some(Since(20)), 1));
        assert_eq!(at(0), (Some(Since(0)), 3));
        assert_eq!(at(-1), (None, 3));
    }

    #[test]
    fn where_history_was_not_kept_the_oldest_state_known_stands_in() {
        let mut history = History::new(1, 10);
        for moment in [0, 10, 20] {
            history.push('a', Since(moment));
        }

        assert_eq!(history.at_moment('a', Since(30), Ticks(-1)), (Some(Since(20)), 1));
        assert_eq!(history.at_moment('b', Since(30), Ticks(-1)), (Some(Since(30)), 0));
        assert_eq!(History::new(0, 10).at_moment('a', Since(0), Ticks(-1)), (None, 0));
    }

    #[test]
    fn forgotten_states_do_not_come_back_when_new_ones_are_kept() {
        let mut history = History::new(8, 10);
        for moment in [0, 10, 20] {
            history.push('a', Since(moment));
        }

        history.forget('a', 2);
        history.push('a', Since(40));

        assert_eq!(history.states('a').collect::<Vec<_>>(), [Since(40), Since(0)]);
        history.forget('a', 9);
        assert_eq!(history.states('a').count(), 0);
    }
}
