//! What cannot be done, and what is then said.

use serde_json::{Value, json};

use super::{CUSTOMERS, delete, post, subscribe};
use crate::simulator::{
    deliveries::rig::{Receiver, Rig, subscription},
    knobs::{AcknowledgeTime, ReceiverUrls, Status},
};

const URL: &str = "https://hooks.example/hook";

/// The customers' subscription with one member changed, or taken out.
fn with(member: &str, value: Option<Value>) -> String {
    let mut body: Value = serde_json::from_str(&subscription("customers", URL)).unwrap();
    let members = body.as_object_mut().unwrap();
    match value {
        Some(value) => members.insert(member.to_owned(), value),
        None => members.remove(member),
    };
    body.to_string()
}

#[tokio::test]
async fn a_body_that_is_not_as_documented_is_refused_with_the_reason_and_changes_nothing() {
    let rig = Rig::start(|knobs| knobs.delivery.receivers = ReceiverUrls::Https443);
    let bodies = [
        (String::new(), "InvalidBody"),
        ("{".to_owned(), "InvalidBody"),
        ("[]".to_owned(), "InvalidBody"),
        ("[".repeat(10_000), "InvalidBody"),
        (with("thirdPartyApplicationName", None), "Required"),
        (with("thirdPartyApplicationName", Some(json!(""))), "Required"),
        (with("thirdPartyApplicationName", Some(json!(1e300))), "InvalidType"),
        (with("thirdPartyApplicationName", Some(json!("ñ".repeat(4_097)))), "TooLong"),
        (with("secret", Some(json!("s".repeat(4_097)))), "TooLong"),
        (with("url", Some(json!(format!("{URL}?{}", "q".repeat(4_096))))), "TooLong"),
        (with("secret", None), "Required"),
        (with("secret", Some(json!(null))), "InvalidType"),
        (with("url", None), "Required"),
        (with("url", Some(json!({}))), "InvalidType"),
        (with("url", Some(json!("no address"))), "InvalidUrl"),
        (with("url", Some(json!("http://hooks.example/hook"))), "InvalidUrl"),
        (with("url", Some(json!("https://hooks.example:8443/hook"))), "InvalidUrl"),
        (with("url", Some(json!("ftp://hooks.example/hook"))), "InvalidUrl"),
        (with("eventTypes", None), "Required"),
        (with("eventTypes", Some(json!([]))), "Required"),
        (with("eventTypes", Some(json!("Svc.ACC.Customers.CustomerCreated"))), "InvalidType"),
        (with("eventTypes", Some(json!([1]))), "InvalidType"),
        (with("eventTypes", Some(json!(["Svc.ACC.Accounts.AccountCreated"]))), "UnknownEvent"),
        (with("eventTypes", Some(json!(["svc.acc.customers.customercreated"]))), "UnknownEvent"),
        (with("eventTypes", Some(json!(["Svc.ACC.Customers.CustomerDeleted"]))), "UnknownEvent"),
    ];
    for (body, code) in bodies {
        for operation in ["subscribe", "unsubscribe"] {
            let (status, result) = post(&rig, operation, &body).await;

            assert_eq!((status, &result["responseState"]), (422, &json!(0)), "{operation} {body}: {result}");
            assert_eq!(result["webhookId"], "00000000-0000-0000-0000-000000000000");
            assert_eq!(result["errors"][0]["code"], code, "{operation} {body}: {result}");
        }
    }
    assert_eq!((rig.provider.accounting.webhooks().len(), rig.provider.deliveries.count()), (0, 0));
}

#[tokio::test]
async fn a_text_may_have_4096_characters() {
    let rig = Rig::start(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never);

    let (status, result) = post(&rig, "subscribe", &with("secret", Some(json!("ñ".repeat(4_096))))).await;

    assert_eq!(status, 200, "{result}");
}

#[tokio::test]
async fn everything_that_is_wrong_is_said_at_once() {
    let rig = Rig::start(|_| {});

    let (_, result) = post(&rig, "subscribe", "{}").await;

    let messages: Vec<&str> =
        result["errors"].as_array().unwrap().iter().map(|error| error["message"].as_str().unwrap()).collect();
    assert_eq!(
        messages,
        [
            "thirdPartyApplicationName is required",
            "url is required",
            "secret is required",
            "eventTypes is required"
        ]
    );
}

#[tokio::test]
async fn a_refusal_has_the_status_state_and_shape_of_the_knobs() {
    let rig = Rig::start(|knobs| {
        knobs.accounting.failure_status = Status::OK;
        knobs.accounting.failure_state = -1;
        knobs.accounting.error_objects = false;
    });

    let (status, result) = post(&rig, "subscribe", "[]").await;

    let expected = json!({
        "responseState": -1,
        "webhookId": "00000000-0000-0000-0000-000000000000",
        "errors": ["the body must be a JSON object"],
    });
    assert_eq!((status, result), (200, expected));
}

#[tokio::test]
async fn which_addresses_may_be_subscribed_follows_the_knob() {
    use ReceiverUrls::{Any, Https, Https443};
    let addresses = [
        ("https://hooks.example/hook", [true, true, true]),
        ("https://hooks.example:443/hook", [true, true, true]),
        ("https://hooks.example:8443/hook", [false, true, true]),
        ("http://hooks.example:443/hook", [false, false, true]),
        ("http://hooks.example/hook", [false, false, true]),
        ("mailto:hooks@example.com", [false, false, false]),
    ];
    let rig = Rig::start(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never);
    for (address, allowed) in addresses {
        for (receivers, allowed) in [Https443, Https, Any].into_iter().zip(allowed) {
            rig.provider.turn(|knobs| knobs.delivery.receivers = receivers);

            let (status, _) = post(&rig, "subscribe", &with("url", Some(json!(address)))).await;

            assert_eq!(status == 200, allowed, "{address} {receivers:?}");
        }
    }
}

#[tokio::test]
async fn a_status_or_change_must_name_the_webhook_of_its_path_and_hold_what_it_needs() {
    let rig = Rig::start(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never);
    let webhook = rig.webhook(URL).await;
    let other = "11111111-1111-1111-1111-111111111111";
    let cases = [
        ("status", json!({ "enable": false }), "Required"),
        ("status", json!({ "webhookId": webhook }), "Required"),
        ("status", json!({ "webhookId": webhook, "enable": "false" }), "InvalidType"),
        ("status", json!({ "webhookId": 7, "enable": false }), "InvalidType"),
        ("status", json!({ "webhookId": "x", "enable": false }), "InvalidId"),
        ("status", json!({ "webhookId": other, "enable": false }), "InvalidId"),
        ("status", json!([]), "InvalidBody"),
        ("change", json!({ "webhookId": webhook }), "Required"),
        ("change", json!({ "url": "https://other.example/" }), "Required"),
        ("change", json!({ "webhookId": other, "url": "https://other.example/" }), "InvalidId"),
        ("change", json!({ "webhookId": webhook, "url": "other" }), "InvalidUrl"),
        ("change", json!(null), "InvalidBody"),
    ];
    let before = super::record(&rig, webhook).await;
    for (operation, body, code) in cases {
        let path = format!("{CUSTOMERS}/{operation}/{webhook}");

        let (status, result) = rig.call("PUT", &path, &body.to_string()).await;

        assert_eq!((status, &result["webhookId"]), (422, &json!(webhook)), "{operation} {body}: {result}");
        assert_eq!(result["errors"][0]["code"], code, "{operation} {body}: {result}");
    }
    assert_eq!(super::record(&rig, webhook).await, before);
}

#[tokio::test]
async fn an_unknown_webhook_is_404_and_an_id_that_is_no_guid_is_refused() {
    let rig = Rig::start(|_| {});
    let unknown = "11111111-1111-1111-1111-111111111111";
    let operations = [("PUT", "/status"), ("PUT", "/change"), ("DELETE", "/delete")];

    for (method, operation) in operations {
        for (id, expected) in [(unknown, 404), ("no-guid", 422), ("%ff", 422)] {
            let (status, body) = rig.call(method, &format!("{CUSTOMERS}{operation}/{id}"), "{}").await;
            assert_eq!(status, expected, "{method} {operation} {id}: {body}");
        }
    }
    for id in [unknown, "no-guid", "%ff"] {
        let (status, body) = rig.call("GET", &format!("{CUSTOMERS}/{id}"), "").await;
        assert_eq!((status, &body["ok"]), (404, &json!(false)), "{id}");
    }
}

#[tokio::test]
async fn no_more_webhooks_of_a_resource_are_made_than_the_knob_allows() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.accounting.max_webhooks = Some(1));
    let body = subscription("customers", &receiver.url());

    let first = subscribe(&rig, &receiver).await;
    let second = post(&rig, "subscribe", &body).await;
    delete(&rig, first).await;
    let third = post(&rig, "subscribe", &body).await;

    assert_eq!((second.0, second.1["errors"][0]["code"].as_str()), (422, Some("TooManyWebhooks")));
    assert_eq!(third.0, 200);
}
