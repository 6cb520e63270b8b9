//! What is measured of the spool.

use std::time::Duration;

use metrics::{Unit, counter, gauge, histogram};

use super::names::LATENCY;
use super::{Kind, Metric};

pub(super) const SPOOL_ENTRIES: Metric = Metric {
    name: "tributary_spool_entries",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Entries in the spool: accepted and not in Kafka yet.",
    labels: &[],
};
pub(super) const SPOOL_BYTES: Metric = Metric {
    name: "tributary_spool_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes of the entries in the spool; tributary_spool_limit_bytes bounds it.",
    labels: &[],
};
pub(super) const SPOOL_LIMIT_BYTES: Metric = Metric {
    name: "tributary_spool_limit_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes the spool may hold before deliveries are answered 503: `spool.limit.bytes` of all that are received.",
    labels: &[],
};
pub(super) const SPOOL_OLDEST: Metric = Metric {
    name: "tributary_spool_oldest_seconds",
    kind: Kind::Gauge,
    unit: Unit::Seconds,
    help: "How long the oldest entry has been in the spool; 0 when it is empty.",
    labels: &[],
};
pub(super) const SPOOL_DISK_BYTES: Metric = Metric {
    name: "tributary_spool_disk_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes the spool takes on disk, without databases that were moved aside.",
    labels: &[],
};
pub(super) const SPOOL_APPENDED: Metric = Metric {
    name: "tributary_spool_appended_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Entries written to the spool and synced.",
    labels: &[],
};
pub(super) const SPOOL_REMOVED: Metric = Metric {
    name: "tributary_spool_removed_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Entries removed from the spool because Kafka has them; its rate is the drain rate.",
    labels: &[],
};
pub(super) const SPOOL_COMMIT_SECONDS: Metric = Metric {
    name: "tributary_spool_commit_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time to write and sync one batch of the spool; its count is the number of commits.",
    labels: &[],
};
pub(super) const SPOOL_FAILURES: Metric = Metric {
    name: "tributary_spool_failures_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Databases of the spool that failed to write or to sync and were replaced by fresh ones.",
    labels: &[],
};
pub(super) const SPOOL_UNREADABLE: Metric = Metric {
    name: "tributary_spool_unreadable_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Stretches of the spool, of one entry or more, that cannot be read.",
    labels: &[],
};
pub(super) const SPOOL_FOREIGN: Metric = Metric {
    name: "tributary_spool_foreign_entries",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Entries of the spool that this version cannot read; they stay for one that can, and are counted nowhere else.",
    labels: &[],
};
pub(super) const SPOOL_UNOPENED: Metric = Metric {
    name: "tributary_spool_unopened_databases",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Databases of the spool that could not be opened: what they hold is counted nowhere, and a restart takes it up.",
    labels: &[],
};
pub(super) const SPOOL_ASIDE: Metric = Metric {
    name: "tributary_spool_aside_databases",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Broken databases that lie aside in the spool's directory, for people: what could be read of them is counted.",
    labels: &[],
};

/// The spool holds this much, the oldest of it for this long.
pub fn spool_holds(entries: u64, bytes: u64, oldest: Duration) {
    gauge!(SPOOL_ENTRIES.name).set(entries as f64);
    gauge!(SPOOL_BYTES.name).set(bytes as f64);
    gauge!(SPOOL_OLDEST.name).set(oldest.as_secs_f64());
}

/// The spool may hold this much.
pub fn spool_limited(bytes: u64) {
    gauge!(SPOOL_LIMIT_BYTES.name).set(bytes as f64);
}

/// The spool holds so many entries that this version cannot read.
pub fn spool_foreign(entries: u64) {
    gauge!(SPOOL_FOREIGN.name).set(entries as f64);
}

/// So many databases of the spool could not be opened, and so many lie aside.
pub fn spool_leaves_out(unopened: usize, aside: usize) {
    gauge!(SPOOL_UNOPENED.name).set(unopened as f64);
    gauge!(SPOOL_ASIDE.name).set(aside as f64);
}

/// The spool takes this much disk.
pub fn spool_takes(bytes: u64) {
    gauge!(SPOOL_DISK_BYTES.name).set(bytes as f64);
}

/// So many entries came to the spool and left it.
pub fn spool_changed(appended: u64, removed: u64) {
    counter!(SPOOL_APPENDED.name).increment(appended);
    counter!(SPOOL_REMOVED.name).increment(removed);
}

/// The spool wrote and synced a batch in this time.
pub fn spool_committed(elapsed: Duration) {
    histogram!(SPOOL_COMMIT_SECONDS.name).record(elapsed.as_secs_f64());
}

/// A database of the spool failed.
pub fn spool_failed() {
    counter!(SPOOL_FAILURES.name).increment(1);
}

/// So many stretches of the spool cannot be read.
pub fn spool_unreadable(stretches: u64) {
    counter!(SPOOL_UNREADABLE.name).increment(stretches);
}
