//! Letters that were replayed before, one bit each.
//!
//! Offsets are grouped in segments of 65,536; a segment with a mark takes 8 KiB, so ten million replayed letters take 1.3 MB. Too many
//! segments mean marks of another program, or a topic too large for one bit per letter: the replay then stops instead of publishing
//! something twice.

use std::collections::{BTreeSet, HashMap};

use crate::webhooks::dead_letter::LetterPosition;

const SEGMENT: i64 = 1 << 16;
/// 64 MiB, enough for half a billion consecutive letters.
const MAX_SEGMENTS: usize = 8_192;

#[derive(Debug, Default)]
pub(super) struct Marks {
    /// By partition and segment number.
    segments: HashMap<(i32, i64), Box<[u64]>>,
    /// If set, other places are ignored.
    only: Option<BTreeSet<LetterPosition>>,
}

impl Marks {
    pub(super) fn of(only: Option<BTreeSet<LetterPosition>>) -> Self {
        Self { segments: HashMap::new(), only }
    }

    /// Marks the letter at a place.
    pub(super) fn insert(&mut self, place: LetterPosition) -> Result<(), String> {
        if self.only.as_ref().is_some_and(|only| !only.contains(&place)) {
            return Ok(());
        }
        let (segment, word, bit) = position(place);
        if self.segments.len() >= MAX_SEGMENTS && !self.segments.contains_key(&segment) {
            let limit = (MAX_SEGMENTS as i64 * SEGMENT / 8) >> 20;
            return Err(format!(
                "the marks of earlier replays take more than {limit} MiB of memory; name the letters to replay, or repeat all \
                 with --again"
            ));
        }
        let words = self.segments.entry(segment).or_insert_with(|| vec![0; SEGMENT as usize / 64].into());
        words[word] |= bit;
        Ok(())
    }

    pub(super) fn contains(&self, place: LetterPosition) -> bool {
        let (segment, word, bit) = position(place);
        self.segments.get(&segment).is_some_and(|words| words[word] & bit != 0)
    }
}

/// Segment, word and bit of a place.
fn position(place: LetterPosition) -> ((i32, i64), usize, u64) {
    let within = place.offset.rem_euclid(SEGMENT) as usize;
    ((place.partition, place.offset.div_euclid(SEGMENT)), within / 64, 1 << (within % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(partition: i32, offset: i64) -> LetterPosition {
        LetterPosition { partition, offset }
    }

    #[test]
    fn a_mark_applies_only_to_its_letter() {
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
    fn marks_take_one_bit_and_scattered_ones_are_refused() {
        let mut marks = Marks::default();
        for offset in 0..1_000_000 {
            marks.insert(place(0, offset)).unwrap();
        }
        let bytes: usize = marks.segments.values().map(|words| words.len() * 8).sum();
        // Rounded up to a whole segment.
        assert!(bytes < 135_000, "{bytes}");

        let refused =
            (0..MAX_SEGMENTS as i64).find_map(|number| marks.insert(place(1, number * SEGMENT)).err());

        assert!(refused.unwrap().to_string().contains("64 MiB"));
        assert!(marks.insert(place(0, 5)).is_ok(), "existing segments still take marks");
    }

    #[test]
    fn other_marks_take_no_memory_if_letters_are_named() {
        let mut marks = Marks::of(Some(BTreeSet::from([place(0, 7)])));

        for number in 0..2 * MAX_SEGMENTS as i64 {
            marks.insert(place(1, number * SEGMENT)).unwrap();
        }
        marks.insert(place(0, 7)).unwrap();

        assert!(marks.contains(place(0, 7)));
        assert_eq!(marks.segments.len(), 1);
    }
}
