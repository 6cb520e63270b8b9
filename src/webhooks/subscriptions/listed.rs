//! What the list of the invoicing API means for every hook at once.

use std::collections::BTreeSet;

use model::{GapCause, Nonce, SubscriptionPhase, Target};

use super::{
    Listed, Situation,
    address::{NOT_ECHOED, NOT_LISTED},
    echo::{echoed, is_effective},
    settle::{Changes, is_address, lost, stranger},
};

/// The line of history of a hook that has become active.
const LISTED: &str = "listed, and not paused";
/// The problem of a hook that is listed and not effective.
const UNASKED: &str = "the provider lists the hook and has not asked for the echo of its address: it sends no notifications yet";

/// What the description of a hook begins with: whose it is.
#[must_use]
pub fn owner(connector: &str) -> String {
    format!("{connector} for ")
}

/// The hooks of the invoicing API, against all that the ledger has.
pub(super) fn listed(changes: &mut Changes<'_, '_>, hooks: &[Listed], planned: i64) {
    let Situation { ledger, now, rules, connector, .. } = *changes.situation;
    let nonce_of = |hook: &Listed| {
        let names = [hook.name.as_deref(), hook.description.as_deref()];
        names.into_iter().flatten().find_map(Nonce::split).map(|(name, nonce)| (name.to_owned(), nonce))
    };
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    let ours = ledger.subscriptions.values().filter(|one| matches!(one.target, Target::Invoicing(_)));
    for known in ours {
        let by_id = |hook: &&Listed| known.id.is_some() && hook.id == known.id;
        let by_nonce = |hook: &&Listed| nonce_of(hook).is_some_and(|(_, nonce)| nonce == known.nonce);
        // Where the list tells neither, an intent is known by what it asked for.
        let by_words = |hook: &&Listed| {
            known.phase == SubscriptionPhase::Intended
                && nonce_of(hook).is_none()
                && hook.name.is_none()
                && hook.target == Some(known.target)
                && hook.url.as_deref() == Some(&*known.url)
                && hook.id.as_deref().is_some_and(|id| ledger.by_id(id).is_none())
        };
        let found = hooks.iter().find(by_id).or_else(|| hooks.iter().find(by_nonce));
        let found = found.or_else(|| hooks.iter().find(by_words));
        if let Some(id) = found.and_then(|hook| hook.id.as_deref()) {
            taken.insert(id);
        }
        let mut one = known.clone();
        let Some(hook) = found else {
            match known.phase {
                // It was made, or meant to be, while the list was on its way.
                _ if known.since >= planned => {}
                SubscriptionPhase::Active | SubscriptionPhase::Disabled => {
                    lost(changes, known, "it is not listed any more")
                }
                SubscriptionPhase::Awaiting => {
                    one.enter(SubscriptionPhase::Ended, now, NOT_ECHOED);
                    one.problem = Some("the provider did not accept the echo of the receiver".to_owned());
                    changes.put(one);
                }
                SubscriptionPhase::Intended if known.since.saturating_add(rules.intent) <= now => {
                    one.enter(SubscriptionPhase::Ended, now, NOT_LISTED);
                    changes.put(one);
                }
                SubscriptionPhase::Ending => {
                    one.enter(SubscriptionPhase::Ended, now, "deleted");
                    changes.put(one);
                }
                SubscriptionPhase::Intended | SubscriptionPhase::Ended => {}
            }
            continue;
        };
        if matches!(known.phase, SubscriptionPhase::Ending) {
            continue;
        }
        one.id = hook.id.clone().or(one.id);
        if one.id.is_none() {
            // It can neither be watched nor deleted without one.
            one.problem = Some("the provider lists the hook without an id".to_owned());
        }
        one.checked_at = Some(now);
        one.last_delivery = ledger.last_delivery(&one);
        match (hook.paused.unwrap_or(false), known.phase) {
            (true, SubscriptionPhase::Active) => {
                one.enter(SubscriptionPhase::Disabled, now, "the provider has paused it");
                changes.gap(known, GapCause::Disabled, "the provider has paused the hook");
            }
            (true, SubscriptionPhase::Ended | SubscriptionPhase::Intended | SubscriptionPhase::Awaiting) => {
                one.enter(SubscriptionPhase::Disabled, now, "the provider has paused it");
            }
            (true, _) => {}
            (false, SubscriptionPhase::Active) => one.problem = None,
            // It was active before it was paused.
            (false, SubscriptionPhase::Disabled) => {
                one.enter(SubscriptionPhase::Active, now, LISTED);
                one.problem = None;
            }
            (false, _) if is_effective(changes.situation, &one) => {
                one.acknowledged_at = one.acknowledged_at.max(echoed(ledger, &one));
                one.enter(SubscriptionPhase::Active, now, LISTED);
                one.problem = None;
            }
            (false, _) => {
                if one.phase != SubscriptionPhase::Awaiting {
                    one.enter(SubscriptionPhase::Awaiting, now, "listed");
                }
                one.problem = one.problem.filter(|_| one.id.is_none()).or_else(|| Some(UNASKED.to_owned()));
            }
        }
        changes.put(one);
    }
    for hook in hooks {
        let (Some(id), Some(target)) = (hook.id.as_deref(), hook.target) else { continue };
        let Some((application, nonce)) = nonce_of(hook).filter(|_| !taken.contains(id)) else { continue };
        // Hooks of all connectors come to one address: whose it is stands beside it.
        let is_named = hook.description.as_deref().is_some_and(|text| text.starts_with(&owner(connector)));
        let is_ours =
            is_named && hook.url.as_deref().is_some_and(|url| is_address(changes.situation, target, url));
        if is_ours && !ledger.subscriptions.contains_key(&nonce) {
            let mut one = stranger(connector, target, nonce, &application, now);
            one.id = Some(id.to_owned());
            one.url = hook.url.clone().unwrap_or_default();
            one.checked_at = Some(now);
            // Another hook follows it in any case, so no gap opens unless that one waits for its echo in vain, too.
            one.enter(SubscriptionPhase::Awaiting, now, "found in the list");
            changes.put(one);
        }
    }
}
