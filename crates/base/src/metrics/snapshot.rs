//! Metrics of snapshots.

use metrics::counter;

use super::names::*;

/// A page was requested; `outcome` is one of the metric's.
pub fn page_read(list: &'static str, outcome: &'static str) {
    counter!(SNAPSHOT_PAGES.name, "entity" => list, "outcome" => outcome).increment(1);
}

/// `count` rows of a list were compared.
pub fn list_rows(list: &'static str, count: u64) {
    counter!(SNAPSHOT_ROWS.name, "entity" => list).increment(count);
}

/// A list was read to its end.
pub fn list_ended(list: &'static str, method: &'static str) {
    counter!(SNAPSHOT_CERTIFIED.name, "entity" => list, "method" => method).increment(1);
}

/// A list was held back for a person to check.
pub fn snapshot_braked() {
    counter!(SNAPSHOT_BRAKED.name).increment(1);
}

/// A row was older than what is published.
pub fn row_was_old() {
    counter!(SNAPSHOT_OLD_ROWS.name).increment(1);
}
