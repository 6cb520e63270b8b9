//! `/_control`: every route does what it says, and bad input is refused with a reason.

use reqwest::Method;
use serde_json::{Value, json};
use simulator::knobs::{Knobs, Latency, ReceiverUrls};

use super::{Answer, Client, pass, start, started};

crate::tests! {
    plain every_route_refuses_bad_input;
    plain knobs_are_read_replaced_patched_and_set_back;
    plain every_knob_survives_a_round_trip;
    plain a_patch_leads_from_any_latency_to_any_other;
    plain faults_that_are_named_count_from_zero_again;
    plain the_clock_is_read_moved_and_skewed;
    plain steps_of_the_world_are_counted;
    plain truth_has_requests_deliveries_tokens_webhooks_and_hooks;
    plain control_needs_no_key_and_is_not_in_the_journal;
}

async fn call(client: &Client, method: &str, path: &str, body: &str) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let body = (!body.is_empty()).then(|| body.to_owned());
    client.try_send(method, &format!("/_control{path}"), body).await.unwrap()
}

async fn done(client: &Client, method: &str, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    call(client, method, path, &body).await.ok()
}

async fn truth(client: &Client, what: &str) -> Vec<Value> {
    let answer = call(client, "GET", &format!("/truth/{what}"), "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn every_route_refuses_bad_input() {
    let (simulator, client) = started(Client::bare, |_| {}).await;

    for (method, path, body, status) in [
        ("PUT", "/knobs", "", 400),
        ("PUT", "/knobs", "7", 400),
        ("PUT", "/knobs", r#"{"unknown":1}"#, 400),
        ("PUT", "/knobs", r#"{"reads":{"order":"sideways"}}"#, 400),
        ("PATCH", "/knobs", "[]", 400),
        ("PATCH", "/knobs", "{", 400),
        ("PATCH", "/knobs", r#"{"gateway":{"unknown":1}}"#, 400),
        ("PATCH", "/knobs", r#"{"faults":[{"effect":"explode"}]}"#, 400),
        ("PATCH", "/knobs", r#"{"changesPerSecond":"many"}"#, 400),
        ("PATCH", "/knobs", r#"{"changesPerSecond":-3}"#, 400),
        ("PUT", "/knobs", r#"{"changesPerSecond":-3}"#, 400),
        ("PATCH", "/knobs", r#"{"accounting":{"failureStatus":199}}"#, 400),
        ("PATCH", "/knobs", r#"{"faults":[{"effect":{"status":100}}]}"#, 400),
        ("PATCH", "/knobs", r#"{"invoicing":{"signatureHeader":"no name"}}"#, 400),
        ("PATCH", "/knobs", r#"{"gateway":{"latency":{"kind":"uniform","from":1}}}"#, 400),
        ("POST", "/clock", "", 400),
        ("POST", "/clock", "{}", 400),
        ("POST", "/clock", r#"{"advanceSeconds":1,"skewSeconds":1}"#, 400),
        ("POST", "/clock", r#"{"advanceSeconds":1e300}"#, 400),
        ("POST", "/webhooks/x/disable", "", 400),
        ("POST", "/webhooks/00000000-0000-0000-0000-000000000000/disable", "", 404),
        ("POST", "/step", "", 400),
        ("POST", "/step", r#"{"changes":-1}"#, 400),
        ("POST", "/step", r#"{"changes":1000001}"#, 400),
        ("GET", "/truth/records/nothing", "", 400),
        ("GET", "/truth/deliveries?from=x", "", 400),
        ("GET", "/truth/requests?limit=-1", "", 400),
        ("GET", "/truth/nothing", "", 404),
        ("GET", "/nothing", "", 404),
        ("DELETE", "/knobs", "", 405),
    ] {
        let answer = call(&client, method, path, body).await;

        assert_eq!(answer.status, status, "{method} {path} {body}: {answer:?}");
        if status == 400 && !path.contains('?') {
            let message = answer.json()["message"].as_str().map(str::to_owned);
            assert!(message.is_some_and(|message| !message.is_empty()), "{method} {path} {body}: {answer:?}");
        }
    }
    for (wrong, named) in [
        (r#"{"changesPerSecond":5,"reads":{"maxPageSize":"seven"}}"#, "seven"),
        (r#"{"changesPerSecond":5,"reads":{"replicaShare":7}}"#, "reads.replicaShare = 7:"),
    ] {
        let refused = call(&client, "PATCH", "/knobs", wrong).await;
        let message = refused.json()["message"].to_string();
        assert!(refused.status == 400 && message.contains(named), "{refused:?}");
    }
    assert_eq!(done(&client, "GET", "", Value::Null).await["changes"], 0, "a refused call changed the world");
    assert_eq!(*simulator.provider().knobs(), Knobs::default());
}

async fn knobs_are_read_replaced_patched_and_set_back() {
    let (simulator, client) = started(Client::bare, |_| {}).await;
    let defaults = serde_json::to_value(Knobs::default()).unwrap();

    assert_eq!(done(&client, "GET", "/knobs", Value::Null).await, defaults);
    let patch = json!({ "gateway": { "expiredToken": "serverError" }, "reads": { "maxPageSize": 7 } });
    let patched = done(&client, "PATCH", "/knobs", patch).await;
    assert_eq!(patched["gateway"]["expiredToken"], "serverError");
    assert_eq!((&patched["reads"]["maxPageSize"], &patched["reads"]["replicaLag"]), (&7.into(), &0.into()));
    assert_eq!(simulator.provider().knobs().reads.max_page_size, 7);
    let back = done(&client, "PATCH", "/knobs", json!({ "reads": { "maxPageSize": null } })).await;
    assert_eq!(back["reads"]["maxPageSize"], 1_000);
    assert_eq!(back["gateway"]["expiredToken"], "serverError", "the others stay");
    assert_eq!(done(&client, "PUT", "/knobs", json!({})).await, defaults);
}

async fn every_knob_survives_a_round_trip() {
    let (_simulator, client) = started(Client::bare, |_| {}).await;
    let changed = json!({
        "changesPerSecond": 0.0,
        "identity": { "refresh": "sliding", "pkce": "required", "badClient": "unauthorizedClient", "latency": { "kind": "fixed", "milliseconds": 3.0 } },
        "gateway": {
            "latency": { "kind": "uniform", "from": 1.0, "to": 2.0 },
            "rate": { "requests": 5, "seconds": 1.5, "tells": "message" },
            "unknownPaths": ["activities", "integrationFiles"],
        },
        "reads": { "order": "scattered", "emptyList": "null", "overMax": "refuse", "churn": { "inserts": 0.5 } },
        "accounting": { "retries": [1, 2], "failedAcknowledge": "deleted", "timestamp": "fileTime", "failureStatus": 204 },
        "invoicing": { "body": "wrapped", "echo": "duringPost", "signatureHeader": "" },
        "delivery": { "receivers": "any", "accepts": "any2xx", "delay": { "kind": "uniform", "from": 1.0, "to": 2.0 }, "resolve": { "a.example": "127.0.0.1:1" } },
        "faults": [
            { "on": {}, "effect": { "throttle": { "seconds": 1, "tells": "nothing" } }, "share": 0.5, "times": 0, "skip": 2 },
            { "effect": "truncate", "times": 0 },
            { "effect": { "delay": { "kind": "fixed", "milliseconds": 1.0 } }, "times": 0 },
        ],
    });

    let first = done(&client, "PUT", "/knobs", changed).await;
    let second = done(&client, "PUT", "/knobs", first.clone()).await;

    assert_eq!(first, second);
    assert_eq!(first["gateway"]["unknownPaths"], json!(["activities", "integrationFiles"]));
    assert_eq!(first["faults"].as_array().unwrap().len(), 3);
}

async fn a_patch_leads_from_any_latency_to_any_other() {
    let (simulator, client) = started(Client::bare, |_| {}).await;
    let kinds = [
        (json!({ "kind": "none" }), Latency::None),
        (json!({ "kind": "fixed", "milliseconds": 3.5 }), Latency::Fixed { milliseconds: 3.5 }),
        (json!({ "kind": "uniform", "from": 1.0, "to": 2.0 }), Latency::Uniform { from: 1.0, to: 2.0 }),
    ];

    for (before, _) in &kinds {
        for (after, expected) in &kinds {
            for latency in [before, after] {
                let patch = json!({ "delivery": { "delay": latency } });
                assert_eq!(&done(&client, "PATCH", "/knobs", patch).await["delivery"]["delay"], latency);
            }
            assert_eq!(simulator.provider().knobs().delivery.delay, *expected);
        }
    }
}

async fn faults_that_are_named_count_from_zero_again() {
    let (simulator, client) = started(Client::bare, |_| {}).await;
    let api = Client::accounting(&simulator);
    let faults = json!({ "faults": [{ "effect": { "status": 500 }, "times": 1 }] });
    let mut found = Vec::new();

    for (method, body, status) in [
        ("PUT", &faults, 200),
        ("PUT", &faults, 200),
        ("PATCH", &json!({ "changesPerSecond": 0.0 }), 200),
        ("PATCH", &faults, 200),
        ("PATCH", &json!({ "faults": faults["faults"], "unheardOf": 1 }), 400),
    ] {
        assert_eq!(
            call(&client, method, "/knobs", &body.to_string()).await.status,
            status,
            "{method} {body}"
        );
        let path = "/accounting/api/companies";
        found.push([api.get(path).await.status, api.get(path).await.status]);
    }

    assert_eq!(found, [[500, 200], [500, 200], [200, 200], [500, 200], [200, 200]]);
}

async fn the_clock_is_read_moved_and_skewed() {
    let (_simulator, client) = started(Client::bare, |_| {}).await;
    let now =
        async |method, body| done(&client, method, "/clock", body).await["now"].as_str().unwrap().to_owned();

    assert_eq!(now("GET", Value::Null).await, "2026-11-15T12:00:00.0000000Z");
    assert_eq!(now("POST", json!({ "advanceSeconds": 1.5 })).await, "2026-11-15T12:00:01.5000000Z");
    assert_eq!(now("POST", json!({ "advanceSeconds": -2 })).await, "2026-11-15T11:59:59.5000000Z");
    assert_eq!(now("POST", json!({ "skewSeconds": 60 })).await, "2026-11-15T12:01:00.0000000Z");
    assert_eq!(now("GET", Value::Null).await, "2026-11-15T12:01:00.0000000Z");
}

async fn steps_of_the_world_are_counted() {
    let (_simulator, client) = started(Client::bare, |_| {}).await;

    assert_eq!(done(&client, "POST", "/step", json!({ "changes": 0 })).await["changes"], 0);
    assert_eq!(done(&client, "POST", "/step", json!({ "changes": 30 })).await["changes"], 30);

    let summary = done(&client, "GET", "", Value::Null).await;
    assert_eq!((&summary["changes"], &summary["seed"]), (&30.into(), &1.into()));
    assert_eq!(summary["now"], "2026-11-15T12:00:00.0000000Z");
}

async fn truth_has_requests_deliveries_tokens_webhooks_and_hooks() {
    let simulator = start(|settings| settings.knobs.delivery.receivers = ReceiverUrls::Any).await;
    let mut receiver = super::receiver::Receiver::accepting().await;
    let (access, refresh) = simulator.provider().identity.grant(&super::ACCOUNTING_SCOPES);
    let api = Client::accounting(&simulator).token(&access).context("none");
    let subscribe = "/accounting/api/customers/webhooks/subscribe";
    let body = json!({
        "thirdPartyApplicationName": "tests",
        "url": receiver.url("/hook"),
        "secret": "a secret",
        "eventTypes": ["Svc.ACC.Customers.CustomerUpdated"],
    });
    let id = api.post(subscribe, &body).await.ok()["webhookId"].clone();
    receiver.next().await;
    simulator.provider().deliveries.idle().await;
    let client = Client::bare(&simulator);
    pass(&simulator, 60);
    done(&client, "POST", &format!("/webhooks/{}/disable", id.as_str().unwrap()), Value::Null).await;

    let requests = truth(&client, "requests").await;
    assert_eq!(requests.len(), 1);
    assert_eq!((&requests[0]["number"], &requests[0]["status"]), (&0.into(), &200.into()));
    assert_eq!(requests[0]["target"], subscribe);
    assert_eq!(truth(&client, "requests?from=1").await, Vec::<Value>::new());
    let deliveries = truth(&client, "deliveries?from=0&limit=1").await;
    assert_eq!((&deliveries[0]["webhook"], &deliveries[0]["purpose"]), (&id, &"acknowledge".into()));
    assert_eq!(deliveries[0]["end"], "accepted");
    let webhooks = truth(&client, "webhooks").await;
    assert_eq!((&webhooks[0]["id"], &webhooks[0]["resource"]), (&id, &"customers".into()));
    let turns = webhooks[0]["turns"].as_array().unwrap();
    let states: Vec<&str> = turns.iter().map(|turn| turn["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["awaitingContract", "active", "disabled"]);
    assert_eq!(turns[2]["at"], "2026-11-15T12:01:00.0000000Z");
    assert_eq!(truth(&client, "hooks").await, Vec::<Value>::new());
    let tokens = truth(&client, "tokens").await;
    for token in [access, refresh] {
        let issued = tokens.iter().find(|issued| issued["token"] == *token);
        assert_eq!(issued.map(|issued| &issued["issuedBy"]), Some(&"identity".into()), "{issued:?}");
    }
}

async fn control_needs_no_key_and_is_not_in_the_journal() {
    let (simulator, client) = started(Client::bare, |settings| {
        let drop = super::gateway::rule(simulator::knobs::Effect::Drop);
        settings.knobs.faults = vec![drop];
    })
    .await;

    for path in ["", "/knobs", "/clock", "/truth/records/companies"] {
        assert_eq!(call(&client, "GET", path, "").await.status, 200, "{path}");
    }

    assert_eq!(simulator.provider().gateway.request_count(), 0);
}
