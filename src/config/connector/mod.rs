//! Connector configurations: from a flat map of texts to a checked struct.
//!
//! Data flow: file or request → [`ConnectorDocument`] → references resolved → [`WebhookSource`] or [`RecordSource`]. The flat map
//! is kept unchanged, because REST answers repeat it verbatim; only the struct holds resolved secrets. A configuration with
//! problems yields all of them and no struct.

use std::collections::BTreeMap;

use strum::{EnumString, IntoStaticStr};

pub(crate) use self::validate::answer;
pub use self::{
    common::{Common, ErrorHandling, TopicCreation},
    conflicts::{ExclusiveSetting, MAX_SEGMENT_CONNECTORS, conflicts},
    directory::{FILE_COUNT_LIMIT, declared_twice, files},
    document::{ConnectorDocument, coerce},
    provider_names::hook,
    record::{RecordSource, Rows, Snapshot, SnapshotMode},
    subscription_targets::SubscriptionTargets,
    validate::{definitions, validate},
    webhook::{
        AccountingWebhooks, InvoicingLogin, InvoicingWebhooks, SecretScope, SignatureTrust, WebhookSource,
    },
};
use super::{
    key::ConfigKey,
    problem::{Problem, Problems, Warning},
    providers::Providers,
    reader::SettingsReader,
    unknown_keys::{self, KnownKeys},
};

mod access;
mod common;
mod conflicts;
mod directory;
mod document;
pub(crate) mod keys;
mod known_keys;
mod provider_names;
pub(crate) mod record;
mod subscription_targets;
mod validate;
pub(crate) mod webhook;

/// The connector classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
pub enum Class {
    /// Receives deliveries and keeps subscriptions alive.
    WebhookSource,
    /// Fetches full records, and replays lists.
    RecordSource,
}

/// State in which a connector is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE", ascii_case_insensitive)]
pub enum TargetState {
    /// Tasks run.
    Running,
    /// Tasks exist and are paused.
    Paused,
    /// There are no tasks.
    Stopped,
}

/// A connector of either class, checked.
#[derive(Debug, Clone)]
pub enum Connector {
    /// Receives deliveries and keeps subscriptions alive.
    WebhookSource(Box<WebhookSource>),
    /// Fetches full records, and replays lists.
    RecordSource(Box<RecordSource>),
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 2] = [Self::WebhookSource, Self::RecordSource];

    /// The class that a `connector.class` names; the package and the suffix `Connector` are optional.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let simple = text.trim().rsplit('.').next().unwrap_or_default();
        simple.strip_suffix("Connector").unwrap_or(simple).parse().ok()
    }

    /// Its simple name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Its keys: its own first, then those common to all connectors.
    pub fn keys(self) -> impl Iterator<Item = &'static ConfigKey> {
        let own = match self {
            Self::WebhookSource => webhook::keys::KEYS,
            Self::RecordSource => record::keys::KEYS,
        };
        own.iter().chain(keys::KEYS)
    }
}

impl TargetState {
    /// Parses Kafka Connect's name of a state, ignoring case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// Kafka Connect's name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Connector {
    /// Reads a connector's flat configuration, of the class it names. `name` is empty if the map has the name.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(
        name: &str,
        config: &BTreeMap<String, String>,
        providers: &Providers,
    ) -> Result<(Self, Vec<Warning>), Problems> {
        let Some(text) = config.get(keys::CONNECTOR_CLASS.name) else {
            return Err(class_problem("is required: the configuration contains no connector type"));
        };
        match Class::parse(text) {
            Some(Class::WebhookSource) => WebhookSource::parse(name, config, providers)
                .map(|(source, warnings)| (Self::WebhookSource(Box::new(source)), warnings)),
            Some(Class::RecordSource) => RecordSource::parse(name, config, providers)
                .map(|(source, warnings)| (Self::RecordSource(Box::new(source)), warnings)),
            None => Err(unknown_class(text)),
        }
    }

    /// The settings common to all connectors.
    #[must_use]
    pub fn common(&self) -> &Common {
        match self {
            Self::WebhookSource(source) => &source.common,
            Self::RecordSource(source) => &source.common,
        }
    }

    /// Its class.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::WebhookSource(_) => Class::WebhookSource,
            Self::RecordSource(_) => Class::RecordSource,
        }
    }
}

/// Kafka Connect's wording, which kcctl matches.
fn unknown_class(text: &str) -> Problems {
    class_problem(format!("Failed to find any class that implements Connector and which name matches {text}"))
}

fn class_problem(rule: impl Into<String>) -> Problems {
    Problem::new(keys::CONNECTOR_CLASS.name, rule, "write WebhookSource or RecordSource").into()
}

/// Reads a configuration of one class. `name` is added to it, as Kafka Connect stores it, unless it has a name.
fn parse<T>(
    name: &str,
    config: &BTreeMap<String, String>,
    providers: &Providers,
    known: &KnownKeys,
    read: fn(&mut SettingsReader<'_>, &str) -> Option<T>,
) -> Result<(T, Vec<Warning>), Problems> {
    let mut config = config.clone();
    if !name.trim().is_empty() {
        config.entry(keys::NAME.name.to_owned()).or_insert_with(|| name.trim().to_owned());
    }
    let mut reader = SettingsReader::new(&config, providers);
    unknown_keys::check(&mut reader, known);
    let source = read(&mut reader, name);
    reader.finish_complete(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_known_with_and_without_package_and_suffix() {
        let table = [
            ("WebhookSource", Some(Class::WebhookSource)),
            ("WebhookSourceConnector", Some(Class::WebhookSource)),
            ("io.tributary.RecordSource", Some(Class::RecordSource)),
            (" io.tributary.RecordSourceConnector ", Some(Class::RecordSource)),
            ("FileStreamSource", None),
            ("webhooksource", None),
            ("", None),
        ];

        for (text, class) in table {
            assert_eq!(Class::parse(text), class, "{text}");
        }
    }

    #[test]
    fn missing_or_unknown_class_is_reported_in_connects_words() {
        let providers = Providers::new([]);
        let foreign = BTreeMap::from([("connector.class".to_owned(), "FileStreamSource".to_owned())]);

        let missing = Connector::parse("a", &BTreeMap::new(), &providers).unwrap_err().to_string();
        let unknown = Connector::parse("a", &foreign, &providers).unwrap_err().to_string();

        assert!(missing.contains("contains no connector type"), "{missing}");
        assert!(unknown.contains("Failed to find any class that implements Connector"), "{unknown}");
    }
}
