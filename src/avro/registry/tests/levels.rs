use reqwest::Method;

use super::*;
use crate::avro::{
    SchemaConflict,
    tests::stub::{StubFault, StubRegistry},
};

fn conflict(error: &Error) -> &SchemaConflict {
    match error {
        Error::Incompatible { subject, conflict } if subject == SUBJECT => conflict,
        other => panic!("not an incompatibility of {SUBJECT}: {other:?}"),
    }
}

#[tokio::test]
async fn weak_level_is_raised_and_none_is_lowered() {
    for (own, global, expected) in [
        (None, "NONE", "BACKWARD_TRANSITIVE"),
        (None, "FULL_TRANSITIVE", "FULL_TRANSITIVE"),
        (Some("NONE"), "FULL", "BACKWARD_TRANSITIVE"),
        (Some("BACKWARD"), "NONE", "BACKWARD_TRANSITIVE"),
        (Some("FULL"), "NONE", "FULL_TRANSITIVE"),
        (Some("FORWARD"), "NONE", "FULL_TRANSITIVE"),
    ] {
        let stub = StubRegistry::start().await;
        stub.set_level("", global);
        if let Some(own) = own {
            stub.set_level(SUBJECT, own);
        }

        register(&Registry::new(&stub.config()).unwrap()).await.unwrap();

        assert_eq!(stub.level(SUBJECT).as_deref(), Some(expected), "from {own:?}, global {global}");
    }
}

#[tokio::test]
async fn sufficient_level_is_not_changed() {
    for level in ["BACKWARD_TRANSITIVE", "FULL_TRANSITIVE"] {
        let stub = StubRegistry::start().await;
        stub.set_level(SUBJECT, level);

        register(&Registry::new(&stub.config()).unwrap()).await.unwrap();

        assert_eq!(stub.count(&Method::PUT, ""), 0);
        assert_eq!(stub.level(SUBJECT).as_deref(), Some(level));
    }
}

#[tokio::test]
async fn the_level_is_set_before_the_schema_is_registered() {
    let stub = StubRegistry::start().await;

    register(&Registry::new(&stub.config()).unwrap()).await.unwrap();

    let calls: Vec<_> = stub.seen().iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect();
    let put = calls.iter().position(|call| *call == format!("PUT config/{SUBJECT}"));
    let post = calls.iter().position(|call| *call == format!("POST subjects/{SUBJECT}/versions"));
    assert!(put.is_some() && put < post, "{calls:?}");
}

#[tokio::test]
async fn unknown_level_is_refused_by_name() {
    let stub = StubRegistry::start().await;
    stub.set_level(SUBJECT, "SIDEWAYS");

    let error = register(&Registry::new(&stub.config()).unwrap()).await.unwrap_err();

    assert!(error.to_string().contains("SIDEWAYS"), "{error}");
}

#[tokio::test]
async fn without_access_to_levels_every_version_is_checked() {
    let read_only = r#"{"error_code":42205,"message":"Subject is in read-only mode"}"#;
    for (method, fault) in [
        (Method::PUT, StubFault::status(403, "")),
        (Method::PUT, StubFault::status(405, "")),
        (Method::PUT, StubFault::status(422, read_only)),
        (Method::GET, StubFault::status(403, "")),
    ] {
        let good = StubRegistry::start().await;
        good.add(SUBJECT, &OURS.replace("tradeName", "name"));
        good.fault(Some(method.clone()), "config", fault.clone());
        let bad = StubRegistry::start().await;
        bad.add(SUBJECT, FOREIGN);
        bad.add(SUBJECT, &OURS.replace("tradeName", "name"));
        bad.fault(Some(method), "config", fault);

        let registered = register(&Registry::new(&good.config()).unwrap()).await;
        let refused = register(&Registry::new(&bad.config()).unwrap()).await.unwrap_err();

        assert!(registered.is_ok(), "{registered:?}");
        assert_eq!((conflict(&refused).field.as_str(), conflict(&refused).version), ("companyId", Some(1)));
    }
}

#[tokio::test]
async fn incompatible_schema_is_refused_with_field_and_version() {
    let confluent =
        r#"{"is_compatible":false,"messages":["{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'}"]}"#;
    let apicurio = r#"{"is_compatible":false,"reason":null}"#;
    for answer in [confluent, apicurio] {
        let stub = StubRegistry::start().await;
        stub.add(SUBJECT, FOREIGN);
        stub.fault(Some(Method::POST), "compatibility/", StubFault::status(200, answer));

        let error = register(&Registry::new(&stub.config()).unwrap()).await.unwrap_err();

        let conflict = conflict(&error);
        assert_eq!((conflict.field.as_str(), conflict.version), ("companyId", Some(1)));
        assert!(conflict.rule.contains("default"), "{conflict}");
        assert_eq!(conflict.level, "BACKWARD_TRANSITIVE");
        assert_eq!(error.retry(), base::retry::Retry::Never);
        assert_eq!(
            stub.count(&Method::POST, &format!("/{SUBJECT}/versions")),
            1,
            "only the check was posted"
        );
    }
}

#[tokio::test]
async fn refusal_of_the_registration_names_the_field() {
    for status in [409, 422] {
        let stub = StubRegistry::start().await;
        stub.add(SUBJECT, FOREIGN);
        let path = format!("subjects/{SUBJECT}/versions");
        stub.fault(
            Some(Method::POST),
            &path,
            StubFault::status(status, r#"{"error_code":409,"message":"no"}"#),
        );
        stub.fault(Some(Method::POST), "compatibility/", StubFault::status(200, r#"{"is_compatible":true}"#));

        let error = register(&Registry::new(&stub.config()).unwrap()).await.unwrap_err();

        assert_eq!(conflict(&error).field, "companyId");
    }
}

#[tokio::test]
async fn unexplained_refusal_has_the_registrys_message() {
    let stub = StubRegistry::start().await;
    stub.add(SUBJECT, &OURS.replace("tradeName", "name"));
    let answer = r#"{"is_compatible":false,"messages":["a rule of the house","and another"]}"#;
    stub.fault(Some(Method::POST), "compatibility/", StubFault::status(200, answer));

    let error = register(&Registry::new(&stub.config()).unwrap()).await.unwrap_err();

    assert_eq!(conflict(&error).field, "io.tributary.Customer");
    assert!(error.to_string().contains("a rule of the house; and another"), "{error}");
}

#[tokio::test]
async fn unprocessable_but_compatible_schema_keeps_its_error() {
    let stub = StubRegistry::start().await;
    let path = format!("subjects/{SUBJECT}/versions");
    let invalid = r#"{"error_code":42201,"message":"Invalid schema"}"#;
    stub.fault(Some(Method::POST), &path, StubFault::status(422, invalid));

    stub.fault(Some(Method::POST), "compatibility/", StubFault::status(200, r#"{"is_compatible":true}"#));
    let error = register(&Registry::new(&stub.config()).unwrap()).await.unwrap_err();

    assert!(matches!(error, Error::Refused { status: 422, code: Some(42201), .. }), "{error:?}");
}

#[tokio::test]
async fn a_schema_that_is_registered_already_is_not_checked_again() {
    let stub = StubRegistry::start().await;
    let id = stub.add(SUBJECT, OURS);
    stub.fault(Some(Method::POST), "compatibility/", StubFault::status(200, r#"{"is_compatible":false}"#));

    let found = register(&Registry::new(&stub.config()).unwrap()).await;

    assert_eq!(found.unwrap(), id);
}

#[tokio::test]
async fn check_reads_every_version_and_changes_nothing() {
    let stub = StubRegistry::start().await;
    stub.add(SUBJECT, FOREIGN);
    let registry = Registry::new(&stub.config()).unwrap();

    let error = registry.check(SUBJECT, OURS, &Schema::parse_str(OURS).unwrap()).await.unwrap_err();

    assert_eq!(conflict(&error).field, "companyId");
    assert_eq!(stub.level(SUBJECT), None);
    assert_eq!(stub.count(&Method::POST, &format!("{SUBJECT}/versions")), 1, "only the check was posted");
}

#[tokio::test]
async fn under_a_full_level_older_consumers_count_too() {
    let stub = StubRegistry::start().await;
    stub.set_level(SUBJECT, "FULL_TRANSITIVE");
    let older = OURS.replace(
        r#"{"name":"companyId","type":"string"},"#,
        r#"{"name":"companyId","type":"string"},{"name":"code","type":"string"},"#,
    );
    stub.add(SUBJECT, &older);
    let registry = Registry::new(&stub.config()).unwrap();

    let error = registry.check(SUBJECT, OURS, &Schema::parse_str(OURS).unwrap()).await.unwrap_err();

    assert_eq!(conflict(&error).field, "code");
    assert!(conflict(&error).rule.contains("consumers of the older version"), "{error}");
}
