//! How a member stands to its group: whether it may act on all it was given, and if not, since when and why.
//!
//! A member stands well while the group has settled with it and everything it was given is its own, by a running lease;
//! one that was given nothing stands well without a lease. A short lapse is part of every rebalance.

use std::time::{Duration, Instant, SystemTime};

/// That a member cannot act on all it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipOutage {
    /// For how long.
    pub lasted: Duration,
    /// Since when, by the clock on the wall.
    pub since: SystemTime,
    /// What Kafka said last: why the group refuses this member, a claim is not written or the lease not renewed. `None`
    /// while nothing but silence has been heard.
    pub reason: Option<String>,
    /// Partitions that were given and are not this member's own yet.
    pub unclaimed: usize,
    /// Whether the group counts on this member at all.
    pub joined: bool,
    /// Whether it is the first: this member has never stood well yet.
    pub is_first: bool,
}

/// Rebalances of the group that a member has been through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rebalances {
    /// Completed, since it joined first.
    pub completed: u64,
    /// When the last one was.
    pub last: Option<SystemTime>,
    /// The generation of the group it led to: Kafka Connect's `epoch`.
    pub generation: Option<i32>,
    /// Whether one is under way, as far as this member has heard.
    pub under_way: bool,
    /// Those whose beginning this member has heard of: only they have a duration.
    pub timed: u32,
    /// How long those took together.
    pub took: Duration,
    /// The longest of them.
    pub longest: Duration,
}

/// What is remembered to answer both.
#[derive(Debug, Default)]
pub(super) struct MembershipHealth {
    /// The group has settled with this member, and it has not been thrown out since.
    pub(super) joined: bool,
    pub(super) rebalances: Rebalances,
    /// When the one under way began.
    begun: Option<Instant>,
    /// The last failure that may explain a lapse.
    pub(super) reason: Option<String>,
    /// It has stood well before.
    was_healthy: bool,
    /// The clock's time since when something has been failing_since.
    failing_since: Option<Duration>,
}

impl MembershipHealth {
    pub(super) fn new(now: Duration) -> Self {
        let rebalances = Rebalances { under_way: true, ..Rebalances::default() };
        Self { rebalances, begun: Some(Instant::now()), failing_since: Some(now), ..Self::default() }
    }

    /// The group has settled.
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

    /// A rebalance is under way, as was heard just now.
    pub(super) fn rebalancing(&mut self) {
        self.rebalances.under_way = true;
        self.begun.get_or_insert_with(Instant::now);
    }

    /// None is, whatever was heard before.
    pub(super) fn rebalance_over(&mut self) {
        (self.rebalances.under_way, self.begun) = (false, None);
    }

    /// The group no longer counts on this member.
    pub(super) fn lost(&mut self) {
        self.joined = false;
        self.rebalancing();
    }

    /// Takes note of whether all is well, or since when it has not been as far as is known from outside.
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
