//! Properties that hold for every input, one function for each fuzz target. The integration tests run them over the seeds, so that
//! each stays in step with the product.
//!
//! `fuzz/run [SECONDS] [TARGET…]` fuzzes all targets, or those that are named, for ten minutes each by default.

mod avro;
mod configuration;
mod token;

use std::sync::Arc;

use bytes::Bytes;
use model::{AccountingResource, InvoicingAction, InvoicingEntity, InvoicingHook, Outgoing};
use tributary::webhooks::delivery::{ApiFamily, Delivery, DeliveryContext, topic_of};
use tributary::webhooks::signature::{PresentedSignature, Scheme, SigningKeys};

pub use self::{avro::avro, configuration::configuration, token::token};

/// A signed accounting body, to an address with a resource and to one without.
pub fn envelope(body: &[u8]) {
    for resource in [None, Some(AccountingResource::Customers)] {
        check(&delivery(ApiFamily::Accounting { resource }, body));
    }
    // Nor is anything read from a disk believed.
    drop(Delivery::from_entry(body.to_vec().into()));
}

/// A signed invoicing body, of a hook that is known and of one that is not.
pub fn invoicing_body(body: &[u8]) {
    let hook = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created };
    for hook in [None, Some(hook.into())] {
        check(&delivery(ApiFamily::Invoicing { hook, tenants: Arc::default() }, body));
    }
}

/// The text of a signature header.
///
/// # Panics
/// It is read otherwise than it is written.
pub fn signature_header(text: &[u8]) {
    let required = PresentedSignature::parse(text, Scheme::Required);
    let optional = PresentedSignature::parse(text, Scheme::Optional);

    let digits = text.strip_prefix(b"sha256=");
    let whole = |digits: &[u8]| digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit);
    assert_eq!(required.is_some(), digits.is_some_and(whole));
    assert_eq!(optional.is_some(), digits.map_or_else(|| whole(text), whole));
    // Not guessable.
    for presented in required.iter().chain(&optional) {
        let mut running =
            SigningKeys::new([&b"a secret of twenty-four b"[..], b"another secret of length"]).start();
        running.update(text);
        assert_eq!(running.matching([presented, presented]), None);
    }
}

/// A body as it was verified.
#[must_use]
pub fn delivery(family: ApiFamily, body: &[u8]) -> Delivery {
    let context = DeliveryContext {
        connector: "hooks".into(),
        prefix: "acme".into(),
        dead_letter_topic: "acme.dead-letters".into(),
        received_at: 1_700_000_000_000_000,
        traceparent: None,
        content_ids: true,
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
        let (restored, positions) =
            Delivery::from_entry(delivery.to_entry(&part.positions)).expect("our own entry");
        assert_eq!(
            (&restored.body, &restored.context, &positions),
            (&delivery.body, &delivery.context, &part.positions)
        );
        let (_, again) = restored.read_again(&positions);
        assert_eq!(ids(&again), ids(&part.content));
    }
}

fn ids<E>(content: &Result<Vec<Outgoing>, E>) -> Option<Vec<String>> {
    content.as_ref().ok().map(|records| records.iter().map(|record| record.meta.id.clone()).collect())
}
