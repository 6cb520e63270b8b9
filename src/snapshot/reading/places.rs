//! Sets of records that cost a bit for each record a reading knows.

/// A set of records, by their places. Every shard reads the lists that span companies, and has some of these for each of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    bits: Vec<u64>,
    count: u64,
}

impl Places {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn contains(&self, place: u32) -> bool {
        let (word, bit) = Self::at(place);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Whether it was not in it.
    pub(super) fn insert(&mut self, place: u32) -> bool {
        let (word, bit) = Self::at(place);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        let is_new = self.bits[word] & bit == 0;
        self.count += u64::from(is_new);
        self.bits[word] |= bit;
        is_new
    }

    pub(super) fn remove(&mut self, place: u32) {
        let (word, bit) = Self::at(place);
        if self.contains(place) {
            self.bits[word] &= !bit;
            self.count -= 1;
        }
    }

    fn at(place: u32) -> (usize, u64) {
        ((place / u64::BITS) as usize, 1 << (place % u64::BITS))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_a_set(steps in proptest::collection::vec((any::<bool>(), 0_u32..300), 0..200)) {
            let (mut places, mut set) = (Places::default(), BTreeSet::new());
            for (comes, place) in steps {
                if comes {
                    prop_assert_eq!(places.insert(place), set.insert(place));
                } else {
                    places.remove(place);
                    set.remove(&place);
                }
                prop_assert_eq!(places.count(), set.len() as u64);
            }
            for place in 0..400 {
                prop_assert_eq!(places.contains(place), set.contains(&place));
            }
        }
    }
}
