//! Several connectors under one invoicing segment: the secret that verifies a delivery says whose it is.

use std::{net::Ipv4Addr, sync::Arc};

use model::InvoicingHook;
use tokio::sync::mpsc;
use tributary::webhooks::{
    delivery::ApiFamily,
    receiver_table::{Receiver, ReceiverState},
};

use super::rig::{
    ACCOUNTING, INVOICING, MASTER, PREVIOUS_MASTER, Rig, event, exchange, hook_secret, request, sign,
};

crate::tests! {
    plain each_delivery_goes_to_the_connector_that_verifies_it;
    plain a_signature_of_none_of_them_is_refused_as_for_unknown;
    plain a_missing_connector_makes_unverified_deliveries_wait;
    plain each_connector_keeps_its_own_header_source_and_limit;
    plain a_stopped_connector_stops_no_other_of_its_segment;
    plain an_echo_is_answered_and_reported_for_each_of_them;
    plain one_secret_for_all_hooks_verifies_at_either_address;
    plain a_connector_without_accounting_takes_no_accounting_delivery;
}

/// Secrets of the other connectors.
const SHOP: &str = "the invoicing secret of the shop, long enough";
const FARM: &str = "the invoicing secret of the farm, long enough";
const BODY: &[u8] = br#"{"Entity":"Customer","EntityId":"7","TenantId":"42","User":"ann","Changes":[]}"#;
const CREATED: &str = "Customer:Created";

/// A rig that receives `hooks` and `shop`.
struct Sharing {
    rig: Rig,
    hooks: Arc<Receiver>,
    shop: Arc<Receiver>,
}

impl Sharing {
    async fn start(changes: &[(&str, &str)]) -> Self {
        let rig = Rig::start().await;
        let hooks = rig.receiver("hooks", &[], ReceiverState::Running);
        let shop = rig.receiver("shop", &as_shop(changes), ReceiverState::Running);
        let sharing = Self { rig, hooks, shop };
        sharing.receive(&[]);
        sharing
    }

    /// Receives both, while `faulty` connectors have the segment too.
    fn receive(&self, faulty: &[&str]) {
        self.rig.receive(vec![Arc::clone(&self.hooks), Arc::clone(&self.shop)], faulty);
    }
}

/// What differs in the configuration of `shop`.
fn as_shop<'a>(changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let own = [
        ("topic.prefix", "shop"),
        ("invoicing.secret", SHOP),
        ("invoicing.secret.previous", FARM),
        ("invoicing.hooks", "Customer:Created,Product:Created"),
    ];
    [&own[..], changes].concat()
}

/// A delivery of a hook, signed for the connector with this secret, to an address below the segment's.
fn posted(below: &str, master: &str, hook: &str) -> Vec<u8> {
    let signature = sign(&hook_secret(master, hook), BODY);
    request("POST", &format!("{INVOICING}{below}"), &[("ms-signature", &signature)], BODY)
}

/// Connector, prefix and hook of every delivery since the last call.
fn taken(rig: &Rig) -> Vec<(String, String, Option<InvoicingHook>)> {
    let one = |delivery: &tributary::webhooks::delivery::Delivery| {
        let ApiFamily::Invoicing { hook, .. } = &delivery.context.family else { panic!("{delivery:?}") };
        let context = &delivery.context;
        (context.connector.to_string(), context.prefix.to_string(), hook.map(Into::into))
    };
    rig.taken.drain().iter().map(|(delivery, _)| one(delivery)).collect()
}

async fn each_delivery_goes_to_the_connector_that_verifies_it() {
    let Sharing { rig, .. } = Sharing::start(&[]).await;
    let created = InvoicingHook::from_slug("customer-created");

    for below in ["", "/customer-created"] {
        for (master, connector, prefix) in [
            (MASTER, "hooks", "acme"),
            (PREVIOUS_MASTER, "hooks", "acme"),
            (SHOP, "shop", "shop"),
            (FARM, "shop", "shop"),
        ] {
            assert_eq!(rig.ask(&posted(below, master, CREATED)).await.status, 200, "{connector} {below}");
            let expected = (connector.to_owned(), prefix.to_owned(), created);
            assert_eq!(taken(&rig), [expected], "{below}");
        }
    }
    // Only one of them has this hook.
    let product = InvoicingHook::from_slug("product-created");
    for (below, status) in [("", 200), ("/product-created", 200), ("/customer-updated", 401)] {
        assert_eq!(rig.ask(&posted(below, SHOP, "Product:Created")).await.status, status, "{below}");
        assert_eq!(rig.ask(&posted(below, MASTER, "Product:Created")).await.status, 401, "{below}");
    }
    assert_eq!(taken(&rig), vec![("shop".to_owned(), "shop".to_owned(), product); 2]);
}

async fn a_signature_of_none_of_them_is_refused_as_for_unknown() {
    let Sharing { rig, .. } = Sharing::start(&[]).await;

    for below in ["", "/customer-created"] {
        let answer = rig.ask(&posted(below, "another invoicing secret, long enough", CREATED)).await;
        let unknown = format!("/api/webhooks/incoming/Others{below}");
        let signature = sign(&hook_secret(MASTER, CREATED), BODY);
        let expected = rig.ask(&request("POST", &unknown, &[("ms-signature", &signature)], BODY)).await;

        assert_eq!((answer.status, &answer), (401, &expected), "{below}");
    }
    assert!(taken(&rig).is_empty());
}

async fn a_missing_connector_makes_unverified_deliveries_wait() {
    let sharing = Sharing::start(&[]).await;
    let rig = &sharing.rig;
    let statuses = async || {
        let mut statuses = Vec::new();
        for below in ["", "/customer-created", "/bank-created"] {
            for master in [MASTER, SHOP, "the secret of the missing one, long enough"] {
                statuses.push(rig.ask(&posted(below, master, CREATED)).await.status);
            }
            let unsigned = request("POST", &format!("{INVOICING}{below}"), &[], BODY);
            statuses.push(rig.ask(&unsigned).await.status);
        }
        statuses
    };

    let whole = statuses().await;
    sharing.receive(&["farm"]);
    let faulty = statuses().await;
    sharing.receive(&[]);
    rig.set_not_loaded(true);
    let not_loaded = statuses().await;

    assert_eq!(whole, [200, 200, 401, 401, 200, 200, 401, 401, 401, 401, 401, 401]);
    for missing in [faulty, not_loaded] {
        assert_eq!(missing, [200, 200, 503, 503, 200, 200, 503, 503, 503, 503, 503, 503]);
    }
    assert_eq!(taken(rig).len(), 12);
}

async fn each_connector_keeps_its_own_header_source_and_limit() {
    let changes = [
        ("invoicing.signature.header", "x-proof"),
        ("source.addresses", "127.0.0.2"),
        ("invoicing.body.limit.bytes", "2000"),
    ];
    let Sharing { mut rig, .. } = Sharing::start(&changes).await;
    let long = vec![b' '; 2_001];
    let send = |header: &str, master: &str, body: &[u8]| {
        let signature = sign(&hook_secret(master, CREATED), body);
        request("POST", INVOICING, &[(header, &signature)], body)
    };
    let (listed, other) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));

    for (from, request, expected) in [
        (listed, send("x-proof", SHOP, BODY), 200),
        (listed, send("ms-signature", MASTER, BODY), 200),
        (other, send("ms-signature", MASTER, BODY), 200),
        (other, send("x-proof", SHOP, BODY), 401),
        (listed, send("ms-signature", SHOP, BODY), 401),
        (listed, send("x-proof", MASTER, BODY), 401),
        (listed, send("ms-signature", MASTER, &long), 200),
        (listed, send("x-proof", SHOP, &long), 413),
    ] {
        let answers = exchange(rig.connect_from(from).await, &request).await;

        assert_eq!(answers[0].status, expected, "{from}: {}", String::from_utf8_lossy(&request[..200]));
    }
    let connectors: Vec<String> = taken(&rig).into_iter().map(|(connector, ..)| connector).collect();
    assert_eq!(connectors, ["shop", "hooks", "hooks", "hooks"]);
    let oversized = rig.oversized.try_recv().unwrap();
    assert_eq!((&*oversized.connector, oversized.limit), ("shop", 2_000));
}

async fn a_stopped_connector_stops_no_other_of_its_segment() {
    let Sharing { rig, hooks, .. } = Sharing::start(&[]).await;
    let stopped = rig.receiver("shop", &as_shop(&[]), ReceiverState::Stopped);
    rig.receive(vec![hooks, stopped], &[]);

    for below in ["", "/customer-created"] {
        let statuses = [
            rig.ask(&posted(below, MASTER, CREATED)).await.status,
            rig.ask(&posted(below, SHOP, CREATED)).await.status,
            rig.ask(&posted(below, "another invoicing secret, long enough", CREATED)).await.status,
        ];
        assert_eq!(statuses, [200, 503, 401], "{below}");
    }
    let echo = format!("{INVOICING}/product-created?echo={}", "a".repeat(32));
    assert_eq!(rig.ask(&request("GET", &echo, &[], b"")).await.status, 503, "only the stopped one has it");
}

async fn an_echo_is_answered_and_reported_for_each_of_them() {
    let (reports, mut echoes) = mpsc::channel(8);
    let rig = Rig::with(|setup| setup.receiver.echoed = Some(reports)).await;
    let hooks = rig.receiver("hooks", &[], ReceiverState::Running);
    let shop = rig.receiver("shop", &as_shop(&[]), ReceiverState::Running);
    rig.receive(vec![hooks, shop], &["farm"]);
    let guid = "0123456789abcdef0123456789abcdef";

    for (below, status) in
        [("", 200), ("/customer-created", 200), ("/product-created", 200), ("/bank-created", 503)]
    {
        let path = format!("{INVOICING}{below}?echo={guid}");
        let answer = rig.ask(&request("GET", &path, &[], b"")).await;

        assert_eq!(answer.status, status, "{below}");
    }

    let mut reported = Vec::new();
    while let Ok(echoed) = echoes.try_recv() {
        reported.push((echoed.connector.to_string(), echoed.hook.map(|hook| hook.slug())));
    }
    let of = |connector: &str, hook: Option<&str>| (connector.to_owned(), hook.map(str::to_owned));
    let created = Some("customer-created");
    let expected = [
        of("hooks", None),
        of("shop", None),
        of("hooks", created),
        of("shop", created),
        of("shop", Some("product-created")),
    ];
    assert_eq!(reported, expected);
}

async fn one_secret_for_all_hooks_verifies_at_either_address() {
    let Sharing { rig, .. } = Sharing::start(&[("invoicing.secret.scope", "connector")]).await;
    let created = InvoicingHook::from_slug("customer-created");
    let whole = |below: &str, secret: &str| {
        request("POST", &format!("{INVOICING}{below}"), &[("ms-signature", &sign(secret, BODY))], BODY)
    };

    for (request, hook) in [
        (whole("", SHOP), None),
        (whole("", FARM), None),
        (whole("/customer-created", SHOP), created),
        (whole("/customer-created", FARM), created),
        // Hooks from before the change of the scope.
        (posted("", SHOP, CREATED), created),
        (posted("/customer-created", SHOP, CREATED), created),
    ] {
        assert_eq!(rig.ask(&request).await.status, 200, "{hook:?}");
        assert_eq!(taken(&rig), [("shop".to_owned(), "shop".to_owned(), hook)]);
    }
    // The other connector derives its secrets.
    for below in ["", "/customer-created"] {
        assert_eq!(rig.ask(&whole(below, MASTER)).await.status, 401, "{below}");
    }
}

async fn a_connector_without_accounting_takes_no_accounting_delivery() {
    let rig = Rig::start().await;
    rig.receive(vec![rig.receiver("hooks", &[("accounting.resources", "")], ReceiverState::Running)], &[]);
    let body = event("1");

    // The key that deliveries to unknown connectors are checked with.
    let signature = sign("in the place of a secret", &body);
    let answer = rig.ask(&request("POST", ACCOUNTING, &[("svc-webhook-signature", &signature)], &body)).await;

    assert_eq!((answer.status, rig.taken.drain().len()), (401, 0));
}
