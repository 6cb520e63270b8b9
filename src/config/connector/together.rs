//! What no two connectors of one cluster may share.

use std::collections::BTreeMap;

use super::Connector;
use crate::config::Problems;

/// Everything that keeps these connectors from running side by side; empty if nothing does.
#[must_use]
pub fn conflicts<'a>(connectors: impl IntoIterator<Item = &'a Connector>) -> Problems {
    let mut problems = Problems::default();
    let mut names: BTreeMap<String, ()> = BTreeMap::new();
    let mut writers: BTreeMap<String, String> = BTreeMap::new();
    let mut segments: BTreeMap<String, String> = BTreeMap::new();
    for connector in connectors {
        let name = &connector.common().name;
        if names.insert(name.clone(), ()).is_some() {
            problems.about(name.clone(), "is the name of two connectors", "rename one of them");
        }
        match connector {
            Connector::RecordSource(source) => {
                let prefix = source.common.topic_prefix.to_string();
                if let Some(other) = writers.insert(prefix.clone(), name.clone()) {
                    problems.about(
                        format!("{name}: topic.prefix"),
                        format!("is {prefix}, which RecordSource {other} writes; a key must have one writer"),
                        "give it another prefix, or make one connector of the two",
                    );
                }
            }
            Connector::WebhookSource(source) => {
                let Some(invoicing) = &source.invoicing else { continue };
                if let Some(other) = segments.insert(invoicing.segment.clone(), name.clone()) {
                    problems.about(
                        format!("{name}: invoicing.segment"),
                        format!("is {}, which {other} receives under", invoicing.segment),
                        "give it another segment, or make one connector of the two",
                    );
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Providers;

    fn record_source(name: &str, prefix: &str) -> Connector {
        let config = [
            ("connector.class", "RecordSource"),
            ("topic.prefix", prefix),
            ("provider.base.url", "https://api.example.com"),
            ("provider.auth.url", "https://login.example.com"),
            ("provider.subscription.key", "0123456789abcdef"),
            ("oauth.client.id", "client"),
            ("oauth.client.secret", "0123456789abcdef"),
        ];
        let config = config.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
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
    fn a_name_is_given_once() {
        let twice = conflicts(&[record_source("a", "one"), record_source("a", "two")]);

        assert!(twice.to_string().contains("two connectors"), "{twice}");
    }
}
