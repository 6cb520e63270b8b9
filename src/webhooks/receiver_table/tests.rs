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

/// The receiver that takes the deliveries, if one does.
fn received(found: ReceiverLookup) -> Option<Arc<Receiver>> {
    match found {
        ReceiverLookup::Received(receiver) => Some(receiver),
        ReceiverLookup::Faulty | ReceiverLookup::NotLoaded | ReceiverLookup::NotConfigured => None,
    }
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
    let Trust::Signed { header, keys } = &invoicing.trust else { panic!("{invoicing:?}") };
    let hook = |entity, action| InvoicingHook { entity, action };
    assert_eq!(header, "ms-signature");
    let hooks = [
        hook(InvoicingEntity::Customer, InvoicingAction::Created),
        hook(InvoicingEntity::SaleInvoice, InvoicingAction::Updated),
    ];
    assert!(invoicing.hooks.iter().eq(&hooks) && keys.keys().eq(&hooks));
    assert!(keys.values().all(|keys| keys.start().secrets() == 1));
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
    assert!(receivers.all().is_empty() && received(receivers.accounting("a")).is_none());

    let invoicing = receiver("b", &[("accounting.resources", ""), ("invoicing.segment", "Here")]);
    let accounting = receiver("a", &[("invoicing.hooks", "")]);
    receivers.set(vec![invoicing, accounting], Vec::new());

    assert!(
        received(seen_elsewhere.accounting("a")).is_some()
            && received(seen_elsewhere.invoicing("Here")).is_some()
    );
    assert!(received(receivers.accounting("b")).is_none() && received(receivers.accounting("A")).is_none());
    assert!(
        received(receivers.invoicing("Invoicing")).is_none()
            && received(receivers.invoicing("here")).is_none()
    );
    let names: Vec<_> = receivers.all().iter().map(|receiver| receiver.connector.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    receivers.set(vec![receiver("c", &[])], Vec::new());
    assert!(
        received(seen_elsewhere.accounting("a")).is_none()
            && received(seen_elsewhere.invoicing("Here")).is_none()
    );
}

#[test]
fn the_first_of_two_with_one_segment_gets_its_deliveries() {
    let receivers = Receivers::new();

    receivers.set(vec![receiver("first", &[]), receiver("second", &[])], Vec::new());

    assert_eq!(&*received(receivers.invoicing("Invoicing")).unwrap().connector, "first");
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
    let hook = |text: &str| InvoicingHook::from_slug(text).unwrap();

    assert!(matches!(
        receivers.invoicing_hook("Invoicing", hook("customer-created")),
        ReceiverLookup::Received(_)
    ));
    assert!(matches!(
        receivers.invoicing_hook("Invoicing", hook("customer-updated")),
        ReceiverLookup::NotConfigured
    ));
    assert!(matches!(
        receivers.invoicing_hook("Others", hook("customer-created")),
        ReceiverLookup::NotConfigured
    ));
    receivers.set_not_loaded(true);

    assert!(matches!(
        receivers.invoicing_hook("Invoicing", hook("customer-updated")),
        ReceiverLookup::NotLoaded
    ));
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

    for name in ["b", "c", "d"] {
        assert!(matches!(receivers.accounting(name), ReceiverLookup::Faulty), "{name}");
    }
    assert!(matches!(receivers.invoicing("There"), ReceiverLookup::Faulty));
    assert!(matches!(receivers.accounting("a"), ReceiverLookup::Received(_)));
    assert!(
        matches!(receivers.invoicing("Invoicing"), ReceiverLookup::Received(_)),
        "it is the one's that is received"
    );
    assert!(matches!(
        (receivers.accounting("e"), receivers.invoicing("E")),
        (ReceiverLookup::NotConfigured, ReceiverLookup::NotConfigured)
    ));
    receivers.set_not_loaded(true);
    assert!(matches!(
        (receivers.accounting("e"), receivers.accounting("b")),
        (ReceiverLookup::NotLoaded, ReceiverLookup::Faulty)
    ));
    receivers.set(Vec::new(), Vec::new());
    receivers.set_not_loaded(false);
    assert!(matches!(receivers.accounting("b"), ReceiverLookup::NotConfigured));
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
