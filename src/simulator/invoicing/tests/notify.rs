//! What hooks are told, and which are not.

use std::sync::Arc;

use axum::http::HeaderValue;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{SECRET, provider, provider_with, subscription};
use crate::simulator::{
    Provider,
    catalog::{Action, Entity},
    clock::Ticks,
    deliveries::{Body, Family, Order, Purpose},
    invoicing::{notification::Outcome, rules},
    knobs::InvoicingBody,
    random::Guid,
    world::InvoicingChange,
};

const URI: &str = "https://receiver.example/api/webhooks/incoming/Invoicing";

/// A hook whose echo has come back.
fn hook(provider: &Provider, company: u32, entity: &str, action: &str) -> Guid {
    let body = subscription(URI, entity, action).to_string();
    let parsed = rules::parse(body.as_bytes(), &provider.knobs()).ok().unwrap();
    provider.invoicing.hooks.add(company, parsed, true).unwrap().subscribed.id
}

fn change(company: u32, entity: Entity, action: Action) -> InvoicingChange {
    let at = Ticks(17_000_000_000_000_000);
    InvoicingChange { number: 7, company, entity, id: "4711".to_owned(), action, revision: 2, at }
}

fn orders(provider: &Provider, change: &InvoicingChange) -> Vec<Order> {
    let sent = |outcome| match outcome {
        Outcome::Send(order) => Some(*order),
        Outcome::Missed(..) => None,
    };
    provider.invoicing.outcomes(provider, change).into_iter().filter_map(sent).collect()
}

/// Body and signature of an attempt.
fn attempt(order: &Order, number: u32) -> (Bytes, Option<HeaderValue>) {
    match &order.body {
        Body::Same(body, signature) => (body.clone(), signature.clone()),
        Body::Numbered(write) => write(number),
    }
}

/// HMAC-SHA256 by its definition, over another implementation of the hash than the code under test uses.
fn hmac_sha256(secret: &str, body: &[u8]) -> String {
    let mut key = [0_u8; 64];
    key[..secret.len()].copy_from_slice(secret.as_bytes());
    let inner = Sha256::new().chain_update(key.map(|byte| byte ^ 0x36)).chain_update(body).finalize();
    let outer = Sha256::new().chain_update(key.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize();
    outer.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[test]
fn a_flat_body_has_the_documents_fields() {
    let provider = provider();
    hook(&provider, 1, "SaleInvoice", "Updated");

    let orders = orders(&provider, &change(1, Entity::SaleInvoice, Action::Updated));

    let (body, _) = attempt(&orders[0], 1);
    let expected = concat!(
        r#"{"Entity":"SaleInvoice","EntityId":"4711","TenantId":"d3b3cd91-ceb4-c512-708b-6d1485f9fee7","#,
        r#""User":"ana@example.com","Changes":[{"Name":"Date","Value":"2023-11-14"},"#,
        r#"{"Name":"Name","Value":"Acme"},{"Name":"Total","Value":"89125.54"}]}"#,
    );
    assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
    assert_eq!(attempt(&orders[0], 2).0, body);
}

#[test]
fn a_flat_body_has_two_more_members_by_knob() {
    let provider = provider_with(|knobs| knobs.invoicing.extra_members = true);
    hook(&provider, 1, "Customer", "Deleted");

    let orders = orders(&provider, &change(1, Entity::Customer, Action::Deleted));

    let (body, _) = attempt(&orders[0], 1);
    let expected = concat!(
        r#"{"Entity":"Customer","EntityId":"4711","TenantId":"d3b3cd91-ceb4-c512-708b-6d1485f9fee7","#,
        r#""User":"ana@example.com","Changes":[],"Host":"invoicing.example","SourceApplication":"Mobile"}"#,
    );
    assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
}

#[test]
fn a_wrapped_body_is_indented_and_counts_its_attempts() {
    let provider = provider_with(|knobs| {
        knobs.invoicing.body = InvoicingBody::Wrapped;
        knobs.invoicing.extra_members = true;
    });
    hook(&provider, 0, "Bank", "Created");

    let orders = orders(&provider, &change(0, Entity::Bank, Action::Created));

    let (first, first_signature) = attempt(&orders[0], 1);
    let (third, third_signature) = attempt(&orders[0], 3);
    let expected = r#"{
  "Id": "3d525096656b8e101387d08e6a5adb38",
  "Attempt": 1,
  "Properties": {},
  "Notifications": [
    {
      "Action": "Created",
      "Entity": "Bank",
      "EntityId": "4711",
      "TenantId": "8fb62843-7fc4-1c34-de37-4e207c4d3637",
      "User": "ana@example.com",
      "Changes": [
        {
          "Name": "Code",
          "Value": "276110"
        },
        {
          "Name": "Name",
          "Value": "Talleres Núñez"
        }
      ]
    }
  ]
}"#;
    assert_eq!(std::str::from_utf8(&first).unwrap(), expected);
    assert_eq!(std::str::from_utf8(&third).unwrap(), expected.replace("\"Attempt\": 1", "\"Attempt\": 3"));
    assert_ne!(first_signature, third_signature);
    let again = attempt(&orders[0], 1);
    assert_eq!(again, (first, first_signature));
}

#[test]
fn the_signature_is_of_the_bytes_sent_under_the_header_the_knob_names() {
    for body in [InvoicingBody::Flat, InvoicingBody::Wrapped] {
        for (name, header) in [
            ("ms-signature", Some("ms-signature")),
            ("X-Other", Some("x-other")),
            ("", None),
            ("no name", None),
        ] {
            let provider = provider_with(|knobs| {
                knobs.invoicing.body = body;
                knobs.invoicing.signature_header = name.to_owned();
            });
            hook(&provider, 0, "Customer", "Created");

            let order = orders(&provider, &change(0, Entity::Customer, Action::Created)).remove(0);

            assert_eq!(order.signature_header.as_ref().map(|name| name.as_str()), header, "{name}");
            for number in [1, 2] {
                let (bytes, signature) = attempt(&order, number);
                let expected = header.map(|_| format!("sha256={}", hmac_sha256(SECRET, &bytes)));
                let signature = signature.map(|value| value.to_str().unwrap().to_owned());
                assert_eq!(signature, expected, "{name} {body:?}");
            }
        }
    }
}

#[test]
fn every_subscribed_pair_is_told_of_its_own_changes_and_no_others() {
    let provider = provider();
    let pairs = || Entity::ALL.into_iter().flat_map(|entity| Action::ALL.map(|action| (entity, action)));
    let hooks: Vec<_> = pairs()
        .filter(|(entity, action)| entity.offers(*action))
        .map(|(entity, action)| {
            ((entity, action), hook(&provider, 1, &format!("{entity:?}"), &format!("{action:?}")))
        })
        .collect();

    for (entity, action) in pairs() {
        let told: Vec<Guid> =
            orders(&provider, &change(1, entity, action)).iter().map(|order| order.webhook).collect();
        let expected: Vec<Guid> =
            hooks.iter().filter(|(pair, _)| *pair == (entity, action)).map(|(_, id)| *id).collect();

        assert_eq!(told, expected, "{entity:?}.{action:?}");
        assert_eq!(told.len(), usize::from(entity.offers(action)));
        assert!(orders(&provider, &change(0, entity, action)).is_empty());
    }
}

#[test]
fn an_order_says_where_what_and_how_often() {
    let provider = provider_with(|knobs| knobs.invoicing.retries = vec![1, 2, 3]);
    let id = hook(&provider, 2, "Customer", "Created");
    let other = hook(&provider, 2, "Customer", "Created");

    let orders = orders(&provider, &change(2, Entity::Customer, Action::Created));

    let [order, second] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((order.family, order.purpose), (Family::Invoicing, Purpose::Event));
    assert_eq!((order.webhook, second.webhook), (id, other));
    assert_ne!(order.lane, second.lane);
    assert_eq!(order.url.as_str(), URI);
    assert_eq!((&*order.retries, order.gone_ends), (&[1, 2, 3][..], true));
    assert_eq!(&*order.about.event, "Customer.Created");
    assert_eq!(order.about.company, Some(provider.invoicing.tenant(2).into()));
    assert_eq!(order.about.record.as_deref(), Some("4711"));
    assert_eq!((order.about.sequence, order.about.outgoing), (None, None));
}

#[test]
fn paused_and_ineffective_hooks_miss_what_happens_and_deleted_ones_are_not_asked() {
    let provider = provider();
    let paused = hook(&provider, 0, "Due", "Updated");
    let waiting = hook(&provider, 0, "Due", "Updated");
    let deleted = hook(&provider, 0, "Due", "Updated");
    let active = hook(&provider, 0, "Due", "Updated");
    let found = provider.invoicing.pause(&provider, paused, true);
    provider.invoicing.hooks.update(waiting, |hook| hook.effective = false);
    provider.invoicing.hooks.remove(0, deleted);

    let outcomes = provider.invoicing.outcomes(&provider, &change(0, Entity::Due, Action::Updated));

    let told: Vec<_> = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Send(order) => (order.webhook, true),
            Outcome::Missed(hook, about) => {
                assert_eq!(&*about.event, "Due.Updated");
                (hook, false)
            }
        })
        .collect();
    assert!(found);
    assert_eq!(told, [(paused, false), (waiting, false), (active, true)]);
    let wanted = [paused, waiting, deleted, active].map(|hook| provider.invoicing.wants(hook));
    assert_eq!(wanted, [false, false, false, true]);
    assert!(provider.invoicing.pause(&provider, paused, false));
    assert!(provider.invoicing.wants(paused));
    assert!(!provider.invoicing.pause(&provider, deleted, true));
}

#[test]
fn the_seed_and_the_change_fix_what_is_told() {
    let tell = |number| {
        let provider: Arc<Provider> = provider_with(|knobs| knobs.invoicing.body = InvoicingBody::Wrapped);
        hook(&provider, 0, "Customer", "Created");
        let change = InvoicingChange { number, ..change(0, Entity::Customer, Action::Created) };
        attempt(&orders(&provider, &change)[0], 1)
    };

    assert_eq!(tell(1), tell(1));
    assert_ne!(tell(1), tell(2));
}
