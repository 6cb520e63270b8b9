//! From configurations as they are written to receivers that verify: one connector's fault is its own.
//!
//! - A configuration that cannot be used, or whose references do not resolve, leaves the connector the receiver it had, in the
//!   state it should be in now; one that had none is not received. Either way the fault is told.
//! - Of two connectors that take invoicing deliveries under one segment, the one whose name comes first has it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    config::{
        self, Connector, Providers,
        connector::{Class, Sole, TargetState, keys::CONNECTOR_CLASS, webhook::keys::SEGMENT},
    },
    pipeline::Layout,
    retry::Chain,
    webhooks::receivers::{Receiver, Taking},
    worker::state::configs::{Configs, Properties},
};

/// A connector as the config topic has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    /// References unresolved.
    pub(super) config: Arc<Properties>,
    /// What it should be doing.
    pub(super) target: TargetState,
}

/// Every `WebhookSource` of the config topic.
pub(super) fn listed(configs: &Configs) -> BTreeMap<String, Listed> {
    let is_ours = |config: &Properties| {
        config.get(CONNECTOR_CLASS.name).and_then(|class| Class::parse(class)) == Some(Class::WebhookSource)
    };
    let ours = configs.connectors().iter().filter(|(_, connector)| is_ours(&connector.config));
    ours.map(|(name, connector)| {
        (name.clone(), Listed { config: Arc::clone(&connector.config), target: connector.target })
    })
    .collect()
}

/// Who is received, and how it came to that.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    listed: Listed,
    /// The configuration in force, which may be one before the listed.
    received: Option<Received>,
    fault: Option<String>,
}

/// A connector that is received.
#[derive(Debug, Clone)]
pub(super) struct Received {
    /// Its configuration, references resolved.
    source: Arc<config::WebhookSource>,
    /// What verifies its deliveries.
    pub(super) receiver: Arc<Receiver>,
    /// What it should be doing.
    pub(super) target: TargetState,
}

impl Received {
    fn of(source: Arc<config::WebhookSource>, target: TargetState) -> Result<Self, String> {
        let taking = match target {
            TargetState::Running => Taking::All,
            TargetState::Paused => Taking::SpoolOnly,
            TargetState::Stopped => Taking::Nothing,
        };
        let dead_letters = source.common.errors.dead_letter_topic.clone();
        let receiver =
            Receiver::of(&source, dead_letters, taking).map_err(|error| Chain(&error).to_string())?;
        Ok(Self { source, receiver: Arc::new(receiver), target })
    }

    /// Its topics.
    pub(super) fn layout(&self, create: bool) -> Layout {
        let connector = Connector::WebhookSource(Box::new((*self.source).clone()));
        Layout { create, ..Layout::of(&connector) }
    }

    /// `errors.log.enable`.
    pub(super) fn logs_dead_letters(&self) -> bool {
        self.source.common.errors.logged
    }

    /// `spool.limit.bytes`.
    pub(super) fn spool_limit(&self) -> u64 {
        self.source.spool_limit_bytes
    }

    fn segment(&self) -> Option<&str> {
        self.source.invoicing.as_ref().map(|invoicing| invoicing.segment.as_str())
    }
}

impl Table {
    /// Takes over what is listed. Connectors that have changed, and those at fault, are looked at anew. Blocks: references may
    /// be files.
    pub(super) fn apply(&mut self, listed: &BTreeMap<String, Listed>, providers: &Providers) {
        let mut former = std::mem::take(&mut self.entries);
        let mut segments: BTreeMap<String, String> = BTreeMap::new();
        for (name, listed) in listed {
            let before = former.remove(name);
            let entry = match before {
                Some(before) if before.fault.is_none() && before.listed == *listed => before,
                before => Entry::of(name, listed, before.and_then(|before| before.received), providers),
            };
            let entry = entry.without_taken(name, &mut segments);
            self.entries.insert(name.clone(), entry);
        }
    }

    /// Those that are received, by name.
    pub(super) fn received(&self) -> impl Iterator<Item = (&str, &Received)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.received.as_ref()?)))
    }

    /// What keeps connectors from being received as they are configured now.
    pub(super) fn faults(&self) -> BTreeMap<String, String> {
        let faults =
            self.entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.fault.clone()?)));
        faults.collect()
    }
}

impl Entry {
    fn of(name: &str, listed: &Listed, former: Option<Received>, providers: &Providers) -> Self {
        let parsed = config::WebhookSource::parse(name, &listed.config, providers);
        let made = parsed
            .map_err(|problems| problems.to_string())
            .and_then(|(source, _)| Received::of(Arc::new(source), listed.target));
        let (received, fault) = match made {
            Ok(received) => (Some(received), None),
            // It was received before, so it can be again.
            Err(fault) => {
                let kept = former.and_then(|former| Received::of(former.source, listed.target).ok());
                (kept, Some(fault))
            }
        };
        Self { listed: listed.clone(), received, fault }
    }

    /// Takes the segment, or is left without a receiver where another has it.
    fn without_taken(mut self, name: &str, segments: &mut BTreeMap<String, String>) -> Self {
        let Some(segment) = self.received.as_ref().and_then(Received::segment) else { return self };
        match segments.get(segment) {
            None => drop(segments.insert(segment.to_owned(), name.to_owned())),
            Some(other) => {
                let sole = Sole { class: Class::WebhookSource, key: SEGMENT.name, value: segment.to_owned() };
                let (rule, remedy) = sole.taken(other);
                self.fault = Some(format!("{} {rule}; {remedy}", sole.key));
                self.received = None;
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::plugins::samples::{properties, webhook_config};

    /// With these keys over those of a connector that works.
    fn one(target: TargetState, changes: &[(&str, &str)]) -> Listed {
        let mut config = webhook_config();
        config.extend(properties(changes));
        Listed { config: Arc::new(config), target }
    }

    fn all(listed: &[(&str, Listed)]) -> BTreeMap<String, Listed> {
        listed.iter().map(|(name, listed)| ((*name).to_owned(), listed.clone())).collect()
    }

    /// Who is received, how, and for which prefix.
    fn states(table: &Table) -> Vec<String> {
        let state = |(name, one): (&str, &Received)| {
            format!("{name} {:?} {}", one.receiver.state, one.receiver.prefix)
        };
        table.received().map(state).collect()
    }

    #[test]
    fn a_connector_that_cannot_be_used_keeps_its_receiver_in_the_state_it_should_be_in() {
        let (mut table, nothing) = (Table::default(), Providers::new([]));
        let broken = [("accounting.secret", "${env:SECRET}"), ("topic.prefix", "other")];
        table.apply(
            &all(&[("a", one(TargetState::Running, &[])), ("b", one(TargetState::Running, &[]))]),
            &nothing,
        );
        assert_eq!(states(&table), ["a All acme", "b All acme"]);

        let listed = all(&[("a", one(TargetState::Paused, &broken)), ("b", one(TargetState::Stopped, &[]))]);
        table.apply(&listed, &nothing);
        let kept = states(&table);
        let faults = table.faults();
        table.apply(&listed, &Providers::new([("SECRET".to_owned(), "0123456789abcdef".to_owned())]));

        assert_eq!(kept, ["a SpoolOnly acme", "b Nothing acme"]);
        assert_eq!(faults.keys().collect::<Vec<_>>(), ["a"]);
        assert!(faults["a"].contains("accounting.secret"), "{faults:?}");
        assert_eq!(states(&table), ["a SpoolOnly other", "b Nothing acme"]);
        assert!(table.faults().is_empty(), "what it refers to is there now");
    }

    #[test]
    fn one_that_never_worked_is_not_received_and_holds_up_nobody() {
        let (mut table, nothing) = (Table::default(), Providers::new([]));
        let broken = one(TargetState::Running, &[("accounting.secret", "short")]);

        table.apply(&all(&[("a", broken), ("b", one(TargetState::Running, &[]))]), &nothing);

        assert_eq!(states(&table), ["b All acme"]);
        assert!(table.faults().contains_key("a"));
        table.apply(&BTreeMap::new(), &nothing);
        assert!(states(&table).is_empty() && table.faults().is_empty(), "both are gone");
    }

    #[test]
    fn a_segment_is_the_first_names_and_the_others_once_that_has_gone() {
        let (mut table, nothing) = (Table::default(), Providers::new([]));
        let hooks = [
            ("invoicing.hooks", "Customer:Created"),
            ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
            ("subscriptions.manage", "false"),
        ];
        let (a, b) = (one(TargetState::Running, &hooks), one(TargetState::Running, &hooks));

        table.apply(&all(&[("b", b.clone())]), &nothing);
        assert_eq!(states(&table), ["b All acme"]);
        table.apply(&all(&[("a", a), ("b", b.clone())]), &nothing);
        assert_eq!(states(&table), ["a All acme"]);
        assert!(table.faults()["b"].contains("which a receives under"), "{:?}", table.faults());
        table.apply(&all(&[("b", b)]), &nothing);
        assert_eq!(states(&table), ["b All acme"]);
    }
}
