//! Whether nothing comes because nothing happens.
//!
//! Of each target the longest silence is remembered that ended within the last two spans (a week each, unless people listen for
//! longer), so that nights and weekends are known after the first. A silence several times as long is not plausible any more:
//! whatever the provider says of the subscription, what happened meanwhile is read again.

use model::{DeliveryInterval, GapCause, Target};

use super::{Situation, gaps};
use crate::state::subscriptions::SubscriptionChange;

/// Takes in what was heard, and opens a gap for each silence that is not plausible.
pub(super) fn observe(situation: &Situation<'_>) -> Vec<SubscriptionChange> {
    let Situation { ledger, rules, now, .. } = situation;
    let Some(factor) = rules.silence else { return Vec::new() };
    let mut changes = Vec::new();
    let mut paces = ledger.paces.clone();
    for (target, last) in lasts(situation) {
        let pace = paces.targets.entry(target).or_insert(DeliveryInterval {
            since: last,
            last,
            longest: [0, 0],
            span: last,
        });
        if last > pace.last {
            hear(pace, last, rules.learning);
        }
    }
    for (target, pace) in &paces.targets {
        let Some(active_since) = ledger.active(*target).filter_map(|one| one.active_since).min() else {
            continue;
        };
        let longest = pace.longest.into_iter().max().unwrap_or_default();
        let plausible = ((longest as f64 * factor) as i64).max(rules.quiet);
        let is_learnt = pace.last.saturating_sub(pace.since) >= rules.learning;
        let silent_since = pace.last.max(active_since);
        if !is_learnt || now.saturating_sub(silent_since) <= plausible {
            continue;
        }
        // While it goes on there is another after as long again.
        let told = ledger.gaps.values().filter(|gap| {
            gap.target == Some(*target) && gap.cause == GapCause::Silence && gap.opened_at > silent_since
        });
        let last = told.map(|gap| gap.opened_at).max();
        if last.is_some_and(|last| now.saturating_sub(last) <= plausible) {
            continue;
        }
        let seconds = |micros: i64| micros / 1_000_000;
        let from = last.unwrap_or(pace.last).saturating_sub(rules.margin);
        let detail = format!(
            "nothing has come for {} s, and the longest silence before was {} s",
            seconds(now.saturating_sub(silent_since)),
            seconds(longest)
        );
        changes.push(gaps::found(situation, *target, GapCause::Silence, (from, Some(*now)), detail));
    }
    if paces != ledger.paces {
        changes.push(SubscriptionChange::Paces(paces));
    }
    changes
}

/// When each target was last heard of, by whichever subscription.
fn lasts(situation: &Situation<'_>) -> Vec<(Target, i64)> {
    let mut lasts = std::collections::BTreeMap::new();
    for heard in situation.ledger.heard.values() {
        let webhooks = heard.webhooks.values();
        let webhooks = webhooks.filter_map(|one| Some((Target::Accounting(one.resource?), one.last)));
        for (target, last) in webhooks.chain(heard.hooks.iter().map(|(target, one)| (*target, one.last))) {
            let known = lasts.entry(target).or_insert(last);
            *known = last.max(*known);
        }
    }
    lasts.into_iter().collect()
}

/// One more was heard.
fn hear(pace: &mut DeliveryInterval, last: i64, span: i64) {
    if last.saturating_sub(pace.span) >= span.max(1) {
        (pace.longest, pace.span) = ([0, pace.longest[0]], last);
    }
    pace.longest[0] = pace.longest[0].max(last.saturating_sub(pace.last));
    pace.last = last;
}
