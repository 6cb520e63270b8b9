//! Subscriptions as they are declared against what the provider has: what to do next, and what its outcome means. No I/O.
//!
//! ```text
//! configuration ─▶ wanted ─┐
//! {prefix}.state ─▶ ledger ─┼─▶ plan ─▶ changes (to be written at once)
//! what was asked ─▶ memory ─┘     └──▶ steps: write `before` ─▶ call the provider ─▶ settle ─▶ changes, memory
//! ```
//!
//! The phases of one subscription:
//!
//! ```text
//! Intended ─ id known ─▶ Awaiting ─ the provider says active ─▶ Active ◀─ enabled ─ Disabled (gap)
//!    │ never was               │ not accepted in time (gap)       │ gone (gap), or not wanted any more
//!    └────────────▶ Ended ◀────┴── deleted ── Ending ◀────────────┘
//! ```
//!
//! - An intent is written before a subscription is asked for, with a nonce that stands in its name at the provider. An answer that
//!   nobody heard is found again by it: by the Acknowledge or the deliveries of an id nobody knows, or in the list that the
//!   invoicing API has.
//! - Nothing is deleted or changed that does not carry a nonce of ours and an address of ours; what others have subscribed is
//!   theirs.
//! - No call changes a secret, a set of events or a name, so a subscription that does not fit is followed by a second one, and
//!   deleted once that is active: doubled deliveries, and none missing. An address is changed in the same way, unless the provider
//!   refuses a second one, or people want it otherwise: then there is a gap while the provider waits for the new address.
//! - A hook that is listed is not active before the echo of its address was answered: see `hooks`.
//! - An invoicing hook has an address of its own, or shares one where the provider refuses that: see [`address()`].
//! - Every step may be repeated after a crash at any point: what the provider says decides, never what was written before.
//! - `unsubscribe` is not used: it takes no id, and nobody can know which others have the same words or the same address.
//!
//! On failure a target waits for longer each time, and says why; others go on.

mod call;
mod gaps;
mod hooks;
mod plan;
mod settle;
#[cfg(test)]
mod tests;
mod upkeep;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{AccountingResource, Fingerprint, Heard, Nonce, Target};

pub use self::{
    call::{CallOutcome, ListedHook, PlannedCall, ProviderCall, WebhookSnapshot},
    hooks::{address, owner},
    plan::{SubscriptionPlan, plan},
    settle::settle,
    wanted::{AdvertisedPath, fitting, secret_of, wanted},
};
pub use crate::state::subscriptions::{Change, Ledger};

/// What a configuration wants of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredSubscription {
    /// Receiver address.
    pub url: String,
    /// The other address that deliveries are taken at.
    pub other: Option<OtherAddress>,
    /// Of the secret that its deliveries are to be signed with.
    pub fingerprint: Fingerprint,
    /// Of every secret that receivers know, that one among them.
    pub known: BTreeSet<Fingerprint>,
    /// `application.name`.
    pub application: String,
    /// Endings of the names of events that are wanted; `None` for all there are.
    pub endings: Option<BTreeSet<&'static str>>,
}

/// The second address of an invoicing hook: each has its own and one that all of them share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherAddress {
    /// Used where the provider refuses [`DesiredSubscription::url`].
    Fallback(String),
    /// Not used any more; hooks that are registered there are ours.
    Former(String),
}

impl DesiredSubscription {
    /// The address that is used where the provider refuses [`DesiredSubscription::url`].
    pub(super) fn fallback(&self) -> Option<&str> {
        match &self.other {
            Some(OtherAddress::Fallback(url)) => Some(url),
            Some(OtherAddress::Former(_)) | None => None,
        }
    }

    /// Whether deliveries are taken at this address.
    pub(super) fn is_at(&self, url: &str) -> bool {
        let Some(OtherAddress::Fallback(other) | OtherAddress::Former(other)) = &self.other else {
            return self.url == url;
        };
        self.url == url || other == url
    }

    /// Of the names that the provider offers, those that are wanted. An Acknowledge comes without being asked for.
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
    /// Until a receiver must have accepted a new subscription.
    pub acknowledge: i64,
    /// Until a subscribe call without an answer counts as lost; longer than a request may take.
    pub intent: i64,
    /// Until a new secret is used although a receiver does not report it.
    pub ready: i64,
    /// Until a worker without a heartbeat no longer counts as a receiver.
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
    pub refused: Refusals,
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
    /// After questions. They wait apart from changes, so that a target that cannot be changed is still read.
    pub questions: BTreeMap<Target, RetryState>,
    /// After lists of hooks.
    pub list: RetryState,
    /// After questions about unknown ids.
    pub strangers: BTreeMap<String, RetryState>,
}

/// Calls that the provider refused, or that had no lasting effect.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    /// A second subscription of a target.
    pub second: BTreeMap<Target, u32>,
    /// Enabling a subscription.
    pub enable: BTreeMap<Nonce, u32>,
}

/// Failures in a row, and when the next try is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryState {
    /// So many.
    pub failures: u32,
    /// Not before.
    pub not_before: i64,
}

impl RetryState {
    /// One more; `chance` from 0 to 1 spreads those that failed together.
    fn failed(&mut self, now: i64, (first, longest): (i64, i64), chance: f64) {
        let doubled = first.saturating_mul(1 << self.failures.min(20)).clamp(1, longest.max(1));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(doubled / 2 + ((doubled / 2) as f64 * chance) as i64);
    }
}

/// All that a plan follows from.
pub struct PlanInput<'a> {
    /// Name of the connector.
    pub connector: &'a str,
    /// Who plans, for the gaps that are found.
    pub worker: &'a str,
    /// Microseconds since 1970.
    pub now: i64,
    /// Since when whoever plans runs: a stop that was ordered later is not over.
    pub began: i64,
    /// What the configuration wants; nothing where people want all removed.
    pub wanted: &'a BTreeMap<Target, DesiredSubscription>,
    /// What the state topic says.
    pub ledger: &'a Ledger,
    /// What this process remembers.
    pub memory: &'a PlannerMemory,
    /// How long things may take.
    pub rules: &'a SubscriptionRules,
    /// Draws a nonce.
    pub draw: &'a (dyn Fn() -> Nonce + Sync),
}

impl<'a> PlanInput<'a> {
    /// The receivers that were heard of lately; others count for nothing.
    fn receivers(&self) -> impl Iterator<Item = &'a Heard> {
        let (now, stale) = (self.now, self.rules.limits.stale);
        self.ledger.heard.values().filter(move |heard| heard.at.saturating_add(stale) > now)
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
