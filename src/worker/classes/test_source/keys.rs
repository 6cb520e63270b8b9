//! The keys of a `TestSource`: its own, and the shared keys that apply to it.

use base::retry::Retry;

use crate::{
    config::{
        ConfigKey, Problems, Providers,
        connector::keys as connector,
        key::{Rule, keys},
        reader::SettingsReader,
        rules,
        unknown_keys::{self, KnownKeys},
    },
    plugin::simple_name,
    state::configs::Properties,
};

keys! {
    "Test" {
        /// Topic to write numbers to; created with the broker's defaults if it is missing.
        TOPIC = String("topic").required().high().rule(rules::TOPIC);
        /// Records a second and task.
        MESSAGES = Int("messages").or("10").rule(Rule::Range(1, 10_000));
        /// Records after which a task fails, counted from each of its starts. Unset: never.
        FAIL_AFTER = Int("fail.after").rule(Rule::Range(0, i32::MAX as i64)).dependents(&["fail.kind"]);
        /// Whether that failure is retryable or permanent.
        FAIL_KIND = String("fail.kind").or("permanent").rule(Rule::OneOf(&["passing", "permanent"]));
        /// Records after which a task panics, counted from each of its starts. Unset: never.
        PANIC_AFTER = Int("panic.after").rule(Rule::Range(0, i32::MAX as i64));
        /// Written to instead of topic; shows that a reference reaches a task.
        SECRET_TOPIC = Password("secret.topic");
        /// Used for nothing; shows that it is never shown.
        SECRET = Password("secret");
    }
}

/// Keys it shares with every connector.
const COMMON: &[ConfigKey] = &[
    connector::NAME,
    connector::CONNECTOR_CLASS,
    connector::PLUGIN_VERSION,
    connector::TASKS_MAX,
    connector::TASKS_MAX_ENFORCE,
    connector::KEY_CONVERTER,
    connector::VALUE_CONVERTER,
    connector::HEADER_CONVERTER,
    connector::RELOAD,
    connector::EXACTLY_ONCE,
    connector::BOUNDARY,
];

const KNOWN_KEYS: KnownKeys = KnownKeys {
    subject: "a TestSource",
    declared: &[KEYS, COMMON],
    declared_elsewhere: &[],
    unsupported: &[("transforms.", "is not supported: there are no single message transforms", "remove it")],
    ignored: &[],
    is_read_elsewhere: |_| false,
};

/// Its own keys, then the shared ones.
pub(super) fn all() -> impl Iterator<Item = &'static ConfigKey> {
    KEYS.iter().chain(COMMON)
}

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) topic: String,
    pub(super) per_second: u32,
    pub(super) tasks_max: u32,
    /// Records after which a run fails, and whether the failure is retryable.
    pub(super) failure: Option<(u64, Retry)>,
    /// Records after which a run panics.
    pub(super) panic_after: Option<u64>,
}

/// Parses a flat configuration; `name` is the connector's name, or empty if it is only in the map.
pub(super) fn read(name: &str, config: &Properties, providers: &Providers) -> Result<Settings, Problems> {
    let mut config = config.clone();
    if !name.is_empty() {
        config.entry(connector::NAME.name.to_owned()).or_insert_with(|| name.to_owned());
    }
    let mut reader = SettingsReader::new(&config, providers);
    unknown_keys::check(&mut reader, &KNOWN_KEYS);
    for key in COMMON {
        // Read only to enforce their rules.
        reader.text(key);
    }
    let class = reader.text_or_default(&connector::CONNECTOR_CLASS);
    if !class.is_empty() && simple_name(&class) != super::CLASS {
        reader.refuse(&connector::CONNECTOR_CLASS, "is not TestSource", "name one class in both places");
    }
    let written = reader.text_or_default(&connector::NAME);
    if !name.is_empty() && !written.is_empty() && written != name {
        reader.refuse(&connector::NAME, "differs from the connector's name", "use one name");
    }
    // Read only to enforce the rules on secrets.
    drop(reader.secret(&SECRET));
    let topic = reader.text_or_default(&TOPIC);
    let topic = reader.secret(&SECRET_TOPIC).map_or(topic, |secret| secret.reveal().to_owned());
    let verdict = if reader.text_or_default(&FAIL_KIND) == "passing" { Retry::Later } else { Retry::Never };
    let fail_after = reader.value(&FAIL_AFTER);
    let panic_after = reader.value(&PANIC_AFTER);
    let settings = Settings {
        topic,
        per_second: reader.value(&MESSAGES),
        tasks_max: reader.value(&connector::TASKS_MAX),
        failure: reader.is_set(&FAIL_AFTER).then_some((fail_after, verdict)),
        panic_after: reader.is_set(&PANIC_AFTER).then_some(panic_after),
    };
    reader.finish(settings).map(|(settings, _)| settings)
}
