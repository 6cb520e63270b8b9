//! Hooks of the invoicing API: their addresses, their echoes, and the list that all of them are read from.
//!
//! # Address
//!
//! ```text
//! own     …/api/webhooks/incoming/{segment}/{hook}   a delivery is verified with the secrets of one hook
//! shared  …/api/webhooks/incoming/{segment}          the only form that the provider documents
//! ```
//!
//! With `invoicing.hook.address=own` a hook gets its own address if the provider accepts it, and the shared one if the provider refuses
//! it or never asks for the echo there. A refusal is in the ledger, so it outlives the task; the own address is tried again once the
//! ledger drops the refusal.
//!
//! - While no hook is active at its own address, one hook tries first. If it is refused, all use the shared address at once.
//! - A hook whose shared address is refused as well alternates, because the address is not the reason.
//! - As long as a worker of an earlier version receives, which knows no own addresses, hooks use the shared one.
//! - A hook moves from one address to the other as any subscription does: a second one beside the first, without a gap.
//!
//! # Echo
//!
//! The list does not show whether a hook is effective: by the provider's API documentation it is only once its receiver has answered the
//! echo. Every worker writes the echoes that it answers to the state topic, one record for each address. A hook is effective if its
//! address was asked after the intent, or if a notification of its target came and no other hook can have sent it. At the shared address
//! any echo after the intent counts, because an echo names no hook. While a worker of an earlier version receives, which writes no echoes,
//! a listed hook counts as effective.
//!
//! # List
//!
//! The list decides about every hook at once. A hook is ours by its id, by its nonce, or by what the intent asked for if the list shows
//! no names. Connectors that share a segment have the same addresses, so the last does not count among them: an intent whose answer was
//! lost waits for a person then.

use std::collections::{BTreeMap, BTreeSet};

use model::{GapCause, Nonce, Subscription, SubscriptionPhase, Target};

use super::{
    DesiredSubscription, ListedHook, ProviderCall, SubscriptionInput, SubscriptionPlan,
    history::{NOT_ASKED, NOT_ECHOED, NOT_LISTED, REFUSED},
    settle::{LedgerChanges, adopted, is_address, lost},
};
use crate::state::subscriptions::SubscriptionState;

/// The address that a target is to be registered under, by what the provider has refused so far.
#[must_use]
pub fn address<'a>(
    ledger: &SubscriptionState,
    wanted: &'a BTreeMap<Target, DesiredSubscription>,
    target: Target,
) -> Option<&'a str> {
    let one = wanted.get(&target)?;
    let Some(fallback) = one.fallback() else { return Some(&one.url) };
    let uses_fallback = match refusals(ledger, target, one) {
        (None, None) => {
            let mut others = wanted.iter().map(|(target, one)| refusals(ledger, *target, one));
            !is_proven(ledger, wanted) && others.any(|(own, shared)| own > shared)
        }
        (own, shared) => own > shared,
    };
    Some(if uses_fallback { fallback } else { &one.url })
}

/// The same for a plan: own addresses also need workers that know them.
pub(super) fn planned<'a>(
    input: &SubscriptionInput<'a>,
    target: Target,
    one: &'a DesiredSubscription,
) -> &'a str {
    let SubscriptionInput { ledger, wanted, .. } = input;
    let are_known = input.live_workers().all(|heartbeat| heartbeat.hook_addresses);
    match one.fallback() {
        Some(fallback) if !are_known => fallback,
        _ => address(ledger, wanted, target).unwrap_or(&one.url),
    }
}

/// Whether another hook is just trying whether the provider takes own addresses.
pub(super) fn waits_for_another(
    input: &SubscriptionInput<'_>,
    target: Target,
    url: &str,
    plan: &SubscriptionPlan,
) -> bool {
    let SubscriptionInput { ledger, wanted, .. } = input;
    let is_other =
        |one: &Subscription| one.target != target && is_own(wanted, one.target, &one.registration.url);
    let mut steps = plan.steps.iter().filter_map(|step| match &step.call {
        ProviderCall::Subscribe(one) => Some(&**one),
        _ => None,
    });
    let mut intended = ledger.subscriptions.values().filter(|one| one.phase == SubscriptionPhase::Intended);
    is_own(wanted, target, url)
        && !is_proven(ledger, wanted)
        && (steps.any(is_other) || intended.any(is_other))
}

/// Whether the provider has taken the own address of a hook, and its echo.
fn is_proven(ledger: &SubscriptionState, wanted: &BTreeMap<Target, DesiredSubscription>) -> bool {
    ledger.subscriptions.values().any(|one| {
        let is_effective = matches!(one.phase, SubscriptionPhase::Active | SubscriptionPhase::Disabled);
        is_effective && one.id.is_some() && is_own(wanted, one.target, &one.registration.url)
    })
}

/// Whether an address is the own one of a hook that has a shared one to fall back to.
fn is_own(wanted: &BTreeMap<Target, DesiredSubscription>, target: Target, url: &str) -> bool {
    wanted.get(&target).is_some_and(|wanted| wanted.fallback().is_some() && wanted.url == url)
}

/// When the provider last refused the own address of a target, and its shared one.
fn refusals(
    ledger: &SubscriptionState,
    target: Target,
    wanted: &DesiredSubscription,
) -> (Option<i64>, Option<i64>) {
    let refused = |url: &str| {
        let of = |one: &&Subscription| one.target == target && one.registration.url == url && is_refused(one);
        ledger.subscriptions.values().filter(of).map(|one| one.since).max()
    };
    match wanted.fallback() {
        Some(fallback) => (refused(&wanted.url), refused(fallback)),
        None => (None, None),
    }
}

fn is_refused(one: &Subscription) -> bool {
    let is_refusal = |what: &str| match what {
        REFUSED => one.id.is_none(),
        what => [NOT_ECHOED, NOT_ASKED, NOT_LISTED].contains(&what),
    };
    one.phase == SubscriptionPhase::Ended && one.history.iter().any(|note| is_refusal(&note.what))
}

/// How much older than the intent an echo may be: clocks of workers differ, and of several echoes within a second one is written.
const CLOCK_SLACK: i64 = 10_000_000;

/// Whether the provider sends the notifications of a hook that it lists.
pub(super) fn is_effective(input: &SubscriptionInput<'_>, one: &Subscription) -> bool {
    let ledger = input.ledger;
    let are_echoes_written = input.live_workers().all(|heartbeat| heartbeat.tells_echoes);
    !are_echoes_written
        || echoed(ledger, one).is_some()
        || delivered(ledger, one).is_some_and(|at| at > one.times.intended_at)
}

/// When the address of a hook was last asked for its echo, if that was after the intent.
fn echoed(ledger: &SubscriptionState, one: &Subscription) -> Option<i64> {
    let Target::Invoicing(hook) = one.target else { return None };
    let slug = hook.slug();
    let shared = one.registration.url.strip_suffix(&slug).and_then(|rest| rest.strip_suffix('/'));
    // A segment may have the name of a hook: then its shared address was cut, and no segment is left.
    let is_own = shared.is_some_and(|shared| !shared.ends_with("/incoming"));
    let echo = ledger.echoes.get(if is_own { &*slug } else { "" });
    echo.map(|echo| echo.received_at).filter(|at| at.saturating_add(CLOCK_SLACK) > one.times.intended_at)
}

/// When a notification of its target last came, if no other hook can have sent it.
fn delivered(ledger: &SubscriptionState, one: &Subscription) -> Option<i64> {
    let is_other = |other: &Subscription| {
        other.nonce != one.nonce
            && matches!(
                other.phase,
                SubscriptionPhase::Active | SubscriptionPhase::Awaiting | SubscriptionPhase::Ending
            )
    };
    let is_alone = !ledger.living(one.target).any(is_other);
    ledger.traffic(one).filter(|_| is_alone).map(|traffic| traffic.last)
}

/// The line of history of a hook that has become active.
const BECAME_ACTIVE: &str = "listed, and not paused";
/// The problem of a hook that is listed and not effective.
const NO_ECHO_YET: &str = "the provider lists the hook and has not asked for the echo of its address: it sends no notifications yet";

/// The problem of an intent that cannot be found in the list.
const NOT_TOLD_APART: &str = "the answer to the call that creates the hook was lost, the provider lists hooks without names, and another \
                              connector has the same invoicing.segment: which hooks are whose is not known; give this connector \
                              another segment";

/// Whether hooks of other connectors may have this address.
fn is_shared(others: &BTreeSet<String>, url: &str) -> bool {
    let below = url.split_once("/api/webhooks/incoming/").map(|(_, below)| below);
    below.and_then(|below| below.split('/').next()).is_some_and(|segment| others.contains(segment))
}

/// What the description of a hook begins with: whose it is.
#[must_use]
pub fn owner(connector: &str) -> String {
    format!("{connector} for ")
}

/// The hooks of the invoicing API, against all that the ledger has.
pub(super) fn listed(changes: &mut LedgerChanges<'_, '_>, hooks: &[ListedHook], planned: i64) {
    let SubscriptionInput { ledger, now, rules, connector, other_segments, .. } = *changes.input;
    let nonce_of = |hook: &ListedHook| {
        let names = [hook.name.as_deref(), hook.description.as_deref()];
        names.into_iter().flatten().find_map(Nonce::split).map(|(name, nonce)| (name.to_owned(), nonce))
    };
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    let ours = ledger.subscriptions.values().filter(|one| matches!(one.target, Target::Invoicing(_)));
    for known in ours {
        let by_id = |hook: &&ListedHook| known.id.is_some() && hook.id == known.id;
        let by_nonce = |hook: &&ListedHook| nonce_of(hook).is_some_and(|(_, nonce)| nonce == known.nonce);
        // Without id and nonce in the list, an intent is identified by what it asked for.
        let by_words = |hook: &&ListedHook| {
            known.phase == SubscriptionPhase::Intended
                && nonce_of(hook).is_none()
                && hook.name.is_none()
                && hook.target == Some(known.target)
                && hook.url.as_deref() == Some(&*known.registration.url)
                && hook.id.as_deref().is_some_and(|id| ledger.by_id(id).is_none())
        };
        let found = hooks.iter().find(by_id).or_else(|| hooks.iter().find(by_nonce));
        let alike = found.is_none().then(|| hooks.iter().find(by_words)).flatten();
        let wanted = changes.input.wanted.get(&known.target);
        let is_wanted_at = |url: &str| wanted.is_some_and(|wanted| wanted.is_at(url));
        let is_told_apart = !is_shared(other_segments, &known.registration.url);
        let found = found.or(alike.filter(|_| is_told_apart));
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
                SubscriptionPhase::Intended if alike.is_some() && is_wanted_at(&known.registration.url) => {
                    if known.problem.is_none() {
                        one.problem = Some(NOT_TOLD_APART.to_owned());
                        changes.put(one);
                    }
                }
                SubscriptionPhase::Intended if known.since.saturating_add(rules.limits.intent) <= now => {
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
        one.times.checked_at = Some(now);
        one.times.last_delivery = ledger.last_delivery(&one);
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
                one.enter(SubscriptionPhase::Active, now, BECAME_ACTIVE);
                one.problem = None;
            }
            (false, _) if is_effective(changes.input, &one) => {
                one.times.acknowledged_at = one.times.acknowledged_at.max(echoed(ledger, &one));
                one.enter(SubscriptionPhase::Active, now, BECAME_ACTIVE);
                one.problem = None;
            }
            (false, _) => {
                if one.phase != SubscriptionPhase::Awaiting {
                    one.enter(SubscriptionPhase::Awaiting, now, "listed");
                }
                one.problem =
                    one.problem.filter(|_| one.id.is_none()).or_else(|| Some(NO_ECHO_YET.to_owned()));
            }
        }
        changes.put(one);
    }
    for hook in hooks {
        let (Some(id), Some(target)) = (hook.id.as_deref(), hook.target) else { continue };
        let Some((application, nonce)) = nonce_of(hook).filter(|_| !taken.contains(id)) else { continue };
        // Hooks of all connectors come to one address: the description says whose it is.
        let is_named = hook.description.as_deref().and_then(|text| text.strip_prefix(&owner(connector)));
        // The rest is the name, or the owner is a connector whose name begins with that of this one.
        let is_named = is_named.is_some_and(|rest| hook.name.as_deref().is_none_or(|name| name == rest));
        let is_ours =
            is_named && hook.url.as_deref().is_some_and(|url| is_address(changes.input, target, url));
        if is_ours && !ledger.subscriptions.contains_key(&nonce) {
            let mut one = adopted(connector, target, nonce, &application, now);
            one.id = Some(id.to_owned());
            one.registration.url = hook.url.clone().unwrap_or_default();
            one.times.checked_at = Some(now);
            // Another hook replaces it in any case, so a gap opens only if that one gets no echo either.
            one.enter(SubscriptionPhase::Awaiting, now, "found in the list");
            changes.put(one);
        }
    }
}
