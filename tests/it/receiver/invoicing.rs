//! The invoicing API: the echo, one secret for each hook, and deliveries that nobody signs.

use std::net::Ipv4Addr;

use tributary::{
    model::{InvoicingAction, InvoicingEntity, InvoicingHook},
    webhooks::delivery::Family,
};

use super::rig::{
    INVOICING, MASTER, PREVIOUS_MASTER, Rig, SECRET, event, exchange, hook_secret, request, sign,
};

crate::tests! {
    plain the_echo_is_a_guid_as_it_came_and_never_anything_else;
    plain the_secret_that_verifies_tells_the_hook;
    plain no_other_secret_verifies_an_invoicing_delivery;
    plain the_signature_is_read_from_the_header_that_is_configured_and_no_other;
    plain unsigned_deliveries_are_taken_from_listed_addresses_alone_and_tell_no_action;
}

const BODY: &[u8] = br#"{"Entity":"Customer","EntityId":"7","TenantId":"42","User":"somebody","Changes":[]}"#;

fn hook(entity: InvoicingEntity, action: InvoicingAction) -> InvoicingHook {
    InvoicingHook { entity, action }
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

async fn the_secret_that_verifies_tells_the_hook() {
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
                let Family::Invoicing { hook: Some(told), .. } = &delivery.context.family else {
                    panic!("{:?}", delivery.context);
                };
                assert_eq!(InvoicingHook::from(*told), hook, "{name}");
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

async fn the_signature_is_read_from_the_header_that_is_configured_and_no_other() {
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

async fn unsigned_deliveries_are_taken_from_listed_addresses_alone_and_tell_no_action() {
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
    assert!(matches!(&delivery.context.family, Family::Invoicing { hook: None, .. }));
    assert!(reading.parts[0].content.is_ok() && dead.parts[0].content.is_err());
}
