//! Rules of a subscription, list and delete.

use std::net::SocketAddr;

use axum::http::Method;
use serde_json::{Value, json};

use super::{call, delete, list, post, provider, provider_with, read, send, subscription};
use crate::simulator::{
    catalog::{Action, Entity},
    knobs::{ReceiverPaths, ReceiverUrls, Status},
};

/// Nobody listens there, so that echoes fail at once.
const NOWHERE: &str = "https://127.0.0.1/api/webhooks/incoming/Invoicing";

#[tokio::test]
async fn every_entity_takes_the_actions_it_offers_and_no_others() {
    let provider = provider();
    let mut refused = Vec::new();

    for entity in Entity::ALL {
        for action in Action::ALL {
            let (entity, action) = (format!("{entity:?}"), format!("{action:?}"));
            let body = subscription(NOWHERE, &entity, &action);
            let (status, answer) = post(&provider, Some(0), "webhooks", &body).await;
            if status == 200 {
                assert_eq!((&answer["entity"], &answer["action"]), (&json!(entity), &json!(action)));
            } else {
                assert_eq!(status, 400);
                assert!(answer["message"].as_str().unwrap().starts_with("action: "), "{answer}");
                refused.push(format!("{entity}.{action}"));
            }
        }
    }

    let expected =
        ["CompanyData.Created", "CompanyData.Deleted", "CompanySettings.Created", "CompanySettings.Deleted"];
    assert_eq!(refused, expected);
    assert_eq!(provider.invoicing.hooks().len(), 18 * 3 - 4);
}

#[tokio::test]
async fn each_broken_rule_is_refused_with_the_name_of_the_field() {
    let at = |uri: &str| ("uri", json!(uri));
    let cases = [
        at("http://127.0.0.1/api/webhooks/incoming/Invoicing"),
        at("ftp://127.0.0.1/api/webhooks/incoming/Invoicing"),
        at("https://127.0.0.1:8443/api/webhooks/incoming/Invoicing"),
        at("https://127.0.0.1/api/webhooks/incoming/invoicing"),
        at("https://127.0.0.1/api/webhooks/incoming/Invoicing/"),
        at("https://127.0.0.1/api/webhooks/incoming/Invoicing/7"),
        at("https://127.0.0.1/hooks/api/webhooks/incoming/Invoicing"),
        at("https://127.0.0.1/"),
        at("https://ana@127.0.0.1/api/webhooks/incoming/Invoicing"),
        at("https://127.0.0.1/api/webhooks/incoming/Invoicing#part"),
        at("https://127.0.0.1/api/webhooks/incoming/Invoicing\n"),
        at("https://10.0.0.1/api/webhooks/incoming/Invoicing"),
        at("https://[::1]/api/webhooks/incoming/Invoicing"),
        at("/api/webhooks/incoming/Invoicing"),
        at(&format!("{NOWHERE}?{}", "q".repeat(5_000))),
        at(""),
        ("uri", Value::Null),
        ("uri", json!(1e308)),
        ("entity", json!("customer")),
        ("entity", json!("Invoice")),
        ("entity", json!(3)),
        ("entity", Value::Null),
        ("action", json!("created")),
        ("action", json!("Disabled")),
        ("action", json!(["Created"])),
        ("action", Value::Null),
        ("secret", json!("s".repeat(31))),
        ("secret", json!("ñ".repeat(31))),
        ("secret", json!("s".repeat(65))),
        ("secret", json!(12_345)),
        ("secret", Value::Null),
        ("isPaused", json!("false")),
        ("isPaused", json!(0)),
        ("applicationName", json!({})),
        ("applicationName", json!("n".repeat(4_097))),
        ("description", json!(false)),
    ];
    let provider = provider_with(|knobs| knobs.delivery.receivers = ReceiverUrls::Https443);

    for (field, value) in cases {
        let mut body = subscription(NOWHERE, "Customer", "Created");
        body[field] = value;
        let (status, answer) = post(&provider, Some(0), "webhooks", &body).await;

        assert_eq!(status, 400, "{field} {}", body[field]);
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
    }
    for body in ["", "[]", "null", "{\"uri\":", "\"text\""] {
        let answer = send(&provider, call(Some(0)), Method::POST, "webhooks", body).await;
        let (status, answer) = read(answer).await;
        assert_eq!(status, 400, "{body}");
        assert!(answer["message"].as_str().unwrap().starts_with("body: "), "{answer}");
    }
    assert!(provider.invoicing.hooks().is_empty());
}

#[tokio::test]
async fn what_the_rules_leave_open_is_accepted() {
    let cases = [
        ("uri", json!("https://127.0.0.1:443/api/webhooks/incoming/Invoicing")),
        ("uri", json!(format!("{NOWHERE}?tenant=7"))),
        ("secret", json!("s".repeat(32))),
        ("secret", json!("ñ".repeat(64))),
        ("isPaused", Value::Null),
        ("applicationName", Value::Null),
        ("description", Value::Null),
        ("somethingElse", json!({ "deep": [1] })),
    ];
    let provider = provider_with(|knobs| knobs.delivery.receivers = ReceiverUrls::Https443);

    for (field, value) in cases {
        let mut body = subscription(NOWHERE, "Customer", "Created");
        body[field] = value;
        let (status, answer) = post(&provider, Some(0), "webhooks", &body).await;

        assert_eq!(status, 200, "{field} {}: {answer}", body[field]);
    }
}

#[tokio::test]
async fn knobs_move_the_port_the_scheme_the_segment_and_the_lengths() {
    type Turn = fn(&mut crate::simulator::knobs::Knobs);
    let cases: [(Turn, &str, Value); 6] = [
        (
            |knobs| knobs.invoicing.receiver_paths = ReceiverPaths::Any,
            "uri",
            json!("https://127.0.0.1/api/webhooks/incoming/Invoicing/customer-created"),
        ),
        (
            |knobs| knobs.delivery.receivers = ReceiverUrls::Https,
            "uri",
            json!("https://127.0.0.1:8443/api/webhooks/incoming/Invoicing"),
        ),
        (
            |knobs| knobs.delivery.receivers = ReceiverUrls::Any,
            "uri",
            json!("http://127.0.0.1:81/api/webhooks/incoming/Invoicing"),
        ),
        (
            |knobs| knobs.invoicing.segment = "facturación".to_owned(),
            "uri",
            json!("https://127.0.0.1/api/webhooks/incoming/facturaci%C3%B3n"),
        ),
        (|knobs| knobs.invoicing.secret_min = 1, "secret", json!("s")),
        (|knobs| knobs.invoicing.secret_max = 128, "secret", json!("s".repeat(128))),
    ];

    for (turn, field, value) in cases {
        let provider = provider_with(|knobs| knobs.delivery.receivers = ReceiverUrls::Https443);
        let mut body = subscription(NOWHERE, "Customer", "Created");
        body[field] = value;
        let (before, _) = post(&provider, Some(0), "webhooks", &body).await;
        provider.turn(turn);
        let (after, answer) = post(&provider, Some(0), "webhooks", &body).await;

        assert_eq!((before, after), (400, 200), "{field} {}: {answer}", body[field]);
    }
}

#[tokio::test]
async fn the_receivers_host_is_the_address_the_request_comes_from() {
    let cases = [
        ("127.0.0.1", "127.0.0.1:9", true),
        ("127.0.0.1", "127.0.0.2:9", false),
        ("127.0.0.1", "[::ffff:127.0.0.1]:9", true),
        ("[::1]", "[::1]:9", true),
        ("localhost", "127.0.0.1:9", true),
        ("localhost", "10.1.2.3:9", false),
        ("receiver.example", "10.1.2.3:9", true),
        ("receiver.example", "10.1.2.4:9", false),
    ];

    for (host, peer, accepted) in cases {
        let provider = provider_with(|knobs| {
            let address: SocketAddr = "10.1.2.3:443".parse().unwrap();
            knobs.delivery.resolve.insert("Receiver.example".to_owned(), address);
        });
        let uri = format!("https://{host}/api/webhooks/incoming/Invoicing");
        let body = subscription(&uri, "Customer", "Created").to_string();
        let mut call = call(Some(0));
        call.peer = peer.parse().unwrap();
        let checked = read(send(&provider, call.clone(), Method::POST, "webhooks", body.clone()).await).await;
        provider.turn(|knobs| knobs.invoicing.check_origin = false);
        let unchecked = read(send(&provider, call, Method::POST, "webhooks", body).await).await;

        assert_eq!(checked.0, if accepted { 200 } else { 400 }, "{host} from {peer}: {}", checked.1);
        if !accepted {
            let message = checked.1["message"].as_str().unwrap();
            assert!(message.contains("which the request comes from"), "{message}");
        }
        assert_eq!(unchecked.0, 200);
    }
}

#[tokio::test]
async fn a_created_hook_is_told_with_its_id_and_without_its_secret() {
    let provider = provider();
    let mut body = subscription(NOWHERE, "SaleInvoice", "Deleted");
    body["isPaused"] = json!(true);
    let fields = body.as_object_mut().unwrap();
    fields.remove("description");
    fields.insert("descripion".to_owned(), json!("as the sample spells it"));

    let (status, hook) = post(&provider, Some(1), "webhooks", &body).await;

    assert_eq!(status, 200);
    let truth = &provider.invoicing.hooks()[0];
    let expected = json!({
        "id": truth.id.simple(),
        "uri": NOWHERE,
        "entity": "SaleInvoice",
        "action": "Deleted",
        "isPaused": true,
        "applicationName": "Ledger",
        "description": "as the sample spells it",
    });
    assert_eq!(hook, expected);
    assert_eq!(list(&provider, 1).await, [expected]);
    assert_eq!((truth.company, truth.paused, truth.effective), (1, true, false));
}

#[tokio::test]
async fn create_and_delete_answer_as_the_knobs_say() {
    let provider = provider_with(|knobs| {
        knobs.invoicing.created_status = Status::new(201).unwrap();
        knobs.invoicing.silent = true;
    });

    let created = post(&provider, Some(0), "webhooks", &subscription(NOWHERE, "Bank", "Created")).await;

    assert_eq!(created, (201, Value::Null));
    let id = list(&provider, 0).await[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(delete(&provider, Some(0), &id).await, (200, Value::Null));
    provider.turn(|knobs| knobs.invoicing.silent = false);
    let (status, hook) =
        post(&provider, Some(0), "webhooks", &subscription(NOWHERE, "Bank", "Created")).await;
    assert_eq!(status, 201);
    assert_ne!(hook["id"], json!(id));
    assert_eq!(delete(&provider, Some(0), hook["id"].as_str().unwrap()).await, (200, hook));
}

#[tokio::test]
async fn a_company_lists_and_deletes_its_own_hooks_only() {
    let provider = provider();
    for (company, entity) in [(0, "Customer"), (1, "Product"), (0, "Due")] {
        post(&provider, Some(company), "webhooks", &subscription(NOWHERE, entity, "Created")).await;
    }
    let entities = async |company| {
        let items = list(&provider, company).await;
        items.iter().map(|item| item["entity"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let product = list(&provider, 1).await[0]["id"].as_str().unwrap().to_owned();

    assert_eq!(entities(0).await, ["Customer", "Due"]);
    assert_eq!(entities(1).await, ["Product"]);
    assert!(entities(2).await.is_empty());
    for id in [product.as_str(), "00000000000000000000000000000000", "7", "%FF", "é"] {
        let (status, answer) = delete(&provider, Some(0), &id.replace('é', "%C3%A9")).await;
        assert_eq!((status, &answer["httpCode"]), (404, &json!(404)), "{id}");
    }
    assert_eq!(delete(&provider, Some(1), &product).await.0, 200);
    assert_eq!(delete(&provider, Some(1), &product).await.0, 404);
    assert_eq!(provider.invoicing.hooks().len(), 2);
}

#[tokio::test]
async fn without_a_company_no_hook_is_managed() {
    let provider = provider();
    let body = subscription(NOWHERE, "Customer", "Created").to_string();
    let mut anonymous = call(None);
    anonymous.caller = None;

    for call in [call(None), anonymous] {
        for (method, path) in
            [(Method::POST, "webhooks"), (Method::GET, "webhooks"), (Method::DELETE, "webhooks/7")]
        {
            let answer = send(&provider, call.clone(), method.clone(), path, body.clone()).await;
            assert_eq!(read(answer).await.0, 403, "{method} {path}");
        }
    }
    assert!(provider.invoicing.hooks().is_empty());
}
