//! Brokers that freeze, die, stall or lose connections while the product publishes and reads: every record arrives once and in order,
//! and a reader that cannot continue reports it.
//!
//! `TRIBUTARY_TEST_OUTAGE_SECONDS` sets how long outages last, 3 by default; with it each test also prints its figures.

mod cluster;
mod missing_markers;
mod publishing;
mod reading;
mod single;

use std::time::Duration;

use crate::support::harness::Test;

const SECONDS: &str = "TRIBUTARY_TEST_OUTAGE_SECONDS";

pub(crate) fn tests() -> Vec<Test> {
    [reading::tests(), single::tests(), cluster::tests(), missing_markers::tests()]
        .into_iter()
        .flatten()
        .collect()
}

/// Duration of an outage.
fn length() -> Duration {
    let seconds = std::env::var(SECONDS).map_or(3, |text| {
        text.trim().parse().unwrap_or_else(|_| panic!("{SECONDS} is {text:?}: set it to whole seconds"))
    });
    Duration::from_secs(seconds)
}

/// Whether tests print their figures.
fn wants_figures() -> bool {
    std::env::var_os(SECONDS).is_some()
}
