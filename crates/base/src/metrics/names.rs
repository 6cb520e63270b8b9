//! Every metric that is kept: name, unit, help text, and its labels with all their values.

use metrics::Unit;

use super::access::{
    API_BUDGET_RATIO, API_CIRCUIT_OPEN, API_REQUEST_SECONDS, API_REQUESTS, API_WAIT_SECONDS,
    CLOCK_DIFFERENCE, PAGE_DRIFT, TOKEN_REFRESHES, TOKENS_CHECKED,
};
use super::enrich::{
    END_TO_END, ENRICH_EVENTS, ENRICH_OPEN, ENRICH_PARKED, EPOCHS_RAISED, FENCE_ENTRIES, FENCE_RESTORE,
    FENCE_RESTORED, LAST_CHANGE, RECORD_CHANGES, STALE_READS, TOMBSTONES, TOMBSTONES_BRAKED,
};
use super::snapshot::{
    SNAPSHOT_BRAKED, SNAPSHOT_CERTIFIED, SNAPSHOT_OLD_ROWS, SNAPSHOT_PAGES, SNAPSHOT_ROWS,
};
use super::spool::{
    SPOOL_APPENDED, SPOOL_ASIDE, SPOOL_BYTES, SPOOL_COMMIT_SECONDS, SPOOL_DISK_BYTES, SPOOL_ENTRIES,
    SPOOL_FAILURES, SPOOL_FOREIGN, SPOOL_LIMIT_BYTES, SPOOL_OLDEST, SPOOL_REMOVED, SPOOL_UNOPENED,
    SPOOL_UNREADABLE,
};
use super::{Kind, Metric};

pub(super) const ORIGINS: &[&str] = &["webhook", "enrichment", "snapshot", "repair"];
pub(super) const STAGES: &[&str] = &["read", "convert", "produce"];
/// Kinds of errors that make dead letters, as their headers name them.
pub(super) const REASONS: &[&str] = &[
    "model::Error::Malformed",
    "model::Error::NotAnObject",
    "model::Error::TooManyNotifications",
    "model::Error::Unplaceable",
    "model::Error::Unversioned",
    "model::Error",
    "avro::Error::Encode",
    "avro::Error::WrongSchema",
    "avro::Error::ForeignTopic",
    "avro::Error",
    "kafka::Error::RecordRefused",
    "enrich::Foreign",
    "enrich::FloorUnmet",
    "enrich::Unreadable",
    "enrich::Misplaced",
    OTHER_REASON,
];
pub(super) const OTHER_REASON: &str = "other";
pub(super) const GAP_CAUSES: &[&str] = &[
    "spool",
    "stopped",
    "oversized",
    "disabled",
    "lost",
    "awaiting",
    "silence",
    "moved",
    "secret",
    "retention",
    "floor",
    "unreadable",
];
pub(super) const SUBSCRIPTION_CALLS: &[&str] =
    &["names", "subscribe", "read", "identify", "enable", "move", "delete", "list"];
pub(super) const CALL_OUTCOMES: &[&str] = &["done", "gone", "refused", "failed"];
pub(super) const CLIENTS: &[&str] = &["producer", "consumer", "transactional", "admin"];
/// Patterns of the admin listeners' paths; what else is asked for counts as `other`, so that nobody makes series by asking.
pub(super) const ROUTES: &[&str] = &[
    "/",
    "/admin/declarations",
    "/admin/loggers",
    "/admin/loggers/{logger}",
    "/connector-plugins",
    "/connector-plugins/{plugin}/config",
    "/connector-plugins/{plugin}/config/validate",
    "/connectors",
    "/connectors/{name}",
    "/connectors/{name}/certificates",
    "/connectors/{name}/config",
    "/connectors/{name}/gaps",
    "/connectors/{name}/gaps/accept",
    "/connectors/{name}/offsets",
    "/connectors/{name}/pause",
    "/connectors/{name}/restart",
    "/connectors/{name}/resume",
    "/connectors/{name}/snapshots",
    "/connectors/{name}/snapshots/{run}",
    "/connectors/{name}/snapshots/{run}/pause",
    "/connectors/{name}/snapshots/{run}/resume",
    "/connectors/{name}/snapshots/{run}/stop",
    "/connectors/{name}/status",
    "/connectors/{name}/stop",
    "/connectors/{name}/subscriptions",
    "/connectors/{name}/subscriptions/apply",
    "/connectors/{name}/subscriptions/plan",
    "/connectors/{name}/subscriptions/remove",
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
pub(super) const OTHER: &str = "other";
pub(super) const FAMILIES: &[&str] = &["accounting", "invoicing"];
/// Those, and requests to the address of neither.
pub(super) const REFUSED_FAMILIES: &[&str] = &["accounting", "invoicing", "none"];
pub(super) const REFUSALS: &[&str] = &[
    "route",
    "unknown",
    "starting",
    "faulty",
    "stopped",
    "shed",
    "throttled",
    "source",
    "unsigned",
    "signature",
    "echo",
    "slow",
    "broken",
    "oversized",
    "oversized_verified",
];
pub(super) const STATUSES: &[&str] = &["2xx", "4xx", "5xx"];
pub(super) const LATENCY: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// A sender gives up after five seconds: what comes close to that is told apart.
pub(super) const ANSWERED: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0];

pub(super) const BUILD_INFO: Metric = Metric {
    name: "tributary_build_info",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Always 1; the label says which version runs.",
    labels: &[("version", &[env!("CARGO_PKG_VERSION")])],
};
pub(super) const RECORDS_PUBLISHED: Metric = Metric {
    name: "tributary_records_published_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Records acknowledged by Kafka, or committed in a transaction, by where they came from.",
    labels: &[("origin", ORIGINS)],
};
pub(super) const PUBLISH_SECONDS: Metric = Metric {
    name: "tributary_publish_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time from handing a record to the producer to Kafka's acknowledgement.",
    labels: &[],
};
pub(super) const EVENTS_FAILED: Metric = Metric {
    name: "tributary_events_failed_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Failed attempts to publish a record, by the stage that failed; retries count again.",
    labels: &[("stage", STAGES)],
};
pub(super) const DEAD_LETTERS: Metric = Metric {
    name: "tributary_dead_letters_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Records written to the dead-letter topic, by the stage that refused them and the kind of error.",
    labels: &[("stage", STAGES), ("reason", REASONS)],
};
pub(super) const TRANSACTIONS: Metric = Metric {
    name: "tributary_kafka_transactions_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Shard transactions by how they ended; `settled` means that one ended what a broker had lost track of, `completed` that it made visible what a broker had committed and not told all partitions of.",
    labels: &[("outcome", &["committed", "aborted", "fenced", "rebuilt", "settled", "completed"])],
};
pub(super) const SCHEMA_REGISTRATIONS: Metric = Metric {
    name: "tributary_schema_registrations_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Schemas asked for at the registry, by outcome; `cached` means the registry was away and the id on disk was used.",
    labels: &[("outcome", &["registered", "cached", "incompatible", "unauthorised", "unavailable"])],
};
pub(super) const KAFKA_QUEUED_MESSAGES: Metric = Metric {
    name: "tributary_kafka_queued_messages",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Messages waiting inside librdkafka, over all clients of a kind; from its statistics.",
    labels: &[("client", CLIENTS)],
};
pub(super) const KAFKA_QUEUED_BYTES: Metric = Metric {
    name: "tributary_kafka_queued_bytes",
    kind: Kind::Gauge,
    unit: Unit::Bytes,
    help: "Bytes waiting inside librdkafka, over all clients of a kind; from its statistics.",
    labels: &[("client", CLIENTS)],
};
pub(super) const KAFKA_SENT_BYTES: Metric = Metric {
    name: "tributary_kafka_sent_bytes_total",
    kind: Kind::Counter,
    unit: Unit::Bytes,
    help: "Bytes sent to brokers, by client; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
pub(super) const KAFKA_RECEIVED_BYTES: Metric = Metric {
    name: "tributary_kafka_received_bytes_total",
    kind: Kind::Counter,
    unit: Unit::Bytes,
    help: "Bytes received from brokers, by client; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
pub(super) const KAFKA_REQUEST_ERRORS: Metric = Metric {
    name: "tributary_kafka_request_errors_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Failed requests and timeouts to brokers, by client; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
pub(super) const KAFKA_BROKERS_UP: Metric = Metric {
    name: "tributary_kafka_brokers_up",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Working connections to brokers, over all clients of a kind; from librdkafka's statistics.",
    labels: &[("client", CLIENTS)],
};
pub(super) const KAFKA_ROUND_TRIP: Metric = Metric {
    name: "tributary_kafka_round_trip_seconds",
    kind: Kind::Gauge,
    unit: Unit::Seconds,
    help: "Slowest broker's average round trip in the last statistics window of a client of this kind.",
    labels: &[("client", CLIENTS)],
};
pub(super) const GAPS_WRITTEN: Metric = Metric {
    name: "tributary_gaps_written_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Gaps written to a state topic: deliveries that may be missing, by cause.",
    labels: &[("cause", GAP_CAUSES)],
};
pub(super) const CALLS_OF_SUBSCRIPTIONS: Metric = Metric {
    name: "tributary_subscription_calls_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Calls to the provider about subscriptions, by what was asked and what came of it.",
    labels: &[("call", SUBSCRIPTION_CALLS), ("outcome", CALL_OUTCOMES)],
};
pub(super) const GAPS_UNWRITTEN: Metric = Metric {
    name: "tributary_gaps_unwritten",
    kind: Kind::Gauge,
    unit: Unit::Count,
    help: "Gaps that were found and that Kafka has not got yet.",
    labels: &[],
};
pub(super) const REST_REQUESTS: Metric = Metric {
    name: "tributary_rest_requests_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Requests to the admin listeners, by the path's pattern and the first digit of the answer's status.",
    labels: &[("route", ROUTES), ("status", STATUSES)],
};
pub(super) const REST_SECONDS: Metric = Metric {
    name: "tributary_rest_request_seconds",
    kind: Kind::Histogram(LATENCY),
    unit: Unit::Seconds,
    help: "Time from a request's head to the head of its answer, by whether it asks or changes something.",
    labels: &[("effect", &["read", "change"])],
};

pub(super) const DELIVERIES: Metric = Metric {
    name: "tributary_deliveries_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Verified deliveries by how they ended: durable and acknowledged were answered 200, full and late 503.",
    labels: &[("family", FAMILIES), ("outcome", &["durable", "acknowledged", "full", "late"])],
};
pub(super) const DELIVERIES_REFUSED: Metric = Metric {
    name: "tributary_deliveries_refused_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Requests to the public listeners that were refused, by the API whose address they came to and by reason. Alert \
           on oversized_verified: those were the provider's. unsigned lacks the signature header, signature has one that \
           no secret of the connector made. throttled counts requests of addresses that sent too many bytes without a \
           valid signature.",
    labels: &[("family", REFUSED_FAMILIES), ("reason", REFUSALS)],
};
pub(super) const DELIVERIES_REPEATED: Metric = Metric {
    name: "tributary_deliveries_repeated_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Deliveries whose id was seen before, and that were answered by what became of the first.",
    labels: &[],
};
pub(super) const DELIVERY_SECONDS: Metric = Metric {
    name: "tributary_delivery_seconds",
    kind: Kind::Histogram(ANSWERED),
    unit: Unit::Seconds,
    help: "Time from the head of a delivery's request to its answer, for verified ones; the provider waits 5 seconds.",
    labels: &[("family", FAMILIES)],
};
pub(super) const ACKNOWLEDGEMENTS_DROPPED: Metric = Metric {
    name: "tributary_acknowledgements_dropped_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Acknowledge events that were answered and then dropped, because too many waited to be noted.",
    labels: &[],
};
pub(super) const CONNECTIONS_REFUSED: Metric = Metric {
    name: "tributary_connections_refused_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Connections closed because their address had as many as one may have.",
    labels: &[],
};
pub(super) const CONNECTIONS_GAVE_WAY: Metric = Metric {
    name: "tributary_connections_gave_way_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Connections without a request at work that were closed to make room for a new one.",
    labels: &[],
};
pub(super) const CERTIFICATES_LOADED: Metric = Metric {
    name: "tributary_certificates_loaded_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Changed certificates that a listener took up, or refused and went on with the one before.",
    labels: &[("outcome", &["taken", "refused"])],
};
pub(super) const CERTIFICATE_EXPIRY: Metric = Metric {
    name: "tributary_certificate_expiry_timestamp_seconds",
    kind: Kind::Gauge,
    unit: Unit::Seconds,
    help: "When the first certificate of the chain ends that listeners serve, in seconds since 1970; 0 where they serve none.",
    labels: &[("listener", &["rest", "webhook"])],
};
/// Every metric of the product that is kept, in the order the reference shows them.
pub const ALL: &[Metric] = &[
    BUILD_INFO,
    RECORDS_PUBLISHED,
    PUBLISH_SECONDS,
    EVENTS_FAILED,
    DEAD_LETTERS,
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
    SPOOL_LIMIT_BYTES,
    SPOOL_OLDEST,
    SPOOL_DISK_BYTES,
    SPOOL_APPENDED,
    SPOOL_REMOVED,
    SPOOL_COMMIT_SECONDS,
    SPOOL_FAILURES,
    SPOOL_UNREADABLE,
    SPOOL_FOREIGN,
    SPOOL_UNOPENED,
    SPOOL_ASIDE,
    DELIVERIES,
    DELIVERIES_REFUSED,
    DELIVERIES_REPEATED,
    DELIVERY_SECONDS,
    ACKNOWLEDGEMENTS_DROPPED,
    CONNECTIONS_REFUSED,
    CONNECTIONS_GAVE_WAY,
    CERTIFICATES_LOADED,
    CERTIFICATE_EXPIRY,
    ENRICH_EVENTS,
    RECORD_CHANGES,
    LAST_CHANGE,
    ENRICH_OPEN,
    ENRICH_PARKED,
    END_TO_END,
    STALE_READS,
    TOMBSTONES,
    TOMBSTONES_BRAKED,
    FENCE_ENTRIES,
    EPOCHS_RAISED,
    FENCE_RESTORE,
    FENCE_RESTORED,
    SNAPSHOT_PAGES,
    SNAPSHOT_ROWS,
    SNAPSHOT_CERTIFIED,
    SNAPSHOT_BRAKED,
    SNAPSHOT_OLD_ROWS,
    GAPS_WRITTEN,
    GAPS_UNWRITTEN,
    CALLS_OF_SUBSCRIPTIONS,
    REST_REQUESTS,
    REST_SECONDS,
    API_REQUESTS,
    API_REQUEST_SECONDS,
    API_WAIT_SECONDS,
    API_BUDGET_RATIO,
    API_CIRCUIT_OPEN,
    PAGE_DRIFT,
    TOKEN_REFRESHES,
    TOKENS_CHECKED,
    CLOCK_DIFFERENCE,
];
