//! A map that remembers the newest entries and forgets the oldest, so that no client can make it grow.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Entries by their text, at most `limit` of them. Nothing is ever removed but by age.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    entries: HashMap<Arc<str>, V>,
    /// The same keys, oldest first.
    order: VecDeque<Arc<str>>,
    limit: usize,
}

impl<V> Recent<V> {
    /// Remembers `limit` entries, at least one.
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), limit: limit.max(1) }
    }

    /// Adds an entry as the newest; one with the same key is replaced where it stands.
    pub(crate) fn insert(&mut self, key: &str, value: V) {
        if let Some(entry) = self.entries.get_mut(key) {
            *entry = value;
            return;
        }
        if self.order.len() == self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        let key: Arc<str> = key.into();
        self.order.push_back(Arc::clone(&key));
        self.entries.insert(key, value);
    }

    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        self.entries.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.entries.get_mut(key)
    }

    /// All entries, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_makes_room_for_the_newest() {
        let mut recent = Recent::new(2);

        recent.insert("a", 1);
        recent.insert("b", 2);
        recent.insert("a", 3);
        recent.insert("c", 4);

        assert_eq!((recent.get("a"), recent.get("b"), recent.get("c")), (None, Some(&2), Some(&4)));
        assert_eq!((recent.entries.len(), recent.order.len()), (2, 2));
    }
}
