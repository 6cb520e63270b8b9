//! Entries as keys and values of the store.
//!
//! ```text
//! key    topic in UTF-8, 0x00, lane number (1), sequence (8, big endian)
//! value  format (1), time of the append in milliseconds since 1970 (8, big endian), payload
//! ```
//!
//! The zero byte ends the topic, so keys sort by topic, number and sequence even when one topic is a prefix of another. The
//! store keeps a checksum of every block and of every batch in its journal; entries have none.

use std::sync::Arc;

use bytes::Bytes;

use super::Error;

/// Bytes of a value before the payload.
const HEADER: usize = 9;
/// Bytes of a key after the topic.
const TAIL: usize = 10;
/// The only format so far.
const FORMAT: u8 = 1;
/// Kafka allows 249 bytes; the rest is for the suffix that distinguishes lanes of one topic.
const LONGEST_TOPIC: usize = 300;
/// Bytes of the longest key.
pub(super) const LONGEST_KEY: usize = LONGEST_TOPIC + TAIL;

/// Entries of one lane are read in the order of their sequence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// Full topic name, and a suffix that distinguishes lanes of one topic.
    pub topic: Arc<str>,
    /// Which of the topic's lanes.
    pub number: u8,
}

/// One delivery, kept until it is removed. Lane and sequence identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolEntry {
    /// Where it belongs.
    pub lane: Lane,
    /// Its place in the lane.
    pub sequence: u64,
    /// Opaque to the spool.
    pub payload: Bytes,
}

impl Lane {
    /// Refuses a topic whose key could not be parsed again.
    pub(super) fn check(&self) -> Result<(), Error> {
        if (1..=LONGEST_TOPIC).contains(&self.topic.len()) && !self.topic.contains('\0') {
            Ok(())
        } else {
            Err(Error::Topic { topic: Arc::clone(&self.topic) })
        }
    }

    /// The key of the entry with this sequence.
    pub(super) fn key(&self, sequence: u64) -> Vec<u8> {
        [self.topic.as_bytes(), &[0, self.number], &sequence.to_be_bytes()].concat()
    }

    /// Bytes of key and value of an entry with this payload.
    pub(super) fn size(&self, payload: &Bytes) -> u64 {
        (self.topic.len() + TAIL + HEADER + payload.len()) as u64
    }
}

/// Lane and sequence of a key; `None` for a key that is not ours.
pub(super) fn parse_key(key: &[u8]) -> Option<(Lane, u64)> {
    let (topic, tail) = key.split_at_checked(key.len().checked_sub(TAIL)?)?;
    let (&[zero, number], sequence) = tail.split_first_chunk()?;
    let topic = std::str::from_utf8(topic).ok().filter(|topic| zero == 0 && !topic.contains('\0'))?;
    Some((Lane { topic: topic.into(), number }, u64::from_be_bytes(sequence.try_into().ok()?)))
}

/// The value for a payload that was appended at `at`, in milliseconds since 1970.
pub(super) fn value(at: u64, payload: &Bytes) -> Vec<u8> {
    [&[FORMAT][..], &at.to_be_bytes(), payload].concat()
}

/// Time of the append and payload; `None` for a value that is not ours.
pub(super) fn parse_value(value: &[u8]) -> Option<(u64, &[u8])> {
    let (&[FORMAT], rest) = value.split_first_chunk()? else { return None };
    let (at, payload) = rest.split_first_chunk()?;
    Some((u64::from_be_bytes(*at), payload))
}

/// The payload of a value; `None` for a value that is not ours.
pub(super) fn payload(value: Vec<u8>) -> Option<Bytes> {
    parse_value(&value)?;
    Some(Bytes::from(value).slice(HEADER..))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(topic: &str, number: u8) -> Lane {
        Lane { topic: topic.into(), number }
    }

    #[test]
    fn keys_sort_by_topic_number_and_sequence() {
        let in_order =
            [("a", 0, 1), ("a", 0, 256), ("a", 1, 0), ("a", 255, u64::MAX), ("a.b", 0, 0), ("b", 0, 0)];

        let keys: Vec<_> = in_order.iter().map(|(topic, number, at)| lane(topic, *number).key(*at)).collect();

        assert!(keys.is_sorted(), "{keys:?}");
        for (key, (topic, number, sequence)) in keys.iter().zip(in_order) {
            assert_eq!(parse_key(key), Some((lane(topic, number), sequence)));
        }
    }

    #[test]
    fn the_format_is_the_one_that_earlier_versions_wrote() {
        let payload = Bytes::from_static(b"body");

        assert_eq!(lane("topic", 3).key(258), b"topic\0\x03\0\0\0\0\0\0\x01\x02");
        assert_eq!(value(258, &payload), b"\x01\0\0\0\0\0\0\x01\x02body");
    }

    #[test]
    fn foreign_keys_and_values_are_no_entries() {
        for key in [&b""[..], b"short", b"t\x01\x000000000", b"\xff\x00\x0000000000", b"t\0t\x00\x0000000000"]
        {
            assert_eq!(parse_key(key), None, "{key:?}");
        }
        for value in [&b""[..], b"\x01", b"\x01\0\0\0\0\0\0\0", b"\x02\0\0\0\0\0\0\0\0payload"] {
            assert_eq!(parse_value(value), None, "{value:?}");
        }
    }

    #[test]
    fn a_value_gives_back_time_and_payload_and_has_the_counted_size() {
        let payload = Bytes::from_static(b"body");
        let lane = lane("topic", 3);

        let value = value(1_700_000_000_000, &payload);

        assert_eq!(parse_value(&value), Some((1_700_000_000_000, &b"body"[..])));
        assert_eq!(super::payload(value.clone()), Some(payload.clone()));
        assert_eq!(lane.size(&payload), (lane.key(9).len() + value.len()) as u64);
    }

    #[test]
    fn a_topic_that_cannot_be_parsed_again_is_refused() {
        for topic in ["", "a\0b", "t".repeat(301).as_str()] {
            assert!(matches!(lane(topic, 0).check(), Err(Error::Topic { .. })), "{topic:?}");
        }
        assert!(lane(&"t".repeat(300), 0).check().is_ok());
    }
}
