//! What the receivers of this process have heard: by which subscriptions deliveries came that are durable, and when.
//!
//! Receivers note, one short lock for each delivery; somebody else looks every so often and tells the cluster. Of each connector
//! the [`MOST`] ids that were heard of last are kept: an id is a text of the provider's, so nobody may make more of them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use model::{AccountingResource, InvoicingHook, Target, Traffic};

/// Accounting subscriptions of one connector that are remembered. Hooks are no more than there are kinds of them.
pub const MOST: usize = 256;

/// By which subscription a delivery came.
#[derive(Debug, Clone, Copy)]
pub enum By<'a> {
    /// An accounting webhook, and its resource where that is known.
    Webhook(&'a str, Option<AccountingResource>),
    /// An invoicing hook, as its secret tells.
    Hook(InvoicingHook),
}

/// What was heard of one connector.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Rises with every delivery.
    pub count: u64,
    /// By webhook.
    pub webhooks: BTreeMap<String, Traffic>,
    /// By hook.
    pub hooks: BTreeMap<Target, Traffic>,
}

/// See the module's head. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Hearing(Arc<Mutex<HashMap<Arc<str>, Heard>>>);

impl Hearing {
    /// A delivery of a connector is durable since this moment.
    pub fn note(&self, connector: &Arc<str>, by: By<'_>, at: i64) {
        let mut all = self.0.lock();
        if !all.contains_key(connector) {
            all.insert(Arc::clone(connector), Heard::default());
        }
        let Some(heard) = all.get_mut(connector) else { return };
        heard.count += 1;
        match by {
            By::Webhook(id, resource) => {
                if let Some(known) = heard.webhooks.get_mut(id) {
                    known.resource = resource.or(known.resource);
                    return hear(known, at);
                }
                if heard.webhooks.len() >= MOST {
                    let oldest = heard.webhooks.iter().min_by_key(|(_, traffic)| traffic.last);
                    if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                        heard.webhooks.remove(&oldest);
                    }
                }
                heard.webhooks.insert(id.to_owned(), Traffic { resource, last: at, count: 1 });
            }
            By::Hook(hook) => hear(heard.hooks.entry(Target::Invoicing(hook)).or_default(), at),
        }
    }

    /// How many deliveries of a connector there were.
    #[must_use]
    pub fn count(&self, connector: &str) -> u64 {
        self.0.lock().get(connector).map_or(0, |heard| heard.count)
    }

    /// All that was heard of a connector.
    #[must_use]
    pub fn of(&self, connector: &str) -> Heard {
        self.0.lock().get(connector).cloned().unwrap_or_default()
    }

    /// Forgets connectors that are not received any more.
    pub fn retain(&self, is_received: impl Fn(&str) -> bool) {
        self.0.lock().retain(|connector, _| is_received(connector));
    }
}

fn hear(traffic: &mut Traffic, at: i64) {
    traffic.last = traffic.last.max(at);
    traffic.count += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_counted_by_webhook_and_by_hook_and_the_last_moment_counts() {
        let (hearing, hooks) = (Hearing::default(), Arc::from("hooks"));
        let hook: InvoicingHook =
            InvoicingHook { entity: "Customer".parse().unwrap(), action: "Created".parse().unwrap() };

        for at in [5, 9, 7] {
            hearing.note(&hooks, By::Webhook("w-1", Some(AccountingResource::Customers)), at);
        }
        hearing.note(&hooks, By::Webhook("w-1", None), 8);
        hearing.note(&hooks, By::Hook(hook), 3);

        let heard = hearing.of("hooks");
        let resource = Some(AccountingResource::Customers);
        assert_eq!(heard.webhooks, [("w-1".to_owned(), Traffic { resource, last: 9, count: 4 })].into());
        assert_eq!(heard.hooks[&Target::Invoicing(hook)].last, 3);
        assert_eq!((hearing.count("hooks"), hearing.count("others")), (5, 0));
        hearing.retain(|name| name != "hooks");
        assert_eq!(hearing.count("hooks"), 0);
    }

    #[test]
    fn of_too_many_webhooks_those_are_kept_that_were_heard_of_last() {
        let (hearing, hooks) = (Hearing::default(), Arc::from("hooks"));

        for at in 0..=MOST {
            hearing.note(&hooks, By::Webhook(&format!("w-{at}"), None), at as i64);
        }

        let heard = hearing.of("hooks");
        assert_eq!(heard.webhooks.len(), MOST);
        assert!(!heard.webhooks.contains_key("w-0") && heard.webhooks.contains_key("w-1"));
    }
}
