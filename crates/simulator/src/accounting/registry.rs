//! All webhooks, found by id or by the event they subscribed to.

use std::collections::{HashMap, VecDeque};

use super::webhook::Webhook;
use crate::{catalog::Resource, random::Guid};

/// Webhooks kept: of those that have ended the oldest go first, and more that live are refused.
pub(super) const MOST_WEBHOOKS: usize = 100_000;

/// All webhooks.
#[derive(Debug, Default)]
pub(super) struct Registry {
    webhooks: HashMap<Guid, Webhook>,
    /// Those that have not ended, by resource, in the order they were made.
    living: [Vec<Guid>; Resource::ALL.len()],
    /// Those that have, in the order they did.
    retired: VecDeque<Guid>,
    made: u64,
    outgoing: u64,
}

impl Registry {
    /// The number of the next webhook.
    pub(super) fn next_webhook(&mut self) -> u64 {
        self.made += 1;
        self.made - 1
    }

    /// The number of the next delivery.
    pub(super) fn next_outgoing(&mut self) -> u64 {
        self.outgoing += 1;
        self.outgoing - 1
    }

    /// Webhooks of a resource that have not ended.
    pub(super) fn living(&self, resource: Resource) -> &[Guid] {
        &self.living[resource as usize]
    }

    /// Makes room for one more. Whether there is.
    pub(super) fn make_room(&mut self) -> bool {
        if self.webhooks.len() >= MOST_WEBHOOKS
            && let Some(oldest) = self.retired.pop_front()
        {
            self.webhooks.remove(&oldest);
        }
        self.webhooks.len() < MOST_WEBHOOKS
    }

    pub(super) fn insert(&mut self, webhook: Webhook) {
        self.living[webhook.resource as usize].push(webhook.id);
        self.webhooks.insert(webhook.id, webhook);
    }

    pub(super) fn get(&self, id: Guid) -> Option<&Webhook> {
        self.webhooks.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: Guid) -> Option<&mut Webhook> {
        self.webhooks.get_mut(&id)
    }

    /// Takes one away without a trace. Whether it was there.
    pub(super) fn forget(&mut self, id: Guid) -> bool {
        let Some(webhook) = self.webhooks.remove(&id) else { return false };
        self.living[webhook.resource as usize].retain(|&living| living != id);
        self.retired.retain(|&retired| retired != id);
        true
    }

    /// Takes one that has ended out of those that live; a second time changes nothing.
    pub(super) fn retire(&mut self, id: Guid) {
        let Some(webhook) = self.webhooks.get(&id) else { return };
        let living = &mut self.living[webhook.resource as usize];
        if let Some(at) = living.iter().position(|&living| living == id) {
            living.remove(at);
            self.retired.push_back(id);
        }
    }

    /// Whether any living webhook subscribed to this kind of event.
    pub(super) fn concerns(&self, resource: Resource, kind: usize) -> bool {
        self.living(resource).iter().any(|&id| self.subscribed(id, kind))
    }

    /// Living webhooks that subscribed to this kind of event.
    pub(super) fn concerned(&self, resource: Resource, kind: usize) -> Vec<Guid> {
        self.living(resource).iter().copied().filter(|&id| self.subscribed(id, kind)).collect()
    }

    /// Every webhook, in the order they were made.
    pub(super) fn in_order(&self) -> Vec<&Webhook> {
        let mut webhooks: Vec<&Webhook> = self.webhooks.values().collect();
        webhooks.sort_unstable_by_key(|webhook| webhook.number);
        webhooks
    }

    fn subscribed(&self, id: Guid, kind: usize) -> bool {
        self.get(id).is_some_and(|webhook| webhook.subscription.kinds.contains(&kind))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::{accounting::request::Subscription, clock::Ticks};

    fn webhook(number: u64) -> Webhook {
        let url = "https://hooks.example/".to_owned();
        let parsed = url::Url::parse(&url).unwrap();
        let subscription =
            Subscription { application: "a".to_owned(), url, secret: "s".to_owned(), kinds: vec![0] };
        Webhook::new(Guid(number.into()), number, Resource::Charges, subscription, parsed, Guid(0), Ticks(0))
    }

    #[test]
    fn a_full_registry_forgets_what_has_ended_first_and_never_what_lives() {
        let mut registry = Registry::default();
        for number in 0..MOST_WEBHOOKS as u64 {
            assert!(registry.make_room());
            registry.insert(webhook(number));
        }
        let full = registry.make_room();
        for number in [7, 3] {
            registry.get_mut(Guid(number)).unwrap().delete(Ticks(0));
            registry.retire(Guid(number));
            registry.retire(Guid(number));
        }

        let room = registry.make_room();

        assert_eq!((full, room), (false, true));
        assert!(registry.get(Guid(7)).is_none() && registry.get(Guid(3)).is_some());
        assert_eq!(registry.living(Resource::Charges).len(), MOST_WEBHOOKS - 2);
        assert!(registry.concerns(Resource::Charges, 0) && !registry.concerns(Resource::Charges, 1));
        assert_eq!(registry.in_order().len(), MOST_WEBHOOKS - 1);
        assert!(registry.forget(Guid(5)) && !registry.forget(Guid(5)) && registry.forget(Guid(3)));
        assert_eq!(registry.living(Resource::Charges).len(), MOST_WEBHOOKS - 3);
    }
}
