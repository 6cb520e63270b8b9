//! Settings of Kafka Connect that a connector's configuration may contain: accepted, ignored or refused.

use super::{keys, record, webhook};
use crate::config::{unknown_keys::KnownKeys, worker_keys};

/// Prefix of settings for all topics of a connector.
pub(super) const TOPIC_SETTINGS: &str = "topic.creation.default.";

pub(super) const WEBHOOK: KnownKeys = KnownKeys {
    subject: "a WebhookSource",
    declared: &[webhook::keys::KEYS, keys::KEYS],
    declared_elsewhere: &[(record::keys::KEYS, "a RecordSource"), WORKER],
    unsupported: UNSUPPORTED,
    ignored: IGNORED,
    is_read_elsewhere,
};

pub(super) const RECORD: KnownKeys = KnownKeys {
    subject: "a RecordSource",
    declared: &[record::keys::KEYS, keys::KEYS],
    declared_elsewhere: &[(webhook::keys::KEYS, "a WebhookSource"), WORKER],
    unsupported: UNSUPPORTED,
    ignored: IGNORED,
    is_read_elsewhere,
};

const WORKER: (&[crate::config::ConfigKey], &str) = (worker_keys::KEYS, "the worker's properties");

const UNSUPPORTED: &[(&str, &str, &str)] = &[
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

const IGNORED: &[(&str, &str)] = &[
    ("value.converter.", "the worker's schema registry is used"),
    ("key.converter.", "keys are UTF-8 text"),
    ("header.converter.", "headers are UTF-8 text"),
    ("transaction.boundary.interval.ms", "a transaction holds one batch"),
];

const OVERRIDES: &str = "is not supported: clients are configured for the whole worker";

fn is_read_elsewhere(name: &str) -> bool {
    name.starts_with(TOPIC_SETTINGS)
}
