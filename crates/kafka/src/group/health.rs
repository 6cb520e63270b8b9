//! The health of a membership: whether the member can act on all its partitions, and if not, since when and why.
//!
//! A member is healthy while it is in the group and owns all assigned partitions with a running lease; without partitions it
//! needs no lease. Every rebalance is a short outage.

use std::time::{Duration, Instant, SystemTime};

/// A member cannot act on all its assigned partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipOutage {
    /// For how long already.
    pub lasted: Duration,
    /// Since when, by the system clock.
    pub since: SystemTime,
    /// The last error: why the group refuses this member, a claim is not written or the lease not renewed. `None` if there was
    /// no error, only silence.
    pub reason: Option<String>,
    /// Partitions that are assigned and not owned yet.
    pub unclaimed: usize,
    /// Whether the member is in the group.
    pub joined: bool,
    /// Whether the member has never been healthy before.
    pub is_first: bool,
}

/// Rebalances that a member has taken part in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rebalances {
    /// Completed ones since it first joined.
    pub completed: u64,
    /// When the last one completed.
    pub last: Option<SystemTime>,
    /// The resulting generation of the group: Kafka Connect's `epoch`.
    pub generation: Option<i32>,
    /// Whether one is in progress, as far as this member knows.
    pub under_way: bool,
    /// Those whose start this member noticed: only they have a duration.
    pub timed: u32,
    /// Their total duration.
    pub took: Duration,
    /// The longest of them.
    pub longest: Duration,
}

/// The state behind both.
#[derive(Debug, Default)]
pub(super) struct MembershipHealth {
    /// The member is in the group.
    pub(super) joined: bool,
    pub(super) rebalances: Rebalances,
    /// When the rebalance in progress started.
    begun: Option<Instant>,
    /// The last failure that may explain an outage.
    pub(super) reason: Option<String>,
    /// It has been healthy before.
    was_healthy: bool,
    /// Since when it has been unhealthy, by [`boot_clock`](base::boot_clock).
    failing_since: Option<Duration>,
}

impl MembershipHealth {
    pub(super) fn new(now: Duration) -> Self {
        let rebalances = Rebalances { under_way: true, ..Rebalances::default() };
        Self { rebalances, begun: Some(Instant::now()), failing_since: Some(now), ..Self::default() }
    }

    /// A rebalance has completed.
    pub(super) fn rebalanced(&mut self, generation: Option<i32>) {
        self.joined = true;
        let rebalances = &mut self.rebalances;
        if let Some(begun) = self.begun.take() {
            let took = begun.elapsed();
            rebalances.timed = rebalances.timed.saturating_add(1);
            rebalances.took = rebalances.took.saturating_add(took);
            rebalances.longest = rebalances.longest.max(took);
        }
        rebalances.completed += 1;
        rebalances.last = Some(SystemTime::now());
        rebalances.generation = generation;
        rebalances.under_way = false;
    }

    /// A rebalance is in progress.
    pub(super) fn rebalancing(&mut self) {
        self.rebalances.under_way = true;
        self.begun.get_or_insert_with(Instant::now);
    }

    /// No rebalance is in progress.
    pub(super) fn rebalance_over(&mut self) {
        (self.rebalances.under_way, self.begun) = (false, None);
    }

    /// The group has dropped this member.
    pub(super) fn lost(&mut self) {
        self.joined = false;
        self.rebalancing();
    }

    /// Updates the health; `since` is when it became unhealthy, if it is.
    pub(super) fn update(&mut self, well: bool, since: Duration) {
        if well {
            (self.failing_since, self.reason, self.was_healthy) = (None, None, true);
        } else {
            self.failing_since.get_or_insert(since);
        }
    }

    pub(super) fn outage(&self, now: Duration, unclaimed: usize) -> Option<MembershipOutage> {
        let lasted = now.saturating_sub(self.failing_since?);
        Some(MembershipOutage {
            lasted,
            since: SystemTime::now().checked_sub(lasted).unwrap_or(SystemTime::UNIX_EPOCH),
            reason: self.reason.clone(),
            unclaimed,
            joined: self.joined,
            is_first: !self.was_healthy,
        })
    }
}
