//! Metrics of requests to the provider: waits, outcomes, refreshes, token checks, pages.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::{ApiArea, ApiHost, ApiOutcome, ApiWait, PageAnomaly, RefreshLabel, TokenCheck, names::*};

/// A request to the provider ended this long after it was sent.
pub fn api_request_ended(area: ApiArea, outcome: ApiOutcome, elapsed: Duration) {
    counter!(API_REQUESTS.name, "area" => area.label(), "outcome" => outcome.label()).increment(1);
    histogram!(API_REQUEST_SECONDS.name, "area" => area.label()).record(elapsed.as_secs_f64());
}

/// A request has waited before it was sent. `lane` is one of the metric's.
pub fn api_waited(lane: &'static str, reason: ApiWait, waited: Duration) {
    histogram!(API_WAIT_SECONDS.name, "lane" => lane, "reason" => reason.label())
        .record(waited.as_secs_f64());
}

/// The current request rate as a fraction of the budget.
pub fn api_budget_ratio(ratio: f64) {
    gauge!(API_BUDGET_RATIO.name).set(ratio);
}

/// A host's circuit has opened.
pub fn api_circuit_opened(host: ApiHost) {
    gauge!(API_CIRCUIT_OPEN.name, "host" => host.label()).increment(1.0);
}

/// A host's circuit has closed, or its client was dropped.
pub fn api_circuit_closed(host: ApiHost) {
    gauge!(API_CIRCUIT_OPEN.name, "host" => host.label()).decrement(1.0);
}

/// A page had `count` anomalies of this kind.
pub fn page_drifted(kind: PageAnomaly, count: u64) {
    counter!(PAGE_DRIFT.name, "kind" => kind.label()).increment(count);
}

/// A refresh ended.
pub fn token_refreshed(outcome: RefreshLabel) {
    counter!(TOKEN_REFRESHES.name, "outcome" => outcome.label()).increment(1);
}

/// A token was checked.
pub fn token_checked(outcome: TokenCheck) {
    counter!(TOKENS_CHECKED.name, "outcome" => outcome.label()).increment(1);
}

/// How far the provider's clock is ahead of ours, in seconds.
pub fn clock_difference(seconds: f64) {
    gauge!(CLOCK_DIFFERENCE.name).set(seconds);
}
