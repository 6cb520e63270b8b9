//! What else may stand in a connector's configuration: settings of Kafka Connect that we take, ignore or refuse.

use super::{keys, record, webhook};
use crate::config::{unknown::Dialect, worker_keys};

/// What stands before a topic setting for every topic.
pub(super) const TOPIC_SETTINGS: &str = "topic.creation.default.";

pub(super) const WEBHOOK: Dialect = Dialect {
    subject: "a WebhookSource",
    known: &[webhook::keys::KEYS, keys::KEYS],
    elsewhere: &[(record::keys::KEYS, "a RecordSource"), WORKER],
    missing: MISSING,
    idle: IDLE,
    handled: is_handled,
};

pub(super) const RECORD: Dialect = Dialect {
    subject: "a RecordSource",
    known: &[record::keys::KEYS, keys::KEYS],
    elsewhere: &[(webhook::keys::KEYS, "a WebhookSource"), WORKER],
    missing: MISSING,
    idle: IDLE,
    handled: is_handled,
};

const WORKER: (&[crate::config::Key], &str) = (worker_keys::KEYS, "the worker's properties");

const MISSING: &[(&str, &str, &str)] = &[
    (
        "transforms.",
        "is not supported: there are no single message transforms",
        "remove it, and transform downstream",
    ),
    ("predicates.", "is not supported: there are no single message transforms", "remove it"),
    ("producer.override.", OVERRIDES, "set it behind producer. in the worker's properties"),
    ("consumer.override.", OVERRIDES, "set it behind consumer. in the worker's properties"),
    ("admin.override.", OVERRIDES, "set it behind admin. in the worker's properties"),
    ("offsets.storage.topic", "is not supported: offsets are in the worker's topic", "remove it"),
    (
        "topic.creation.groups",
        "is not supported: all keyed topics of a prefix need the same partitions",
        "use topic.creation.default.*, and kafka-configs for single topics",
    ),
];

const IDLE: &[(&str, &str)] = &[
    ("value.converter.", "the worker's schema registry is used"),
    ("key.converter.", "keys are UTF-8 text"),
    ("header.converter.", "headers are UTF-8 text"),
    ("transaction.boundary.interval.ms", "a transaction holds one batch"),
];

const OVERRIDES: &str = "is not supported: clients are configured for the whole worker";

fn is_handled(name: &str) -> bool {
    name.starts_with(TOPIC_SETTINGS)
}
