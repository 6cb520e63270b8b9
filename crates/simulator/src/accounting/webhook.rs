//! A webhook and its state transitions.

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use url::Url;

use super::{
    WebhookState, WebhookTransition, WebhookTruth, envelope::EventDescriptor, request::WebhookSubscription,
};
use crate::{
    catalog::{Kind, Resource},
    clock::Ticks,
    deliveries::Purpose,
    random::{Guid, mix},
};

/// Transitions kept per webhook.
const MAX_TRANSITIONS: usize = 32;

#[derive(Debug)]
pub(super) struct StoredWebhook {
    pub(super) id: Guid,
    pub(super) resource: Resource,
    pub(super) state: WebhookState,
    /// The last transitions, oldest first.
    turns: Vec<WebhookTransition>,
    /// As subscribed, with the current `url`.
    pub(super) subscription: WebhookSubscription,
    /// The current url.
    pub(super) url: Url,
    /// From the secret.
    pub(super) key: hmac::Key,
    /// `userIdentifier`: who subscribed.
    pub(super) user: Guid,
    pub(super) deleted_at: Option<Ticks>,
    /// Seed of its lane numbers.
    pub(super) lane: u64,
}

impl StoredWebhook {
    /// A webhook that awaits its contract.
    pub(super) fn new(
        id: Guid,
        resource: Resource,
        subscription: WebhookSubscription,
        url: Url,
        user: Guid,
        now: Ticks,
    ) -> Self {
        Self {
            id,
            resource,
            state: WebhookState::AwaitingContract,
            turns: vec![WebhookTransition { at: now.iso(), state: WebhookState::AwaitingContract }],
            key: hmac::Key::new(hmac::HMAC_SHA256, subscription.secret.as_bytes()),
            subscription,
            url,
            user,
            deleted_at: None,
            lane: mix((id.0 >> 64) as u64 ^ mix(id.0 as u64)),
        }
    }

    pub(super) fn enter(&mut self, state: WebhookState, now: Ticks) {
        self.state = state;
        self.turns.push(WebhookTransition { at: now.iso(), state });
        if self.turns.len() > MAX_TRANSITIONS {
            self.turns.remove(0);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, WebhookState::Unsubscribed | WebhookState::Deleted)
    }

    /// Whether a delivery to this address is still wanted.
    pub(super) fn wants(&self, purpose: Purpose, url: &str) -> bool {
        let state = match purpose {
            Purpose::Acknowledge => WebhookState::AwaitingContract,
            Purpose::Event => WebhookState::Active,
        };
        self.state == state && self.url.as_str() == url
    }

    /// PUT status. Without `strict`, the current state is accepted, too.
    pub(super) fn enable(&mut self, enable: bool, strict: bool, now: Ticks) -> Result<(), String> {
        let state = match (self.state, enable) {
            (WebhookState::Active, false) => WebhookState::Disabled,
            (WebhookState::Disabled, true) => WebhookState::Active,
            (WebhookState::Active, true) | (WebhookState::Disabled, false) if !strict => return Ok(()),
            (state, true) => return Err(format!("a webhook that is {} cannot be enabled", name(state))),
            (state, false) => return Err(format!("a webhook that is {} cannot be disabled", name(state))),
        };
        self.enter(state, now);
        Ok(())
    }

    /// PUT change. Without `strict`, also for a webhook that is not active, and to the url it has.
    pub(super) fn change(&mut self, text: String, url: Url, strict: bool, now: Ticks) -> Result<(), String> {
        let movable = match self.state {
            WebhookState::Active => true,
            WebhookState::AwaitingContract | WebhookState::Disabled => !strict,
            WebhookState::Unsubscribed | WebhookState::Deleted => false,
        };
        if !movable {
            return Err(format!("a webhook that is {} cannot change its url", name(self.state)));
        }
        if strict && self.url == url {
            return Err("the url is the one it has".to_owned());
        }
        self.enter(WebhookState::AwaitingContract, now);
        self.subscription.url = text;
        self.url = url;
        Ok(())
    }

    /// DELETE, from any other state.
    pub(super) fn delete(&mut self, now: Ticks) {
        self.enter(WebhookState::Deleted, now);
        self.deleted_at = Some(now);
    }

    /// The configuration record.
    pub(super) fn record(&self, tenant: &str) -> Value {
        let event = |&kind: &Kind| {
            let EventDescriptor { app_name, domain, resource, event_type, semantic_name } =
                EventDescriptor::of(self.resource, kind);
            json!({
                "appName": app_name,
                "domain": domain,
                "resource": resource,
                "eventType": event_type,
                "semanticName": *semantic_name,
            })
        };
        let mut record = json!({
            "id": self.id,
            "thirdPartyApplicationName": self.subscription.application,
            "url": self.subscription.url,
            "tenantId": tenant,
            "secret": self.subscription.secret,
            "isActive": self.state == WebhookState::Active,
            "isDeleted": self.state == WebhookState::Deleted,
            "events": self.subscription.kinds.iter().map(event).collect::<Vec<_>>(),
            "userIdentifier": self.user,
        });
        if let Some(at) = self.deleted_at {
            record["deletedAt"] = Value::from(at.iso());
        }
        record
    }

    pub(super) fn truth(&self) -> WebhookTruth {
        let kinds = self.subscription.kinds.iter();
        WebhookTruth {
            id: self.id,
            resource: self.resource,
            url: self.subscription.url.clone(),
            application: self.subscription.application.clone(),
            state: self.state,
            events: kinds.map(|&kind| self.resource.semantic_name(kind)).collect(),
            turns: self.turns.clone(),
        }
    }
}

/// A state, for error messages.
const fn name(state: WebhookState) -> &'static str {
    match state {
        WebhookState::AwaitingContract => "awaiting its contract",
        WebhookState::Active => "active",
        WebhookState::Disabled => "disabled",
        WebhookState::Unsubscribed => "unsubscribed",
        WebhookState::Deleted => "deleted",
    }
}
