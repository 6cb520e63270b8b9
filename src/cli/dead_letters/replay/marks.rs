//! What was replayed before, a bit a letter.
//!
//! Offsets are taken in stretches of 65,536, each 8 KiB once it has a mark: ten million letters that were all replayed take
//! 1.3 MB. Too many stretches mean marks of another program, or a topic for which a bit a letter is too much: then
//! nothing is replayed rather than something twice.

use std::collections::{BTreeSet, HashMap};

use crate::webhooks::dead_letter::LetterPosition;

const STRETCH: i64 = 1 << 16;
/// Stretches with marks: 64 MiB, enough for half a billion letters in a row.
const MOST: usize = 8_192;

#[derive(Debug, Default)]
pub(super) struct Marks {
    /// By partition and number of the stretch.
    stretches: HashMap<(i32, i64), Box<[u64]>>,
    /// No others are asked for, where any are named.
    only: Option<BTreeSet<LetterPosition>>,
}

impl Marks {
    pub(super) fn of(only: Option<BTreeSet<LetterPosition>>) -> Self {
        Self { stretches: HashMap::new(), only }
    }

    /// The letter there was replayed.
    pub(super) fn insert(&mut self, place: LetterPosition) -> Result<(), String> {
        if self.only.as_ref().is_some_and(|only| !only.contains(&place)) {
            return Ok(());
        }
        let (stretch, word, bit) = position(place);
        if self.stretches.len() >= MOST && !self.stretches.contains_key(&stretch) {
            let limit = (MOST as i64 * STRETCH / 8) >> 20;
            return Err(format!(
                "the marks of what was replayed before take more than {limit} MiB of memory; name the letters to replay, or \
                 repeat all with --again"
            ));
        }
        let words = self.stretches.entry(stretch).or_insert_with(|| vec![0; STRETCH as usize / 64].into());
        words[word] |= bit;
        Ok(())
    }

    pub(super) fn contains(&self, place: LetterPosition) -> bool {
        let (stretch, word, bit) = position(place);
        self.stretches.get(&stretch).is_some_and(|words| words[word] & bit != 0)
    }
}

/// Stretch, word of it and bit of that.
fn position(place: LetterPosition) -> ((i32, i64), usize, u64) {
    let within = place.offset.rem_euclid(STRETCH) as usize;
    ((place.partition, place.offset.div_euclid(STRETCH)), within / 64, 1 << (within % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(partition: i32, offset: i64) -> LetterPosition {
        LetterPosition { partition, offset }
    }

    #[test]
    fn every_mark_is_of_its_letter_alone() {
        let mut marks = Marks::default();
        let marked = [(0, 0), (0, 63), (0, 65_535), (0, 65_536), (1, 64), (1, i64::MAX), (2, -1)];
        for (partition, offset) in marked {
            marks.insert(place(partition, offset)).unwrap();
        }

        for (partition, offset) in marked {
            assert!(marks.contains(place(partition, offset)), "{partition}:{offset}");
            assert!(!marks.contains(place(partition + 3, offset)), "{partition}:{offset}");
        }
        for (partition, offset) in [(0, 1), (0, 62), (0, 65_534), (0, 65_537), (1, 63), (1, 65_600)] {
            assert!(!marks.contains(place(partition, offset)), "{partition}:{offset}");
        }
    }

    #[test]
    fn marks_take_a_bit_each_and_scattered_ones_are_refused() {
        let mut marks = Marks::default();
        for offset in 0..1_000_000 {
            marks.insert(place(0, offset)).unwrap();
        }
        let bytes: usize = marks.stretches.values().map(|words| words.len() * 8).sum();
        // Rounded up to a whole stretch.
        assert!(bytes < 135_000, "{bytes}");

        let refused = (0..MOST as i64).find_map(|number| marks.insert(place(1, number * STRETCH)).err());

        assert!(refused.unwrap().to_string().contains("64 MiB"));
        assert!(marks.insert(place(0, 5)).is_ok(), "those that have a place still have");
    }

    #[test]
    fn where_letters_are_named_no_other_mark_takes_memory() {
        let mut marks = Marks::of(Some(BTreeSet::from([place(0, 7)])));

        for number in 0..2 * MOST as i64 {
            marks.insert(place(1, number * STRETCH)).unwrap();
        }
        marks.insert(place(0, 7)).unwrap();

        assert!(marks.contains(place(0, 7)));
        assert_eq!(marks.stretches.len(), 1);
    }
}
