//! Webhooks of the accounting family: management, states, events.

use std::sync::Arc;

use axum::Router;
use serde::Serialize;

use super::{
    Provider,
    catalog::Resource,
    deliveries::Purpose,
    random::Guid,
    settings::Settings,
    world::{RecordChange, World},
};

/// Every webhook there ever was.
#[derive(Debug)]
pub struct Accounting {}

/// A webhook as it stands, for those who compare.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookTruth {
    /// Its id.
    pub id: Guid,
    /// Its resource.
    pub resource: Resource,
    /// Receiver address.
    pub url: String,
    /// `thirdPartyApplicationName`.
    pub application: String,
    /// State.
    pub state: WebhookState,
    /// Semantic names.
    pub events: Vec<String>,
}

/// The states of the document's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WebhookState {
    /// The Acknowledge has not been accepted yet.
    AwaitingContract,
    /// Events are delivered.
    Active,
    /// Switched off by the caller or after failed deliveries.
    Disabled,
    /// Ended by unsubscribe.
    Unsubscribed,
    /// Ended by delete.
    Deleted,
}

impl Accounting {
    /// No webhooks yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {}
    }

    /// Makes the deliveries of a change and hands them over. A webhook that subscribed to the event but is not active
    /// gets a journal entry that ends as missed.
    pub fn announce(&self, provider: &Provider, world: &World, change: &RecordChange) {}

    /// A delivery has ended for good: accepted, or every attempt failed.
    pub fn ended(&self, provider: &Provider, webhook: Guid, purpose: Purpose, accepted: bool) {}

    /// Whether a delivery is still wanted: its webhook may have been disabled or deleted, or moved to another url, since.
    #[must_use]
    pub fn wants(&self, webhook: Guid, purpose: Purpose, url: &str) -> bool {
        todo!()
    }

    /// Every webhook.
    #[must_use]
    pub fn webhooks(&self) -> Vec<WebhookTruth> {
        todo!()
    }

    /// Disables an active webhook, as the provider does after failed deliveries. Whether it was active.
    pub fn disable(&self, webhook: Guid) -> bool {
        todo!()
    }

    /// Sends an event of any kind to an active webhook, signed: kinds nobody knows, bodies of any shape. `event_type` is
    /// the last part of the semantic name. Whether there is such a webhook.
    pub fn send(
        &self,
        provider: &Provider,
        webhook: Guid,
        company: Option<&str>,
        event_type: &str,
        json_data: &str,
    ) -> bool {
        todo!()
    }
}

/// The `/webhooks` family under all nineteen prefixes.
pub fn router() -> Router<Arc<Provider>> {
    Router::new()
}
