//! The invoicing API: login, webhooks, echo, notifications.
//!
//! ```text
//! users/login ──▶ tokens ──▶ companies/{id}/select ──▶ tokens
//! POST webhooks ──▶ rules ──▶ hooks ──▶ echo ──▶ effective
//! change of the world ──▶ hooks of its company, entity and action ──▶ notification ──▶ deliveries
//! ```
//!
//! - A hook belongs to the company of the token that created it; tokens of other companies neither see nor delete it.
//! - A hook gets notifications while its echo has succeeded and it is not paused; the journal has what it misses.
//! - Failed deliveries do not change a hook: after the last attempt only that message is given up.
//! - Tokens, hooks, pending echoes and the texts of a hook are bounded.
//!
//! Bad input gets the API's error body, with a message that starts with the field's name.
//!
//! Of the two logins only the one by mail and password is here. For the one by redirect, neither the address where the code
//! becomes a token nor the shape of its answer is known; made-up ones would prove nothing about a client. Identity tokens are
//! accepted only by the knob `identityScope`.

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
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

pub use self::hooks::{HookSubject, ProviderHook};
use self::{hooks::HookTable, tokens::InvoicingTokenTable};
use super::{
    catalog::GatewayArea,
    clock::Ticks,
    core::Core,
    deliveries::Deliveries,
    error_answer::ApiError,
    identity::{Issued, TokenStatus},
    knobs::InvoicingKnobs,
    random::{Guid, mix},
    world::EntityChange,
};

/// Id of company number 0; far from its number, so that the two are not confused.
const FIRST_COMPANY: u32 = 40_001;
/// The random stream of tenants.
const TENANTS: u64 = 0x696e_765f_7465_6e61;

/// Logins and hooks.
#[derive(Debug)]
pub struct InvoicingService {
    core: Arc<Core>,
    deliveries: Arc<Deliveries>,
    tokens: InvoicingTokenTable,
    hooks: HookTable,
    /// Limits concurrent echoes.
    echoes: Semaphore,
    /// Tasks of pending echoes. It is closed at once, because only a closed tracker reports that none is left.
    echo_tasks: TaskTracker,
    /// Echoes requested so far.
    echo_count: AtomicU64,
}

impl InvoicingService {
    pub(super) fn new(core: &Arc<Core>, deliveries: &Arc<Deliveries>) -> Self {
        let settings = &core.settings;
        let echo_tasks = TaskTracker::new();
        echo_tasks.close();
        Self {
            core: Arc::clone(core),
            deliveries: Arc::clone(deliveries),
            tokens: InvoicingTokenTable::new(settings),
            hooks: HookTable::new(settings.world.seed),
            echoes: Semaphore::new(webhooks::MAX_CONCURRENT_ECHOES),
            echo_tasks,
            echo_count: AtomicU64::new(0),
        }
    }

    /// The status of a token. It has no company until one was selected.
    pub fn check(&self, bearer: &str, now: Ticks) -> TokenStatus {
        self.tokens.check(bearer, now)
    }

    /// `TenantId` of an invoicing company; `idCDA` in the login. With the knob `tenants`, the first of the company's tenants.
    pub fn tenant(&self, company: u32) -> String {
        Guid::nth(self.core.seed(), TENANTS, company.into()).to_string()
    }

    /// `TenantId` of a change: with the knob `tenants`, the tenants with these numbers are dealt out to the companies in turn.
    fn tenant_of(&self, change: &EntityChange, knobs: &InvoicingKnobs) -> String {
        let companies = self.core.settings.world.invoicing_companies.max(1);
        let own = knobs.tenants.saturating_sub(change.company).div_ceil(companies).max(1);
        let turn = (mix(change.number) % u64::from(own)) as u32;
        self.tenant(change.company.saturating_add(turn.saturating_mul(companies)))
    }

    /// Id of an invoicing company in the login and in a select.
    pub const fn company_id(company: u32) -> u32 {
        FIRST_COMPANY.saturating_add(company)
    }

    /// Whether a delivery is still wanted; its hook may have been deleted or paused.
    pub(super) fn wants(&self, hook: Guid) -> bool {
        !self.hooks.all(|one| one.id == hook && one.active()).is_empty()
    }

    /// All hooks that are not deleted.
    pub fn hooks(&self) -> Vec<ProviderHook> {
        self.hooks.all(|_| true)
    }

    /// Pauses or resumes a hook, as the provider might by itself. Returns whether it exists.
    pub fn pause(&self, hook: Guid, paused: bool) -> bool {
        self.hooks.update(hook, |hook| hook.paused = paused)
    }

    /// Deletes a hook, as another user might. Returns whether it existed.
    pub fn remove(&self, hook: Guid) -> bool {
        self.hooks.remove(None, hook).is_some()
    }

    /// Every token that the journal still has, in order.
    pub fn issued(&self) -> Vec<Issued> {
        self.tokens.issued()
    }

    /// Resolves once no echo is pending.
    pub async fn idle(&self) {
        self.echo_tasks.wait().await;
    }
}

/// Routes of INV.
pub(super) fn router(invoicing: &Arc<InvoicingService>) -> Router {
    let area = GatewayArea::Invoicing.path();
    Router::new()
        .route(&format!("{area}/users/login"), post(login::login))
        .route(&format!("{area}/companies/{{company}}/select"), post(login::select))
        .route(&format!("{area}/webhooks"), get(webhooks::list).post(webhooks::create))
        .route(&format!("{area}/webhooks/{{id}}"), delete(webhooks::delete))
        .with_state(Arc::clone(invoicing))
}
