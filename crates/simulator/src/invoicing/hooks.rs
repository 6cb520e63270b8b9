//! The hooks, in creation order.
//!
//! - At most [`MAX_HOOKS`] exist at once.
//! - Ids follow from the seed and the order of creation and are never reused.

use aws_lc_rs::hmac;
use parking_lot::Mutex;
use serde::Serialize;
use url::Url;

use crate::{
    catalog::{Action, Entity},
    random::Guid,
    world::EntityChange,
};

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
    hooks: Vec<ProviderHook>,
    made: u64,
}

/// A hook.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderHook {
    /// Its id, which the API writes without dashes.
    pub id: Guid,
    /// What it is about.
    #[serde(flatten)]
    pub subject: HookSubject,
    /// Receiver address as it was sent.
    pub uri: String,
    #[serde(skip)]
    pub(super) url: Url,
    /// Signs its notifications; the key is the UTF-8 bytes of `secret`.
    #[serde(skip)]
    pub(super) key: hmac::Key,
    /// `applicationName`.
    pub application: Option<String>,
    /// `description`.
    pub description: Option<String>,
    /// Whether its echo succeeded.
    pub effective: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Why its echo failed; `None` while it is pending.
    pub echo_failure: Option<String>,
}

/// The changes that a hook is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HookSubject {
    /// Number of the company.
    pub company: u32,
    /// Entity.
    pub entity: Entity,
    /// What happened to it.
    pub action: Action,
}

impl ProviderHook {
    /// Whether a change concerns it.
    pub(super) fn is_about(&self, change: &EntityChange) -> bool {
        let EntityChange { company, entity, action, .. } = *change;
        self.subject == HookSubject { company, entity, action }
    }

    /// Whether it gets notifications.
    pub(super) fn active(&self) -> bool {
        self.effective && !self.paused
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

    /// Adds a hook and gives it its id; `None` at the limit.
    pub(super) fn add(&self, hook: ProviderHook) -> Option<ProviderHook> {
        let mut inner = self.inner.lock();
        if inner.hooks.len() >= self.limit {
            return None;
        }
        let hook = ProviderHook { id: Guid::nth(self.seed, PURPOSE, inner.made), ..hook };
        inner.made += 1;
        inner.hooks.push(hook.clone());
        Some(hook)
    }

    /// Removes a hook, if it belongs to `company` where one is given.
    pub(super) fn remove(&self, company: Option<u32>, id: Guid) -> Option<ProviderHook> {
        let mut inner = self.inner.lock();
        let fits = |hook: &ProviderHook| {
            hook.id == id && company.is_none_or(|company| hook.subject.company == company)
        };
        let at = inner.hooks.iter().position(fits)?;
        Some(inner.hooks.remove(at))
    }

    pub(super) fn update(&self, id: Guid, change: impl FnOnce(&mut ProviderHook)) -> bool {
        self.inner.lock().hooks.iter_mut().find(|hook| hook.id == id).map(change).is_some()
    }

    pub(super) fn all(&self, fits: impl Fn(&ProviderHook) -> bool) -> Vec<ProviderHook> {
        self.inner.lock().hooks.iter().filter(|hook| fits(hook)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{invoicing::rules, knobs::Knobs};

    #[test]
    fn truth_shows_the_members_of_a_hook_side_by_side() {
        let body = br#"{"uri":"https://a.example/api/webhooks/incoming/Invoicing","entity":"Bank",
            "action":"Deleted","secret":"0123456789abcdef0123456789abcdef","description":"d"}"#;
        let hook = rules::parse(body, 7, &Knobs::default()).unwrap();

        let expected = json!({
            "id": Guid(0), "company": 7, "uri": "https://a.example/api/webhooks/incoming/Invoicing", "entity": "Bank",
            "action": "Deleted", "application": null, "description": "d", "effective": false, "paused": false,
            "echoFailure": null,
        });
        assert_eq!(serde_json::to_value(hook).unwrap(), expected);
    }

    #[test]
    fn no_hook_is_added_above_the_limit_and_no_id_comes_twice() {
        let body = r#"{"uri":"https://a.example/api/webhooks/incoming/Invoicing","entity":"Bank",
            "action":"Deleted","secret":"0123456789abcdef0123456789abcdef"}"#;
        let hooks = HookTable { limit: 1, ..HookTable::new(1) };
        let add = || hooks.add(rules::parse(body.as_bytes(), 0, &Knobs::default()).unwrap());
        let first = add().unwrap().id;

        assert!(hooks.full());
        assert!(add().is_none());
        hooks.remove(Some(0), first);
        assert!(!hooks.full());
        assert_ne!(add().unwrap().id, first);
    }
}
