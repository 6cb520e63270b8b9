//! Which of its two addresses a hook of the invoicing API is registered under.
//!
//! ```text
//! own     …/api/webhooks/incoming/{segment}/{hook}   a delivery is verified with the secrets of one hook
//! shared  …/api/webhooks/incoming/{segment}          the only form that the provider documents
//! ```
//!
//! With `invoicing.hook.address=own` a hook gets its own address where the provider takes it, and the shared one where it refuses
//! it or never asks for the echo there. What was refused stands in the ledger, so the answer outlives the task; it is tried again once the ledger forgets it.
//!
//! - While no hook stands at its own address, one of them tries first. Where it is refused, all use the shared address at once.
//! - A hook whose shared address is refused as well alternates, because the address is not the reason.
//! - As long as a worker of an earlier version receives, which knows no own addresses, hooks use the shared one.
//! - A hook moves from one address to the other as any subscription does: a second one beside the first, without a gap.

use std::collections::BTreeMap;

use model::{Subscription, SubscriptionPhase, Target};

use super::{Call, Plan, Situation, Wanted};
use crate::state::subscriptions::SubscriptionState;

/// The line of history of one that the provider refused to make.
pub(super) const REFUSED: &str = "the provider refused it";
/// The provider took the call, and its question to the address was not answered as it wants.
pub(super) const NOT_ECHOED: &str = "it is not listed: the receiver's echo was not accepted";
/// The provider lists the hook, and nobody was asked for the echo of its address.
pub(super) const NOT_ASKED: &str = "no echo was asked for at its address in time";
/// The call had no answer, and the provider does not list the hook.
pub(super) const NOT_LISTED: &str = "given up: it is not listed";

/// The address that a target is to be registered under, by what the provider has refused so far.
#[must_use]
pub fn address<'a>(
    ledger: &SubscriptionState,
    wanted: &'a BTreeMap<Target, Wanted>,
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

/// The same for a plan: own addresses also need receivers that know them.
pub(super) fn planned<'a>(situation: &Situation<'a>, target: Target, one: &'a Wanted) -> &'a str {
    let Situation { ledger, wanted, .. } = situation;
    let are_known = situation.receivers().all(|heard| heard.hook_addresses);
    match one.fallback() {
        Some(fallback) if !are_known => fallback,
        _ => address(ledger, wanted, target).unwrap_or(&one.url),
    }
}

/// Whether another hook is just trying whether the provider takes own addresses.
pub(super) fn waits_for_another(situation: &Situation<'_>, target: Target, url: &str, plan: &Plan) -> bool {
    let Situation { ledger, wanted, .. } = situation;
    let is_other = |one: &Subscription| one.target != target && is_own(wanted, one.target, &one.url);
    let mut steps = plan.steps.iter().filter_map(|step| match &step.call {
        Call::Subscribe(one) => Some(&**one),
        _ => None,
    });
    let mut intended = ledger.subscriptions.values().filter(|one| one.phase == SubscriptionPhase::Intended);
    is_own(wanted, target, url)
        && !is_proven(ledger, wanted)
        && (steps.any(is_other) || intended.any(is_other))
}

/// Whether the provider has taken the own address of a hook, and its echo.
fn is_proven(ledger: &SubscriptionState, wanted: &BTreeMap<Target, Wanted>) -> bool {
    ledger.subscriptions.values().any(|one| {
        let is_effective = matches!(one.phase, SubscriptionPhase::Active | SubscriptionPhase::Disabled);
        is_effective && one.id.is_some() && is_own(wanted, one.target, &one.url)
    })
}

/// Whether an address is the own one of a hook that has a shared one to fall back to.
fn is_own(wanted: &BTreeMap<Target, Wanted>, target: Target, url: &str) -> bool {
    wanted.get(&target).is_some_and(|wanted| wanted.fallback().is_some() && wanted.url == url)
}

/// When the provider last refused the own address of a target, and its shared one.
fn refusals(ledger: &SubscriptionState, target: Target, wanted: &Wanted) -> (Option<i64>, Option<i64>) {
    let refused = |url: &str| {
        let of = |one: &&Subscription| one.target == target && one.url == url && is_refused(one);
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
