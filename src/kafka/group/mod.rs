//! Membership in a consumer group that shares out partitions nobody reads: who owns what, and for how long that is sure.
//!
//! A thread of its own polls an ordinary consumer (cooperative-sticky) on the topic and does nothing else; another renews
//! the lease by a synchronous commit of one owned partition. Ownership alone is not exclusive: two members may both
//! believe they own a partition for a moment. So
//!
//! - what goes to Kafka is fenced there, by transactional ids;
//! - what goes anywhere else asks [`Membership::holds`] first: owned, lease running, assignment not lost;
//! - each ownership has a *claim*: the offset of a record written to the partition when it was taken, higher than every
//!   claim before it. Whoever compares claims knows who came later.
//!
//! On failure: a lost broker or coordinator ends leases by time, and the group goes on by itself once it is back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::Error;
use crate::config::Kafka;

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
pub type Owned = Arc<BTreeMap<i32, i64>>;

/// A member of a group. Cheap to clone; the last clone dropped leaves the group without a word.
#[derive(Debug, Clone)]
pub struct Membership {}

impl Membership {
    /// Joins. Returns at once; partitions come as the group settles.
    ///
    /// # Errors
    /// The client cannot be built, or the topic cannot be found in time.
    pub async fn join(kafka: &Kafka, options: Options) -> Result<Self, Error> {
        todo!()
    }

    /// What is owned now, and a signal for every change. A partition appears here only once its claim is written.
    #[must_use]
    pub fn owned(&self) -> watch::Receiver<Owned> {
        todo!()
    }

    /// Partitions of the topic.
    #[must_use]
    pub fn partitions(&self) -> i32 {
        todo!()
    }

    /// Whether this member may act on a partition right now: owned, lease running, assignment not lost.
    #[must_use]
    pub fn holds(&self, partition: i32) -> bool {
        todo!()
    }

    /// How much longer that is sure, if nothing is heard from the broker.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        todo!()
    }

    /// Leaves the group, so that others take over at once.
    pub async fn leave(self) {
        todo!()
    }
}
