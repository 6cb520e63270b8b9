//! From configurations as they are written to receivers that verify: one connector's fault is its own.
//!
//! - A configuration that cannot be used, or whose references do not resolve, leaves the connector the receiver it had, in the
//!   state it should be in now; one that had none is not received, and its senders are to try again later. Either way the
//!   fault is told.
//! - What references resolve to is looked at again ([`Table::look`]), and counts once two looks have found the same: whoever
//!   writes a file may be halfway. Of what was looked at only a digest is kept.
//! - Of two connectors that take invoicing deliveries under one segment, the one whose name comes first has it.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest, Sha256};

use base::retry::Chain;

use crate::{
    config::{
        self, Connector, Providers,
        connector::{
            Class, Sole, TargetState,
            keys::CONNECTOR_CLASS,
            webhook::keys::{INVOICING_HOOKS, SEGMENT},
        },
    },
    publish::Layout,
    state::configs::{Configs, Properties},
    webhooks::receivers::{Faulty, Receiver, Taking},
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

/// When those that are stopped were told to, in microseconds since 1970: the same for every worker.
pub(super) fn stopped_at(configs: &Configs) -> BTreeMap<String, i64> {
    let stopped =
        configs.connectors().iter().filter(|(_, connector)| connector.target == TargetState::Stopped);
    stopped
        .filter_map(|(name, _)| Some((name.clone(), configs.target_since(name)?.saturating_mul(1_000))))
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
    /// What the references of the listed resolved to.
    resolved: Option<Resolved>,
    /// Another that the last look found, for the next to find again.
    unsettled: Option<Resolved>,
    /// It is to be made anew.
    stale: bool,
}

/// Digest of what references resolved to.
type Resolved = [u8; 32];

/// What a look at the references has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// Connectors that [`Table::apply`] makes anew.
    pub(super) stale: Vec<String>,
    /// Something has changed since the look before; another soon tells whether it stays so.
    pub(super) unsettled: bool,
}

/// A connector that is received.
#[derive(Debug, Clone)]
pub(super) struct Received {
    /// Its configuration, references resolved.
    pub(super) source: Arc<config::WebhookSource>,
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
                Some(before) if before.is_sound() && before.listed == *listed => before,
                before => Entry::of(name, listed, before.and_then(|before| before.received), providers),
            };
            let entry = entry.without_taken(name, &mut segments);
            self.entries.insert(name.clone(), entry);
        }
    }

    /// Resolves again what the connectors refer to that are received as they are listed. Blocks: references may be files.
    pub(super) fn look(&mut self, providers: &Providers) -> Looked {
        let mut looked = Looked::default();
        for (name, entry) in &mut self.entries {
            let reloads = |one: &Received| one.source.common.restart_on_changed_secret;
            if !entry.is_sound() || !entry.received.as_ref().is_some_and(reloads) {
                continue;
            }
            let found = resolved(&entry.listed.config, providers);
            if found == entry.resolved {
                entry.unsettled = None;
            } else if found.is_some() && found != entry.unsettled {
                entry.unsettled = found;
                looked.unsettled = true;
            } else {
                entry.stale = true;
                looked.stale.push(name.clone());
            }
        }
        looked
    }

    /// Those that are received, by name.
    pub(super) fn received(&self) -> impl Iterator<Item = (&str, &Received)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.received.as_ref()?)))
    }

    /// Those that are listed and not received.
    pub(super) fn faulty(&self) -> Vec<Faulty> {
        let without = self.entries.iter().filter(|(_, entry)| entry.received.is_none());
        let faulty = |(name, entry): (&String, &Entry)| Faulty {
            connector: name.clone(),
            segment: segment(&entry.listed.config),
        };
        without.map(faulty).collect()
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
        // Before they are used: what changes in between is found by the next look.
        let resolved = resolved(&listed.config, providers);
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
        Self { listed: listed.clone(), received, fault, resolved, unsettled: None, stale: false }
    }

    /// Whether there is nothing about it to be made anew.
    const fn is_sound(&self) -> bool {
        self.fault.is_none() && !self.stale
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

/// The segment that a configuration asks for, whatever else is wrong with it.
fn segment(config: &Properties) -> Option<String> {
    config.get(INVOICING_HOOKS.name).filter(|hooks| !hooks.trim().is_empty())?;
    let set = config.get(SEGMENT.name).map(|segment| segment.trim());
    set.or(SEGMENT.default_value()).map(str::to_owned)
}

/// A digest of all that a configuration refers to; `None` where something does not resolve.
fn resolved(config: &Properties, providers: &Providers) -> Option<Resolved> {
    let mut digest = Sha256::new();
    for (key, value) in config.iter().filter(|(_, value)| value.contains("${")) {
        let value = providers.resolve(value).ok()?.text;
        for text in [key.as_str(), value.reveal()] {
            digest.update(text.len().to_be_bytes());
            digest.update(text);
        }
    }
    Some(digest.finalize().into())
}

#[cfg(test)]
mod tests;
