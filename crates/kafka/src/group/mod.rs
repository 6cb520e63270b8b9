//! Membership in a consumer group that only assigns partitions: which ones this member owns, and until when that is certain.
//!
//! ```text
//! group ─▶ poll (thread) ─▶ ownership ─▶ claim (task) ──record──▶ the partition itself
//!                              ▲  │                                  │ offset
//!                              │  └─▶ lease (thread) ──commit──▶ coordinator
//!                              └──────── owned, and until when ◀─────┘
//! ```
//!
//! [`poll`] polls an ordinary consumer (cooperative-sticky) on the topic and does nothing else; [`claim`] writes a record to
//! every assigned partition; [`lease`] renews the lease by a synchronous commit of one partition; [`ownership`] holds the
//! shared state. The topic's partitions are paused and never read. An assignment alone is not exclusive: for a moment two
//! members may both believe that they own a partition. So
//!
//! - writes to Kafka are fenced by transactional ids;
//! - all other effects check [`Membership::holds`] first: owned, lease running, assignment not lost;
//! - each ownership has a *claim*: the offset of a record written to the partition when it was assigned, higher than every
//!   earlier claim, so the higher claim is the later owner. A partition is owned only once a commit after its claim has
//!   succeeded: a claim that was delayed beyond the session never becomes an ownership.
//!
//! On failure: while the broker or coordinator is lost, leases expire; the group recovers by itself when it returns. A member
//! that does not recover while Kafka answers rejoins with a new client. [`Membership::outage`] says since when and why. A
//! panic in one of the three leaves the group.

mod claim;
mod health;
mod lease;
mod ownership;
mod poll;
mod rebalance;

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use claim::ClaimWriter;
pub use health::{MembershipOutage, Rebalances};
use ownership::Ownership;
use rdkafka::consumer::Consumer as _;

use base::boot_clock;

use crate::{Error, Kafka, client::start_thread};

/// Time limit for finding the topic.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// A member that the group has dropped rejoins with a new client after this many sessions, but not before this time.
const REJOIN_AFTER: (u32, Duration) = (4, Duration::from_secs(15));
/// Time limit for leaving the group; without a broker it takes long, and the session ends instead.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// Settings of a member.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// `group.id`.
    pub group: String,
    /// The topic whose partitions are assigned.
    pub topic: String,
    /// `session.timeout.ms`: after this long without a heartbeat the partitions go to others.
    pub session: Duration,
    /// `heartbeat.interval.ms`.
    pub heartbeat: Duration,
    /// The worker's id, written into its claims.
    pub member: String,
}

/// Owned partitions, each with its claim.
pub type OwnedPartitions = Arc<BTreeMap<i32, i64>>;

/// A member of a group. Cheap to clone; dropping the last clone leaves the group in the background.
#[derive(Clone)]
pub struct Membership {
    ownership: Arc<Ownership>,
    slot: poll::ClientSlot,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
    _last: Arc<DropGuard>,
}

impl Membership {
    /// Joins the group. Returns once the topic is found; partitions follow with the rebalance.
    ///
    /// # Errors
    /// The client cannot be built, or the topic cannot be found in time.
    pub async fn join(kafka: &Kafka, options: GroupOptions) -> Result<Self, Error> {
        let (sessions, least) = REJOIN_AFTER;
        let rejoin_after = (options.session * sessions).max(least);
        Self::join_with(kafka, options, rejoin_after).await
    }

    async fn join_with(kafka: &Kafka, options: GroupOptions, rejoin_after: Duration) -> Result<Self, Error> {
        let claims = ClaimWriter::new(kafka, &options.topic, &options.member)?;
        let ownership = Arc::new(Ownership::new(options.session, boot_clock::now()));
        let (slot, stop) = (poll::ClientSlot::default(), CancellationToken::new());
        // From here on, however this call ends, the thread and the task end too.
        let last = Arc::new(stop.clone().drop_guard());
        let action = format!("join group {}", options.group);
        let args = poll::MemberArgs {
            kafka: kafka.clone(),
            options,
            rejoin_after,
            ownership: Arc::clone(&ownership),
            slot: Arc::clone(&slot),
            stop: stop.clone(),
        };
        let (end, ended) = watch::channel(false);
        let poll = move |joined| {
            poll::run(&args, joined);
            end.send_replace(true);
        };
        let found = async { start_thread("kafka-group", &action, poll).await? };
        tokio::try_join!(found, claims.warm_up(CONNECT_LIMIT))?;
        let (for_claims, until) = (Arc::clone(&ownership), stop.clone());
        tokio::spawn(async move {
            // After a panic no partition would ever be claimed again: leave the group and report why.
            if AssertUnwindSafe(claims.run(&for_claims, &until)).catch_unwind().await.is_err() {
                for_claims.note_failure("the task that writes claims panicked, see the log".to_owned());
                until.cancel();
            }
        });
        Ok(Self { ownership, slot, stop, ended, _last: last })
    }

    /// The owned partitions, and a signal for every change. A partition appears only once its claim is written.
    #[must_use]
    pub fn owned(&self) -> watch::Receiver<OwnedPartitions> {
        self.ownership.owned()
    }

    /// Whether this member may act on a partition right now: owned, lease running, assignment not lost.
    #[must_use]
    pub fn holds(&self, partition: i32) -> bool {
        self.is_member() && self.ownership.holds(partition, boot_clock::now())
    }

    /// How much longer the lease runs without an answer from the broker.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        if self.is_member() { self.ownership.left(boot_clock::now()) } else { Duration::ZERO }
    }

    /// Since when and why this member cannot act on all its assigned partitions. `None` while it can, or while it is a member
    /// without partitions. Every rebalance is a short outage; one longer than a session needs attention.
    #[must_use]
    pub fn outage(&self) -> Option<MembershipOutage> {
        self.ownership.outage(self.is_member(), boot_clock::now())
    }

    /// Rebalances that this member has taken part in.
    #[must_use]
    pub fn rebalances(&self) -> Rebalances {
        self.ownership.rebalances()
    }

    /// Waits until the membership has ended: the group was left, or a thread panicked.
    pub async fn ended(&self) {
        // An error means that the sender's thread has ended too.
        self.ended.clone().wait_for(|ended| *ended).await.ok();
    }

    /// Leaves the group, so that others take over at once. All clones then own nothing.
    pub async fn leave(mut self) {
        self.stop.cancel();
        // An error means that the thread has already ended; a late one finishes in the background.
        if timeout(LEAVE_LIMIT, self.ended.wait_for(|ended| *ended)).await.is_err() {
            tracing::warn!(limit = ?LEAVE_LIMIT, "leaving the group timed out; the coordinator drops this member when its session ends");
        }
    }

    /// Cheap and safe on any thread: the client knows of a lost assignment before the polling thread does.
    fn is_member(&self) -> bool {
        self.slot.read().as_ref().is_some_and(|client| !client.assignment_lost())
    }
}

opaque_debug!(Membership);

#[cfg(test)]
mod tests;
