//! Which answer a sender gets, and when.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use futures::FutureExt as _;
use tokio::time::{Instant, timeout};

use super::fixture::*;
use crate::{
    spool::fault::Fault,
    webhooks::intake::{AnswerTimes, DeliveryOutcome},
};

/// Kafka has all the time there is.
const PATIENT: AnswerTimes = AnswerTimes { spool_after: LONG, answer_by: LONG };

#[tokio::test]
async fn a_delivery_is_durable_once_kafka_has_it_and_not_before() {
    let fixture = Fixture::with(PATIENT, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    let mut taking = Box::pin(fixture.take("c", "1"));
    fixture.broker.waits_for(1).await;
    assert!(taking.as_mut().now_or_never().is_none());

    fixture.broker.release();

    assert_eq!(taking.await, DeliveryOutcome::Durable);
    assert_eq!(fixture.broker.ids(TOPIC), ["1"]);
    assert_eq!(fixture.disk.durable_commits(), 0, "the spool was not asked");
}

#[tokio::test]
async fn the_late_report_removes_the_spool_copy() {
    let fixture = Fixture::new().await;
    fixture.broker.hold();

    assert_eq!(fixture.take("c", "1").await, DeliveryOutcome::Durable);
    assert_eq!(fixture.spool.lanes().await.unwrap().len(), 1);
    assert!(fixture.broker.ids(TOPIC).is_empty());
    fixture.broker.release();

    fixture.is_drained().await;
    assert_eq!(fixture.broker.records(TOPIC).len(), 1, "it was sent once");
}

#[tokio::test]
async fn later_records_of_a_stalled_queue_go_to_the_disk_at_once() {
    let times = AnswerTimes { spool_after: Duration::from_secs(1), answer_by: LONG };
    let fixture = Fixture::with(times, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    assert_eq!(fixture.take("c", "first").await, DeliveryOutcome::Durable);
    // However late it was sent, it has been without a report for as long as is waited for.
    tokio::time::sleep(times.spool_after).await;

    let begun = Instant::now();
    for id in 0..10 {
        assert_eq!(fixture.take("c", &id.to_string()).await, DeliveryOutcome::Durable);
    }

    assert_eq!(fixture.broker.waiting(), 1, "others were handed to Kafka");
    assert!(
        begun.elapsed() < 8 * times.spool_after,
        "ten of them took {:?}: each waited for Kafka",
        begun.elapsed()
    );
}

#[tokio::test]
async fn without_kafka_and_disk_the_answer_is_late_and_in_time() {
    let times = AnswerTimes { spool_after: Duration::from_millis(20), answer_by: Duration::from_millis(200) };
    let fixture = Fixture::with(times, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    fixture.disk.hold();
    let begun = Instant::now();

    assert_eq!(fixture.take("c", "1").await, DeliveryOutcome::Late);

    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    fixture.disk.release();
    fixture.broker.release();
}

#[tokio::test]
async fn a_failed_disk_refuses_and_takes_the_repetition() {
    let times = AnswerTimes { spool_after: Duration::from_millis(20), answer_by: Duration::from_secs(6) };
    let fixture = Fixture::with(times, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    fixture.disk.fail_commits(&[Fault::Sync]);
    assert_ne!(fixture.take("c", "1").await, DeliveryOutcome::Durable);
    fixture.broker.release();

    assert_eq!(fixture.take("c", "1").await, DeliveryOutcome::Durable);

    fixture.broker.has(TOPIC, 1).await;
}

#[tokio::test]
async fn a_full_spool_refuses() {
    let times = AnswerTimes { spool_after: Duration::from_millis(20), answer_by: Duration::from_secs(2) };
    let fixture = Fixture::with(times, 1, 64 << 20).await;
    fixture.broker.hold();

    assert_eq!(fixture.take("c", "1").await, DeliveryOutcome::Full);

    fixture.broker.release();
}

#[tokio::test]
async fn beyond_the_memory_deliveries_go_to_the_disk_at_once() {
    let fixture = Fixture::with(PATIENT, 1 << 30, 2_000).await;
    fixture.broker.hold();
    let waiting: Vec<_> = (0..4).map(|id| fixture.take("c", &format!("direct-{id}"))).collect();
    let full = async {
        while fixture.intake.memory_used() <= 2_000 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, full).await.expect("four deliveries fit");

    // Kafka has all the time there is: only the disk can have answered.
    assert_eq!(fixture.take("c", "more").await, DeliveryOutcome::Durable);

    fixture.broker.release();
    for one in waiting {
        assert_eq!(one.await, DeliveryOutcome::Durable);
    }
    fixture.is_drained().await;
    assert_eq!(fixture.broker.ids(TOPIC).len(), 5);
}

#[tokio::test]
async fn a_repeated_delivery_is_published_once_and_a_twin_waits() {
    let fixture = Fixture::with(PATIENT, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    let first = fixture.take("c", "1");
    fixture.broker.waits_for(1).await;
    let mut twin = Box::pin(fixture.take("c", "1"));
    tokio::task::yield_now().await;
    assert!(twin.as_mut().now_or_never().is_none());

    fixture.broker.release();

    assert_eq!((first.await, twin.await), (DeliveryOutcome::Durable, DeliveryOutcome::Durable));
    assert_eq!(fixture.take("c", "1").await, DeliveryOutcome::Durable);
    assert_eq!(fixture.broker.records(TOPIC).len(), 1);
}

#[tokio::test]
async fn a_sender_that_hangs_up_does_not_take_its_delivery_back() {
    let fixture = Fixture::new().await;
    fixture.broker.hold();
    let delivery = delivery(body("c", "1"));
    let content = delivery.read();
    {
        let taking = fixture.intake.take(delivery, content, Instant::now());
        tokio::pin!(taking);
        assert!(taking.as_mut().now_or_never().is_none());
    }

    fixture.broker.release();

    fixture.broker.has(TOPIC, 1).await;
    assert_eq!(fixture.take("c", "2").await, DeliveryOutcome::Durable);
    // The spool may have answered first.
    fixture.broker.has(TOPIC, 2).await;
    assert_eq!(fixture.broker.ids(TOPIC), ["1", "2"]);
}

#[tokio::test]
async fn an_unreadable_body_goes_to_the_dead_letters_as_it_came() {
    let fixture = Fixture::with(PATIENT, 1 << 30, 64 << 20).await;
    for bytes in [&b"\xff\xfe"[..], b"", b"[]", b"{\"OutgoingId\":", "[".repeat(10_000).as_bytes()] {
        assert_eq!(fixture.take_body(Bytes::copy_from_slice(bytes)).await, DeliveryOutcome::Durable);

        let letter = fixture.broker.records(DEAD_LETTERS).pop().unwrap();
        assert_eq!(letter.value.as_deref(), Some(bytes));
    }
    assert!(fixture.broker.records(TOPIC).is_empty());
}

#[tokio::test]
async fn two_bodies_are_two_deliveries_even_with_one_id_or_none() {
    let fixture = Fixture::new().await;
    for id in ["", " ", "00000000-0000-0000-0000-000000000000", "00000000000000000000000000000000", "twice"] {
        let before = fixture.broker.records(TOPIC).len();
        for company in ["a", "b", "a"] {
            assert_eq!(fixture.take_body(body(company, id)).await, DeliveryOutcome::Durable);
        }
        fixture.is_drained().await;

        let records = fixture.broker.records(TOPIC).split_off(before);
        let ids: BTreeSet<_> = records.iter().map(|record| record.headers[0].1.clone()).collect();
        // Who names its deliveries sends the third for the first again; who does not sends three.
        let expected = if id == "twice" { (2, 1) } else { (3, 3) };
        assert_eq!((records.len(), ids.len()), expected, "{id}");
    }
}

#[tokio::test]
async fn a_record_too_large_for_kafka_is_a_dead_letter_in_pieces() {
    let fixture = Fixture::with(PATIENT, 1 << 30, 64 << 20).await;
    fixture.broker.refuse_above(Some(600 << 10));
    let filler = "x".repeat(1_500 << 10);
    let large = body("c", &filler);

    assert_eq!(fixture.take_body(large.clone()).await, DeliveryOutcome::Durable);

    // On a slow machine the spool answers first.
    fixture.is_drained().await;
    let letters = fixture.broker.records(DEAD_LETTERS);
    let pieces: Vec<u8> = letters.iter().flat_map(|letter| letter.value.clone().unwrap()).collect();
    assert!(letters.len() > 1);
    assert_eq!(pieces, large);
}

#[tokio::test]
async fn deliveries_wait_until_their_connector_is_ready() {
    let fixture = Fixture::new().await;
    fixture.doors.set_open(false);
    for id in 0..20 {
        assert_eq!(fixture.take("c", &id.to_string()).await, DeliveryOutcome::Durable);
    }
    assert!(fixture.broker.ids(TOPIC).is_empty());

    fixture.doors.set_open(true);

    fixture.broker.has(TOPIC, 20).await;
    fixture.is_drained().await;
    assert_eq!(fixture.broker.records(TOPIC).len(), 20);
}

#[tokio::test]
async fn a_stop_stores_what_has_no_report_and_answers() {
    let fixture = Fixture::with(PATIENT, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    let taking: Vec<_> = (0..20).map(|id| fixture.take("c", &id.to_string())).collect();
    fixture.broker.waits_for(20).await;

    fixture.intake.clone().stop(Instant::now() + Duration::from_millis(50)).await;

    for one in taking {
        assert_eq!(one.await, DeliveryOutcome::Durable);
    }
    assert_eq!(fixture.take("c", "late").await, DeliveryOutcome::Full);
    let fixture = fixture.die().await.start().await;
    fixture.broker.release();
    fixture.broker.has(TOPIC, 20).await;
}

#[tokio::test]
async fn without_waiting_for_kafka_all_is_stored_and_answered() {
    let fixture = Fixture::with(PATIENT, 1 << 30, 64 << 20).await;
    fixture.broker.hold();
    let taking: Vec<_> = (0..20).map(|id| fixture.take("c", &id.to_string())).collect();
    fixture.broker.waits_for(20).await;
    let begun = Instant::now();

    fixture.intake.stop_waiting_for_kafka();

    for one in taking {
        assert_eq!(one.await, DeliveryOutcome::Durable);
    }
    assert_eq!(fixture.take("c", "next").await, DeliveryOutcome::Durable);
    assert!(begun.elapsed() < LONG / 2, "a delivery waited for Kafka: {:?}", begun.elapsed());
    assert!(fixture.broker.ids(TOPIC).is_empty(), "the disk has answered");
    fixture.broker.release();
    fixture.broker.has(TOPIC, 21).await;
    fixture.is_drained().await;
}

#[tokio::test]
async fn without_a_producer_deliveries_are_kept_and_tries_are_few() {
    let fixture = Fixture::new().await;
    fixture.broker.set_unbuildable(true);
    fixture.broker.break_producers(0);
    let begun = Instant::now();

    for id in 0..100 {
        assert_eq!(fixture.take("c", &id.to_string()).await, DeliveryOutcome::Durable);
    }

    fixture.broker.was_tried(2).await;
    let (tries, elapsed) = (fixture.broker.tries(), begun.elapsed());
    // The waits grow from 25 ms at least to a second at least: six of them fit into the first second and a half.
    let most = 8 + elapsed.as_secs();
    assert!(tries <= most, "{tries} tries in {elapsed:?}");
    fixture.broker.set_unbuildable(false);
    fixture.broker.has(TOPIC, 100).await;
}

#[tokio::test]
async fn forbidden_topics_are_reported_until_kafka_allows_them() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.take("c", "before").await, DeliveryOutcome::Durable);
    fixture.broker.set_forbidden(true);
    assert_eq!(fixture.take("c", "1").await, DeliveryOutcome::Durable);
    let reported = fixture.intake.publish_errors();
    assert_eq!(fixture.take("c", "2").await, DeliveryOutcome::Durable);
    assert_eq!(fixture.intake.publish_errors()[0].since, reported[0].since);

    fixture.broker.set_forbidden(false);

    fixture.broker.has(TOPIC, 3).await;
    fixture.is_drained().await;
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!((reported[0].connector.as_str(), reported[0].topic.as_str()), ("hooks", TOPIC));
    assert!(reported[0].cause.to_lowercase().contains("authorization"), "{reported:?}");
    assert!(fixture.intake.publish_errors().is_empty());
}

#[tokio::test]
async fn a_delivery_is_durable_with_the_records_of_all_companies() {
    let fixture = Fixture::new().await;
    let notifications: Vec<_> = (0..40)
        .map(|tenant| format!(r#"{{"Entity":"Customer","EntityId":"{tenant}","TenantId":"t-{tenant}"}}"#))
        .collect();
    for held in [false, true] {
        // Another body each time: the ids of its records follow from it.
        let body = format!(r#"{{"Id":"{held}","Notifications":[{}]}}"#, notifications.join(","));
        if held {
            fixture.broker.hold();
        }
        let before = fixture.broker.records(INVOICING).len();

        assert_eq!(fixture.take_invoicing(Bytes::from(body)).await, DeliveryOutcome::Durable);

        fixture.broker.release();
        fixture.is_drained().await;
        fixture.broker.has(INVOICING, before + 40).await;
        assert_eq!(fixture.broker.records(INVOICING).len(), before + 40, "held: {held}");
    }
}

#[tokio::test]
async fn a_part_that_panics_ends_no_other_part() {
    let times = AnswerTimes { spool_after: Duration::from_millis(500), answer_by: LONG };
    let fixture = Fixture::with(times, 1 << 30, 64 << 20).await;
    let notifications: Vec<_> = (0..80)
        .map(|tenant| format!(r#"{{"Entity":"Customer","EntityId":"{tenant}","TenantId":"t-{tenant}"}}"#))
        .collect();
    let body = Bytes::from(format!(r#"{{"Id":"x","Notifications":[{}]}}"#, notifications.join(",")));
    fixture.broker.refuse_above(Some(10));
    // Each of at most 32 parts asks to enter its lane, and again whenever it tries to write its dead letter.
    fixture.doors.set_trap(40);

    assert_eq!(fixture.take_invoicing(body.clone()).await, DeliveryOutcome::Late);

    assert!(fixture.doors.has_sprung(), "no part panicked");
    fixture.broker.refuse_above(None);
    fixture.is_drained().await;
    let others = fixture.broker.ids(INVOICING).len();
    assert!((1..80).contains(&others), "{others}");
    assert_eq!(fixture.take_invoicing(body).await, DeliveryOutcome::Durable);
    fixture.broker.has(INVOICING, 80).await;
}

#[tokio::test]
async fn a_partly_sent_part_is_resent_before_later_ones() {
    let fixture = Fixture::new().await;
    let of = |entity: u32| format!(r#"{{"Entity":"Customer","EntityId":"{entity}","TenantId":"one"}}"#);
    let pair = Bytes::from(format!(r#"{{"Id":"x","Notifications":[{},{}]}}"#, of(1), of(2)));
    fixture.broker.take_only(1);

    let first = fixture.take_invoicing(pair);
    fixture.broker.has(INVOICING, 1).await;
    let second = fixture.take_invoicing(Bytes::from(of(3)));
    fixture.broker.set_full(false);

    assert_eq!((first.await, second.await), (DeliveryOutcome::Durable, DeliveryOutcome::Durable));
    fixture.is_drained().await;
    fixture.broker.has(INVOICING, 3).await;
    let ids = fixture.broker.ids(INVOICING);
    assert!(ids[0] < ids[1] && ids[1].starts_with(&ids[0]), "the one behind came first: {ids:?}");
}

#[tokio::test]
async fn refused_dead_letters_wait_in_the_spool_not_in_memory() {
    let fixture = Fixture::new().await;
    fixture.broker.refuse_above(Some(10));

    assert_eq!(fixture.take("c", "1").await, DeliveryOutcome::Durable);
    assert_eq!(fixture.spool.lanes().await.unwrap().len(), 1);
    fixture.broker.refuse_above(None);

    fixture.broker.has(TOPIC, 1).await;
    fixture.is_drained().await;
    // The drain lets go of it a moment after it is removed.
    let forgotten = async {
        while fixture.intake.memory_used() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, forgotten).await.expect("it is kept in memory");
}
