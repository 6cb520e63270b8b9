//! What access to the provider costs and how it fares: requests, waits, refreshes, checks, pages.

use std::time::Duration;

use metrics::{Unit, counter, gauge, histogram};

use super::names::LATENCY;
use super::{Kind, Metric};

const AREAS: &[&str] = &["accounting", "payroll", "invoicing", "identity"];
const OUTCOMES: &[&str] = &[
    "ok",
    "refused",
    "unauthorized",
    "forbidden",
    "not_found",
    "throttled",
    "quota",
    "server",
    "unreachable",
    "timeout",
    "malformed",
    "oversized",
];
const LANES: &[&str] = &["webhook", "repair", "snapshot"];
const REASONS: &[&str] = &["budget", "company", "throttled", "circuit", "token"];
const HOSTS: &[&str] = &["api", "identity"];
const DRIFTS: &[&str] = &["short", "clamped", "duplicate", "repeated", "total", "header", "cached"];
const REFRESHES: &[&str] = &["refreshed", "not_sent", "refused", "unknown", "recovered", "salvaged", "lost"];
const CHECKS: &[&str] = &["good", "signature", "issuer", "audience", "time", "malformed", "no_key"];
/// Up to the longest that a request may wait for its turn.
const WAITS: &[f64] = &[0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0];

pub(super) const API_REQUESTS: Metric = Metric {
    name: "tributary_api_requests_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Requests to the provider by area and how they ended.",
    labels: &[("area", AREAS), ("outcome", OUTCOMES)],
};
pub(super) const API_REQUEST_SECONDS: Metric = Metric {
    name: "tributary_api_request_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time from sending a request to the last byte of its answer.",
    labels: &[("area", AREAS)],
};
pub(super) const API_WAIT_SECONDS: Metric = Metric {
    name: "tributary_api_wait_seconds",
    kind: Kind::Histogram(WAITS),
    unit: Unit::Seconds,
    help: "Time that requests waited before they were sent, by lane and by what they waited for.",
    labels: &[("lane", LANES), ("reason", REASONS)],
};
pub(super) const API_BUDGET_RATIO: Metric = Metric {
    name: "tributary_api_budget_ratio",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "The rate at which requests are sent now as a part of the budget; below 1 while the provider throttles.",
    labels: &[],
};
pub(super) const API_CIRCUIT_OPEN: Metric = Metric {
    name: "tributary_api_circuit_open",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Hosts of the provider that fail and are asked by single probes only.",
    labels: &[("host", HOSTS)],
};
pub(super) const PAGE_DRIFT: Metric = Metric {
    name: "tributary_page_drift_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Oddities of paged lists: short pages, rows seen before, pages repeated, totals or headers that do not fit, caches.",
    labels: &[("kind", DRIFTS)],
};
pub(super) const TOKEN_REFRESHES: Metric = Metric {
    name: "tributary_token_refreshes_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Refreshes of grants that this worker tried, by how they ended.",
    labels: &[("outcome", REFRESHES)],
};
pub(super) const TOKENS_CHECKED: Metric = Metric {
    name: "tributary_tokens_checked_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Tokens of the provider that were checked, by result.",
    labels: &[("outcome", CHECKS)],
};
pub(super) const CLOCK_DIFFERENCE: Metric = Metric {
    name: "tributary_clock_difference_seconds",
    kind: Kind::Gauge,
    unit: Unit::Seconds,
    help: "How far the provider's clock is ahead of this machine's, by its answers.",
    labels: &[],
};

/// Which API a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiArea {
    /// Accounting.
    Accounting,
    /// Payroll.
    Payroll,
    /// Invoicing.
    Invoicing,
    /// The identity service.
    Identity,
}

impl ApiArea {
    /// Its name, as in errors and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Accounting => "accounting",
            Self::Payroll => "payroll",
            Self::Invoicing => "invoicing",
            Self::Identity => "identity",
        }
    }
}

/// Which host of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiHost {
    /// That of the APIs.
    Api,
    /// The identity service.
    Identity,
}

impl ApiHost {
    /// Its name, as in logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Identity => "identity",
        }
    }
}

/// How a request to the provider ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiOutcome {
    /// With an answer that can be used.
    Ok,
    /// The request itself is not taken.
    Refused,
    /// 401.
    Unauthorized,
    /// 403 that is no quota.
    Forbidden,
    /// 404 or 410.
    NotFound,
    /// 429.
    Throttled,
    /// 403 for a quota.
    Quota,
    /// Any 5xx.
    Server,
    /// No connection, or a broken one.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// An answer that is none.
    Malformed,
    /// An answer that is too large.
    Oversized,
}

impl ApiOutcome {
    const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Throttled => "throttled",
            Self::Quota => "quota",
            Self::Server => "server",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
        }
    }
}

/// What a request waits for before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiWait {
    /// The application's budget.
    Budget,
    /// The company's budget.
    Company,
    /// The provider has named a pause.
    Throttled,
    /// The host fails.
    Circuit,
    /// A token is on its way.
    Token,
}

impl ApiWait {
    const fn label(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Company => "company",
            Self::Throttled => "throttled",
            Self::Circuit => "circuit",
            Self::Token => "token",
        }
    }
}

/// What is odd about a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    /// Fewer rows than asked for, and more behind it.
    Short,
    /// The same when it was read again.
    Clamped,
    /// A row that an earlier page had.
    Duplicate,
    /// The same rows as the page before.
    Repeated,
    /// The total that is told changed, or does not fit.
    Total,
    /// The paging header cannot be read.
    Header,
    /// It lay in a cache on the way.
    Cached,
}

impl Drift {
    const fn label(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Clamped => "clamped",
            Self::Duplicate => "duplicate",
            Self::Repeated => "repeated",
            Self::Total => "total",
            Self::Header => "header",
            Self::Cached => "cached",
        }
    }
}

/// How a refresh of a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refresh {
    /// With new tokens that are kept.
    Refreshed,
    /// The token was certainly not presented.
    NotSent,
    /// The client or the request was refused, the grant was not.
    Refused,
    /// Nobody knows whether the provider acted.
    Unknown,
    /// A refresh that somebody left open was tried again with success.
    Recovered,
    /// An answer that came late was still of use.
    Salvaged,
    /// The grant is lost.
    Lost,
}

impl Refresh {
    const fn label(self) -> &'static str {
        match self {
            Self::Refreshed => "refreshed",
            Self::NotSent => "not_sent",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
            Self::Recovered => "recovered",
            Self::Salvaged => "salvaged",
            Self::Lost => "lost",
        }
    }
}

/// What the check of a token found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCheck {
    /// Nothing wrong.
    Good,
    /// Not signed by a key of the provider.
    Signature,
    /// Another issuer.
    Issuer,
    /// Another audience.
    Audience,
    /// Over, or not begun.
    Time,
    /// No token at all.
    Malformed,
    /// The key is not known.
    NoKey,
}

impl TokenCheck {
    const fn label(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Signature => "signature",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Time => "time",
            Self::Malformed => "malformed",
            Self::NoKey => "no_key",
        }
    }
}

/// A request to the provider ended, so long after it was sent.
pub fn api_request_ended(area: ApiArea, outcome: ApiOutcome, elapsed: Duration) {
    counter!(API_REQUESTS.name, "area" => area.label(), "outcome" => outcome.label()).increment(1);
    histogram!(API_REQUEST_SECONDS.name, "area" => area.label()).record(elapsed.as_secs_f64());
}

/// A request of this lane has waited for something. `lane` is one of the three.
pub fn api_waited(lane: &'static str, reason: ApiWait, waited: Duration) {
    histogram!(API_WAIT_SECONDS.name, "lane" => lane, "reason" => reason.label())
        .record(waited.as_secs_f64());
}

/// The rate of now as a part of the budget.
pub fn api_budget_ratio(ratio: f64) {
    gauge!(API_BUDGET_RATIO.name).set(ratio);
}

/// A host is asked by probes only from now on.
pub fn api_circuit_opened(host: ApiHost) {
    gauge!(API_CIRCUIT_OPEN.name, "host" => host.label()).increment(1.0);
}

/// A host is asked freely again, or not at all any more.
pub fn api_circuit_closed(host: ApiHost) {
    gauge!(API_CIRCUIT_OPEN.name, "host" => host.label()).decrement(1.0);
}

/// A page was odd, so many times.
pub fn page_drifted(kind: Drift, count: u64) {
    counter!(PAGE_DRIFT.name, "kind" => kind.label()).increment(count);
}

/// A refresh ended.
pub fn token_refreshed(outcome: Refresh) {
    counter!(TOKEN_REFRESHES.name, "outcome" => outcome.label()).increment(1);
}

/// A token was checked.
pub fn token_checked(outcome: TokenCheck) {
    counter!(TOKENS_CHECKED.name, "outcome" => outcome.label()).increment(1);
}

/// The provider's clock is so far ahead of ours, in seconds.
pub fn clock_difference(seconds: f64) {
    gauge!(CLOCK_DIFFERENCE.name).set(seconds);
}
