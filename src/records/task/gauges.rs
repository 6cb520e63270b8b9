//! The share of one shard in the gauges of the worker.

use base::metrics;

use crate::records::{fence::ShardFence, schedule::Scheduler};

/// What this shard adds to the gauges; removed when it is dropped.
#[derive(Default)]
pub(super) struct Gauges {
    open: i64,
    parked: i64,
    fences: i64,
}

impl Gauges {
    pub(super) fn show(&mut self, scheduler: &Scheduler, fence: &ShardFence) {
        let (open, parked) = scheduler.counts();
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.set(signed(open), signed(parked), i64::try_from(fence.entries()).unwrap_or(i64::MAX));
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

#[cfg(test)]
mod tests {
    use base::metrics::ALL;
    use model::{AccountingResource, List, Origin};

    #[test]
    fn every_kind_of_record_has_its_series_before_the_first_of_it() {
        let metric = ALL.iter().find(|metric| metric.name == "tributary_record_changes_total").unwrap();
        let values = |label: &str| metric.labels.iter().find(|(key, _)| *key == label).unwrap().1;

        for resource in AccountingResource::all() {
            assert!(values("entity").contains(&resource.name()), "{resource}");
        }
        assert!(values("entity").contains(&List::Payroll.name()));
        for origin in [Origin::Enrichment, Origin::Snapshot, Origin::Repair] {
            assert!(values("origin").contains(&origin.name()), "{origin:?}");
        }
    }
}
