//! What follows from the ledger alone: which records are removed, and since when the stream of a prefix is complete. A `RecordSource`
//! waits for that start (`records/stream.rs`) before it relies on events alone.

use std::collections::BTreeMap;

use model::{StreamStart, SubscriptionPhase, TargetStart};

use super::{SubscriptionInput, SubscriptionPlan};
use crate::state::subscriptions::SubscriptionChange;

/// Removes subscriptions that ended long ago, and heartbeats of workers that are gone.
pub(super) fn forget(input: &SubscriptionInput<'_>, plan: &mut SubscriptionPlan) {
    let SubscriptionInput { ledger, rules, now, .. } = input;
    let old = now.saturating_sub(rules.limits.ended);
    for one in
        ledger.subscriptions.values().filter(|one| one.phase == SubscriptionPhase::Ended && one.since < old)
    {
        plan.changes.push(SubscriptionChange::Forget(one.nonce.clone()));
        plan.changes.extend(one.id.clone().map(SubscriptionChange::ForgetAcknowledge));
    }
    let silent = ledger.heard.values().filter(|heartbeat| heartbeat.at < old);
    plan.changes.extend(silent.map(|heartbeat| SubscriptionChange::ForgetHeard(heartbeat.worker.clone())));
}

/// The stream starts once every declared resource was active; for a recreated subscription it starts again.
pub(super) fn start(input: &SubscriptionInput<'_>, plan: &mut SubscriptionPlan) {
    let SubscriptionInput { connector, wanted, ledger, now, .. } = input;
    let mut targets = BTreeMap::new();
    let known = ledger.start.as_ref();
    for target in wanted.keys().filter(|target| target.resource().is_some()) {
        // The oldest covers the others.
        let oldest = ledger
            .active(*target)
            .filter_map(|one| Some((one.times.active_since?, one)))
            .min_by_key(|(since, _)| *since);
        let before = known.and_then(|start| start.targets.get(target));
        match (oldest, before) {
            (Some((since, one)), _) => {
                let is_same = before.is_some_and(|before| before.nonce == one.nonce);
                let since = before.filter(|_| is_same).map_or(since, |before| before.since.min(since));
                targets.insert(*target, TargetStart { nonce: one.nonce.clone(), since });
            }
            // What is missing meanwhile is covered by a gap.
            (None, Some(before)) => drop(targets.insert(*target, before.clone())),
            (None, None) => return,
        }
    }
    if targets.is_empty() {
        // All subscriptions are gone: the next ones start a new stream.
        plan.changes.extend(known.map(|_| SubscriptionChange::ForgetStart));
        return;
    }
    let at = known.map_or(*now, |start| start.at);
    let start = StreamStart { connector: (*connector).to_owned(), at, targets };
    if known != Some(&start) {
        plan.changes.push(SubscriptionChange::Start(start));
    }
}
