//! Whether a target needs another subscription, and when that may be asked for.

use std::{cmp::Reverse, collections::BTreeSet};

use model::{Fingerprint, ReceiverReport, Subscription, SubscriptionPhase, Target};

use super::{
    Call, Plan, Situation, Wanted, address, gaps,
    plan::{GIVEN_UP, Misfit, is_due, may_ask, misfit, spread},
    settle::MOVED,
};
use crate::state::subscriptions::SubscriptionChange;

/// How often a second subscription is refused before the first is moved.
const CROWDED: u32 = 2;

/// Subscriptions of one target that are remembered although their subscribe call had no answer.
const MOST_GIVEN_UP: usize = 50;

/// Whether a target needs another subscription, or the one it has another address.
pub(super) fn needed<'a>(
    situation: &Situation<'a>,
    target: Target,
    wanted: &'a Wanted,
    best: Option<&Subscription>,
    living: &[&Subscription],
    plan: &mut Plan,
) {
    let Situation { memory, rules, now, ledger, .. } = situation;
    let now = *now;
    // Names are asked for again from time to time: there may be new events.
    if let Target::Accounting(resource) = target {
        let asked = memory.names.get(&resource).map(|(at, _)| *at);
        let at = asked.map_or(now, |asked| asked.saturating_add(spread(rules.names, resource.name())));
        if at <= now {
            if may_ask(situation, target, plan) {
                plan.step(Call::Names(resource), "which events there are");
            }
            return;
        }
        plan.again(at);
    }
    if best.is_some() || !is_due(situation, target, plan) {
        return;
    }
    let events = match target {
        Target::Accounting(resource) => {
            let offered = memory.names.get(&resource).map(|(_, names)| names.clone()).unwrap_or_default();
            wanted.events(&offered)
        }
        Target::Invoicing(_) => BTreeSet::new(),
    };
    if target.resource().is_some() && events.is_empty() {
        // Asked again when names are.
        plan.problems.push(format!("{target}: the provider offers none of the events that are wanted"));
        plan.converged = false;
        return;
    }
    let is_crowded = memory.crowded.get(&target).is_some_and(|refusals| *refusals >= CROWDED);
    let movable = living.iter().find(|one| {
        one.phase == SubscriptionPhase::Active
            && misfit(situation, wanted, one) == Some(Misfit::Address)
            && one.id.is_some()
    });
    if let Some(one) = movable.filter(|_| target.resource().is_some() && (rules.move_in_place || is_crowded))
    {
        let mut moved = (*one).clone();
        moved.url.clone_from(&wanted.url);
        moved.enter(SubscriptionPhase::Awaiting, now, MOVED);
        let mut before = vec![SubscriptionChange::Put(Box::new(moved.clone()))];
        before.extend(gaps::open_moved(situation, one));
        plan.step_after(before, Call::Move(Box::new(moved)), Misfit::Address.words());
        return;
    }
    let url = address::planned(situation, target, wanted);
    if address::waits_for_another(situation, target, url, plan) {
        plan.converged = false;
        return;
    }
    let ready_at = ready(situation, target, wanted);
    if ready_at > now {
        plan.again(ready_at.min(now.saturating_add(1_000_000)));
        plan.converged = false;
        return;
    }
    let why =
        living.iter().find_map(|one| misfit(situation, wanted, one)).map_or("there is none", Misfit::words);
    let (connector, nonce) = (situation.connector, (situation.draw)());
    let (application, fingerprint) = (&wanted.application, wanted.fingerprint.clone());
    let intended = Subscription {
        url: url.to_owned(),
        events,
        ..Subscription::intended(connector, target, nonce, application, fingerprint, now)
    };
    let ended = ledger
        .subscriptions
        .values()
        .filter(|one| one.target == target && one.phase == SubscriptionPhase::Ended);
    let (mut given_up, mut forgotten): (Vec<&Subscription>, Vec<_>) = ended
        .filter(|one| one.id.is_none())
        .partition(|one| one.history.iter().any(|note| note.what == GIVEN_UP));
    // Of one that the provider refused nothing is left but its words, which the next one will have again. That it refused the other
    // address decides which one is used.
    forgotten.retain(|one| one.problem.is_some() && (one.url == url || !wanted.is_at(&one.url)));
    // One whose call had no answer may turn up later at an address that is no longer wanted: its nonce identifies it as ours.
    given_up.sort_by_key(|one| Reverse(one.since));
    forgotten.extend(given_up.into_iter().skip(MOST_GIVEN_UP));
    let mut before: Vec<SubscriptionChange> =
        forgotten.into_iter().map(|one| SubscriptionChange::Forget(one.nonce.clone())).collect();
    before.push(SubscriptionChange::Put(Box::new(intended.clone())));
    plan.step_after(before, Call::Subscribe(Box::new(intended)), why);
}

/// From when on a secret may be used: once every receiver that was heard of lately knows it, or has had its time.
fn ready(situation: &Situation<'_>, target: Target, wanted: &Wanted) -> i64 {
    let Situation { memory, rules, now, .. } = situation;
    let since = memory.secrets.get(&wanted.fingerprint).copied().unwrap_or(*now);
    let knows = |heard: &ReceiverReport| match target {
        Target::Accounting(_) => heard.accounting.contains(&wanted.fingerprint),
        // Their secrets are derived from one.
        Target::Invoicing(_) => heard.invoicing.contains(&wanted.fingerprint),
    };
    if wanted.fingerprint == Fingerprint::of("") {
        return *now;
    }
    let mut workers = situation.receivers().peekable();
    if workers.peek().is_some() && workers.all(knows) { *now } else { since.saturating_add(rules.ready) }
}
