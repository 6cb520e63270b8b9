//! What the outcome of a call means for the ledger and for this process.

use url::Url;

use model::{
    AccountingResource, Fingerprint, GapCause, Nonce, Quote, Subscription, SubscriptionPhase, Target,
};

use super::{
    CallOutcome, PlannerMemory, ProviderCall, SubscriptionInput, WebhookSnapshot, chance, gaps,
    history::{ACTIVE, ENABLED, MOVE_ANSWERED, MOVED, REFUSED},
    hooks::listed,
    lifecycle::MAX_ENABLE_ATTEMPTS,
};
use crate::state::subscriptions::SubscriptionChange;

/// What `responseState` says after a success, where the provider's API documentation says so.
mod state {
    pub(super) const SUBSCRIBED: i64 = 3;
    pub(super) const DELETED: i64 = 5;
    pub(super) const STATUS: i64 = 7;
}

/// What is to be written after a call, and what this process remembers from then on. The input is that of now; its ledger contains what
/// was written before the call.
#[must_use]
pub fn settle(
    input: &SubscriptionInput<'_>,
    call: &ProviderCall,
    outcome: &CallOutcome,
) -> (Vec<SubscriptionChange>, PlannerMemory) {
    let (now, mut remembered) = (input.now, input.memory.clone());
    let memory = &mut remembered;
    let mut changes = LedgerChanges { input, list: Vec::new() };
    let went_well = match (call, outcome) {
        (ProviderCall::Names(resource), CallOutcome::Names(names)) => {
            memory.provider.names.insert(*resource, (now, names.clone()));
            true
        }
        (ProviderCall::Subscribe(one), outcome) => subscribed(&mut changes, one, outcome, memory),
        (ProviderCall::Read(one), CallOutcome::Seen(seen)) => {
            read(&mut changes, one, seen, memory);
            true
        }
        (
            ProviderCall::Read(one) | ProviderCall::Enable(one) | ProviderCall::Move(one),
            CallOutcome::Gone,
        ) => {
            lost(&mut changes, one, "the provider does not know it any more");
            true
        }
        (ProviderCall::Identify { resource, id }, CallOutcome::Seen(seen)) => {
            identified(&mut changes, *resource, id, seen, memory);
            true
        }
        (ProviderCall::Identify { resource, id }, CallOutcome::Gone) => {
            memory.foreign.insert(id.clone(), Some(*resource));
            changes.list.push(SubscriptionChange::ForgetAcknowledge(id.clone()));
            true
        }
        (ProviderCall::Enable(one), outcome) => enabled(&mut changes, one, outcome, memory),
        (ProviderCall::Move(one), outcome) => moved(&mut changes, one, outcome),
        (ProviderCall::Delete(one), outcome) => deleted(&mut changes, one, outcome),
        (ProviderCall::List { planned }, CallOutcome::Listed(hooks)) => {
            memory.provider.listed = Some(*planned);
            listed(&mut changes, hooks, *planned);
            true
        }
        _ => false,
    };
    if let (Some(nonce), false) = (call.nonce(), went_well) {
        changes.problem(nonce, outcome);
    }
    if let (ProviderCall::List { .. }, false) = (call, went_well) {
        changes.unlisted(outcome);
    }
    let text = format!("{}{now}", call.nonce().map_or("", Nonce::as_str));
    let tries = match (call, call.target()) {
        (ProviderCall::Identify { id, .. }, _) => memory.retries.unknown_ids.entry(id.clone()).or_default(),
        // An answered read call says nothing about refused changes.
        (_, Some(target)) if call.is_read_only() => memory.retries.reads.entry(target).or_default(),
        (_, Some(target)) => memory.retries.changes.entry(target).or_default(),
        (_, None) => &mut memory.retries.list,
    };
    if went_well {
        *tries = super::RetryState::default();
    } else {
        tries.failed(now, input.rules.backoff, chance(&text));
    }
    (changes.list, remembered)
}

/// Changes that add up.
pub(super) struct LedgerChanges<'a, 'b> {
    pub(super) input: &'a SubscriptionInput<'b>,
    list: Vec<SubscriptionChange>,
}

impl LedgerChanges<'_, '_> {
    /// The current record of a subscription.
    fn current(&self, one: &Subscription) -> Subscription {
        self.input.ledger.subscriptions.get(&one.nonce).unwrap_or(one).clone()
    }

    pub(super) fn put(&mut self, one: Subscription) {
        self.list.push(SubscriptionChange::Put(Box::new(one)));
    }

    pub(super) fn gap(&mut self, one: &Subscription, cause: GapCause, detail: &str) {
        self.list.extend(gaps::open(self.input, one, cause, detail));
    }

    /// Shows on every invoicing hook why the list cannot be read. The next list removes it.
    fn unlisted(&mut self, outcome: &CallOutcome) {
        let words = words(outcome);
        for one in self.input.ledger.subscriptions.values() {
            let is_hook = matches!(one.target, Target::Invoicing(_)) && one.phase.may_live();
            if is_hook && one.problem.as_deref() != Some(&words) {
                self.list.push(SubscriptionChange::Put(Box::new(Subscription {
                    problem: Some(words.clone()),
                    ..one.clone()
                })));
            }
        }
    }

    /// Shows the problem of a subscription, once.
    fn problem(&mut self, nonce: &Nonce, outcome: &CallOutcome) {
        let put = self
            .list
            .iter()
            .position(|change| matches!(change, SubscriptionChange::Put(one) if one.nonce == *nonce));
        let known = match put {
            Some(at) => match self.list.remove(at) {
                SubscriptionChange::Put(one) => Some(*one),
                _ => None,
            },
            None => self.input.ledger.subscriptions.get(nonce).cloned(),
        };
        let Some(mut one) = known else { return };
        let words = words(outcome);
        let is_new = one.problem.as_deref() != Some(&words);
        if is_new {
            one.note(self.input.now, words.clone());
            one.problem = Some(words);
        }
        if is_new || put.is_some() {
            self.put(one);
        }
    }
}

/// The problem of a call that did not succeed, for people.
fn words(outcome: &CallOutcome) -> String {
    match outcome {
        CallOutcome::Failed { words, .. } => words.clone(),
        CallOutcome::Done { errors, .. } if !errors.is_empty() => {
            format!("the provider says: {}", Quote(&errors.join("; ")))
        }
        CallOutcome::Done { state: Some(state), .. } => {
            format!("the provider answered responseState {state}, which is not known here")
        }
        CallOutcome::Done { .. } => "the provider answered without saying what it did".to_owned(),
        CallOutcome::Gone => "the provider says that there is no such thing".to_owned(),
        CallOutcome::Names(_) | CallOutcome::Seen(_) | CallOutcome::Listed(_) => {
            "the provider answered something else than it was asked for".to_owned()
        }
    }
}

fn subscribed(
    changes: &mut LedgerChanges<'_, '_>,
    one: &Subscription,
    outcome: &CallOutcome,
    memory: &mut PlannerMemory,
) -> bool {
    let now = changes.input.now;
    let mut one = changes.current(one);
    // Its Acknowledge may have come before the answer.
    if one.phase != SubscriptionPhase::Intended {
        return true;
    }
    match outcome {
        CallOutcome::Done { id: Some(id), errors, state } => {
            memory.refused.second.remove(&one.target);
            one.id = Some(id.clone());
            one.enter(SubscriptionPhase::Awaiting, now, "subscribed");
            let is_known = errors.is_empty() && matches!(state, None | Some(state::SUBSCRIBED));
            if !is_known {
                one.problem = Some(words(outcome));
                one.note(now, words(outcome));
            }
            changes.put(one);
            // It exists, whatever else was said; it is read next.
            true
        }
        // An answer without the id of a hook is a success: the list has the id.
        CallOutcome::Done { id: None, errors, .. } if errors.is_empty() => {
            matches!(one.target, Target::Invoicing(_))
        }
        CallOutcome::Failed { acted: true, .. } => false,
        CallOutcome::Done { .. } | CallOutcome::Failed { .. } | CallOutcome::Gone => {
            let refused =
                matches!(outcome, CallOutcome::Done { .. } | CallOutcome::Failed { refused: true, .. });
            let has_twin = changes.input.ledger.living(one.target).any(|other| other.nonce != one.nonce);
            if refused && has_twin {
                *memory.refused.second.entry(one.target).or_default() += 1;
            }
            one.enter(SubscriptionPhase::Ended, now, if refused { REFUSED } else { "it was not made" });
            changes.put(one);
            false
        }
        CallOutcome::Names(_) | CallOutcome::Seen(_) | CallOutcome::Listed(_) => false,
    }
}

/// Whether two spellings are of one address.
fn is_same_address(one: &str, other: &str) -> bool {
    one == other || matches!((Url::parse(one), Url::parse(other)), (Ok(one), Ok(other)) if one == other)
}

/// Makes a subscription what the provider says it is.
fn take_over(one: &mut Subscription, seen: &WebhookSnapshot, acknowledged: Option<i64>) {
    // The declared values stay: if the provider spells an address differently or has other events, that is shown as a problem and not
    // changed again and again.
    let registration = &mut one.registration;
    let elsewhere = seen.url.as_ref().filter(|url| !is_same_address(url, &registration.url));
    // One that was active before was moved by others, or its move failed.
    let was_active = matches!(one.phase, SubscriptionPhase::Active | SubscriptionPhase::Disabled)
        || one.history.iter().any(|note| note.what == ACTIVE || note.what == MOVED);
    match elsewhere {
        None => registration.spelled = None,
        Some(url) if registration.spelled.as_ref() == Some(url) => {}
        Some(url) if was_active || registration.url.is_empty() => {
            (registration.url, registration.spelled) = (url.clone(), None);
        }
        Some(url) => registration.spelled = Some(url.clone()),
    }
    if registration.events.is_empty() {
        registration.events.clone_from(&seen.events);
    }
    let differ = !seen.events.is_empty() && seen.events != registration.events;
    one.problem = match &registration.spelled {
        Some(url) => Some(format!("the provider registered {url}, which is not the requested address")),
        None => differ.then(|| "the provider registered other events than were requested".to_owned()),
    };
    one.times.acknowledged_at = one.times.acknowledged_at.max(acknowledged);
}

fn read(
    changes: &mut LedgerChanges<'_, '_>,
    asked: &Subscription,
    seen: &WebhookSnapshot,
    memory: &mut PlannerMemory,
) {
    let input = changes.input;
    let (now, before) = (input.now, changes.current(asked));
    let mut one = before.clone();
    if one.phase == SubscriptionPhase::Ending && !seen.deleted {
        one.times.checked_at = Some(now);
        return changes.put(one);
    }
    if one.phase == SubscriptionPhase::Ended {
        return;
    }
    if seen.deleted {
        return lost(changes, asked, "the provider has deleted it");
    }
    let acknowledged = one.id.as_ref().and_then(|id| input.ledger.acknowledges.get(id));
    take_over(&mut one, seen, acknowledged.map(|one| one.received_at));
    one.times.checked_at = Some(now);
    one.times.last_delivery = input.ledger.last_delivery(&one);
    match (seen.active, one.phase) {
        (Some(true), SubscriptionPhase::Active) => {
            // It was enabled and has stayed active, so its failed attempts no longer count.
            memory.refused.enable.remove(&one.nonce);
        }
        (Some(true), _) => {
            one.enter(SubscriptionPhase::Active, now, ACTIVE);
        }
        (Some(false), SubscriptionPhase::Active) => {
            one.enter(SubscriptionPhase::Disabled, now, "the provider has disabled it");
            changes.gap(&before, GapCause::Disabled, "the provider has disabled the subscription");
        }
        (Some(false), _) => {}
        (None, _) => one.problem = Some("the provider does not say whether it is active".to_owned()),
    }
    changes.put(one);
}

pub(super) fn lost(changes: &mut LedgerChanges<'_, '_>, asked: &Subscription, detail: &str) {
    let now = changes.input.now;
    let mut one = changes.current(asked);
    if one.phase == SubscriptionPhase::Ended {
        return;
    }
    // One that was to be deleted is expected to be gone.
    if matches!(one.phase, SubscriptionPhase::Active | SubscriptionPhase::Disabled) {
        changes.gap(&one, GapCause::Lost, detail);
    }
    one.enter(SubscriptionPhase::Ended, now, detail);
    changes.put(one);
}

/// An id that was not in the ledger: it is ours if its nonce is in the ledger for this target, or if it has a nonce and one of our
/// addresses.
fn identified(
    changes: &mut LedgerChanges<'_, '_>,
    resource: AccountingResource,
    id: &str,
    seen: &WebhookSnapshot,
    memory: &mut PlannerMemory,
) {
    let SubscriptionInput { ledger, now, connector, .. } = *changes.input;
    let target = Target::Accounting(resource);
    let ours = seen.name.as_deref().and_then(Nonce::split).filter(|(_, nonce)| {
        let is_known = ledger.subscriptions.get(nonce).is_some_and(|one| one.target == target);
        is_known || seen.url.as_deref().is_some_and(|url| is_address(changes.input, target, url))
    });
    let Some((application, nonce)) = ours.filter(|_| !seen.deleted) else {
        memory.foreign.insert(id.to_owned(), Some(resource));
        changes.list.push(SubscriptionChange::ForgetAcknowledge(id.to_owned()));
        return;
    };
    let acknowledged = ledger.acknowledges.get(id).map(|one| one.received_at);
    let mut one = match ledger.subscriptions.get(&nonce) {
        // Two with one nonce exist only if the name was copied by others.
        Some(known) if known.id.as_deref().is_some_and(|known| known != id) => {
            memory.foreign.insert(id.to_owned(), Some(resource));
            return;
        }
        Some(known) => known.clone(),
        None => adopted(connector, target, nonce, application, now),
    };
    one.id = Some(id.to_owned());
    take_over(&mut one, seen, acknowledged);
    one.times.checked_at = Some(now);
    let phase =
        if seen.active == Some(true) { SubscriptionPhase::Active } else { SubscriptionPhase::Awaiting };
    one.enter(phase, now, "found by what it sends");
    changes.put(one);
}

/// A subscription of ours that the ledger does not have. Its secret is unknown, so another one will replace it.
pub(super) fn adopted(
    connector: &str,
    target: Target,
    nonce: Nonce,
    application: &str,
    now: i64,
) -> Subscription {
    // No secret has this fingerprint: all are longer.
    let fingerprint = Fingerprint::of("\0");
    Subscription::intended(connector, target, nonce, application, fingerprint, now)
}

/// Whether an address is, or was, one of ours for a target.
pub(super) fn is_address(input: &SubscriptionInput<'_>, target: Target, url: &str) -> bool {
    let known = input.ledger.subscriptions.values().filter(|one| one.target == target);
    let wanted = input.wanted.get(&target);
    wanted.is_some_and(|wanted| wanted.is_at(url)) || known.into_iter().any(|one| one.registration.url == url)
}

fn enabled(
    changes: &mut LedgerChanges<'_, '_>,
    one: &Subscription,
    outcome: &CallOutcome,
    memory: &mut PlannerMemory,
) -> bool {
    let now = changes.input.now;
    match outcome {
        CallOutcome::Done { state: Some(state::STATUS) | None, errors, .. } if errors.is_empty() => {
            let tries = memory.refused.enable.entry(one.nonce.clone()).or_default();
            // A success that does not last counts as a failure.
            *tries += 1;
            let mut one = changes.current(one);
            one.note(now, ENABLED);
            // It is read next, and the answer decides.
            one.times.checked_at = None;
            changes.put(one);
            true
        }
        CallOutcome::Done { .. } | CallOutcome::Failed { refused: true, .. } => {
            let tries = memory.refused.enable.entry(one.nonce.clone()).or_default();
            *tries = (*tries + 1).min(MAX_ENABLE_ATTEMPTS);
            false
        }
        _ => false,
    }
}

fn moved(changes: &mut LedgerChanges<'_, '_>, one: &Subscription, outcome: &CallOutcome) -> bool {
    let now = changes.input.now;
    let is_refused = match outcome {
        // The provider's API documentation shows no answer of this call, so any that complains of nothing is a success.
        CallOutcome::Done { errors, .. } => !errors.is_empty(),
        CallOutcome::Seen(_) => false,
        _ => true,
    };
    // It is read next, moved or not, which shows its address.
    let mut one = changes.current(one);
    one.times.checked_at = None;
    one.note(now, if is_refused { "the move was not answered" } else { MOVE_ANSWERED });
    changes.put(one);
    !is_refused
}

fn deleted(changes: &mut LedgerChanges<'_, '_>, one: &Subscription, outcome: &CallOutcome) -> bool {
    let now = changes.input.now;
    match outcome {
        CallOutcome::Gone => {}
        CallOutcome::Done { state: Some(state::DELETED) | None, errors, .. } if errors.is_empty() => {}
        _ => {
            // It may have been deleted before: read it first.
            let mut one = changes.current(one);
            one.times.checked_at = None;
            changes.put(one);
            return false;
        }
    }
    let mut one = changes.current(one);
    one.problem = None;
    one.enter(SubscriptionPhase::Ended, now, "deleted");
    changes.put(one);
    true
}
