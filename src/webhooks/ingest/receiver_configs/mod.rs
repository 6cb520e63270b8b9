//! From configurations to receivers: the fault of one connector affects no other.
//!
//! - A connector whose configuration cannot be used, or whose references do not resolve, keeps the receiver it had, with its new target
//!   state; one that had none is not received, and its senders get 503. Either way the fault is reported.
//! - References are resolved again by [`ReceiverConfigs::recheck_references`]. A change applies once two reads agree, because a file may
//!   be half written. Only a digest of the resolved values is kept.
//! - Several connectors may take invoicing deliveries under one segment, distinguished by their secrets. Two that have a secret in common,
//!   or one of which requires no signatures, are both not received there: a delivery could be published for the wrong one. Above
//!   the limit of a segment those with the first names are received.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest, Sha256};

use base::retry::ErrorChain;

use crate::{
    config::{
        self, Connector, Providers,
        connector::{
            Class, ExclusiveSetting, TargetState,
            keys::CONNECTOR_CLASS,
            webhook::keys::{INVOICING_HOOKS, SEGMENT},
        },
    },
    publish::Layout,
    state::configs::{Configs, Properties},
    webhooks::receiver_table::{FaultyReceiver, Receiver, ReceiverState},
};

/// A connector as the config topic has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedConnector {
    /// References unresolved.
    pub(super) config: Arc<Properties>,
    /// What it should be doing.
    pub(super) target: TargetState,
}

/// Every `WebhookSource` of the config topic.
pub(super) fn listed(configs: &Configs) -> BTreeMap<String, ListedConnector> {
    let is_ours = |config: &Properties| {
        config.get(CONNECTOR_CLASS.name).and_then(|class| Class::parse(class)) == Some(Class::WebhookSource)
    };
    let ours = configs.connectors().iter().filter(|(_, connector)| is_ours(&connector.config));
    ours.map(|(name, connector)| {
        (name.clone(), ListedConnector { config: Arc::clone(&connector.config), target: connector.target })
    })
    .collect()
}

/// When the stop of each stopped connector was ordered, in microseconds since 1970: the same for every worker.
pub(super) fn stopped_at(configs: &Configs) -> BTreeMap<String, i64> {
    let stopped =
        configs.connectors().iter().filter(|(_, connector)| connector.target == TargetState::Stopped);
    stopped
        .filter_map(|(name, _)| Some((name.clone(), configs.target_since(name)?.saturating_mul(1_000))))
        .collect()
}

/// The receivers, and the configurations they were made of.
#[derive(Debug, Default)]
pub(super) struct ReceiverConfigs {
    entries: BTreeMap<String, ReceiverEntry>,
}

#[derive(Debug, Clone)]
struct ReceiverEntry {
    listed: ListedConnector,
    /// The configuration in force, which may be one before the listed.
    received: Option<ReceivedConnector>,
    fault: Option<String>,
    /// What the references of the listed resolved to.
    resolved: Option<ReferenceDigest>,
    /// A changed digest that the next read has to confirm.
    unsettled: Option<ReferenceDigest>,
    /// It must be rebuilt.
    stale: bool,
}

/// Digest of what references resolved to.
type ReferenceDigest = [u8; 32];

/// What a read of the references found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReferenceChanges {
    /// Connectors that [`ReceiverConfigs::apply`] rebuilds.
    pub(super) stale: Vec<String>,
    /// A value has changed since the last read; the next read confirms it.
    pub(super) unsettled: bool,
}

/// A connector that is received.
#[derive(Debug, Clone)]
pub(super) struct ReceivedConnector {
    /// Its configuration, references resolved.
    pub(super) source: Arc<config::WebhookSource>,
    /// What verifies its deliveries.
    pub(super) receiver: Arc<Receiver>,
    /// What it should be doing.
    pub(super) target: TargetState,
}

impl ReceivedConnector {
    fn of(source: Arc<config::WebhookSource>, target: TargetState) -> Result<Self, String> {
        let taking = match target {
            TargetState::Running => ReceiverState::Running,
            TargetState::Paused => ReceiverState::Paused,
            TargetState::Stopped => ReceiverState::Stopped,
        };
        let dead_letters = source.common.errors.dead_letter_topic.clone();
        let receiver =
            Receiver::of(&source, dead_letters, taking).map_err(|error| ErrorChain(&error).to_string())?;
        Ok(Self { source, receiver: Arc::new(receiver), target })
    }

    /// Its topics.
    pub(super) fn layout(&self, create: bool) -> Layout {
        let connector = Connector::WebhookSource(Box::new((*self.source).clone()));
        Layout { create, ..Layout::of(&connector) }
    }
}

impl ReceiverConfigs {
    /// Applies the listed configurations. Rebuilds connectors that have changed, and faulty ones. Blocks: references may
    /// be files.
    pub(super) fn apply(&mut self, listed: &BTreeMap<String, ListedConnector>, providers: &Providers) {
        let mut former = std::mem::take(&mut self.entries);
        for (name, listed) in listed {
            let before = former.remove(name);
            let entry = match before {
                Some(before) if before.is_sound() && before.listed == *listed => before,
                before => {
                    ReceiverEntry::of(name, listed, before.and_then(|before| before.received), providers)
                }
            };
            self.entries.insert(name.clone(), entry);
        }
        self.refuse_conflicts();
    }

    /// Leaves connectors without a receiver that cannot share their segment.
    fn refuse_conflicts(&mut self) {
        let claims: Vec<(String, ExclusiveSetting)> = self
            .received()
            .filter_map(|(name, one)| Some((name.to_owned(), ExclusiveSetting::of_webhooks(&one.source)?)))
            .collect();
        for (at, (name, own)) in claims.iter().enumerate() {
            let is_beside = |(_, theirs): &&(String, ExclusiveSetting)| own.is_shared_with(theirs);
            let mut others = claims.iter().filter(|(other, _)| other != name).filter(is_beside);
            let conflict = others.find_map(|(other, theirs)| own.conflict_with(other, theirs));
            let conflict = conflict.or_else(|| own.excess(claims[..at].iter().filter(is_beside).count()));
            if let (Some(problem), Some(entry)) = (conflict, self.entries.get_mut(name)) {
                entry.fault = Some(format!("{} {}; {}", problem.key, problem.rule, problem.remedy));
                entry.received = None;
            }
        }
    }

    /// Resolves the references of connectors without a fault again. Blocks: references may be files.
    pub(super) fn recheck_references(&mut self, providers: &Providers) -> ReferenceChanges {
        let mut references = ReferenceChanges::default();
        for (name, entry) in &mut self.entries {
            let reloads = |one: &ReceivedConnector| one.source.common.restart_on_changed_secret;
            if !entry.is_sound() || !entry.received.as_ref().is_some_and(reloads) {
                continue;
            }
            let found = resolved(&entry.listed.config, providers);
            if found == entry.resolved {
                entry.unsettled = None;
            } else if found.is_some() && found != entry.unsettled {
                entry.unsettled = found;
                references.unsettled = true;
            } else {
                entry.stale = true;
                references.stale.push(name.clone());
            }
        }
        references
    }

    /// Those that are received, by name.
    pub(super) fn received(&self) -> impl Iterator<Item = (&str, &ReceivedConnector)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.received.as_ref()?)))
    }

    /// Those that are listed and not received.
    pub(super) fn faulty(&self) -> Vec<FaultyReceiver> {
        let without = self.entries.iter().filter(|(_, entry)| entry.received.is_none());
        let faulty = |(name, entry): (&String, &ReceiverEntry)| FaultyReceiver {
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

impl ReceiverEntry {
    fn of(
        name: &str,
        listed: &ListedConnector,
        former: Option<ReceivedConnector>,
        providers: &Providers,
    ) -> Self {
        // Before they are used: the next read finds what changes in between.
        let resolved = resolved(&listed.config, providers);
        let parsed = config::WebhookSource::parse(name, &listed.config, providers);
        let made = parsed
            .map_err(|problems| problems.to_string())
            .and_then(|(source, _)| ReceivedConnector::of(Arc::new(source), listed.target));
        let (received, fault) = match made {
            Ok(received) => (Some(received), None),
            // It was received before, so it can be again.
            Err(fault) => {
                let kept = former.and_then(|former| ReceivedConnector::of(former.source, listed.target).ok());
                (kept, Some(fault))
            }
        };
        Self { listed: listed.clone(), received, fault, resolved, unsettled: None, stale: false }
    }

    /// Whether it need not be rebuilt.
    const fn is_sound(&self) -> bool {
        self.fault.is_none() && !self.stale
    }
}

/// The segment that a configuration asks for, whatever else is wrong with it.
fn segment(config: &Properties) -> Option<String> {
    config.get(INVOICING_HOOKS.name).filter(|hooks| !hooks.trim().is_empty())?;
    let set = config.get(SEGMENT.name).map(|segment| segment.trim());
    set.or(SEGMENT.default_value()).map(str::to_owned)
}

/// A digest of all that a configuration refers to; `None` where something does not resolve.
fn resolved(config: &Properties, providers: &Providers) -> Option<ReferenceDigest> {
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
