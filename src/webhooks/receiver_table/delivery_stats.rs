//! Durable deliveries by subscription, which heartbeats report.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use model::{AccountingResource, InvoicingHook, Target, Traffic};

/// Accounting subscriptions that are counted for one connector. Hooks are bounded by their kinds.
pub const MAX_TRACKED_WEBHOOKS: usize = 256;

/// The subscription that sent a delivery.
#[derive(Debug, Clone, Copy)]
pub enum DeliveredBy<'a> {
    /// An accounting webhook, and its resource if that is known.
    Webhook(&'a str, Option<AccountingResource>),
    /// An invoicing hook, identified by its secret.
    Hook(InvoicingHook),
}

/// Deliveries of one connector.
#[derive(Debug, Clone, Default)]
pub struct ConnectorStats {
    /// All of them.
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
