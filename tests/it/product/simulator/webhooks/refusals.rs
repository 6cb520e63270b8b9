//! Refused requests, which change nothing.

use serde_json::{Value, json};
use simulator::knobs::ReceiverUrls;

use super::{CUSTOMERS, Stage, assert_refused, id};
use crate::product::simulator::Client;

crate::tests! {
    plain a_subscription_with_a_field_missing_or_wrong_is_refused;
    plain a_body_that_is_no_json_object_is_refused_by_every_operation;
    plain only_allowed_receivers_can_be_subscribed;
    plain a_status_or_change_with_a_field_missing_or_wrong_is_refused;
    plain an_unknown_webhook_is_not_found;
    plain an_unsubscribe_that_fits_no_active_webhook_is_refused;
    plain webhooks_are_managed_with_context_none_alone;
    plain methods_and_paths_outside_the_family_are_not_found;
}

async fn a_subscription_with_a_field_missing_or_wrong_is_refused() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    let good = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;
    let texts = [json!(null), json!(""), json!(7), json!(["a"]), json!({})];
    let mut cases = Vec::new();
    for field in ["thirdPartyApplicationName", "url", "secret", "eventTypes"] {
        cases.push((field, None));
        cases.extend(texts.iter().map(|value| (field, Some(value.clone()))));
    }
    let known = "Svc.ACC.Customers.CustomerCreated";
    for events in [
        json!([]),
        json!(known),
        json!([known, 7]),
        json!([known, "Svc.ACC.Customers.CustomerDeleted"]),
        json!(["svc.acc.customers.customercreated"]),
        json!(["CustomerCreated"]),
        json!(["Svc.ACC.Customers.Acknowledge"]),
        json!(["Svc.ACC.Accounts.AccountCreated"]),
    ] {
        cases.push(("eventTypes", Some(events)));
    }
    for url in ["hooks.example", "/hook", "https://", "ftp://hooks.example/", "mailto:ana@example.com"] {
        cases.push(("url", Some(json!(url))));
    }

    for (field, value) in cases {
        let about = format!("{field} = {value:?}");
        let mut body = good.clone();
        match value {
            None => drop(body.as_object_mut().unwrap().remove(field)),
            Some(value) => body[field] = value,
        }
        for operation in ["subscribe", "unsubscribe"] {
            let answer = stage.post(CUSTOMERS, operation, &body).await;
            assert_refused(&answer, &format!("{operation} with {about}"));
            assert_eq!(answer.json()["webhookId"], "00000000-0000-0000-0000-000000000000", "{about}");
        }
    }

    stage.idle().await;
    assert!(stage.provider().accounting.webhooks().is_empty());
    assert!(receiver.taken().is_empty());
}

async fn a_body_that_is_no_json_object_is_refused_by_every_operation() {
    let (stage, _receiver, id) = Stage::subscribed().await;
    let before = stage.record(CUSTOMERS, &id).await;
    let put = reqwest::Method::PUT;

    for body in ["", "{", "null", "[]", "\"text\"", "{\"url\":}", "\u{feff}{}"] {
        for (method, operation) in [
            (reqwest::Method::POST, "subscribe".to_owned()),
            (reqwest::Method::POST, "unsubscribe".to_owned()),
            (put.clone(), format!("status/{id}")),
            (put.clone(), format!("change/{id}")),
        ] {
            let path = format!("{CUSTOMERS}/webhooks/{operation}");
            let answer = stage.client.try_send(method, &path, Some(body.to_owned())).await.unwrap();
            assert_refused(&answer, &format!("{operation} with {body:?}"));
        }
    }

    assert_eq!(stage.record(CUSTOMERS, &id).await, before);
}

async fn only_allowed_receivers_can_be_subscribed() {
    let (stage, _receiver, id) = Stage::subscribed().await;
    stage.turn(|knobs| {
        knobs.delivery.resolve.insert("hooks.example".to_owned(), "127.0.0.1:9".parse().unwrap());
        knobs.accounting.retries = vec![];
        knobs.accounting.strict_transitions = false;
    });

    for (url, https443, https, any) in [
        ("https://hooks.example/a", true, true, true),
        ("https://hooks.example:443/a", true, true, true),
        ("HTTPS://hooks.example/a?b=c", true, true, true),
        ("https://hooks.example:8443/a", false, true, true),
        ("http://hooks.example/a", false, false, true),
        ("http://hooks.example:443/a", false, false, true),
        ("ws://hooks.example/a", false, false, false),
    ] {
        for (receivers, allowed) in
            [(ReceiverUrls::Https443, https443), (ReceiverUrls::Https, https), (ReceiverUrls::Any, any)]
        {
            stage.turn(|knobs| knobs.delivery.receivers = receivers);
            let body = stage.subscription(CUSTOMERS, url).await;
            let answers =
                [stage.post(CUSTOMERS, "subscribe", &body).await, stage.change(CUSTOMERS, &id, url).await];
            for answer in answers {
                let expected = if allowed { 200 } else { 422 };
                assert_eq!(answer.status, expected, "{url} under {receivers:?}: {answer:?}");
            }
        }
    }
}

async fn a_status_or_change_with_a_field_missing_or_wrong_is_refused() {
    let (stage, mut receiver, id) = Stage::subscribed().await;
    let other = stage.active(CUSTOMERS, &mut receiver).await;
    let before = stage.record(CUSTOMERS, &id).await;
    let url = receiver.url("/new");

    let cases: [(&str, Value); 13] = [
        ("status", json!({ "webhookId": id })),
        ("status", json!({ "enable": false })),
        ("status", json!({ "webhookId": id, "enable": "false" })),
        ("status", json!({ "webhookId": id, "enable": 0 })),
        ("status", json!({ "webhookId": id, "enable": null })),
        ("status", json!({ "webhookId": other, "enable": false })),
        ("status", json!({ "webhookId": "no guid", "enable": false })),
        ("change", json!({ "webhookId": id })),
        ("change", json!({ "url": url })),
        ("change", json!({ "webhookId": id, "url": "" })),
        ("change", json!({ "webhookId": id, "url": 7 })),
        ("change", json!({ "webhookId": id, "url": "no address" })),
        ("change", json!({ "webhookId": other, "url": url })),
    ];
    for (operation, body) in cases {
        let answer = stage.client.put(&format!("{CUSTOMERS}/webhooks/{operation}/{id}"), &body).await;
        assert_refused(&answer, &format!("{operation} with {body}"));
        assert_eq!(answer.json()["webhookId"], id.as_str(), "{operation} with {body}");
    }

    stage.idle().await;
    assert_eq!(stage.record(CUSTOMERS, &id).await, before);
    assert!(receiver.taken().is_empty());
}

async fn an_unknown_webhook_is_not_found() {
    let stage = Stage::start(|_| {}).await;

    let no_guid = stage.client.get(&format!("{CUSTOMERS}/webhooks/no-guid")).await;
    let unknown = stage.operations(CUSTOMERS, "6f9619ff-8b86-d011-b42d-00c04fc964ff").await;
    for answer in unknown.into_iter().chain([no_guid]) {
        assert_eq!(answer.status, 404, "{answer:?}");
        assert_eq!((&answer.json()["ok"], &answer.json()["httpCode"]), (&json!(false), &json!(404)));
    }
    for odd in ["no-guid", "%FF", "%2e%2e"] {
        let answer = stage.delete(CUSTOMERS, odd).await;
        assert!((400..500).contains(&answer.status), "{odd}: {answer:?}");
    }
}

async fn an_unsubscribe_that_fits_no_active_webhook_is_refused() {
    let (stage, receiver, id) = Stage::subscribed().await;
    let same = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;

    for (field, value) in [
        ("thirdPartyApplicationName", json!("others")),
        ("url", json!(receiver.url("/other"))),
        ("secret", json!("another")),
        ("eventTypes", json!(["Svc.ACC.Customers.CustomerCreated"])),
    ] {
        let mut body = same.clone();
        body[field] = value;
        assert_refused(&stage.post(CUSTOMERS, "unsubscribe", &body).await, field);
    }
    let accounts = "/accounting/api/accounts";
    let body = stage.subscription(accounts, &receiver.url("/hook")).await;
    assert_refused(&stage.post(accounts, "unsubscribe", &body).await, "another resource");

    assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false));
}

async fn webhooks_are_managed_with_context_none_alone() {
    let (stage, mut receiver) = Stage::accepting(|_| {}).await;
    let webhook = stage.active(CUSTOMERS, &mut receiver).await;
    let body = stage.subscription(CUSTOMERS, &receiver.url("/hook")).await;
    let company = &stage.companies()[0];

    let plain = Client::accounting(&stage.simulator);
    for client in [plain.clone(), plain.company(company), plain.context("None"), plain.context("")] {
        for answer in [
            client.post(&format!("{CUSTOMERS}/webhooks/subscribe"), &body).await,
            client.get(&format!("{CUSTOMERS}/webhooks/events")).await,
            client.get(&format!("{CUSTOMERS}/webhooks/{webhook}")).await,
            client.delete(&format!("{CUSTOMERS}/webhooks/delete/{webhook}")).await,
        ] {
            assert_eq!(answer.status, 400, "{:?}: {answer:?}", client.context);
        }
    }

    assert_eq!(stage.provider().accounting.webhooks().len(), 1);
    assert_eq!(id(&stage.switch(CUSTOMERS, &webhook, false).await.ok()), webhook);
}

async fn methods_and_paths_outside_the_family_are_not_found() {
    let stage = Stage::start(|_| {}).await;
    let id = "6f9619ff-8b86-d011-b42d-00c04fc964ff";

    for (method, path) in [
        ("GET", "/webhooks"),
        ("POST", "/webhooks"),
        ("GET", "/webhooks/subscribe/more"),
        ("PUT", "/webhooks/subscribe"),
        ("POST", "/webhooks/events"),
        ("DELETE", "/webhooks/events"),
        ("GET", &format!("/webhooks/status/{id}")),
        ("POST", &format!("/webhooks/change/{id}")),
        ("DELETE", &format!("/webhooks/{id}")),
        ("PATCH", &format!("/webhooks/{id}")),
        ("GET", &format!("/webhooks/delete/{id}")),
    ] {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let answer = stage.client.send(method.clone(), &format!("{CUSTOMERS}{path}"), None).await;
        assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
        assert_eq!(answer.json()["statusCode"], 404, "{method} {path}: {answer:?}");
    }
}
