//! The topic whose partitions are assigned, and members inside this process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kafka::{Admin, GroupOptions, Kafka, Membership};
use model::Cleanup;

use crate::support::topics::{LIMIT, spec};
use crate::support::{lost, prefix};

/// The least session timeout that a broker allows by default.
pub(super) const SESSION: Duration = Duration::from_secs(6);
/// From the death of a member: its session, and the time that the group takes to rebalance.
pub(super) const TAKEOVER: Duration = Duration::from_secs(11);
pub(super) const PARTITIONS: i32 = 32;

/// Between two checks of a condition.
const STEP: Duration = Duration::from_millis(5);

/// Claims by partition.
pub(super) type Claims = BTreeMap<i32, i64>;

/// A topic with as many partitions as the product's.
pub(super) struct AssignedTopic {
    pub(super) name: String,
}

impl AssignedTopic {
    pub(super) async fn create(bootstrap: &str, name: &str) -> Self {
        let topic = prefix(name);
        let spec = spec(&topic, PARTITIONS, Cleanup::Compact);
        Admin::Real(Kafka::plaintext(bootstrap)).ensure(&[spec]).await.unwrap();
        Self { name: topic }
    }

    /// A member inside this process.
    pub(super) async fn join(&self, bootstrap: &str, member: &str) -> Membership {
        join(bootstrap, &self.name, member).await
    }
}

/// As [`AssignedTopic::join`], by the topic's name.
pub(super) async fn join(bootstrap: &str, topic: &str, member: &str) -> Membership {
    let options = GroupOptions {
        group: topic.to_owned(),
        topic: topic.to_owned(),
        session: SESSION,
        heartbeat: Duration::from_millis(500),
        member: member.to_owned(),
    };
    Membership::join(&Kafka::plaintext(bootstrap), options).await.unwrap()
}

pub(super) fn owned(membership: &Membership) -> Claims {
    (**membership.owned().borrow()).clone()
}

/// Waits until these members own all partitions together, about as many each; the claims of each.
pub(super) async fn settled(members: &[&Membership]) -> Vec<Claims> {
    let least = PARTITIONS as usize / members.len();
    let shares = || members.iter().map(|member| owned(member)).collect::<Vec<_>>();
    let settled = |shares: &Vec<Claims>| complete(shares) && shares.iter().all(|share| share.len() >= least);
    until("the members share everything", LIMIT, || Some(shares()).filter(settled)).await
}

/// Whether every partition has exactly one owner.
pub(super) fn complete(shares: &[Claims]) -> bool {
    let mut all: Vec<i32> = shares.iter().flat_map(|share| share.keys().copied()).collect();
    all.sort_unstable();
    all.into_iter().eq(0..PARTITIONS)
}

/// Waits until `find` returns something.
pub(super) async fn until<T>(what: &str, limit: Duration, mut find: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(lost::fair(began) < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(STEP).await;
    }
}
