#![allow(clippy::unwrap_used, reason = "a test may panic")]

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use tower_service::Service as _;

use super::*;
use crate::{
    identity::TokenStatus,
    knobs::{Effect, Fault, Latency, RetryHint, Status},
    settings::Settings,
};

async fn call(provider: &Arc<Provider>, method: &str, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(format!("/_control/{path}"));
    let request = request.body(Body::from(body.to_string())).unwrap();
    let answer = router().with_state(Arc::clone(provider)).call(request).await.unwrap();
    let status = answer.status();
    (status, serde_json::from_slice(&to_bytes(answer.into_body(), 1 << 20).await.unwrap()).unwrap())
}

/// The status of a request for a path that nobody knows.
async fn status(provider: &Arc<Provider>) -> u16 {
    let mut gateway = crate::gateway::guard(&provider.gateway, Router::new());
    let request = Request::get("/accounting/api/companies").body(Body::empty()).unwrap();
    gateway.call(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn faults_that_are_named_begin_again_and_others_do_not() {
    let provider = Provider::new(Settings::default()).unwrap();
    let faults = json!({ "faults": [{ "effect": { "status": 500 }, "times": 1 }] });
    let mut found = Vec::new();

    for (method, body, expected) in [
        ("PUT", &faults, 200),
        ("PUT", &faults, 200),
        ("PATCH", &json!({ "changesPerSecond": 0.0 }), 200),
        ("PATCH", &faults, 200),
        ("PATCH", &json!({ "faults": faults["faults"], "unheardOf": 1 }), 400),
    ] {
        assert_eq!(call(&provider, method, "knobs", body).await.0, expected, "{method} {body}");
        found.push([status(&provider).await, status(&provider).await]);
    }

    assert_eq!(found, [[500, 404], [500, 404], [404, 404], [500, 404], [404, 404]]);
}

#[tokio::test]
async fn a_patch_leads_from_any_latency_to_any_other() {
    let provider = Provider::new(Settings::default()).unwrap();
    let kinds = [
        (json!({ "kind": "none" }), Latency::None),
        (json!({ "kind": "fixed", "milliseconds": 3.5 }), Latency::Fixed { milliseconds: 3.5 }),
        (json!({ "kind": "uniform", "from": 1.0, "to": 2.0 }), Latency::Uniform { from: 1.0, to: 2.0 }),
        (
            json!({ "kind": "logNormal", "median": 1.0, "p99": 9.0 }),
            Latency::LogNormal { median: 1.0, p99: 9.0 },
        ),
    ];

    for (before, _) in &kinds {
        for (after, expected) in &kinds {
            for latency in [before, after] {
                let patch = json!({ "gateway": { "latency": latency }, "delivery": { "delay": latency } });
                let (status, knobs) = call(&provider, "PATCH", "knobs", &patch).await;
                assert_eq!((status, &knobs["gateway"]["latency"]), (StatusCode::OK, latency));
            }
            let knobs = provider.knobs();
            assert_eq!((knobs.gateway.latency, knobs.delivery.delay), (*expected, *expected));
        }
    }
    let halved = json!({ "gateway": { "latency": { "kind": "uniform", "from": 1 } } });
    call(&provider, "PUT", "knobs", &json!({})).await;
    assert_eq!(call(&provider, "PATCH", "knobs", &halved).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn knobs_that_could_not_be_kept_are_refused() {
    let provider = Provider::new(Settings::default()).unwrap();

    for refused in [
        json!({ "accounting": { "failureStatus": 199 } }),
        json!({ "invoicing": { "createdStatus": 600 } }),
        json!({ "reads": { "unknownCompany": 0 } }),
        json!({ "faults": [{ "effect": { "status": 100 } }] }),
        json!({ "invoicing": { "signatureHeader": "no name" } }),
        json!({ "invoicing": { "signatureHeader": "ñ" } }),
    ] {
        for method in ["PUT", "PATCH"] {
            let (status, answer) = call(&provider, method, "knobs", &refused).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{method} {refused}: {answer}");
        }
    }
    assert_eq!(*provider.knobs(), Knobs::default());

    let kept = json!({
        "accounting": { "failureStatus": 204 },
        "invoicing": { "signatureHeader": "" },
        "faults": [{ "effect": { "throttle": { "seconds": 1 } } }],
    });
    assert_eq!(call(&provider, "PATCH", "knobs", &kept).await.0, StatusCode::OK);
    let knobs = provider.knobs();
    assert_eq!(knobs.accounting.failure_status, Status::new(204).unwrap());
    let throttled = Effect::Throttle { seconds: 1, tells: RetryHint::Both };
    assert!(matches!(&knobs.faults[..], [Fault { effect, .. }] if *effect == throttled));
}

#[tokio::test]
async fn an_invoicing_token_is_had_without_a_login() {
    let provider = Provider::new(Settings::default()).unwrap();

    let (status, granted) = call(&provider, "POST", "invoicing/grant", &json!({ "company": 0 })).await;

    assert_eq!(status, StatusCode::OK);
    let standing = provider.invoicing.check(granted["token"].as_str().unwrap(), provider.clock.now());
    assert!(matches!(standing, TokenStatus::Valid(caller) if caller.invoicing_company == Some(0)));
    for (body, expected) in
        [(json!({ "company": 1 }), 404), (json!({}), 400), (json!({ "company": -1 }), 400)]
    {
        assert_eq!(call(&provider, "POST", "invoicing/grant", &body).await.0, expected, "{body}");
    }
}
