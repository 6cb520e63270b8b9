//! Conflicts between connectors: settings that connectors of a cluster may share with none of the others, or only under conditions.

use std::collections::{BTreeMap, BTreeSet};

use model::Fingerprint;

use super::{Class, Connector, WebhookSource, keys, webhook, webhook::SignatureTrust};
use crate::config::{
    ConfigKey,
    problem::{Problem, Problems},
    providers::Providers,
    reader::SettingsReader,
};

/// Connectors that may share an invoicing segment. A delivery to it is hashed with the secrets of each.
pub const MAX_SEGMENT_CONNECTORS: usize = 8;

/// A setting whose value other connectors of the class may not have, or only under conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExclusiveSetting {
    /// The class.
    class: Class,
    /// The key.
    key: &'static str,
    /// Its value.
    value: String,
    /// Fingerprints of the secrets by which deliveries find this connector among those that share the value; `None`: it shares it with
    /// none.
    secrets: Option<BTreeSet<Fingerprint>>,
}

impl ExclusiveSetting {
    /// Reads it from a flat configuration. `None` if there is none, or it is invalid. References are not resolved: two secrets are the
    /// same here if they are written in the same way.
    #[must_use]
    pub fn of(config: &BTreeMap<String, String>, providers: &Providers) -> Option<Self> {
        let class = Class::parse(config.get(keys::CONNECTOR_CLASS.name)?)?;
        let mut reader = SettingsReader::new(config, providers);
        if class == Class::RecordSource {
            return Some(Self::prefix(reader.text(&keys::TOPIC_PREFIX)?));
        }
        if reader.list(&webhook::keys::INVOICING_HOOKS).is_empty() {
            return None;
        }
        let written = [&webhook::keys::INVOICING_SECRET, &webhook::keys::INVOICING_PREVIOUS];
        let written = written.into_iter().filter_map(|key: &ConfigKey| Some(config.get(key.name)?.trim()));
        let written = written.filter(|text| !text.is_empty());
        let is_signed = reader.text_or_default(&webhook::keys::SIGNATURE_POLICY) != "off";
        let secrets = is_signed.then(|| written.map(Fingerprint::of).collect());
        Some(Self::segment(reader.text(&webhook::keys::SEGMENT)?, secrets))
    }

    /// That of a `WebhookSource`, with its secrets; `None` if it receives no invoicing deliveries.
    #[must_use]
    pub fn of_webhooks(source: &WebhookSource) -> Option<Self> {
        let invoicing = source.invoicing.as_ref()?;
        let secrets = match &invoicing.signature {
            SignatureTrust::Required { secret, previous_secret, .. } => {
                let both = [Some(secret), previous_secret.as_ref()].into_iter().flatten();
                Some(both.map(|secret| Fingerprint::of(secret.reveal())).collect())
            }
            SignatureTrust::Off => None,
        };
        Some(Self::segment(invoicing.segment.clone(), secrets))
    }

    fn of_connector(connector: &Connector) -> Option<Self> {
        match connector {
            Connector::RecordSource(source) => Some(Self::prefix(source.common.topic_prefix.to_string())),
            Connector::WebhookSource(source) => Self::of_webhooks(source),
        }
    }

    fn prefix(value: String) -> Self {
        Self { class: Class::RecordSource, key: keys::TOPIC_PREFIX.name, value, secrets: None }
    }

    fn segment(value: String, secrets: Option<BTreeSet<Fingerprint>>) -> Self {
        Self { class: Class::WebhookSource, key: webhook::keys::SEGMENT.name, value, secrets }
    }

    /// The class.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// The invoicing segment, if it is one.
    #[must_use]
    pub fn segment_name(&self) -> Option<&str> {
        (self.class == Class::WebhookSource).then_some(&self.value)
    }

    /// Whether both have the same value.
    #[must_use]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        (self.class, &self.value) == (other.class, &other.value)
    }

    /// What keeps this connector and `other`, which has the same value, from running together.
    #[must_use]
    pub fn conflict_with(&self, other: &str, theirs: &Self) -> Option<Problem> {
        if self.class == Class::RecordSource {
            let rule = format!("is the prefix that RecordSource {other} writes; a key must have one writer");
            let remedy = "give it another prefix, or make one connector of the two";
            return Some(Problem::new(self.key, rule, remedy));
        }
        let (Some(own), Some(theirs)) = (&self.secrets, &theirs.secrets) else {
            let rule = format!(
                "is the segment that {other} receives under, and one of the two requires no signatures, by which a delivery would \
                 find its connector"
            );
            let remedy = "give it another segment, or set invoicing.signature.policy=require on both";
            return Some(Problem::new(self.key, rule, remedy));
        };
        (!own.is_disjoint(theirs)).then(|| {
            let rule = format!(
                "is also a secret of {other}, or the previous one is; both receive under one segment, so a delivery could belong to \
                 either"
            );
            let remedy = "give each connector a secret of its own, or another segment";
            Problem::new(webhook::keys::INVOICING_SECRET.name, rule, remedy)
        })
    }

    /// The problem if this many others have the same value.
    #[must_use]
    pub fn excess(&self, others: usize) -> Option<Problem> {
        (others >= MAX_SEGMENT_CONNECTORS).then(|| {
            let rule = format!("is the segment of {others} other connectors, and at most {MAX_SEGMENT_CONNECTORS} may share one");
            Problem::new(self.key, rule, "give it another segment")
        })
    }

    /// What keeps this connector from running beside these others.
    pub fn conflict<'a>(&self, others: impl IntoIterator<Item = (&'a str, &'a Self)>) -> Option<Problem> {
        let mut sharing = 0;
        for (other, theirs) in others.into_iter().filter(|(_, theirs)| self.is_shared_with(theirs)) {
            sharing += 1;
            if let Some(problem) = self.conflict_with(other, theirs) {
                return Some(problem);
            }
        }
        self.excess(sharing)
    }
}

/// The conflicts that keep these connectors from running together; empty if there are none.
#[must_use]
pub fn conflicts<'a>(connectors: impl IntoIterator<Item = &'a Connector>) -> Problems {
    let mut problems = Problems::default();
    let mut names = BTreeSet::new();
    let mut earlier: Vec<(&str, ExclusiveSetting)> = Vec::new();
    for connector in connectors {
        let name = connector.common().name.as_str();
        if !names.insert(name) {
            problems.add(name, "is the name of two connectors", "rename one of them");
        }
        let Some(own) = ExclusiveSetting::of_connector(connector) else { continue };
        match own.conflict(earlier.iter().map(|(other, theirs)| (*other, theirs))) {
            Some(problem) => {
                problems.push(Problem { key: format!("{name}: {}", problem.key), ..problem });
            }
            None => earlier.push((name, own)),
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

    /// The pairs of a connector with one hook, and these changes.
    fn receiving(changes: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = [
            ("connector.class", "WebhookSource"),
            ("topic.prefix", "acme"),
            ("invoicing.hooks", "Customer:Created"),
            ("subscriptions.manage", "false"),
        ];
        changed(properties(&own), changes)
    }

    fn webhook_source(name: &str, changes: &[(&str, &str)]) -> Connector {
        let secrets =
            ["A", "B"].map(|name| (name.to_owned(), format!("{name}123456789abcdef0123456789abcdef")));
        Connector::parse(name, &receiving(changes), &Providers::new(secrets)).unwrap().0
    }

    const SECRET: &str = "invoicing.secret";
    const OFF: [(&str, &str); 2] =
        [("invoicing.signature.policy", "off"), ("source.addresses", "192.0.2.0/24")];

    #[test]
    fn signed_connectors_with_different_secrets_share_a_segment() {
        let a = webhook_source("a", &[(SECRET, "${env:A}")]);
        let cases: [(&[(&str, &str)], Option<&str>); 6] = [
            (&[(SECRET, "${env:B}")], None),
            (&[(SECRET, "${env:A}")], Some("b: invoicing.secret: is also a secret of a")),
            // Written in another way, and the same.
            (&[(SECRET, "A123456789abcdef0123456789abcdef")], Some("b: invoicing.secret: is also")),
            (&[(SECRET, "${env:B}"), ("invoicing.secret.previous", "${env:A}")], Some("b: invoicing.secret")),
            (&OFF, Some("b: invoicing.segment: is the segment that a receives under")),
            (&[(SECRET, "${env:A}"), ("invoicing.segment", "Other")], None),
        ];

        for (changes, expected) in cases {
            let found = conflicts(&[a.clone(), webhook_source("b", changes)]).to_string();

            match expected {
                Some(expected) => assert!(found.contains(expected), "{changes:?}: {found}"),
                None => assert_eq!(found, "", "{changes:?}"),
            }
        }
    }

    #[test]
    fn at_most_eight_connectors_share_a_segment() {
        let all: Vec<Connector> = (0..=MAX_SEGMENT_CONNECTORS)
            .map(|at| {
                let secret = format!("{at}123456789abcdef0123456789abcdef");
                webhook_source(&format!("c{at}"), &[(SECRET, &secret)])
            })
            .collect();

        let fits = conflicts(&all[1..]);
        let found = conflicts(&all).to_string();

        assert!(fits.is_empty(), "{fits}");
        assert!(found.starts_with("c8: invoicing.segment: is the segment of 8 other connectors"), "{found}");
    }

    #[test]
    fn unresolved_secrets_conflict_where_they_are_written_alike() {
        let of = |changes: &[(&str, &str)]| {
            ExclusiveSetting::of(&receiving(changes), &Providers::new([])).unwrap()
        };
        let (one, other) = ("${file:/nowhere:one}", "${file:/nowhere:other}");
        let known = of(&[(SECRET, one), ("invoicing.secret.previous", other)]);
        let against = |changes: &[(&str, &str)]| of(changes).conflict([("a", &known)]);

        assert!(against(&[(SECRET, " ${file:/nowhere:other} ")]).is_some());
        assert!(against(&[(SECRET, "${file:/nowhere:third}")]).is_none());
        assert!(against(&[]).is_none(), "it has none, which is another problem");
        assert!(against(&OFF).is_some_and(|problem| problem.rule.contains("requires no signatures")));
        assert!(of(&OFF).conflict([("a", &of(&OFF))]).is_some());
        assert!(!format!("{known:?}").contains("nowhere"), "{known:?}");
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
        let whole = ExclusiveSetting::of_connector(&record_source("a", "one"));
        assert_eq!(whole, ExclusiveSetting::of(&properties(&[records, ("topic.prefix", "one")]), &providers));
    }
}
