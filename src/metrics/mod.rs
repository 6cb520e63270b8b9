//! Every metric: name, unit, help text, labels with all their values, and the functions that move it.
//!
//! Nobody else names a metric (clippy refuses the macros elsewhere). All series are registered at start with zero, so an
//! alert on a rate works before the first event. Labels have a closed set of values; company ids are never labels.
//! [`live`] has those whose labels are names of connectors: they are read at every scrape and not kept.

#![expect(clippy::disallowed_macros, reason = "this file is the one home of metric names")]

pub mod live;

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

/// What a metric measures and how.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
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
    pub kind: Kind,
    /// Unit of the value.
    pub unit: Unit,
    /// One sentence for the reader of a dashboard.
    pub help: &'static str,
    /// Label keys with every value they can take.
    pub labels: &'static [(&'static str, &'static [&'static str])],
}

const ORIGINS: &[&str] = &["webhook", "enrichment", "snapshot", "repair"];
const STAGES: &[&str] = &["read", "convert", "produce"];
const GAP_CAUSES: &[&str] = &["spool", "stopped", "oversized"];
const CLIENTS: &[&str] = &["producer", "consumer", "transactional", "admin"];
/// Patterns of the admin listeners' paths; what else is asked for counts as `other`, so that nobody makes series by asking.
const ROUTES: &[&str] = &[
    "/",
    "/admin/declarations",
    "/admin/loggers",
    "/admin/loggers/{logger}",
    "/connector-plugins",
    "/connector-plugins/{plugin}/config",
    "/connector-plugins/{plugin}/config/validate",
    "/connectors",
    "/connectors/{name}",
    "/connectors/{name}/config",
    "/connectors/{name}/offsets",
    "/connectors/{name}/pause",
    "/connectors/{name}/restart",
    "/connectors/{name}/resume",
    "/connectors/{name}/status",
    "/connectors/{name}/stop",
    "/connectors/{name}/tasks",
    "/connectors/{name}/tasks-config",
    "/connectors/{name}/tasks/{task}/restart",
    "/connectors/{name}/tasks/{task}/status",
    "/connectors/{name}/topics",
    "/connectors/{name}/topics/reset",
    "/health",
    "/health/live",
    "/health/ready",
    "/metrics",
    OTHER,
];
const OTHER: &str = "other";
const FAMILIES: &[&str] = &["accounting", "invoicing"];
const REFUSALS: &[&str] = &[
    "route",
    "starting",
    "stopped",
    "shed",
    "source",
    "signature",
    "echo",
    "slow",
    "broken",
    "oversized",
    "oversized_verified",
];
const STATUSES: &[&str] = &["2xx", "4xx", "5xx"];
const LATENCY: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const BUILD_INFO: Metric = Metric {
    name: "tributary_build_info",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Always 1; the label says which version runs.",
    labels: &[("version", &[env!("CARGO_PKG_VERSION")])],
};
const RECORDS_PUBLISHED: Metric = Metric {
    name: "tributary_records_published_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Records acknowledged by Kafka, or committed in a transaction, by where they came from.",
    labels: &[("origin", ORIGINS)],
};
const PUBLISH_SECONDS: Metric = Metric {
    name: "tributary_publish_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time from handing a record to the producer to Kafka's acknowledgement.",
    labels: &[],
};
const EVENTS_FAILED: Metric = Metric {
    name: "tributary_events_failed_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Failed attempts to publish a record, by the stage that failed; retries count again.",
    labels: &[("stage", STAGES)],
};
const DEAD_LETTERS: Metric = Metric {
    name: "tributary_dead_letters_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Records written to the dead-letter topic, by the stage that refused them.",
    labels: &[("stage", STAGES)],
};
const QUEUE_BYTES: Metric = Metric {
    name: "tributary_queue_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes taken in and not settled yet, by queue.",
    labels: &[("queue", &["pipeline"])],
};
const QUEUE_LIMIT_BYTES: Metric = Metric {
    name: "tributary_queue_limit_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes a queue may hold before intake waits.",
    labels: &[("queue", &["pipeline"])],
};
const TRANSACTIONS: Metric = Metric {
    name: "tributary_kafka_transactions_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Shard transactions by how they ended; `settled` means that one ended what a broker had lost track of.",
    labels: &[("outcome", &["committed", "aborted", "fenced", "rebuilt", "settled"])],
};
const SCHEMA_REGISTRATIONS: Metric = Metric {
    name: "tributary_schema_registrations_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Schemas asked for at the registry, by outcome; `cached` means the registry was away and the id on disk was used.",
    labels: &[("outcome", &["registered", "cached", "incompatible", "unauthorised", "unavailable"])],
};
const KAFKA_QUEUED_MESSAGES: Metric = Metric {
    name: "tributary_kafka_queued_messages",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Messages waiting inside librdkafka, over all clients of a kind; from its statistics.",
    labels: &[("client", CLIENTS)],
};
const KAFKA_QUEUED_BYTES: Metric = Metric {
    name: "tributary_kafka_queued_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes waiting inside librdkafka, over all clients of a kind; from its statistics.",
    labels: &[("client", CLIENTS)],
};
const KAFKA_SENT_BYTES: Metric = Metric {
    name: "tributary_kafka_sent_bytes_total",
    kind: Kind::Counter,
    unit: Unit::Bytes,
    help: "Bytes sent to brokers, by client; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
const KAFKA_RECEIVED_BYTES: Metric = Metric {
    name: "tributary_kafka_received_bytes_total",
    kind: Kind::Counter,
    unit: Unit::Bytes,
    help: "Bytes received from brokers, by client; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
const KAFKA_REQUEST_ERRORS: Metric = Metric {
    name: "tributary_kafka_request_errors_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Failed requests and timeouts to brokers, by client; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
const KAFKA_BROKERS_UP: Metric = Metric {
    name: "tributary_kafka_brokers_up",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Working connections to brokers, over all clients of a kind; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
const KAFKA_ROUND_TRIP: Metric = Metric {
    name: "tributary_kafka_round_trip_seconds",
    kind: Kind::Gauge,
    unit: Unit::Seconds,
    help: "Slowest broker's average round trip in the last statistics window of a client of this kind.",
    labels: &[("client", CLIENTS)],
};
const GAPS_WRITTEN: Metric = Metric {
    name: "tributary_gaps_written_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Gaps written to a state topic: deliveries that may be missing, by cause.",
    labels: &[("cause", GAP_CAUSES)],
};
const GAPS_UNWRITTEN: Metric = Metric {
    name: "tributary_gaps_unwritten",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Gaps that were found and that Kafka has not got yet.",
    labels: &[],
};
const REST_REQUESTS: Metric = Metric {
    name: "tributary_rest_requests_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Requests to the admin listeners, by the path's pattern and the first digit of the answer's status.",
    labels: &[("route", ROUTES), ("status", STATUSES)],
};
const REST_SECONDS: Metric = Metric {
    name: "tributary_rest_request_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time from a request's head to the head of its answer, by whether it asks or changes something.",
    labels: &[("effect", &["read", "change"])],
};

const DELIVERIES: Metric = Metric {
    name: "tributary_deliveries_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Verified deliveries by how they ended: durable and acknowledged were answered 200, full and late 503.",
    labels: &[("family", FAMILIES), ("outcome", &["durable", "acknowledged", "full", "late"])],
};
const DELIVERIES_REFUSED: Metric = Metric {
    name: "tributary_deliveries_refused_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Requests to the public listeners that were refused, by reason. Alert on oversized_verified: those were the \
           provider's.",
    labels: &[("reason", REFUSALS)],
};
const DELIVERIES_REPEATED: Metric = Metric {
    name: "tributary_deliveries_repeated_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Deliveries whose id was seen before, and that were answered by what became of the first.",
    labels: &[],
};
const DELIVERY_SECONDS: Metric = Metric {
    name: "tributary_delivery_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time from the head of a delivery's request to its answer, for verified ones; the provider waits 5 seconds.",
    labels: &[("family", FAMILIES)],
};
const ACKNOWLEDGEMENTS_DROPPED: Metric = Metric {
    name: "tributary_acknowledgements_dropped_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Acknowledge events that were answered and then dropped, because too many waited to be noted.",
    labels: &[],
};
const CONNECTIONS_REFUSED: Metric = Metric {
    name: "tributary_connections_refused_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Connections closed because their address had as many as one may have.",
    labels: &[],
};
const CERTIFICATES_LOADED: Metric = Metric {
    name: "tributary_certificates_loaded_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Changed certificates that a listener took up, or refused and went on with the one before.",
    labels: &[("outcome", &["taken", "refused"])],
};
const SPOOL_ENTRIES: Metric = Metric {
    name: "tributary_spool_entries",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Entries in the spool: accepted and not in Kafka yet.",
    labels: &[],
};
const SPOOL_BYTES: Metric = Metric {
    name: "tributary_spool_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes of the entries in the spool; `spool.limit.bytes` bounds it.",
    labels: &[],
};
const SPOOL_OLDEST: Metric = Metric {
    name: "tributary_spool_oldest_seconds",
    kind: Kind::Gauge,
    unit: Unit::Seconds,
    help: "How long the oldest entry has been in the spool; 0 when it is empty.",
    labels: &[],
};
const SPOOL_DISK_BYTES: Metric = Metric {
    name: "tributary_spool_disk_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes the spool takes on disk, without databases that were moved aside.",
    labels: &[],
};
const SPOOL_APPENDED: Metric = Metric {
    name: "tributary_spool_appended_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Entries written to the spool and synced.",
    labels: &[],
};
const SPOOL_REMOVED: Metric = Metric {
    name: "tributary_spool_removed_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Entries removed from the spool because Kafka has them; its rate is the drain rate.",
    labels: &[],
};
const SPOOL_COMMIT_SECONDS: Metric = Metric {
    name: "tributary_spool_commit_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time to write and sync one batch of the spool; its count is the number of commits.",
    labels: &[],
};
const SPOOL_FAILURES: Metric = Metric {
    name: "tributary_spool_failures_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Databases of the spool that failed to write or to sync and were replaced by fresh ones.",
    labels: &[],
};
const SPOOL_UNREADABLE: Metric = Metric {
    name: "tributary_spool_unreadable_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Stretches of the spool, of one entry or more, that cannot be read.",
    labels: &[],
};

/// Every metric of the product that is kept, in the order the reference shows them.
pub const ALL: &[Metric] = &[
    BUILD_INFO,
    RECORDS_PUBLISHED,
    PUBLISH_SECONDS,
    EVENTS_FAILED,
    DEAD_LETTERS,
    QUEUE_BYTES,
    QUEUE_LIMIT_BYTES,
    TRANSACTIONS,
    SCHEMA_REGISTRATIONS,
    KAFKA_QUEUED_MESSAGES,
    KAFKA_QUEUED_BYTES,
    KAFKA_SENT_BYTES,
    KAFKA_RECEIVED_BYTES,
    KAFKA_REQUEST_ERRORS,
    KAFKA_BROKERS_UP,
    KAFKA_ROUND_TRIP,
    SPOOL_ENTRIES,
    SPOOL_BYTES,
    SPOOL_OLDEST,
    SPOOL_DISK_BYTES,
    SPOOL_APPENDED,
    SPOOL_REMOVED,
    SPOOL_COMMIT_SECONDS,
    SPOOL_FAILURES,
    SPOOL_UNREADABLE,
    DELIVERIES,
    DELIVERIES_REFUSED,
    DELIVERIES_REPEATED,
    DELIVERY_SECONDS,
    ACKNOWLEDGEMENTS_DROPPED,
    CONNECTIONS_REFUSED,
    CERTIFICATES_LOADED,
    GAPS_WRITTEN,
    GAPS_UNWRITTEN,
    REST_REQUESTS,
    REST_SECONDS,
];

/// Describes every metric to the installed recorder and creates every series with zero.
pub fn register() {
    for metric in ALL {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.unit, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.unit, metric.help),
            Kind::Histogram(_) => describe_histogram!(metric.name, metric.unit, metric.help),
        }
        for labels in label_sets(metric.labels) {
            match metric.kind {
                Kind::Counter => counter!(metric.name, &labels).absolute(0),
                Kind::Gauge => gauge!(metric.name, &labels).set(0.0),
                // A histogram without samples has no series until one is created; creating it is enough.
                Kind::Histogram(_) => drop(histogram!(metric.name, &labels)),
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

/// The step of the publish path at which something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Understanding what was read.
    Read,
    /// Turning a record into bytes.
    Convert,
    /// Handing bytes to Kafka.
    Produce,
}

impl Stage {
    fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Convert => "convert",
            Self::Produce => "produce",
        }
    }
}

/// Why deliveries may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapCause {
    /// Part of the spool cannot be read.
    Spool,
    /// The connector was stopped.
    Stopped,
    /// A verified delivery was too large.
    Oversized,
}

impl GapCause {
    /// The label value, also used in the keys of gaps.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Spool => "spool",
            Self::Stopped => "stopped",
            Self::Oversized => "oversized",
        }
    }
}

/// How a shard transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// All of it is visible.
    Committed,
    /// None of it is visible; the producer goes on.
    Aborted,
    /// Another owner took the shard.
    Fenced,
    /// The producer failed for good and a new one took its place.
    Rebuilt,
    /// None of it was meant to be visible: it ended what an earlier owner had left hanging.
    Settled,
}

/// What the registry said about one of our schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// It has an id from the registry.
    Registered,
    /// The registry was away; the id comes from disk.
    Cached,
    /// Refused by the compatibility rule.
    Incompatible,
    /// Refused our credentials.
    Unauthorised,
    /// No usable answer.
    Unavailable,
}

/// The kind of Kafka client a statistic is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// The idempotent producer.
    Producer,
    /// A consumer.
    Consumer,
    /// A shard's transactional producer.
    Transactional,
    /// The topic admin.
    Admin,
}

impl Client {
    /// The label value, also used as the client's role name in logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Consumer => "consumer",
            Self::Transactional => "transactional",
            Self::Admin => "admin",
        }
    }
}

/// The API a delivery is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryFamily {
    /// Accounting.
    Accounting,
    /// Invoicing.
    Invoicing,
}

impl DeliveryFamily {
    fn label(self) -> &'static str {
        match self {
            Self::Accounting => "accounting",
            Self::Invoicing => "invoicing",
        }
    }
}

/// How a verified delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryEnd {
    /// Kafka or the spool has it.
    Durable,
    /// It asked whether its address takes deliveries.
    Acknowledged,
    /// There was no room for it.
    Full,
    /// Neither Kafka nor the disk answered in time.
    Late,
}

/// Why a request to a public listener was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No connector is received there, or not by that method.
    Route,
    /// It is not known yet whether a connector is received there.
    Starting,
    /// The connector is stopped.
    Stopped,
    /// Too many bytes are on their way already.
    Shed,
    /// Nothing may be delivered from that address.
    Source,
    /// No secret of the connector made its signature.
    Signature,
    /// It asked for something to be echoed that is no GUID.
    Echo,
    /// The body did not come in time.
    Slow,
    /// The body did not come whole.
    Broken,
    /// The body was too long to find out whose it is.
    Oversized,
    /// The provider's own, and larger than the connector takes.
    OversizedVerified,
}

impl Refusal {
    fn label(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Starting => "starting",
            Self::Stopped => "stopped",
            Self::Shed => "shed",
            Self::Source => "source",
            Self::Signature => "signature",
            Self::Echo => "echo",
            Self::Slow => "slow",
            Self::Broken => "broken",
            Self::Oversized => "oversized",
            Self::OversizedVerified => "oversized_verified",
        }
    }
}

/// What changed in one client between two windows of librdkafka's statistics. Several clients of a kind share a series,
/// so each adds its part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientStatistics {
    /// Messages more or less in the client's queue.
    pub queued_messages: i64,
    /// Bytes more or less in the client's queue.
    pub queued_bytes: i64,
    /// Bytes sent since the last window.
    pub sent_bytes: u64,
    /// Bytes received since the last window.
    pub received_bytes: u64,
    /// Failed or timed-out requests since the last window.
    pub request_errors: u64,
    /// Working connections to brokers more or less.
    pub brokers_up: i64,
    /// Slowest broker's average round trip.
    pub round_trip: Duration,
}

/// `count` records of this origin are acknowledged or committed.
pub fn records_published(origin: &'static str, count: u64) {
    counter!(RECORDS_PUBLISHED.name, "origin" => origin).increment(count);
}

/// A record was acknowledged this long after it was handed over.
pub fn published_after(elapsed: Duration) {
    histogram!(PUBLISH_SECONDS.name).record(elapsed.as_secs_f64());
}

/// An attempt to publish failed at this stage.
pub fn publish_failed(stage: Stage) {
    counter!(EVENTS_FAILED.name, "stage" => stage.label()).increment(1);
}

/// A record went to the dead-letter topic.
pub fn dead_letter_written(stage: Stage) {
    counter!(DEAD_LETTERS.name, "stage" => stage.label()).increment(1);
}

/// The pipelines of this process hold this much more or less. They share a series, so each adds its part.
pub fn pipeline_queue_changed(bytes: i64) {
    gauge!(QUEUE_BYTES.name, "queue" => "pipeline").increment(bytes as f64);
}

/// A pipeline with this limit has begun, or with its negative has ended.
pub fn pipeline_limit_changed(bytes: i64) {
    gauge!(QUEUE_LIMIT_BYTES.name, "queue" => "pipeline").increment(bytes as f64);
}

/// A shard transaction ended.
pub fn transaction_ended(outcome: Transaction) {
    let outcome = match outcome {
        Transaction::Committed => "committed",
        Transaction::Aborted => "aborted",
        Transaction::Fenced => "fenced",
        Transaction::Rebuilt => "rebuilt",
        Transaction::Settled => "settled",
    };
    counter!(TRANSACTIONS.name, "outcome" => outcome).increment(1);
}

/// The registry was asked for a schema's id.
pub fn schema_requested(outcome: Registration) {
    let outcome = match outcome {
        Registration::Registered => "registered",
        Registration::Cached => "cached",
        Registration::Incompatible => "incompatible",
        Registration::Unauthorised => "unauthorised",
        Registration::Unavailable => "unavailable",
    };
    counter!(SCHEMA_REGISTRATIONS.name, "outcome" => outcome).increment(1);
}

/// A window of librdkafka's statistics has ended for a client of this kind.
pub fn client_statistics(client: Client, window: &ClientStatistics) {
    let client = client.label();
    gauge!(KAFKA_QUEUED_MESSAGES.name, "client" => client).increment(window.queued_messages as f64);
    gauge!(KAFKA_QUEUED_BYTES.name, "client" => client).increment(window.queued_bytes as f64);
    counter!(KAFKA_SENT_BYTES.name, "client" => client).increment(window.sent_bytes);
    counter!(KAFKA_RECEIVED_BYTES.name, "client" => client).increment(window.received_bytes);
    counter!(KAFKA_REQUEST_ERRORS.name, "client" => client).increment(window.request_errors);
    gauge!(KAFKA_BROKERS_UP.name, "client" => client).increment(window.brokers_up as f64);
    gauge!(KAFKA_ROUND_TRIP.name, "client" => client).set(window.round_trip.as_secs_f64());
}

/// The spool holds this much, the oldest of it for this long.
pub fn spool_holds(entries: u64, bytes: u64, oldest: Duration) {
    gauge!(SPOOL_ENTRIES.name).set(entries as f64);
    gauge!(SPOOL_BYTES.name).set(bytes as f64);
    gauge!(SPOOL_OLDEST.name).set(oldest.as_secs_f64());
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

/// A verified delivery was answered this long after the head of its request.
pub fn delivery_ended(family: DeliveryFamily, end: DeliveryEnd, elapsed: Duration) {
    let outcome = match end {
        DeliveryEnd::Durable => "durable",
        DeliveryEnd::Acknowledged => "acknowledged",
        DeliveryEnd::Full => "full",
        DeliveryEnd::Late => "late",
    };
    counter!(DELIVERIES.name, "family" => family.label(), "outcome" => outcome).increment(1);
    histogram!(DELIVERY_SECONDS.name, "family" => family.label()).record(elapsed.as_secs_f64());
}

/// A request to a public listener was refused.
pub fn delivery_refused(reason: Refusal) {
    counter!(DELIVERIES_REFUSED.name, "reason" => reason.label()).increment(1);
}

/// A delivery's id had been seen before.
pub fn delivery_repeated() {
    counter!(DELIVERIES_REPEATED.name).increment(1);
}

/// An Acknowledge was answered, and could not be passed on.
pub fn acknowledgement_dropped() {
    counter!(ACKNOWLEDGEMENTS_DROPPED.name).increment(1);
}

/// A connection was closed because its address had too many.
pub fn connection_refused() {
    counter!(CONNECTIONS_REFUSED.name).increment(1);
}

/// A listener's certificate changed on disk, and was taken up or not.
pub fn certificate_loaded(taken: bool) {
    let outcome = if taken { "taken" } else { "refused" };
    counter!(CERTIFICATES_LOADED.name, "outcome" => outcome).increment(1);
}

/// Kafka has a gap.
pub fn gap_written(cause: GapCause) {
    counter!(GAPS_WRITTEN.name, "cause" => cause.label()).increment(1);
}

/// So many gaps wait for Kafka.
pub fn gaps_unwritten(count: usize) {
    gauge!(GAPS_UNWRITTEN.name).set(count as f64);
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

/// Whether requests to paths of this pattern are counted apart.
#[must_use]
pub fn knows_route(route: &str) -> bool {
    ROUTES.contains(&route)
}
