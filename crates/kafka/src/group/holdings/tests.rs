use super::*;

const SESSION: Duration = Duration::from_secs(6);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Given these, asked for their claims.
async fn given(partitions: &[i32]) -> (Ownership, Vec<(i32, CancellationToken)>) {
    let holdings = Ownership::new(SESSION, seconds(100));
    holdings.polling(seconds(100));
    holdings.assigned(partitions.iter().copied());
    let wanted = holdings.wanted().await;
    (holdings, wanted)
}

fn owned(holdings: &Ownership) -> BTreeMap<i32, i64> {
    (**holdings.owned().borrow()).clone()
}

/// One partition, owned since 100 s.
async fn holder() -> Ownership {
    let (holdings, wanted) = given(&[3]).await;
    holdings.claimed(3, &wanted[0].1, 40);
    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));
    holdings
}

#[tokio::test]
async fn a_partition_is_owned_once_a_commit_after_its_claim_has_succeeded() {
    let (holdings, wanted) = given(&[3]).await;
    assert!(holdings.next_renewal().is_none(), "there is nothing to commit without a claim");
    holdings.claimed(3, &wanted[0].1, 40);
    assert!(owned(&holdings).is_empty(), "the claim alone proves nothing");

    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));

    assert_eq!(owned(&holdings), BTreeMap::from([(3, 40)]));
    assert!(holdings.holds(3, seconds(101)));
    assert!(!holdings.holds(4, seconds(101)));
}

#[tokio::test]
async fn a_commit_that_began_before_a_claim_was_written_does_not_prove_it() {
    let (holdings, wanted) = given(&[3, 4]).await;
    holdings.claimed(3, &wanted[0].1, 40);
    let begun = holdings.next_renewal().unwrap();
    holdings.claimed(4, &wanted[1].1, 50);

    holdings.renewed(&begun, seconds(100));

    assert_eq!(owned(&holdings), BTreeMap::from([(3, 40)]));
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_partition_was_revoked_is_forgotten_even_if_it_is_assigned_again() {
    let (holdings, wanted) = given(&[3]).await;
    holdings.revoked([3]);
    holdings.assigned([3]);

    holdings.claimed(3, &wanted[0].1, 40);

    assert!(wanted[0].1.is_cancelled());
    assert!(holdings.next_renewal().is_none());
    assert_eq!(holdings.wanted().await.len(), 1, "the new assignment wants a claim of its own");
}

#[tokio::test]
async fn a_commit_proves_nothing_about_a_partition_that_was_given_back_meanwhile() {
    let (holdings, wanted) = given(&[3]).await;
    holdings.claimed(3, &wanted[0].1, 40);
    let begun = holdings.next_renewal().unwrap();
    holdings.revoked([3]);
    holdings.assigned([3]);
    let again = holdings.wanted().await;
    holdings.claimed(3, &again[0].1, 41);

    holdings.renewed(&begun, seconds(100));

    assert!(owned(&holdings).is_empty());
}

#[tokio::test]
async fn a_revoked_partition_is_neither_owned_nor_held_and_the_change_is_told() {
    let holdings = holder().await;
    let mut changes = holdings.owned();
    changes.mark_unchanged();

    holdings.revoked([3]);

    assert!(changes.has_changed().unwrap());
    assert!(owned(&holdings).is_empty());
    assert!(!holdings.holds(3, seconds(100)));
}

#[tokio::test]
async fn a_lease_ends_a_second_before_the_session_that_began_with_the_commit() {
    let holdings = holder().await;

    assert!(holdings.holds(3, Duration::from_millis(104_999)));
    assert!(!holdings.holds(3, seconds(105)));
    assert_eq!(holdings.left(seconds(102)), seconds(3));
    assert_eq!(owned(&holdings).len(), 1, "a lease that has ended may run again");
}

#[tokio::test]
async fn a_lease_is_not_renewed_for_a_thread_that_has_stopped_to_poll() {
    let holdings = holder().await;

    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(104));

    assert!(!holdings.holds(3, seconds(105)), "the last poll was at 100 s");
    holdings.polling(seconds(106));
    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(106));
    assert!(holdings.holds(3, seconds(110)));
}

#[tokio::test]
async fn a_member_the_broker_does_not_know_holds_nothing_until_it_does_again() {
    let holdings = holder().await;

    holdings.end_lease();

    assert!(!holdings.holds(3, seconds(100)));
    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));
    assert!(holdings.holds(3, seconds(100)));
}

#[tokio::test]
async fn partitions_are_committed_in_turn() {
    let (holdings, wanted) = given(&[3, 5, 9]).await;
    for (partition, revoked) in &wanted {
        holdings.claimed(*partition, revoked, 10);
    }

    let turns: Vec<i32> = (0..4).map(|_| holdings.next_renewal().unwrap().partition).collect();

    assert_eq!(turns, [3, 5, 9, 3]);
}

#[test]
fn a_short_session_keeps_back_a_sixth() {
    assert_eq!(Ownership::new(Duration::from_millis(1500), seconds(0)).lease, Duration::from_millis(1250));
    assert_eq!(Ownership::new(seconds(30), seconds(0)).lease, seconds(29));
}

#[tokio::test]
async fn a_lapse_lasts_from_the_end_of_the_lease_and_says_why_until_the_lease_runs_again() {
    let (holdings, wanted) = given(&[3]).await;
    holdings.settled(Some(7), []);
    assert_eq!(holdings.outage(true, seconds(101)).unwrap().unclaimed, 1, "given and not its own");
    holdings.claimed(3, &wanted[0].1, 40);
    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));
    assert_eq!(holdings.outage(true, seconds(102)), None);

    holdings.failed("no permission to commit".to_owned());
    let lapse = holdings.outage(true, seconds(125)).unwrap();

    assert_eq!((lapse.lasted, lapse.joined, lapse.unclaimed), (seconds(20), true, 0), "it ended at 105 s");
    assert_eq!(lapse.reason.as_deref(), Some("no permission to commit"));
    holdings.polling(seconds(130));
    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(130));
    assert_eq!(holdings.outage(true, seconds(131)), None);
    let lapse = holdings.outage(true, seconds(200)).unwrap();
    assert_eq!((lapse.lasted, lapse.reason), (seconds(65), None), "what has passed explains nothing");
}

#[test]
fn a_member_that_was_given_nothing_stands_well_until_the_group_drops_it() {
    let holdings = Ownership::new(SESSION, seconds(100));
    assert!(!holdings.outage(true, seconds(103)).unwrap().joined, "nobody has answered yet");

    holdings.settled(Some(1), []);
    assert_eq!(holdings.outage(true, seconds(900)), None);
    holdings.lost();

    let lapse = holdings.outage(true, seconds(900)).unwrap();
    assert_eq!((lapse.lasted, lapse.joined), (seconds(0), false));
    holdings.settled(Some(2), []);
    assert_eq!(holdings.outage(false, seconds(950)).unwrap().lasted, seconds(50), "the client knows better");
}

#[tokio::test]
async fn rebalances_are_counted_and_an_answer_from_before_the_last_does_not_start_another() {
    let holdings = holder().await;
    holdings.settled(Some(7), []);
    let before = holdings.next_renewal().unwrap();
    holdings.rebalancing(before.completed);
    assert!(holdings.rebalances().under_way);

    holdings.settled(Some(8), []);
    holdings.rebalancing(before.completed);

    let seen = holdings.rebalances();
    assert_eq!((seen.completed, seen.generation, seen.under_way), (2, Some(8), false));
    assert!(seen.last.is_some());
    holdings.rebalancing(2);
    holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));
    assert!(!holdings.rebalances().under_way, "a commit succeeds in a group that has settled");
}
