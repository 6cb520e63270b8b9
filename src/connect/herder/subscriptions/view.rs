//! Subscriptions and gaps as REST answers them: the state topic's records with times that people read, and what is
//! wanted beside what is there. Fingerprints of secrets are shown, secrets never.

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
    /// What people want beside the configuration.
    pub wish: Option<WishInfo>,
    /// Where the stream begins.
    pub start: Option<StartInfo>,
    /// What there is, by target; the older one first.
    pub subscriptions: Vec<SubscriptionInfo>,
    /// Declared targets that have none.
    pub missing: Vec<Target>,
}

/// A wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WishInfo {
    /// Counts wishes.
    pub number: u64,
    /// Whether all are to be deleted.
    pub removed: bool,
    /// When.
    pub at: String,
    /// The last one that was done.
    pub done: Option<u64>,
}

impl WishInfo {
    /// A wish, and the last one that was done.
    pub(super) fn of(wish: &SubscriptionCommand, done: Option<SubscriptionCommandDone>) -> Self {
        let SubscriptionCommand { number, removed, at } = *wish;
        Self { number, removed, at: time(at), done: done.map(|done| done.number) }
    }
}

/// Where the stream begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StartInfo {
    /// When every declared target was active for the first time.
    pub at: String,
    /// Each target.
    pub targets: BTreeMap<Target, StartedInfo>,
}

/// Where the stream of one target begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StartedInfo {
    /// With which subscription.
    pub nonce: Nonce,
    /// Since when it is active.
    pub since: String,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionInfo {
    /// What it is for.
    pub target: Target,
    /// The provider's id.
    pub id: Option<String>,
    /// What tells it from every other.
    pub nonce: Nonce,
    /// How far it has come.
    pub phase: &'static str,
    /// Since when.
    pub since: String,
    /// Receiver address.
    pub url: String,
    /// Of its secret.
    pub fingerprint: Fingerprint,
    /// Whether it is what the configuration wants; null where this worker has no `webhook.advertised.url` to tell by.
    pub fits: Option<bool>,
    /// Names of its events.
    pub events: BTreeSet<String>,
    /// When an Acknowledge of it was last accepted.
    pub acknowledged_at: Option<String>,
    /// When a delivery of it was last durable.
    pub last_delivery: Option<String>,
    /// When the provider last said how it stands.
    pub checked_at: Option<String>,
    /// What stands in its way.
    pub problem: Option<String>,
    /// What became of it, oldest first.
    pub history: Vec<NoteInfo>,
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
    /// What would be changed at the provider, in this order as far as order matters.
    pub steps: Vec<StepInfo>,
    /// Whether everything is as it is wanted already.
    pub converged: bool,
    /// What would keep it from being so after these steps.
    pub problems: Vec<String>,
}

/// A change at the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepInfo {
    /// Name of the call.
    pub call: &'static str,
    /// About what.
    pub target: Option<Target>,
    /// About which subscription, where there is one already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Why.
    pub why: String,
}

/// An entry of `GET /connectors/{name}/gaps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GapInfo {
    /// What it is called.
    pub id: String,
    /// Why deliveries may be missing.
    pub cause: &'static str,
    /// Of this target alone.
    pub target: Option<Target>,
    /// Of this company alone.
    pub company: Option<String>,
    /// Nothing is missing from before.
    pub from: String,
    /// Nor from after; null while it goes on.
    pub to: Option<String>,
    /// When it was found.
    pub opened_at: String,
    /// Whether somebody has to care.
    pub state: &'static str,
    /// What has happened.
    pub detail: String,
    /// The request to read again what it may have cost.
    pub repair: Option<RepairInfo>,
}

/// The request to read again what a gap may have cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairInfo {
    /// How far it has come.
    pub state: RepairState,
    /// When it was asked for.
    pub requested_at: String,
}

impl From<&Repair> for RepairInfo {
    fn from(repair: &Repair) -> Self {
        Self { state: repair.state, requested_at: time(repair.requested_at) }
    }
}

/// What a view of subscriptions is made of beside the ledger.
#[derive(Debug)]
pub(super) struct Declaration<'a> {
    pub(super) connector: &'a str,
    pub(super) manage: bool,
    pub(super) advertised_url: Option<String>,
    /// Declared targets, whether or not people want them removed for now.
    pub(super) targets: &'a BTreeSet<Target>,
    /// Subscriptions that are what the configuration wants; `None` where this worker cannot say.
    pub(super) fitting: Option<&'a BTreeSet<Nonce>>,
}

/// Subscriptions as they stand; with `all` those that have ended too.
pub(super) fn subscriptions(
    declared: &Declaration<'_>,
    ledger: &SubscriptionState,
    all: bool,
) -> SubscriptionsInfo {
    let is_removed = ledger.wish.as_ref().is_some_and(|wish| wish.removed);
    let is_declared = |target: &Target| !is_removed && declared.targets.contains(target);
    let fits = |one: &Subscription| match is_declared(&one.target) {
        false => Some(false),
        true => declared.fitting.map(|fitting| fitting.contains(&one.nonce)),
    };
    // A target without a subscription shows the problem of the one that ended last.
    let ended = ledger.subscriptions.values().filter(|one| one.problem.is_some() && !one.phase.may_live());
    let mut ended: Vec<&Subscription> = ended.collect();
    ended.sort_by_key(|one| (one.since, Reverse(&one.nonce)));
    let last: BTreeMap<Target, &Nonce> = ended.into_iter().map(|one| (one.target, &one.nonce)).collect();
    let is_refusal = |one: &Subscription| {
        last.get(&one.target) == Some(&&one.nonce)
            && is_declared(&one.target)
            && ledger.living(one.target).next().is_none()
    };
    let shown = ledger.subscriptions.values().filter(|one| all || one.phase.may_live() || is_refusal(one));
    let mut shown: Vec<&Subscription> = shown.collect();
    shown.sort_by_key(|one| (one.target, one.intended_at, &one.nonce));
    let missing = declared.targets.iter().filter(|target| is_declared(target));
    let start = ledger.start.as_ref().map(|start| {
        let started = |(target, it): (&Target, &model::TargetStart)| {
            (*target, StartedInfo { nonce: it.nonce.clone(), since: time(it.since) })
        };
        StartInfo { at: time(start.at), targets: start.targets.iter().map(started).collect() }
    });
    SubscriptionsInfo {
        connector: declared.connector.to_owned(),
        manage: declared.manage,
        advertised_url: declared.advertised_url.clone(),
        wish: ledger.wish.as_ref().map(|wish| WishInfo::of(wish, ledger.done)),
        start,
        subscriptions: shown.into_iter().map(|one| subscription(one, ledger, fits(one))).collect(),
        missing: missing.filter(|target| ledger.living(**target).next().is_none()).copied().collect(),
    }
}

fn subscription(one: &Subscription, ledger: &SubscriptionState, fits: Option<bool>) -> SubscriptionInfo {
    let told = one.id.as_ref().and_then(|id| ledger.acknowledges.get(id)).map(|told| told.received_at);
    SubscriptionInfo {
        target: one.target,
        id: one.id.clone(),
        nonce: one.nonce.clone(),
        phase: one.phase.name(),
        since: time(one.since),
        url: one.url.clone(),
        fingerprint: one.fingerprint.clone(),
        fits: if one.phase == SubscriptionPhase::Ended { Some(false) } else { fits },
        events: one.events.clone(),
        acknowledged_at: one.acknowledged_at.max(told).map(time),
        last_delivery: ledger.last_delivery(one).map(time),
        checked_at: one.checked_at.map(time),
        problem: one.problem.clone(),
        history: one
            .history
            .iter()
            .map(|note| NoteInfo { at: time(note.at), what: note.what.clone() })
            .collect(),
    }
}

/// Gaps that somebody has to care about, oldest first; with `all` those that are over too.
pub(super) fn gaps(ledger: &SubscriptionState, all: bool) -> Vec<GapInfo> {
    let shown = ledger.gaps.values().filter(|gap| all || !gap.state.is_over());
    let mut shown: Vec<&Gap> = shown.collect();
    shown.sort_by_key(|gap| (gap.opened_at, gap.id()));
    shown.into_iter().map(|one| gap(one, ledger)).collect()
}

/// One gap.
pub(super) fn gap(gap: &Gap, ledger: &SubscriptionState) -> GapInfo {
    let id = gap.id();
    GapInfo {
        repair: ledger.repairs.get(&id).map(RepairInfo::from),
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
