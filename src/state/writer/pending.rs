//! Values that wait to be written: the latest of each key.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// A value, `None` for a tombstone, and its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingValue {
    pub(super) value: Option<Bytes>,
    pub(super) headers: Vec<(&'static str, Bytes)>,
}

/// All keys with something to write. Of each at most one value is in flight.
#[derive(Debug, Default)]
pub(super) struct Pending {
    keys: BTreeMap<String, Latest>,
    /// Keys without a value in flight.
    ready: BTreeSet<String>,
    next: u64,
}

#[derive(Debug)]
struct Latest {
    /// Number of the put that requested a removal before the value.
    removal: Option<u64>,
    value: PendingValue,
    /// Number of this put.
    number: u64,
    /// Number of the put in flight.
    sent: Option<u64>,
}

impl Pending {
    /// Replaces the value of a key.
    pub(super) fn put(&mut self, key: String, value: PendingValue) {
        // A requested removal that was not acknowledged is still due.
        let removal = self.keys.get(&key).and_then(|latest| latest.removal);
        self.insert(key, removal, value);
    }

    /// The same after a tombstone without headers, which makes readers forget the key.
    pub(super) fn put_after_removal(&mut self, key: String, value: PendingValue) {
        let removal = self.number();
        self.insert(key, Some(removal), value);
    }

    fn insert(&mut self, key: String, removal: Option<u64>, value: PendingValue) {
        let (number, sent) = (self.number(), self.keys.get(&key).and_then(|latest| latest.sent));
        if sent.is_none() {
            self.ready.insert(key.clone());
        }
        self.keys.insert(key, Latest { removal, value, number, sent });
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The next value to send; it counts as in flight from now on.
    pub(super) fn take(&mut self) -> Option<(String, u64, PendingValue)> {
        let key = self.ready.pop_first()?;
        let latest = self.keys.get_mut(&key)?;
        let (number, value) = match latest.removal {
            Some(removal) => (removal, PendingValue { value: None, headers: Vec::new() }),
            None => (latest.number, latest.value.clone()),
        };
        latest.sent = Some(number);
        Some((key, number, value))
    }

    /// The value in flight was acknowledged or dropped: a value that was put meanwhile is next.
    pub(super) fn settle(&mut self, key: &str, number: u64) {
        let Some(latest) = self.keys.get_mut(key) else { return };
        latest.sent = None;
        if latest.number == number {
            self.keys.remove(key);
        } else {
            latest.removal = latest.removal.filter(|removal| *removal != number);
            self.ready.insert(key.to_owned());
        }
    }

    /// The value in flight failed: send it again, or the value that was put meanwhile.
    pub(super) fn give_back(&mut self, key: String) {
        if let Some(latest) = self.keys.get_mut(&key) {
            latest.sent = None;
            self.ready.insert(key);
        }
    }

    /// Keys that are not written yet.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> PendingValue {
        PendingValue { value: Some(Bytes::copy_from_slice(text.as_bytes())), headers: Vec::new() }
    }

    #[test]
    fn one_value_per_key_is_in_flight_then_the_latest() {
        let mut pending = Pending::default();
        pending.put("a".into(), value("1"));
        let (key, first, _) = pending.take().unwrap();
        pending.put("a".into(), value("2"));
        pending.put("a".into(), value("3"));
        assert_eq!(pending.take(), None, "the first is in flight");

        pending.settle(&key, first);

        let (_, last, sent) = pending.take().unwrap();
        assert_eq!(sent, value("3"));
        pending.settle("a", last);
        assert_eq!((pending.len(), pending.take()), (0, None));
    }

    #[test]
    fn removal_is_written_before_its_value_or_replacement() {
        let removal = PendingValue { value: None, headers: Vec::new() };
        let mut pending = Pending::default();
        pending.put("a".into(), value("1"));
        let (_, first, _) = pending.take().unwrap();
        pending.put_after_removal("a".into(), value("2"));
        pending.put("a".into(), value("3"));
        pending.settle("a", first);

        assert_eq!(pending.take().unwrap().2, removal);
        pending.give_back("a".into());
        let (_, number, sent) = pending.take().unwrap();
        assert_eq!(sent, removal, "it was not acknowledged");
        assert_eq!(pending.take(), None, "one at a time");
        pending.settle("a", number);

        let (_, number, sent) = pending.take().unwrap();
        assert_eq!(sent, value("3"));
        pending.settle("a", number);
        assert_eq!((pending.len(), pending.take()), (0, None));
    }

    #[test]
    fn failed_value_is_resent_unless_replaced() {
        let mut pending = Pending::default();
        pending.put("a".into(), value("1"));
        pending.put("b".into(), value("1"));
        while pending.take().is_some() {}
        pending.put("a".into(), value("2"));

        pending.give_back("a".into());
        pending.give_back("b".into());

        assert_eq!(pending.take().unwrap().2, value("2"));
        assert_eq!(pending.take().unwrap().2, value("1"));
        assert_eq!(pending.len(), 2);
    }
}
