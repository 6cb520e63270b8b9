//! A bounded list of what happened.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Numbers its entries from 0 and keeps the newest.
#[derive(Debug)]
pub struct Journal<T> {
    inner: Mutex<Entries<T>>,
    limit: usize,
}

#[derive(Debug)]
struct Entries<T> {
    entries: VecDeque<T>,
    /// Entries dropped to keep the limit.
    gone: u64,
}

impl<T> Journal<T> {
    /// Keeps the last `limit` entries, at least one.
    pub fn new(limit: usize) -> Self {
        Self { inner: Mutex::new(Entries { entries: VecDeque::new(), gone: 0 }), limit: limit.max(1) }
    }

    /// Appends an entry and returns its number.
    pub fn push(&self, entry: T) -> u64 {
        let mut inner = self.inner.lock();
        if inner.entries.len() == self.limit {
            inner.entries.pop_front();
            inner.gone += 1;
        }
        inner.entries.push_back(entry);
        inner.gone + inner.entries.len() as u64 - 1
    }

    /// Changes an entry if it is still kept.
    pub fn update(&self, number: u64, change: impl FnOnce(&mut T)) {
        let mut inner = self.inner.lock();
        let at = number.checked_sub(inner.gone).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = at.and_then(|at| inner.entries.get_mut(at)) {
            change(entry);
        }
    }

    /// Entries ever pushed.
    pub fn count(&self) -> u64 {
        let inner = self.inner.lock();
        inner.gone + inner.entries.len() as u64
    }

    /// At most `limit` kept entries from number `from` on, with their numbers.
    pub fn from(&self, from: u64, limit: usize) -> Vec<(u64, T)>
    where
        T: Clone,
    {
        let inner = self.inner.lock();
        let skip = usize::try_from(from.saturating_sub(inner.gone)).unwrap_or(usize::MAX);
        let entries = inner.entries.iter().enumerate().skip(skip).take(limit);
        entries.map(|(at, entry)| (inner.gone + at as u64, entry.clone())).collect()
    }

    /// All entries that are kept.
    pub fn all(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.inner.lock().entries.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entries_are_kept_under_their_first_numbers() {
        let journal = Journal::new(2);

        let numbers: Vec<u64> = ["a", "b", "c"].into_iter().map(|entry| journal.push(entry)).collect();
        journal.update(0, |entry| *entry = "gone");
        journal.update(2, |entry| *entry = "C");

        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(journal.count(), 3);
        assert_eq!(journal.from(0, 10), [(1, "b"), (2, "C")]);
        assert_eq!(journal.from(2, 10), [(2, "C")]);
        assert_eq!(journal.from(1, 1), [(1, "b")]);
        assert_eq!(journal.from(9, 10), []);
    }
}
