//! Settings common to all connectors: name, topics, and error handling.

use std::collections::BTreeMap;

use model::{Topic, TopicPrefix};

use super::keys;
use crate::config::{key::ConfigKey, reader::SettingsReader};

/// Settings common to all connectors.
#[derive(Debug, Clone)]
pub struct Common {
    /// Name, unique in the cluster of workers.
    pub name: String,
    /// `tasks.max`; at least 1.
    pub tasks_max: u32,
    /// `topic.prefix`.
    pub topic_prefix: TopicPrefix,
    /// How its topics are created.
    pub topic_creation: TopicCreation,
    /// What happens to records that cannot be published.
    pub errors: ErrorHandling,
    /// `config.action.reload`: whether a changed secret restarts it.
    pub restart_on_changed_secret: bool,
}

/// How a connector's topics are created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicCreation {
    /// `topic.creation.default.partitions`, where it is set; -1 for the broker's default.
    pub partitions: Option<i32>,
    /// `topic.creation.default.replication.factor`; -1 for the broker's default.
    pub replication_factor: i16,
    /// Further topic settings, such as `retention.ms`; never `cleanup.policy`, which depends on the topic.
    pub settings: BTreeMap<String, String>,
}

/// What happens to records that cannot be published.
#[derive(Debug, Clone)]
pub struct ErrorHandling {
    /// `errors.log.enable`.
    pub logged: bool,
    /// `errors.deadletterqueue.topic.name`, or `dead-letters` under the prefix.
    pub dead_letter_topic: String,
    /// `errors.deadletterqueue.topic.replication.factor`, or that of the other topics.
    pub dead_letter_replication_factor: i16,
}

/// Keys of Kafka Connect that are checked but have no effect, with the reason.
const WITHOUT_EFFECT: [(&ConfigKey, &str); 3] = [
    (&keys::RETRY_TIMEOUT, "temporary failures to publish are retried until they pass"),
    (&keys::RETRY_DELAY, "the backoff between attempts to publish is built in"),
    (&keys::TOLERANCE, "a record that cannot be published is always written to the dead letters"),
];

/// Reads the common keys. `name` is the connector's name, or empty if the caller does not know it.
pub(super) fn read(reader: &mut SettingsReader<'_>, name: &str) -> Option<Common> {
    for key in [
        &keys::CONNECTOR_CLASS,
        &keys::PLUGIN_VERSION,
        &keys::TASKS_MAX_ENFORCE,
        &keys::KEY_CONVERTER,
        &keys::VALUE_CONVERTER,
        &keys::HEADER_CONVERTER,
        &keys::EXACTLY_ONCE,
        &keys::BOUNDARY,
        &keys::LOG_MESSAGES,
        &keys::DEAD_LETTER_HEADERS,
    ] {
        // These have no effect; reading checks their rules.
        reader.text(key);
    }
    for (key, reason) in WITHOUT_EFFECT {
        reader.text(key);
        if reader.is_set(key) {
            reader.warn(key.name, format!("has no effect here: {reason}"));
        }
    }
    let written = reader.text_or_default(&keys::NAME);
    if !name.is_empty() && !written.is_empty() && written != name.trim() {
        reader.refuse(
            &keys::NAME,
            "differs from the connector's name",
            "remove it from the configuration, or use one name",
        );
    }
    let tasks_max = reader.value(&keys::TASKS_MAX);
    // The key's rule is stricter than the type's.
    let topic_prefix = reader.text(&keys::TOPIC_PREFIX).and_then(|text| TopicPrefix::new(text).ok());
    let topic_creation = topic_creation(reader);
    let errors = errors(reader, topic_prefix.as_ref(), &topic_creation);
    let restart_on_changed_secret = reader.text_or_default(&keys::RELOAD) == "restart";
    Some(Common {
        name: written,
        tasks_max,
        topic_prefix: topic_prefix?,
        topic_creation,
        errors,
        restart_on_changed_secret,
    })
}

fn topic_creation(reader: &mut SettingsReader<'_>) -> TopicCreation {
    let policy = "cannot be set for all topics: event topics expire by time, record topics are compacted";
    let settings = reader.topic_settings(super::known_keys::TOPIC_SETTINGS, keys::KEYS, policy);
    // If unset, existing topics of the prefix decide the count; if set, they must have it.
    let partitions = reader.value(&keys::PARTITIONS);
    TopicCreation {
        partitions: reader.is_set(&keys::PARTITIONS).then_some(partitions),
        replication_factor: reader.value(&keys::REPLICATION),
        settings,
    }
}

fn errors(
    reader: &mut SettingsReader<'_>,
    prefix: Option<&TopicPrefix>,
    topics: &TopicCreation,
) -> ErrorHandling {
    let dead_letters = reader.text(&keys::DEAD_LETTER_TOPIC);
    if let (Some(prefix), Some(name)) = (prefix, &dead_letters) {
        let mut others = Topic::all().filter(|topic| *topic != Topic::DeadLetters);
        if others.any(|topic| topic.name(prefix) == *name) {
            reader.refuse(
                &keys::DEAD_LETTER_TOPIC,
                "is another topic of the prefix",
                "write another name, or remove it to get dead-letters under the topic prefix",
            );
        }
    }
    ErrorHandling {
        logged: reader.boolean(&keys::LOG_ENABLE),
        dead_letter_topic: dead_letters
            .or_else(|| prefix.map(|prefix| Topic::DeadLetters.name(prefix)))
            .unwrap_or_default(),
        dead_letter_replication_factor: match reader.value(&keys::DEAD_LETTER_REPLICATION) {
            0 => topics.replication_factor,
            factor => factor,
        },
    }
}
