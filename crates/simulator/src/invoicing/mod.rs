//! The invoicing API: its login, its webhooks, the echo, notifications.
//!
//! ```text
//! users/login ──▶ tokens ──▶ companies/{id}/select ──▶ tokens
//! POST webhooks ──▶ rules ──▶ hooks ──▶ echo ──▶ effective
//! change of the world ──▶ hooks of its company, entity and action ──▶ notification ──▶ deliveries
//! ```
//!
//! - A hook belongs to the company its token was issued for; nobody else sees, deletes or is told by it.
//! - A hook is notified only while its echo has come back and it is not paused; what it misses is in the journal.
//! - Failed deliveries change nothing about a hook: after the last attempt that one message is given up.
//! - InvoicingTokens, hooks, echoes on their way and the texts of a hook are bounded.
//!
//! Bad input is answered in the API's error body, with a message that begins with the field it is about.
//!
//! Of the two ways to log in, the one by mail and password is here. The one by redirect is left out: the address of its second
//! leg, where the code becomes a token, and the shape of the answer there are not known, and made up they would prove
//! nothing about a client that uses them. InvoicingTokens of the identity service are taken by the knob
//! `identityScope` alone. A test that needs no login has [`Invoicing::grant`].

mod echo;
mod hooks;
mod login;
mod notification;
mod rules;
mod tokens;
mod webhooks;

use std::sync::{Arc, atomic::AtomicU64};

use axum::{
    Router,
    routing::{delete, get, post},
};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use self::{
    hooks::{HookTable, InvoicingHook},
    tokens::InvoicingTokens,
};
use super::{
    catalog::{Action, Area, Entity},
    clock::Ticks,
    core::Core,
    deliveries::Deliveries,
    error_answer::ApiError,
    identity::{Issued, TokenStatus},
    random::Guid,
};

/// Id of company number 0, far from its number so that nobody takes one for the other.
const FIRST_COMPANY: u32 = 40_001;
/// What tenants are drawn for.
const TENANTS: u64 = 0x696e_765f_7465_6e61;

/// Logins and hooks.
#[derive(Debug)]
pub struct Invoicing {
    core: Arc<Core>,
    deliveries: Arc<Deliveries>,
    tokens: InvoicingTokens,
    hooks: HookTable,
    /// Turns of those that ask for an echo.
    echoes: Semaphore,
    /// Echoes that are still to come.
    pending: watch::Sender<usize>,
    /// Echoes asked for so far.
    echo_count: AtomicU64,
}

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
    /// `applicationName`.
    pub application: Option<String>,
    /// `description`.
    pub description: Option<String>,
    /// Whether the echo has come back.
    pub effective: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Why the echo did not come back; `None` while it is awaited.
    pub echo_failure: Option<String>,
}

impl Invoicing {
    pub(super) fn new(core: &Arc<Core>, deliveries: &Arc<Deliveries>) -> Self {
        let settings = &core.settings;
        Self {
            core: Arc::clone(core),
            deliveries: Arc::clone(deliveries),
            tokens: InvoicingTokens::new(settings),
            hooks: HookTable::new(settings.world.seed),
            echoes: Semaphore::new(webhooks::MAX_CONCURRENT_ECHOES),
            pending: watch::Sender::new(0),
            echo_count: AtomicU64::new(0),
        }
    }

    /// What a token is worth now; tokens before a company was chosen have none.
    pub fn check(&self, bearer: &str, now: Ticks) -> TokenStatus {
        self.tokens.check(bearer, now)
    }

    /// `TenantId` of an invoicing company, which the login tells as `idCDA`.
    pub fn tenant(&self, company: u32) -> String {
        Guid::nth(self.core.seed(), TENANTS, company.into()).to_string()
    }

    /// The id by which the login tells an invoicing company and a select chooses it.
    pub const fn company_id(company: u32) -> u32 {
        FIRST_COMPANY.saturating_add(company)
    }

    /// Whether a delivery is still wanted: its hook may have been deleted or paused since.
    pub(super) fn wants(&self, hook: Guid) -> bool {
        !self.hooks.all(|one| one.id == hook && one.active()).is_empty()
    }

    /// Every hook that has not been deleted.
    pub fn hooks(&self) -> Vec<HookTruth> {
        self.hooks.all(|_| true).iter().map(InvoicingHook::truth).collect()
    }

    /// Pauses or resumes a hook, as the provider might by itself. Whether there is such a hook.
    pub fn pause(&self, hook: Guid, paused: bool) -> bool {
        self.hooks.update(hook, |hook| hook.paused = paused)
    }

    /// Deletes a hook as somebody else might. Whether it was there.
    pub fn lose(&self, hook: Guid) -> bool {
        self.hooks.remove(None, hook).is_some()
    }

    /// Every token issued, in order, within the journal's limit.
    pub fn issued(&self) -> Vec<Issued> {
        self.tokens.issued()
    }

    /// Resolves once no echo is still to come.
    pub async fn idle(&self) {
        // An error would mean that the sender is gone, which is ours.
        self.pending.subscribe().wait_for(|count| *count == 0).await.ok();
    }
}

/// Routes of INV.
pub(super) fn router(invoicing: &Arc<Invoicing>) -> Router {
    let area = Area::Invoicing.path();
    Router::new()
        .route(&format!("{area}/users/login"), post(login::login))
        .route(&format!("{area}/companies/{{company}}/select"), post(login::select))
        .route(&format!("{area}/webhooks"), get(webhooks::list).post(webhooks::create))
        .route(&format!("{area}/webhooks/{{id}}"), delete(webhooks::delete))
        .with_state(Arc::clone(invoicing))
}
