//! Deliveries that came before.

use std::sync::Arc;

use crate::webhooks::intake::{
    DeliveryOutcome,
    dedup::{Dedup, DedupTicket, DedupVerdict},
};

fn first(seen: &Arc<Dedup>, id: &str) -> DedupTicket {
    match seen.see("hooks", id, b"body") {
        DedupVerdict::First(ticket) => ticket,
        other => panic!("{id}: {other:?}"),
    }
}

#[tokio::test]
async fn a_twin_in_flight_ends_like_the_first() {
    let seen = Dedup::new(10);
    for outcome in [DeliveryOutcome::Full, DeliveryOutcome::Late, DeliveryOutcome::Durable] {
        let ticket = first(&seen, "a");
        let DedupVerdict::Twin(twin) = seen.see("hooks", "a", b"body") else { panic!("no twin") };

        ticket.end(outcome);

        assert_eq!(twin.wait().await, &outcome);
    }
    assert!(matches!(seen.see("hooks", "a", b"body"), DedupVerdict::Before));
}

#[test]
fn an_id_that_was_not_stored_may_come_again() {
    let seen = Dedup::new(10);
    first(&seen, "a").end(DeliveryOutcome::Full);
    drop(first(&seen, "a"));

    first(&seen, "a").end(DeliveryOutcome::Durable);

    assert!(matches!(seen.see("hooks", "a", b"body"), DedupVerdict::Before));
    assert!(
        matches!(seen.see("other", "a", b"body"), DedupVerdict::First(_)),
        "ids of another connector are its own"
    );
    assert!(
        matches!(seen.see("hooks", "a", b"bodies"), DedupVerdict::First(_)),
        "another body is another delivery"
    );
}

#[test]
fn the_window_forgets_the_oldest_and_keeps_its_size() {
    let seen = Dedup::new(3);
    for id in ["a", "b", "c", "d"] {
        first(&seen, id).end(DeliveryOutcome::Durable);
    }
    seen.remember("hooks", "d", b"body");

    assert!(matches!(seen.see("hooks", "b", b"body"), DedupVerdict::Before));
    assert!(matches!(seen.see("hooks", "d", b"body"), DedupVerdict::Before));
    drop(first(&seen, "a"));
    let window = seen.window.lock();
    assert_eq!((window.ids.len(), window.order.len()), (3, 3));
}
