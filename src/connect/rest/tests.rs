use axum::{
    body::{Body as HttpBody, to_bytes},
    extract::{FromRequest, FromRequestParts},
    http::{Request, header},
    response::IntoResponse as _,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    answer::Refusal,
    request::{Body, Query},
};
use crate::connect::herder::handle_until;

fn status(refusal: Refusal) -> u16 {
    refusal.into_response().status().as_u16()
}

async fn sent(content_type: Option<&str>, bytes: impl Into<HttpBody>) -> Result<Value, u16> {
    let request = Request::builder();
    let request = match content_type {
        Some(content_type) => request.header(header::CONTENT_TYPE, content_type),
        None => request,
    };
    let request = request.body(bytes.into()).unwrap();
    Body::from_request(request, &()).await.map(|body| body.0).map_err(status)
}

#[tokio::test]
async fn body_is_bounded_json_or_refused() {
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    let deep = "[".repeat(100_000);
    let table: [(Option<&str>, &str, Result<Value, u16>); 9] = [
        (Some("application/json"), "{}", Ok(json!({}))),
        (Some("Application/JSON; charset=utf-8"), "{}", Ok(json!({}))),
        (None, "{}", Ok(json!({}))),
        (Some("text/plain"), "{}", Err(415)),
        (Some("application/x-www-form-urlencoded"), "{}", Err(415)),
        (Some("application/json"), "{bad", Err(400)),
        (Some("application/json"), "", Err(400)),
        (Some("application/json"), &large, Err(413)),
        (Some("application/json"), &deep, Err(400)),
    ];

    for (content_type, bytes, expected) in table {
        let start: String = bytes.chars().take(20).collect();
        assert_eq!(sent(content_type, bytes.to_owned()).await, expected, "{content_type:?} {start}");
    }
}

#[tokio::test]
async fn body_that_never_ends_is_refused() {
    let silent = HttpBody::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());

    assert_eq!(sent(None, silent).await, Err(408));
}

#[tokio::test]
async fn request_without_time_for_its_body_times_out() {
    let silent = HttpBody::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let request = Request::builder().body(silent).unwrap();

    let refusal = handle_until(Instant::now(), Body::from_request(request, &())).await.map(drop).unwrap_err();

    let response = refusal.into_response();
    assert_eq!(response.status(), 500);
    let body = to_bytes(response.into_body(), 1 << 10).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert!(body["message"].as_str().unwrap().starts_with("Request timed out."), "{body}");
}

#[test]
fn creation_body_is_parsed_as_connect_parses_it() {
    let (name, config, initial) =
        Body(json!({"name": " a ", "config": {"tasks.max": 1, "flag": true}, "initial_state": "paused"}))
            .creation()
            .unwrap();

    assert_eq!(name, " a ");
    assert_eq!((config["tasks.max"].as_str(), config["flag"].as_str()), ("1", "true"));
    assert_eq!(initial, Some(crate::config::connector::TargetState::Paused));
    for bad in [
        json!([]),
        json!("a"),
        json!({"name": "a"}),
        json!({"name": "a", "config": []}),
        json!({"name": "a", "config": null}),
        json!({"name": ["a"], "config": {}}),
        json!({"name": "a", "config": {"k": null}}),
        json!({"name": "a", "config": {"k": {"deep": 1}}}),
        json!({"name": "a", "config": {}, "initial_state": "ASLEEP"}),
        json!({"name": "a", "config": {}, "initial_state": 1}),
        json!({"name": "a", "config": {}, "configs": {}}),
    ] {
        assert_eq!(Body(bad.clone()).creation().map(drop).map_err(status), Err(400), "{bad}");
    }
}

#[test]
fn null_removes_a_key_only_in_a_patch() {
    let patch = Body(json!({"a": 1, "b": null})).patch().unwrap();

    assert_eq!((patch["a"].as_deref(), &patch["b"]), (Some("1"), &None));
    assert!(Body(json!({"b": null})).config().is_err());
    assert!(Body(json!({"b": []})).patch().is_err());
}

#[test]
fn nested_offsets_are_refused() {
    let good = json!({"offsets": [
        {"partition": {"file": "a"}, "offset": {"position": 3, "last": true}},
        {"partition": {"file": "b"}, "offset": null},
    ]});

    let offsets = Body(good).offsets().unwrap().offsets;

    assert_eq!(offsets.len(), 2);
    assert_eq!(offsets[0].offset.as_ref().unwrap()["position"], 3);
    assert_eq!(offsets[1].offset, None);
    assert_eq!(Body(json!({})).offsets().unwrap().offsets, []);
    for bad in [
        json!([]),
        json!({"offsets": {}}),
        json!({"offsets": ["a"]}),
        json!({"offsets": [{"offset": {}}]}),
        json!({"offsets": [{"partition": "a", "offset": {}}]}),
        json!({"offsets": [{"partition": {}, "offset": 1}]}),
        json!({"offsets": [{"partition": {"deep": {}}, "offset": {}}]}),
        json!({"offsets": [{"partition": {}, "offset": {}, "more": 1}]}),
        json!({"offsets": [], "more": 1}),
    ] {
        assert_eq!(Body(bad.clone()).offsets().map(drop).map_err(status), Err(400), "{bad}");
    }
}

#[test]
fn gap_body_has_only_an_id() {
    assert_eq!(Body(json!({"id": "hooks/spool/5"})).gap().ok().as_deref(), Some("hooks/spool/5"));
    for bad in [json!({}), json!({"id": 5}), json!({"id": "a", "more": 1}), json!("hooks/spool/5")] {
        assert_eq!(Body(bad.clone()).gap().map(drop).map_err(status), Err(400), "{bad}");
    }
}

#[test]
fn refusal_of_a_body_repeats_no_value() {
    let hunter = "hunter2-hunter2";
    let bodies = [
        json!({"name": "a", "config": {"k": {"password": hunter}}}),
        json!({"name": "a", "config": {"k": [hunter]}}),
        json!({"name": [hunter], "config": {}}),
        json!({"name": "a", "config": {}, "initial_state": hunter}),
        json!({"name": "a", "config": hunter}),
    ];

    for value in bodies {
        let refusal = format!("{:?}", Body(value.clone()).creation().unwrap_err());
        assert!(!refusal.contains(hunter), "{refusal}");
    }
}

#[tokio::test]
async fn flag_is_true_only_for_true_and_its_first_value_counts() {
    let table = [
        ("", true, true),
        ("?x", true, false),
        ("?x=", true, false),
        ("?x=true", false, true),
        ("?x=TRUE", false, true),
        ("?x=1", true, false),
        ("?x=%74rue", false, true),
        ("?x=true&x=false", false, true),
        ("?y=true", false, false),
        ("?x=%ff%fe&&=&", true, false),
    ];

    for (query, default, expected) in table {
        let request = Request::builder().uri(format!("/{query}")).body(()).unwrap();
        let mut parts = request.into_parts().0;
        let query_of = Query::from_request_parts(&mut parts, &()).await.ok().unwrap();

        assert_eq!(query_of.flag("x", default), expected, "{query}");
    }
}

#[test]
fn only_clients_that_accept_json_are_served() {
    let table: [(&[&str], bool); 10] = [
        (&[], true),
        (&["*/*"], true),
        (&["application/json"], true),
        (&["APPLICATION/*"], true),
        (&["text/html, */*;q=0.8"], true),
        (&["text/html", "application/json"], true),
        (&["text/html"], false),
        (&["application/json;q=0"], false),
        (&["application/xml, text/plain"], false),
        (&[""], false),
    ];

    for (values, expected) in table {
        let mut headers = axum::http::HeaderMap::new();
        for value in values {
            headers.append(header::ACCEPT, value.parse().unwrap());
        }

        assert_eq!(super::request::accepts_json(&headers), expected, "{values:?}");
    }
}
