//! The subscriptions that a `WebhookSource` declares, read without its secrets: for code that only displays or follows them.

use std::collections::{BTreeMap, BTreeSet};

use model::{Target, TopicPrefix};

use super::{Class, keys, provider_names, webhook};
use crate::config::{key::ConfigKey, providers::Providers, reader::SettingsReader};

/// The declared subscriptions of a `WebhookSource`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionTargets {
    /// `topic.prefix`.
    pub topic_prefix: TopicPrefix,
    /// `subscriptions.manage`.
    pub manage: bool,
    /// Everything to subscribe to.
    pub targets: BTreeSet<Target>,
}

/// The keys that are read.
const KEYS: [&ConfigKey; 4] = [
    &keys::TOPIC_PREFIX,
    &webhook::keys::MANAGE,
    &webhook::keys::ACCOUNTING_RESOURCES,
    &webhook::keys::INVOICING_HOOKS,
];

impl SubscriptionTargets {
    /// Reads them from a flat configuration. `None` if it is of another class, or one of the keys is invalid. Reads neither secrets
    /// nor files.
    #[must_use]
    pub fn of(config: &BTreeMap<String, String>, providers: &Providers) -> Option<Self> {
        let class = Class::parse(config.get(keys::CONNECTOR_CLASS.name)?)?;
        let mut reader = SettingsReader::new(config, providers);
        let [prefix, manage, resources, hooks] = KEYS;
        let topic_prefix = TopicPrefix::new(reader.text(prefix)?).ok()?;
        let manage = reader.boolean(manage);
        let resources = reader.parsed_list(resources, provider_names::resources).into_iter().flatten();
        let resources = resources.map(Target::Accounting);
        let hooks =
            reader.parsed_list(hooks, provider_names::hooks).into_iter().flatten().map(Target::Invoicing);
        let targets = resources.chain(hooks).collect();
        let is_sound = class == Class::WebhookSource && reader.are_valid(&KEYS);
        is_sound.then_some(Self { topic_prefix, manage, targets })
    }
}

#[cfg(test)]
mod tests {
    use model::AccountingResource;

    use super::*;
    use crate::config::samples::{changed, properties};

    fn config(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        changed(properties(&[("connector.class", "WebhookSource")]), pairs)
    }

    #[test]
    fn targets_and_prefix_are_read_without_any_secret() {
        let config = config(&[
            ("topic.prefix", "acme"),
            ("accounting.resources", "customers"),
            ("accounting.secret", "${file:/nowhere:secret}"),
            ("invoicing.hooks", "Customer:Created,CompanyData:Updated"),
        ]);
        let providers = Providers::new([]);

        let declared = SubscriptionTargets::of(&config, &providers).unwrap();

        assert_eq!((declared.topic_prefix.to_string(), declared.manage), ("acme".to_owned(), true));
        assert_eq!(declared.targets.len(), 3);
        assert!(declared.targets.contains(&Target::Accounting(AccountingResource::Customers)));
    }

    #[test]
    fn invalid_key_or_another_class_has_no_targets() {
        let providers = Providers::new([]);
        let sound = [("topic.prefix", "acme"), ("subscriptions.manage", "false")];
        assert_eq!(SubscriptionTargets::of(&config(&sound), &providers).map(|it| it.manage), Some(false));

        for wrong in [
            ("topic.prefix", "a b"),
            ("accounting.resources", "costumers"),
            ("invoicing.hooks", "${env:NOT_SET}"),
            ("connector.class", "RecordSource"),
            ("subscriptions.manage", "perhaps"),
        ] {
            let config = changed(config(&sound), &[wrong]);
            assert_eq!(SubscriptionTargets::of(&config, &providers), None, "{wrong:?}");
        }
    }
}
