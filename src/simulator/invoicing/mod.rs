//! The invoicing API: its login, its webhooks, the echo, notifications.

use std::sync::Arc;

use axum::Router;
use serde::Serialize;

use super::{
    Provider,
    catalog::{Action, Entity},
    clock::Ticks,
    deliveries::Purpose,
    identity::Standing,
    random::Guid,
    settings::Settings,
    world::InvoicingChange,
};

/// Logins and hooks.
#[derive(Debug)]
pub struct Invoicing {}

/// A hook as it stands, for those who compare.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HookTruth {
    /// Its id; written without dashes on the wire.
    pub id: Guid,
    /// Number of the invoicing company that owns it.
    pub company: u32,
    /// Receiver address.
    pub uri: String,
    /// Entity subscribed to.
    pub entity: Entity,
    /// Action subscribed to.
    pub action: Action,
    /// Whether the echo has come back.
    pub effective: bool,
    /// Whether it is paused.
    pub paused: bool,
}

impl Invoicing {
    /// Nobody logged in, no hooks.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {}
    }

    /// What a token is worth now; tokens before a company was chosen have none.
    #[must_use]
    pub fn check(&self, bearer: &str, now: Ticks) -> Standing {
        todo!()
    }

    /// `TenantId` of an invoicing company.
    #[must_use]
    pub fn tenant(&self, company: u32) -> String {
        todo!()
    }

    /// Makes the deliveries of a change and hands them over; hooks that are paused or not effective get a journal entry
    /// that ends as missed.
    pub fn announce(&self, provider: &Provider, change: &InvoicingChange) {}

    /// A delivery has ended for good. The hook stays as it is.
    pub fn ended(&self, provider: &Provider, hook: Guid, purpose: Purpose, accepted: bool) {}

    /// Whether a delivery is still wanted.
    #[must_use]
    pub fn wants(&self, hook: Guid) -> bool {
        todo!()
    }

    /// Every hook that has not been deleted.
    #[must_use]
    pub fn hooks(&self) -> Vec<HookTruth> {
        todo!()
    }

    /// Pauses or resumes a hook, as the provider might by itself. Whether there is such a hook.
    pub fn pause(&self, hook: Guid, paused: bool) -> bool {
        todo!()
    }

    /// A token for an invoicing company without the login, for tests of other parts (without the word `Bearer`).
    pub fn grant(&self, provider: &Provider, company: u32) -> String {
        todo!()
    }
}

/// Routes of INV.
pub fn router() -> Router<Arc<Provider>> {
    Router::new()
}
