//! The invoicing API: the echo, one secret for each hook, and unsigned deliveries.

use std::net::Ipv4Addr;

use model::{InvoicingAction, InvoicingEntity, InvoicingHook};
use tokio::sync::mpsc;
use tributary::webhooks::{
    delivery::{ApiFamily, Delivery},
    receiver::HashLimit,
};

use super::rig::{
    ACCOUNTING, INVOICING, MASTER, PREVIOUS_MASTER, Rig, SECRET, chunk, event, exchange, hook_secret,
    request, sign,
};

crate::tests! {
    plain the_echo_is_a_guid_as_it_came_and_never_anything_else;
    plain the_verifying_secret_identifies_the_hook;
    plain each_hook_has_an_address_for_its_own_secrets;
    plain an_own_address_echoes_where_its_hook_is_configured;
    plain an_answered_echo_is_reported_once_for_each_address;
    plain an_echo_from_an_unlisted_address_is_not_reported;
    plain an_oversized_invoicing_body_is_refused_at_once;
    plain a_source_that_forges_too_much_is_refused_alone;
    plain a_replayed_delivery_has_the_same_id;
    plain no_other_secret_verifies_an_invoicing_delivery;
    plain the_signature_comes_only_from_the_configured_header;
    plain unsigned_deliveries_need_a_listed_address_and_have_no_action;
    plain an_own_address_identifies_the_hook_of_unsigned_deliveries;
}

const BODY: &[u8] = br#"{"Entity":"Customer","EntityId":"7","TenantId":"42","User":"ann","Changes":[]}"#;

fn hook(entity: InvoicingEntity, action: InvoicingAction) -> InvoicingHook {
    InvoicingHook { entity, action }
}

/// The hook that a delivery is attributed to.
fn hook_of(delivery: &Delivery) -> InvoicingHook {
    match &delivery.context.family {
        ApiFamily::Invoicing { hook: Some(found), .. } => InvoicingHook::from(*found),
        other => panic!("{other:?}"),
    }
}

const HOOKS: [(&str, &str); 3] = [
    ("Customer:Created", "customer-created"),
    ("Customer:Updated", "customer-updated"),
    ("SaleInvoice:Updated", "sale-invoice-updated"),
];

/// A delivery to the address of a hook.
fn posted_to(slug: &str, signature: &str) -> Vec<u8> {
    request("POST", &format!("{INVOICING}/{slug}"), &[("ms-signature", signature)], BODY)
}

fn posted(signature: &str) -> Vec<u8> {
    request("POST", INVOICING, &[("ms-signature", signature)], BODY)
}

async fn the_echo_is_a_guid_as_it_came_and_never_anything_else() {
    let rig = Rig::start().await;
    let ask = |method: &str, path: &str| request(method, path, &[], b"");

    for guid in ["0123456789abcdefABCDEF9876543210", "01234567-89ab-cdef-ABCD-EF9876543210"] {
        let answer = rig.ask(&ask("GET", &format!("{INVOICING}?echo={guid}"))).await;

        assert_eq!((answer.status, answer.body.as_slice()), (200, guid.as_bytes()));
        assert_eq!(answer.header("content-type"), Some("text/plain"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("set-cookie"), None);
    }
    let guid = "0123456789abcdef0123456789abcdef";
    for query in [
        String::new(),
        "?echo=".to_owned(),
        "?echo=%3Cscript%3E".to_owned(),
        format!("?echo={guid}&echo={guid}"),
        format!("?echo={guid}0"),
        format!("?echo={}", "a".repeat(10_000)),
        format!("?ECHO={guid}"),
    ] {
        let answer = rig.ask(&ask("GET", &format!("{INVOICING}{query}"))).await;

        assert_eq!((answer.status, answer.body.len()), (400, 0), "{query}");
    }
    for (method, path) in [
        ("GET", format!("/api/webhooks/incoming/Others?echo={guid}")),
        ("GET", format!("/webhooks/accounting/hooks?echo={guid}")),
        ("HEAD", format!("{INVOICING}?echo={guid}")),
        ("OPTIONS", format!("{INVOICING}?echo={guid}")),
    ] {
        let answer = rig.ask(&ask(method, &path)).await;

        assert_eq!((answer.status, answer.body.len()), (404, 0), "{method} {path}");
    }
}

async fn the_verifying_secret_identifies_the_hook() {
    let rig = Rig::start().await;

    for master in [MASTER, PREVIOUS_MASTER] {
        for (name, hook) in [
            ("Customer:Created", hook(InvoicingEntity::Customer, InvoicingAction::Created)),
            ("Customer:Updated", hook(InvoicingEntity::Customer, InvoicingAction::Updated)),
            ("SaleInvoice:Updated", hook(InvoicingEntity::SaleInvoice, InvoicingAction::Updated)),
        ] {
            let signature = sign(&hook_secret(master, name), BODY);
            let without_scheme = signature["sha256=".len()..].to_lowercase();

            for signature in [signature, without_scheme] {
                assert_eq!(rig.ask(&posted(&signature)).await.status, 200, "{name}");

                let (delivery, _) = rig.taken.drain().pop().unwrap();
                assert_eq!(hook_of(&delivery), hook, "{name}");
                assert_eq!(delivery.body, BODY);
            }
        }
    }
}

async fn no_other_secret_verifies_an_invoicing_delivery() {
    let rig = Rig::start().await;
    let good = sign(&hook_secret(MASTER, "Customer:Created"), BODY);

    for (what, request) in [
        ("the master secret itself", posted(&sign(MASTER, BODY))),
        ("a hook that is not configured", posted(&sign(&hook_secret(MASTER, "Product:Created"), BODY))),
        ("the accounting secret", posted(&sign(SECRET, BODY))),
        ("a hook of another master", posted(&sign(&hook_secret(SECRET, "Customer:Created"), BODY))),
        ("another body", request("POST", INVOICING, &[("ms-signature", &good)], &event("1"))),
        ("two", request("POST", INVOICING, &[("ms-signature", &good), ("ms-signature", &good)], BODY)),
        ("none", request("POST", INVOICING, &[], BODY)),
        ("the echo's query", request("POST", &format!("{INVOICING}?echo={}", "a".repeat(32)), &[], BODY)),
    ] {
        let answer = rig.ask(&request).await;

        assert_eq!((answer.status, answer.body.len()), (401, 0), "{what}");
    }
    assert_eq!(rig.taken.drain().len(), 0);
}

async fn the_signature_comes_only_from_the_configured_header() {
    let rig = Rig::with(|setup| {
        setup.set("invoicing.signature.header", "X-Proof");
        setup.set("invoicing.segment", "Here");
    })
    .await;
    let good = sign(&hook_secret(MASTER, "Customer:Created"), BODY);
    let send = |header: &str, segment: &str| {
        request("POST", &format!("/api/webhooks/incoming/{segment}"), &[(header, good.as_str())], BODY)
    };

    assert_eq!(rig.ask(&send("x-proof", "Here")).await.status, 200);
    assert_eq!(rig.ask(&send("ms-signature", "Here")).await.status, 401);
    assert_eq!(rig.ask(&send("x-proof", "Invoicing")).await.status, 401);
    assert_eq!(rig.taken.drain().len(), 1);
}

async fn unsigned_deliveries_need_a_listed_address_and_have_no_action() {
    let rig = Rig::with(|setup| {
        setup.set("invoicing.signature.policy", "off");
        setup.set("source.addresses", "127.0.0.2");
    })
    .await;
    let unsigned = request("POST", INVOICING, &[], BODY);
    let unread = request("POST", INVOICING, &[], b"<xml/>");

    let listed = exchange(rig.connect_from(Ipv4Addr::new(127, 0, 0, 2)).await, &unsigned).await;
    let strange = exchange(rig.connect_from(Ipv4Addr::new(127, 0, 0, 3)).await, &unsigned).await;
    let pretends = request("POST", INVOICING, &[("x-forwarded-for", "127.0.0.2")], BODY);
    let pretending = exchange(rig.connect_from(Ipv4Addr::new(127, 0, 0, 3)).await, &pretends).await;
    let listed_unread = exchange(rig.connect_from(Ipv4Addr::new(127, 0, 0, 2)).await, &unread).await;

    let statuses = [&listed, &strange, &pretending, &listed_unread].map(|answers| answers[0].status);
    assert_eq!(statuses, [200, 401, 401, 200]);
    let taken = rig.taken.drain();
    let [(delivery, reading), (_, dead)] = taken.as_slice() else { panic!("{taken:?}") };
    assert!(matches!(&delivery.context.family, ApiFamily::Invoicing { hook: None, .. }));
    assert!(reading.parts[0].content.is_ok() && dead.parts[0].content.is_err());
}

async fn each_hook_has_an_address_for_its_own_secrets() {
    let rig = Rig::start().await;

    for master in [MASTER, PREVIOUS_MASTER] {
        for (name, _) in HOOKS {
            for (own, slug) in HOOKS {
                let answer = rig.ask(&posted_to(slug, &sign(&hook_secret(master, name), BODY))).await;

                let expected = if own == name { 200 } else { 401 };
                assert_eq!((answer.status, answer.body.len()), (expected, 0), "{name} at {slug}");
                let taken = rig.taken.drain();
                assert_eq!(taken.len(), usize::from(own == name));
                for (delivery, _) in taken {
                    assert_eq!(hook_of(&delivery), InvoicingHook::from_slug(slug).unwrap());
                }
            }
        }
    }
    let good = sign(&hook_secret(MASTER, "Customer:Created"), BODY);
    let expected = rig.ask(&posted_to("customer-created", &sign(SECRET, BODY))).await;
    for slug in ["customer-deleted", "Customer-Created", "customer", "%ff", "customer-created%2F"] {
        assert_eq!(rig.ask(&posted_to(slug, &good)).await, expected, "{slug}");
    }
    for path in ["customer-created/", "customer-created/x"] {
        assert_eq!(rig.ask(&posted_to(path, &good)).await.status, 404, "{path}");
    }
    assert_eq!(rig.taken.drain().len(), 0);
}

async fn an_answered_echo_is_reported_once_for_each_address() {
    let (reports, mut echoes) = mpsc::channel(8);
    let rig = Rig::with(|setup| setup.receiver.echoed = Some(reports)).await;
    let guid = "a".repeat(32);
    let own = format!("{INVOICING}/customer-created");

    // Within a second only the first echo of an address is reported; a refused request is never reported.
    for (path, status) in
        [(INVOICING, 200), (INVOICING, 200), (&own, 200), ("/api/webhooks/incoming/Others", 404)]
    {
        let answer = rig.ask(&request("GET", &format!("{path}?echo={guid}"), &[], b"")).await;
        assert_eq!(answer.status, status, "{path}");
    }
    rig.ask(&request("GET", &format!("{own}?echo="), &[], b"")).await;

    let [shared, hook] = [echoes.recv().await.unwrap(), echoes.recv().await.unwrap()];
    assert_eq!((&*shared.connector, shared.hook), ("hooks", None));
    assert_eq!(hook.hook, InvoicingHook::from_slug("customer-created"));
    assert!(shared.received_at > 1_700_000_000_000_000 && hook.received_at >= shared.received_at);
    assert!(echoes.try_recv().is_err());
}

async fn an_echo_from_an_unlisted_address_is_not_reported() {
    let (reports, mut echoes) = mpsc::channel(8);
    let rig = Rig::with(|setup| {
        setup.set("source.addresses", "198.51.100.0/24");
        setup.receiver.echoed = Some(reports);
    })
    .await;

    let answer = rig.ask(&request("GET", &format!("{INVOICING}?echo={}", "a".repeat(32)), &[], b"")).await;

    assert_eq!((answer.status, echoes.try_recv().is_err()), (200, true));
}

async fn an_own_address_echoes_where_its_hook_is_configured() {
    let rig = Rig::start().await;
    let guid = "0123456789abcdef0123456789abcdef";

    for (slug, status) in [("customer-created", 200), ("customer-deleted", 404), ("Customer-Created", 404)] {
        let path = format!("{INVOICING}/{slug}?echo={guid}");

        let answer = rig.ask(&request("GET", &path, &[], b"")).await;

        let body = if status == 200 { guid.as_bytes() } else { b"" };
        assert_eq!((answer.status, answer.body.as_slice()), (status, body), "{slug}");
    }
}

async fn an_oversized_invoicing_body_is_refused_at_once() {
    let limit = 2_000;
    let mut rig = Rig::with(|setup| {
        setup.set("invoicing.body.limit.bytes", &limit.to_string());
        // No byte may be hashed: a request that needs it is answered 503.
        setup.receiver.hash_limit = HashLimit { burst: 0, per_second: 0, free: 0 };
    })
    .await;
    let key = hook_secret(MASTER, "Customer:Created");
    let own = format!("{INVOICING}/customer-created");

    for (path, length) in [(INVOICING, limit + 1), (&*own, limit + 1), (INVOICING, 1 << 20), (&*own, 1 << 20)]
    {
        let body = vec![b' '; length];
        let signature = sign(&key, &body);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nms-signature: {signature}\r\n\
             transfer-encoding: chunked\r\n\r\n"
        );
        let chunked = [head.as_bytes(), &chunk(&body), b"0\r\n\r\n"].concat();
        for request in [request("POST", path, &[("ms-signature", &signature)], &body), chunked] {
            let answers = rig.send(&request).await;

            // The unread rest of the body may reset the connection before the answer is read.
            assert!(answers.iter().all(|answer| answer.status == 413) && answers.len() < 2, "{answers:?}");
        }
    }
    assert!(rig.oversized.try_recv().is_err() && rig.taken.drain().is_empty());
}

async fn a_source_that_forges_too_much_is_refused_alone() {
    let rig = Rig::with(|setup| {
        setup.receiver.hash_limit = HashLimit { burst: 10 * BODY.len() as u64, per_second: 0, free: 0 };
    })
    .await;
    let (forger, other) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));
    let good = sign(&hook_secret(MASTER, "Customer:Created"), BODY);
    let forged = posted_to("customer-created", &sign(SECRET, BODY));
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(exchange(rig.connect_from(forger).await, &forged).await[0].status);
    }

    // Each needs two secrets, so five of them use up the budget.
    assert_eq!(statuses, [401, 401, 401, 401, 401, 503]);
    for request in [
        posted_to("customer-created", &good),
        posted(&good),
        request("POST", ACCOUNTING, &[("svc-webhook-signature", &sign(SECRET, BODY))], BODY),
    ] {
        let refused = exchange(rig.connect_from(forger).await, &request).await;
        assert_eq!((refused[0].status, refused[0].body.len()), (503, 0));
        assert!(refused[0].header("retry-after").is_some(), "{refused:?}");
        for _ in 0..20 {
            assert_eq!(exchange(rig.connect_from(other).await, &request).await[0].status, 200);
        }
    }
    assert_eq!(rig.taken.drain().len(), 60);
}

async fn a_replayed_delivery_has_the_same_id() {
    let rig = Rig::start().await;
    let good = sign(&hook_secret(MASTER, "Customer:Created"), BODY);

    for request in [posted_to("customer-created", &good), posted(&good), posted_to("customer-created", &good)]
    {
        assert_eq!(rig.ask(&request).await.status, 200);
    }

    let taken = rig.taken.drain();
    let ids = taken.iter().map(|(_, reading)| reading.parts[0].content.as_ref().unwrap()[0].meta.id.clone());
    let ids: Vec<String> = ids.collect();
    assert_eq!(ids, vec![ids[0].clone(); 3]);
}

async fn an_own_address_identifies_the_hook_of_unsigned_deliveries() {
    let rig = Rig::with(|setup| {
        setup.set("invoicing.signature.policy", "off");
        setup.set("source.addresses", "127.0.0.2");
    })
    .await;
    let unsigned = request("POST", &format!("{INVOICING}/customer-updated"), &[], BODY);

    let listed = exchange(rig.connect_from(Ipv4Addr::new(127, 0, 0, 2)).await, &unsigned).await;
    let strange = exchange(rig.connect_from(Ipv4Addr::new(127, 0, 0, 3)).await, &unsigned).await;

    assert_eq!([listed[0].status, strange[0].status], [200, 401]);
    let (delivery, _) = rig.taken.drain().pop().unwrap();
    assert_eq!(hook_of(&delivery), hook(InvoicingEntity::Customer, InvoicingAction::Updated));
}
