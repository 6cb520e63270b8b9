//! What is measured of lists that are read in full.

use metrics::{Unit, counter};

use super::{Kind, Metric};

const LISTS: &[&str] = &["companies", "customers", "accounts", "payroll"];
const METHODS: &[&str] = &["single", "counting", "none"];

pub(super) const SNAPSHOT_PAGES: Metric = Metric {
    name: "tributary_snapshot_pages_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Pages of lists, by list and by whether they could be read.",
    labels: &[("entity", LISTS), ("outcome", &["read", "failed"])],
};
pub(super) const SNAPSHOT_ROWS: Metric = Metric {
    name: "tributary_snapshot_records_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Rows of lists that were compared with what is published, by list.",
    labels: &[("entity", LISTS)],
};
pub(super) const SNAPSHOT_CERTIFIED: Metric = Metric {
    name: "tributary_snapshot_certified_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Lists that were read to their end, by what proves them complete; none where nothing does.",
    labels: &[("entity", LISTS), ("method", METHODS)],
};
pub(super) const SNAPSHOT_BRAKED: Metric = Metric {
    name: "tributary_snapshot_braked_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Lists that lacked so many known records that they wait for a person.",
    labels: &[],
};
pub(super) const SNAPSHOT_OLD_ROWS: Metric = Metric {
    name: "tributary_snapshot_stale_rows_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Rows of lists that were older than what is published.",
    labels: &[],
};

/// A page was asked for; `outcome` is one of the metric's.
pub fn page_read(list: &'static str, outcome: &'static str) {
    counter!(SNAPSHOT_PAGES.name, "entity" => list, "outcome" => outcome).increment(1);
}

/// So many rows of a list were compared.
pub fn list_rows(list: &'static str, count: u64) {
    counter!(SNAPSHOT_ROWS.name, "entity" => list).increment(count);
}

/// A list was read to its end.
pub fn list_ended(list: &'static str, method: &'static str) {
    counter!(SNAPSHOT_CERTIFIED.name, "entity" => list, "method" => method).increment(1);
}

/// A list waits for a person.
pub fn snapshot_braked() {
    counter!(SNAPSHOT_BRAKED.name).increment(1);
}

/// A row was older than what is published.
pub fn row_was_old() {
    counter!(SNAPSHOT_OLD_ROWS.name).increment(1);
}
