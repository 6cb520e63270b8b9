//! Every metric that is kept: name, kind, labels with all their values, and help, in the order the reference shows them.

use strum::VariantNames as _;

use super::{
    ApiArea, ApiHost, ApiOutcome, ApiWait, DeliveryEnd, DeliveryFamily, KafkaClient, Metric, MetricKind,
    PageAnomaly, PublishStage, RefreshLabel, RefusalReason, RegistrationOutcome, TokenCheck, Transaction,
};

const ORIGINS: &[&str] = &["webhook", "enrichment", "snapshot", "repair"];
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
const GAP_CAUSES: &[&str] = &[
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
const SUBSCRIPTION_CALLS: &[&str] =
    &["names", "subscribe", "read", "identify", "enable", "move", "delete", "list"];
const CALL_OUTCOMES: &[&str] = &["done", "gone", "refused", "failed"];
/// Patterns of the admin listeners' paths; what else is asked for counts as `other`, so that requests cannot create series.
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
/// Those, and requests to the address of neither.
const REFUSED_FAMILIES: &[&str] = &["accounting", "invoicing", "none"];
const STATUSES: &[&str] = &["2xx", "4xx", "5xx"];
const LATENCY_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// A sender gives up after five seconds: what comes close to that gets buckets.
const ANSWER_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0];
/// Parked records take longer than a minute.
const END_TO_END_BUCKETS: &[f64] =
    &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0];
pub(super) const ENRICH_OUTCOMES: &[&str] = &[
    "published",
    "deleted",
    "duplicate",
    "stale",
    "coalesced",
    "filtered",
    "parked",
    "foreign",
    "unreadable",
    "dead_lettered",
];
/// What can become of a record.
const OPERATIONS: &[&str] = &["publish", "delete"];
/// What leads to a record.
pub(super) const CHANGED_BY: &[&str] = &["enrichment", "snapshot", "repair"];
/// What a record can be.
pub(super) const ENTITIES: &[&str] = &[
    "accounts",
    "charges",
    "payments",
    "customers",
    "suppliers",
    "input-invoices",
    "issued-invoices",
    "journals",
    "companies",
    "accounting-years",
    "persons",
    "corporate-legal-entities",
    "individual-legal-entities",
    "activities",
    "estimations",
    "legal-entity-licences",
    "prorates",
    "income-allocation-legal-entities",
    "integration-files",
    "payroll",
];
/// Entities that have accounting events: all but the last, payroll.
pub(super) const RESOURCES: &[&str] = ENTITIES.split_at(ENTITIES.len() - 1).0;
/// What an accounting event can report.
pub(super) const EVENT_OUTCOMES: &[&str] = &["created", "updated", "deleted", "disabled", "error", "other"];
const LISTS: &[&str] = &["companies", "customers", "accounts", "payroll"];
const METHODS: &[&str] = &["single", "counting", "none"];
const LANES: &[&str] = &["webhook", "repair", "snapshot"];
/// Up to the longest that a request may wait for its turn.
const WAIT_BUCKETS: &[f64] = &[0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0];

macro_rules! kept {
    ($($constant:ident = $kind:ident $(($bounds:expr))? $name:literal $labels:expr, $help:literal;)*) => {
        $(pub(super) const $constant: Metric =
            Metric { name: $name, kind: kept!(@ $kind $($bounds)?), help: $help, labels: $labels };)*
        /// Every metric of the product that is kept.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
    (@ counter) => { MetricKind::Counter };
    (@ gauge) => { MetricKind::Gauge };
    (@ histogram $bounds:expr) => { MetricKind::Histogram($bounds) };
}

kept! {
    BUILD_INFO = gauge "tributary_build_info" &[("version", &[env!("CARGO_PKG_VERSION")])],
        "Always 1; the label has the running version.";
    RECORDS_PUBLISHED = counter "tributary_records_published_total" &[("origin", ORIGINS)],
        "Records acknowledged by Kafka, or committed in a transaction, by origin.";
    ACCOUNTING_EVENTS = counter "tributary_accounting_events_total" &[("entity", RESOURCES), ("outcome", EVENT_OUTCOMES)],
        "Accounting events acknowledged by Kafka, by resource and by what they report: `error` is the provider's ErrorOccurred; `other` is an event of an unknown name. Repetitions that the same worker has seen do not count.";
    PUBLISH_SECONDS = histogram(LATENCY_BUCKETS) "tributary_publish_seconds" &[],
        "Time from sending a record to Kafka's acknowledgement.";
    EVENTS_FAILED = counter "tributary_events_failed_total" &[("stage", PublishStage::VARIANTS)],
        "Failed attempts to publish a record, by the stage that failed; retries count again.";
    DEAD_LETTERS = counter "tributary_dead_letters_total" &[("stage", PublishStage::VARIANTS), ("reason", REASONS)],
        "Records written to the dead-letter topic, by the stage that refused them and the kind of error.";
    TRANSACTIONS = counter "tributary_kafka_transactions_total" &[("outcome", Transaction::VARIANTS)],
        "Shard transactions by outcome; `settled` aborted a hanging transaction, `completed` committed a hanging transaction in the partitions that lacked its marker.";
    SCHEMA_REGISTRATIONS = counter "tributary_schema_registrations_total" &[("outcome", RegistrationOutcome::VARIANTS)],
        "Schemas requested from the registry, by outcome; `cached` means that the registry was unreachable and the id on disk was used.";
    KAFKA_QUEUED_MESSAGES = gauge "tributary_kafka_queued_messages" &[("client", KafkaClient::VARIANTS)],
        "Messages waiting inside librdkafka, over all clients of a kind; from its statistics.";
    KAFKA_QUEUED_BYTES = gauge "tributary_kafka_queued_bytes" &[("client", KafkaClient::VARIANTS)],
        "Bytes waiting inside librdkafka, over all clients of a kind; from its statistics.";
    KAFKA_SENT_BYTES = counter "tributary_kafka_sent_bytes_total" &[("client", KafkaClient::VARIANTS)],
        "Bytes sent to brokers, by client; from librdkafka's statistics.";
    KAFKA_RECEIVED_BYTES = counter "tributary_kafka_received_bytes_total" &[("client", KafkaClient::VARIANTS)],
        "Bytes received from brokers, by client; from librdkafka's statistics.";
    KAFKA_REQUEST_ERRORS = counter "tributary_kafka_request_errors_total" &[("client", KafkaClient::VARIANTS)],
        "Failed requests and timeouts to brokers, by client; from librdkafka's statistics.";
    KAFKA_BROKERS_UP = gauge "tributary_kafka_brokers_up" &[("client", KafkaClient::VARIANTS)],
        "Working connections to brokers, over all clients of a kind; from librdkafka's statistics.";
    KAFKA_ROUND_TRIP = gauge "tributary_kafka_round_trip_seconds" &[("client", KafkaClient::VARIANTS)],
        "Average round trip to the slowest broker in the last statistics window of a client of this kind.";
    SPOOL_ENTRIES = gauge "tributary_spool_entries" &[],
        "Entries in the spool: accepted deliveries that are not in Kafka yet.";
    SPOOL_BYTES = gauge "tributary_spool_bytes" &[],
        "Bytes of the entries in the spool; tributary_spool_limit_bytes bounds it.";
    SPOOL_LIMIT_BYTES = gauge "tributary_spool_limit_bytes" &[],
        "Bytes the spool may hold before deliveries are answered 503: the sum of `spool.limit.bytes` over the received connectors.";
    SPOOL_OLDEST = gauge "tributary_spool_oldest_seconds" &[],
        "How long the oldest entry has been in the spool; 0 when it is empty.";
    SPOOL_DISK_BYTES = gauge "tributary_spool_disk_bytes" &[],
        "Bytes the spool uses on disk, without databases that were moved aside.";
    SPOOL_APPENDED = counter "tributary_spool_appended_total" &[],
        "Entries written to the spool and synced.";
    SPOOL_REMOVED = counter "tributary_spool_removed_total" &[],
        "Entries removed from the spool because they are in Kafka; its rate is the drain rate.";
    SPOOL_COMMIT_SECONDS = histogram(LATENCY_BUCKETS) "tributary_spool_commit_seconds" &[],
        "Time to write and sync one batch of the spool; its count is the number of commits.";
    SPOOL_FAILURES = counter "tributary_spool_failures_total" &[],
        "Databases of the spool that failed to write or to sync and were replaced by fresh ones.";
    SPOOL_UNREADABLE = counter "tributary_spool_unreadable_total" &[],
        "Unreadable ranges of the spool, of one or more entries.";
    SPOOL_FOREIGN = gauge "tributary_spool_foreign_entries" &[],
        "Entries of the spool that this version cannot read; they are kept for a version that can, and are counted in no other metric.";
    SPOOL_UNOPENED = gauge "tributary_spool_unopened_databases" &[],
        "Databases of the spool that could not be opened: their entries are counted in no other metric, and a restart reads them.";
    SPOOL_ASIDE = gauge "tributary_spool_aside_databases" &[],
        "Broken databases that were moved aside in the spool's directory for inspection: their readable entries are counted.";
    DELIVERIES = counter "tributary_deliveries_total" &[("family", DeliveryFamily::VARIANTS), ("outcome", DeliveryEnd::VARIANTS)],
        "Verified deliveries by outcome: durable and acknowledged were answered 200, full and late 503.";
    DELIVERIES_REFUSED = counter "tributary_deliveries_refused_total" &[("family", REFUSED_FAMILIES), ("reason", RefusalReason::VARIANTS)],
        "Refused requests to the public listeners, by the API of the address and by reason. Alert on oversized_verified: those were sent by the provider. unsigned lacks the signature header; the header of signature matches no secret of the connector. throttled counts requests from addresses that sent too many bytes without a valid signature.";
    DELIVERIES_REPEATED = counter "tributary_deliveries_repeated_total" &[],
        "Deliveries with a known id, which were answered with the result of the first.";
    DELIVERY_SECONDS = histogram(ANSWER_BUCKETS) "tributary_delivery_seconds" &[("family", DeliveryFamily::VARIANTS)],
        "Time from the head of a delivery's request to its answer, for verified ones; the provider waits 5 seconds.";
    ACKNOWLEDGEMENTS_DROPPED = counter "tributary_acknowledgements_dropped_total" &[],
        "Acknowledge events that were answered and then dropped, because too many were waiting to be recorded.";
    CONNECTIONS_REFUSED = counter "tributary_connections_refused_total" &[],
        "Connections closed because their address had reached its limit.";
    CONNECTIONS_GAVE_WAY = counter "tributary_connections_gave_way_total" &[],
        "Idle connections that were closed to make room for new ones.";
    CERTIFICATES_LOADED = counter "tributary_certificates_loaded_total" &[("outcome", &["taken", "refused"])],
        "Changed certificates that a listener loaded, or refused and kept the previous one.";
    CERTIFICATE_EXPIRY = gauge "tributary_certificate_expiry_timestamp_seconds" &[("listener", &["rest", "webhook"])],
        "When the first certificate in the listeners' chain expires, in seconds since 1970; 0 without a certificate.";
    ENRICH_EVENTS = counter "tributary_enrich_events_total" &[("outcome", ENRICH_OUTCOMES)],
        "Processed events by outcome; a parked event counts again with its final outcome.";
    RECORD_CHANGES = counter "tributary_record_changes_total" &[("origin", CHANGED_BY), ("entity", ENTITIES), ("op", OPERATIONS)],
        "Records that were committed to their topics, by origin, entity and operation.";
    LAST_CHANGE = gauge "tributary_last_change_timestamp_seconds" &[("origin", CHANGED_BY)],
        "When this worker last committed a record to its topic, in seconds since 1970, by origin; 0 before the first.";
    ENRICH_OPEN = gauge "tributary_enrich_open_records" &[],
        "Records of events that are waiting to be read or committed, without parked ones.";
    ENRICH_PARKED = gauge "tributary_enrich_parked_records" &[],
        "Records of events that are parked in the state topic until they can be read.";
    END_TO_END = histogram(END_TO_END_BUCKETS) "tributary_end_to_end_latency_seconds" &[("op", OPERATIONS)],
        "Time from the change that an event reports, by the provider's timestamp if plausible and else by its delivery, to the commit of the resulting record; of several events the first counts. A delete waits until it is confirmed.";
    STALE_READS = counter "tributary_stale_reads_total" &[],
        "Reads by id that returned an older version than the event announced: a replica of the provider is behind.";
    TOMBSTONES = counter "tributary_tombstones_total" &[("cause", &["event"])],
        "Deleted records, by cause.";
    TOMBSTONES_BRAKED = counter "tributary_tombstones_braked_total" &[],
        "Deletes that were held back because there were too many at once; one that is reconsidered counts again. Alert on it.";
    FENCE_ENTRIES = gauge "tributary_fence_entries" &[],
        "Records whose last published version this worker stores, for the shards it owns.";
    EPOCHS_RAISED = counter "tributary_epochs_raised_total" &[],
        "Records that were published again in the next epoch because the provider returned to an older version. Alert on it.";
    FENCE_RESTORE = histogram(&[0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0]) "tributary_fence_restore_seconds" &[],
        "Time to read the fences of a shard when it was taken over.";
    FENCE_RESTORED = counter "tributary_fence_restored_records_total" &[],
        "Fences that were read from Kafka when shards were taken over.";
    SNAPSHOT_PAGES = counter "tributary_snapshot_pages_total" &[("entity", LISTS), ("outcome", &["read", "failed"])],
        "Pages of lists, by list and outcome.";
    SNAPSHOT_ROWS = counter "tributary_snapshot_records_total" &[("entity", LISTS)],
        "Rows of lists that were compared with the published records, by list.";
    SNAPSHOT_CERTIFIED = counter "tributary_snapshot_certified_total" &[("entity", LISTS), ("method", METHODS)],
        "Lists that were read to their end, by what proves them complete; `none` if nothing does.";
    SNAPSHOT_BRAKED = counter "tributary_snapshot_braked_total" &[],
        "Lists that were held back for a person to check, because too many known records were missing.";
    SNAPSHOT_OLD_ROWS = counter "tributary_snapshot_stale_rows_total" &[],
        "Rows of lists that were older than the published records.";
    GAPS_WRITTEN = counter "tributary_gaps_written_total" &[("cause", GAP_CAUSES)],
        "Gaps written to a state topic: deliveries that may be missing, by cause.";
    GAPS_UNWRITTEN = gauge "tributary_gaps_unwritten" &[],
        "Gaps that were found and are not written to Kafka yet.";
    CALLS_OF_SUBSCRIPTIONS = counter "tributary_subscription_calls_total" &[("call", SUBSCRIPTION_CALLS), ("outcome", CALL_OUTCOMES)],
        "Calls to the provider about subscriptions, by call and outcome.";
    REST_REQUESTS = counter "tributary_rest_requests_total" &[("route", ROUTES), ("status", STATUSES)],
        "Requests to the admin listeners, by route and status class.";
    REST_SECONDS = histogram(LATENCY_BUCKETS) "tributary_rest_request_seconds" &[("effect", &["read", "change"])],
        "Time from a request's head to the head of its response, by whether it reads or changes something.";
    API_REQUESTS = counter "tributary_api_requests_total" &[("area", ApiArea::VARIANTS), ("outcome", ApiOutcome::VARIANTS)],
        "Requests to the provider, by area and outcome.";
    API_REQUEST_SECONDS = histogram(LATENCY_BUCKETS) "tributary_api_request_seconds" &[("area", ApiArea::VARIANTS)],
        "Time from sending a request to the last byte of its response.";
    API_WAIT_SECONDS = histogram(WAIT_BUCKETS) "tributary_api_wait_seconds" &[("lane", LANES), ("reason", ApiWait::VARIANTS)],
        "Time that requests waited before they were sent, by lane and reason.";
    API_BUDGET_RATIO = gauge "tributary_api_budget_ratio" &[],
        "The current request rate as a fraction of the budget; below 1 while the provider throttles.";
    API_CIRCUIT_OPEN = gauge "tributary_api_circuit_open" &[("host", ApiHost::VARIANTS)],
        "Hosts of the provider whose circuit is open: they get single probes only.";
    PAGE_DRIFT = counter "tributary_page_drift_total" &[("kind", PageAnomaly::VARIANTS)],
        "Anomalies of paged lists: short pages, duplicate rows, repeated pages, wrong totals or headers, cached pages.";
    TOKEN_REFRESHES = counter "tributary_token_refreshes_total" &[("outcome", RefreshLabel::VARIANTS)],
        "Refreshes of grants by this worker, by outcome.";
    TOKENS_CHECKED = counter "tributary_tokens_checked_total" &[("outcome", TokenCheck::VARIANTS)],
        "Checked tokens of the provider, by result.";
    CLOCK_DIFFERENCE = gauge "tributary_clock_difference_seconds" &[],
        "How far the provider's clock is ahead of this machine's, according to its responses.";
}
