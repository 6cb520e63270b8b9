//! The hooks, in creation order.
//!
//! - At most [`MAX_HOOKS`] exist at once.
//! - Ids follow from the seed and the order of creation and are never reused.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{HookTruth, rules::HookSubscription};
use crate::{random::Guid, world::InvoicingChange};

pub(super) const MAX_HOOKS: usize = 100_000;
/// The random stream of hook ids.
const PURPOSE: u64 = 0x696e_765f_686f_6f6b;

/// All hooks that are not deleted.
#[derive(Debug)]
pub(super) struct HookTable {
    seed: u64,
    limit: usize,
    inner: Mutex<HookList>,
}

#[derive(Debug, Default)]
struct HookList {
    hooks: Vec<InvoicingHook>,
    made: u64,
}

/// A hook.
#[derive(Debug, Clone)]
pub(super) struct InvoicingHook {
    pub(super) id: Guid,
    /// Number of its company.
    pub(super) company: u32,
    /// The subscription, which never changes.
    pub(super) subscription: Arc<HookSubscription>,
    /// Whether its echo succeeded.
    pub(super) effective: bool,
    pub(super) paused: bool,
    /// Why its echo failed.
    pub(super) echo_failure: Option<Arc<str>>,
}

impl InvoicingHook {
    /// Whether a change concerns it.
    pub(super) fn is_about(&self, change: &InvoicingChange) -> bool {
        let HookSubscription { entity, action, .. } = *self.subscription;
        (self.company, entity, action) == (change.company, change.entity, change.action)
    }

    /// Whether it gets notifications.
    pub(super) fn active(&self) -> bool {
        self.effective && !self.paused
    }

    /// Its state, for tests.
    pub(super) fn truth(&self) -> HookTruth {
        let HookSubscription { uri, entity, action, application, description, .. } = &*self.subscription;
        HookTruth {
            id: self.id,
            company: self.company,
            uri: uri.clone(),
            entity: *entity,
            action: *action,
            application: application.clone(),
            description: description.clone(),
            effective: self.effective,
            paused: self.paused,
            echo_failure: self.echo_failure.as_deref().map(str::to_owned),
        }
    }
}

impl HookTable {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, limit: MAX_HOOKS, inner: Mutex::default() }
    }

    /// Whether the limit is reached.
    pub(super) fn full(&self) -> bool {
        self.inner.lock().hooks.len() >= self.limit
    }

    /// Adds a hook; `None` at the limit.
    pub(super) fn add(
        &self,
        company: u32,
        subscription: HookSubscription,
        effective: bool,
    ) -> Option<InvoicingHook> {
        let mut inner = self.inner.lock();
        if inner.hooks.len() >= self.limit {
            return None;
        }
        let id = Guid::nth(self.seed, PURPOSE, inner.made);
        inner.made += 1;
        let hook = InvoicingHook {
            id,
            company,
            effective,
            paused: subscription.paused,
            subscription: Arc::new(subscription),
            echo_failure: None,
        };
        inner.hooks.push(hook.clone());
        Some(hook)
    }

    /// Removes a hook, if it belongs to `company` where one is given.
    pub(super) fn remove(&self, company: Option<u32>, id: Guid) -> Option<InvoicingHook> {
        let mut inner = self.inner.lock();
        let fits =
            |hook: &InvoicingHook| hook.id == id && company.is_none_or(|company| hook.company == company);
        let at = inner.hooks.iter().position(fits)?;
        Some(inner.hooks.remove(at))
    }

    pub(super) fn update(&self, id: Guid, change: impl FnOnce(&mut InvoicingHook)) -> bool {
        self.inner.lock().hooks.iter_mut().find(|hook| hook.id == id).map(change).is_some()
    }

    pub(super) fn all(&self, fits: impl Fn(&InvoicingHook) -> bool) -> Vec<InvoicingHook> {
        self.inner.lock().hooks.iter().filter(|hook| fits(hook)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;
    use url::Url;

    use super::*;
    use crate::catalog::{Action, Entity};

    fn subscription(entity: Entity, action: Action) -> HookSubscription {
        let uri = "https://receiver.example/api/webhooks/incoming/Invoicing".to_owned();
        let url = Url::parse(&uri).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
        HookSubscription {
            uri,
            url,
            entity,
            action,
            key,
            paused: false,
            application: None,
            description: None,
        }
    }

    #[test]
    fn no_hook_is_added_above_the_limit_and_no_id_comes_twice() {
        let hooks = HookTable { limit: 1, ..HookTable::new(1) };
        let add = || hooks.add(0, subscription(Entity::Bank, Action::Deleted), true);
        let first = add().unwrap().id;

        assert!(hooks.full());
        assert!(add().is_none());
        hooks.remove(Some(0), first);
        assert!(!hooks.full());
        assert_ne!(add().unwrap().id, first);
    }
}
