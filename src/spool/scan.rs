//! Lists the entries of a database, also beyond damaged blocks.
//!
//! A damaged block ends the store's iteration, and iteration cannot start inside it. So the scan searches for the end of the
//! damage: it tries keys at doubling distances until one can be read from, then halves the last distance. Readable entries
//! between two damaged blocks that are close to each other may be skipped too; the spool keeps a damaged database for inspection.

use std::ops::ControlFlow;

use super::entry::{LONGEST_KEY, Lane, parse_key, parse_value};
use crate::store::Database;

/// Above all keys: no topic begins with this byte, because UTF-8 does not have it.
const END: [u8; 1] = [0xff];

/// The sequence at the end of a key, and the zero byte that turns it into the next key.
const SEQUENCE_BYTES: usize = 9;

/// Shows lane, sequence and size of every readable entry. Returns how many stretches of one entry or more are unreadable.
pub(super) fn scan(database: &dyn Database, visit: &mut dyn FnMut(Lane, u64, u64)) -> u64 {
    let (mut from, mut unreadable) = (Vec::new(), 0);
    loop {
        let shown = database.visit(&from.clone(), &END, &mut |key, value| {
            // The least key above this one.
            from.clear();
            from.extend_from_slice(key);
            from.push(0);
            match parse_key(key).filter(|_| parse_value(value).is_some()) {
                Some((lane, sequence)) => visit(lane, sequence, (key.len() + value.len()) as u64),
                None => unreadable += 1,
            }
            ControlFlow::Continue(())
        });
        if shown.is_ok() {
            return unreadable;
        }
        unreadable += 1;
        match after_damage(database, from) {
            Some(next) => from = next,
            None => return unreadable,
        }
    }
}

/// The least key above `from` from which the store reads.
fn after_damage(database: &dyn Database, from: Vec<u8>) -> Option<Vec<u8>> {
    // Within a lane all keys have one length, and the search takes a few steps. Elsewhere longer keys may be between, and only
    // steps of the longest key's precision skip none.
    let lane = from.len().saturating_sub(SEQUENCE_BYTES);
    let in_lane = end_of_damage(database, from.clone(), 8 * SEQUENCE_BYTES);
    let next = in_lane.filter(|next| next[..lane] == from[..lane]).or_else(|| {
        let mut from = from;
        from.resize(LONGEST_KEY, 0);
        end_of_damage(database, from, 8 * LONGEST_KEY)
    });
    next.filter(|next| next.as_slice() < &END[..])
}

/// The least key from which the store reads, less than two to the power of `bits` above `fails`.
fn end_of_damage(database: &dyn Database, mut fails: Vec<u8>, bits: usize) -> Option<Vec<u8>> {
    let reads =
        |key: &[u8]| key >= &END[..] || database.visit(key, &END, &mut |_, _| ControlFlow::Break(())).is_ok();
    let bit = (0..bits).find(|bit| plus(&fails, *bit).is_none_or(|key| reads(&key)))?;
    for bit in (0..bit).rev() {
        match plus(&fails, bit) {
            Some(key) if !reads(&key) => fails = key,
            _ => {}
        }
    }
    plus(&fails, 0)
}

/// The key, as a number, plus two to the power of `bit`; `None` if that does not fit.
fn plus(key: &[u8], bit: usize) -> Option<Vec<u8>> {
    let mut sum = key.to_vec();
    let mut carry = 1 << (bit % 8);
    for byte in sum.iter_mut().rev().skip(bit / 8) {
        let (added, overflows) = byte.overflowing_add(carry);
        *byte = added;
        if !overflows {
            return Some(sum);
        }
        carry = 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;

    use super::*;
    use crate::{
        spool::entry,
        store::{Error, StoreChange, Visitor},
    };

    /// Ordered keys. Iteration fails at the bad ones, as in a damaged block, also if it starts there.
    #[derive(Default)]
    struct Damaged {
        entries: BTreeMap<Vec<u8>, Vec<u8>>,
        bad: Vec<Vec<u8>>,
    }

    impl Database for Damaged {
        fn commit(&self, _: Vec<StoreChange>, _: bool) -> Result<(), Error> {
            unreachable!("a scan writes nothing")
        }

        fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, Error> {
            unreachable!("a scan does no lookup")
        }

        fn visit(&self, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), Error> {
            for (key, value) in self.entries.range(from.to_vec()..to.to_vec()) {
                if self.bad.contains(key) {
                    let source = "damaged".into();
                    return Err(Error::Broken { action: "read", source });
                }
                if visit(key, value).is_break() {
                    break;
                }
            }
            Ok(())
        }

        fn compact(&self) -> Result<(), Error> {
            unreachable!("a scan compacts nothing")
        }
    }

    fn lane(topic: &str, number: u8) -> Lane {
        Lane { topic: topic.into(), number }
    }

    fn database(places: &[(&str, u8, u64)], bad: &[(&str, u8, u64)]) -> Damaged {
        let key = |(topic, number, sequence): &(&str, u8, u64)| lane(topic, *number).key(*sequence);
        let value = entry::value(7, &Bytes::from_static(b"payload"));
        Damaged {
            entries: places.iter().map(|place| (key(place), value.clone())).collect(),
            bad: bad.iter().map(key).collect(),
        }
    }

    fn all(database: &Damaged) -> (Vec<(String, u8, u64)>, u64) {
        let mut found = Vec::new();
        let unreadable = scan(database, &mut |lane, sequence, _| {
            found.push((lane.topic.to_string(), lane.number, sequence));
        });
        (found, unreadable)
    }

    #[test]
    fn entries_on_both_sides_of_damage_are_found() {
        let places: Vec<_> = (1..=100).map(|sequence| ("t", 0, sequence)).collect();
        let bad = [("t", 0, 40), ("t", 0, 41), ("t", 0, 77)];

        let (found, unreadable) = all(&database(&places, &bad));

        let expected: Vec<_> = (1..=100).filter(|sequence| ![40, 41, 77].contains(sequence)).collect();
        assert_eq!(found.iter().map(|(_, _, sequence)| *sequence).collect::<Vec<_>>(), expected);
        assert_eq!(unreadable, 2, "two stretches");
    }

    #[test]
    fn damage_at_a_lanes_start_or_end_hides_nothing_behind_it() {
        let places = [("a", 0, 1), ("a", 3, 9), ("b.x", 1, 2), ("b.x", 1, 3), ("c", 0, 4)];

        let (first, _) = all(&database(&places, &places[..1]));
        let (last, _) = all(&database(&places, &places[4..]));
        let (end, _) = all(&database(&places, &places[2..4]));

        assert_eq!(first.len(), 4, "{first:?}");
        assert_eq!(last.len(), 4, "{last:?}");
        assert_eq!(end.iter().map(|(_, _, sequence)| *sequence).collect::<Vec<_>>(), [1, 9, 4]);
    }

    #[test]
    fn a_value_that_is_no_entry_is_skipped_and_counted() {
        let mut database = database(&[("t", 0, 1), ("t", 0, 2), ("t", 0, 3)], &[]);
        database.entries.insert(lane("t", 0).key(2), b"rubbish".to_vec());
        database.entries.insert(b"rubbish".to_vec(), b"rubbish".to_vec());

        let (found, unreadable) = all(&database);

        assert_eq!(found.iter().map(|(_, _, sequence)| *sequence).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(unreadable, 2);
    }
}
