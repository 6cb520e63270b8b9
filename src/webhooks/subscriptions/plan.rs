//! What to do next about each target.

use std::{cmp::Reverse, collections::BTreeSet};

use model::{Fingerprint, ReceiverReport, Subscription, SubscriptionCommandDone, SubscriptionPhase, Target};

use super::{
    DesiredSubscription, PlannedCall, ProviderCall, RetryState, SubscriptionInput, chance, gaps,
    history::{GIVEN_UP, MOVED, NOT_ASKED},
    hooks::{self, is_effective},
    lifecycle::{Lifecycle, LivingSubscription},
    upkeep,
};
use crate::state::subscriptions::SubscriptionChange;

/// Interval at which a subscription without Acknowledge is read, in microseconds.
const ACKNOWLEDGE_POLL: i64 = 5_000_000;

/// Why a subscription is deleted whose Acknowledge no worker answered in time.
const OVERDUE: &str = "the provider has waited too long for a receiver to accept it";

/// Most subscriptions of one target: one, its successor, and one whose subscribe call had no answer.
const MAX_SUBSCRIPTIONS: usize = 3;

/// Refusals of a second subscription until the first is moved instead.
const MAX_SECOND_REFUSALS: u32 = 2;

/// Subscriptions of one target without an answer that the ledger keeps.
const MAX_GIVEN_UP: usize = 50;

/// What to do next.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SubscriptionPlan {
    /// Written before anything else.
    pub changes: Vec<SubscriptionChange>,
    /// At most one for each target; those of different targets may run in parallel.
    pub steps: Vec<PlannedCall>,
    /// When to plan again at the latest.
    pub again_at: Option<i64>,
    /// Whether every target is as declared.
    pub converged: bool,
    /// Why a target cannot become so, other than failed calls.
    pub problems: Vec<String>,
}

impl SubscriptionPlan {
    pub(super) fn again(&mut self, at: i64) {
        self.again_at = Some(self.again_at.map_or(at, |known| known.min(at)));
    }

    pub(super) fn step(&mut self, call: ProviderCall, why: impl Into<String>) {
        self.step_after(Vec::new(), call, why);
    }

    pub(super) fn step_after(
        &mut self,
        before: Vec<SubscriptionChange>,
        call: ProviderCall,
        why: impl Into<String>,
    ) {
        self.steps.push(PlannedCall { before, call, why: why.into() });
    }
}

/// What to do next.
#[must_use]
pub fn plan(input: &SubscriptionInput<'_>) -> SubscriptionPlan {
    let SubscriptionInput { wanted, ledger, .. } = input;
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
        plan_target(input, target, is_taken, &mut plan);
        let is_quiet = (plan.steps.len(), plan.changes.len()) == before && !is_taken;
        plan.converged &= is_quiet && is_as_declared(input, target);
    }
    identify_unknown_ids(input, &mut plan);
    upkeep::forget(input, &mut plan);
    upkeep::start(input, &mut plan);
    plan.changes.extend(gaps::end(input));
    plan.changes.extend(gaps::observe_silence(input));
    if let Some(command) = ledger.requests.pending().filter(|_| plan.converged) {
        plan.changes.push(SubscriptionChange::Done(SubscriptionCommandDone {
            number: command.number,
            at: input.now,
        }));
    }
    plan
}

/// Whether a target is as declared: exactly one active subscription that fits, or none.
fn is_as_declared(input: &SubscriptionInput<'_>, target: Target) -> bool {
    let mut living = input.ledger.living(target);
    match input.wanted.get(&target) {
        None => living.next().is_none(),
        Some(wanted) => {
            let (Some(only), None) = (living.next(), living.next()) else { return false };
            only.phase == SubscriptionPhase::Active && misfit(input, wanted, only).is_none()
        }
    }
}

/// How a subscription differs from what is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriptionDiff {
    /// Another secret.
    Secret,
    /// Other events, or another name.
    Other(&'static str),
    /// Another address, and nothing else.
    Address,
}

impl SubscriptionDiff {
    const fn words(self) -> &'static str {
        match self {
            Self::Secret => "it is signed with another secret",
            Self::Other(words) => words,
            Self::Address => "it has another address",
        }
    }
}

fn misfit<'a>(
    input: &SubscriptionInput<'a>,
    wanted: &'a DesiredSubscription,
    one: &Subscription,
) -> Option<SubscriptionDiff> {
    if one.registration.fingerprint != wanted.fingerprint {
        return Some(SubscriptionDiff::Secret);
    }
    if let Some(resource) = one.target.resource()
        && let Some((_, offered)) = input.memory.provider.names.get(&resource)
        && !offered.is_empty()
        && one.registration.events != wanted.events(offered)
    {
        return Some(SubscriptionDiff::Other("it is for other events"));
    }
    if one.registration.application != wanted.application {
        return Some(SubscriptionDiff::Other("it has another name"));
    }
    (one.registration.url != hooks::planned(input, one.target, wanted)).then_some(SubscriptionDiff::Address)
}

/// Reads ids that send deliveries with our signature and are not in the ledger.
fn identify_unknown_ids(input: &SubscriptionInput<'_>, plan: &mut SubscriptionPlan) {
    let SubscriptionInput { ledger, memory, now, .. } = input;
    let acknowledged = ledger.acknowledges.values().map(|one| (&one.webhook_id, one.resource));
    let delivering = ledger.heard.values().flat_map(|heartbeat| &heartbeat.webhooks);
    let delivering = delivering.map(|(id, traffic)| (id, traffic.resource));
    for (id, resource) in acknowledged.chain(delivering) {
        let Some(resource) = resource else { continue };
        if id.is_empty() || memory.foreign.contains_key(id) || ledger.by_id(id).is_some() {
            continue;
        }
        // Changes of known subscriptions go first, so that an id that cannot be read delays nothing. Reads of known subscriptions do not
        // delay it, because there are always some.
        let target = Target::Accounting(resource);
        let is_taken = plan.steps.iter().any(|step| {
            let is_one = matches!(step.call, ProviderCall::Identify { .. });
            step.call.target() == Some(target) && (is_one || !step.call.is_read_only())
        });
        let waits = memory.retries.unknown_ids.get(id).map_or(i64::MIN, |tries| tries.not_before);
        if waits > *now {
            plan.again(waits);
        } else if !is_taken {
            let call = ProviderCall::Identify { resource, id: id.clone() };
            plan.step(call, format!("deliveries come by {id}, which is not in the state topic"));
        }
    }
}

/// Whether the backoff of a target's read calls is over.
fn may_read(input: &SubscriptionInput<'_>, target: Target, plan: &mut SubscriptionPlan) -> bool {
    is_over(input, input.memory.retries.reads.get(&target), plan)
}

/// Whether the backoff of a target's changes is over.
fn is_due(input: &SubscriptionInput<'_>, target: Target, plan: &mut SubscriptionPlan) -> bool {
    is_over(input, input.memory.retries.changes.get(&target), plan)
}

/// Whether a backoff is over; if not, plans again after it.
fn is_over(input: &SubscriptionInput<'_>, tries: Option<&RetryState>, plan: &mut SubscriptionPlan) -> bool {
    let waits = tries.filter(|tries| tries.not_before > input.now);
    if let Some(tries) = waits {
        plan.again(tries.not_before);
        plan.converged = false;
    }
    waits.is_none()
}

/// Lists the hooks of the invoicing API if that is due.
fn listing(input: &SubscriptionInput<'_>, targets: &BTreeSet<Target>, plan: &mut SubscriptionPlan) {
    let SubscriptionInput { ledger, memory, rules, now, .. } = input;
    let mut hooks = targets.iter().filter(|target| matches!(target, Target::Invoicing(_))).peekable();
    if hooks.peek().is_none() {
        return;
    }
    let open = hooks.flat_map(|target| ledger.living(*target));
    // Sooner for a call without an answer, a hook that was made after the last list, and one whose echo was answered.
    let soon = open.filter(|one| {
        matches!(
            one.phase,
            SubscriptionPhase::Intended | SubscriptionPhase::Awaiting | SubscriptionPhase::Ending
        )
    });
    let is_new = |one: &&Subscription| {
        let is_echoed = || one.phase == SubscriptionPhase::Awaiting && is_effective(input, one);
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
        // Nothing is known about hooks before the first list.
        plan.converged &= memory.provider.listed.is_some();
    } else {
        plan.again(at);
        plan.converged &= memory.retries.list.failures == 0;
    }
}

/// From when on a list proves that a hook does not exist: before, its subscribe call may be on its way.
fn settled(input: &SubscriptionInput<'_>, one: &Subscription) -> i64 {
    match one.phase {
        SubscriptionPhase::Intended => one.since.saturating_add(input.rules.limits.intent),
        _ => one.since.saturating_add(1),
    }
}

/// Up to a fifth less than a time, so that calls are spread.
fn spread(time: i64, name: &str) -> i64 {
    time.saturating_sub((time as f64 * 0.2 * chance(name)) as i64).max(1)
}

/// One target: what is surplus, then what each subscription needs, then whether another one is needed.
fn plan_target(
    input: &SubscriptionInput<'_>,
    target: Target,
    mut is_taken: bool,
    plan: &mut SubscriptionPlan,
) {
    let SubscriptionInput { wanted, ledger, now, .. } = input;
    let (now, wanted) = (*now, wanted.get(&target));
    let mut living: Vec<LivingSubscription<'_>> =
        ledger.living(target).filter_map(|one| LivingSubscription::new(input, one)).collect();
    // The best comes first: one that fits before one that does not, active before others, the oldest of those.
    let fitting = |one: &LivingSubscription<'_>| {
        wanted.is_some_and(|wanted| misfit(input, wanted, one.record()).is_none())
    };
    living.sort_by_key(|one| {
        let record = one.record();
        (Reverse(fitting(one)), one.rank(), record.times.intended_at, record.nonce.clone())
    });
    let best = living.iter().find(|one| fitting(one) && one.is_alive()).copied();
    plan.changes.extend(gaps::open_unverified(input, target));

    for one in &living {
        let is_overdue = matches!(one.state(), Lifecycle::Awaiting { is_overdue: true, .. });
        let why = surplus(input, *one, best, &living, plan).or_else(|| {
            let is_hook = target.resource().is_none();
            is_overdue.then_some(if is_hook { NOT_ASKED } else { OVERDUE })
        });
        let one = one.record();
        let Some(why) = why.filter(|_| one.id.is_some()) else { continue };
        if is_taken || !is_due(input, target, plan) {
            continue;
        }
        let mut ending = one.clone();
        ending.enter(SubscriptionPhase::Ending, now, why);
        // Together: while the subscription waits on, every plan would find the gap again.
        let gap = is_overdue.then(|| gaps::open_awaiting(input, one)).flatten();
        let before = gap.into_iter().chain([SubscriptionChange::Put(Box::new(ending.clone()))]).collect();
        plan.step_after(before, ProviderCall::Delete(Box::new(ending)), why);
        is_taken = true;
    }
    for one in &living {
        if is_taken {
            break;
        }
        is_taken = plan_state(input, *one, plan);
    }
    if let Some(wanted) = wanted
        && !is_taken
    {
        needed(input, target, wanted, best.is_some(), &living, plan);
    }
}

/// Why a subscription is to be deleted; `None`: it stays.
fn surplus(
    input: &SubscriptionInput<'_>,
    living_one: LivingSubscription<'_>,
    best: Option<LivingSubscription<'_>>,
    living: &[LivingSubscription<'_>],
    plan: &mut SubscriptionPlan,
) -> Option<&'static str> {
    let (one, state) = (living_one.record(), living_one.state());
    if matches!(state, Lifecycle::Intended { .. } | Lifecycle::Ending { .. }) {
        return None;
    }
    if !input.wanted.contains_key(&one.target) {
        return Some("it is not wanted any more");
    }
    if best.is_some_and(|best| best.record().nonce == one.nonce) {
        return None;
    }
    if best.is_none() {
        // The configuration may change faster than subscriptions are replaced: the oldest covers what the newest would.
        let made = || {
            living
                .iter()
                .filter(|one| !matches!(one.state(), Lifecycle::Ending { .. }))
                .map(LivingSubscription::record)
                .filter(|one| one.id.is_some())
        };
        let newest = made().max_by_key(|one| one.times.intended_at);
        if made().count() >= MAX_SUBSCRIPTIONS && newest.is_some_and(|newest| newest.nonce == one.nonce) {
            return Some("the configuration changed again");
        }
    }
    if !living_one.is_alive() {
        return Some("it is disabled and cannot be enabled");
    }
    let Some(Lifecycle::Active { since: Some(since), .. }) = best.map(|best| best.state()) else {
        return None;
    };
    // It may have deliveries to repeat. A hook that waits for its echo may send them too: only the list knows it.
    let may_deliver = match state {
        Lifecycle::Active { .. } => true,
        Lifecycle::Awaiting { .. } => one.target.resource().is_none(),
        _ => false,
    };
    let until = since.saturating_add(input.rules.limits.overlap);
    if may_deliver && until > input.now {
        plan.again(until);
        return None;
    }
    Some("replaced by an active subscription")
}

/// Plans what a subscription needs in its state. Returns whether a step of its target is planned or must be awaited.
fn plan_state(
    input: &SubscriptionInput<'_>,
    living_one: LivingSubscription<'_>,
    plan: &mut SubscriptionPlan,
) -> bool {
    let (one, state) = (living_one.record(), living_one.state());
    let SubscriptionInput { ledger, rules, now, wanted, .. } = input;
    let (now, is_hook) = (*now, one.target.resource().is_none());
    match state {
        // Its answer may come until then: nothing else is started for the target.
        Lifecycle::Intended { until } if now < until => {
            plan.again(until);
            true
        }
        // The list shows whether the hook was made.
        Lifecycle::Intended { .. } if is_hook => true,
        Lifecycle::Intended { .. } => {
            // If it exists all the same, its Acknowledge or its deliveries show it.
            let mut ended = one.clone();
            ended.enter(SubscriptionPhase::Ended, now, GIVEN_UP);
            plan.changes.push(SubscriptionChange::Put(Box::new(ended)));
            false
        }
        Lifecycle::Awaiting { .. } | Lifecycle::Active { .. } | Lifecycle::Disabled { .. } if is_hook => {
            false
        }
        Lifecycle::Awaiting { acknowledged_at, checked_at, .. } => {
            let is_new = acknowledged_at.is_some_and(|at| at >= checked_at.unwrap_or(i64::MIN));
            let every = ACKNOWLEDGE_POLL.min(rules.intervals.poll);
            let again = checked_at.map_or(now, |checked| checked.saturating_add(every));
            read(input, one, if is_new { now } else { again }, "whether it is accepted", plan)
        }
        Lifecycle::Active { checked_at, .. } => {
            let every = spread(rules.intervals.poll, one.nonce.as_str());
            let at = checked_at.map_or(now, |checked| checked.saturating_add(every));
            // A command is done only after every subscription was read.
            let commanded_at = ledger.requests.pending().map(|command| command.at);
            read(input, one, if checked_at < commanded_at { now } else { at }, "regular check", plan)
        }
        // It was enabled a moment ago, and the provider's answer decides.
        Lifecycle::Disabled { checked_at: None, .. } => read(input, one, now, "whether it is enabled", plan),
        Lifecycle::Disabled { can_be_enabled, .. } => {
            if !can_be_enabled || !wanted.contains_key(&one.target) || !is_due(input, one.target, plan) {
                return false;
            }
            plan.step(ProviderCall::Enable(Box::new(one.clone())), "the provider has disabled it");
            true
        }
        Lifecycle::Ending { checked_at } => {
            if !is_hook && checked_at.is_none() {
                read(input, one, now, "whether it is deleted", plan);
            } else if is_due(input, one.target, plan) {
                plan.step(
                    ProviderCall::Delete(Box::new(one.clone())),
                    "it is to be deleted, and may have been",
                );
            }
            true
        }
    }
}

fn read(
    input: &SubscriptionInput<'_>,
    one: &Subscription,
    at: i64,
    why: &str,
    plan: &mut SubscriptionPlan,
) -> bool {
    if at > input.now {
        plan.again(at);
        return false;
    }
    if !may_read(input, one.target, plan) {
        return false;
    }
    plan.step(ProviderCall::Read(Box::new(one.clone())), why);
    // One call at a time for each target.
    true
}

/// Subscribes a target if nothing fits, or moves its subscription to another address.
fn needed<'a>(
    input: &SubscriptionInput<'a>,
    target: Target,
    wanted: &'a DesiredSubscription,
    fits: bool,
    living: &[LivingSubscription<'_>],
    plan: &mut SubscriptionPlan,
) {
    let SubscriptionInput { memory, rules, now, ledger, .. } = input;
    let now = *now;
    // There may be new events.
    if let Target::Accounting(resource) = target {
        let asked = memory.provider.names.get(&resource).map(|(at, _)| *at);
        let at =
            asked.map_or(now, |asked| asked.saturating_add(spread(rules.intervals.names, resource.name())));
        if at <= now {
            if may_read(input, target, plan) {
                plan.step(ProviderCall::Names(resource), "which events there are");
            }
            return;
        }
        plan.again(at);
    }
    if fits || !is_due(input, target, plan) {
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
        // Planned again with the next names.
        plan.problems.push(format!("{target}: the provider offers none of the events that are wanted"));
        plan.converged = false;
        return;
    }
    let is_crowded =
        memory.refused.second.get(&target).is_some_and(|refusals| *refusals >= MAX_SECOND_REFUSALS);
    let is_active = |one: &&LivingSubscription<'_>| matches!(one.state(), Lifecycle::Active { .. });
    let movable = living
        .iter()
        .filter(is_active)
        .map(LivingSubscription::record)
        .find(|one| misfit(input, wanted, one) == Some(SubscriptionDiff::Address) && one.id.is_some());
    if let Some(one) = movable.filter(|_| target.resource().is_some() && (rules.move_in_place || is_crowded))
    {
        let mut moved = one.clone();
        moved.registration.url.clone_from(&wanted.url);
        moved.enter(SubscriptionPhase::Awaiting, now, MOVED);
        let mut before = vec![SubscriptionChange::Put(Box::new(moved.clone()))];
        before.extend(gaps::open_moved(input, one));
        plan.step_after(before, ProviderCall::Move(Box::new(moved)), SubscriptionDiff::Address.words());
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
    let why = living
        .iter()
        .find_map(|one| misfit(input, wanted, one.record()))
        .map_or("there is none", SubscriptionDiff::words);
    let (connector, nonce) = (input.connector, (input.draw)());
    let (application, fingerprint) = (&wanted.application, wanted.fingerprint.clone());
    let mut intended = Subscription::intended(connector, target, nonce, application, fingerprint, now);
    (intended.registration.url, intended.registration.events) = (url.to_owned(), events);
    let ended = ledger
        .subscriptions
        .values()
        .filter(|one| one.target == target && one.phase == SubscriptionPhase::Ended);
    let (mut given_up, mut forgotten): (Vec<&Subscription>, Vec<_>) = ended
        .filter(|one| one.id.is_none())
        .partition(|one| one.history.iter().any(|note| note.what == GIVEN_UP));
    // A refused one leaves only the cause, which the next one gets again. A refusal of the other address is kept, because it decides which
    // address is used.
    forgotten.retain(|one| {
        one.problem.is_some() && (one.registration.url == url || !wanted.is_at(&one.registration.url))
    });
    // One without an answer may appear later at an old address: its nonce identifies it as ours.
    given_up.sort_by_key(|one| Reverse(one.since));
    forgotten.extend(given_up.into_iter().skip(MAX_GIVEN_UP));
    let mut before: Vec<SubscriptionChange> =
        forgotten.into_iter().map(|one| SubscriptionChange::Forget(one.nonce.clone())).collect();
    before.push(SubscriptionChange::Put(Box::new(intended.clone())));
    plan.step_after(before, ProviderCall::Subscribe(Box::new(intended)), why);
}

/// From when on a secret may be used: once every worker with a recent heartbeat reports it, or after `limits.ready`.
fn ready(input: &SubscriptionInput<'_>, target: Target, wanted: &DesiredSubscription) -> i64 {
    let SubscriptionInput { memory, rules, now, .. } = input;
    let since = memory.secrets.get(&wanted.fingerprint).copied().unwrap_or(*now);
    let knows = |heartbeat: &ReceiverReport| match target {
        Target::Accounting(_) => heartbeat.accounting.contains(&wanted.fingerprint),
        // Secrets of hooks are derived from one.
        Target::Invoicing(_) => heartbeat.invoicing.contains(&wanted.fingerprint),
    };
    if wanted.fingerprint == Fingerprint::of("") {
        return *now;
    }
    let mut workers = input.live_workers().peekable();
    if workers.peek().is_some() && workers.all(knows) {
        *now
    } else {
        since.saturating_add(rules.limits.ready)
    }
}
