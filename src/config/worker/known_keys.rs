//! Settings of Kafka Connect that a worker's file may contain: accepted, ignored or refused.

use crate::config::{client, connector, unknown_keys::KnownKeys, worker_keys::KEYS};

pub(crate) const WORKER: KnownKeys = KnownKeys {
    subject: "the worker",
    declared: &[KEYS],
    declared_elsewhere: &[
        (connector::keys::KEYS, "the connector's configuration"),
        (connector::webhook::keys::KEYS, "the configuration of a WebhookSource"),
        (connector::record::keys::KEYS, "the configuration of a RecordSource"),
    ],
    unsupported: &[
        ("transforms.", "is not supported: there are no single message transforms", "remove it"),
        ("predicates.", "is not supported: there are no single message transforms", "remove it"),
        ("rest.extension.classes", "is not supported: there are no Java extensions", "use admin.auth.*"),
        ("value.converter.schema.registry.ssl.truststore.", JAVA_STORE, USE_CA),
        ("value.converter.schema.registry.ssl.keystore.", JAVA_STORE, USE_CERTIFICATE),
        (
            "listeners.https.ssl.keystore.",
            JAVA_STORE,
            "use listeners.https.ssl.certificate.location and .key.location",
        ),
        (
            "listeners.https.ssl.truststore.",
            JAVA_STORE,
            "convert it to PEM and use listeners.https.ssl.ca.location",
        ),
        (
            "connector.client.config.override.policy",
            OVERRIDES,
            "remove it, and set producer.* and so on here",
        ),
    ],
    ignored: &[
        ("admin.listeners.", "loggers are served on listeners"),
        ("connect.protocol", "workers share tasks through the work topic"),
        ("exactly.once.source.support", "record topics are always written in transactions"),
        ("inter.worker.", "workers do not call each other"),
        ("internal.", "internal topics have a fixed format"),
        ("key.converter.", "keys are UTF-8 text"),
        ("header.converter.", "headers are UTF-8 text"),
        ("log4j.", "use log.filter"),
        ("offset.flush.", "offsets are committed with their records"),
        ("offset.storage.file.filename", "offsets are in Kafka"),
        ("pipeline.in.flight.bytes", "intake.memory.bytes limits deliveries that wait in memory"),
        ("plugin.", "there are no plugins to load"),
        ("rebalance.timeout.ms", "the group's poll thread never blocks"),
        ("request.timeout.ms", "set producer.request.timeout.ms"),
        ("response.http.headers.config", "answers carry fixed headers"),
        ("rest.host.name", "use listeners"),
        ("rest.port", "use listeners"),
        ("scheduled.rebalance.max.delay.ms", "a dead worker's tasks move after session.timeout.ms"),
        ("task.shutdown.graceful.timeout.ms", "use shutdown.timeout.ms"),
        ("topic.tracking.", "topics are always tracked"),
        ("worker.", "workers do not wait for a leader"),
    ],
    is_read_elsewhere,
};

/// Whether a key is declared for the worker.
pub(crate) fn is_declared(name: &str) -> bool {
    KEYS.iter().any(|key| key.name == name)
}

fn is_read_elsewhere(name: &str) -> bool {
    name.starts_with("config.providers.")
        || ["config", "offset", "status", "work", "grant"]
            .iter()
            .any(|topic| name.strip_prefix(topic).is_some_and(|rest| rest.starts_with(".storage.")))
        || client::is_client_setting(name)
}

const JAVA_STORE: &str = "is a Java store, which is not read here";
const USE_CA: &str = "convert it to PEM and use value.converter.schema.registry.ssl.ca.location";
const USE_CERTIFICATE: &str = "convert it to PEM and use value.converter.schema.registry.ssl.certificate.location and \
                               .key.location";
const OVERRIDES: &str = "is not supported: clients are configured for the whole worker";
