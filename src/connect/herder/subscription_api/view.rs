//! Subscriptions and gaps as REST shows them: the records of the state topic with readable times, and what is wanted beside
//! what exists. Shows fingerprints of secrets, never secrets.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use serde::Serialize;

use model::{
    Fingerprint, Gap, Nonce, Repair, RepairState, Subscription, SubscriptionCommand, SubscriptionCommandDone,
    SubscriptionPhase, Target,
};

use crate::{connect::herder::shapes::time, state::subscriptions::SubscriptionState};

/// `GET /connectors/{name}/subscriptions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionsInfo {
    /// Name of the connector.
    pub connector: String,
    /// `subscriptions.manage`.
    pub manage: bool,
    /// `webhook.advertised.url` of this worker.
    pub advertised_url: Option<String>,
    /// The last request to apply or remove.
    pub wish: Option<SubscriptionCommandInfo>,
    /// Where the stream starts.
    pub start: Option<StartInfo>,
    /// The subscriptions, by target, oldest first.
    pub subscriptions: Vec<SubscriptionInfo>,
    /// Declared targets without a subscription.
    pub missing: Vec<Target>,
}

/// A request to apply or remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubscriptionCommandInfo {
    /// Number of the request, counted from 1.
    pub number: u64,
    /// Whether all are to be deleted.
    pub removed: bool,
    /// When it was made.
    pub at: String,
    /// Number of the last request that was carried out.
    pub done: Option<u64>,
}

impl SubscriptionCommandInfo {
    /// A request, and the last one that was carried out.
    pub(super) fn of(command: &SubscriptionCommand, done: Option<SubscriptionCommandDone>) -> Self {
        let SubscriptionCommand { number, removed, at } = *command;
        Self { number, removed, at: time(at), done: done.map(|done| done.number) }
    }
}

/// Where the stream starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StartInfo {
    /// When every declared target was first active.
    pub at: String,
    /// By target.
    pub targets: BTreeMap<Target, StartedInfo>,
}

/// Where the stream of one target starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StartedInfo {
    /// Its first subscription.
    pub nonce: Nonce,
    /// Active since then.
    pub since: String,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionInfo {
    /// Its target.
    pub target: Target,
    /// The provider's id.
    pub id: Option<String>,
    /// Distinguishes it from all other subscriptions.
    pub nonce: Nonce,
    /// Its phase.
    pub phase: &'static str,
    /// In that phase since then.
    pub since: String,
    /// What was subscribed.
    #[serde(flatten)]
    pub subscribed: SubscribedInfo,
    /// When it was last in contact with the provider.
    #[serde(flatten)]
    pub contact: ContactInfo,
    /// What keeps it from working.
    pub problem: Option<String>,
    /// Its history, oldest first.
    pub history: Vec<NoteInfo>,
}

/// What was subscribed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubscribedInfo {
    /// Receiver address.
    pub url: String,
    /// Fingerprint of its secret.
    pub fingerprint: Fingerprint,
    /// Whether it is as the configuration wants; null if this worker lacks `webhook.advertised.url` to compare with.
    pub fits: Option<bool>,
    /// Names of its events.
    pub events: BTreeSet<String>,
}

/// When a subscription was last in contact with the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContactInfo {
    /// When its last Acknowledge was accepted.
    pub acknowledged_at: Option<String>,
    /// When its last delivery became durable.
    pub last_delivery: Option<String>,
    /// When the provider last reported its state.
    pub checked_at: Option<String>,
}

/// A line of a subscription's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NoteInfo {
    /// When.
    pub at: String,
    /// What happened.
    pub what: String,
}

/// `GET /connectors/{name}/subscriptions/plan`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PlanInfo {
    /// Changes at the provider, in this order if the order matters.
    pub steps: Vec<StepInfo>,
    /// Whether nothing needs to change.
    pub converged: bool,
    /// What would still be wrong after these steps.
    pub problems: Vec<String>,
}

/// A change at the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepInfo {
    /// Name of the call.
    pub call: &'static str,
    /// Its target.
    pub target: Option<Target>,
    /// The subscription, if it exists already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Why.
    pub why: String,
}

/// An entry of `GET /connectors/{name}/gaps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GapInfo {
    /// Its id.
    pub id: String,
    /// Why deliveries may be missing.
    pub cause: &'static str,
    /// The affected target; null for all.
    pub target: Option<Target>,
    /// The affected company; null for all.
    pub company: Option<String>,
    /// Deliveries before this time are complete.
    pub from: String,
    /// Deliveries after this time are complete; null while the gap is open-ended.
    pub to: Option<String>,
    /// When it was found.
    pub opened_at: String,
    /// Whether a person has to act.
    pub state: &'static str,
    /// What has happened.
    pub detail: String,
    /// The request to read again what may be missing.
    pub repair: Option<RepairInfo>,
}

/// The request to read again what a gap may have lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairInfo {
    /// Its progress.
    pub state: RepairState,
    /// When it was requested.
    pub requested_at: String,
}

impl From<&Repair> for RepairInfo {
    fn from(repair: &Repair) -> Self {
        Self { state: repair.state, requested_at: time(repair.requested_at) }
    }
}

/// The declared side of a view of subscriptions.
#[derive(Debug)]
pub(super) struct DeclaredSubscriptions<'a> {
    pub(super) connector: &'a str,
    pub(super) manage: bool,
    pub(super) advertised_url: Option<String>,
    /// Declared targets, even if people want them removed for now.
    pub(super) targets: &'a BTreeSet<Target>,
    /// Subscriptions that are as the configuration wants; `None` if this worker does not know.
    pub(super) fitting: Option<&'a BTreeSet<Nonce>>,
}

/// The subscriptions; with `all` also those that have ended.
pub(super) fn subscriptions(
    declared: &DeclaredSubscriptions<'_>,
    state: &SubscriptionState,
    all: bool,
) -> SubscriptionsInfo {
    let is_removed = state.requests.is_removed();
    let is_declared = |target: &Target| !is_removed && declared.targets.contains(target);
    let fits = |one: &Subscription| match is_declared(&one.target) {
        false => Some(false),
        true => declared.fitting.map(|fitting| fitting.contains(&one.nonce)),
    };
    // A target without a subscription shows the problem of its last one.
    let ended = state.subscriptions.values().filter(|one| one.problem.is_some() && !one.phase.may_live());
    let mut ended: Vec<&Subscription> = ended.collect();
    ended.sort_by_key(|one| (one.since, Reverse(&one.nonce)));
    let last: BTreeMap<Target, &Nonce> = ended.into_iter().map(|one| (one.target, &one.nonce)).collect();
    let is_refusal = |one: &Subscription| {
        last.get(&one.target) == Some(&&one.nonce)
            && is_declared(&one.target)
            && state.living(one.target).next().is_none()
    };
    let shown = state.subscriptions.values().filter(|one| all || one.phase.may_live() || is_refusal(one));
    let mut shown: Vec<&Subscription> = shown.collect();
    shown.sort_by_key(|one| (one.target, one.times.intended_at, &one.nonce));
    let missing = declared.targets.iter().filter(|target| is_declared(target));
    let command = state.requests.command.as_ref();
    let start = state.start.as_ref().map(|start| {
        let started = |(target, it): (&Target, &model::TargetStart)| {
            (*target, StartedInfo { nonce: it.nonce.clone(), since: time(it.since) })
        };
        StartInfo { at: time(start.at), targets: start.targets.iter().map(started).collect() }
    });
    SubscriptionsInfo {
        connector: declared.connector.to_owned(),
        manage: declared.manage,
        advertised_url: declared.advertised_url.clone(),
        wish: command.map(|command| SubscriptionCommandInfo::of(command, state.requests.done)),
        start,
        subscriptions: shown.into_iter().map(|one| subscription(one, state, fits(one))).collect(),
        missing: missing.filter(|target| state.living(**target).next().is_none()).copied().collect(),
    }
}

fn subscription(one: &Subscription, state: &SubscriptionState, fits: Option<bool>) -> SubscriptionInfo {
    let acknowledged = one
        .id
        .as_ref()
        .and_then(|id| state.acknowledges.get(id))
        .map(|acknowledged| acknowledged.received_at);
    SubscriptionInfo {
        target: one.target,
        id: one.id.clone(),
        nonce: one.nonce.clone(),
        phase: one.phase.name(),
        since: time(one.since),
        subscribed: SubscribedInfo {
            url: one.registration.url.clone(),
            fingerprint: one.registration.fingerprint.clone(),
            fits: if one.phase == SubscriptionPhase::Ended { Some(false) } else { fits },
            events: one.registration.events.clone(),
        },
        contact: ContactInfo {
            acknowledged_at: one.times.acknowledged_at.max(acknowledged).map(time),
            last_delivery: state.last_delivery(one).map(time),
            checked_at: one.times.checked_at.map(time),
        },
        problem: one.problem.clone(),
        history: one
            .history
            .iter()
            .map(|note| NoteInfo { at: time(note.at), what: note.what.clone() })
            .collect(),
    }
}

/// Gaps that are not over, oldest first; with `all` every gap.
pub(super) fn gaps(state: &SubscriptionState, all: bool) -> Vec<GapInfo> {
    let shown = state.gaps.values().filter(|gap| all || !gap.state.is_over());
    let mut shown: Vec<&Gap> = shown.collect();
    shown.sort_by_key(|gap| (gap.opened_at, gap.id()));
    shown.into_iter().map(|one| gap(one, state)).collect()
}

/// One gap.
pub(super) fn gap(gap: &Gap, state: &SubscriptionState) -> GapInfo {
    let id = gap.id();
    GapInfo {
        repair: state.repairs.get(&id).map(RepairInfo::from),
        id,
        cause: gap.cause.name(),
        target: gap.target,
        company: gap.company.as_ref().map(ToString::to_string),
        from: time(gap.from),
        to: gap.to.map(time),
        opened_at: time(gap.opened_at),
        state: gap.state.name(),
        detail: gap.detail.clone(),
    }
}
