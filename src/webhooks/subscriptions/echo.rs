//! Whether an invoicing hook is effective. The list does not tell: the document says that a hook is effective only once its receiver
//! has answered the echo.
//!
//! Every worker writes the echoes that it answers to the state topic, one record for each address. A hook is effective if its
//! address was asked after the intent, or if a notification of its target came by no other hook. At the shared address any echo
//! after the intent counts, because an echo names no hook.
//!
//! While a worker of an earlier version receives, which writes no echoes, a hook that is listed counts as effective.

use model::{Subscription, SubscriptionPhase, Target};

use super::Situation;
use crate::state::subscriptions::SubscriptionState;

/// How much older than the intent an echo may be: clocks of workers differ, and of several echoes within a second one is written.
const SLACK: i64 = 10_000_000;

/// Whether the provider sends the notifications of a hook that it lists.
pub(super) fn is_effective(situation: &Situation<'_>, one: &Subscription) -> bool {
    let ledger = situation.ledger;
    let are_told = situation.receivers().all(|heard| heard.tells_echoes);
    !are_told
        || echoed(ledger, one).is_some()
        || delivered(ledger, one).is_some_and(|at| at > one.intended_at)
}

/// When the address of a hook was last asked for its echo, if that was after the intent.
pub(super) fn echoed(ledger: &SubscriptionState, one: &Subscription) -> Option<i64> {
    let Target::Invoicing(hook) = one.target else { return None };
    let slug = hook.slug();
    let shared = one.url.strip_suffix(&slug).and_then(|rest| rest.strip_suffix('/'));
    // A segment may be named as a hook is.
    let is_own = shared.is_some_and(|shared| !shared.ends_with("/incoming"));
    let echo = ledger.echoes.get(if is_own { &*slug } else { "" });
    echo.map(|echo| echo.received_at).filter(|at| at.saturating_add(SLACK) > one.intended_at)
}

/// When a notification of its target last came, if no other hook can have sent it.
fn delivered(ledger: &SubscriptionState, one: &Subscription) -> Option<i64> {
    let is_other = |other: &Subscription| {
        other.nonce != one.nonce
            && matches!(
                other.phase,
                SubscriptionPhase::Active | SubscriptionPhase::Awaiting | SubscriptionPhase::Ending
            )
    };
    let is_alone = !ledger.living(one.target).any(is_other);
    ledger.traffic(one).filter(|_| is_alone).map(|traffic| traffic.last)
}
