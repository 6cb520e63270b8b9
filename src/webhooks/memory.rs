//! Bytes of deliveries in memory, counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How many bytes deliveries hold, and how many they may.
#[derive(Debug)]
pub(super) struct Memory {
    used: AtomicUsize,
    limit: usize,
}

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Memory {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit })
    }

    /// Counts bytes that are there, whether or not there is room for them: whoever asks [`Memory::has_room`] decides.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Taken {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Taken { memory: Arc::clone(self), bytes }
    }

    /// Whether records may wait in memory for Kafka.
    pub(super) fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.limit
    }

    /// Whether a drain may read a batch: a part of the memory is theirs alone, since what they publish frees the rest.
    pub(super) fn has_room_to_drain(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.limit + self.limit / 4
    }

    /// Whether there is so much room that records may be kept which the spool has too.
    pub(super) fn has_plenty(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.limit / 2
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_for_as_long_as_they_are_held() {
        let memory = Memory::new(100);
        let first = memory.take(60);
        assert!(memory.has_room() && !memory.has_plenty());
        let second = memory.take(60);
        assert!(!memory.has_room());

        drop(first);
        assert!(memory.has_room() && !memory.has_plenty());
        drop(second);
        assert!(memory.has_plenty());
        assert_eq!(memory.used(), 0);
    }
}
