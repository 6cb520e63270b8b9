//! Operations of webhook management.

use serde_json::Value;

use super::{
    WebhookService, WebhookState, purpose,
    registry::WebhookRegistry,
    request::{self, RequestError},
    webhook::StoredWebhook,
};
use crate::{catalog::Resource, deliveries::DeliveryOrder, random::Guid};

/// Why an operation failed.
#[derive(Debug)]
pub(super) enum OperationError {
    /// The webhook is unknown, or another resource's.
    Unknown,
    /// The request is invalid, or the webhook's state does not allow it.
    Rejected(Option<Guid>, Vec<RequestError>),
}

/// A webhook and the Acknowledge to send.
pub(super) type Acknowledged = (Guid, Option<DeliveryOrder>);

impl WebhookService {
    pub(super) fn subscribe(
        &self,
        resource: Resource,
        user: Option<Guid>,
        body: &[u8],
    ) -> Result<Acknowledged, OperationError> {
        let knobs = self.core.knobs();
        let (subscription, url) = request::subscription(body, resource, knobs.delivery.receivers)
            .map_err(|errors| OperationError::Rejected(None, errors))?;
        let mut registry = self.registry.lock();
        let most = knobs.accounting.max_webhooks.map_or(usize::MAX, |most| most as usize);
        if registry.living(resource).count() >= most || !registry.make_room() {
            return Err(refuse(None, "TooManyWebhooks", "no more webhooks of this resource are allowed"));
        }
        let id = Guid::nth(self.core.seed(), purpose::WEBHOOK, registry.next_webhook());
        let user = user.unwrap_or_else(|| Guid::nth(self.core.seed(), purpose::USER, 0));
        registry.webhooks.push(StoredWebhook::new(
            id,
            resource,
            subscription,
            url,
            user,
            self.core.clock.now(),
        ));
        Ok((id, self.acknowledge(&mut registry, id)))
    }

    /// Deletes a webhook, as another user might. Returns whether it existed.
    pub fn remove(&self, webhook: Guid) -> bool {
        let mut registry = self.registry.lock();
        let found = registry.get_mut(webhook).filter(|found| found.state != WebhookState::Deleted);
        found.map(|found| found.delete(self.core.clock.now())).is_some()
    }

    /// Ends matching webhooks and returns the first.
    pub(super) fn unsubscribe(&self, resource: Resource, body: &[u8]) -> Result<Guid, OperationError> {
        let knobs = self.core.knobs();
        let (subscription, _) = request::subscription(body, resource, knobs.delivery.receivers)
            .map_err(|errors| OperationError::Rejected(None, errors))?;
        let strict = knobs.accounting.strict_transitions;
        let mut registry = self.registry.lock();
        let fits = |webhook: &StoredWebhook| {
            (!strict || webhook.state == WebhookState::Active) && webhook.subscription == subscription
        };
        let living = registry.living(resource);
        let found: Vec<Guid> = living.filter(|webhook| fits(webhook)).map(|webhook| webhook.id).collect();
        let Some(&first) = found.first() else {
            return Err(refuse(None, "NotSubscribed", "no active webhook was subscribed with this body"));
        };
        for id in found {
            if let Some(webhook) = registry.get_mut(id) {
                webhook.enter(WebhookState::Unsubscribed, self.core.clock.now());
            }
        }
        Ok(first)
    }

    pub(super) fn record(&self, resource: Resource, id: &str) -> Option<Value> {
        let id = Guid::parse(id)?;
        let registry = self.registry.lock();
        let webhook = registry.get(id).filter(|webhook| webhook.resource == resource)?;
        Some(webhook.record(&self.tenant))
    }

    pub(super) fn status(&self, resource: Resource, id: &str, body: &[u8]) -> Result<Guid, OperationError> {
        let (strict, now) = (self.core.knobs().accounting.strict_transitions, self.core.clock.now());
        let mut registry = self.registry.lock();
        let webhook = find(&mut registry, resource, id)?;
        let id = webhook.id;
        let enable =
            request::status(body, id).map_err(|errors| OperationError::Rejected(Some(id), errors))?;
        webhook.enable(enable, strict, now).map_err(|message| refuse(Some(id), "InvalidState", &message))?;
        Ok(id)
    }

    pub(super) fn change(
        &self,
        resource: Resource,
        id: &str,
        body: &[u8],
    ) -> Result<Acknowledged, OperationError> {
        let knobs = self.core.knobs();
        let mut registry = self.registry.lock();
        let webhook = find(&mut registry, resource, id)?;
        let id = webhook.id;
        let (text, url) = request::change(body, id, knobs.delivery.receivers)
            .map_err(|errors| OperationError::Rejected(Some(id), errors))?;
        webhook
            .change(text, url, knobs.accounting.strict_transitions, self.core.clock.now())
            .map_err(|message| refuse(Some(id), "InvalidState", &message))?;
        Ok((id, self.acknowledge(&mut registry, id)))
    }

    pub(super) fn delete(&self, resource: Resource, id: &str) -> Result<Guid, OperationError> {
        let strict = self.core.knobs().accounting.strict_transitions;
        let mut registry = self.registry.lock();
        let webhook = find(&mut registry, resource, id)?;
        let id = webhook.id;
        if webhook.state != WebhookState::Deleted {
            webhook.delete(self.core.clock.now());
        } else if strict {
            return Err(refuse(Some(id), "InvalidState", "the webhook is deleted already"));
        }
        Ok(id)
    }
}

fn find<'a>(
    registry: &'a mut WebhookRegistry,
    resource: Resource,
    id: &str,
) -> Result<&'a mut StoredWebhook, OperationError> {
    let id = Guid::parse(id).ok_or_else(|| refuse(None, "InvalidId", "the webhook id must be a GUID"))?;
    registry.get_mut(id).filter(|webhook| webhook.resource == resource).ok_or(OperationError::Unknown)
}

fn refuse(webhook: Option<Guid>, code: &'static str, message: &str) -> OperationError {
    OperationError::Rejected(webhook, vec![RequestError::new(code, message)])
}
