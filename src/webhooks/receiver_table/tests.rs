use model::{InvoicingAction, InvoicingEntity};

use super::*;
use crate::config::{Providers, WebhookSource};

const SECRET: &str = "hunter2-hunter2-hunter2-hunter2-hunter2";

/// Puts a secret where the reader of configurations would not.
type Tamper = fn(&mut WebhookSource, Secret);

fn source(name: &str, changes: &[(&str, &str)]) -> WebhookSource {
    let mut config: BTreeMap<String, String> = [
        ("connector.class", "WebhookSource"),
        ("topic.prefix", "acme"),
        ("accounting.resources", "all"),
        ("accounting.secret", SECRET),
        ("invoicing.hooks", "SaleInvoice:Updated,Customer:Created"),
        ("invoicing.secret", SECRET),
        ("subscriptions.manage", "false"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    config.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    WebhookSource::parse(name, &config, &Providers::new([])).unwrap().0
}

fn receiver(name: &str, changes: &[(&str, &str)]) -> Arc<Receiver> {
    Arc::new(Receiver::of(&source(name, changes), "dead".to_owned(), ReceiverState::Running).unwrap())
}

/// The receivers of an address by name, and whether one may be missing.
fn found(found: ReceiverLookup) -> (Vec<String>, Option<MissingReceiver>) {
    (found.receivers.iter().map(|receiver| receiver.connector.to_string()).collect(), found.missing)
}

/// The same where nothing is missing.
fn of(names: &[&str]) -> (Vec<String>, Option<MissingReceiver>) {
    (names.iter().map(|name| (*name).to_owned()).collect(), None)
}

/// No receiver, for this reason.
fn none(missing: MissingReceiver) -> (Vec<String>, Option<MissingReceiver>) {
    (Vec::new(), Some(missing))
}

#[test]
fn a_receiver_has_what_its_configuration_says() {
    let receiver = receiver("hooks", &[("source.addresses", "192.0.2.0/24"), ("invoicing.tenants", "7=c")]);

    assert_eq!(
        (&*receiver.connector, &*receiver.prefix, &*receiver.dead_letter_topic),
        ("hooks", "acme", "dead")
    );
    assert_eq!(receiver.accounting.as_ref().unwrap().body_limit, 8 << 20);
    let invoicing = receiver.invoicing.as_ref().unwrap();
    assert_eq!(
        (&*invoicing.segment, invoicing.body_limit, invoicing.tenants.len()),
        ("Invoicing", 256 << 10, 1)
    );
    let Trust::Signed { header, keys, whole } = &invoicing.trust else { panic!("{invoicing:?}") };
    assert_eq!(whole.count(), 0);
    let hook = |entity, action| InvoicingHook { entity, action };
    assert_eq!(header, "ms-signature");
    let hooks = [
        hook(InvoicingEntity::Customer, InvoicingAction::Created),
        hook(InvoicingEntity::SaleInvoice, InvoicingAction::Updated),
    ];
    assert!(invoicing.hooks.iter().eq(&hooks) && keys.keys().eq(&hooks));
    assert!(keys.values().all(|keys| keys.count() == 1));
    assert!(receiver.accepts_from([192, 0, 2, 7].into()) && !receiver.accepts_from([192, 0, 3, 7].into()));
}

#[test]
fn a_secret_that_is_short_or_empty_makes_no_receiver() {
    // The reader of configurations refuses these too; who goes around it must not open the door.
    let tampers: [(&str, Tamper); 4] = [
        ("accounting.secret", |source, secret| source.accounting.as_mut().unwrap().secret = secret),
        ("accounting.secret.previous", |source, secret| {
            source.accounting.as_mut().unwrap().previous_secret = Some(secret);
        }),
        ("invoicing.secret", |source, short| {
            let SignatureTrust::Required { secret, .. } = &mut source.invoicing.as_mut().unwrap().signature
            else {
                panic!("signed");
            };
            *secret = short;
        }),
        ("invoicing.secret.previous", |source, short| {
            let SignatureTrust::Required { previous_secret, .. } =
                &mut source.invoicing.as_mut().unwrap().signature
            else {
                panic!("signed");
            };
            *previous_secret = Some(short);
        }),
    ];

    for (key, tamper) in tampers {
        for short in ["", "fifteen letters"] {
            let mut source = source("hooks", &[]);
            tamper(&mut source, Secret::new(short));

            let error = Receiver::of(&source, "dead".to_owned(), ReceiverState::Running).unwrap_err();

            let reported = error.to_string();
            assert!(reported.starts_with(&format!("{key}: ")) && reported.contains("16 bytes"), "{reported}");
            assert_eq!(error.retry(), Retry::Never);
        }
    }
}

#[test]
fn unsigned_deliveries_need_source_addresses() {
    let unsigned = [("invoicing.signature.policy", "off"), ("source.addresses", "192.0.2.0/24")];
    let mut anybody = source("hooks", &unsigned);
    anybody.source_addresses.clear();

    let named = receiver("hooks", &unsigned);

    assert!(matches!(named.invoicing.as_ref().unwrap().trust, Trust::Addresses));
    assert!(matches!(Receiver::of(&anybody, String::new(), ReceiverState::Running), Err(Error::Anybody)));
}

#[test]
fn a_new_table_replaces_the_old_one_whole() {
    let receivers = Receivers::new();
    let seen_elsewhere = receivers.clone();
    assert!(receivers.all().is_empty() && found(receivers.accounting("a")) == of(&[]));

    let invoicing = receiver("b", &[("accounting.resources", ""), ("invoicing.segment", "Here")]);
    let accounting = receiver("a", &[("invoicing.hooks", "")]);
    receivers.set(vec![invoicing, accounting], Vec::new());

    assert_eq!(found(seen_elsewhere.accounting("a")), of(&["a"]));
    assert_eq!(found(seen_elsewhere.invoicing("Here", None)), of(&["b"]));
    assert_eq!(found(receivers.accounting("A")), of(&[]));
    for segment in ["Invoicing", "here"] {
        assert_eq!(found(receivers.invoicing(segment, None)), of(&[]), "{segment}");
    }
    let names: Vec<_> = receivers.all().iter().map(|receiver| receiver.connector.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    receivers.set(vec![receiver("c", &[])], Vec::new());
    assert_eq!(found(seen_elsewhere.accounting("a")), of(&[]));
    assert_eq!(found(seen_elsewhere.invoicing("Here", None)), of(&[]));
}

#[test]
fn receivers_that_share_a_segment_are_found_by_name() {
    let receivers = Receivers::new();
    let second = receiver("second", &[("invoicing.hooks", "Product:Created")]);

    receivers.set(vec![second, receiver("first", &[])], Vec::new());

    let hook = |text: &str| InvoicingHook::from_slug(text);
    assert_eq!(found(receivers.invoicing("Invoicing", None)), of(&["first", "second"]));
    assert_eq!(found(receivers.invoicing("Invoicing", hook("product-created"))), of(&["second"]));
    assert_eq!(found(receivers.invoicing("Invoicing", hook("customer-created"))), of(&["first"]));
}

#[test]
fn at_most_two_keys_belong_to_a_hook() {
    let changes =
        [("invoicing.hooks", "all"), ("invoicing.secret.previous", "the invoicing secret before that one")];
    let receiver = receiver("hooks", &changes);

    let Trust::Signed { keys, .. } = &receiver.invoicing.as_ref().unwrap().trust else {
        panic!("{receiver:?}")
    };

    assert_eq!(keys.len(), 16 * 3 + 2);
    assert!(keys.values().all(|keys| keys.count() == 2), "{keys:?}");
}

#[test]
fn a_hook_that_is_not_configured_has_no_address() {
    let receivers = Receivers::new();
    receivers.set(vec![receiver("hooks", &[])], Vec::new());
    let hook = |text: &str| InvoicingHook::from_slug(text);

    assert_eq!(found(receivers.invoicing("Invoicing", hook("customer-created"))), of(&["hooks"]));
    assert_eq!(found(receivers.invoicing("Invoicing", hook("customer-updated"))), of(&[]));
    assert_eq!(found(receivers.invoicing("Others", hook("customer-created"))), of(&[]));
    receivers.set_not_loaded(true);

    let unknown = found(receivers.invoicing("Invoicing", hook("customer-updated")));
    assert_eq!(unknown, none(MissingReceiver::NotLoaded));
}

#[test]
fn one_secret_for_all_hooks_still_knows_the_derived_ones() {
    let changes = [
        ("invoicing.secret.scope", "connector"),
        ("invoicing.secret.previous", "the invoicing secret before that one"),
    ];
    let receiver = receiver("hooks", &changes);

    let Trust::Signed { keys, whole, .. } = &receiver.invoicing.as_ref().unwrap().trust else {
        panic!("{receiver:?}")
    };

    assert_eq!((whole.count(), receiver.advertised.invoicing.len()), (2, 4));
    assert!(keys.values().all(|keys| keys.count() == 2), "{keys:?}");
}

#[test]
fn nothing_of_a_secret_is_shown() {
    let shown =
        format!("{:?}", receiver("hooks", &[("accounting.secret.previous", "hunter2-before-that-one")]));

    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn faulty_and_unknown_connectors_are_distinguished() {
    let receivers = Receivers::new();
    let faulty = |connector: &str, segment: Option<&str>| FaultyReceiver {
        connector: connector.into(),
        segment: segment.map(Into::into),
    };

    receivers.set(
        vec![receiver("a", &[])],
        vec![faulty("b", Some("There")), faulty("c", Some("Invoicing")), faulty("d", None)],
    );

    let faulty = none(MissingReceiver::Faulty);
    for name in ["b", "c", "d"] {
        assert_eq!(found(receivers.accounting(name)), faulty, "{name}");
    }
    assert_eq!(found(receivers.invoicing("There", None)), faulty);
    assert_eq!(found(receivers.accounting("a")), of(&["a"]));
    let shared = found(receivers.invoicing("Invoicing", None));
    assert_eq!(shared, (vec!["a".to_owned()], Some(MissingReceiver::Faulty)), "c may have it too");
    assert_eq!(found(receivers.accounting("e")), of(&[]));
    assert_eq!(found(receivers.invoicing("E", None)), of(&[]));
    receivers.set_not_loaded(true);
    assert_eq!(found(receivers.accounting("e")), none(MissingReceiver::NotLoaded));
    assert_eq!(found(receivers.accounting("b")), faulty);
    assert_eq!(found(receivers.accounting("a")), of(&["a"]));
    receivers.set(Vec::new(), Vec::new());
    receivers.set_not_loaded(false);
    assert_eq!(found(receivers.accounting("b")), of(&[]));
}

#[test]
fn deliveries_are_counted_by_webhook_and_by_hook() {
    let (delivery_stats, hooks) = (DeliveryStats::default(), Arc::from("hooks"));
    let hook: InvoicingHook =
        InvoicingHook { entity: "Customer".parse().unwrap(), action: "Created".parse().unwrap() };

    for at in [5, 9, 7] {
        delivery_stats.note(&hooks, DeliveredBy::Webhook("w-1", Some(AccountingResource::Customers)), at);
    }
    delivery_stats.note(&hooks, DeliveredBy::Webhook("w-1", None), 8);
    delivery_stats.note(&hooks, DeliveredBy::Hook(hook), 3);

    let heard = delivery_stats.of("hooks");
    let resource = Some(AccountingResource::Customers);
    assert_eq!(heard.webhooks, [("w-1".to_owned(), Traffic { resource, last: 9, count: 4 })].into());
    assert_eq!(heard.hooks[&Target::Invoicing(hook)].last, 3);
    assert_eq!((delivery_stats.count("hooks"), delivery_stats.count("others")), (5, 0));
    delivery_stats.retain(|name| name != "hooks");
    assert_eq!(delivery_stats.count("hooks"), 0);
}

#[test]
fn webhooks_with_the_latest_deliveries_are_kept() {
    let (delivery_stats, hooks) = (DeliveryStats::default(), Arc::from("hooks"));

    for at in 0..=MAX_TRACKED_WEBHOOKS {
        delivery_stats.note(&hooks, DeliveredBy::Webhook(&format!("w-{at}"), None), at as i64);
    }

    let heard = delivery_stats.of("hooks");
    assert_eq!(heard.webhooks.len(), MAX_TRACKED_WEBHOOKS);
    assert!(!heard.webhooks.contains_key("w-0") && heard.webhooks.contains_key("w-1"));
}
