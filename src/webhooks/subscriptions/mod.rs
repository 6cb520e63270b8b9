//! Declared subscriptions against what the provider has: what to do next, and what the outcome of a call means. No I/O.
//!
//! ```text
//! configuration ─▶ wanted ───┐
//! {prefix}.state ─▶ ledger ──┼─▶ plan ─▶ changes (written at once)
//! earlier calls ─▶ memory ───┘     └──▶ calls: write `before` ─▶ call the provider ─▶ settle ─▶ changes, memory
//! ```
//!
//! Ledger: the connector's records of `{prefix}.state`, as [`SubscriptionState`].
//!
//! | File | Step |
//! |---|---|
//! | `wanted.rs` | what a configuration declares |
//! | `lifecycle.rs`, `plan.rs` | the state of each subscription, and the next call for each target |
//! | `call.rs` | calls and their outcomes |
//! | `settle.rs` | what an outcome means for the ledger |
//! | `history.rs` | lines of history that code looks for later |
//! | `hooks.rs` | invoicing hooks: addresses, echoes, their list |
//! | `gaps.rs`, `upkeep.rs` | gaps, silences; what is removed, since when a stream is complete (`RecordSource` waits for it) |
//!
//! The phases of one subscription, and the gap that a transition opens, unless another subscription of the target covers it.
//! Two gaps have no transition: `secret` (no active subscription has a configured secret) and `silence`.
//!
//! | from | event | to | gap |
//! |---|---|---|---|
//! | none | a subscribe call is planned | `Intended` | |
//! | none, `Intended`, `Ended` | an Acknowledge or delivery comes by its id, with a name and address of ours | `Awaiting` or `Active` | |
//! | none | the list has a hook with a name and address of ours | `Awaiting` | |
//! | `Intended` | the call is answered with an id | `Awaiting` | |
//! | `Intended` | the call is refused, not made, or without an answer for too long | `Ended` | |
//! | `Intended`, `Ended` | the list has the hook: its echo is missing, it is effective, it is paused | `Awaiting`, `Active`, `Disabled` | |
//! | `Awaiting` | the provider says active; the hook is listed and effective | `Active` | |
//! | `Awaiting` | the hook is paused | `Disabled` | |
//! | `Awaiting` | no worker answers its Acknowledge or echo in time | `Ending` | awaiting |
//! | `Awaiting` | deleted at the provider, or not listed any more | `Ended` | |
//! | `Active` | the provider disables or pauses it | `Disabled` | disabled |
//! | `Active` | its address is changed in place | `Awaiting` | moved |
//! | `Active`, `Disabled` | deleted at the provider, or not listed any more | `Ended` | lost |
//! | `Disabled` | the provider says active; the hook is not paused any more | `Active` | |
//! | `Awaiting`, `Active`, `Disabled` | not declared any more, replaced, or impossible to enable | `Ending` | |
//! | `Ending` | deleted, gone, or not listed any more | `Ended` | |
//!
//! - An intent is written before the subscribe call, with a nonce that becomes part of the subscription's name at the provider. If the
//!   answer is lost, the nonce identifies the subscription: by its Acknowledge, by its deliveries, or in the list of the invoicing API.
//! - Only our subscriptions are deleted or changed. One is ours if its id or nonce is in the ledger, or if it has a nonce and one of our
//!   addresses (a hook also needs the connector's name in its description). An intended hook that is listed without name and nonce is
//!   matched by target and address.
//! - No call changes a secret, a set of events or a name, so a subscription that does not fit is followed by a second one, and deleted
//!   once that is active: duplicates, but no missing delivery. An address is changed in the same way, unless the provider refuses a
//!   second subscription, or `subscriptions.move` says otherwise: then there is a gap while the provider waits for the new address.
//! - A listed hook is not active before the echo of its address was answered: see `hooks`.
//! - An invoicing hook has its own address, or shares one if the provider refuses that: see [`address()`].
//! - Every call may be repeated after a crash at any point: the provider's answer decides, not what was written before.
//! - `unsubscribe` is not used: it takes no id, and may match subscriptions of others.
//!
//! On failure a target waits with a growing backoff and shows the cause; other targets continue.

mod wanted;

mod lifecycle;
mod plan;

mod call;
mod settle;

pub(super) mod history;

mod hooks;

mod gaps;
mod upkeep;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{AccountingResource, Fingerprint, Nonce, ReceiverReport, Target};

pub use self::{
    call::{CallOutcome, ListedHook, PlannedCall, ProviderCall, WebhookSnapshot},
    hooks::{address, owner},
    plan::{SubscriptionPlan, plan},
    settle::settle,
    wanted::{AdvertisedPath, fitting, secret_of, wanted},
};
pub use crate::state::subscriptions::{SubscriptionChange, SubscriptionState};

/// What a configuration declares for one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredSubscription {
    /// Receiver address.
    pub url: String,
    /// The other address that workers accept.
    pub other: Option<OtherAddress>,
    /// Fingerprint of the secret that signs its deliveries.
    pub fingerprint: Fingerprint,
    /// Fingerprints of every secret that this configuration accepts.
    pub known: BTreeSet<Fingerprint>,
    /// `application.name`.
    pub application: String,
    /// Suffixes of the wanted event names; `None`: all events.
    pub endings: Option<BTreeSet<&'static str>>,
}

/// The second address of an invoicing hook, which has its own and one that all hooks share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherAddress {
    /// Used if the provider refuses [`DesiredSubscription::url`].
    Fallback(String),
    /// Not used any more; hooks that are registered there are ours.
    Former(String),
}

impl DesiredSubscription {
    /// The address that is used if the provider refuses [`DesiredSubscription::url`].
    pub(super) fn fallback(&self) -> Option<&str> {
        match &self.other {
            Some(OtherAddress::Fallback(url)) => Some(url),
            Some(OtherAddress::Former(_)) | None => None,
        }
    }

    /// Whether workers accept this address.
    pub(super) fn is_at(&self, url: &str) -> bool {
        let Some(OtherAddress::Fallback(other) | OtherAddress::Former(other)) = &self.other else {
            return self.url == url;
        };
        self.url == url || other == url
    }

    /// The wanted ones of the offered event names. An Acknowledge is sent without being subscribed to.
    #[must_use]
    pub fn events(&self, offered: &BTreeSet<String>) -> BTreeSet<String> {
        let wanted = |name: &&String| match &self.endings {
            None => !name.ends_with("Acknowledge"),
            Some(endings) => endings.iter().any(|ending| name.ends_with(ending)),
        };
        offered.iter().filter(wanted).cloned().collect()
    }
}

/// How the reconciler works: how often it asks, how long it waits, and what it does where there is a choice. Times are microseconds.
#[derive(Debug, Clone)]
pub struct SubscriptionRules {
    /// How often the provider is asked.
    pub intervals: PollIntervals,
    /// How long something may take, or counts.
    pub limits: TimeLimits,
    /// When a silence is implausible; `None`: never.
    pub silence: Option<SilenceRules>,
    /// Added to a gap at either end.
    pub margin: i64,
    /// Waits after failures: the first, and the longest.
    pub backoff: (i64, i64),
    /// Whether an address is changed without a second subscription.
    pub move_in_place: bool,
}

/// How often the provider is asked.
#[derive(Debug, Clone, Copy)]
pub struct PollIntervals {
    /// For the state of each subscription.
    pub poll: i64,
    /// For the names of events.
    pub names: i64,
}

/// How long something may take, or counts.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimits {
    /// Until a worker must have answered the Acknowledge or echo of a new subscription.
    pub acknowledge: i64,
    /// Until a subscribe call without an answer counts as lost; longer than a request may take.
    pub intent: i64,
    /// Until a new secret is used although a worker does not report it.
    pub ready: i64,
    /// Until a worker without a heartbeat no longer counts as one that receives.
    pub stale: i64,
    /// Until a replaced subscription is deleted: it may have deliveries to repeat.
    pub overlap: i64,
    /// Until an ended subscription is removed from the ledger.
    pub ended: i64,
}

/// When a silence is implausible.
#[derive(Debug, Clone, Copy)]
pub struct SilenceRules {
    /// Times the longest silence so far.
    pub factor: f64,
    /// How long deliveries are observed before a silence is judged.
    pub learning: i64,
    /// No shorter silence is implausible.
    pub min: i64,
}

/// What one process remembers between two plans. A restart loses it without harm.
#[derive(Debug, Clone, Default)]
pub struct PlannerMemory {
    /// What the provider said last.
    pub provider: ProviderAnswers,
    /// Waits after failed calls.
    pub retries: Retries,
    /// Calls that the provider refused, or that had no lasting effect.
    pub refused: RefusedCalls,
    /// Ids that deliveries came by and that are not ours.
    pub foreign: BTreeMap<String, Option<AccountingResource>>,
    /// Since when each secret is wanted.
    pub secrets: BTreeMap<Fingerprint, i64>,
}

/// What the provider said last.
#[derive(Debug, Clone, Default)]
pub struct ProviderAnswers {
    /// Names of the events it offers, and when it was asked.
    pub names: BTreeMap<AccountingResource, (i64, BTreeSet<String>)>,
    /// When the hooks of the invoicing API were last listed.
    pub listed: Option<i64>,
}

/// Waits after failed calls.
#[derive(Debug, Clone, Default)]
pub struct Retries {
    /// After calls that change something.
    pub changes: BTreeMap<Target, RetryState>,
    /// After read calls. They wait apart from changes, so that a target that cannot be changed is still read.
    pub reads: BTreeMap<Target, RetryState>,
    /// After lists of hooks.
    pub list: RetryState,
    /// After reads of ids that the ledger does not have.
    pub unknown_ids: BTreeMap<String, RetryState>,
}

/// Calls that the provider refused, or that had no lasting effect.
#[derive(Debug, Clone, Default)]
pub struct RefusedCalls {
    /// A second subscription of a target.
    pub second: BTreeMap<Target, u32>,
    /// Enabling a subscription.
    pub enable: BTreeMap<Nonce, u32>,
}

/// Failures in a row, and the earliest next try.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryState {
    /// Number of failures.
    pub failures: u32,
    /// Microseconds since 1970.
    pub not_before: i64,
}

impl RetryState {
    /// Counts a failure; `chance`, from 0 to 1, spreads targets that failed together.
    fn failed(&mut self, now: i64, (first, longest): (i64, i64), chance: f64) {
        let doubled = first.saturating_mul(1 << self.failures.min(20)).clamp(1, longest.max(1));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(doubled / 2 + ((doubled / 2) as f64 * chance) as i64);
    }
}

/// All inputs of a plan.
pub struct SubscriptionInput<'a> {
    /// Name of the connector.
    pub connector: &'a str,
    /// The worker, which is written into gaps.
    pub worker: &'a str,
    /// Microseconds since 1970.
    pub now: i64,
    /// When the task started: a stop that was ordered later is not over.
    pub began: i64,
    /// What the configuration declares; empty if the operator removes all subscriptions.
    pub wanted: &'a BTreeMap<Target, DesiredSubscription>,
    /// The state topic.
    pub ledger: &'a SubscriptionState,
    /// What earlier calls of this process have shown.
    pub memory: &'a PlannerMemory,
    /// Intervals and limits.
    pub rules: &'a SubscriptionRules,
    /// Invoicing segments of other connectors: hooks at an address below one of these may be theirs.
    pub other_segments: &'a BTreeSet<String>,
    /// Draws a nonce.
    pub draw: &'a (dyn Fn() -> Nonce + Sync),
}

impl<'a> SubscriptionInput<'a> {
    /// Workers with a recent heartbeat.
    fn live_workers(&self) -> impl Iterator<Item = &'a ReceiverReport> {
        let (now, stale) = (self.now, self.rules.limits.stale);
        self.ledger.heard.values().filter(move |heartbeat| heartbeat.at.saturating_add(stale) > now)
    }
}

/// A duration in microseconds.
#[must_use]
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A number from 0 to 1 that follows from a text.
fn chance(text: &str) -> f64 {
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (digest >> 11) as f64 / (1_u64 << 53) as f64
}
