//! What waits to be written: the latest value of each key.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// A value, `None` for a tombstone, and the header that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) value: Option<Bytes>,
    pub(super) headers: Vec<(&'static str, Bytes)>,
}

/// All keys with something to write. Of each at most one value is under way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    keys: BTreeMap<String, Latest>,
    /// Keys with a value that is not under way.
    ready: BTreeSet<String>,
    next: u64,
}

#[derive(Debug)]
struct Latest {
    value: Value,
    /// Which put this is.
    number: u64,
    /// The put that is under way.
    sent: Option<u64>,
}

impl Pending {
    /// Takes a value in the place of any before it.
    pub(super) fn put(&mut self, key: String, value: Value) {
        self.next += 1;
        let (number, sent) = (self.next, self.keys.get(&key).and_then(|latest| latest.sent));
        if sent.is_none() {
            self.ready.insert(key.clone());
        }
        self.keys.insert(key, Latest { value, number, sent });
    }

    /// The next one to send, which is under way from then on.
    pub(super) fn take(&mut self) -> Option<(String, u64, Value)> {
        let key = self.ready.pop_first()?;
        let latest = self.keys.get_mut(&key)?;
        latest.sent = Some(latest.number);
        Some((key, latest.number, latest.value.clone()))
    }

    /// One that was under way has arrived, or shall be given up: what was put meanwhile is next.
    pub(super) fn settle(&mut self, key: &str, number: u64) {
        let Some(latest) = self.keys.get_mut(key) else { return };
        latest.sent = None;
        if latest.number == number {
            self.keys.remove(key);
        } else {
            self.ready.insert(key.to_owned());
        }
    }

    /// One that was under way has not arrived: it is sent again, unless another was put meanwhile, which is sent instead.
    pub(super) fn give_back(&mut self, key: String) {
        if let Some(latest) = self.keys.get_mut(&key) {
            latest.sent = None;
            self.ready.insert(key);
        }
    }

    /// Keys that are not settled.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        Value { value: Some(Bytes::copy_from_slice(text.as_bytes())), headers: Vec::new() }
    }

    #[test]
    fn of_each_key_one_value_is_under_way_and_then_the_latest() {
        let mut pending = Pending::default();
        pending.put("a".into(), value("1"));
        let (key, first, _) = pending.take().unwrap();
        pending.put("a".into(), value("2"));
        pending.put("a".into(), value("3"));
        assert_eq!(pending.take(), None, "the first is under way");

        pending.settle(&key, first);

        let (_, last, sent) = pending.take().unwrap();
        assert_eq!(sent, value("3"));
        pending.settle("a", last);
        assert_eq!((pending.len(), pending.take()), (0, None));
    }

    #[test]
    fn what_did_not_arrive_is_sent_again_unless_it_was_overtaken() {
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
