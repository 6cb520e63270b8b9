//! Create, list and delete: rules 1 to 3 of the document.

use serde_json::{Value, json};
use simulator::knobs::{HttpStatus, ReceiverPaths, ReceiverUrls};

use super::{HOOKS, INCOMING, SECRET, Stage, assert_refused, chosen, receiver, subscription};

crate::tests! {
    plain all_eighteen_entities_offer_the_documented_actions;
    plain a_uri_that_breaks_rule_1_is_refused;
    plain a_uri_on_another_host_than_the_caller_s_is_refused;
    plain a_field_missing_or_wrong_makes_no_hook;
    plain a_secret_has_as_many_characters_as_the_knobs_allow;
    plain a_list_shows_the_caller_s_hooks_in_the_order_they_were_made;
    plain a_deleted_hook_is_gone_and_cannot_be_deleted_again;
    plain the_hooks_of_another_company_are_neither_seen_nor_deleted;
    plain a_create_and_a_delete_answer_as_the_knobs_say;
    plain other_operations_on_hooks_are_not_found;
}

/// Rule 2, in its order.
const ENTITIES: &str = "Customer Product Supplier Representative Contact Due SaleInvoice PurchaseInvoice SaleOffer \
                        SaleOrder PurchaseOrder SaleDeliveryNote PurchaseDeliveryNote Bank IncomeType ExpenseType \
                        CompanyData CompanySettings";

async fn all_eighteen_entities_offer_the_documented_actions() {
    let (stage, mut receiver) = Stage::echoing().await;

    let mut offered = Vec::new();
    for entity in ENTITIES.split(' ') {
        for action in ["Created", "Updated", "Deleted"] {
            let answer = stage.client.post(HOOKS, &subscription(&receiver, entity, action)).await;
            let updated_only = ["CompanyData", "CompanySettings"].contains(&entity);
            if updated_only && action != "Updated" {
                assert_refused(&answer, 400, "action");
            } else {
                assert_eq!(answer.status, 200, "{entity}.{action}: {answer:?}");
                offered.push((entity.to_owned(), action.to_owned()));
            }
        }
    }
    stage.echoed().await;

    assert_eq!(offered.len(), 50);
    let echoes = receiver.taken();
    assert_eq!(echoes.len(), 50);
    assert!(stage.truth().iter().all(|hook| hook.effective));
    for (entity, action) in &offered {
        let id = stage.happen(0, entity, action);
        let notified = receiver.next().await.json();
        assert_eq!((&notified["Entity"], &notified["EntityId"]), (&json!(entity), &json!(id)), "{action}");
    }
    stage.idle().await;
    assert!(receiver.taken().is_empty(), "each hook gets only its own events");
}

async fn a_uri_that_breaks_rule_1_is_refused() {
    let mut receiver = receiver().await;
    let stage = Stage::start(|knobs| {
        knobs.delivery.receivers = ReceiverUrls::Https443;
        knobs.delivery.resolve.insert("hooks.example".to_owned(), "127.0.0.1:9".parse().unwrap());
    })
    .await;
    let mut body = subscription(&receiver, "Customer", "Created");

    for (uri, allowed) in [
        ("https://hooks.example/api/webhooks/incoming/Invoicing", true),
        ("https://hooks.example:443/api/webhooks/incoming/Invoicing", true),
        ("http://hooks.example/api/webhooks/incoming/Invoicing", false),
        ("https://hooks.example:8443/api/webhooks/incoming/Invoicing", false),
        ("https://hooks.example/api/webhooks/incoming/invoicing", false),
        ("https://hooks.example/api/webhooks/incoming/Accounting", false),
        ("https://hooks.example/api/webhooks/incoming/Invoicing/", false),
        ("https://hooks.example/api/webhooks/incoming/Invoicing/7", false),
        ("https://hooks.example/api/webhooks/incoming", false),
        ("https://hooks.example/api/webhooks/Invoicing", false),
        ("https://hooks.example/v1/api/webhooks/incoming/Invoicing", false),
        ("https://hooks.example/", false),
        ("ftp://hooks.example/api/webhooks/incoming/Invoicing", false),
        ("hooks.example/api/webhooks/incoming/Invoicing", false),
        ("https:///api/webhooks/incoming/Invoicing", false),
        ("", false),
    ] {
        body["uri"] = json!(uri);
        let answer = stage.client.post(HOOKS, &body).await;
        if allowed {
            assert_eq!(answer.status, 200, "{uri}: {answer:?}");
        } else {
            assert_refused(&answer, 400, "uri");
        }
    }
    stage.turn(|knobs| knobs.invoicing.segment = "Billing".to_owned());
    body["uri"] = json!("https://hooks.example/api/webhooks/incoming/Billing");
    assert_eq!(stage.client.post(HOOKS, &body).await.status, 200);
    stage.turn(|knobs| knobs.invoicing.receiver_paths = ReceiverPaths::Any);
    body["uri"] = json!("https://hooks.example/api/webhooks/incoming/Billing/customer-created");
    assert_eq!(stage.client.post(HOOKS, &body).await.status, 200);

    stage.echoed().await;
    assert_eq!(stage.truth().len(), 4);
    assert!(receiver.taken().is_empty());
}

async fn a_uri_on_another_host_than_the_caller_s_is_refused() {
    let receiver = receiver().await;
    let stage = Stage::start(|knobs| {
        knobs.delivery.resolve.insert("far.example".to_owned(), "192.0.2.7:443".parse().unwrap());
    })
    .await;
    let mut body = subscription(&receiver, "Customer", "Created");

    for host in ["192.0.2.7", "far.example"] {
        body["uri"] = json!(format!("https://{host}{INCOMING}"));
        assert_refused(&stage.client.post(HOOKS, &body).await, 400, "uri");
    }
    assert!(stage.truth().is_empty());
    stage.turn(|knobs| {
        knobs.invoicing.check_origin = false;
        // The echo fails; do not wait for it.
        knobs.delivery.time_limit = 1;
    });
    assert_eq!(stage.client.post(HOOKS, &body).await.status, 200);
    stage.echoed().await;
}

async fn a_field_missing_or_wrong_makes_no_hook() {
    let (stage, mut receiver) = Stage::echoing().await;
    let good = subscription(&receiver, "Customer", "Created");

    for field in ["uri", "entity", "action", "secret"] {
        let mut body = good.clone();
        body.as_object_mut().unwrap().remove(field);
        assert_refused(&stage.client.post(HOOKS, &body).await, 400, field);
        for wrong in [json!(null), json!(7), json!(true), json!([]), json!({})] {
            body[field] = wrong;
            assert_refused(&stage.client.post(HOOKS, &body).await, 400, field);
        }
    }
    // Names are exact.
    let entities = ["customer", "CUSTOMER", "Customers", "Invoice", "", " Customer", "Company"];
    let actions = ["created", "Disabled", "Create", "", "Created,Updated", "*"];
    for (field, wrongs) in [
        ("isPaused", vec![json!("false"), json!(0)]),
        ("applicationName", vec![json!(7)]),
        ("description", vec![json!(["a"])]),
        ("entity", entities.map(Value::from).to_vec()),
        ("action", actions.map(Value::from).to_vec()),
    ] {
        for wrong in wrongs {
            let mut body = good.clone();
            body[field] = wrong;
            assert_refused(&stage.client.post(HOOKS, &body).await, 400, field);
        }
    }
    for body in ["", "{", "null", "[]", "\"text\""] {
        let answer =
            stage.client.try_send(reqwest::Method::POST, HOOKS, Some(body.to_owned())).await.unwrap();
        assert_refused(&answer, 400, "body");
    }

    stage.echoed().await;
    assert!(stage.truth().is_empty());
    assert!(receiver.taken().is_empty(), "no receiver is asked for an echo");
}

async fn a_secret_has_as_many_characters_as_the_knobs_allow() {
    let (stage, receiver) = Stage::echoing().await;
    let mut body = subscription(&receiver, "Customer", "Created");

    for (count, allowed) in [(0, false), (31, false), (32, true), (64, true), (65, false)] {
        body["secret"] = json!("ñ".repeat(count));
        let answer = stage.client.post(HOOKS, &body).await;
        assert_eq!(answer.status, if allowed { 200 } else { 400 }, "{count}: {answer:?}");
    }
    stage.turn(|knobs| (knobs.invoicing.secret_min, knobs.invoicing.secret_max) = (1, 128));
    for (count, allowed) in [(0, false), (1, true), (128, true), (129, false)] {
        body["secret"] = json!("s".repeat(count));
        let answer = stage.client.post(HOOKS, &body).await;
        assert_eq!(answer.status, if allowed { 200 } else { 400 }, "{count}: {answer:?}");
    }
    stage.echoed().await;
}

async fn a_list_shows_the_caller_s_hooks_in_the_order_they_were_made() {
    let (stage, receiver) = Stage::echoing().await;
    let empty = stage.client.get(HOOKS).await.ok();
    let first = stage.hook(&receiver, "Customer", "Created").await;
    let mut misspelt = subscription(&receiver, "Bank", "Deleted");
    let description = misspelt.as_object_mut().unwrap().remove("description").unwrap();
    // As the document's sample body has it.
    misspelt["descripion"] = description;
    misspelt["isPaused"] = json!(true);
    let second = stage.client.post(HOOKS, &misspelt).await.ok();

    let list = stage.client.get(HOOKS).await;

    assert_eq!(empty, json!([]));
    let rows = list.rows();
    assert_eq!((&rows[0]["id"], &rows[1]["id"]), (&json!(first), &second["id"]));
    assert_eq!(rows.len(), 2);
    for (row, (entity, action, paused)) in
        rows.iter().zip([("Customer", "Created", false), ("Bank", "Deleted", true)])
    {
        assert_eq!(row["uri"], receiver.url(INCOMING));
        assert_eq!((&row["entity"], &row["action"]), (&json!(entity), &json!(action)));
        assert_eq!(row["isPaused"], paused);
        assert_eq!((&row["applicationName"], &row["description"]), (&json!("tests"), &json!("for a test")));
    }
    assert!(!list.body.contains(SECRET), "a list has no secrets");
}

async fn a_deleted_hook_is_gone_and_cannot_be_deleted_again() {
    let (stage, mut receiver) = Stage::echoing().await;
    let id = stage.hook(&receiver, "Customer", "Created").await;
    let path = format!("{HOOKS}/{id}");
    receiver.taken();

    let deleted = stage.client.delete(&path).await;
    stage.happen(0, "Customer", "Created");
    stage.idle().await;

    assert_eq!(deleted.status, 200, "{deleted:?}");
    assert_eq!(stage.client.get(HOOKS).await.ok(), json!([]));
    assert_eq!(stage.client.delete(&path).await.status, 404);
    for odd in ["7", "6f9619ff8b86d011b42d00c04fc964ff", "%FF"] {
        assert_eq!(stage.client.delete(&format!("{HOOKS}/{odd}")).await.status, 404, "{odd}");
    }
    assert!(receiver.taken().is_empty());
}

async fn the_hooks_of_another_company_are_neither_seen_nor_deleted() {
    let (stage, receiver) = Stage::echoing().await;
    let id = stage.hook(&receiver, "Customer", "Created").await;
    let other = chosen(&stage.simulator, 1).await;

    let seen = other.get(HOOKS).await.ok();
    let deleted = other.delete(&format!("{HOOKS}/{id}")).await;

    assert_eq!((seen, deleted.status), (json!([]), 404));
    assert_eq!(stage.client.get(HOOKS).await.rows().len(), 1);
}

async fn a_create_and_a_delete_answer_as_the_knobs_say() {
    let (stage, receiver) = Stage::echoing().await;
    let body = subscription(&receiver, "Customer", "Created");

    for (status, silent) in [(200, false), (201, false), (200, true), (204, true)] {
        stage.turn(|knobs| {
            knobs.invoicing.created_status = HttpStatus::new(status).unwrap();
            knobs.invoicing.silent = silent;
        });
        let created = stage.client.post(HOOKS, &body).await;
        stage.echoed().await;
        let rows = stage.client.get(HOOKS).await.rows();
        let listed: &Value = &rows[0];
        let deleted = stage.client.delete(&format!("{HOOKS}/{}", listed["id"].as_str().unwrap())).await;

        assert_eq!((created.status, deleted.status), (status, 200));
        for answer in [&created, &deleted] {
            if silent {
                assert_eq!(answer.body, "");
            } else {
                assert_eq!(&answer.json(), listed);
            }
        }
    }
}

async fn other_operations_on_hooks_are_not_found() {
    let (stage, receiver) = Stage::echoing().await;
    let id = stage.hook(&receiver, "Customer", "Created").await;

    for (method, path) in [
        ("PUT", format!("{HOOKS}/{id}")),
        ("GET", format!("{HOOKS}/{id}")),
        ("DELETE", HOOKS.to_owned()),
        ("GET", "/invoicing/api/users/login".to_owned()),
        ("GET", "/invoicing/api/customers".to_owned()),
    ] {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let answer = stage.client.send(method.clone(), &path, None).await;
        assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
        assert_eq!(answer.json()["statusCode"], 404, "{method} {path}: {answer:?}");
    }
    assert_eq!(stage.truth().len(), 1);
}
