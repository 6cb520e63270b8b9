//! `/_control`: every route does what it says, and bad input is told so.

use reqwest::Method;
use serde_json::{Value, json};
use simulator::{Simulator, knobs::Knobs, knobs::ReceiverUrls};

use super::{Answer, Client, segment, start};

crate::tests! {
    plain every_route_refuses_what_it_does_not_understand_without_failing;
    plain knobs_are_read_replaced_patched_and_set_back;
    plain a_patch_that_is_wrong_turns_nothing;
    plain every_knob_survives_the_way_out_and_in;
    plain the_clock_is_read_moved_and_skewed;
    plain records_are_created_changed_disabled_and_deleted_by_hand;
    plain a_company_is_restored_by_hand;
    plain a_restore_to_now_undoes_nothing_wherever_the_clock_stands;
    plain payroll_and_invoicing_are_changed_by_hand;
    plain steps_of_the_world_are_counted;
    plain grants_are_given_and_revoked_and_keys_rotated;
    plain the_truth_in_full_is_what_reads_show_byte_for_byte;
    plain truth_tells_requests_deliveries_tokens_webhooks_and_hooks;
    plain control_needs_neither_key_nor_token_and_is_no_part_of_the_journal;
}

pub(super) async fn call(client: &Client, method: &str, path: &str, body: &str) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let body = (!body.is_empty()).then(|| body.to_owned());
    client.try_send(method, &format!("/_control{path}"), body).await.unwrap()
}

pub(super) async fn done(client: &Client, method: &str, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    call(client, method, path, &body).await.ok()
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) async fn truth(client: &Client, what: &str) -> Vec<Value> {
    lines(&call(client, "GET", &format!("/truth/{what}"), "").await)
}

/// The first customer as the truth has it.
async fn customer(client: &Client) -> (String, String, Value) {
    let first = truth(client, "records/customers").await.swap_remove(0);
    (first["company"].as_str().unwrap().to_owned(), first["id"].as_str().unwrap().to_owned(), first)
}

async fn every_route_refuses_what_it_does_not_understand_without_failing() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let (_, id, _) = customer(&client).await;
    let customers = format!("/records/customers/{id}");
    let unknown = "00000000-0000-0000-0000-000000000000";

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
        ("PATCH", "/knobs", r#"{"reads":{"replicaShare":1.1}}"#, 400),
        ("PATCH", "/knobs", r#"{"reads":{"churn":{"inserts":-1}}}"#, 400),
        ("PATCH", "/knobs", r#"{"delivery":{"lose":-0.1}}"#, 400),
        ("PATCH", "/knobs", r#"{"faults":[{"effect":"drop","share":2}]}"#, 400),
        ("PATCH", "/knobs", r#"{"gateway":{"rate":{"requests":1,"seconds":-1}}}"#, 400),
        ("POST", "/clock", "", 400),
        ("POST", "/clock", "{}", 400),
        ("POST", "/clock", r#"{"advanceSeconds":1,"skewSeconds":1}"#, 400),
        ("POST", "/clock", r#"{"advanceSeconds":1e300}"#, 400),
        ("POST", "/clock", r#"{"advanceSeconds":"1"}"#, 400),
        ("POST", "/identity/rotate-keys", r#"{"keepOld":"yes"}"#, 400),
        ("POST", "/identity/grant", "", 400),
        ("POST", "/identity/grant", r#"{"scopes":"openid"}"#, 400),
        ("POST", "/webhooks/x/disable", "", 400),
        ("POST", &format!("/webhooks/{unknown}/disable"), "", 404),
        ("POST", &format!("/webhooks/{unknown}/send"), "", 400),
        ("POST", &format!("/webhooks/{unknown}/send"), r#"{"eventType":"X","jsonData":"{}"}"#, 404),
        ("POST", "/hooks/x/pause", "", 400),
        ("POST", &format!("/hooks/{unknown}/pause"), "", 404),
        ("POST", &format!("/hooks/{unknown}/resume"), "", 404),
        ("POST", "/deliveries/idle", r#"{"seconds":-1}"#, 400),
        ("POST", "/deliveries/idle", r#"{"seconds":1e9}"#, 400),
        ("POST", "/deliveries/idle", "x", 400),
        ("POST", "/step", "", 400),
        ("POST", "/step", r#"{"changes":-1}"#, 400),
        ("POST", "/step", r#"{"changes":1000001}"#, 400),
        ("POST", "/records/customers", "", 400),
        ("POST", "/records/customers", "{}", 400),
        ("POST", "/records/customers", r#"{"company":"nobody"}"#, 404),
        ("POST", "/records/nothing", "{}", 400),
        ("POST", &format!("{customers}/deleted"), "", 400),
        ("POST", &format!("{customers}/created"), "", 400),
        ("POST", &format!("{customers}/exploded"), "", 400),
        ("POST", &format!("/records/customers/{unknown}/updated"), "", 404),
        ("POST", &format!("/records/nothing/{id}/updated"), "", 400),
        ("POST", "/companies/nobody/restore", r#"{"secondsAgo":1}"#, 404),
        ("POST", "/companies/nobody/restore", "", 400),
        ("POST", "/companies/nobody/restore", r#"{"secondsAgo":1e30}"#, 400),
        ("POST", "/payroll/1/updated", "", 404),
        ("POST", "/payroll/x/updated", "", 400),
        ("POST", "/payroll/99999999999/updated", "", 400),
        ("POST", "/payroll/1/exploded", "", 400),
        ("POST", "/invoicing", "", 400),
        ("POST", "/invoicing", r#"{"entity":"Nothing","action":"Updated"}"#, 400),
        ("POST", "/invoicing", r#"{"entity":"CompanyData","action":"Created"}"#, 400),
        ("POST", "/invoicing", r#"{"company":99,"entity":"Customer","action":"Updated"}"#, 404),
        ("GET", "/truth/records/nothing", "", 400),
        ("GET", "/truth/records/customers?company=nobody", "", 404),
        ("GET", "/truth/records/customers?unknown=1", "", 400),
        ("GET", "/truth/records/customers?full=perhaps", "", 400),
        ("GET", "/truth/payroll?company=1", "", 400),
        ("GET", "/truth/deliveries?from=x", "", 400),
        ("GET", "/truth/requests?limit=-1", "", 400),
        ("GET", "/truth/nothing", "", 404),
        ("GET", "/nothing", "", 404),
        ("DELETE", "/knobs", "", 405),
    ] {
        let answer = call(&client, method, path, body).await;

        assert_eq!(answer.status, status, "{method} {path} {body}: {answer:?}");
        if matches!(status, 400 | 404) && !path.ends_with("nothing") {
            let told = answer.json()["message"].as_str().map(str::to_owned);
            assert!(told.is_some_and(|message| !message.is_empty()), "{method} {path} {body}: {answer:?}");
        }
    }
    assert_eq!(done(&client, "GET", "", Value::Null).await["changes"], 0, "a refused call changed the world");
}

async fn knobs_are_read_replaced_patched_and_set_back() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let defaults = serde_json::to_value(Knobs::default()).unwrap();

    assert_eq!(done(&client, "GET", "/knobs", Value::Null).await, defaults);
    let patch = json!({ "gateway": { "expiredToken": "serverError" }, "reads": { "maxPageSize": 7 } });
    let patched = done(&client, "PATCH", "/knobs", patch).await;
    assert_eq!(patched["gateway"]["expiredToken"], "serverError");
    assert_eq!(
        (&patched["reads"]["maxPageSize"], &patched["reads"]["defaultPageSize"]),
        (&7.into(), &100.into())
    );
    assert_eq!(simulator.provider().knobs().reads.max_page_size, 7);
    let back = done(&client, "PATCH", "/knobs", json!({ "reads": { "maxPageSize": null } })).await;
    assert_eq!(back["reads"]["maxPageSize"], 1_000);
    assert_eq!(back["gateway"]["expiredToken"], "serverError", "the others stay");
    assert_eq!(done(&client, "PUT", "/knobs", json!({})).await, defaults);

    // A turned knob shows on the wire.
    let api = Client::accounting(&simulator);
    let faults = json!({ "faults": [{ "on": { "page": 2 }, "effect": { "status": 503 }, "times": 1 }] });
    done(&client, "PATCH", "/knobs", faults).await;
    let path = "/accounting/api/companies?pageNumber=2&pageSize=1";
    assert_eq!((api.get(path).await.status, api.get(path).await.status), (503, 200));
}

async fn a_patch_that_is_wrong_turns_nothing() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);

    for (wrong, named) in [
        (r#"{"changesPerSecond":5,"reads":{"maxPageSize":"seven"}}"#, "seven"),
        (
            r#"{"changesPerSecond":5,"reads":{"replicaShare":7}}"#,
            "reads.replicaShare = 7: a share, from 0 to 1",
        ),
    ] {
        let refused = call(&client, "PATCH", "/knobs", wrong).await;

        assert_eq!(refused.status, 400);
        assert!(refused.json()["message"].as_str().unwrap().contains(named), "{refused:?}");
        assert_eq!(*simulator.provider().knobs(), Knobs::default());
    }
}

async fn every_knob_survives_the_way_out_and_in() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let turned = json!({
        "changesPerSecond": 0.0,
        "identity": { "refresh": "sliding", "pkce": "required", "badClient": "unauthorizedClient", "latency": { "kind": "fixed", "milliseconds": 3.0 } },
        "gateway": {
            "latency": { "kind": "logNormal", "median": 1.0, "p99": 2.0 },
            "rate": { "requests": 5, "seconds": 1.5, "tells": "message" },
            "unknownPaths": ["activities", "integrationFiles"],
        },
        "reads": { "order": "scattered", "emptyList": "null", "overMax": "refuse", "churn": { "inserts": 0.5 } },
        "accounting": { "retries": [1, 2], "failedAcknowledge": "deleted", "timestamp": "fileTime" },
        "invoicing": { "body": "wrapped", "echo": "duringPost" },
        "delivery": { "receivers": "any", "accepts": "any2xx", "delay": { "kind": "uniform", "from": 1.0, "to": 2.0 }, "resolve": { "a.example": "127.0.0.1:1" } },
        "faults": [
            { "on": {}, "effect": { "throttle": { "seconds": 1, "tells": "nothing" } }, "share": 0.5, "times": 0, "skip": 2 },
            { "effect": "truncate", "times": 0 },
            { "effect": { "delay": { "kind": "fixed", "milliseconds": 1.0 } }, "times": 0 },
        ],
    });

    let first = done(&client, "PUT", "/knobs", turned).await;
    let second = done(&client, "PUT", "/knobs", first.clone()).await;

    assert_eq!(first, second);
    assert_eq!(first["gateway"]["unknownPaths"], json!(["activities", "integrationFiles"]));
    assert_eq!(first["faults"].as_array().unwrap().len(), 3);
}

async fn the_clock_is_read_moved_and_skewed() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let now =
        async |method, body| done(&client, method, "/clock", body).await["now"].as_str().unwrap().to_owned();

    assert_eq!(now("GET", Value::Null).await, "2026-11-15T12:00:00.0000000Z");
    assert_eq!(now("POST", json!({ "advanceSeconds": 1.5 })).await, "2026-11-15T12:00:01.5000000Z");
    assert_eq!(now("POST", json!({ "advanceSeconds": -2 })).await, "2026-11-15T11:59:59.5000000Z");
    assert_eq!(now("POST", json!({ "skewSeconds": 60 })).await, "2026-11-15T12:01:00.0000000Z");
    assert_eq!(now("GET", Value::Null).await, "2026-11-15T12:01:00.0000000Z");
}

async fn records_are_created_changed_disabled_and_deleted_by_hand() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let (company, id, before) = customer(&client).await;
    let state = async |resource: &str, id: &str| {
        let all = truth(&client, &format!("records/{resource}?company={}", segment(&company))).await;
        let found = all.into_iter().find(|record| record["id"] == *id);
        found.map(|record| {
            (record["state"].as_str().unwrap().to_owned(), record["sequenceVersion"].as_u64().unwrap())
        })
    };

    let made = done(&client, "POST", "/records/charges", json!({ "company": company })).await;
    let made = made["id"].as_str().unwrap().to_owned();
    let (created, first) = state("charges", &made).await.unwrap();
    let updated = done(&client, "POST", &format!("/records/charges/{made}/updated"), Value::Null).await;
    let deleted = done(&client, "POST", &format!("/records/charges/{made}/deleted"), Value::Null).await;
    let disabled = done(&client, "POST", &format!("/records/customers/{id}/disabled"), Value::Null).await;

    assert_eq!(created, "Enabled");
    assert!(
        updated["sequenceVersion"].as_u64() > Some(first)
            && deleted["sequenceVersion"].as_u64() > updated["sequenceVersion"].as_u64()
    );
    assert_eq!(state("charges", &made).await.unwrap().0, "Deleted");
    assert_eq!(
        state("customers", &id).await,
        Some(("Disabled".to_owned(), disabled["sequenceVersion"].as_u64().unwrap()))
    );
    assert!(disabled["sequenceVersion"].as_u64() > before["sequenceVersion"].as_u64());
    let again = call(&client, "POST", &format!("/records/charges/{made}/updated"), "").await;
    assert_eq!(again.status, 400, "a deleted record changes no more");
    let new = done(&client, "POST", "/records/companies", json!({})).await;
    assert!(
        Client::accounting(&simulator).companies().await.contains(&new["id"].as_str().unwrap().to_owned())
    );
}

async fn a_company_is_restored_by_hand() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let (company, id, before) = customer(&client).await;
    done(&client, "POST", "/clock", json!({ "advanceSeconds": 100 })).await;
    done(&client, "POST", &format!("/records/customers/{id}/updated"), Value::Null).await;
    assert_ne!(customer(&client).await.2, before);

    let path = format!("/companies/{}/restore", segment(&company));
    let restored = done(&client, "POST", &path, json!({ "secondsAgo": 50 })).await;

    assert_eq!(restored["records"], 1);
    assert_eq!(customer(&client).await.2, before);
}

async fn a_restore_to_now_undoes_nothing_wherever_the_clock_stands() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let (company, id, _) = customer(&client).await;
    let path = format!("/companies/{}/restore", segment(&company));

    for set in [0, -3_600, 3_600] {
        done(&client, "POST", "/clock", json!({ "skewSeconds": set })).await;
        for _ in 0..3 {
            done(&client, "POST", &format!("/records/customers/{id}/updated"), Value::Null).await;
        }
        let before = customer(&client).await.2;

        let restored = done(&client, "POST", &path, json!({ "secondsAgo": 0 })).await;

        assert_eq!((&restored["records"], customer(&client).await.2), (&0.into(), before), "{set}");
    }
}

async fn payroll_and_invoicing_are_changed_by_hand() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let codes = async || {
        let all = truth(&client, "payroll").await;
        all.into_iter().map(|row| row["companyCode"].as_u64().unwrap()).collect::<Vec<_>>()
    };

    let made = done(&client, "POST", "/payroll", Value::Null).await["companyCode"].as_u64().unwrap();
    let known = codes().await;
    assert!(known.contains(&made) && known.len() == 6, "{known:?}");
    let updated = done(&client, "POST", &format!("/payroll/{}/updated", known[0]), Value::Null).await;
    assert_eq!(updated, json!({ "companyCode": known[0], "lastUpdate": "2026-11-15T12:00:00.000Z" }));
    done(&client, "POST", &format!("/payroll/{made}/deleted"), Value::Null).await;
    assert!(!codes().await.contains(&made));
    for (method, status) in [("updated", 404), ("disabled", 404)] {
        assert_eq!(call(&client, "POST", &format!("/payroll/{made}/{method}"), "").await.status, status);
    }
    for action in ["Created", "Updated", "Deleted"] {
        let act = done(&client, "POST", "/invoicing", json!({ "entity": "Product", "action": action })).await;
        assert!(act["entityId"].is_string(), "{action}: {act}");
    }
}

async fn steps_of_the_world_are_counted() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);

    assert_eq!(done(&client, "POST", "/step", json!({ "changes": 0 })).await["changes"], 0);
    assert_eq!(done(&client, "POST", "/step", json!({ "changes": 30 })).await["changes"], 30);

    let summary = done(&client, "GET", "", Value::Null).await;
    assert_eq!((&summary["changes"], &summary["seed"]), (&30.into(), &1.into()));
    assert_eq!(summary["now"], "2026-11-15T12:00:00.0000000Z");
}

async fn grants_are_given_and_revoked_and_keys_rotated() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let scopes = json!({ "scopes": super::ACCOUNTING_SCOPES });
    let granted = done(&client, "POST", "/identity/grant", scopes).await;
    let api = Client::accounting(&simulator).token(granted["accessToken"].as_str().unwrap());
    let status = async || api.get("/accounting/api/companies").await.status;

    assert_eq!(status().await, 200);
    done(&client, "POST", "/identity/revoke", Value::Null).await;
    assert_eq!(status().await, 401);
    let refresh = granted["refreshToken"].as_str().unwrap();
    let refused = super::identity::refresh(&client, refresh).await.unwrap();
    super::identity::refused(&refused, 400, "invalid_grant");

    let keys =
        async || client.get("/auth/core/.well-known/jwks").await.ok()["keys"].as_array().unwrap().len();
    done(&client, "POST", "/identity/rotate-keys", Value::Null).await;
    assert_eq!(keys().await, 2);
    done(&client, "POST", "/identity/rotate-keys", json!({ "keepOld": false })).await;
    assert_eq!(keys().await, 1);
}

/// A simulator whose receivers answer nobody, and the id of a webhook of it that is active all the same.
pub(super) async fn with_webhook() -> (Simulator, Client, String) {
    let receiver = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", receiver.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(receiver, axum::Router::new().fallback(async || "")).await });
    let simulator = start(|settings| settings.knobs.delivery.receivers = ReceiverUrls::Any).await;
    let api = Client::accounting(&simulator).context("none");
    let body = json!({
        "thirdPartyApplicationName": "tests",
        "url": url,
        "secret": "a secret",
        "eventTypes": ["Svc.ACC.Customers.CustomerUpdated"],
    });
    let made = api.post("/accounting/api/customers/webhooks/subscribe", &body).await.ok();
    let client = Client::bare(&simulator);
    assert_eq!(done(&client, "POST", "/deliveries/idle", json!({ "seconds": 20 })).await["idle"], true);
    (simulator, client, made["webhookId"].as_str().unwrap().to_owned())
}

async fn the_truth_in_full_is_what_reads_show_byte_for_byte() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);
    let raw = |answer: &Answer| -> Vec<String> {
        // A value parsed and written again would not be the bytes.
        let record =
            |line: &str| line.split_once(r#","record":"#).unwrap().1.strip_suffix('}').unwrap().to_owned();
        answer.body.lines().map(record).collect()
    };

    for extra in [false, true] {
        simulator.provider().turn(|knobs| (knobs.reads.extra_fields, knobs.reads.thin_rows) = (extra, true));
        for (name, prefix) in super::RESOURCES {
            let told = call(&client, "GET", &format!("/truth/records/{name}?full=true"), "").await;
            let first = lines(&told).swap_remove(0);
            let api = Client::accounting(&simulator).company(first["company"].as_str().unwrap());
            let read = api.get(&format!("{prefix}/{}", segment(first["id"].as_str().unwrap()))).await;
            assert_eq!((read.status, &read.body), (200, &raw(&told)[0]), "{name} {extra}");
        }
        let told = call(&client, "GET", "/truth/payroll?full=true", "").await;
        let read = Client::payroll(&simulator).get("/payroll/api/companies?pageNumber=1&pageSize=100").await;
        assert_eq!(read.body, format!("[{}]", raw(&told).join(",")), "{extra}");
    }
    assert_eq!(truth(&client, "payroll").await[0]["record"], Value::Null);
}

async fn truth_tells_requests_deliveries_tokens_webhooks_and_hooks() {
    let (simulator, client, id) = with_webhook().await;
    let (access, refresh) = simulator.provider().identity.grant(&["openid"]);
    let invoicing = simulator.provider().invoicing.grant(0);

    let requests = truth(&client, "requests").await;
    assert_eq!(requests.len(), 1);
    assert_eq!((&requests[0]["number"], &requests[0]["status"]), (&0.into(), &200.into()));
    assert_eq!(requests[0]["target"], "/accounting/api/customers/webhooks/subscribe");
    assert_eq!(truth(&client, "requests?from=1").await, Vec::<Value>::new());
    let deliveries = truth(&client, "deliveries?from=0&limit=1").await;
    assert_eq!(
        (&deliveries[0]["webhook"], &deliveries[0]["purpose"]),
        (&id.as_str().into(), &"acknowledge".into())
    );
    assert_eq!(deliveries[0]["end"], "accepted");
    let webhooks = truth(&client, "webhooks").await;
    assert_eq!((&webhooks[0]["id"], &webhooks[0]["resource"]), (&id.as_str().into(), &"customers".into()));
    assert_eq!(truth(&client, "hooks").await, Vec::<Value>::new());
    let tokens = truth(&client, "tokens").await;
    for (token, by) in [(access, "identity"), (refresh, "identity"), (invoicing, "invoicing")] {
        let told = tokens.iter().find(|issued| issued["token"] == *token);
        assert_eq!(told.map(|issued| &issued["issuedBy"]), Some(&by.into()), "{token}: {told:?}");
    }
}

async fn control_needs_neither_key_nor_token_and_is_no_part_of_the_journal() {
    let simulator = start(|settings| {
        let drop = super::gateway::rule(simulator::knobs::Effect::Drop);
        settings.knobs.faults = vec![drop];
    })
    .await;
    let client = Client::bare(&simulator);

    for path in ["", "/knobs", "/clock", "/truth/payroll", "/truth/records/companies?full=true"] {
        assert_eq!(call(&client, "GET", path, "").await.status, 200, "{path}");
    }

    assert_eq!(simulator.provider().gateway.request_count(), 0);
}
