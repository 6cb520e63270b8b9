//! What to do next about each target.

use std::{cmp::Reverse, collections::BTreeSet};

use model::{Done, Fingerprint, Heard, Phase, Subscription, Target};

use super::{
    DesiredSubscription, PlanInput, PlannedCall, ProviderCall, RetryState, chance, gaps,
    hooks::{self, NOT_ASKED, is_effective},
    settle::MOVED,
    upkeep,
};
use crate::state::subscriptions::Change;

/// How often an Acknowledge that is awaited is looked for, beside when one is heard of.
const ACKNOWLEDGE_POLL: i64 = 5_000_000;
/// How often enabling is tried before a subscription is followed by another.
pub(super) const MAX_ENABLE_ATTEMPTS: u32 = 3;

/// History line of a subscription whose subscribe call had no answer. It may exist at the provider.
const GIVEN_UP: &str = "given up: nothing was heard of it";

/// Subscriptions of one target at a time: one that is followed by another, and one whose answer nobody heard.
const MAX_SUBSCRIPTIONS: usize = 3;

/// How often a second subscription is refused before the first is moved.
const MAX_SECOND_REFUSALS: u32 = 2;

/// Subscriptions of one target that are remembered although their subscribe call had no answer.
const MAX_GIVEN_UP: usize = 50;

/// What there is to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SubscriptionPlan {
    /// What follows from what is known already; to be written before anything else.
    pub changes: Vec<Change>,
    /// At most one for each target. Those of different targets may be done in any order, and at once.
    pub steps: Vec<PlannedCall>,
    /// When to plan again at the latest.
    pub again_at: Option<i64>,
    /// Whether everything is as it is wanted.
    pub converged: bool,
    /// What keeps it from becoming so, where no call has failed.
    pub problems: Vec<String>,
}

impl SubscriptionPlan {
    pub(super) fn again(&mut self, at: i64) {
        self.again_at = Some(self.again_at.map_or(at, |known| known.min(at)));
    }

    pub(super) fn step(&mut self, call: ProviderCall, why: impl Into<String>) {
        self.step_after(Vec::new(), call, why);
    }

    pub(super) fn step_after(&mut self, before: Vec<Change>, call: ProviderCall, why: impl Into<String>) {
        self.steps.push(PlannedCall { before, call, why: why.into() });
    }
}

/// What to do next.
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> SubscriptionPlan {
    let PlanInput { wanted, ledger, .. } = input;
    let mut plan = SubscriptionPlan { converged: true, ..SubscriptionPlan::default() };
    let targets: BTreeSet<Target> = wanted
        .keys()
        .copied()
        .chain(ledger.subscriptions.values().filter(|one| one.phase.may_live()).map(|one| one.target))
        .collect();
    listing(input, &targets, &mut plan);
    for target in targets {
        let is_taken = plan.steps.iter().any(|step| step.call.target() == Some(target));
        let before = (plan.steps.len(), plan.changes.len());
        one(input, target, is_taken, &mut plan);
        let is_quiet = (plan.steps.len(), plan.changes.len()) == before && !is_taken;
        plan.converged &= is_quiet && stands(input, target);
    }
    strangers(input, &mut plan);
    upkeep::forget(input, &mut plan);
    upkeep::start(input, &mut plan);
    plan.changes.extend(gaps::end(input));
    plan.changes.extend(gaps::observe_silence(input));
    if let Some(wish) = ledger.wish.as_ref().filter(|_| plan.converged && !ledger.is_done()) {
        plan.changes.push(Change::Done(Done { number: wish.number, at: input.now }));
    }
    plan
}

/// Whether a target is as it is wanted: one that fits and is active, or none at all.
fn stands(input: &PlanInput<'_>, target: Target) -> bool {
    let mut living = input.ledger.living(target);
    match input.wanted.get(&target) {
        None => living.next().is_none(),
        Some(wanted) => {
            let (Some(only), None) = (living.next(), living.next()) else { return false };
            only.phase == Phase::Active && misfit(input, wanted, only).is_none()
        }
    }
}

/// Why a subscription is not what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mismatch {
    /// Another secret.
    Secret,
    /// Other events, or another name.
    Other(&'static str),
    /// Another address, and nothing else.
    Address,
}

impl Mismatch {
    const fn words(self) -> &'static str {
        match self {
            Self::Secret => "it is signed with another secret",
            Self::Other(words) => words,
            Self::Address => "it has another address",
        }
    }
}

fn misfit<'a>(
    input: &PlanInput<'a>,
    wanted: &'a DesiredSubscription,
    one: &Subscription,
) -> Option<Mismatch> {
    if one.fingerprint != wanted.fingerprint {
        return Some(Mismatch::Secret);
    }
    if let Some(resource) = one.target.resource()
        && let Some((_, offered)) = input.memory.provider.names.get(&resource)
        && !offered.is_empty()
        && one.events != wanted.events(offered)
    {
        return Some(Mismatch::Other("it is for other events"));
    }
    if one.application != wanted.application {
        return Some(Mismatch::Other("it has another name"));
    }
    (one.url != hooks::planned(input, one.target, wanted)).then_some(Mismatch::Address)
}

/// Deliveries that are signed with our secret and come by an id nobody knows.
fn strangers(input: &PlanInput<'_>, plan: &mut SubscriptionPlan) {
    let PlanInput { ledger, memory, now, .. } = input;
    let told = ledger.acknowledges.values().map(|one| (&one.webhook_id, one.resource));
    let heard = ledger.heard.values().flat_map(|heard| &heard.webhooks);
    let heard = heard.map(|(id, traffic)| (id, traffic.resource));
    for (id, resource) in told.chain(heard) {
        let Some(resource) = resource else { continue };
        if id.is_empty() || memory.foreign.contains_key(id) || ledger.by_id(id).is_some() {
            continue;
        }
        // What is known to be ours is changed first: one that cannot be asked about holds up nothing. What only asks is no reason to
        // wait, since where all is well there is always something to look at.
        let target = Target::Accounting(resource);
        let is_taken = plan.steps.iter().any(|step| {
            let is_one = matches!(step.call, ProviderCall::Identify { .. });
            step.call.target() == Some(target) && (is_one || !step.call.only_asks())
        });
        let waits = memory.retries.strangers.get(id).map_or(i64::MIN, |tries| tries.not_before);
        if waits > *now {
            plan.again(waits);
        } else if !is_taken {
            let call = ProviderCall::Identify { resource, id: id.clone() };
            plan.step(call, format!("deliveries come by {id}, which is not in the ledger"));
        }
    }
}

/// Whether a target may be asked about again after that failed before.
fn may_ask(input: &PlanInput<'_>, target: Target, plan: &mut SubscriptionPlan) -> bool {
    is_over(input, input.memory.retries.questions.get(&target), plan)
}

/// Whether a target that could not be changed before may be tried again.
fn is_due(input: &PlanInput<'_>, target: Target, plan: &mut SubscriptionPlan) -> bool {
    is_over(input, input.memory.retries.changes.get(&target), plan)
}

/// Whether the wait after failures is over.
fn is_over(input: &PlanInput<'_>, tries: Option<&RetryState>, plan: &mut SubscriptionPlan) -> bool {
    let waits = tries.filter(|tries| tries.not_before > input.now);
    if let Some(tries) = waits {
        plan.again(tries.not_before);
        plan.converged = false;
    }
    waits.is_none()
}

/// The hooks of the invoicing API are looked at all together.
fn listing(input: &PlanInput<'_>, targets: &BTreeSet<Target>, plan: &mut SubscriptionPlan) {
    let PlanInput { ledger, memory, rules, now, .. } = input;
    let mut hooks = targets.iter().filter(|target| matches!(target, Target::Invoicing(_))).peekable();
    if hooks.peek().is_none() {
        return;
    }
    let open = hooks.flat_map(|target| ledger.living(*target));
    // An answer nobody heard, a hook that was not listed since it was made, or one whose echo has come, is looked for sooner.
    let soon = open.filter(|one| matches!(one.phase, Phase::Intended | Phase::Awaiting | Phase::Ending));
    let is_new = |one: &&Subscription| {
        let is_echoed = || one.phase == Phase::Awaiting && is_effective(input, one);
        memory.provider.listed.is_none_or(|listed| listed < settled(input, one)) || is_echoed()
    };
    let soon = soon.filter(is_new).map(|one| settled(input, one)).min();
    let regular = memory
        .provider
        .listed
        .map_or(*now, |listed| listed.saturating_add(spread(rules.intervals.poll, "hooks")));
    let at = soon.map_or(regular, |soon| soon.min(regular)).max(memory.retries.list.not_before);
    if at <= *now {
        plan.step(ProviderCall::List { planned: *now }, "how the hooks of the invoicing API stand");
        // Nothing is known of them before.
        plan.converged &= memory.provider.listed.is_some();
    } else {
        plan.again(at);
        plan.converged &= memory.retries.list.failures == 0;
    }
}

/// When a list tells for certain whether a hook is in it: an intent may still be on its way to the provider.
fn settled(input: &PlanInput<'_>, one: &Subscription) -> i64 {
    match one.phase {
        Phase::Intended => one.since.saturating_add(input.rules.limits.intent),
        _ => one.since.saturating_add(1),
    }
}

/// A little less than a time, so that not everything is asked for at once.
fn spread(time: i64, name: &str) -> i64 {
    time.saturating_sub((time as f64 * 0.2 * chance(name)) as i64).max(1)
}

/// One target: its subscriptions by phase, then whether another is needed, then whether some are too many.
fn one(input: &PlanInput<'_>, target: Target, mut is_taken: bool, plan: &mut SubscriptionPlan) {
    let PlanInput { wanted, ledger, memory, rules, now, .. } = input;
    let (now, wanted) = (*now, wanted.get(&target));
    let is_hook = matches!(target, Target::Invoicing(_));
    let mut living: Vec<&Subscription> = ledger.living(target).collect();
    // The best comes first: one that fits before one that does not, active before others, the oldest of those.
    let fitting = |one: &Subscription| wanted.is_some_and(|wanted| misfit(input, wanted, one).is_none());
    living.sort_by_key(|one| (Reverse(fitting(one)), order(one.phase), one.intended_at, one.nonce.clone()));
    let is_alive = |one: &Subscription| match (one.phase, target) {
        (Phase::Ending | Phase::Ended, _) => false,
        // There is no call that resumes a hook.
        (Phase::Disabled, Target::Invoicing(_)) => false,
        (Phase::Disabled, _) => {
            memory.refused.enable.get(&one.nonce).is_none_or(|tries| *tries < MAX_ENABLE_ATTEMPTS)
        }
        _ => true,
    };
    let best = living.iter().find(|one| fitting(one) && is_alive(one)).copied();
    let stands_since = best.filter(|best| best.phase == Phase::Active).and_then(|best| best.active_since);
    plan.changes.extend(gaps::open_unverified(input, target));

    // What is declared may change faster than one follows the other: the oldest that is there covers what the others do.
    let there = living.iter().filter(|one| one.id.is_some() && one.phase != Phase::Ending);
    let newest = there
        .clone()
        .max_by_key(|one| one.intended_at)
        .filter(|_| there.count() >= MAX_SUBSCRIPTIONS && best.is_none());

    // First what is too many or cannot be used: to be deleted, one after the other.
    for one in &living {
        let is_best = best.is_some_and(|best| best.nonce == one.nonce);
        let (surplus, why) = match one.phase {
            Phase::Intended | Phase::Ending | Phase::Ended => (false, ""),
            _ if wanted.is_none() => (true, "it is not wanted any more"),
            _ if is_best => (false, ""),
            _ if newest.is_some_and(|newest| newest.nonce == one.nonce) => {
                (true, "what is declared has changed again")
            }
            Phase::Disabled if !is_alive(one) => (true, "it sends nothing, and cannot be made to"),
            phase => match stands_since {
                // What it has not delivered yet nobody else will.
                // A hook that awaits its echo may send all the same: only the list knows it.
                Some(since)
                    if (phase == Phase::Active || is_hook && phase == Phase::Awaiting)
                        && since.saturating_add(rules.limits.overlap) > now =>
                {
                    plan.again(since.saturating_add(rules.limits.overlap));
                    (false, "")
                }
                Some(_) => (true, "another one stands for it"),
                None => (false, ""),
            },
        };
        let awaited_too_long =
            one.phase == Phase::Awaiting && one.since.saturating_add(rules.limits.acknowledge) <= now;
        let (surplus, why) = match (surplus, awaited_too_long) {
            (false, true) if is_hook => (true, NOT_ASKED),
            (false, true) => (true, "the provider has waited too long for a receiver to accept it"),
            other => (other.0, why),
        };
        if !surplus || one.id.is_none() {
            continue;
        }
        let mut ending = (*one).clone();
        ending.enter(Phase::Ending, now, why);
        if awaited_too_long {
            plan.changes.extend(gaps::open_awaiting(input, one));
        }
        let call = ProviderCall::Delete(Box::new(ending.clone()));
        let before = vec![Change::Put(Box::new(ending))];
        if is_taken || !is_due(input, target, plan) {
            continue;
        }
        plan.step_after(before, call, why);
        is_taken = true;
    }
    for one in &living {
        if is_taken {
            break;
        }
        is_taken = by_phase(input, one, plan);
    }
    if let Some(wanted) = wanted
        && !is_taken
    {
        needed(input, target, wanted, best, &living, plan);
    }
}

const fn order(phase: Phase) -> u8 {
    match phase {
        Phase::Active => 0,
        Phase::Disabled => 1,
        Phase::Awaiting => 2,
        Phase::Intended => 3,
        Phase::Ending => 4,
        Phase::Ended => 5,
    }
}

/// What a subscription's own phase asks for. Whether something was begun for its target.
fn by_phase(input: &PlanInput<'_>, one: &Subscription, plan: &mut SubscriptionPlan) -> bool {
    let PlanInput { ledger, memory, rules, now, wanted, .. } = input;
    let now = *now;
    let is_hook = matches!(one.target, Target::Invoicing(_));
    let boxed = || Box::new(one.clone());
    match one.phase {
        Phase::Intended => {
            let until = one.since.saturating_add(rules.limits.intent);
            if now < until {
                plan.again(until);
                // What shows itself meanwhile is found by its id or in the list; until then nothing else is begun.
                return true;
            }
            if is_hook {
                // The list tells.
                return true;
            }
            // If it is there all the same, it shows itself by its Acknowledge or by what it sends.
            let mut ended = one.clone();
            ended.enter(Phase::Ended, now, GIVEN_UP);
            plan.changes.push(Change::Put(Box::new(ended)));
            false
        }
        Phase::Awaiting | Phase::Active if is_hook => false,
        Phase::Awaiting => {
            let told = one.id.as_ref().and_then(|id| ledger.acknowledges.get(id)).map(|one| one.received_at);
            let checked = one.checked_at.unwrap_or(i64::MIN);
            let is_told = told.is_some_and(|told| told >= checked);
            let again = one
                .checked_at
                .map_or(now, |checked| checked.saturating_add(ACKNOWLEDGE_POLL.min(rules.intervals.poll)));
            read(input, one, if is_told { now } else { again }, "whether it is accepted", plan)
        }
        Phase::Active => {
            let every = spread(rules.intervals.poll, one.nonce.as_str());
            let at = one.checked_at.map_or(now, |checked| checked.saturating_add(every));
            // Who wishes something wants to know how it stands now.
            let wished = ledger.wish.as_ref().filter(|_| !ledger.is_done()).map(|wish| wish.at);
            let at = if one.checked_at < wished { now } else { at };
            read(input, one, at, "how it stands", plan)
        }
        Phase::Disabled if is_hook => false,
        // It was enabled a moment ago, and what the provider says of it decides.
        Phase::Disabled if one.checked_at.is_none() => read(input, one, now, "whether it is enabled", plan),
        Phase::Disabled => {
            let is_hopeless =
                memory.refused.enable.get(&one.nonce).is_some_and(|tries| *tries >= MAX_ENABLE_ATTEMPTS);
            if is_hopeless || !wanted.contains_key(&one.target) || !is_due(input, one.target, plan) {
                return false;
            }
            plan.step(ProviderCall::Enable(boxed()), "the provider has disabled it");
            true
        }
        Phase::Ending => {
            if !is_hook && one.checked_at.is_none() {
                read(input, one, now, "whether it is deleted", plan);
            } else if is_due(input, one.target, plan) {
                plan.step(ProviderCall::Delete(boxed()), "it is to be deleted, and may have been");
            }
            true
        }
        Phase::Ended => false,
    }
}

fn read(input: &PlanInput<'_>, one: &Subscription, at: i64, why: &str, plan: &mut SubscriptionPlan) -> bool {
    if at > input.now {
        plan.again(at);
        return false;
    }
    if !may_ask(input, one.target, plan) {
        return false;
    }
    plan.step(ProviderCall::Read(Box::new(one.clone())), why);
    // An active one that is only looked at keeps nothing else waiting for long, but one thing is done at a time.
    true
}

/// Whether a target needs another subscription, or the one it has another address.
fn needed<'a>(
    input: &PlanInput<'a>,
    target: Target,
    wanted: &'a DesiredSubscription,
    best: Option<&Subscription>,
    living: &[&Subscription],
    plan: &mut SubscriptionPlan,
) {
    let PlanInput { memory, rules, now, ledger, .. } = input;
    let now = *now;
    // Names are asked for again from time to time: there may be new events.
    if let Target::Accounting(resource) = target {
        let asked = memory.provider.names.get(&resource).map(|(at, _)| *at);
        let at =
            asked.map_or(now, |asked| asked.saturating_add(spread(rules.intervals.names, resource.name())));
        if at <= now {
            if may_ask(input, target, plan) {
                plan.step(ProviderCall::Names(resource), "which events there are");
            }
            return;
        }
        plan.again(at);
    }
    if best.is_some() || !is_due(input, target, plan) {
        return;
    }
    let events = match target {
        Target::Accounting(resource) => {
            let offered =
                memory.provider.names.get(&resource).map(|(_, names)| names.clone()).unwrap_or_default();
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
    let is_crowded =
        memory.refused.second.get(&target).is_some_and(|refusals| *refusals >= MAX_SECOND_REFUSALS);
    let movable = living.iter().find(|one| {
        one.phase == Phase::Active
            && misfit(input, wanted, one) == Some(Mismatch::Address)
            && one.id.is_some()
    });
    if let Some(one) = movable.filter(|_| target.resource().is_some() && (rules.move_in_place || is_crowded))
    {
        let mut moved = (*one).clone();
        moved.url.clone_from(&wanted.url);
        moved.enter(Phase::Awaiting, now, MOVED);
        let mut before = vec![Change::Put(Box::new(moved.clone()))];
        before.extend(gaps::open_moved(input, one));
        plan.step_after(before, ProviderCall::Move(Box::new(moved)), Mismatch::Address.words());
        return;
    }
    let url = hooks::planned(input, target, wanted);
    if hooks::waits_for_another(input, target, url, plan) {
        plan.converged = false;
        return;
    }
    let ready_at = ready(input, target, wanted);
    if ready_at > now {
        plan.again(ready_at.min(now.saturating_add(1_000_000)));
        plan.converged = false;
        return;
    }
    let why =
        living.iter().find_map(|one| misfit(input, wanted, one)).map_or("there is none", Mismatch::words);
    let (connector, nonce) = (input.connector, (input.draw)());
    let (application, fingerprint) = (&wanted.application, wanted.fingerprint.clone());
    let intended = Subscription {
        url: url.to_owned(),
        events,
        ..Subscription::intended(connector, target, nonce, application, fingerprint, now)
    };
    let ended = ledger.subscriptions.values().filter(|one| one.target == target && one.phase == Phase::Ended);
    let (mut given_up, mut forgotten): (Vec<&Subscription>, Vec<_>) = ended
        .filter(|one| one.id.is_none())
        .partition(|one| one.history.iter().any(|note| note.what == GIVEN_UP));
    // Of one that the provider refused nothing is left but its words, which the next one will have again. That it refused the other
    // address decides which one is used.
    forgotten.retain(|one| one.problem.is_some() && (one.url == url || !wanted.is_at(&one.url)));
    // One whose call had no answer may turn up later at an address that is no longer wanted: its nonce identifies it as ours.
    given_up.sort_by_key(|one| Reverse(one.since));
    forgotten.extend(given_up.into_iter().skip(MAX_GIVEN_UP));
    let mut before: Vec<Change> =
        forgotten.into_iter().map(|one| Change::Forget(one.nonce.clone())).collect();
    before.push(Change::Put(Box::new(intended.clone())));
    plan.step_after(before, ProviderCall::Subscribe(Box::new(intended)), why);
}

/// From when on a secret may be used: once every receiver that was heard of lately knows it, or has had its time.
fn ready(input: &PlanInput<'_>, target: Target, wanted: &DesiredSubscription) -> i64 {
    let PlanInput { memory, rules, now, .. } = input;
    let since = memory.secrets.get(&wanted.fingerprint).copied().unwrap_or(*now);
    let knows = |heard: &Heard| match target {
        Target::Accounting(_) => heard.accounting.contains(&wanted.fingerprint),
        // Their secrets are derived from one.
        Target::Invoicing(_) => heard.invoicing.contains(&wanted.fingerprint),
    };
    if wanted.fingerprint == Fingerprint::of("") {
        return *now;
    }
    let mut workers = input.receivers().peekable();
    if workers.peek().is_some() && workers.all(knows) {
        *now
    } else {
        since.saturating_add(rules.limits.ready)
    }
}
