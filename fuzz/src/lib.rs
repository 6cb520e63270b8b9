//! What must hold of every body that was signed, whatever is in it.

use std::sync::Arc;

use bytes::Bytes;
use tributary::model::Outgoing;
use tributary::webhooks::delivery::{Context, Delivery, Family, topic_of};

/// A body as it was verified.
#[must_use]
pub fn delivery(family: Family, body: &[u8]) -> Delivery {
    let context = Context {
        connector: "hooks".to_owned(),
        prefix: "acme".to_owned(),
        dead_letters: "acme.dead-letters".to_owned(),
        received_at: 1_700_000_000_000_000,
        traceparent: None,
        family,
    };
    Delivery { context: Arc::new(context), body: Bytes::copy_from_slice(body) }
}

/// Reads it and holds it to what the intake relies on.
///
/// # Panics
/// It does not keep to that.
pub fn check(delivery: &Delivery) {
    let reading = delivery.read();
    // Nothing is lost: there is something to publish, unless it is a question.
    assert_eq!(reading.parts.is_empty(), reading.acknowledges);
    let whole = reading.parts.len() == 1;
    for part in &reading.parts {
        assert_eq!(part.positions.is_empty(), whole);
        match &part.content {
            Ok(records) => assert!(!records.is_empty() && (whole || records.len() == part.positions.len())),
            Err(_) => assert!(whole && topic_of(&part.lane) == "acme.dead-letters"),
        }
        // What comes back from the disk is the same delivery, and becomes the same records.
        let (restored, positions) = Delivery::from_entry(delivery.to_entry(&part.positions)).expect("our own entry");
        assert_eq!((&restored.body, &restored.context, &positions), (&delivery.body, &delivery.context, &part.positions));
        let (_, again) = restored.read_again(&positions);
        assert_eq!(ids(&again), ids(&part.content));
    }
}

fn ids<E>(content: &Result<Vec<Outgoing>, E>) -> Option<Vec<String>> {
    content.as_ref().ok().map(|records| records.iter().map(|record| record.meta.id.clone()).collect())
}
