//! Counts bytes of deliveries in memory. The receiver has one counter (verified bodies until the answer), the intake another (parts until
//! they are published, and drained batches).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A count of bytes, and the limit that callers compare it with.
#[derive(Debug)]
pub(in crate::webhooks) struct DeliveryMemory {
    used: AtomicUsize,
    limit: usize,
}

/// Counted bytes; dropping this returns them.
#[derive(Debug)]
pub(in crate::webhooks) struct HeldMemory {
    memory: Arc<DeliveryMemory>,
    bytes: usize,
}

impl DeliveryMemory {
    pub(in crate::webhooks) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit })
    }

    /// Counts bytes even above the limit: callers check [`DeliveryMemory::has_room`] first.
    pub(in crate::webhooks) fn take(self: &Arc<Self>, bytes: usize) -> HeldMemory {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        HeldMemory { memory: Arc::clone(self), bytes }
    }

    /// Whether records may wait in memory for Kafka.
    pub(in crate::webhooks) fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.limit
    }

    /// Whether a drain may read a batch. Drains may use a quarter more, because what they publish frees the rest.
    pub(in crate::webhooks) fn has_room_to_drain(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.limit + self.limit / 4
    }

    /// Whether there is room to keep records that the spool has too.
    pub(in crate::webhooks) fn has_plenty(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.limit / 2
    }

    pub(in crate::webhooks) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_for_as_long_as_they_are_held() {
        let memory = DeliveryMemory::new(100);
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
