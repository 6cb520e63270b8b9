//! The provider of the API documentation, as small as can be, that shares no code with the simulator.

use std::collections::BTreeSet;

use model::{Fingerprint, Subscription, Target};

use crate::webhooks::subscriptions::{CallOutcome, ListedHook, ProviderCall, WebhookSnapshot};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Awaiting,
    Active,
    Disabled,
    Deleted,
}

#[derive(Debug, Clone)]
pub(super) struct Webhook {
    pub(super) id: String,
    pub(super) target: Target,
    pub(super) name: String,
    pub(super) url: String,
    pub(super) fingerprint: Fingerprint,
    pub(super) events: BTreeSet<String>,
    pub(super) state: State,
    pub(super) is_foreign: bool,
    /// The connector in its description.
    pub(super) owner: &'static str,
    /// Whether the receiver was asked for its echo.
    pub(super) is_echoed: bool,
    /// Calls that changed it.
    pub(super) touched: u32,
}

impl Webhook {
    pub(super) fn lives(&self) -> bool {
        self.state != State::Deleted
    }
}

/// What goes wrong with the next call that is no question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is done, and the answer is lost.
    AnswerLost,
    /// It is not done, and the failure does not show that.
    RequestLost,
    /// It is refused.
    Refused,
    /// It is not done, and that is known.
    Unreachable,
}

#[derive(Debug, Default)]
pub(super) struct Provider {
    pub(super) webhooks: Vec<Webhook>,
    pub(super) faults: Vec<Fault>,
    /// Takes no second one of a target.
    pub(super) single: bool,
    /// Takes no hook at another address than this.
    pub(super) only_hooks_at: Option<&'static str>,
    /// Answers as if it took a hook elsewhere, and drops it: its question to that address had no answer.
    pub(super) drops_elsewhere: bool,
    /// Asks for the echo at this address alone; `Some("")` for none.
    pub(super) only_echoes_at: Option<&'static str>,
    /// Takes none of this target.
    pub(super) refuses: Option<Target>,
    /// Has another address for each than was asked for.
    pub(super) renames: bool,
    /// Has another event for each.
    pub(super) adds_event: bool,
    /// Ids that it refuses to show.
    pub(super) unreadable: BTreeSet<String>,
    /// Refuses to enable.
    pub(super) never_enables: bool,
    /// Lists hooks without names.
    pub(super) nameless: bool,
    /// Names of events beside the usual.
    pub(super) more_events: BTreeSet<String>,
    numbers: u32,
}

impl Provider {
    pub(super) fn living(&self, target: Target) -> impl Iterator<Item = &Webhook> {
        self.webhooks.iter().filter(move |one| one.target == target && one.lives() && !one.is_foreign)
    }

    /// A subscription of another system, at its address or at ours.
    pub(super) fn add_foreign(&mut self, target: Target, name: &str, url: &str, secret: &str) -> String {
        self.numbers += 1;
        let id = format!("foreign-{}", self.numbers);
        self.webhooks.push(Webhook {
            id: id.clone(),
            target,
            name: name.to_owned(),
            url: url.to_owned(),
            fingerprint: Fingerprint::of(secret),
            events: BTreeSet::new(),
            state: State::Active,
            is_foreign: true,
            owner: "hooks",
            is_echoed: true,
            touched: 0,
        });
        id
    }

    pub(super) fn set(&mut self, id: &str, state: State) {
        let found = self.webhooks.iter_mut().find(|one| one.id == id);
        found.unwrap_or_else(|| panic!("{id}")).state = state;
    }

    pub(super) fn answer(&mut self, call: &ProviderCall, _now: i64) -> CallOutcome {
        let fault = if call.is_read_only() { None } else { self.faults.pop() };
        let failed = |acted, refused| CallOutcome::Failed { words: format!("{fault:?}"), acted, refused };
        match fault {
            None => self.act(call),
            Some(Fault::AnswerLost) => {
                self.act(call);
                failed(true, false)
            }
            Some(Fault::RequestLost) => failed(true, false),
            Some(Fault::Refused) => failed(false, true),
            Some(Fault::Unreachable) => failed(false, false),
        }
    }

    fn find(&mut self, one: &Subscription) -> Option<&mut Webhook> {
        let id = one.id.as_deref().expect("calls by id have one");
        self.webhooks.iter_mut().find(|webhook| webhook.id == id && webhook.target == one.target)
    }

    fn act(&mut self, call: &ProviderCall) -> CallOutcome {
        let done = |state, id: &str| CallOutcome::Done {
            state: Some(state),
            id: Some(id.to_owned()),
            errors: Vec::new(),
        };
        let wrong =
            |words: &str| CallOutcome::Done { state: Some(0), id: None, errors: vec![words.to_owned()] };
        match call {
            ProviderCall::Names(resource) => {
                let usual = ["Created", "Updated", "ErrorOccurred"]
                    .map(|kind| format!("Svc.{}.{kind}", resource.name()));
                CallOutcome::Names(usual.into_iter().chain(self.more_events.clone()).collect())
            }
            ProviderCall::Subscribe(one) => {
                let is_elsewhere = self.only_hooks_at.is_some_and(|only| one.registration.url != only);
                let is_hook = matches!(one.target, Target::Invoicing(_));
                if is_elsewhere && is_hook && self.drops_elsewhere {
                    self.numbers += 1;
                    return done(3, &format!("w-{}", self.numbers));
                }
                if is_elsewhere && is_hook || self.refuses == Some(one.target) {
                    return CallOutcome::Failed { words: "uri".to_owned(), acted: false, refused: true };
                }
                if self.single && self.living(one.target).next().is_some() {
                    return wrong("too many");
                }
                self.numbers += 1;
                let id = format!("w-{}", self.numbers);
                self.webhooks.push(Webhook {
                    id: id.clone(),
                    target: one.target,
                    name: one.registered_name(),
                    url: if self.renames {
                        format!("{}/x", one.registration.url)
                    } else {
                        one.registration.url.replace(":443", "")
                    },
                    fingerprint: one.registration.fingerprint.clone(),
                    events: one
                        .registration
                        .events
                        .iter()
                        .cloned()
                        .chain(self.adds_event.then(|| "more".to_owned()))
                        .collect(),
                    state: if is_hook { State::Active } else { State::Awaiting },
                    is_foreign: false,
                    owner: "hooks",
                    is_echoed: !is_hook,
                    touched: 0,
                });
                done(3, &id)
            }
            ProviderCall::Read(one) => match self.find(one) {
                Some(webhook) => CallOutcome::Seen(seen(webhook)),
                None => CallOutcome::Gone,
            },
            ProviderCall::Identify { id, .. } if self.unreadable.contains(id) => {
                CallOutcome::Failed { words: "forbidden".to_owned(), acted: false, refused: false }
            }
            ProviderCall::Identify { id, .. } => match self.webhooks.iter().find(|webhook| webhook.id == *id)
            {
                Some(webhook) => CallOutcome::Seen(seen(webhook)),
                None => CallOutcome::Gone,
            },
            ProviderCall::Enable(one) => {
                let never = self.never_enables;
                match self.find(one) {
                    Some(webhook) if webhook.state == State::Disabled && !never => {
                        (webhook.state, webhook.touched) = (State::Active, webhook.touched + 1);
                        done(7, &webhook.id.clone())
                    }
                    Some(_) => wrong("cannot be enabled"),
                    None => CallOutcome::Gone,
                }
            }
            ProviderCall::Move(one) => match self.find(one) {
                Some(webhook) if webhook.state == State::Active => {
                    webhook.url.clone_from(&one.registration.url);
                    (webhook.state, webhook.touched) = (State::Awaiting, webhook.touched + 1);
                    CallOutcome::Done { state: None, id: None, errors: Vec::new() }
                }
                Some(_) => wrong("cannot be moved"),
                None => CallOutcome::Gone,
            },
            ProviderCall::Delete(one) => match self.find(one) {
                Some(webhook) if webhook.lives() => {
                    (webhook.state, webhook.touched) = (State::Deleted, webhook.touched + 1);
                    done(5, &webhook.id.clone())
                }
                Some(_) => wrong("is deleted already"),
                None => CallOutcome::Gone,
            },
            ProviderCall::List { .. } => {
                let hooks = self
                    .webhooks
                    .iter()
                    .filter(|one| matches!(one.target, Target::Invoicing(_)) && one.lives());
                CallOutcome::Listed(hooks.map(|hook| listed(hook, self.nameless)).collect())
            }
        }
    }
}

fn seen(webhook: &Webhook) -> WebhookSnapshot {
    WebhookSnapshot {
        name: Some(webhook.name.clone()),
        url: Some(webhook.url.clone()),
        active: Some(webhook.state == State::Active),
        deleted: webhook.state == State::Deleted,
        events: webhook.events.clone(),
    }
}

fn listed(webhook: &Webhook, is_nameless: bool) -> ListedHook {
    ListedHook {
        id: Some(webhook.id.clone()),
        target: Some(webhook.target),
        url: Some(webhook.url.clone()),
        paused: Some(webhook.state == State::Disabled),
        name: (!is_nameless).then(|| webhook.name.clone()),
        description: (!is_nameless).then(|| format!("{} for {}", webhook.owner, webhook.name)),
    }
}
