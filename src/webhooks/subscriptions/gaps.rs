//! Gaps of subscriptions: deliveries that may be missing, and when the cause is over.
//!
//! # Silence
//!
//! A target without deliveries may be broken although the provider calls its subscription active. For each target the longest silence
//! that ended within the last two learning times (a week each by default) is remembered, so that nights and weekends are known after the
//! first week. A silence several times as long is not plausible: a gap is opened, and its repair reads the records that may have changed.

use std::collections::BTreeMap;

use model::{DeliveryInterval, Fingerprint, Gap, GapCause, GapState, Repair, Subscription, Target};

use super::{SilenceRules, SubscriptionInput};
use crate::state::subscriptions::SubscriptionChange;

/// Opens a gap for a subscription, since its last durable delivery.
pub(super) fn open(
    input: &SubscriptionInput<'_>,
    one: &Subscription,
    cause: GapCause,
    detail: impl Into<String>,
) -> Option<SubscriptionChange> {
    let SubscriptionInput { ledger, rules, now, .. } = input;
    let since = ledger
        .last_delivery(one)
        .or(one.times.acknowledged_at)
        .or(one.times.active_since)
        .unwrap_or(one.times.intended_at);
    let from = since.min(*now).saturating_sub(rules.margin);
    if ledger.is_covered(one.target, &one.nonce, from) {
        return None;
    }
    // A gap that is still open covers it.
    let is_known = ledger.gaps.values().any(|gap| {
        gap.target == Some(one.target)
            && gap.cause == cause
            && gap.state == GapState::Open
            && gap.to.is_none()
    });
    if is_known {
        return None;
    }
    Some(found(input, one.target, cause, (from, None), detail.into()))
}

/// A gap that is found now; its end may not be known yet.
fn found(
    input: &SubscriptionInput<'_>,
    target: Target,
    cause: GapCause,
    (from, to): (i64, Option<i64>),
    detail: String,
) -> SubscriptionChange {
    SubscriptionChange::Gap(Gap {
        connector: input.connector.to_owned(),
        cause,
        target: Some(target),
        company: None,
        from,
        to,
        detail,
        opened_at: input.now,
        worker: input.worker.to_owned(),
        state: GapState::Open,
    })
}

/// Opens a gap for a subscription whose Acknowledge or echo no worker answered in time, if there is no other.
pub(super) fn open_awaiting(input: &SubscriptionInput<'_>, one: &Subscription) -> Option<SubscriptionChange> {
    if input.ledger.active(one.target).next().is_some() {
        return None;
    }
    let detail = match one.target {
        Target::Invoicing(_) => "the provider has not asked for the echo of the hook's address in time",
        Target::Accounting(_) => "no receiver has accepted the subscription in time",
    };
    open(input, one, GapCause::Awaiting, detail)
}

/// Opens a gap for a subscription that is moved without a second one.
pub(super) fn open_moved(input: &SubscriptionInput<'_>, one: &Subscription) -> Option<SubscriptionChange> {
    open(input, one, GapCause::Moved, "nothing is sent from the move until the new address is accepted")
}

/// Opens a gap if every active subscription of a target signs with a secret that is not configured any more.
pub(super) fn open_unverified(input: &SubscriptionInput<'_>, target: Target) -> Option<SubscriptionChange> {
    let wanted = input.wanted.get(&target)?;
    let active: Vec<&Subscription> = input.ledger.active(target).collect();
    let first = active.first()?;
    // One that was found by what it sends has been verified.
    if active.iter().any(|one| {
        one.registration.fingerprint == Fingerprint::of("\0")
            || wanted.known.contains(&one.registration.fingerprint)
    }) {
        return None;
    }
    open(
        input,
        first,
        GapCause::Secret,
        "what is sent is signed with a secret that is not configured any more",
    )
}

/// Sets the end (`to`) of open gaps whose cause is over and requests a repair. A gap of an invoicing target becomes `Unrepairable`.
pub(super) fn end(input: &SubscriptionInput<'_>) -> Vec<SubscriptionChange> {
    let SubscriptionInput { ledger, rules, now, .. } = input;
    let mut changes = Vec::new();
    for (id, gap) in ledger.gaps.iter().filter(|(_, gap)| gap.state == GapState::Open) {
        let to = match gap.to {
            Some(to) => to,
            None => match over(input, gap) {
                Some(over) => over.saturating_add(rules.margin),
                None => continue,
            },
        };
        if let Some(Target::Invoicing(_)) = gap.target {
            // Lost invoicing events cannot be read: the operator has to know.
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

/// When the cause of a gap was over; `None`: it is not.
fn over(input: &SubscriptionInput<'_>, gap: &Gap) -> Option<i64> {
    let SubscriptionInput { ledger, now, wanted, .. } = input;
    match gap.cause {
        // What is lost is lost once.
        GapCause::Silence | GapCause::Retention | GapCause::Floor | GapCause::Unreadable => {
            Some(gap.opened_at)
        }
        // Until then the worker opens no other gap of this cause.
        GapCause::Spool | GapCause::Oversized => Some(gap.opened_at.saturating_add(Gap::COVERS_MICROS)),
        // The task runs again, unless the stop has not reached it yet.
        GapCause::Stopped => (gap.opened_at < input.began).then_some(*now),
        GapCause::Disabled | GapCause::Lost | GapCause::Awaiting | GapCause::Moved | GapCause::Secret => {
            let Some(target) = gap.target else { return Some(gap.opened_at) };
            if !wanted.contains_key(&target) {
                return Some(*now);
            }
            let is_verified = |one: &&Subscription| {
                let known = wanted.get(&target).map(|wanted| &wanted.known);
                gap.cause != GapCause::Secret
                    || known.is_some_and(|known| known.contains(&one.registration.fingerprint))
            };
            let active = ledger.active(target).filter(is_verified);
            // One that was active all the time did not prevent the gap.
            active.filter_map(|one| one.times.active_since).map(|since| since.max(gap.opened_at)).min()
        }
    }
}

/// Updates the intervals between deliveries, and opens a gap for each implausible silence.
pub(super) fn observe_silence(input: &SubscriptionInput<'_>) -> Vec<SubscriptionChange> {
    let SubscriptionInput { ledger, rules, now, .. } = input;
    let Some(SilenceRules { factor, learning, min }) = rules.silence else { return Vec::new() };
    let mut changes = Vec::new();
    let mut paces = ledger.paces.clone();
    for (target, last) in lasts(input) {
        let interval = paces.targets.entry(target).or_insert(DeliveryInterval {
            since: last,
            last,
            longest: [0, 0],
            span: last,
        });
        if last > interval.last {
            hear(interval, last, learning);
        }
    }
    for (target, interval) in &paces.targets {
        let Some(active_since) = ledger.active(*target).filter_map(|one| one.times.active_since).min() else {
            continue;
        };
        let longest = interval.longest.into_iter().max().unwrap_or_default();
        let plausible = ((longest as f64 * factor) as i64).max(min);
        let is_learnt = interval.last.saturating_sub(interval.since) >= learning;
        let silent_since = interval.last.max(active_since);
        if !is_learnt || now.saturating_sub(silent_since) <= plausible {
            continue;
        }
        // A silence that continues opens another gap after the same time.
        let opened = ledger.gaps.values().filter(|gap| {
            gap.target == Some(*target) && gap.cause == GapCause::Silence && gap.opened_at > silent_since
        });
        let last = opened.map(|gap| gap.opened_at).max();
        if last.is_some_and(|last| now.saturating_sub(last) <= plausible) {
            continue;
        }
        let seconds = |micros: i64| micros / 1_000_000;
        let from = last.unwrap_or(interval.last).saturating_sub(rules.margin);
        let detail = format!(
            "nothing has come for {} s, and the longest silence before was {} s",
            seconds(now.saturating_sub(silent_since)),
            seconds(longest)
        );
        changes.push(found(input, *target, GapCause::Silence, (from, Some(*now)), detail));
    }
    if paces != ledger.paces {
        changes.push(SubscriptionChange::Paces(paces));
    }
    changes
}

/// When each target last sent a delivery.
fn lasts(input: &SubscriptionInput<'_>) -> Vec<(Target, i64)> {
    let mut lasts = BTreeMap::new();
    for heartbeat in input.ledger.heard.values() {
        let webhooks = heartbeat.webhooks.values();
        let webhooks = webhooks.filter_map(|one| Some((Target::Accounting(one.resource?), one.last)));
        for (target, last) in webhooks.chain(heartbeat.hooks.iter().map(|(target, one)| (*target, one.last)))
        {
            let known = lasts.entry(target).or_insert(last);
            *known = last.max(*known);
        }
    }
    lasts.into_iter().collect()
}

/// Counts a delivery.
fn hear(interval: &mut DeliveryInterval, last: i64, span: i64) {
    if last.saturating_sub(interval.span) >= span.max(1) {
        (interval.longest, interval.span) = ([0, interval.longest[0]], last);
    }
    interval.longest[0] = interval.longest[0].max(last.saturating_sub(interval.last));
    interval.last = last;
}
