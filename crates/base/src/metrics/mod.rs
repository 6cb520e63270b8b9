//! Every metric: name, kind, help text, labels with all their values, and the functions that update it.
//!
//! Metrics are named only here (clippy refuses the macros elsewhere). All series are registered at start with zero, so an
//! alert on a rate works before the first event. Labels have a fixed set of values; company ids are never labels. [`live`] has
//! the metrics with connector names as labels, which are read at every scrape.

#![expect(clippy::disallowed_macros, reason = "metric names are defined only in this module")]

mod access;
mod cached_series;
mod enrich;
mod labels;
pub mod live;
mod names;
mod reference;
mod snapshot;
mod spool;

use std::time::Duration;

pub use self::{
    access::*, cached_series::cache_series, enrich::*, labels::*, names::ALL, reference::reference,
    snapshot::*, spool::*,
};
use names::*;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

/// What a metric measures and how.
#[derive(Debug, Clone, Copy)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Distribution over these upper bounds, in the metric's unit.
    Histogram(&'static [f64]),
}

/// One metric as users see it.
#[derive(Debug)]
pub struct Metric {
    /// Full Prometheus name.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// One sentence for the reader of a dashboard.
    pub help: &'static str,
    /// Label keys with every value they can take.
    pub labels: &'static [(&'static str, &'static [&'static str])],
}

/// Describes every metric to the installed recorder and creates every series with zero.
pub fn register() {
    for metric in ALL {
        match metric.kind {
            MetricKind::Counter => describe_counter!(metric.name, metric.help),
            MetricKind::Gauge => describe_gauge!(metric.name, metric.help),
            MetricKind::Histogram(_) => describe_histogram!(metric.name, metric.help),
        }
        for labels in label_sets(metric.labels) {
            match metric.kind {
                MetricKind::Counter => counter!(metric.name, &labels).absolute(0),
                MetricKind::Gauge => gauge!(metric.name, &labels).set(0.0),
                // Creating a histogram is enough to show its series.
                MetricKind::Histogram(_) => drop(histogram!(metric.name, &labels)),
            }
        }
    }
    gauge!(BUILD_INFO.name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// Every combination of label values.
fn label_sets(labels: &[(&'static str, &'static [&'static str])]) -> Vec<Vec<(&'static str, &'static str)>> {
    labels.iter().fold(vec![vec![]], |sets, (key, values)| {
        let with = |set: &Vec<_>, value: &&'static str| [set.as_slice(), &[(*key, *value)]].concat();
        sets.iter().flat_map(|set| values.iter().map(move |value| with(set, value))).collect()
    })
}

/// Changes of one client between two windows of librdkafka's statistics. Clients of a kind share a series, so each adds its
/// part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientStatistics {
    /// Change in the number of queued messages.
    pub queued_messages: i64,
    /// Change in the number of queued bytes.
    pub queued_bytes: i64,
    /// Bytes sent since the last window.
    pub sent_bytes: u64,
    /// Bytes received since the last window.
    pub received_bytes: u64,
    /// Failed or timed-out requests since the last window.
    pub request_errors: u64,
    /// Change in the number of working broker connections.
    pub brokers_up: i64,
    /// Slowest broker's average round trip.
    pub round_trip: Duration,
}

/// `count` records of this origin are acknowledged or committed.
pub fn records_published(origin: &'static str, count: u64) {
    match cached_series::get() {
        Some(kept) if origin == "webhook" => kept.published.increment(count),
        _ => counter!(RECORDS_PUBLISHED.name, "origin" => origin).increment(count),
    }
}

/// An accounting event is acknowledged; `entity` and `outcome` are of the metric's.
pub fn accounting_event_published(entity: &'static str, outcome: &'static str) {
    debug_assert!(RESOURCES.contains(&entity) && EVENT_OUTCOMES.contains(&outcome), "{entity}, {outcome}");
    match cached_series::get().and_then(|kept| kept.accounting_events.get(&(entity, outcome))) {
        Some(series) => series.increment(1),
        None => {
            counter!(ACCOUNTING_EVENTS.name, "entity" => entity, "outcome" => outcome).increment(1);
        }
    }
}

/// A record was acknowledged this long after it was sent.
pub fn published_after(elapsed: Duration) {
    match cached_series::get() {
        Some(kept) => kept.published_after.record(elapsed.as_secs_f64()),
        None => histogram!(PUBLISH_SECONDS.name).record(elapsed.as_secs_f64()),
    }
}

/// An attempt to publish failed at this stage.
pub fn publish_failed(stage: PublishStage) {
    counter!(EVENTS_FAILED.name, "stage" => stage.label()).increment(1);
}

/// A record went to the dead-letter topic, for an error of this class.
pub fn dead_letter_written(stage: PublishStage, class: &'static str) {
    let reason = if REASONS.contains(&class) { class } else { OTHER_REASON };
    counter!(DEAD_LETTERS.name, "stage" => stage.label(), "reason" => reason).increment(1);
}

/// A shard transaction ended.
pub fn transaction_ended(outcome: Transaction) {
    counter!(TRANSACTIONS.name, "outcome" => outcome.label()).increment(1);
}

/// The registry was asked for a schema's id.
pub fn schema_requested(outcome: RegistrationOutcome) {
    counter!(SCHEMA_REGISTRATIONS.name, "outcome" => outcome.label()).increment(1);
}

/// A window of librdkafka's statistics has ended for a client of this kind.
pub fn client_statistics(client: KafkaClient, window: &ClientStatistics) {
    let client = client.label();
    gauge!(KAFKA_QUEUED_MESSAGES.name, "client" => client).increment(window.queued_messages as f64);
    gauge!(KAFKA_QUEUED_BYTES.name, "client" => client).increment(window.queued_bytes as f64);
    counter!(KAFKA_SENT_BYTES.name, "client" => client).increment(window.sent_bytes);
    counter!(KAFKA_RECEIVED_BYTES.name, "client" => client).increment(window.received_bytes);
    counter!(KAFKA_REQUEST_ERRORS.name, "client" => client).increment(window.request_errors);
    gauge!(KAFKA_BROKERS_UP.name, "client" => client).increment(window.brokers_up as f64);
    gauge!(KAFKA_ROUND_TRIP.name, "client" => client).set(window.round_trip.as_secs_f64());
}

/// A verified delivery was answered this long after the head of its request.
pub fn delivery_ended(family: DeliveryFamily, end: DeliveryEnd, elapsed: Duration) {
    if let (Some(kept), DeliveryEnd::Durable) = (cached_series::get(), end) {
        let series = kept.durable(family);
        series.count.increment(1);
        series.seconds.record(elapsed.as_secs_f64());
        return;
    }
    counter!(DELIVERIES.name, "family" => family.label(), "outcome" => end.label()).increment(1);
    histogram!(DELIVERY_SECONDS.name, "family" => family.label()).record(elapsed.as_secs_f64());
}

/// A request to a public listener was refused; `family` is the API whose address it came to.
pub fn delivery_refused(family: Option<DeliveryFamily>, reason: RefusalReason) {
    let family = family.map_or("none", DeliveryFamily::label);
    counter!(DELIVERIES_REFUSED.name, "family" => family, "reason" => reason.label()).increment(1);
}

/// A delivery with a known id arrived.
pub fn delivery_repeated() {
    counter!(DELIVERIES_REPEATED.name).increment(1);
}

/// An Acknowledge was answered but could not be recorded.
pub fn acknowledgement_dropped() {
    counter!(ACKNOWLEDGEMENTS_DROPPED.name).increment(1);
}

/// A connection was closed because its address had too many.
pub fn connection_refused() {
    counter!(CONNECTIONS_REFUSED.name).increment(1);
}

/// An idle connection was closed for a new one.
pub fn connection_gave_way() {
    counter!(CONNECTIONS_GAVE_WAY.name).increment(1);
}

/// A listener's certificate changed on disk and was loaded or refused.
pub fn certificate_loaded(taken: bool) {
    let outcome = if taken { "taken" } else { "refused" };
    counter!(CERTIFICATES_LOADED.name, "outcome" => outcome).increment(1);
}

/// When the certificate chain of a listener (`rest` or `webhook`) expires, in seconds since 1970.
pub fn certificate_expires(listener: &'static str, at: i64) {
    gauge!(CERTIFICATE_EXPIRY.name, "listener" => listener).set(at as f64);
}

/// A gap of this cause was written to Kafka.
pub fn gap_written(cause: &'static str) {
    counter!(GAPS_WRITTEN.name, "cause" => cause).increment(1);
}

/// `count` gaps are waiting to be written to Kafka.
pub fn gaps_unwritten(count: usize) {
    gauge!(GAPS_UNWRITTEN.name).set(count as f64);
}

/// A call to the provider about a subscription ended; `outcome` is `done`, `gone`, `refused` or `failed`.
pub fn subscription_called(call: &'static str, outcome: &'static str) {
    counter!(CALLS_OF_SUBSCRIPTIONS.name, "call" => call, "outcome" => outcome).increment(1);
}

/// A request to an admin listener was answered. `route` is the pattern its path has, if it has one.
pub fn rest_answered(route: Option<&str>, changes: bool, status: u16, elapsed: Duration) {
    let route = route.map(|route| if route.len() > 1 { route.trim_end_matches('/') } else { route });
    let route = ROUTES.iter().find(|known| Some(**known) == route).copied().unwrap_or(OTHER);
    let status = match status {
        ..400 => "2xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    counter!(REST_REQUESTS.name, "route" => route, "status" => status).increment(1);
    let effect = if changes { "change" } else { "read" };
    histogram!(REST_SECONDS.name, "effect" => effect).record(elapsed.as_secs_f64());
}

/// Whether requests to this route are counted separately.
#[must_use]
pub fn knows_route(route: &str) -> bool {
    ROUTES.contains(&route)
}
