//! Deliveries that came before.

use std::sync::Arc;

use crate::webhooks::intake::{
    Outcome,
    in_flight::{Seen, Sight, Ticket},
};

fn first(seen: &Arc<Seen>, id: &str) -> Ticket {
    match seen.see("hooks", id, b"body") {
        Sight::First(ticket) => ticket,
        other => panic!("{id}: {other:?}"),
    }
}

#[tokio::test]
async fn a_twin_in_flight_ends_like_the_first() {
    let seen = Seen::new(10);
    for outcome in [Outcome::Full, Outcome::Late, Outcome::Durable] {
        let ticket = first(&seen, "a");
        let Sight::Twin(twin) = seen.see("hooks", "a", b"body") else { panic!("no twin") };

        ticket.end(outcome);

        assert_eq!(twin.wait().await, &outcome);
    }
    assert!(matches!(seen.see("hooks", "a", b"body"), Sight::Before));
}

#[test]
fn what_was_not_stored_is_forgotten_and_may_come_again() {
    let seen = Seen::new(10);
    first(&seen, "a").end(Outcome::Full);
    drop(first(&seen, "a"));

    first(&seen, "a").end(Outcome::Durable);

    assert!(matches!(seen.see("hooks", "a", b"body"), Sight::Before));
    assert!(
        matches!(seen.see("other", "a", b"body"), Sight::First(_)),
        "ids of another connector are its own"
    );
    assert!(matches!(seen.see("hooks", "a", b"bodies"), Sight::First(_)), "another body is another delivery");
}

#[test]
fn the_window_forgets_the_oldest_and_keeps_its_size() {
    let seen = Seen::new(3);
    for id in ["a", "b", "c", "d"] {
        first(&seen, id).end(Outcome::Durable);
    }
    seen.remember("hooks", "d", b"body");

    assert!(matches!(seen.see("hooks", "b", b"body"), Sight::Before));
    assert!(matches!(seen.see("hooks", "d", b"body"), Sight::Before));
    drop(first(&seen, "a"));
    let window = seen.window.lock();
    assert_eq!((window.ids.len(), window.order.len()), (3, 3));
}
