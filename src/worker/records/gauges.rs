//! What of a shard is shown in the gauges of all.

use crate::{enrich::Desk, fence::Shelf, metrics};

/// What of a shard is shown in the gauges of all.
#[derive(Default)]
pub(super) struct Gauges {
    open: i64,
    parked: i64,
    fences: i64,
}

impl Gauges {
    pub(super) fn show(&mut self, desk: &Desk, shelf: &Shelf) {
        let (open, parked) = desk.counts();
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.set(signed(open), signed(parked), i64::try_from(shelf.entries()).unwrap_or(i64::MAX));
    }

    fn set(&mut self, open: i64, parked: i64, fences: i64) {
        if (open, parked, fences) != (self.open, self.parked, self.fences) {
            metrics::enrich_under_way(open - self.open, parked - self.parked);
            metrics::fences_kept(fences - self.fences);
            (self.open, self.parked, self.fences) = (open, parked, fences);
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.set(0, 0, 0);
    }
}
