//! Membership in a consumer group that shares out partitions nobody reads: who owns what, and for how long that is sure.
//!
//! ```text
//! group ─▶ poll (thread) ─▶ ownership ─▶ claim (task) ──record──▶ the partition itself
//!                              ▲  │                                  │ offset
//!                              │  └─▶ lease (thread) ──commit──▶ coordinator
//!                              └──────── owned, and until when ◀─────┘
//! ```
//!
//! [`poll`] polls an ordinary consumer (cooperative-sticky) on the topic and does nothing else; [`claim`] writes a record
//! to every partition that was assigned; [`lease`] renews the lease by a synchronous commit of one partition.
//! [`ownership`] keeps what they learn. Nobody reads the topic: its partitions are paused. Ownership alone is not
//! exclusive: two members may both believe they own a partition for a moment. So
//!
//! - what goes to Kafka is fenced there, by transactional ids;
//! - what goes anywhere else asks [`Membership::holds`] first: owned, lease running, assignment not lost;
//! - each ownership has a *claim*: the offset of a record written to the partition when it was taken, higher than every
//!   claim before it. Whoever compares claims knows who came later. A partition is owned only once a commit after its
//!   claim has succeeded, so that a claim which was delayed beyond the session is never anybody's.
//!
//! On failure: a lost broker or coordinator ends leases by time, and the group goes on by itself once it is back; a member that
//! does not come back while Kafka is there joins anew with another client. [`Membership::outage`] tells since when and why. A fault of the program in any of the three leaves the group.

mod claim;
mod health;
mod lease;
mod ownership;
mod poll;
mod rebalance;

use std::{collections::BTreeMap, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use claim::ClaimWriter;
pub use health::{MembershipOutage, Rebalances};
use ownership::Ownership;
use rdkafka::consumer::Consumer as _;

use base::boot_clock;

use crate::{Error, Kafka, client::start_thread};

/// The longest the topic may take to be found.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// How many sessions, and how long at least, the group may not count on a member before it joins anew.
const REJOIN_AFTER: (u32, Duration) = (4, Duration::from_secs(15));
/// The longest leaving is waited for; without a broker it takes its time, and nobody there to be told.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// How to be a member.
#[derive(Debug, Clone)]
pub struct Options {
    /// `group.id`.
    pub group: String,
    /// The topic whose partitions are shared out.
    pub topic: String,
    /// `session.timeout.ms`: after this long without a heartbeat the partitions go to others.
    pub session: Duration,
    /// `heartbeat.interval.ms`.
    pub heartbeat: Duration,
    /// What claims say about their owner: the worker's id.
    pub member: String,
}

/// Partitions owned, each with its claim.
pub type OwnedPartitions = Arc<BTreeMap<i32, i64>>;

/// A member of a group. Cheap to clone; the last clone dropped leaves the group, and nobody waits for it.
#[derive(Clone)]
pub struct Membership {
    ownership: Arc<Ownership>,
    slot: poll::ClientSlot,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
    _last: Arc<DropGuard>,
}

impl Membership {
    /// Joins. Returns once the topic is found; partitions come as the group settles.
    ///
    /// # Errors
    /// The client cannot be built, or the topic cannot be found in time.
    pub async fn join(kafka: &Kafka, options: Options) -> Result<Self, Error> {
        let (sessions, least) = REJOIN_AFTER;
        let rejoin_after = (options.session * sessions).max(least);
        Self::join_with(kafka, options, rejoin_after).await
    }

    async fn join_with(kafka: &Kafka, options: Options, rejoin_after: Duration) -> Result<Self, Error> {
        let claims = ClaimWriter::new(kafka, &options.topic, &options.member)?;
        let ownership = Arc::new(Ownership::new(options.session, boot_clock::now()));
        let (slot, stop) = (poll::ClientSlot::default(), CancellationToken::new());
        // From here on whatever ends this call ends the rest.
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
            // With a fault nothing would ever be claimed again: better not be a member, and say why.
            if AssertUnwindSafe(claims.run(&for_claims, &until)).catch_unwind().await.is_err() {
                for_claims.note_failure("the task that writes claims has a fault, see the log".to_owned());
                until.cancel();
            }
        });
        Ok(Self { ownership, slot, stop, ended, _last: last })
    }

    /// What is owned now, and a signal for every change. A partition appears here only once its claim is written.
    #[must_use]
    pub fn owned(&self) -> watch::Receiver<OwnedPartitions> {
        self.ownership.owned()
    }

    /// Whether this member may act on a partition right now: owned, lease running, assignment not lost.
    #[must_use]
    pub fn holds(&self, partition: i32) -> bool {
        self.is_member() && self.ownership.holds(partition, boot_clock::now())
    }

    /// How much longer that is sure, if nothing is heard from the broker.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        if self.is_member() { self.ownership.left(boot_clock::now()) } else { Duration::ZERO }
    }

    /// That this member cannot act on all it was given: since when, and why. `None` while it can, and while it is a member
    /// that was given nothing. A rebalance is a lapse of a moment; one that lasts longer than a session needs a look.
    #[must_use]
    pub fn outage(&self) -> Option<MembershipOutage> {
        self.ownership.outage(self.is_member(), boot_clock::now())
    }

    /// Rebalances of the group that this member has been through.
    #[must_use]
    pub fn rebalances(&self) -> Rebalances {
        self.ownership.rebalances()
    }

    /// Waits until this is no membership any more: it was left, or a fault has ended it.
    pub async fn ended(&self) {
        // Without its sender the thread is gone as well.
        self.ended.clone().wait_for(|ended| *ended).await.ok();
    }

    /// Leaves the group, so that others take over at once. Other clones own nothing any more either.
    pub async fn leave(mut self) {
        self.stop.cancel();
        // An error means that the thread is gone already; a late one goes on by itself.
        if timeout(LEAVE_LIMIT, self.ended.wait_for(|ended| *ended)).await.is_err() {
            tracing::warn!(limit = ?LEAVE_LIMIT, "the group has not been left in time, the session ends instead");
        }
    }

    /// Cheap, and for any thread: the client knows of a lost assignment before the thread that polls has heard of it.
    fn is_member(&self) -> bool {
        self.slot.read().as_ref().is_some_and(|client| !client.assignment_lost())
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("owned", &*self.ownership.owned().borrow())
            .field("lease_left", &self.lease_left())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
