//! The receivers: for each connector how its deliveries are verified, ready to use, and what has been delivered to it.
//!
//! Configurations ─▶ [`Receiver::of`] ─▶ [`Receivers::set`] ─▶ one look-up for each request. Nothing here reads files or the network:
//! requests are served from this table also while everything else is down.
//!
//! - A request sees one whole table; a change applies to later requests.
//! - Several connectors may receive under one invoicing segment: the secret that verifies a delivery says whose it is. A delivery that
//!   none of them verifies may be that of a connector that is missing here ([`MissingReceiver`]).
//! - Every receiver verifies: a secret that is too short, or a configuration with neither signature nor source addresses, is refused
//!   here, whatever wrote the configuration.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use http::HeaderName;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::watch;

use base::{retry::Retry, secret::Secret};
use model::{AccountingResource, CompanyId, Fingerprint, InvoicingHook, Target, TenantId, Traffic};

use super::signature::{MasterSecret, SHORTEST_SECRET, SigningKeys, fingerprints, hook_fingerprints};
use crate::config::{self, connector::webhook::SignatureTrust};

/// Bounds of the interval between two heartbeats after deliveries.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Accounting subscriptions that are counted for one connector. Hooks are bounded by their kinds.
pub const MAX_TRACKED_WEBHOOKS: usize = 256;

/// A connector whose deliveries are received.
#[derive(Debug)]
pub struct Receiver {
    /// Its name, which is in the path of accounting deliveries.
    pub connector: Arc<str>,
    /// `topic.prefix`.
    pub prefix: Arc<str>,
    /// Topic of its dead letters.
    pub dead_letter_topic: Arc<str>,
    /// Whether its deliveries are published.
    pub state: ReceiverState,
    /// How accounting deliveries are verified, if it takes any.
    pub accounting: Option<AccountingReceiver>,
    /// How invoicing deliveries are verified, if it takes any.
    pub invoicing: Option<InvoicingReceiver>,
    /// Networks that deliveries may come from; empty: any.
    pub sources: Vec<IpNet>,
    /// What heartbeats say about it.
    pub advertised: Advertised,
}

/// The secrets that heartbeats report, the interval of heartbeats, and whether this cluster manages the subscriptions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advertised {
    /// Fingerprints of the secrets of accounting deliveries.
    pub accounting: BTreeSet<Fingerprint>,
    /// Fingerprints of the secrets that invoicing hooks are registered with, or that theirs are derived from; that of the empty text if none
    /// are signed.
    pub invoicing: BTreeSet<Fingerprint>,
    /// Interval between two heartbeats after deliveries.
    pub every: Duration,
    /// Whether this cluster manages its subscriptions: then an Acknowledge must be in Kafka before it is answered.
    pub manages: bool,
}

/// Whether a connector's deliveries are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiverState {
    /// They are published.
    Running,
    /// They are accepted and kept in the spool until the connector runs again.
    Paused,
    /// They are answered 503.
    Stopped,
}

/// How accounting deliveries are verified.
#[derive(Debug)]
pub struct AccountingReceiver {
    /// The current and the previous secret.
    pub keys: SigningKeys,
    /// Body limit in bytes.
    pub body_limit: usize,
}

/// How invoicing deliveries are verified.
#[derive(Debug)]
pub struct InvoicingReceiver {
    /// The segment of the path that names the service: the last one of the shared address. Several connectors may have the same.
    pub segment: String,
    /// The hooks whose deliveries are taken, each also at its own address.
    pub hooks: BTreeSet<InvoicingHook>,
    /// What verifies them.
    pub trust: Trust,
    /// Companies of the tenants.
    pub tenants: Arc<BTreeMap<TenantId, CompanyId>>,
    /// Body limit in bytes.
    pub body_limit: usize,
}

/// What verifies invoicing deliveries.
#[derive(Debug)]
pub enum Trust {
    /// A signature.
    Signed {
        /// The header with the signature.
        header: HeaderName,
        /// The current and the previous secret of each hook.
        keys: BTreeMap<InvoicingHook, SigningKeys>,
        /// The current and the previous secret of all hooks; none unless `invoicing.secret.scope` is `connector`.
        whole: SigningKeys,
    },
    /// The source address alone; [`Receiver::sources`] is not empty.
    Addresses,
}

/// Why a configuration cannot be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The secret could be guessed.
    #[error("{key}: is shorter than {SHORTEST_SECRET} bytes; set a longer secret, here and at the provider")]
    ShortSecret {
        /// Where it is set.
        key: &'static str,
    },
    /// The name of the signature header is not valid.
    #[error(
        "invoicing.signature.header: is not the name of a header; name the one that carries the signature"
    )]
    Header(#[source] http::header::InvalidHeaderName),
    /// Deliveries would not be verified at all.
    #[error(
        "invoicing.signature.policy: is off without source.addresses; name the provider's networks there, or require \
         signatures"
    )]
    Anybody,
}

impl Error {
    /// Never: the same configuration fails again.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        Retry::Never
    }
}

impl Receiver {
    /// The receiver of a configuration.
    ///
    /// # Errors
    /// Its deliveries could not be verified; names the key to correct.
    pub fn of(
        source: &config::WebhookSource,
        dead_letter_topic: String,
        state: ReceiverState,
    ) -> Result<Self, Error> {
        let accounting = source.accounting.as_ref().map(|accounting| {
            let mut secrets = vec![long("accounting.secret", &accounting.secret)?];
            if let Some(previous) = &accounting.previous_secret {
                secrets.push(long("accounting.secret.previous", previous)?);
            }
            Ok(AccountingReceiver { keys: SigningKeys::new(secrets), body_limit: source.body_limit_bytes })
        });
        let invoicing = source.invoicing.as_ref().map(|invoicing| {
            Ok(InvoicingReceiver {
                segment: invoicing.segment.clone(),
                hooks: invoicing.hooks.clone(),
                trust: trust(invoicing, &source.source_addresses)?,
                tenants: Arc::new(invoicing.tenants.clone()),
                body_limit: invoicing.body_limit_bytes,
            })
        });
        Ok(Self {
            connector: source.common.name.as_str().into(),
            prefix: source.common.topic_prefix.as_str().into(),
            dead_letter_topic: dead_letter_topic.into(),
            state,
            accounting: accounting.transpose()?,
            invoicing: invoicing.transpose()?,
            sources: source.source_addresses.clone(),
            advertised: advertised(source),
        })
    }

    /// Whether deliveries of a hook are taken.
    #[must_use]
    pub fn takes(&self, hook: InvoicingHook) -> bool {
        self.invoicing.as_ref().is_some_and(|invoicing| invoicing.hooks.contains(&hook))
    }

    /// Whether a delivery may come from this address.
    #[must_use]
    pub fn accepts_from(&self, address: IpAddr) -> bool {
        self.sources.is_empty() || self.sources.iter().any(|network| network.contains(&address))
    }
}

/// A connector that is configured and cannot be received, because its secrets or its configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultyReceiver {
    /// Its name.
    pub connector: String,
    /// Its segment for invoicing deliveries, if it takes any.
    pub segment: Option<String>,
}

/// The receivers of an address.
#[derive(Debug, Clone, Default)]
pub struct ReceiverLookup {
    /// Those that take its deliveries, by name. Only under an invoicing segment there may be several.
    pub receivers: Vec<Arc<Receiver>>,
    /// Why a delivery that none of them verifies may still be valid.
    pub missing: Option<MissingReceiver>,
}

/// Why a connector that an address may belong to is not received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingReceiver {
    /// It is a [`FaultyReceiver`].
    Faulty,
    /// The configurations are not loaded yet.
    NotLoaded,
}

/// The current receivers. Cheap to clone; all clones share one table.
#[derive(Debug, Clone, Default)]
pub struct Receivers(Arc<watch::Sender<ReceiverTable>>);

/// The table of receivers.
#[derive(Debug, Default)]
pub struct ReceiverTable {
    by_connector: HashMap<Arc<str>, Arc<Receiver>>,
    by_segment: HashMap<String, Vec<Arc<Receiver>>>,
    faulty: Vec<FaultyReceiver>,
    /// The configurations are not loaded: the table is that of an earlier run, or empty.
    not_loaded: bool,
}

impl Receivers {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the table. Deliveries to a faulty connector are answered 503.
    pub fn set(&self, mut table: Vec<Arc<Receiver>>, faulty: Vec<FaultyReceiver>) {
        let mut new = ReceiverTable { faulty, ..ReceiverTable::default() };
        table.sort_by(|one, other| one.connector.cmp(&other.connector));
        for receiver in table {
            if let Some(invoicing) = &receiver.invoicing {
                let sharing = new.by_segment.entry(invoicing.segment.clone()).or_default();
                sharing.push(Arc::clone(&receiver));
            }
            new.by_connector.insert(Arc::clone(&receiver.connector), receiver);
        }
        self.0.send_modify(|table| *table = ReceiverTable { not_loaded: table.not_loaded, ..new });
    }

    /// Sets whether configurations are still missing. As long as they are, requests to unknown connectors are answered 503, because the
    /// provider disables an address that answers 401.
    pub fn set_not_loaded(&self, not_loaded: bool) {
        self.0.send_if_modified(|table| std::mem::replace(&mut table.not_loaded, not_loaded) != not_loaded);
    }

    /// Changes whenever [`Receivers`] does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<ReceiverTable> {
        self.0.subscribe()
    }

    /// The receiver of `/webhooks/accounting/{connector}`.
    #[must_use]
    pub fn accounting(&self, connector: &str) -> ReceiverLookup {
        let table = self.0.borrow();
        let receivers: Vec<_> = table.by_connector.get(connector).cloned().into_iter().collect();
        // The name says whose a delivery is, so nothing is missing beside it.
        let missing = receivers.is_empty().then(|| table.missing(|faulty| faulty.connector == connector));
        ReceiverLookup { receivers, missing: missing.flatten() }
    }

    /// The receivers of the shared address with this segment, or of the own address of a hook below it.
    #[must_use]
    pub fn invoicing(&self, segment: &str, hook: Option<InvoicingHook>) -> ReceiverLookup {
        let table = self.0.borrow();
        let sharing = table.by_segment.get(segment).map_or(&[][..], Vec::as_slice);
        let takes = |receiver: &&Arc<Receiver>| hook.is_none_or(|hook| receiver.takes(hook));
        let receivers = sharing.iter().filter(takes).cloned().collect();
        let missing = table.missing(|faulty| faulty.segment.as_deref() == Some(segment));
        ReceiverLookup { receivers, missing }
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Receiver>> {
        let mut all: Vec<_> = self.0.borrow().by_connector.values().cloned().collect();
        all.sort_by(|one, other| one.connector.cmp(&other.connector));
        all
    }
}

impl ReceiverTable {
    /// Why a connector may be missing.
    fn missing(&self, is_it: impl Fn(&FaultyReceiver) -> bool) -> Option<MissingReceiver> {
        if self.faulty.iter().any(is_it) {
            return Some(MissingReceiver::Faulty);
        }
        self.not_loaded.then_some(MissingReceiver::NotLoaded)
    }
}

/// The subscription that sent a delivery.
#[derive(Debug, Clone, Copy)]
pub enum DeliveredBy<'a> {
    /// An accounting webhook, and its resource if that is known.
    Webhook(&'a str, Option<AccountingResource>),
    /// An invoicing hook, identified by its secret or its own address.
    Hook(InvoicingHook),
}

/// Deliveries of one connector.
#[derive(Debug, Clone, Default)]
pub struct ConnectorStats {
    /// All that were attributed to a subscription.
    pub count: u64,
    /// By webhook.
    pub webhooks: BTreeMap<String, Traffic>,
    /// By hook.
    pub hooks: BTreeMap<Target, Traffic>,
}

/// Durable deliveries by subscription, with the time of the last one. Cheap to clone; all clones share one map.
///
/// Receivers count, with one short lock for each delivery; heartbeats report the counts. For each connector the
/// [`MAX_TRACKED_WEBHOOKS`] ids with the latest deliveries are kept, because ids come from outside.
#[derive(Debug, Clone, Default)]
pub struct DeliveryStats(Arc<Mutex<HashMap<Arc<str>, ConnectorStats>>>);

impl DeliveryStats {
    /// Counts a durable delivery.
    pub fn note(&self, connector: &Arc<str>, by: DeliveredBy<'_>, at: i64) {
        let mut all = self.0.lock();
        if !all.contains_key(connector) {
            all.insert(Arc::clone(connector), ConnectorStats::default());
        }
        let Some(stats) = all.get_mut(connector) else { return };
        stats.count += 1;
        match by {
            DeliveredBy::Webhook(id, resource) => {
                if let Some(known) = stats.webhooks.get_mut(id) {
                    known.resource = resource.or(known.resource);
                    return record(known, at);
                }
                if stats.webhooks.len() >= MAX_TRACKED_WEBHOOKS {
                    let oldest = stats.webhooks.iter().min_by_key(|(_, traffic)| traffic.last);
                    if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                        stats.webhooks.remove(&oldest);
                    }
                }
                stats.webhooks.insert(id.to_owned(), Traffic { resource, last: at, count: 1 });
            }
            DeliveredBy::Hook(hook) => record(stats.hooks.entry(Target::Invoicing(hook)).or_default(), at),
        }
    }

    /// Number of deliveries of a connector.
    #[must_use]
    pub fn count(&self, connector: &str) -> u64 {
        self.0.lock().get(connector).map_or(0, |stats| stats.count)
    }

    /// Deliveries of a connector.
    #[must_use]
    pub fn of(&self, connector: &str) -> ConnectorStats {
        self.0.lock().get(connector).cloned().unwrap_or_default()
    }

    /// Drops connectors that are not received any more.
    pub fn retain(&self, is_received: impl Fn(&str) -> bool) {
        self.0.lock().retain(|connector, _| is_received(connector));
    }
}

fn record(traffic: &mut Traffic, at: i64) {
    traffic.last = traffic.last.max(at);
    traffic.count += 1;
}

fn advertised(source: &config::WebhookSource) -> Advertised {
    let accounting = source.accounting.as_ref();
    let accounting = accounting.map(|one| fingerprints(&one.secret, one.previous_secret.as_ref()));
    let invoicing = source.invoicing.as_ref().map(|invoicing| hook_fingerprints(&invoicing.signature).1);
    Advertised {
        accounting: accounting.unwrap_or_default(),
        invoicing: invoicing.unwrap_or_default(),
        every: (source.subscriptions.poll / 4).clamp(MIN_HEARTBEAT_INTERVAL, MAX_HEARTBEAT_INTERVAL),
        manages: source.manage_subscriptions,
    }
}

fn trust(
    invoicing: &config::connector::webhook::InvoicingWebhooks,
    sources: &[IpNet],
) -> Result<Trust, Error> {
    let SignatureTrust::Required { header, secret, previous_secret, .. } = &invoicing.signature else {
        return if sources.is_empty() { Err(Error::Anybody) } else { Ok(Trust::Addresses) };
    };
    long("invoicing.secret", secret)?;
    if let Some(previous) = previous_secret {
        long("invoicing.secret.previous", previous)?;
    }
    let masters = MasterSecret::all(&invoicing.signature);
    let keys = |hook: &InvoicingHook| (*hook, SigningKeys::of_hooks(&masters, Some(*hook)));
    Ok(Trust::Signed {
        header: HeaderName::from_bytes(header.as_bytes()).map_err(Error::Header)?,
        keys: invoicing.hooks.iter().map(keys).collect(),
        whole: SigningKeys::of_hooks(&masters, None),
    })
}

/// The bytes of a secret that is long enough.
fn long<'a>(key: &'static str, secret: &'a Secret) -> Result<&'a [u8], Error> {
    let bytes = secret.reveal().as_bytes();
    if bytes.len() < SHORTEST_SECRET { Err(Error::ShortSecret { key }) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests;
