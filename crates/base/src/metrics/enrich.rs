//! Metrics of enrichment: processed events and written records.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::names::*;

/// An event was processed; `outcome` is one of the metric's.
pub fn event_enriched(outcome: &'static str) {
    debug_assert!(ENRICH_OUTCOMES.contains(&outcome), "{outcome}");
    counter!(ENRICH_EVENTS.name, "outcome" => outcome).increment(1);
}

/// `count` records were committed at this moment, in microseconds since 1970; `origin` and `entity` are of the metric's.
pub fn records_changed(origin: &'static str, entity: &'static str, is_deleted: bool, count: u64, at: i64) {
    debug_assert!(CHANGED_BY.contains(&origin) && ENTITIES.contains(&entity), "{origin}, {entity}");
    let op = operation(is_deleted);
    counter!(RECORD_CHANGES.name, "origin" => origin, "entity" => entity, "op" => op).increment(count);
    gauge!(LAST_CHANGE.name, "origin" => origin).set(at as f64 / 1e6);
}

/// Changes in the numbers of open and parked records. Shards share the series, so each adds its part.
pub fn enrich_under_way(open: i64, parked: i64) {
    gauge!(ENRICH_OPEN.name).increment(open as f64);
    gauge!(ENRICH_PARKED.name).increment(parked as f64);
}

/// A record was committed this many microseconds after the change that its first event reports.
pub fn end_to_end(micros: i64, is_deleted: bool) {
    histogram!(END_TO_END.name, "op" => operation(is_deleted)).record(micros.max(0) as f64 / 1e6);
}

const fn operation(is_deleted: bool) -> &'static str {
    if is_deleted { "delete" } else { "publish" }
}

/// `count` reads showed less than their events had reported.
pub fn stale_reads(count: u64) {
    counter!(STALE_READS.name).increment(count);
}

/// A record was deleted because of an event.
pub fn tombstone_written() {
    counter!(TOMBSTONES.name, "cause" => "event").increment(1);
}

/// `count` deletes were held back.
pub fn tombstones_braked(count: u64) {
    counter!(TOMBSTONES_BRAKED.name).increment(count);
}

/// The provider returned to an older version of `count` records.
pub fn epochs_raised(count: u64) {
    counter!(EPOCHS_RAISED.name).increment(count);
}

/// Change in the number of fences that this worker keeps on disk.
pub fn fences_kept(count: i64) {
    gauge!(FENCE_ENTRIES.name).increment(count as f64);
}

/// The fences of a shard were read.
pub fn fence_restored(took: Duration, records: u64) {
    histogram!(FENCE_RESTORE.name).record(took.as_secs_f64());
    counter!(FENCE_RESTORED.name).increment(records);
}
