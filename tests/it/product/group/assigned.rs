//! The topic that members of these tests share out, and members inside this process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kafka::{Admin, GroupOptions, Kafka, Membership, TopicSpec};
use model::Cleanup;

use crate::support::topics::LIMIT;
use crate::support::{lost, prefix};

/// What a broker allows at least, unless told otherwise.
pub(super) const SESSION: Duration = Duration::from_secs(6);
/// After a member has died: the session, and what the group takes to settle.
pub(super) const TAKEOVER: Duration = Duration::from_secs(11);
pub(super) const PARTITIONS: i32 = 32;

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(5);

/// Partitions with their claims.
pub(super) type Claims = BTreeMap<i32, i64>;

/// A topic with as many partitions as the product's.
pub(super) struct Work {
    pub(super) topic: String,
}

impl Work {
    pub(super) async fn create(bootstrap: &str, name: &str) -> Self {
        let topic = prefix(name);
        let spec = TopicSpec {
            name: topic.clone(),
            partitions: PARTITIONS,
            may_grow: false,
            replication_factor: -1,
            min_message_bytes: 0,
            cleanup: Cleanup::Compact,
            configs: BTreeMap::new(),
        };
        Admin::Real(Kafka::plaintext(bootstrap)).ensure(&[spec]).await.unwrap();
        Self { topic }
    }

    /// A member inside this process.
    pub(super) async fn join(&self, bootstrap: &str, member: &str) -> Membership {
        join(bootstrap, &self.topic, member).await
    }
}

/// As [`Work::join`], for whoever knows only the topic's name.
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

/// Waits until these members own everything between them, each about as much as the others, and gives what each owns.
pub(super) async fn settled(members: &[&Membership]) -> Vec<Claims> {
    let least = PARTITIONS as usize / members.len();
    let look = || members.iter().map(|member| owned(member)).collect::<Vec<_>>();
    let settled = |shares: &Vec<Claims>| complete(shares) && shares.iter().all(|share| share.len() >= least);
    until("the members share everything", LIMIT, || Some(look()).filter(settled)).await
}

/// Whether every partition is there, once.
pub(super) fn complete(shares: &[Claims]) -> bool {
    let mut all: Vec<i32> = shares.iter().flat_map(|share| share.keys().copied()).collect();
    all.sort_unstable();
    all.into_iter().eq(0..PARTITIONS)
}

/// Looks until there is an answer.
pub(super) async fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = look() {
            return answer;
        }
        assert!(lost::fair(began) < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(STEP).await;
    }
}
