//! Metrics of the spool.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::names::*;

/// The spool's content, and the age of its oldest entry.
pub fn spool_holds(entries: u64, bytes: u64, oldest: Duration) {
    gauge!(SPOOL_ENTRIES.name).set(entries as f64);
    gauge!(SPOOL_BYTES.name).set(bytes as f64);
    gauge!(SPOOL_OLDEST.name).set(oldest.as_secs_f64());
}

/// The spool's limit in bytes.
pub fn spool_limited(bytes: u64) {
    gauge!(SPOOL_LIMIT_BYTES.name).set(bytes as f64);
}

/// Number of entries in the spool that this version cannot read.
pub fn spool_foreign(entries: u64) {
    gauge!(SPOOL_FOREIGN.name).set(entries as f64);
}

/// Numbers of spool databases that could not be opened, and that were moved aside.
pub fn spool_leaves_out(unopened: usize, aside: usize) {
    gauge!(SPOOL_UNOPENED.name).set(unopened as f64);
    gauge!(SPOOL_ASIDE.name).set(aside as f64);
}

/// Disk usage of the spool in bytes.
pub fn spool_takes(bytes: u64) {
    gauge!(SPOOL_DISK_BYTES.name).set(bytes as f64);
}

/// Numbers of entries appended to and removed from the spool.
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

/// Number of unreadable ranges of the spool.
pub fn spool_unreadable(stretches: u64) {
    counter!(SPOOL_UNREADABLE.name).increment(stretches);
}
