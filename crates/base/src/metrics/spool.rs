//! The spool.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::names::*;

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

/// Number of entries in the spool that this version cannot read.
pub fn spool_foreign(entries: u64) {
    gauge!(SPOOL_FOREIGN.name).set(entries as f64);
}

/// Numbers of databases of the spool that could not be opened, and that lie aside.
pub fn spool_leaves_out(unopened: usize, aside: usize) {
    gauge!(SPOOL_UNOPENED.name).set(unopened as f64);
    gauge!(SPOOL_ASIDE.name).set(aside as f64);
}

/// The spool takes this much disk.
pub fn spool_takes(bytes: u64) {
    gauge!(SPOOL_DISK_BYTES.name).set(bytes as f64);
}

/// Numbers of entries that came to the spool and left it.
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

/// Number of stretches of the spool that cannot be read.
pub fn spool_unreadable(stretches: u64) {
    counter!(SPOOL_UNREADABLE.name).increment(stretches);
}
