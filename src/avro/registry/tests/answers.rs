use std::time::Duration;

use reqwest::{Method, header};

use base::retry::Retry;

use super::*;
use crate::{
    avro::tests::stub::{BASE, StubFault, StubRegistry},
    config::RegistryAuth,
};

#[tokio::test]
async fn the_same_schema_twice_has_one_id_and_one_registration() {
    let stub = StubRegistry::start().await;
    let registry = Registry::new(&stub.config()).unwrap();

    let first = register(&registry).await.unwrap();
    let second = register(&registry).await.unwrap();

    assert_eq!(first, second);
    assert_eq!(stub.count(&Method::POST, &format!("subjects/{SUBJECT}/versions")), 2, "one check, one post");
}

#[tokio::test]
async fn the_text_is_registered_as_it_is() {
    let stub = StubRegistry::start().await;

    register(&Registry::new(&stub.config()).unwrap()).await.unwrap();

    let posted = stub.seen().into_iter().find(|seen| seen.path == format!("subjects/{SUBJECT}/versions"));
    assert_eq!(posted.unwrap().body["schema"], OURS);
}

#[tokio::test]
async fn a_base_path_works_with_and_without_a_trailing_slash() {
    for (base, end) in [(BASE, ""), (BASE, "/"), ("", ""), ("", "/")] {
        let stub = StubRegistry::start_at(base).await;
        let mut config = stub.config();
        config.urls = vec![stub.root.join(&format!("{base}{end}")).unwrap()];
        let registry = Registry::new(&config).unwrap();

        let id = register(&registry).await.unwrap();

        assert!(registry.schema(id).await.unwrap().is_some());
        assert!(stub.seen().iter().all(|seen| !seen.path.contains("//")), "{:?}", stub.seen());
    }
}

#[tokio::test]
async fn a_wrong_base_path_is_named_as_the_likely_cause() {
    let stub = StubRegistry::start().await;
    let mut config = stub.config();
    config.urls = vec![stub.root.clone()];

    let error = register(&Registry::new(&config).unwrap()).await.unwrap_err();

    assert!(matches!(error, Error::Refused { status: 404, code: None, .. }), "{error:?}");
    assert!(error.to_string().contains("base path"), "{error}");
    assert_eq!(error.retry(), Retry::Never);
}

#[tokio::test]
async fn every_call_carries_the_credentials() {
    let basic = RegistryAuth::Basic { user: "reader".into(), password: "hunter:2".into() };
    let bearer = RegistryAuth::Bearer("token-1".into());
    for (auth, expected) in [(basic, "Basic cmVhZGVyOmh1bnRlcjoy"), (bearer, "Bearer token-1")] {
        let stub = StubRegistry::start().await;
        stub.add(SUBJECT, OURS.replace("tradeName", "name").as_str());
        let mut config = stub.config();
        config.auth = auth;
        let registry = Registry::new(&config).unwrap();

        register(&registry).await.unwrap();
        registry.schema(1).await.unwrap();

        let seen = stub.seen();
        assert!(seen.len() >= 6, "{seen:?}");
        assert!(seen.iter().all(|seen| seen.authorization.as_deref() == Some(expected)), "{seen:?}");
    }
}

#[tokio::test]
async fn credentials_are_in_no_error_and_no_debug_output() {
    let stub = StubRegistry::start().await;
    stub.fault(None, "", StubFault::status(401, r#"{"error_code":401,"message":"Unauthorized"}"#));
    let mut config = stub.config();
    config.auth = RegistryAuth::Basic { user: "reader".into(), password: "hunter2".into() };
    let registry = Registry::new(&config).unwrap();

    let error = register(&registry).await.unwrap_err();

    let shown = format!("{error} {error:?} {registry:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVyMg"), "{shown}");
}

#[tokio::test]
async fn each_answer_becomes_the_right_error() {
    type ErrorCheck = fn(&Error) -> bool;
    let after = StubFault::status(429, "slow down").with_header(header::RETRY_AFTER, "7");
    let cases: [(StubFault, ErrorCheck, Retry); 7] = [
        (StubFault::status(401, ""), |e| matches!(e, Error::Unauthorised { status: 401, .. }), Retry::Never),
        (StubFault::status(403, ""), |e| matches!(e, Error::Unauthorised { status: 403, .. }), Retry::Never),
        (
            StubFault::status(500, "oops"),
            |e| matches!(e, Error::Unavailable { status: 500, .. }),
            Retry::Later,
        ),
        (
            StubFault::status(504, "<html>"),
            |e| matches!(e, Error::Unavailable { status: 504, .. }),
            Retry::Later,
        ),
        (after, |e| matches!(e, Error::Unavailable { .. }), Retry::After(Duration::from_secs(7))),
        (StubFault::status(200, "{broken"), |e| matches!(e, Error::Malformed { .. }), Retry::Never),
        (StubFault::status(400, "no"), |e| matches!(e, Error::Refused { status: 400, .. }), Retry::Never),
    ];
    // The first is a call of ours, the second one of the converter's: both must come to the same verdict.
    for (method, path) in [(Method::POST, "compatibility/"), (Method::POST, "subjects/")] {
        for (fault, expected, retry) in cases.clone() {
            let stub = StubRegistry::start().await;
            stub.fault(Some(method.clone()), path, fault);

            let error = register(&Registry::new(&stub.config()).unwrap()).await.unwrap_err();

            assert!(expected(&error), "{path}: {error:?}");
            assert_eq!(error.retry(), retry, "{path}: {error:?}");
            assert!(error.to_string().contains(SUBJECT), "{error}");
        }
    }
}

#[tokio::test]
async fn dead_port_is_a_retriable_transport_error() {
    let registry = Registry::new(&config::RegistrySettings::open(dead_url())).unwrap();

    let ours = register(&registry).await.unwrap_err();
    let converters = registry.schema(1).await.unwrap_err();

    for error in [ours, converters] {
        assert!(matches!(error, Error::Transport { .. }), "{error:?}");
        assert_eq!(error.retry(), Retry::Later);
    }
}

#[tokio::test]
async fn missing_answer_ends_at_the_timeout() {
    let stub = StubRegistry::start().await;
    stub.fault(None, "", StubFault::Silence);
    let mut config = stub.config();
    config.timeout = Duration::from_millis(50);
    let registry = Registry::new(&config).unwrap();

    let ours = register(&registry).await.unwrap_err();
    let converters = registry.schema(1).await.unwrap_err();

    for error in [ours, converters] {
        assert!(matches!(error, Error::Transport { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn endless_answer_is_cut_off() {
    let stub = StubRegistry::start().await;
    stub.fault(Some(Method::GET), "schemas/", StubFault::status(200, " ".repeat(5 * 1024 * 1024)));

    let error = Registry::new(&stub.config()).unwrap().schema(1).await.unwrap_err();

    assert!(error.to_string().contains("above"), "{error}");
}

#[tokio::test]
async fn a_redirect_is_refused_and_not_followed() {
    let (stub, elsewhere) = (StubRegistry::start().await, StubRegistry::start().await);
    let target = format!("{}/config/{SUBJECT}", elsewhere.url());
    stub.fault(None, "config", StubFault::status(307, "").with_header(header::LOCATION, &target));

    let error = register(&Registry::new(&stub.config()).unwrap()).await.unwrap_err();

    assert!(matches!(error, Error::Refused { status: 307, .. }), "{error:?}");
    assert!(elsewhere.seen().is_empty(), "{:?}", elsewhere.seen());
}

#[tokio::test]
async fn next_address_is_used_if_the_first_is_dead() {
    let stub = StubRegistry::start().await;
    let mut config = stub.config();
    config.urls.insert(0, dead_url());

    let id = register(&Registry::new(&config).unwrap()).await;

    assert_eq!(id.unwrap(), 1);
}

#[tokio::test]
async fn a_refusal_is_not_hidden_by_a_dead_second_address() {
    let stub = StubRegistry::start().await;
    stub.fault(Some(Method::POST), "subjects/", StubFault::status(401, ""));
    let mut config = stub.config();
    config.urls.push(dead_url());

    let error = register(&Registry::new(&config).unwrap()).await.unwrap_err();

    assert!(matches!(error, Error::Unauthorised { .. }), "{error:?}");
}

#[tokio::test]
async fn unknown_id_has_no_schema() {
    let stub = StubRegistry::start().await;

    let found = Registry::new(&stub.config()).unwrap().schema(99).await;

    assert!(found.unwrap().is_none());
}

#[test]
fn missing_ca_file_is_refused_by_name() {
    let mut config = config::RegistrySettings::open(url::Url::parse("https://registry").unwrap());
    config.ca = Some("/nonexistent/ca.pem".into());

    let error = Registry::new(&config).unwrap_err();

    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    assert_eq!(error.retry(), Retry::Never);
}
