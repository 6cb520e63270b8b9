//! Subscriptions and gaps in one sentence each, for `GET /connectors/{name}/status`. Strings, because a common client decodes
//! these members as strings.

use std::collections::BTreeSet;

use model::{GapState, Subscription, SubscriptionPhase, Target};

use crate::{
    config::connector::SubscriptionTargets, connect::herder::shapes::time,
    state::subscriptions::SubscriptionState,
};

/// Targets named; further ones are only counted.
const MAX_NAMED: usize = 3;

/// How many of the declared targets are active, and the state of those that are not.
pub(super) fn subscriptions(declared: &SubscriptionTargets, state: &SubscriptionState) -> String {
    if !declared.manage {
        return format!("not managed: {} declared", declared.targets.len());
    }
    if state.requests.is_removed() {
        let left = state.subscriptions.values().filter(|one| one.phase.may_live()).count();
        return if left == 0 {
            "removed by request".to_owned()
        } else {
            format!("removed by request: {left} left")
        };
    }
    let lacking =
        |target: &&Target| !state.living(**target).any(|one| one.phase == SubscriptionPhase::Active);
    let lacking: BTreeSet<&Target> = declared.targets.iter().filter(lacking).collect();
    let (all, active) = (declared.targets.len(), declared.targets.len() - lacking.len());
    if lacking.is_empty() {
        return format!("{active} of {all} active");
    }
    let mut named: Vec<String> =
        lacking.iter().take(MAX_NAMED).map(|target| matter(**target, state)).collect();
    if lacking.len() > MAX_NAMED {
        named.push(format!("{} more", lacking.len() - MAX_NAMED));
    }
    format!("{active} of {all} active: {}", named.join(", "))
}

/// The state of a target without an active subscription.
fn matter(target: Target, state: &SubscriptionState) -> String {
    let best = |one: &&Subscription| (one.phase != SubscriptionPhase::Disabled, one.times.intended_at);
    match state.living(target).min_by_key(best) {
        Some(one) => format!("{target} {} since {}", one.phase, time(one.since)),
        None => format!("{target} missing"),
    }
}

/// How many gaps are neither repaired nor accepted.
pub(super) fn gaps(state: &SubscriptionState) -> String {
    let open = state.gaps.values().filter(|gap| !gap.state.is_over());
    let (mut count, mut unrepairable, mut oldest) = (0, 0, i64::MAX);
    for gap in open {
        count += 1;
        unrepairable += usize::from(gap.state == GapState::Unrepairable);
        oldest = oldest.min(gap.opened_at);
    }
    match (count, unrepairable) {
        (0, _) => "none open".to_owned(),
        (_, 0) => format!("{count} open, oldest {}", time(oldest)),
        _ => format!("{count} open, {unrepairable} of them unrepairable, oldest {}", time(oldest)),
    }
}
