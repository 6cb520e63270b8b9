//! Members that join and leave.

use std::time::{Duration, Instant};

use kafka::{ConsumerRecord, Kafka, read_to_end};

use super::assigned::{AssignedTopic, Claims, PARTITIONS, complete, owned, settled, until};
use crate::support::topics::LIMIT;
use crate::support::tries::Tries;
use crate::support::{Shared, cycles};

crate::tests! {
    real three_members_share_all_partitions_and_no_two_the_same;
    real a_leaving_member_hands_its_partitions_over_in_two_seconds;
    real a_moved_partition_gets_a_higher_claim_and_others_keep_theirs within 120;
    real the_assigned_topic_is_never_read_and_the_group_has_no_lag;
}

async fn three_members_share_all_partitions_and_no_two_the_same(shared: &'static Shared) {
    let topic = AssignedTopic::create(shared.bootstrap(), "group-three").await;
    let begun = Instant::now();
    let [a, b, c] = ["a", "b", "c"].map(|name| topic.join(shared.bootstrap(), name));
    let (a, b, c) = tokio::join!(a, b, c);

    let shares = settled(&[&a, &b, &c]).await;

    eprintln!("three members have settled after {:?}", begun.elapsed());
    assert!(shares.iter().all(|share| (10..=11).contains(&share.len())), "{shares:?}");
    for (member, share) in [&a, &b, &c].into_iter().zip(&shares) {
        for partition in 0..PARTITIONS {
            assert_eq!(member.holds(partition), share.contains_key(&partition), "{partition} of {member:?}");
        }
    }
}

async fn a_leaving_member_hands_its_partitions_over_in_two_seconds(shared: &'static Shared) {
    let topic = AssignedTopic::create(shared.bootstrap(), "group-leave").await;
    let b = topic.join(shared.bootstrap(), "b").await;
    let c = topic.join(shared.bootstrap(), "c").await;
    let mut tries = Tries::of("partitions of a member that left are owned within two seconds");
    let mut times = Vec::new();
    // A busy machine sometimes takes longer.
    for round in 0..4 {
        let a = topic.join(shared.bootstrap(), &format!("a-{round}")).await;
        settled(&[&a, &b, &c]).await;
        let begun = Instant::now();

        a.leave().await;
        let left = begun.elapsed();
        let both = || complete(&[owned(&b), owned(&c)]).then_some(());
        until("the others own everything", LIMIT, both).await;

        let moved = begun.elapsed();
        eprintln!("a member left after {left:?}, its partitions were owned after {moved:?}");
        if tries.held(moved < Duration::from_secs(2)) {
            return;
        }
        times.push((left, moved));
    }
    panic!("never within two seconds; left and owned after {times:?}");
}

async fn a_moved_partition_gets_a_higher_claim_and_others_keep_theirs(shared: &'static Shared) {
    let topic = AssignedTopic::create(shared.bootstrap(), "group-claims").await;
    let mut members = vec![topic.join(shared.bootstrap(), "first").await];
    let mut before = settled(&[&members[0]]).await;
    let mut moved = 0;

    for cycle in 0..cycles("CLAIMS", 2) {
        members.push(topic.join(shared.bootstrap(), &format!("member-{cycle}")).await);
        before.push(Claims::new());
        let after = settled(&members.iter().collect::<Vec<_>>()).await;
        moved += compare(&before, &after);
        before = after;

        if members.len() > 2 {
            members.remove(0).leave().await;
            let after = settled(&members.iter().collect::<Vec<_>>()).await;
            // The member that left owns nothing: all its partitions have moved.
            let mut shares = after.clone();
            shares.insert(0, Claims::new());
            moved += compare(&before, &shares);
            before = after;
        }
    }

    assert!(moved > 0, "no partition has moved");
}

/// The number of partitions that moved; each must have a higher claim, and all others their old one.
fn compare(before: &[Claims], after: &[Claims]) -> usize {
    let find = |shares: &[Claims], partition: i32| {
        let owner = shares.iter().position(|share| share.contains_key(&partition)).unwrap();
        (owner, shares[owner][&partition])
    };
    let changed = |partition: &i32| {
        let ((from, old), (to, new)) = (find(before, *partition), find(after, *partition));
        assert!(new > old || (from == to && new == old), "{partition}: {old} of {from}, then {new} of {to}");
        from != to
    };
    (0..PARTITIONS).filter(changed).count()
}

async fn the_assigned_topic_is_never_read_and_the_group_has_no_lag(shared: &'static Shared) {
    let topic = AssignedTopic::create(shared.bootstrap(), "group-lag").await;
    let member = topic.join(shared.bootstrap(), "a").await;
    let claims = settled(&[&member]).await.remove(0);
    let kafka = Kafka::plaintext(shared.bootstrap());

    let mut records = Claims::new();
    let each = |record: ConsumerRecord| {
        assert_eq!(record.key.as_deref(), Some(record.partition.to_string().as_bytes()));
        assert_eq!(record.value.as_deref(), Some(&br#"{"worker":"a"}"#[..]));
        records.insert(record.partition, record.offset);
    };
    let all: Vec<i32> = (0..PARTITIONS).collect();
    let ends = read_to_end(&kafka, &topic.name, &all, LIMIT, each).await.unwrap();

    assert_eq!(records, claims, "one claim each, and nothing else");
    let expected: Claims = claims.iter().map(|(partition, claim)| (*partition, claim + 1)).collect();
    assert_eq!(ends, expected);
    // The offsets are committed one after the other.
    let (bootstrap, topic) = (shared.bootstrap().to_owned(), topic.name.clone());
    let committed = move || committed(&bootstrap, &topic);
    let look = tokio::task::spawn_blocking(move || {
        let end = Instant::now() + LIMIT;
        loop {
            let found = committed();
            if found == expected || Instant::now() > end {
                return (found, expected);
            }
        }
    });
    let (found, expected) = look.await.unwrap();
    assert_eq!(found, expected);
}

/// The committed offsets of the group.
fn committed(bootstrap: &str, topic: &str) -> Claims {
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::{ClientConfig, Offset, TopicPartitionList};

    let mut config = ClientConfig::new();
    let client: BaseConsumer =
        config.set("bootstrap.servers", bootstrap).set("group.id", topic).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, PARTITIONS - 1);
    let offsets = client.committed_offsets(list, LIMIT).unwrap();
    let number = |offset| if let Offset::Offset(offset) = offset { Some(offset) } else { None };
    let each = offsets.elements();
    each.iter().filter_map(|one| Some((one.partition(), number(one.offset())?))).collect()
}
