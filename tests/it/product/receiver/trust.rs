//! Authentication of accounting deliveries: signatures and addresses; and refusals, which reveal nothing.

use std::net::Ipv4Addr;

use model::AccountingResource;
use tributary::webhooks::{
    delivery::{ApiFamily, topic_of},
    intake::DeliveryOutcome,
    receiver::ReceivedAcknowledge,
    receiver_table::ReceiverState,
};

use super::rig::{
    ACCOUNTING, INVOICING, PREVIOUS, Rig, SECRET, accounting, event, exchange, request, sign, signed,
};

crate::tests! {
    plain a_delivery_signed_with_either_secret_gets_a_bare_200;
    plain every_signature_fault_gets_the_same_answer_and_takes_nothing;
    plain only_the_routes_of_deliveries_are_there;
    plain answers_do_not_reveal_which_connectors_exist;
    plain a_faulty_connector_answers_503;
    plain the_raw_bytes_are_verified_whatever_their_encoding;
    plain a_resource_in_the_path_may_have_our_name_or_the_providers;
    plain a_stopped_connector_refuses_and_a_paused_one_takes;
    plain a_delivery_that_does_not_become_durable_gets_503;
    plain an_acknowledge_is_answered_reported_and_not_taken;
    plain only_listed_addresses_deliver_and_listed_proxies_are_trusted;
    plain a_trace_is_kept_where_it_is_one;
}

async fn a_delivery_signed_with_either_secret_gets_a_bare_200() {
    let rig = Rig::start().await;
    let body = event("1");
    let signatures = [sign(SECRET, &body), sign(PREVIOUS, &body), sign(SECRET, &body).to_lowercase()];

    for signature in signatures {
        let answer = rig.ask(&accounting(&signature, &body)).await;

        assert_eq!((answer.status, answer.body.len()), (200, 0));
        // No cookie, no server name.
        assert_eq!(answer.headers, ["connection: close", "content-length: 0"]);
        let taken = rig.taken.drain();
        let [(delivery, reading)] = taken.as_slice() else { panic!("{taken:?}") };
        assert_eq!(delivery.body, body);
        assert_eq!((&*delivery.context.connector, &*delivery.context.prefix), ("hooks", "acme"));
        assert_eq!(&*delivery.context.dead_letter_topic, "acme.dead-letters");
        assert_eq!(reading.outgoing_id.as_deref(), Some("1"));
        assert!(reading.parts.len() == 1 && reading.parts[0].content.is_ok());
    }
}

async fn every_signature_fault_gets_the_same_answer_and_takes_nothing() {
    let rig = Rig::start().await;
    let elsewhere = Rig::with(|setup| setup.set("source.addresses", "192.0.2.0/24")).await;
    let body = event("1");
    let good = sign(SECRET, &body);
    let digits = &good["sha256=".len()..];
    // A valid delivery before, so that a repeated signature is known.
    assert_eq!(rig.ask(&accounting(&good, &body)).await.status, 200);
    rig.taken.drain();
    let longer = [body.as_slice(), b" "].concat();
    let mut changed = body.clone();
    changed[20] ^= 1;
    let header = |name: &str, value: &str| request("POST", ACCOUNTING, &[(name, value)], &body);
    let twice = |one: &str, other: &str| {
        request(
            "POST",
            ACCOUNTING,
            &[("svc-webhook-signature", one), ("svc-webhook-signature", other)],
            &body,
        )
    };
    let mut not_text = accounting("sha256=X", &body);
    let place = not_text.windows(2).position(|two| two == b"=X").unwrap() + 1;
    not_text[place] = 0xe9;

    let refused = [
        ("none", request("POST", ACCOUNTING, &[], &body)),
        ("none, no body", request("POST", ACCOUNTING, &[], b"")),
        ("another header", header("svc-webhook-signature-256", &good)),
        ("the invoicing header", header("ms-signature", &good)),
        ("empty", header("svc-webhook-signature", "")),
        ("the scheme alone", header("svc-webhook-signature", "sha256=")),
        ("a beginning", header("svc-webhook-signature", &good[..30])),
        ("one digit short", header("svc-webhook-signature", &good[..good.len() - 1])),
        ("one byte short", header("svc-webhook-signature", &good[..good.len() - 2])),
        ("one byte more", header("svc-webhook-signature", &format!("{good}00"))),
        (
            "ten thousand bytes more",
            header("svc-webhook-signature", &format!("{good}{}", "0".repeat(10_000))),
        ),
        ("no scheme", header("svc-webhook-signature", digits)),
        ("another scheme", header("svc-webhook-signature", &format!("sha1={digits}"))),
        ("a list", header("svc-webhook-signature", &format!("{good},{good}"))),
        ("a list in the style of others", header("svc-webhook-signature", &format!("v1,{good} v1,{good}"))),
        ("not hexadecimal", header("svc-webhook-signature", &format!("sha256=+0{}", &digits[2..]))),
        ("not text", not_text),
        ("twice the right one", twice(&good, &good)),
        ("the right one first", twice(&good, "sha256=00")),
        ("the right one last", twice("sha256=00", &good)),
        ("the empty secret", accounting(&sign("", &body), &body)),
        ("another secret", accounting(&sign("the accounting secret of tomorrow", &body), &body)),
        ("the secret's beginning", accounting(&sign(&SECRET[..16], &body), &body)),
        ("another body", accounting(&good, &changed)),
        ("a longer body", accounting(&good, &longer)),
        ("a shorter body", accounting(&good, &body[..body.len() - 1])),
        ("no body", accounting(&good, b"")),
    ];

    let from_elsewhere = elsewhere.ask(&accounting(&good, &body)).await;
    assert_eq!((from_elsewhere.status, from_elsewhere.body.len()), (401, 0));
    assert_eq!(from_elsewhere.headers, ["connection: close", "content-length: 0"]);
    for (what, request) in refused {
        assert_eq!(rig.ask(&request).await, from_elsewhere, "{what}");
    }
    assert_eq!(rig.taken.drain().len() + elsewhere.taken.drain().len(), 0);
}

async fn only_the_routes_of_deliveries_are_there() {
    let rig = Rig::start().await;
    let body = event("1");
    let good = sign(SECRET, &body);
    let signed = [("svc-webhook-signature", good.as_str())];

    let nowhere = rig.ask(&request("POST", "/", &signed, &body)).await;

    assert_eq!((nowhere.status, nowhere.body.len()), (404, 0));
    assert_eq!(nowhere.headers, ["connection: close", "content-length: 0"]);
    for (method, path) in [
        ("POST", "/webhooks/accounting/"),
        ("POST", "/webhooks/accounting"),
        ("POST", "/webhooks/accounting/hooks/"),
        ("POST", "/webhooks/accounting/hooks/customers/1"),
        ("POST", "//webhooks/accounting/hooks"),
        ("POST", "/webhooks/../webhooks/accounting/hooks"),
        ("GET", "/webhooks/accounting/hooks"),
        ("GET", "/webhooks/accounting/others"),
        ("PUT", "/webhooks/accounting/hooks"),
        ("DELETE", "/webhooks/accounting/hooks/customers"),
        ("OPTIONS", "/webhooks/accounting/hooks"),
        ("TRACE", "/webhooks/accounting/hooks"),
        ("PUT", INVOICING),
        ("GET", "/metrics"),
        ("GET", "/connectors"),
        ("GET", "/health"),
        ("OPTIONS", "*"),
    ] {
        assert_eq!(rig.ask(&request(method, path, &signed, &body)).await, nowhere, "{method} {path}");
    }
    assert_eq!(rig.taken.drain().len(), 0);
}

/// The same requests to a known address and to unknown ones: without a signature, with a wrong one, and with a body that is too long
/// to be read before it could be verified.
async fn answers_do_not_reveal_which_connectors_exist() {
    let rig = Rig::with(|setup| drop(setup.config.remove("body.limit.bytes"))).await;
    let body = event("1");
    let (good, wrong) = (sign(SECRET, &body), sign("the accounting secret of tomorrow", &body));
    let long = vec![b' '; 200 << 10];
    let both = [("svc-webhook-signature", wrong.as_str()), ("ms-signature", wrong.as_str())];
    let questions = [
        ("no signature", &both[..0], &body),
        ("a wrong signature", &both[..1], &body),
        ("a wrong invoicing signature", &both[1..], &body),
        ("wrong signatures of a long body", &both[..], &long),
    ];

    for state in [ReceiverState::Running, ReceiverState::Paused, ReceiverState::Stopped] {
        rig.set_state(state);
        for (known, unknown) in [
            (
                ACCOUNTING,
                &[
                    "/webhooks/accounting/others",
                    "/webhooks/accounting/HOOKS",
                    "/webhooks/accounting/hooks/nothings",
                    "/webhooks/accounting/hooks%2Fcustomers",
                    "/webhooks/accounting/%ff",
                    "/webhooks/accounting/%",
                ][..],
            ),
            (
                INVOICING,
                &[
                    "/api/webhooks/incoming/Others",
                    "/api/webhooks/incoming/hooks",
                    "/api/webhooks/incoming/Invoicing/customer-created",
                    "/api/webhooks/incoming/Invoicing/bank-created",
                    "/api/webhooks/incoming/Invoicing/nothing",
                    "/api/webhooks/incoming/Others/customer-created",
                ],
            ),
        ] {
            for (what, headers, body) in questions {
                let expected = rig.ask(&request("POST", known, headers, body)).await;
                assert_eq!((expected.status, expected.body.len()), (401, 0), "{what}: {known}, {state:?}");
                for path in unknown {
                    let answer = rig.ask(&request("POST", path, headers, body)).await;

                    assert_eq!(answer, expected, "{what}: {path} beside {known}, {state:?}");
                }
            }
            // The secret of one connector is not valid for another.
            for path in unknown {
                let signed = [("svc-webhook-signature", good.as_str())];

                assert_eq!(rig.ask(&request("POST", path, &signed, &body)).await.status, 401, "{path}");
            }
        }
    }
    assert_eq!(rig.taken.drain().len(), 0);
    assert_eq!(rig.ask(&signed(&body)).await.status, 503, "a signed request shows that it is stopped");
}

/// Its secret is not available, so no delivery can be verified; after 401 or 404 the provider would not retry.
async fn a_faulty_connector_answers_503() {
    let rig = Rig::start().await;
    rig.fail();
    let echo = format!("{INVOICING}?echo={}", "a".repeat(32));

    for question in [
        signed(&event("1")),
        request("POST", ACCOUNTING, &[], &event("1")),
        request("POST", &format!("{ACCOUNTING}/customers"), &[], b""),
        request("POST", INVOICING, &[], b"{}"),
        request("GET", &echo, &[], b""),
    ] {
        let answer = rig.ask(&question).await;

        assert_eq!((answer.status, answer.body.len()), (503, 0), "{}", String::from_utf8_lossy(&question));
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    }
    let other = rig.ask(&request("POST", "/webhooks/accounting/others", &[], b"")).await;
    assert_eq!((other.status, rig.taken.drain().len()), (401, 0));
}

async fn the_raw_bytes_are_verified_whatever_their_encoding() {
    let rig = Rig::start().await;
    let body = event("1");
    let other_bytes = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 0xff, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let encoded = |encoding: &str, signature: &str, body: &[u8]| {
        let headers = [
            ("svc-webhook-signature", signature),
            ("content-encoding", encoding),
            ("content-type", "text/plain; charset=utf-16"),
        ];
        request("POST", ACCOUNTING, &headers, body)
    };

    let as_signed = rig.ask(&encoded("gzip", &sign(SECRET, &other_bytes), &other_bytes)).await;
    let as_decoded = rig.ask(&encoded("gzip", &sign(SECRET, b""), &other_bytes)).await;
    let as_it_is = rig.ask(&encoded("deflate", &sign(SECRET, &body), &body)).await;

    assert_eq!([as_signed.status, as_decoded.status, as_it_is.status], [200, 401, 200]);
    let taken = rig.taken.drain();
    let [(zipped, dead), (plain, read)] = taken.as_slice() else { panic!("{taken:?}") };
    assert!(zipped.body == other_bytes.as_slice() && dead.parts[0].content.is_err());
    assert!(plain.body == body && read.parts[0].content.is_ok());
}

async fn a_resource_in_the_path_may_have_our_name_or_the_providers() {
    let rig = Rig::start().await;
    let body = br#"{"TenantId":"17","EventType":{"EventType":"Something"}}"#;
    let headers = [("svc-webhook-signature", sign(SECRET, body))];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));

    for (name, resource) in [
        ("customers", AccountingResource::Customers),
        ("Customers", AccountingResource::Customers),
        ("input-invoices", AccountingResource::InputInvoices),
        ("InputInvoices", AccountingResource::InputInvoices),
        ("inputInvoices?a=b", AccountingResource::InputInvoices),
    ] {
        let answer = rig.ask(&request("POST", &format!("{ACCOUNTING}/{name}"), &headers, body)).await;

        assert_eq!(answer.status, 200, "{name}");
        let (delivery, reading) = rig.taken.drain().pop().unwrap();
        assert_eq!(delivery.context.family, ApiFamily::Accounting { resource: Some(resource) });
        assert_eq!(topic_of(&reading.parts[0].lane), format!("acme.accounting.{}.events", resource.name()));
    }
}

async fn a_stopped_connector_refuses_and_a_paused_one_takes() {
    let rig = Rig::start().await;
    let delivery = signed(&event("1"));
    let echo = request("GET", &format!("{INVOICING}?echo={}", "a".repeat(32)), &[], b"");

    for (state, expected) in
        [(ReceiverState::Paused, 200), (ReceiverState::Stopped, 503), (ReceiverState::Running, 200)]
    {
        rig.set_state(state);

        let answers = [rig.ask(&delivery).await, rig.ask(&echo).await];

        for answer in answers {
            assert_eq!(answer.status, expected, "{state:?}");
            assert_eq!(answer.header("retry-after").is_some(), expected == 503, "{answer:?}");
        }
        assert_eq!(rig.taken.drain().len(), usize::from(expected == 200), "{state:?}");
    }
}

async fn a_delivery_that_does_not_become_durable_gets_503() {
    let rig = Rig::start().await;

    for outcome in [DeliveryOutcome::Full, DeliveryOutcome::Late] {
        rig.taken.end_with(outcome);

        let answer = rig.ask(&signed(&event("1"))).await;

        assert_eq!((answer.status, answer.body.len()), (503, 0), "{outcome:?}");
        let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((5..=7).contains(&after), "{after}");
    }
}

async fn an_acknowledge_is_answered_reported_and_not_taken() {
    let mut rig = Rig::start().await;
    let acknowledge = |id: &str, resource: &str| {
        let event = serde_json::json!({
            "WebhookId": id,
            "OutgoingId": "1",
            "ExtraPartitionInformation": {},
            "EventType": {"Resource": resource, "EventType": "Acknowledge"},
            "JsonData": "{\"Arguments\":\"Acknowledge\"}",
        });
        let body = serde_json::to_vec(&event).unwrap();
        request(
            "POST",
            &format!("{ACCOUNTING}/accounts"),
            &[("svc-webhook-signature", &sign(SECRET, &body))],
            &body,
        )
    };

    let first = rig.ask(&acknowledge("a", "Customers")).await;
    // The channel is full: the report is dropped, and the provider gets its answer.
    let second = rig.ask(&acknowledge("b", "Customers")).await;
    let (reported, _) = rig.acknowledged.recv().await.unwrap();
    let third = rig.ask(&acknowledge("c", "whatever it calls them")).await;
    let (reported_third, _) = rig.acknowledged.recv().await.unwrap();

    assert_eq!([first.status, second.status, third.status], [200; 3]);
    let expected = |id: &str, resource, received_at| ReceivedAcknowledge {
        connector: "hooks".into(),
        webhook_id: Some(id.to_owned()),
        resource: Some(resource),
        received_at,
    };
    assert_eq!(reported, expected("a", AccountingResource::Customers, reported.received_at));
    assert_eq!(reported_third, expected("c", AccountingResource::Accounts, reported_third.received_at));
    assert!(reported.received_at > 1_700_000_000_000_000);
    assert!(reported_third.received_at >= reported.received_at);
    assert_eq!(rig.taken.drain().len(), 0);
}

async fn only_listed_addresses_deliver_and_listed_proxies_are_trusted() {
    let rig = Rig::with(|setup| {
        setup.set("source.addresses", "198.51.100.0/24");
        setup.receiver.proxies = vec!["127.0.0.2/32".parse().unwrap()];
    })
    .await;
    let body = event("1");
    let (proxy, stranger) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));
    let good = sign(SECRET, &body);

    for (from, forwarded, expected) in [
        (proxy, &["198.51.100.7"][..], 200),
        (proxy, &["203.0.113.9, 198.51.100.7"], 200),
        (proxy, &["198.51.100.7, 127.0.0.2"], 200),
        (proxy, &["203.0.113.9", "198.51.100.7"], 200),
        (proxy, &["198.51.100.7, 203.0.113.9"], 401),
        (proxy, &["198.51.100.7", "203.0.113.9"], 401),
        (proxy, &["198.51.100.7, unknown"], 401),
        (proxy, &[], 401),
        (stranger, &["198.51.100.7"], 401),
        (stranger, &["198.51.100.7, 127.0.0.2"], 401),
    ] {
        let mut headers = vec![("svc-webhook-signature", good.as_str())];
        headers.extend(forwarded.iter().map(|value| ("x-forwarded-for", *value)));

        let answers =
            exchange(rig.connect_from(from).await, &request("POST", ACCOUNTING, &headers, &body)).await;

        assert_eq!(answers[0].status, expected, "{from} {forwarded:?}");
    }
    assert_eq!(rig.taken.drain().len(), 4);
}

async fn a_trace_is_kept_where_it_is_one() {
    let rig = Rig::start().await;
    let body = event("1");
    let good = sign(SECRET, &body);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    for (traces, kept) in
        [(vec![trace], Some(trace)), (vec![trace, trace], None), (vec!["hello"], None), (vec![], None)]
    {
        let mut headers = vec![("svc-webhook-signature", good.as_str())];
        headers.extend(traces.iter().map(|value| ("traceparent", *value)));
        rig.ask(&request("POST", ACCOUNTING, &headers, &body)).await;

        let (delivery, _) = rig.taken.drain().pop().unwrap();
        assert_eq!(delivery.context.traceparent.as_deref(), kept, "{traces:?}");
    }
}
