use super::*;

const SESSION: Duration = Duration::from_secs(6);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Assigned these partitions, with their claims being written.
async fn given(partitions: &[i32]) -> (Ownership, Vec<(i32, CancellationToken)>) {
    let ownership = Ownership::new(SESSION, seconds(100));
    ownership.polling(seconds(100));
    ownership.assigned(partitions.iter().copied());
    let unclaimed = ownership.unclaimed_partitions().await;
    (ownership, unclaimed)
}

fn owned(ownership: &Ownership) -> BTreeMap<i32, i64> {
    (**ownership.owned().borrow()).clone()
}

/// Owns one partition since second 100.
async fn holder() -> Ownership {
    let (ownership, unclaimed) = given(&[3]).await;
    ownership.claimed(3, &unclaimed[0].1, 40);
    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(100));
    ownership
}

#[tokio::test]
async fn commit_after_the_claim_makes_a_partition_owned() {
    let (ownership, unclaimed) = given(&[3]).await;
    assert!(ownership.next_renewal().is_none(), "there is nothing to commit without a claim");
    ownership.claimed(3, &unclaimed[0].1, 40);
    assert!(owned(&ownership).is_empty(), "the claim alone proves nothing");

    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(100));

    assert_eq!(owned(&ownership), BTreeMap::from([(3, 40)]));
    assert!(ownership.holds(3, seconds(101)));
    assert!(!ownership.holds(4, seconds(101)));
}

#[tokio::test]
async fn commit_from_before_the_claim_does_not_prove_it() {
    let (ownership, unclaimed) = given(&[3, 4]).await;
    ownership.claimed(3, &unclaimed[0].1, 40);
    let begun = ownership.next_renewal().unwrap();
    ownership.claimed(4, &unclaimed[1].1, 50);

    ownership.renewed(&begun, seconds(100));

    assert_eq!(owned(&ownership), BTreeMap::from([(3, 40)]));
}

#[tokio::test]
async fn claim_of_a_revoked_assignment_is_ignored() {
    let (ownership, unclaimed) = given(&[3]).await;
    ownership.revoked([3]);
    ownership.assigned([3]);

    ownership.claimed(3, &unclaimed[0].1, 40);

    assert!(unclaimed[0].1.is_cancelled());
    assert!(ownership.next_renewal().is_none());
    assert_eq!(ownership.unclaimed_partitions().await.len(), 1, "the new assignment needs a new claim");
}

#[tokio::test]
async fn commit_proves_nothing_about_a_revoked_partition() {
    let (ownership, unclaimed) = given(&[3]).await;
    ownership.claimed(3, &unclaimed[0].1, 40);
    let begun = ownership.next_renewal().unwrap();
    ownership.revoked([3]);
    ownership.assigned([3]);
    let again = ownership.unclaimed_partitions().await;
    ownership.claimed(3, &again[0].1, 41);

    ownership.renewed(&begun, seconds(100));

    assert!(owned(&ownership).is_empty());
}

#[tokio::test]
async fn revoked_partition_is_not_owned_and_signals_a_change() {
    let ownership = holder().await;
    let mut changes = ownership.owned();
    changes.mark_unchanged();

    ownership.revoked([3]);

    assert!(changes.has_changed().unwrap());
    assert!(owned(&ownership).is_empty());
    assert!(!ownership.holds(3, seconds(100)));
}

#[tokio::test]
async fn lease_ends_one_second_before_the_session() {
    let ownership = holder().await;

    assert!(ownership.holds(3, Duration::from_millis(104_999)));
    assert!(!ownership.holds(3, seconds(105)));
    assert_eq!(ownership.left(seconds(102)), seconds(3));
    assert_eq!(owned(&ownership).len(), 1, "a lease that has ended may run again");
}

#[tokio::test]
async fn lease_is_not_renewed_without_polls() {
    let ownership = holder().await;

    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(104));

    assert!(!ownership.holds(3, seconds(105)), "the last poll was at 100 s");
    ownership.polling(seconds(106));
    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(106));
    assert!(ownership.holds(3, seconds(110)));
}

#[tokio::test]
async fn member_unknown_to_the_broker_holds_nothing() {
    let ownership = holder().await;

    ownership.end_lease();

    assert!(!ownership.holds(3, seconds(100)));
    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(100));
    assert!(ownership.holds(3, seconds(100)));
}

#[tokio::test]
async fn partitions_are_committed_in_turn() {
    let (ownership, unclaimed) = given(&[3, 5, 9]).await;
    for (partition, revoked) in &unclaimed {
        ownership.claimed(*partition, revoked, 10);
    }

    let turns: Vec<i32> = (0..4).map(|_| ownership.next_renewal().unwrap().partition).collect();

    assert_eq!(turns, [3, 5, 9, 3]);
}

#[test]
fn margin_of_a_short_session_is_one_sixth() {
    assert_eq!(Ownership::new(Duration::from_millis(1500), seconds(0)).lease, Duration::from_millis(1250));
    assert_eq!(Ownership::new(seconds(30), seconds(0)).lease, seconds(29));
}

#[tokio::test]
async fn outage_lasts_from_the_end_of_the_lease_to_its_renewal() {
    let (ownership, unclaimed) = given(&[3]).await;
    ownership.rebalanced(Some(7), []);
    assert_eq!(ownership.outage(true, seconds(101)).unwrap().unclaimed, 1, "given and not its own");
    ownership.claimed(3, &unclaimed[0].1, 40);
    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(100));
    assert_eq!(ownership.outage(true, seconds(102)), None);

    ownership.note_failure("no permission to commit".to_owned());
    let outage = ownership.outage(true, seconds(125)).unwrap();

    assert_eq!((outage.lasted, outage.joined, outage.unclaimed), (seconds(20), true, 0), "it ended at 105 s");
    assert_eq!(outage.reason.as_deref(), Some("no permission to commit"));
    ownership.polling(seconds(130));
    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(130));
    assert_eq!(ownership.outage(true, seconds(131)), None);
    let outage = ownership.outage(true, seconds(200)).unwrap();
    assert_eq!((outage.lasted, outage.reason), (seconds(65), None), "an old failure is no reason");
}

#[test]
fn member_without_partitions_is_healthy_until_dropped() {
    let ownership = Ownership::new(SESSION, seconds(100));
    assert!(!ownership.outage(true, seconds(103)).unwrap().joined, "no answer yet");

    ownership.rebalanced(Some(1), []);
    assert_eq!(ownership.outage(true, seconds(900)), None);
    ownership.lost();

    let outage = ownership.outage(true, seconds(900)).unwrap();
    assert_eq!((outage.lasted, outage.joined), (seconds(0), false));
    ownership.rebalanced(Some(2), []);
    assert_eq!(ownership.outage(false, seconds(950)).unwrap().lasted, seconds(50), "the client knows better");
}

#[tokio::test]
async fn outdated_answer_does_not_start_a_rebalance() {
    let ownership = holder().await;
    ownership.rebalanced(Some(7), []);
    let before = ownership.next_renewal().unwrap();
    ownership.rebalancing(before.completed);
    assert!(ownership.rebalances().under_way);

    ownership.rebalanced(Some(8), []);
    ownership.rebalancing(before.completed);

    let seen = ownership.rebalances();
    assert_eq!((seen.completed, seen.generation, seen.under_way), (2, Some(8), false));
    assert!(seen.last.is_some());
    ownership.rebalancing(2);
    ownership.renewed(&ownership.next_renewal().unwrap(), seconds(100));
    assert!(!ownership.rebalances().under_way, "a commit succeeds in a group that has settled");
}
