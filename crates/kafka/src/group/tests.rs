use std::time::Instant;

use super::*;
use crate::{Error, embedded::EmbeddedCluster};

const TOPIC: &str = "work";
const PARTITIONS: i32 = 32;
/// Limit that no passing test reaches.
const LIMIT: Duration = Duration::from_secs(30);

fn cluster() -> EmbeddedCluster {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic(TOPIC, PARTITIONS).unwrap();
    cluster
}

/// A session that works with the in-process cluster.
fn options(member: &str) -> GroupOptions {
    GroupOptions {
        group: "workers".into(),
        topic: TOPIC.into(),
        session: Duration::from_millis(1500),
        heartbeat: Duration::from_millis(200),
        member: member.into(),
    }
}

async fn join(cluster: &EmbeddedCluster, member: &str) -> Membership {
    Membership::join(&cluster.settings(), options(member)).await.unwrap()
}

/// For the only member of a group: a long session, which no stall can end. A second member would wait for most of it.
async fn join_alone(cluster: &EmbeddedCluster, member: &str) -> Membership {
    let options = GroupOptions { session: Duration::from_secs(20), ..options(member) };
    Membership::join(&cluster.settings(), options).await.unwrap()
}

/// Waits until the owned partitions meet a condition.
async fn until(membership: &Membership, wanted: impl Fn(&OwnedPartitions) -> bool) -> OwnedPartitions {
    let mut owned = membership.owned();
    let waited = timeout(LIMIT, owned.wait_for(|owned| wanted(owned))).await;
    waited.unwrap_or_else(|_| panic!("it still owns {membership:?}")).unwrap().clone()
}

/// Polls until the answer is true.
async fn until_true(what: &str, ask: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !ask() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn all(owned: &OwnedPartitions) -> bool {
    owned.len() == PARTITIONS as usize
}

#[tokio::test(flavor = "multi_thread")]
async fn only_member_owns_and_holds_everything() {
    let cluster = cluster();

    let membership = join_alone(&cluster, "one").await;
    let owned = until(&membership, all).await;

    assert!(owned.keys().all(|partition| membership.holds(*partition)), "{membership:?}");
    assert!(!membership.holds(PARTITIONS));
    assert!(membership.lease_left() <= Duration::from_secs(19));
    assert_eq!(membership.outage(), None);
    let rebalances = membership.rebalances();
    assert!(rebalances.completed >= 1 && rebalances.generation.is_some(), "{rebalances:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn member_that_left_owns_nothing_nor_do_its_clones() {
    let cluster = cluster();
    let membership = join_alone(&cluster, "one").await;
    until(&membership, all).await;
    let clone = membership.clone();

    membership.leave().await;

    // On a busy machine it may end after the limit for leaving.
    timeout(LIMIT, clone.ended()).await.unwrap();
    assert!(clone.owned().borrow().is_empty());
    assert!(!clone.holds(0));
    assert_eq!(clone.lease_left(), Duration::ZERO);
    assert!(!clone.outage().unwrap().joined);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_member_leaves_the_group() {
    let cluster = cluster();
    let first = join(&cluster, "one").await;
    until(&first, all).await;
    let mut owned = first.owned();

    drop(first);

    timeout(LIMIT, owned.wait_for(|owned| owned.is_empty())).await.unwrap().unwrap();
    until(&join(&cluster, "two").await, all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_member_rejoins_with_a_new_client() {
    let cluster = cluster();
    let rejoin_after = Duration::from_millis(600);
    let settings = cluster.settings();
    let membership = Membership::join_with(&settings, options("one"), rejoin_after).await.unwrap();
    let first = until(&membership, all).await;

    // As after an ended session, with a client that never rejoins.
    membership.ownership.end();

    let again = until(&membership, |owned| all(owned) && !Arc::ptr_eq(owned, &first)).await;
    assert!(again.iter().all(|(partition, claim)| *claim > first[partition]), "{first:?}, {again:?}");
    until_true("it does not hold them", || (0..PARTITIONS).all(|partition| membership.holds(partition)))
        .await;
    assert_eq!(membership.outage(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_does_not_wait_for_brokers() {
    let cluster = cluster();
    let membership = join(&cluster, "one").await;
    until(&membership, all).await;
    let clone = membership.clone();
    cluster.set_reachable(false).unwrap();

    timeout(LIMIT, membership.leave()).await.expect("it waits for the brokers");

    assert!(!clone.holds(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn setting_that_would_break_the_group_is_refused() {
    let cluster = cluster();
    let mut settings = cluster.settings();
    settings.consumer.insert("group.instance.id".into(), "mine".into());

    let error = Membership::join(&settings, options("one")).await.unwrap_err();

    assert!(matches!(&error, Error::Refused { key, .. } if key == "group.instance.id"), "{error}");
}
