//! What a member has been given, which of it is its own, and how long that is sure.
//!
//! A partition goes through four steps: *unclaimed* (assigned), *writing* (its claim is being written), *written* (the claim
//! stands in the log) and *owned* (a commit that began after the claim was written has succeeded). The last step is what
//! makes claims tell who came later: a claim that was delayed, and landed behind a successor's, never becomes ownership,
//! since the commit after it fails.
//!
//! - A revoked partition is forgotten at once, whatever its step; what is still under way for it changes nothing.
//! - The lease runs from before a commit, or from the last poll if that was earlier: a thread that no longer polls cannot
//!   hear that its partitions are wanted elsewhere.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    OwnedPartitions,
    health::{MembershipHealth, MembershipOutage, Rebalances},
};

/// The most of a session that is kept back, for clocks that differ and for what the holder does after asking.
const MAX_LEASE_MARGIN: Duration = Duration::from_secs(1);
/// The part of a short session that is kept back.
const LEASE_MARGIN_SHARE: u32 = 6;

/// See the module's head. Times are those of [`boot_clock`](base::boot_clock).
#[derive(Debug)]
pub(super) struct Ownership {
    /// How long after a sign of life the broker surely has given nothing to others.
    lease: Duration,
    /// Nanoseconds until which the lease runs.
    until: AtomicU64,
    /// Nanoseconds at which the last poll began.
    polled: AtomicU64,
    state: Mutex<OwnershipState>,
    owned: watch::Sender<OwnedPartitions>,
    newly_assigned: Notify,
    woken: Condvar,
}

impl Ownership {
    pub(super) fn new(session: Duration, now: Duration) -> Self {
        Self {
            lease: session - MAX_LEASE_MARGIN.min(session / LEASE_MARGIN_SHARE),
            until: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            state: Mutex::new(OwnershipState {
                health: MembershipHealth::new(now),
                ..OwnershipState::default()
            }),
            owned: watch::Sender::new(OwnedPartitions::default()),
            newly_assigned: Notify::new(),
            woken: Condvar::new(),
        }
    }

    /// The partitions owned, and a signal for every change.
    pub(super) fn owned(&self) -> watch::Receiver<OwnedPartitions> {
        self.owned.subscribe()
    }

    /// Whether a partition is owned and the lease runs.
    pub(super) fn holds(&self, partition: i32, now: Duration) -> bool {
        self.owned.borrow().contains_key(&partition) && !self.left(now).is_zero()
    }

    /// How much longer the lease runs.
    pub(super) fn left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::Acquire)).saturating_sub(now)
    }

    /// A poll begins.
    pub(super) fn polling(&self, now: Duration) {
        self.polled.store(nanos(now), Ordering::Release);
        // So that a lapse nobody asks about has its true beginning.
        self.update_health(&mut self.state.lock(), true, now);
    }

    /// Since when and why not all that was given may be acted on; `None` while it may. `is_member`: whether the client
    /// still believes so.
    pub(super) fn outage(&self, is_member: bool, now: Duration) -> Option<MembershipOutage> {
        let mut state = self.state.lock();
        self.update_health(&mut state, is_member, now);
        let unclaimed = state.assigned.len() - state.owned().count();
        state.health.outage(now, unclaimed)
    }

    /// Rebalances so far.
    pub(super) fn rebalances(&self) -> Rebalances {
        self.state.lock().health.rebalances
    }

    /// Something failed that may explain a lapse.
    pub(super) fn note_failure(&self, reason: String) {
        self.state.lock().health.reason = Some(reason);
    }

    /// The coordinator said, about a commit begun after so many rebalances, that another one is under way.
    pub(super) fn rebalancing(&self, completed: u64) {
        let health = &mut self.state.lock().health;
        // An answer from before the last one is no news.
        if health.rebalances.completed == completed {
            health.rebalancing();
        }
    }

    /// The group has settled on a generation, and gives these; often none.
    pub(super) fn rebalanced(&self, generation: Option<i32>, partitions: impl IntoIterator<Item = i32>) {
        self.state.lock().health.rebalanced(generation);
        self.assigned(partitions);
    }

    fn update_health(&self, state: &mut OwnershipState, is_member: bool, now: Duration) {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        let owns_all = state.assigned.values().all(|assigned| matches!(assigned.step, ClaimStep::Owned(_)));
        let leased = state.assigned.is_empty() || until > now;
        // A lease that has run out did so before anybody looked.
        let ran_out = owns_all && !state.assigned.is_empty() && !until.is_zero();
        let since = if ran_out { until.min(now) } else { now };
        state.health.update(is_member && state.health.joined && owns_all && leased, since);
    }

    fn assigned(&self, partitions: impl IntoIterator<Item = i32>) {
        let mut state = self.state.lock();
        for partition in partitions {
            let before = state.assigned.insert(partition, AssignedClaim::default());
            if let Some(before) = before {
                before.revoked.cancel();
            }
        }
        self.publish(&state);
        drop(state);
        self.newly_assigned.notify_one();
    }

    /// The group takes these, or they are lost.
    pub(super) fn revoked(&self, partitions: impl IntoIterator<Item = i32>) {
        let mut state = self.state.lock();
        for partition in partitions {
            if let Some(assigned) = state.assigned.remove(&partition) {
                // Under the lock, so that whoever holds it and sees the token alive knows the partition is still this one.
                assigned.revoked.cancel();
            }
        }
        self.publish(&state);
    }

    /// The group no longer counts on this member.
    pub(super) fn lost(&self) {
        self.state.lock().health.lost();
    }

    /// Nothing is ours any more.
    pub(super) fn end(&self) {
        let all: Vec<i32> = self.state.lock().assigned.keys().copied().collect();
        self.revoked(all);
        self.end_lease();
        self.lost();
    }

    /// Partitions whose claim is to be written, each with what tells that it no longer is. Each is handed out once.
    pub(super) async fn unclaimed_partitions(&self) -> Vec<(i32, CancellationToken)> {
        loop {
            let unclaimed = self.state.lock().start_claims();
            if !unclaimed.is_empty() {
                return unclaimed;
            }
            self.newly_assigned.notified().await;
        }
    }

    /// A partition's claim stands in the log, at this offset.
    pub(super) fn claimed(&self, partition: i32, revoked: &CancellationToken, claim: i64) {
        let mut state = self.state.lock();
        if !revoked.is_cancelled()
            && let Some(assigned) = state.assigned.get_mut(&partition)
        {
            assigned.step = ClaimStep::Written(claim);
        }
        drop(state);
        self.wake();
    }

    /// Blocks until a claim has been written, or [`Ownership::wake`] was called, since the last call, at most this long.
    pub(super) fn sleep(&self, limit: Duration) {
        let mut state = self.state.lock();
        self.woken.wait_while_for(&mut state, |state| !state.woken, limit);
        state.woken = false;
    }

    /// Ends a [`Ownership::sleep`].
    pub(super) fn wake(&self) {
        self.state.lock().woken = true;
        self.woken.notify_one();
    }

    /// What to commit next as a sign of life: each partition in turn. `None` without a claim.
    pub(super) fn next_renewal(&self) -> Option<LeaseRenewal> {
        let mut state = self.state.lock();
        let claims: BTreeMap<i32, i64> = state.claims().collect();
        let later = claims.range((Bound::Excluded(state.last_committed), Bound::Unbounded)).next();
        let (partition, claim) = later.or_else(|| claims.first_key_value())?;
        state.last_committed = *partition;
        let completed = state.health.rebalances.completed;
        Some(LeaseRenewal { partition: *partition, claim: *claim, proves: claims, completed })
    }

    /// A commit of that renewal, begun at this time, has succeeded.
    pub(super) fn renewed(&self, renewal: &LeaseRenewal, begun: Duration) {
        let since = begun.min(Duration::from_nanos(self.polled.load(Ordering::Acquire)));
        // Before anything becomes ours by it: what is owned is held.
        self.until.store(nanos(since + self.lease), Ordering::Release);
        let mut state = self.state.lock();
        for (partition, claim) in &renewal.proves {
            // An offset is given once, so this is the same assignment and no later one.
            if let Some(assigned) = state.assigned.get_mut(partition)
                && assigned.step == ClaimStep::Written(*claim)
            {
                assigned.step = ClaimStep::Owned(*claim);
            }
        }
        state.health.rebalance_over();
        self.publish(&state);
    }

    /// The broker no longer knows us: nothing is sure until a commit succeeds again.
    pub(super) fn end_lease(&self) {
        self.until.store(0, Ordering::Release);
    }

    fn publish(&self, state: &OwnershipState) {
        let owned: BTreeMap<i32, i64> = state.owned().collect();
        self.owned.send_if_modified(|known| {
            let changed = **known != owned;
            if changed {
                *known = Arc::new(owned);
            }
            changed
        });
    }
}

/// A commit that shows the coordinator that we live, and us that it has given our partitions to nobody.
#[derive(Debug)]
pub(super) struct LeaseRenewal {
    /// The partition to commit.
    pub(super) partition: i32,
    /// Its claim.
    pub(super) claim: i64,
    /// Claims that stood in the log before the commit began.
    proves: BTreeMap<i32, i64>,
    /// Rebalances completed by then.
    pub(super) completed: u64,
}

#[derive(Debug, Default)]
struct OwnershipState {
    assigned: BTreeMap<i32, AssignedClaim>,
    last_committed: i32,
    /// Whoever renews the lease is to look again.
    woken: bool,
    health: MembershipHealth,
}

impl OwnershipState {
    fn start_claims(&mut self) -> Vec<(i32, CancellationToken)> {
        let unclaimed =
            self.assigned.iter_mut().filter(|(_, assigned)| assigned.step == ClaimStep::Unclaimed);
        unclaimed
            .map(|(partition, assigned)| {
                assigned.step = ClaimStep::Writing;
                (*partition, assigned.revoked.clone())
            })
            .collect()
    }

    fn claims(&self) -> impl Iterator<Item = (i32, i64)> {
        self.assigned.iter().filter_map(|(partition, assigned)| match assigned.step {
            ClaimStep::Written(claim) | ClaimStep::Owned(claim) => Some((*partition, claim)),
            ClaimStep::Unclaimed | ClaimStep::Writing => None,
        })
    }

    fn owned(&self) -> impl Iterator<Item = (i32, i64)> {
        self.assigned.iter().filter_map(|(partition, assigned)| match assigned.step {
            ClaimStep::Owned(claim) => Some((*partition, claim)),
            _ => None,
        })
    }
}

#[derive(Debug, Default)]
struct AssignedClaim {
    revoked: CancellationToken,
    step: ClaimStep,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ClaimStep {
    #[default]
    Unclaimed,
    Writing,
    Written(i64),
    Owned(i64),
}

/// 584 years fit.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
