//! What may be missing because a subscription was not there, and when that is over.

use model::{Fingerprint, Gap, GapCause, GapState, Repair, Subscription, Target};

use super::Situation;
use crate::state::subscriptions::SubscriptionChange;

/// Deliveries of a subscription may be missing since the last one that is durable.
pub(super) fn open(
    situation: &Situation<'_>,
    one: &Subscription,
    cause: GapCause,
    detail: impl Into<String>,
) -> Option<SubscriptionChange> {
    let Situation { ledger, rules, now, .. } = situation;
    let since =
        ledger.last_delivery(one).or(one.acknowledged_at).or(one.active_since).unwrap_or(one.intended_at);
    let from = since.min(*now).saturating_sub(rules.margin);
    if ledger.is_covered(one.target, &one.nonce, from) {
        return None;
    }
    // One that goes on says it already.
    let is_known = ledger.gaps.values().any(|gap| {
        gap.target == Some(one.target)
            && gap.cause == cause
            && gap.state == GapState::Open
            && gap.to.is_none()
    });
    if is_known {
        return None;
    }
    Some(found(situation, one.target, cause, (from, None), detail.into()))
}

/// A gap that is found now, from a moment to another, or to one that is not known yet.
pub(super) fn found(
    situation: &Situation<'_>,
    target: Target,
    cause: GapCause,
    (from, to): (i64, Option<i64>),
    detail: String,
) -> SubscriptionChange {
    SubscriptionChange::Gap(Gap {
        connector: situation.connector.to_owned(),
        cause,
        target: Some(target),
        company: None,
        from,
        to,
        detail,
        opened_at: situation.now,
        worker: situation.worker.to_owned(),
        state: GapState::Open,
    })
}

/// Nobody has accepted a subscription for too long, and there is no other.
pub(super) fn open_awaiting(situation: &Situation<'_>, one: &Subscription) -> Option<SubscriptionChange> {
    if situation.ledger.active(one.target).next().is_some() {
        return None;
    }
    let detail = match one.target {
        Target::Invoicing(_) => "the provider has not asked for the echo of the hook's address in time",
        Target::Accounting(_) => "no receiver has accepted the subscription in time",
    };
    open(situation, one, GapCause::Awaiting, detail)
}

/// A subscription is about to be moved without one beside it.
pub(super) fn open_moved(situation: &Situation<'_>, one: &Subscription) -> Option<SubscriptionChange> {
    open(situation, one, GapCause::Moved, "nothing is sent from the move until the new address is accepted")
}

/// What is sent is signed with a secret that no receiver knows any more, and nothing else stands for it.
pub(super) fn open_unverified(situation: &Situation<'_>, target: Target) -> Option<SubscriptionChange> {
    let wanted = situation.wanted.get(&target)?;
    let active: Vec<&Subscription> = situation.ledger.active(target).collect();
    let first = active.first()?;
    // One that was found by what it sends has been verified.
    if active
        .iter()
        .any(|one| one.fingerprint == Fingerprint::of("\0") || wanted.known.contains(&one.fingerprint))
    {
        return None;
    }
    open(
        situation,
        first,
        GapCause::Secret,
        "what is sent is signed with a secret that is not configured any more",
    )
}

/// Ends the gaps whose cause is over, and asks for their repair.
pub(super) fn end(situation: &Situation<'_>) -> Vec<SubscriptionChange> {
    let Situation { ledger, rules, now, .. } = situation;
    let mut changes = Vec::new();
    for (id, gap) in ledger.gaps.iter().filter(|(_, gap)| gap.state == GapState::Open) {
        let to = match gap.to {
            Some(to) => to,
            None => match over(situation, gap) {
                Some(over) => over.saturating_add(rules.margin),
                None => continue,
            },
        };
        if let Some(Target::Invoicing(_)) = gap.target {
            // There is nothing to read it from: a person has to know.
            changes.push(SubscriptionChange::Gap(Gap {
                to: Some(to),
                state: GapState::Unrepairable,
                ..gap.clone()
            }));
            continue;
        }
        if gap.to.is_none() {
            changes.push(SubscriptionChange::Gap(Gap { to: Some(to), ..gap.clone() }));
        }
        if !ledger.repairs.contains_key(id) {
            changes.push(SubscriptionChange::Repair(Repair::of(gap, to, *now)));
        }
    }
    changes
}

/// When the cause of a gap was over; `None` while it is not.
fn over(situation: &Situation<'_>, gap: &Gap) -> Option<i64> {
    let Situation { ledger, now, wanted, .. } = situation;
    match gap.cause {
        // What is lost is lost once.
        GapCause::Spool
        | GapCause::Oversized
        | GapCause::Silence
        | GapCause::Retention
        | GapCause::Floor
        | GapCause::Unreadable => Some(gap.opened_at),
        // Whoever plans runs, unless the stop has not reached it yet.
        GapCause::Stopped => (gap.opened_at < situation.began).then_some(*now),
        GapCause::Disabled | GapCause::Lost | GapCause::Awaiting | GapCause::Moved | GapCause::Secret => {
            let Some(target) = gap.target else { return Some(gap.opened_at) };
            if !wanted.contains_key(&target) {
                return Some(*now);
            }
            let is_verified = |one: &&Subscription| {
                let known = wanted.get(&target).map(|wanted| &wanted.known);
                gap.cause != GapCause::Secret || known.is_some_and(|known| known.contains(&one.fingerprint))
            };
            let active = ledger.active(target).filter(is_verified);
            // One that was active all the while did not keep the gap from being opened.
            active.filter_map(|one| one.active_since).map(|since| since.max(gap.opened_at)).min()
        }
    }
}
