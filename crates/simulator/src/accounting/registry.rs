//! All webhooks, in the order of creation.

use super::webhook::StoredWebhook;
use crate::{
    catalog::{Kind, Resource},
    random::Guid,
};

/// At the limit, the oldest ended webhook is dropped; if none has ended, a subscribe is refused.
pub(super) const MAX_WEBHOOKS: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct WebhookRegistry {
    pub(super) webhooks: Vec<StoredWebhook>,
    made: u64,
    outgoing: u64,
}

impl WebhookRegistry {
    pub(super) fn next_webhook(&mut self) -> u64 {
        self.made += 1;
        self.made - 1
    }

    pub(super) fn next_outgoing(&mut self) -> u64 {
        self.outgoing += 1;
        self.outgoing - 1
    }

    /// Webhooks of a resource that have not ended.
    pub(super) fn living(&self, resource: Resource) -> impl Iterator<Item = &StoredWebhook> {
        self.webhooks.iter().filter(move |webhook| webhook.resource == resource && !webhook.has_ended())
    }

    /// Makes room for one more, if possible.
    pub(super) fn make_room(&mut self) -> bool {
        if self.webhooks.len() >= MAX_WEBHOOKS {
            let oldest = self.webhooks.iter().position(StoredWebhook::has_ended);
            oldest.map(|oldest| self.webhooks.remove(oldest));
        }
        self.webhooks.len() < MAX_WEBHOOKS
    }

    pub(super) fn get(&self, id: Guid) -> Option<&StoredWebhook> {
        self.webhooks.iter().find(|webhook| webhook.id == id)
    }

    pub(super) fn get_mut(&mut self, id: Guid) -> Option<&mut StoredWebhook> {
        self.webhooks.iter_mut().find(|webhook| webhook.id == id)
    }

    /// Webhooks that have not ended and subscribed to this kind of event.
    pub(super) fn concerned(&self, resource: Resource, kind: Kind) -> Vec<Guid> {
        let subscribed = |webhook: &&StoredWebhook| webhook.subscription.kinds.contains(&kind);
        self.living(resource).filter(subscribed).map(|webhook| webhook.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{accounting::request::WebhookSubscription, clock::Ticks};

    fn webhook(number: u64) -> StoredWebhook {
        let url = "https://hooks.example/".to_owned();
        let parsed = url::Url::parse(&url).unwrap();
        let subscription = WebhookSubscription {
            application: "a".to_owned(),
            url,
            secret: "s".to_owned(),
            kinds: [Kind::Created].into(),
        };
        StoredWebhook::new(Guid(number.into()), Resource::Charges, subscription, parsed, Guid(0), Ticks(0))
    }

    #[test]
    fn a_full_registry_forgets_only_ended_webhooks() {
        let mut registry = WebhookRegistry::default();
        for number in 0..MAX_WEBHOOKS as u64 {
            assert!(registry.make_room());
            registry.webhooks.push(webhook(number));
        }
        let full = registry.make_room();
        for number in [7, 3] {
            registry.get_mut(Guid(number)).unwrap().delete(Ticks(0));
        }

        let room = registry.make_room();

        assert_eq!((full, room), (false, true));
        assert!(registry.get(Guid(3)).is_none() && registry.get(Guid(7)).is_some());
        assert_eq!(registry.living(Resource::Charges).count(), MAX_WEBHOOKS - 2);
        assert_eq!(registry.concerned(Resource::Charges, Kind::Created).len(), MAX_WEBHOOKS - 2);
        assert!(registry.concerned(Resource::Charges, Kind::Updated).is_empty());
    }
}
