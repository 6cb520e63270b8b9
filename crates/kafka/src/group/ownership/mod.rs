//! The partitions assigned to a member, which of them it owns, and until when that is certain.
//!
//! A partition has four steps: *unclaimed* (assigned), *writing* (its claim is being written), *written* (the claim is in the
//! log) and *owned* (a commit that began after the claim was written has succeeded). The last step makes the order of claims
//! reliable: a delayed claim that lands behind a successor's never becomes an ownership, because the commit after it fails.
//!
//! - A revoked partition is dropped at once, whatever its step; a claim still in flight for it changes nothing.
//! - The lease starts before the commit is sent, or at the last poll if that was earlier: a thread that does not poll would
//!   not notice a revocation.

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

/// Most of a session that is deducted from the lease, for clock drift and for the time between a check and the action.
const MAX_LEASE_MARGIN: Duration = Duration::from_secs(1);
/// The fraction of a short session that is deducted (one sixth).
const LEASE_MARGIN_SHARE: u32 = 6;

/// See the module's head. Times are those of [`boot_clock`](base::boot_clock).
#[derive(Debug)]
pub(super) struct Ownership {
    /// How long after a successful commit the group certainly reassigns nothing.
    lease: Duration,
    /// When the lease ends, in nanoseconds.
    until: AtomicU64,
    /// When the last poll began, in nanoseconds.
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

    /// The owned partitions, and a signal for every change.
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
        // So that an outage has its true start even if `outage` is not called.
        self.update_health(&mut self.state.lock(), true, now);
    }

    /// Since when and why the member cannot act on all its partitions; `None` while it can. `is_member`: whether the client
    /// still believes it is one.
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

    /// Records a failure that may explain an outage.
    pub(super) fn note_failure(&self, reason: String) {
        self.state.lock().health.reason = Some(reason);
    }

    /// The coordinator answered a commit, sent after `completed` rebalances, that another rebalance is in progress.
    pub(super) fn rebalancing(&self, completed: u64) {
        let health = &mut self.state.lock().health;
        // An answer to a commit from before the last rebalance is outdated.
        if health.rebalances.completed == completed {
            health.rebalancing();
        }
    }

    /// A rebalance has completed and assigned these partitions; often none.
    pub(super) fn rebalanced(&self, generation: Option<i32>, partitions: impl IntoIterator<Item = i32>) {
        self.state.lock().health.rebalanced(generation);
        self.assigned(partitions);
    }

    fn update_health(&self, state: &mut OwnershipState, is_member: bool, now: Duration) {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        let owns_all = state.assigned.values().all(|assigned| matches!(assigned.step, ClaimStep::Owned(_)));
        let leased = state.assigned.is_empty() || until > now;
        // An expired lease ended before this check.
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

    /// These partitions were revoked or lost.
    pub(super) fn revoked(&self, partitions: impl IntoIterator<Item = i32>) {
        let mut state = self.state.lock();
        for partition in partitions {
            if let Some(assigned) = state.assigned.remove(&partition) {
                // Under the lock: while it is held, a live token means that the assignment is still the same.
                assigned.revoked.cancel();
            }
        }
        self.publish(&state);
    }

    /// The group has dropped this member.
    pub(super) fn lost(&self) {
        self.state.lock().health.lost();
    }

    /// Revokes everything and ends the lease.
    pub(super) fn end(&self) {
        let all: Vec<i32> = self.state.lock().assigned.keys().copied().collect();
        self.revoked(all);
        self.end_lease();
        self.lost();
    }

    /// Waits for partitions whose claim must be written. Each is returned once, with a token that its revocation cancels.
    pub(super) async fn unclaimed_partitions(&self) -> Vec<(i32, CancellationToken)> {
        loop {
            let unclaimed = self.state.lock().start_claims();
            if !unclaimed.is_empty() {
                return unclaimed;
            }
            self.newly_assigned.notified().await;
        }
    }

    /// A partition's claim is in the log, at this offset.
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

    /// Blocks until a claim has been written or [`Ownership::wake`] called since the last call, at most this long.
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

    /// The next commit that renews the lease: each partition in turn. `None` without a claim.
    pub(super) fn next_renewal(&self) -> Option<LeaseRenewal> {
        let mut state = self.state.lock();
        let claims: BTreeMap<i32, i64> = state.claims().collect();
        let later = claims.range((Bound::Excluded(state.last_committed), Bound::Unbounded)).next();
        let (partition, claim) = later.or_else(|| claims.first_key_value())?;
        state.last_committed = *partition;
        let completed = state.health.rebalances.completed;
        Some(LeaseRenewal { partition: *partition, claim: *claim, proves: claims, completed })
    }

    /// The commit of this renewal, sent at that time, has succeeded.
    pub(super) fn renewed(&self, renewal: &LeaseRenewal, begun: Duration) {
        let since = begun.min(Duration::from_nanos(self.polled.load(Ordering::Acquire)));
        // Before any partition becomes owned by it, so that owned partitions are always held.
        self.until.store(nanos(since + self.lease), Ordering::Release);
        let mut state = self.state.lock();
        for (partition, claim) in &renewal.proves {
            // Offsets are unique, so this is the same assignment and not a later one.
            if let Some(assigned) = state.assigned.get_mut(partition)
                && assigned.step == ClaimStep::Written(*claim)
            {
                assigned.step = ClaimStep::Owned(*claim);
            }
        }
        state.health.rebalance_over();
        self.publish(&state);
    }

    /// The coordinator no longer knows this member: the lease ends until a commit succeeds again.
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

/// A commit that renews the session and proves that no partition was reassigned.
#[derive(Debug)]
pub(super) struct LeaseRenewal {
    /// The partition to commit.
    pub(super) partition: i32,
    /// Its claim.
    pub(super) claim: i64,
    /// Claims that were in the log before the commit was sent.
    proves: BTreeMap<i32, i64>,
    /// Rebalances completed before it.
    pub(super) completed: u64,
}

#[derive(Debug, Default)]
struct OwnershipState {
    assigned: BTreeMap<i32, AssignedClaim>,
    last_committed: i32,
    /// The renewing thread must check for work.
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

/// A `u64` of nanoseconds holds 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
