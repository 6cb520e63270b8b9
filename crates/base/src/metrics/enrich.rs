//! What is measured of records behind events.

use std::time::Duration;

use metrics::{Unit, counter, gauge, histogram};

use super::{Kind, Metric};

/// Beyond the minute there is what was parked.
const END_TO_END_LATENCY: &[f64] =
    &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0];
const OUTCOMES: &[&str] = &[
    "published",
    "deleted",
    "duplicate",
    "stale",
    "coalesced",
    "filtered",
    "parked",
    "foreign",
    "unreadable",
    "dead_lettered",
];

/// What can become of a record.
const OPERATIONS: &[&str] = &["publish", "delete"];
/// What leads to a record.
const CHANGED_BY: &[&str] = &["enrichment", "snapshot", "repair"];
/// What a record can be.
const ENTITIES: &[&str] = &[
    "accounts",
    "charges",
    "payments",
    "customers",
    "suppliers",
    "input-invoices",
    "issued-invoices",
    "journals",
    "companies",
    "accounting-years",
    "persons",
    "corporate-legal-entities",
    "individual-legal-entities",
    "activities",
    "estimations",
    "legal-entity-licences",
    "prorates",
    "income-allocation-legal-entities",
    "integration-files",
    "payroll",
];

pub(super) const ENRICH_EVENTS: Metric = Metric {
    name: "tributary_enrich_events_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Events that were followed, by what became of them; one that was parked counts once more by what becomes of it then.",
    labels: &[("outcome", OUTCOMES)],
};
pub(super) const RECORD_CHANGES: Metric = Metric {
    name: "tributary_record_changes_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Records that were committed to their topics, by what led to it, what they are and what became of them.",
    labels: &[("origin", CHANGED_BY), ("entity", ENTITIES), ("op", OPERATIONS)],
};
pub(super) const LAST_CHANGE: Metric = Metric {
    name: "tributary_last_change_timestamp_seconds",
    kind: Kind::Gauge,
    unit: Unit::Seconds,
    help: "When this worker last committed a record to its topic, in seconds since 1970, by what led to it; 0 before the first.",
    labels: &[("origin", CHANGED_BY)],
};
pub(super) const ENRICH_OPEN: Metric = Metric {
    name: "tributary_enrich_open_records",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Records behind events that are to be read, or to be committed, without those that are parked.",
    labels: &[],
};
pub(super) const ENRICH_PARKED: Metric = Metric {
    name: "tributary_enrich_parked_records",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Records behind events that wait in the state topic until they can be read.",
    labels: &[],
};
pub(super) const END_TO_END: Metric = Metric {
    name: "tributary_end_to_end_latency_seconds",
    kind: Kind::Histogram(END_TO_END_LATENCY),
    unit: Unit::Seconds,
    help: "Time from what an event tells of, by the provider's timestamp where that can be so and else by its delivery, to the \
           commit of the record that follows; of several events the first counts. A delete waits until it is confirmed.",
    labels: &[("op", OPERATIONS)],
};
pub(super) const STALE_READS: Metric = Metric {
    name: "tributary_stale_reads_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Reads by id that showed less than the event had told of: a replica is behind.",
    labels: &[],
};
pub(super) const TOMBSTONES: Metric = Metric {
    name: "tributary_tombstones_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Deleted records, by what said so.",
    labels: &[("cause", &["event"])],
};
pub(super) const TOMBSTONES_BRAKED: Metric = Metric {
    name: "tributary_tombstones_braked_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Deletes that were held back because there were too many at once; one that is looked at again counts again. Alert on it.",
    labels: &[],
};
pub(super) const FENCE_ENTRIES: Metric = Metric {
    name: "tributary_fence_entries",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Records whose last published version this worker keeps, of the shards it has.",
    labels: &[],
};
pub(super) const EPOCHS_RAISED: Metric = Metric {
    name: "tributary_epochs_raised_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Records that were published again under the next epoch because the provider itself went back. Alert on it.",
    labels: &[],
};
pub(super) const FENCE_RESTORE: Metric = Metric {
    name: "tributary_fence_restore_seconds",
    kind: Kind::Histogram(&[0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0]),
    unit: Unit::Seconds,
    help: "Time to read the fences of a shard when it was taken.",
    labels: &[],
};
pub(super) const FENCE_RESTORED: Metric = Metric {
    name: "tributary_fence_restored_records_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Fences that were read from Kafka when shards were taken.",
    labels: &[],
};

/// An event was followed; `outcome` is one of the metric's.
pub fn event_enriched(outcome: &'static str) {
    debug_assert!(OUTCOMES.contains(&outcome), "{outcome}");
    counter!(ENRICH_EVENTS.name, "outcome" => outcome).increment(1);
}

/// So many records were committed at this moment, in microseconds since 1970; `origin` and `entity` are of the metric's.
pub fn records_changed(origin: &'static str, entity: &'static str, is_deleted: bool, count: u64, at: i64) {
    debug_assert!(CHANGED_BY.contains(&origin) && ENTITIES.contains(&entity), "{origin}, {entity}");
    let op = operation(is_deleted);
    counter!(RECORD_CHANGES.name, "origin" => origin, "entity" => entity, "op" => op).increment(count);
    gauge!(LAST_CHANGE.name, "origin" => origin).set(at as f64 / 1e6);
}

/// So many records more or less are under way, and parked. Shards share the series, so each adds its part.
pub fn enrich_under_way(open: i64, parked: i64) {
    gauge!(ENRICH_OPEN.name).increment(open as f64);
    gauge!(ENRICH_PARKED.name).increment(parked as f64);
}

/// A record was committed so many microseconds after what its first event tells of.
pub fn end_to_end(micros: i64, is_deleted: bool) {
    histogram!(END_TO_END.name, "op" => operation(is_deleted)).record(micros.max(0) as f64 / 1e6);
}

const fn operation(is_deleted: bool) -> &'static str {
    if is_deleted { "delete" } else { "publish" }
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
