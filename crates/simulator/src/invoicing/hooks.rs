//! The hooks that exist, in the order they were made.
//!
//! - At most [`HOOK_LIMIT`] exist at once.
//! - An id follows from the seed and the order of creation, and is never given twice.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use aws_lc_rs::hmac;
use url::Url;

use super::{HookTruth, rules::Subscription};
use crate::{
    catalog::{Action, Entity},
    clock::Ticks,
    random::Guid,
    world::InvoicingChange,
};

/// Hooks at most.
pub(super) const HOOK_LIMIT: usize = 100_000;
/// What the ids of hooks are drawn for.
const PURPOSE: u64 = 0x696e_765f_686f_6f6b;

/// Every hook that has not been deleted.
#[derive(Debug)]
pub(super) struct Hooks {
    seed: u64,
    limit: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    hooks: Vec<Hook>,
    made: u64,
}

/// A hook as it stands.
#[derive(Debug, Clone)]
pub(super) struct Hook {
    /// What never changes.
    pub(super) subscribed: Arc<Subscribed>,
    /// Whether the echo has come back.
    pub(super) effective: bool,
    /// Whether it is paused.
    pub(super) paused: bool,
    /// Since when, where it was paused after it was made.
    pub(super) paused_at: Option<Ticks>,
    /// Why the echo did not come back.
    pub(super) echo_failure: Option<Arc<str>>,
}

/// What a hook subscribed to.
pub(super) struct Subscribed {
    /// Its id.
    pub(super) id: Guid,
    /// Number of the company that owns it.
    pub(super) company: u32,
    /// Receiver address as it was sent.
    pub(super) uri: String,
    /// Receiver address.
    pub(super) url: Url,
    /// Entity.
    pub(super) entity: Entity,
    /// Action.
    pub(super) action: Action,
    /// Signs its notifications: the UTF-8 bytes of its secret.
    pub(super) key: hmac::Key,
    /// `applicationName`.
    pub(super) application: Option<String>,
    /// `description`.
    pub(super) description: Option<String>,
}

impl fmt::Debug for Subscribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}.{:?} of company {}", self.id, self.entity, self.action, self.company)
    }
}

impl Subscribed {
    /// Whether it is notified of a change.
    pub(super) fn is_about(&self, change: &InvoicingChange) -> bool {
        (self.company, self.entity, self.action) == (change.company, change.entity, change.action)
    }
}

impl Hook {
    /// Whether it is notified.
    pub(super) fn active(&self) -> bool {
        self.effective && !self.paused
    }

    /// For those who compare.
    pub(super) fn truth(&self) -> HookTruth {
        let Subscribed { id, company, uri, entity, action, application, description, .. } = &*self.subscribed;
        HookTruth {
            id: *id,
            company: *company,
            uri: uri.clone(),
            entity: *entity,
            action: *action,
            application: application.clone(),
            description: description.clone(),
            effective: self.effective,
            paused: self.paused,
            paused_at: self.paused_at.map(Ticks::iso),
            echo_failure: self.echo_failure.as_deref().map(str::to_owned),
        }
    }
}

impl Hooks {
    /// None yet.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, limit: HOOK_LIMIT, inner: Mutex::default() }
    }

    /// Whether no other fits in.
    pub(super) fn full(&self) -> bool {
        self.lock().hooks.len() >= self.limit
    }

    /// Adds one; `None` if there are too many.
    pub(super) fn add(&self, company: u32, subscription: Subscription, effective: bool) -> Option<Hook> {
        let Subscription { uri, url, entity, action, secret, paused, application, description } =
            subscription;
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let mut inner = self.lock();
        if inner.hooks.len() >= self.limit {
            return None;
        }
        let id = Guid::nth(self.seed, PURPOSE, inner.made);
        inner.made += 1;
        let subscribed = Subscribed { id, company, uri, url, entity, action, key, application, description };
        let hook =
            Hook { subscribed: Arc::new(subscribed), effective, paused, paused_at: None, echo_failure: None };
        inner.hooks.push(hook.clone());
        Some(hook)
    }

    /// Removes one, of a company if one is given.
    pub(super) fn remove(&self, company: Option<u32>, id: Guid) -> Option<Hook> {
        let mut inner = self.lock();
        let fits = |hook: &Hook| {
            hook.subscribed.id == id && company.is_none_or(|company| hook.subscribed.company == company)
        };
        let at = inner.hooks.iter().position(fits)?;
        Some(inner.hooks.remove(at))
    }

    /// Changes one, if it is still there.
    pub(super) fn update(&self, id: Guid, change: impl FnOnce(&mut Hook)) -> bool {
        self.lock().hooks.iter_mut().find(|hook| hook.subscribed.id == id).map(change).is_some()
    }

    /// Those that fit.
    pub(super) fn all(&self, fits: impl Fn(&Hook) -> bool) -> Vec<Hook> {
        self.lock().hooks.iter().filter(|hook| fits(hook)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(entity: Entity, action: Action) -> Subscription {
        let uri = "https://receiver.example/api/webhooks/incoming/Invoicing".to_owned();
        let url = Url::parse(&uri).unwrap();
        let secret = "s".repeat(32);
        Subscription { uri, url, entity, action, secret, paused: false, application: None, description: None }
    }

    #[test]
    fn no_hook_is_added_above_the_limit_and_no_id_comes_twice() {
        let hooks = Hooks { limit: 1, ..Hooks::new(1) };
        let add = || hooks.add(0, subscription(Entity::Bank, Action::Deleted), true);
        let first = add().unwrap().subscribed.id;

        assert!(hooks.full());
        assert!(add().is_none());
        hooks.remove(Some(0), first);
        assert!(!hooks.full());
        assert_ne!(add().unwrap().subscribed.id, first);
    }
}
