//! Order per company, whatever the broker, its producers and the process do. What is accepted first appears first.

use std::{collections::BTreeMap, time::Duration};

use super::{broker::by_company, fixture::*};
use crate::{
    spool::fault::Random,
    webhooks::intake::{AnswerTimes, DeliveryOutcome},
};

/// Sends one after the other, each once the one before is answered, and returns those that are durable.
async fn send(fixture: &Fixture, company: &str, ids: impl IntoIterator<Item = usize>) -> Vec<String> {
    let mut durable = Vec::new();
    for id in ids {
        let id = format!("{company}-{id}");
        if fixture.take(company, &id).await == DeliveryOutcome::Durable {
            durable.push(id);
        }
    }
    durable
}

#[tokio::test]
async fn records_that_were_late_come_before_those_behind_them() {
    let fixture = Fixture::new().await;
    fixture.broker.hold();
    let sent = send(&fixture, "c", 0..30).await;
    assert_eq!(sent.len(), 30);

    fixture.broker.release();

    fixture.broker.has(TOPIC, 30).await;
    assert_eq!(fixture.broker.ids(TOPIC), sent);
    fixture.is_drained().await;
    assert_eq!(fixture.broker.records(TOPIC).len(), 30, "none was sent twice");
}

#[tokio::test]
async fn a_lane_that_was_behind_is_direct_again() {
    let times = AnswerTimes { spool_after: Duration::from_secs(2), answer_by: LONG };
    let fixture = Fixture::with(times, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    let mut sent = send(&fixture, "c", 0..300).await;
    fixture.broker.release();
    sent.extend(send(&fixture, "c", 300..310).await);
    fixture.is_direct().await;
    let commits = fixture.disk.durable_commits();

    sent.extend(send(&fixture, "c", 310..330).await);

    assert_eq!(fixture.disk.durable_commits(), commits, "the disk was asked again");
    assert_eq!(fixture.broker.ids(TOPIC), sent);
}

#[tokio::test]
async fn records_of_a_failed_producer_are_resent_in_order() {
    let fixture = Fixture::new().await;
    fixture.broker.hold();
    let mut sent = send(&fixture, "c", 0..10).await;

    // Three of them are there already, and will be twice.
    fixture.broker.break_producers(3);
    fixture.broker.release();

    sent.extend(send(&fixture, "c", 10..20).await);
    fixture.broker.has(TOPIC, 20).await;
    assert_eq!(fixture.broker.ids(TOPIC), sent);
}

#[tokio::test]
async fn the_last_record_of_a_failed_producer_is_published() {
    let fixture = Fixture::new().await;
    fixture.broker.hold();
    assert_eq!(fixture.take("c", "only").await, DeliveryOutcome::Durable);

    fixture.broker.break_producers(0);
    fixture.broker.release();

    fixture.broker.has(TOPIC, 1).await;
    fixture.is_drained().await;
}

#[tokio::test]
async fn nothing_overtakes_unreported_records_of_a_failed_producer() {
    let fixture = Fixture::new().await;
    for round in 0..50 {
        fixture.broker.hold();
        let first = fixture.take("c", &format!("{round}-a"));
        fixture.broker.waits_for(1).await;
        fixture.broker.break_producers(0);
        let second = fixture.take("c", &format!("{round}-b"));
        fixture.broker.release();
        assert_eq!((first.await, second.await), (DeliveryOutcome::Durable, DeliveryOutcome::Durable));

        fixture.broker.has(TOPIC, 2 * round + 2).await;
        let ids = fixture.broker.ids(TOPIC);
        assert_eq!(ids[2 * round..], [format!("{round}-a"), format!("{round}-b")]);
    }
}

#[tokio::test]
async fn a_full_producer_puts_queues_behind_and_keeps_their_order() {
    let fixture = Fixture::new().await;
    let mut sent = send(&fixture, "c", 0..5).await;
    fixture.broker.set_full(true);
    sent.extend(send(&fixture, "c", 5..15).await);
    fixture.broker.set_full(false);
    sent.extend(send(&fixture, "c", 15..20).await);

    fixture.broker.has(TOPIC, 20).await;

    assert_eq!(fixture.broker.ids(TOPIC), sent);
}

#[tokio::test]
async fn a_drain_that_panics_is_restarted_and_keeps_the_order() {
    let fixture = Fixture::new().await;
    // Kept in memory as well, so that the lane would come back by sending from there.
    fixture.broker.set_full(true);
    let sent = send(&fixture, "c", 0..5).await;
    assert_eq!(sent.len(), 5);

    fixture.doors.set_trap(1);
    fixture.broker.set_full(false);

    fixture.broker.has(TOPIC, 5).await;
    assert!(fixture.doors.has_sprung(), "no drain panicked");
    assert_eq!(fixture.broker.ids(TOPIC), sent);
    fixture.is_drained().await;
}

#[tokio::test]
async fn a_drain_that_panics_keeps_records_that_are_only_in_memory() {
    let fixture = Fixture::with(AnswerTimes { spool_after: LONG, answer_by: LONG }, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    let taking = fixture.take("c", "only");
    fixture.broker.waits_for(1).await;

    fixture.doors.set_trap(1);
    fixture.broker.break_producers(0);
    fixture.broker.release();

    assert_eq!(taking.await, DeliveryOutcome::Durable);
    assert!(fixture.doors.has_sprung(), "no drain panicked");
    assert_eq!(fixture.broker.ids(TOPIC), ["only"]);
    assert_eq!(fixture.disk.durable_commits(), 0, "only Kafka can have answered");
}

#[tokio::test]
async fn after_a_kill_the_spool_comes_before_anything_new() {
    let fixture = Fixture::new().await;
    fixture.broker.hold();
    let mut sent = send(&fixture, "c", 0..30).await;
    let remains = fixture.die().await;
    remains.broker().release();

    let fixture = remains.start().await;
    sent.extend(send(&fixture, "c", 30..40).await);

    fixture.broker.has(TOPIC, 40).await;
    assert_eq!(fixture.broker.ids(TOPIC), sent);
}

#[tokio::test]
async fn entries_of_an_unopened_database_come_back_beside_new_ones() {
    let fixture = Fixture::new().await;
    fixture.broker.hold();
    let mut sent = send(&fixture, "c", 0..20).await;
    let fixture = fixture.die().await.start_without(1).await;
    assert_eq!(fixture.spool.totals().entries, 0, "it has opened");
    sent.extend(send(&fixture, "c", 20..40).await);
    assert_eq!(sent.len(), 40);

    let remains = fixture.die().await;
    remains.broker().release();
    let fixture = remains.start().await;
    sent.extend(send(&fixture, "c", 40..50).await);

    fixture.broker.has(TOPIC, 50).await;
    assert_eq!(fixture.broker.ids(TOPIC), sent);
    fixture.is_drained().await;
}

/// Traffic of a few companies through everything that can happen, drawn from a seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_and_loss_hold_through_everything_that_can_happen() {
    const COMPANIES: [&str; 4] = ["a", "b", "c", "d"];
    for seed in crate::cycles::seeds("ORDER", 6) {
        let mut random = Random::new(seed + 1);
        let mut fixture = Fixture::new().await;
        let mut durable: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut next = 0;
        for _ in 0..20 {
            match random.below(9) {
                0..=1 => fixture.broker.hold(),
                2..=3 => fixture.broker.release(),
                4 => fixture.broker.break_producers(random.below(5) as usize),
                5 => fixture.broker.let_through(1 + random.below(19) as usize),
                6 => fixture.doors.set_open(random.below(2) == 0),
                7 => fixture.disk.slow_down(Duration::from_millis([0, 0, 1, 5][random.below(4) as usize])),
                _ => {
                    fixture = fixture.die().await.start().await;
                }
            }
            // Each company's deliveries one after the other, the companies side by side.
            let count = 1 + random.below(14) as usize;
            let sending = COMPANIES.map(|company| send(&fixture, company, next..next + count));
            for (company, sent) in COMPANIES.iter().zip(futures::future::join_all(sending).await) {
                durable.entry(company).or_default().extend(sent);
            }
            next += count;
        }
        fixture.doors.set_open(true);
        fixture.broker.release();
        fixture.is_drained().await;
        fixture.broker.has(TOPIC, durable.values().map(Vec::len).sum()).await;
        let found = by_company(&fixture.broker);
        for (company, sent) in &durable {
            let found: Vec<_> = found[*company].iter().filter(|id| sent.contains(id)).cloned().collect();
            assert_eq!(&found, sent, "company {company}, seed {seed}");
        }
    }
}
