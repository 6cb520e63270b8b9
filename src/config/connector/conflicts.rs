//! Conflicts between connectors: settings that no two connectors of a cluster may share.

use std::collections::{BTreeMap, BTreeSet};

use super::{Class, Connector, keys, webhook};
use crate::config::{ConfigKey, Problems, providers::Providers, reader::SettingsReader};

/// A setting whose value no other connector of the class may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExclusiveSetting {
    /// The class.
    pub class: Class,
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
}

impl ExclusiveSetting {
    /// Reads it from a flat configuration. `None` if there is none, or it is invalid.
    #[must_use]
    pub fn of(config: &BTreeMap<String, String>, providers: &Providers) -> Option<Self> {
        let class = Class::parse(config.get(keys::CONNECTOR_CLASS.name)?)?;
        let mut reader = SettingsReader::new(config, providers);
        if class == Class::WebhookSource && reader.list(&webhook::keys::INVOICING_HOOKS).is_empty() {
            return None;
        }
        let key = key(class);
        let value = reader.text(key)?;
        Some(Self { class, key: key.name, value })
    }

    /// Rule and remedy of the problem that connector `other` has the same value.
    #[must_use]
    pub fn conflict_with(&self, other: &str) -> (String, &'static str) {
        match self.class {
            Class::RecordSource => (
                format!("is the prefix that RecordSource {other} writes; a key must have one writer"),
                "give it another prefix, or make one connector of the two",
            ),
            Class::WebhookSource => (
                format!("is the segment that {other} receives under"),
                "give it another segment, or make one connector of the two",
            ),
        }
    }
}

impl Connector {
    fn exclusive_setting(&self) -> Option<ExclusiveSetting> {
        let class = self.class();
        let value = match self {
            Self::RecordSource(source) => source.common.topic_prefix.to_string(),
            Self::WebhookSource(source) => source.invoicing.as_ref()?.segment.clone(),
        };
        Some(ExclusiveSetting { class, key: key(class).name, value })
    }
}

fn key(class: Class) -> &'static ConfigKey {
    match class {
        Class::RecordSource => &keys::TOPIC_PREFIX,
        Class::WebhookSource => &webhook::keys::SEGMENT,
    }
}

/// The conflicts that keep these connectors from running together; empty if there are none.
#[must_use]
pub fn conflicts<'a>(connectors: impl IntoIterator<Item = &'a Connector>) -> Problems {
    let mut problems = Problems::default();
    let mut names = BTreeSet::new();
    let mut taken: BTreeMap<ExclusiveSetting, &str> = BTreeMap::new();
    for connector in connectors {
        let name = connector.common().name.as_str();
        if !names.insert(name) {
            problems.add(name, "is the name of two connectors", "rename one of them");
        }
        let Some(exclusive) = connector.exclusive_setting() else { continue };
        match taken.get(&exclusive) {
            Some(other) => {
                let (rule, remedy) = exclusive.conflict_with(other);
                problems.add(format!("{name}: {}", exclusive.key), rule, remedy);
            }
            None => drop(taken.insert(exclusive, name)),
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Providers,
        samples::{changed, properties, record_config},
    };

    fn record_source(name: &str, prefix: &str) -> Connector {
        let config = changed(record_config(), &[("topic.prefix", prefix)]);
        Connector::parse(name, &config, &Providers::new([])).unwrap().0
    }

    #[test]
    fn a_prefix_has_one_record_source() {
        let alone = conflicts(&[record_source("a", "one"), record_source("b", "two")]);
        let twice = conflicts(&[record_source("a", "one"), record_source("b", "one")]);

        assert!(alone.is_empty(), "{alone}");
        assert!(
            twice.to_string().contains("b: topic.prefix") && twice.to_string().contains("one writer"),
            "{twice}"
        );
    }

    #[test]
    fn exclusive_setting_is_read_like_the_whole_configuration() {
        let providers = Providers::new([]);
        let of = |pairs: &[(&str, &str)]| {
            ExclusiveSetting::of(&properties(pairs), &providers)
                .map(|exclusive| (exclusive.key, exclusive.value))
        };
        let (records, webhooks) = (("connector.class", "RecordSource"), ("connector.class", "WebhookSource"));
        let unreadable = ("oauth.client.secret", "${file:/nowhere:secret}");

        assert_eq!(
            of(&[records, ("topic.prefix", " one "), unreadable]),
            Some(("topic.prefix", "one".into()))
        );
        assert_eq!(of(&[records, ("topic.prefix", "${env:PREFIX}")]), None, "a reference is refused");
        assert_eq!(of(&[webhooks]), None, "it receives nothing of invoicing");
        let hooks = ("invoicing.hooks", "Customer:Created");
        assert_eq!(of(&[webhooks, hooks]), Some(("invoicing.segment", "Invoicing".into())), "by default");
        assert_eq!(of(&[("connector.class", "Other"), ("topic.prefix", "one")]), None);
        let whole = record_source("a", "one").exclusive_setting();
        assert_eq!(whole, ExclusiveSetting::of(&properties(&[records, ("topic.prefix", "one")]), &providers));
    }
}
