//! What people order, what streams begin and end with, and when gaps that workers open are over.

use super::{transitions::settled, *};

#[test]
fn a_stop_that_was_ordered_after_the_task_began_is_not_over() {
    let mut scene = settled(&[CUSTOMERS]);
    let gap = scene.opened_by_worker(GapCause::Stopped, scene.now);

    scene.round(None);

    assert_eq!(scene.ledger.gaps[&gap].to, None);
}

#[test]
fn a_gap_ends_after_the_reports_that_were_merged_into_it() {
    for cause in [GapCause::Oversized, GapCause::Spool] {
        let mut scene = settled(&[CUSTOMERS]);
        let opened = scene.now;
        let gap = scene.opened_by_worker(cause, opened);

        scene.round(None);

        // The worker merges what it finds within a minute; the margin is shorter.
        let last_merged = opened + 60 * SECOND - 1;
        assert!(scene.rules.margin < 60 * SECOND);
        assert!(scene.ledger.gaps[&gap].to.is_some_and(|to| to > last_merged), "{:?}", scene.ledger.gaps);
        assert!(scene.ledger.repairs[&gap].to > last_merged, "{:?}", scene.ledger.repairs);
    }
}

#[test]
fn a_stream_ends_with_its_subscriptions_and_restarts_later() {
    let mut scene = settled(&[CUSTOMERS]);
    let before = scene.ledger.start.clone().unwrap();
    let all = std::mem::take(&mut scene.wanted);
    scene.converge();
    assert_eq!(scene.ledger.start, None);

    scene.wanted = all;
    scene.now += SECOND;
    scene.converge();

    assert!(scene.ledger.start.unwrap().at > before.at);
}

#[test]
fn a_wish_is_done_only_after_a_look_at_everything() {
    let mut scene = settled(&[CUSTOMERS]);
    let id = scene.only(CUSTOMERS).id.clone();
    scene.provider.set(&id, State::Disabled);
    scene.now += SECOND;
    scene.ledger.requests.command =
        Some(model::SubscriptionCommand { number: 1, removed: false, at: scene.now });

    for _ in 0..10 {
        scene.now += 1;
        scene.round(None);
    }

    assert_eq!(scene.only(CUSTOMERS).state, State::Active);
    assert!(scene.ledger.requests.pending().is_none());
}
