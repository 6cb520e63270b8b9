//! Reading past damage: every readable entry of a range, whatever lies between.
//!
//! A damaged block ends the store's iteration. Starting anew inside the block fails, after it works: so the way out is
//! searched for upwards in the lane's sequences with growing steps, or else among all keys, byte by byte. Both look for
//! one stretch of damage; good entries between two that are close may be taken for damaged, too. Whoever has met damage
//! keeps the database for people to look at.

use std::ops::ControlFlow;

use super::entry::{self, Lane};
use crate::store::Database;

/// One readable entry, borrowed from the store.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) lane: &'a Lane,
    pub(super) sequence: u64,
    /// Milliseconds since 1970.
    pub(super) at: u64,
    /// Of key and value.
    pub(super) size: u64,
    pub(super) payload: &'a [u8],
}

/// Shows every readable entry of the lane from this sequence on, until `visit` breaks off. Returns how many stretches,
/// of one entry or more, could not be read.
pub(super) fn scan_lane(
    database: &dyn Database,
    lane: &Lane,
    from: u64,
    visit: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
) -> u64 {
    // The last sequence of the lane is below this.
    let mut to = lane.key(u64::MAX);
    to.push(0);
    scan(database, lane.key(from), &to, visit)
}

/// As [`scan_lane`], for all lanes.
pub(super) fn scan_all(database: &dyn Database, visit: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>) -> u64 {
    // No topic is UTF-8 and begins with this.
    scan(database, Vec::new(), &[0xff], visit)
}

fn scan(
    database: &dyn Database,
    mut from: Vec<u8>,
    to: &[u8],
    visit: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
) -> u64 {
    let mut unreadable = 0;
    // Lanes are long: parse the topic of one once.
    let mut current: Option<Lane> = None;
    loop {
        let shown = database.visit(&from.clone(), to, &mut |key, value| {
            // The least key above this one.
            from.clear();
            from.extend_from_slice(key);
            from.push(0);
            let Some((sequence, (at, payload))) = lane_of(key, &mut current).zip(entry::parse_value(value))
            else {
                unreadable += 1;
                return ControlFlow::Continue(());
            };
            let Some(lane) = &current else { return ControlFlow::Continue(()) };
            visit(Seen { lane, sequence, at, size: (key.len() + value.len()) as u64, payload })
        });
        if shown.is_ok() {
            return unreadable;
        }
        unreadable += 1;
        match after_damage(database, &from, to) {
            Some(next) => from = next,
            None => return unreadable,
        }
    }
}

/// The key's sequence; its lane goes to `current`.
fn lane_of(key: &[u8], current: &mut Option<Lane>) -> Option<u64> {
    let (place, sequence) = key.split_last_chunk()?;
    let same = current.as_ref().is_some_and(|lane| {
        place.split_last().and_then(|(number, topic)| Some((number, topic.strip_suffix(&[0])?)))
            == Some((&lane.number, lane.topic.as_bytes()))
    });
    if !same {
        *current = Some(entry::parse_key(key)?.0);
    }
    Some(u64::from_be_bytes(*sequence))
}

/// The first key above `from` that the store can read from.
fn after_damage(database: &dyn Database, from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let reads = |key: &[u8]| {
        key > from && (key >= to || database.visit(key, to, &mut |_, _| ControlFlow::Break(())).is_ok())
    };
    // The key that was shown last has a zero appended.
    let shown = from.split_last().map_or(from, |(_, key)| key);
    let place = entry::parse_key(from).or_else(|| entry::parse_key(shown));
    let next = place.and_then(|(lane, sequence)| next_in_lane(&lane, sequence, &reads));
    next.or_else(|| next_of_all(&reads)).filter(|next| next.as_slice() < to)
}

/// The least sequence of the lane above this one where reading works, with what is known to fail just below.
fn next_in_lane(lane: &Lane, sequence: u64, reads: &dyn Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let (mut fails, mut step) = (sequence, 1_u64);
    let mut works = loop {
        let next = fails.checked_add(step)?;
        if reads(&lane.key(next)) {
            break next;
        }
        fails = next;
        step = step.saturating_mul(2);
    };
    while works - fails > 1 {
        let middle = fails + (works - fails) / 2;
        if reads(&lane.key(middle)) {
            works = middle;
        } else {
            fails = middle;
        }
    }
    Some(lane.key(works))
}

/// The least key where reading works: at each byte the least value that does, then what is below it.
fn next_of_all(reads: &dyn Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let mut fails = Vec::new();
    let mut works = None;
    while fails.len() <= entry::LONGEST_KEY {
        let with = |byte: u8| [fails.as_slice(), &[byte]].concat();
        let values: Vec<u8> = (0..=u8::MAX).collect();
        match values.partition_point(|byte| !reads(&with(*byte))) {
            // Nothing is between this and the prefix, which fails.
            0 => return Some(with(0)),
            256 => fails.push(u8::MAX),
            least => {
                works = Some(with(values[least]));
                fails.push(values[least - 1]);
            }
        }
    }
    works
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;

    use super::*;
    use crate::store::{Change, Error, Visitor};

    /// Keys in order, some of which cannot be read: as a damaged block, nor can anything be begun on them.
    #[derive(Default)]
    struct Damaged {
        entries: BTreeMap<Vec<u8>, Vec<u8>>,
        bad: Vec<Vec<u8>>,
    }

    impl Database for Damaged {
        fn commit(&self, _: Vec<Change>, _: bool) -> Result<(), Error> {
            unreachable!("a scan writes nothing")
        }

        fn size(&self, _: &[u8]) -> Result<Option<u64>, Error> {
            unreachable!("a scan looks nothing up")
        }

        fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, Error> {
            unreachable!("a scan looks nothing up")
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
        let unreadable = scan_all(database, &mut |seen| {
            found.push((seen.lane.topic.to_string(), seen.lane.number, seen.sequence));
            ControlFlow::Continue(())
        });
        (found, unreadable)
    }

    #[test]
    fn everything_before_and_after_damage_inside_a_lane_is_found() {
        let places: Vec<_> = (1..=100).map(|sequence| ("t", 0, sequence)).collect();
        let bad = [("t", 0, 40), ("t", 0, 41), ("t", 0, 77)];

        let (found, unreadable) = all(&database(&places, &bad));

        let expected: Vec<_> = (1..=100).filter(|sequence| ![40, 41, 77].contains(sequence)).collect();
        assert_eq!(found.iter().map(|(_, _, sequence)| *sequence).collect::<Vec<_>>(), expected);
        assert_eq!(unreadable, 2, "two stretches");
    }

    #[test]
    fn damage_from_the_first_key_on_and_at_the_end_of_a_topic_hides_nothing_behind_it() {
        let places = [("a", 0, 1), ("a", 3, 9), ("b.x", 1, 2), ("b.x", 1, 3), ("c", 0, 4)];

        let (first, _) = all(&database(&places, &places[..1]));
        let (last, _) = all(&database(&places, &places[4..]));
        let (end, _) = all(&database(&places, &places[2..4]));

        assert_eq!(first.len(), 4, "{first:?}");
        assert_eq!(last.len(), 4, "{last:?}");
        assert_eq!(end.iter().map(|(_, _, sequence)| *sequence).collect::<Vec<_>>(), [1, 9, 4]);
    }

    #[test]
    fn a_value_that_is_no_entry_is_passed_over_and_counted() {
        let mut database = database(&[("t", 0, 1), ("t", 0, 2), ("t", 0, 3)], &[]);
        database.entries.insert(lane("t", 0).key(2), b"rubbish".to_vec());
        database.entries.insert(b"rubbish".to_vec(), b"rubbish".to_vec());

        let (found, unreadable) = all(&database);

        assert_eq!(found.iter().map(|(_, _, sequence)| *sequence).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(unreadable, 2);
    }

    #[test]
    fn a_lane_is_read_from_the_sequence_asked_for_to_its_own_end() {
        let database = database(&[("t", 0, 1), ("t", 0, 2), ("t", 0, u64::MAX), ("t", 1, 3)], &[]);
        let mut found = Vec::new();

        scan_lane(&database, &lane("t", 0), 2, &mut |seen| {
            found.push(seen.sequence);
            ControlFlow::Continue(())
        });

        assert_eq!(found, [2, u64::MAX]);
    }
}
