//! What is measured of records behind events.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::names::{
    END_TO_END, ENRICH_EVENTS, ENRICH_OPEN, ENRICH_OUTCOMES, ENRICH_PARKED, EPOCHS_RAISED, FENCE_ENTRIES,
    FENCE_RESTORE, FENCE_RESTORED, STALE_READS, TOMBSTONES, TOMBSTONES_BRAKED,
};

/// An event was followed; `outcome` is one of the metric's.
pub fn event_enriched(outcome: &'static str) {
    debug_assert!(ENRICH_OUTCOMES.contains(&outcome), "{outcome}");
    counter!(ENRICH_EVENTS.name, "outcome" => outcome).increment(1);
}

/// So many records more or less are under way, and parked. Shards share the series, so each adds its part.
pub fn enrich_under_way(open: i64, parked: i64) {
    gauge!(ENRICH_OPEN.name).increment(open as f64);
    gauge!(ENRICH_PARKED.name).increment(parked as f64);
}

/// A record was committed so many microseconds after its event was received.
pub fn end_to_end(micros: i64) {
    histogram!(END_TO_END.name).record(micros.max(0) as f64 / 1e6);
}

/// So many reads showed less than their events had told of.
pub fn stale_reads(count: u64) {
    counter!(STALE_READS.name).increment(count);
}

/// A record was deleted because of an event.
pub fn tombstone_written() {
    counter!(TOMBSTONES.name, "cause" => "event").increment(1);
}

/// So many deletes were held back.
pub fn tombstones_braked(count: u64) {
    counter!(TOMBSTONES_BRAKED.name).increment(count);
}

/// The provider went back, in so many records.
pub fn epochs_raised(count: u64) {
    counter!(EPOCHS_RAISED.name).increment(count);
}

/// So many fences more or less are kept on this disk for shards of this worker.
pub fn fences_kept(count: i64) {
    gauge!(FENCE_ENTRIES.name).increment(count as f64);
}

/// The fences of a shard were read.
pub fn fence_restored(took: Duration, records: u64) {
    histogram!(FENCE_RESTORE.name).record(took.as_secs_f64());
    counter!(FENCE_RESTORED.name).increment(records);
}
