//! Who is received: for every connector what its deliveries are held to, ready to verify with.
//!
//! Configurations ─▶ [`Receiver::of`] ─▶ [`Receivers::set`] ─▶ one look-up per request. Nothing here reads files or asks
//! anybody: what is in the table is served also when everything else is away.
//!
//! - A request sees one table, whole: a change is seen by the requests that come after it.
//! - No receiver without a way to trust its deliveries: a secret too short to be one, or neither signature nor addresses, is
//!   refused here, whoever wrote the configuration.

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

use super::signature::{self, SHORTEST_SECRET, SigningKeys, fingerprints};
use crate::config::{self, connector::webhook::Signature};

/// The shortest and the longest time between two tellings of what was heard.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// A connector whose deliveries are received.
#[derive(Debug)]
pub struct Receiver {
    /// Its name, which is in the path of accounting deliveries.
    pub connector: Arc<str>,
    /// `topic.prefix`.
    pub prefix: Arc<str>,
    /// Topic of its dead letters.
    pub dead_letters: Arc<str>,
    /// What becomes of its deliveries.
    pub state: ReceiverState,
    /// Accounting deliveries, where it takes any.
    pub accounting: Option<AccountingReceiver>,
    /// Invoicing deliveries, where it takes any.
    pub invoicing: Option<InvoicingReceiver>,
    /// Networks that deliveries may come from; empty for any.
    pub sources: Vec<IpNet>,
    /// What others are told of it.
    pub advertised: Advertised,
}

/// What others are told of a receiver: which secrets it verifies with, and how often that it was heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advertised {
    /// Fingerprints of the secrets of accounting deliveries.
    pub accounting: BTreeSet<Fingerprint>,
    /// The same of those from which the secrets of invoicing hooks are derived; that of nothing where none are signed.
    pub invoicing: BTreeSet<Fingerprint>,
    /// Time between two tellings.
    pub every: Duration,
    /// Whether its subscriptions are kept here: then none may become active that nobody here knows of.
    pub manages: bool,
}

/// What becomes of a connector's deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiverState {
    /// They are published: RUNNING.
    Running,
    /// They are kept until the connector runs again: PAUSED. To a sender that is no difference.
    Paused,
    /// They are refused, and the provider may try again later: STOPPED.
    Stopped,
}

/// How accounting deliveries are verified.
#[derive(Debug)]
pub struct AccountingReceiver {
    /// The secret, and the one before it.
    pub keys: SigningKeys,
    /// Bytes of the largest body.
    pub body_limit: usize,
}

/// How invoicing deliveries are verified.
#[derive(Debug)]
pub struct InvoicingReceiver {
    /// The segment of the path that names the service: the last one of the shared address.
    pub segment: String,
    /// The hooks whose deliveries are taken, each also at an address of its own.
    pub hooks: BTreeSet<InvoicingHook>,
    /// How they are trusted.
    pub trust: Trust,
    /// Companies of the tenants.
    pub tenants: Arc<BTreeMap<TenantId, CompanyId>>,
    /// Bytes of the largest body.
    pub body_limit: usize,
}

/// How invoicing deliveries are trusted.
#[derive(Debug)]
pub enum Trust {
    /// By signature.
    Signed {
        /// The header it is in.
        header: HeaderName,
        /// The secret of each hook, then the one before it.
        keys: BTreeMap<InvoicingHook, SigningKeys>,
    },
    /// By [`Receiver::sources`] alone, which are not empty.
    Addresses,
}

/// Why a configuration makes no receiver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Anybody could guess it.
    #[error("{key}: is shorter than {SHORTEST_SECRET} bytes; set a longer secret, here and at the provider")]
    ShortSecret {
        /// Where it is set.
        key: &'static str,
    },
    /// No request can have it.
    #[error(
        "invoicing.signature.header: is not the name of a header; name the one that carries the signature"
    )]
    Header(#[source] http::header::InvalidHeaderName),
    /// Anybody could invent events.
    #[error(
        "invoicing.signature.policy: is off without source.addresses; name the provider's networks there, or require \
         signatures"
    )]
    Anybody,
}

impl Error {
    /// The same configuration makes the same mistake.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        Retry::Never
    }
}

impl Receiver {
    /// What a configuration asks for.
    ///
    /// # Errors
    /// Its deliveries could not be trusted; says which key to mend.
    pub fn of(
        source: &config::WebhookSource,
        dead_letters: String,
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
            dead_letters: dead_letters.into(),
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

/// A connector that is configured and cannot be received: what would verify its deliveries is not to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultyReceiver {
    /// Its name.
    pub connector: String,
    /// Last segment of the path of its invoicing deliveries, where it takes any.
    pub segment: Option<String>,
}

/// Whose deliveries come to an address.
#[derive(Debug, Clone)]
pub enum ReceiverLookup {
    /// This one's.
    Received(Arc<Receiver>),
    /// A [`FaultyReceiver`] one's.
    Faulty,
    /// That is not known yet.
    NotLoaded,
    /// Nobody's.
    NotConfigured,
}

/// The receivers of the moment. Cheap to clone; all clones are one table.
#[derive(Debug, Clone, Default)]
pub struct Receivers(Arc<watch::Sender<ReceiverTable>>);

/// Who is received.
#[derive(Debug, Default)]
pub struct ReceiverTable {
    by_connector: HashMap<Arc<str>, Arc<Receiver>>,
    by_segment: HashMap<String, Arc<Receiver>>,
    faulty: Vec<FaultyReceiver>,
    /// There may be others: the table is that of an earlier run, or of none.
    partial: bool,
}

impl Receivers {
    /// Nobody is received yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Receives these from now on, and nobody else; tells the provider to try those that are faulty again later. Of two with one
    /// invoicing segment the first gets its deliveries.
    pub fn set(&self, table: Vec<Arc<Receiver>>, faulty: Vec<FaultyReceiver>) {
        let mut new = ReceiverTable { faulty, ..ReceiverTable::default() };
        for receiver in table {
            if let Some(invoicing) = &receiver.invoicing {
                let segment = invoicing.segment.clone();
                new.by_segment.entry(segment).or_insert_with(|| Arc::clone(&receiver));
            }
            new.by_connector.insert(Arc::clone(&receiver.connector), receiver);
        }
        self.0.send_modify(|table| *table = ReceiverTable { partial: table.partial, ..new });
    }

    /// Says whether there may be others than those that were set. Until that is known, requests to unknown connectors are answered
    /// 503: the provider gives up an address that does not know it.
    pub fn set_partial(&self, partial: bool) {
        self.0.send_if_modified(|table| std::mem::replace(&mut table.partial, partial) != partial);
    }

    /// Changes whenever [`Receivers`] does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<ReceiverTable> {
        self.0.subscribe()
    }

    /// Whose accounting deliveries have this connector's name in their path.
    #[must_use]
    pub fn accounting(&self, connector: &str) -> ReceiverLookup {
        let table = self.0.borrow();
        let receiver = table.by_connector.get(connector).filter(|receiver| receiver.accounting.is_some());
        table.found(receiver, |faulty| faulty.connector == connector)
    }

    /// Whose invoicing deliveries come to the own address of a hook below this segment.
    #[must_use]
    pub fn invoicing_hook(&self, segment: &str, hook: InvoicingHook) -> ReceiverLookup {
        match self.invoicing(segment) {
            ReceiverLookup::Received(receiver) if !receiver.takes(hook) => {
                self.0.borrow().found(None, |_| false)
            }
            found => found,
        }
    }

    /// Whose invoicing deliveries have this last segment in their path.
    #[must_use]
    pub fn invoicing(&self, segment: &str) -> ReceiverLookup {
        let table = self.0.borrow();
        table.found(table.by_segment.get(segment), |faulty| faulty.segment.as_deref() == Some(segment))
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
    fn found(
        &self,
        receiver: Option<&Arc<Receiver>>,
        is_it: impl Fn(&FaultyReceiver) -> bool,
    ) -> ReceiverLookup {
        match receiver {
            Some(receiver) => ReceiverLookup::Received(Arc::clone(receiver)),
            None if self.faulty.iter().any(is_it) => ReceiverLookup::Faulty,
            None if self.partial => ReceiverLookup::NotLoaded,
            None => ReceiverLookup::NotConfigured,
        }
    }
}

fn advertised(source: &config::WebhookSource) -> Advertised {
    let accounting = source.accounting.as_ref();
    let accounting = accounting.map(|one| fingerprints(&one.secret, one.previous_secret.as_ref()));
    let invoicing = source.invoicing.as_ref().map(|invoicing| match &invoicing.signature {
        Signature::Required { secret, previous_secret, .. } => fingerprints(secret, previous_secret.as_ref()),
        Signature::Off => [Fingerprint::of("")].into(),
    });
    Advertised {
        accounting: accounting.unwrap_or_default(),
        invoicing: invoicing.unwrap_or_default(),
        every: (source.subscriptions.poll / 4).clamp(MIN_HEARTBEAT_INTERVAL, MAX_HEARTBEAT_INTERVAL),
        manages: source.manage_subscriptions,
    }
}

fn trust(invoicing: &config::connector::webhook::Invoicing, sources: &[IpNet]) -> Result<Trust, Error> {
    let Signature::Required { header, secret, previous_secret } = &invoicing.signature else {
        return if sources.is_empty() { Err(Error::Anybody) } else { Ok(Trust::Addresses) };
    };
    long("invoicing.secret", secret)?;
    if let Some(previous) = previous_secret {
        long("invoicing.secret.previous", previous)?;
    }
    let keys = |hook: &InvoicingHook| {
        let masters = [Some(secret), previous_secret.as_ref()].into_iter().flatten();
        let secrets = masters.map(|master| signature::hook_secret(master, hook.entity, hook.action));
        let secrets: Vec<Secret> = secrets.collect();
        (*hook, SigningKeys::new(secrets.iter().map(|secret| secret.reveal().as_bytes())))
    };
    Ok(Trust::Signed {
        header: HeaderName::from_bytes(header.as_bytes()).map_err(Error::Header)?,
        keys: invoicing.hooks.iter().map(keys).collect(),
    })
}

/// The bytes of a secret that is long enough to be one.
fn long<'a>(key: &'static str, secret: &'a Secret) -> Result<&'a [u8], Error> {
    let bytes = secret.reveal().as_bytes();
    if bytes.len() < SHORTEST_SECRET { Err(Error::ShortSecret { key }) } else { Ok(bytes) }
}

/// Accounting subscriptions of one connector that are remembered. Hooks are no more than there are kinds of them.
pub const MAX_TRACKED_WEBHOOKS: usize = 256;

/// By which subscription a delivery came.
#[derive(Debug, Clone, Copy)]
pub enum DeliveredBy<'a> {
    /// An accounting webhook, and its resource where that is known.
    Webhook(&'a str, Option<AccountingResource>),
    /// An invoicing hook, as its secret tells.
    Hook(InvoicingHook),
}

/// What was heard of one connector.
#[derive(Debug, Clone, Default)]
pub struct ConnectorStats {
    /// Rises with every delivery.
    pub count: u64,
    /// By webhook.
    pub webhooks: BTreeMap<String, Traffic>,
    /// By hook.
    pub hooks: BTreeMap<Target, Traffic>,
}

/// By which subscriptions deliveries came that are durable, and when. Cheap to clone; all clones are one.
///
/// Receivers note, one short lock for each delivery; somebody else looks every so often and tells the cluster. Of each connector
/// the [`MAX_TRACKED_WEBHOOKS`] ids that were heard of last are kept: an id is a text of the provider's, so nobody may make more of them.
#[derive(Debug, Clone, Default)]
pub struct DeliveryStats(Arc<Mutex<HashMap<Arc<str>, ConnectorStats>>>);

impl DeliveryStats {
    /// A delivery of a connector is durable since this moment.
    pub fn note(&self, connector: &Arc<str>, by: DeliveredBy<'_>, at: i64) {
        let mut all = self.0.lock();
        if !all.contains_key(connector) {
            all.insert(Arc::clone(connector), ConnectorStats::default());
        }
        let Some(heard) = all.get_mut(connector) else { return };
        heard.count += 1;
        match by {
            DeliveredBy::Webhook(id, resource) => {
                if let Some(known) = heard.webhooks.get_mut(id) {
                    known.resource = resource.or(known.resource);
                    return record(known, at);
                }
                if heard.webhooks.len() >= MAX_TRACKED_WEBHOOKS {
                    let oldest = heard.webhooks.iter().min_by_key(|(_, traffic)| traffic.last);
                    if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                        heard.webhooks.remove(&oldest);
                    }
                }
                heard.webhooks.insert(id.to_owned(), Traffic { resource, last: at, count: 1 });
            }
            DeliveredBy::Hook(hook) => record(heard.hooks.entry(Target::Invoicing(hook)).or_default(), at),
        }
    }

    /// How many deliveries of a connector there were.
    #[must_use]
    pub fn count(&self, connector: &str) -> u64 {
        self.0.lock().get(connector).map_or(0, |heard| heard.count)
    }

    /// All that was heard of a connector.
    #[must_use]
    pub fn of(&self, connector: &str) -> ConnectorStats {
        self.0.lock().get(connector).cloned().unwrap_or_default()
    }

    /// Forgets connectors that are not received any more.
    pub fn retain(&self, is_received: impl Fn(&str) -> bool) {
        self.0.lock().retain(|connector, _| is_received(connector));
    }
}

fn record(traffic: &mut Traffic, at: i64) {
    traffic.last = traffic.last.max(at);
    traffic.count += 1;
}

#[cfg(test)]
mod tests;
