//! The states of a subscription, each with what decisions in it need.
//!
//! The record in Kafka is flat: a phase, and fields that only some phases have. What to do with a subscription is decided on
//! [`LivingSubscription`]: the record, and a state that is built from it and has no field that the state does not need. When to list hooks
//! and what the outcome of a call means is decided on the flat phase.

use model::{Subscription, SubscriptionPhase};

use super::SubscriptionInput;

/// How often enabling is tried before a subscription is followed by another.
pub(super) const MAX_ENABLE_ATTEMPTS: u32 = 3;

/// A subscription that has not ended, and its state.
#[derive(Debug, Clone, Copy)]
pub(super) struct LivingSubscription<'a> {
    record: &'a Subscription,
    state: Lifecycle,
}

impl<'a> LivingSubscription<'a> {
    /// `None`: it has ended.
    pub(super) fn new(input: &SubscriptionInput<'_>, record: &'a Subscription) -> Option<Self> {
        Some(Self { record, state: Lifecycle::of(input, record)? })
    }

    pub(super) const fn record(&self) -> &'a Subscription {
        self.record
    }

    pub(super) const fn state(&self) -> Lifecycle {
        self.state
    }

    /// Whether it delivers, or may without another subscription.
    pub(super) const fn is_alive(&self) -> bool {
        !matches!(self.state, Lifecycle::Ending { .. } | Lifecycle::Disabled { can_be_enabled: false, .. })
    }

    /// Order of preference among those that fit.
    pub(super) const fn rank(&self) -> u8 {
        match self.state {
            Lifecycle::Active { .. } => 0,
            Lifecycle::Disabled { .. } => 1,
            Lifecycle::Awaiting { .. } => 2,
            Lifecycle::Intended { .. } => 3,
            Lifecycle::Ending { .. } => 4,
        }
    }
}

/// The state of a subscription that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// The subscribe call may be on its way until then.
    Intended { until: i64 },
    /// At the provider, and no worker has answered its Acknowledge or echo.
    Awaiting { is_overdue: bool, acknowledged_at: Option<i64>, checked_at: Option<i64> },
    /// Deliveries are sent.
    Active { since: Option<i64>, checked_at: Option<i64> },
    /// The provider has disabled or paused it.
    Disabled { can_be_enabled: bool, checked_at: Option<i64> },
    /// To be deleted, and may have been.
    Ending { checked_at: Option<i64> },
}

impl Lifecycle {
    /// `None`: it has ended.
    fn of(input: &SubscriptionInput<'_>, one: &Subscription) -> Option<Self> {
        let SubscriptionInput { ledger, memory, rules, now, .. } = input;
        let checked_at = one.times.checked_at;
        Some(match one.phase {
            SubscriptionPhase::Intended => {
                Self::Intended { until: one.since.saturating_add(rules.limits.intent) }
            }
            SubscriptionPhase::Awaiting => Self::Awaiting {
                is_overdue: one.since.saturating_add(rules.limits.acknowledge) <= *now,
                acknowledged_at: one
                    .id
                    .as_ref()
                    .and_then(|id| ledger.acknowledges.get(id))
                    .map(|acknowledge| acknowledge.received_at),
                checked_at,
            },
            SubscriptionPhase::Active => Self::Active { since: one.times.active_since, checked_at },
            SubscriptionPhase::Disabled => Self::Disabled {
                // No call resumes a hook.
                can_be_enabled: one.target.resource().is_some()
                    && memory
                        .refused
                        .enable
                        .get(&one.nonce)
                        .is_none_or(|attempts| *attempts < MAX_ENABLE_ATTEMPTS),
                checked_at,
            },
            SubscriptionPhase::Ending => Self::Ending { checked_at },
            SubscriptionPhase::Ended => return None,
        })
    }
}
