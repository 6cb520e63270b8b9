//! A bounded map that drops its oldest entries.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// At most `limit` entries; only age removes one.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    entries: HashMap<Arc<str>, V>,
    /// The same keys, oldest first.
    order: VecDeque<Arc<str>>,
    limit: usize,
}

impl<V> Recent<V> {
    /// Keeps `limit` entries, at least one.
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), limit: limit.max(1) }
    }

    /// Adds an entry as the newest; an existing key keeps its age and gets the new value.
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

    /// All entries, unordered.
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
