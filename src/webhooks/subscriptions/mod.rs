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

/// How long things may take, and how they are done where there is a choice. Times are microseconds.
#[derive(Debug, Clone)]
pub struct SubscriptionRules {
    /// How often the provider is asked how a subscription stands.
    pub poll: i64,
    /// How often names of events are asked for.
    pub names: i64,
    /// How long an Acknowledge may be awaited.
    pub acknowledge: i64,
    /// How long an answer that nobody heard is given to show itself; longer than a request may take.
    pub intent: i64,
    /// How long receivers are given to know a new secret.
    pub ready: i64,
    /// A worker that has not been heard of for so long counts for nothing.
    pub stale: i64,
    /// How long one that is followed by another is left beside it: it may have deliveries to repeat.
    pub overlap: i64,
    /// How long what has ended is remembered.
    pub remember: i64,
    /// What a gap is made longer by at either end.
    pub margin: i64,
    /// Times the longest silence that is plausible; none is implausible without.
    pub silence: Option<f64>,
    /// How long is listened before a silence is judged.
    pub learning: i64,
    /// No silence is implausible that is shorter.
    pub quiet: i64,
    /// Waits after failures: the first, and the longest.
    pub backoff: (i64, i64),
    /// Whether an address is changed without a second subscription.
    pub move_in_place: bool,
}

/// What one process remembers between two plans. Lost with it, and harmless to lose.
#[derive(Debug, Clone, Default)]
pub struct PlannerMemory {
    /// Names of events that the provider offers, and when it said so.
    pub names: BTreeMap<AccountingResource, (i64, BTreeSet<String>)>,
    /// When the hooks of the invoicing API were last listed.
    pub listed: Option<i64>,
    /// Targets that wait after a call that was to change something has failed.
    pub tries: BTreeMap<Target, RetryState>,
    /// Targets that wait after a question has failed: whatever cannot be changed is still looked at.
    pub asks: BTreeMap<Target, RetryState>,
    /// What is no target's and waits after a failure: the list of hooks.
    pub list_tries: RetryState,
    /// Ids that could not be asked about; each waits by itself.
    pub strangers: BTreeMap<String, RetryState>,
    /// Ids that are not ours, whatever they send.
    pub foreign: BTreeMap<String, Option<AccountingResource>>,
    /// How often the provider has refused a second subscription of a target.
    pub crowded: BTreeMap<Target, u32>,
    /// Since when a secret is wanted.
    pub secrets: BTreeMap<Fingerprint, i64>,
    /// How often enabling has failed.
    pub enabling: BTreeMap<Nonce, u32>,
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
        let (now, stale) = (self.now, self.rules.stale);
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
