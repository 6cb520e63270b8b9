//! Tests of the suite itself: every check can fail.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::client::segment;
use super::report::{CheckResult, CheckRow, ConformanceReport};
use super::shape::{Kind, ObjectShape, Others, Strictness, compare, exactly};
use super::subject::Subject;
use super::tools::{console, version};
use super::{checks, run, shapes};

crate::tests! {
    plain a_report_lists_every_failure_and_the_total;
    plain a_report_is_clean_without_failures_and_leftovers;
    plain a_shape_finds_what_is_missing_wrong_or_added;
    plain only_compatible_workers_may_add_fields_clients_tolerate;
    plain exact_keys_are_neither_more_nor_fewer;
    plain every_check_is_there_once_and_in_order;
    plain facts_that_contradict_themselves_are_refused;
    plain the_example_of_facts_can_be_read;
    plain versions_are_read_as_kcctl_reads_them;
    plain a_trace_is_shown_as_console_shows_it;
    plain a_name_becomes_one_segment_of_a_path;
    plain a_worker_that_agrees_to_everything_fails_every_check;
    plain a_worker_that_is_not_there_fails_every_check;
}

const POINT: ObjectShape = ObjectShape {
    name: "point",
    required: &[("x", Kind::Number), ("label", Kind::TextOrNull)],
    optional: &[("colour", Kind::OneOf(&["red", "blue"]))],
    others: Others::Any,
};
const LINE: ObjectShape = ObjectShape {
    name: "line",
    required: &[("points", Kind::ListOf(&POINT)), ("tags", Kind::TextMap)],
    optional: &[],
    others: Others::None,
};

async fn a_report_lists_every_failure_and_the_total() {
    let report = ConformanceReport {
        worker: "http://w:1".to_owned(),
        rows: vec![
            CheckRow { number: 1, sentence: "it answers", result: CheckResult::Held },
            CheckRow {
                number: 12,
                sentence: "it refuses",
                result: CheckResult::Failed("one\ntwo".to_owned()),
            },
            CheckRow { number: 81, sentence: "it asks", result: CheckResult::LeftOut("not configured") },
        ],
        left_behind: Some("connectors a".to_owned()),
        took: Duration::from_millis(1250),
    };

    insta::assert_snapshot!(report.to_string(), @r"
      1 ok        it answers
     12 FAILED    it refuses
                  one
                  two
     81 left out  it asks: not configured
    left behind: connectors a
    1 of 2 checks hold on http://w:1, 1 left out, in 1.2 s
    ");
    let error = report.into_result().unwrap_err();
    assert!(error.contains("FAILED    it refuses"), "{error}");
}

async fn a_report_is_clean_without_failures_and_leftovers() {
    let held = || vec![CheckRow { number: 1, sentence: "it answers", result: CheckResult::Held }];
    let report = |rows, left_behind| ConformanceReport {
        worker: String::new(),
        rows,
        left_behind,
        took: Duration::from_secs(1),
    };

    assert!(report(held(), None).is_clean());
    assert!(!report(held(), Some("a connector".to_owned())).is_clean());
    let left_out = CheckRow { number: 2, sentence: "it asks", result: CheckResult::LeftOut("no need") };
    assert!(report(vec![left_out], None).is_clean());
}

async fn a_shape_finds_what_is_missing_wrong_or_added() {
    let right = json!({ "points": [{ "x": 1, "label": null, "colour": "red" }], "tags": { "a": "b" } });
    assert_eq!(compare(&LINE, &right, Strictness::Upstream), Ok(()));

    let table = [
        (json!([]), "expected line to be an object, got []"),
        (json!({ "points": [], "tags": { "a": 1 } }), "expected line.tags to be an object of texts"),
        (json!({ "points": {}, "tags": {} }), "expected line.points to be a list"),
        (json!({ "points": [{ "x": 1 }], "tags": {} }), "expected line.points[0] to have \"label\", got x"),
        (json!({ "points": [3], "tags": {} }), "expected line.points[0] to be an object, got 3"),
        (
            json!({ "points": [{ "x": "1", "label": "l", "colour": "green" }], "tags": {} }),
            "expected line.points[0].x to be a number, got \"1\"; \
             expected line.points[0].colour to be one of red, blue, got \"green\"",
        ),
        (json!({ "points": [], "tags": {}, "width": 1 }), "expected no line.width"),
    ];
    for (value, expected) in table {
        let fault = compare(&LINE, &value, Strictness::Upstream).unwrap_err();
        assert!(fault.starts_with(expected), "{value}: {fault}");
    }
}

async fn only_compatible_workers_may_add_fields_clients_tolerate() {
    let state = |addition: Value| json!({ "state": "RUNNING", "worker_id": "w", "next_attempt": addition });
    let status = |connector| json!({ "name": "n", "connector": connector, "tasks": [], "type": "source" });

    for (addition, strictness, holds) in [
        (json!("12:00"), Strictness::Compatible, true),
        (json!(12), Strictness::Compatible, false),
        (json!("12:00"), Strictness::Upstream, false),
    ] {
        let value = status(state(addition));
        assert_eq!(compare(&shapes::STATUS, &value, strictness).is_ok(), holds, "{value} {strictness:?}");
    }
    let stopped_task = json!({ "id": 0, "state": "STOPPED", "worker_id": "w" });
    assert!(compare(&shapes::TASK_STATE, &stopped_task, Strictness::Compatible).is_err());
    let error = json!({ "error_code": 404, "message": "m", "hint": "h" });
    assert!(compare(&shapes::ERROR, &error, Strictness::Compatible).is_err());
}

async fn exact_keys_are_neither_more_nor_fewer() {
    assert_eq!(exactly(&json!({ "a": 1, "b": 2 }), &["b", "a"]), Ok(()));
    assert_eq!(exactly(&json!({}), &[]), Ok(()));

    for (value, fault) in [
        (json!({ "a": 1 }), "expected exactly a, b, got a"),
        (json!({ "a": 1, "c": 2 }), "expected exactly a, b, got a, c"),
        (json!({ "a": 1, "b": 2, "c": 3 }), "expected exactly a, b, got a, b, c"),
        (json!({}), "expected exactly a, b, got no members"),
        (json!("a"), "expected an object with a, b, got \"a\""),
    ] {
        assert_eq!(exactly(&value, &["a", "b"]), Err(fault.to_owned()));
    }
}

async fn every_check_is_there_once_and_in_order() {
    let numbers: Vec<u8> = checks::all().map(|check| check.number).collect();

    assert_eq!(numbers, (1..=85).collect::<Vec<_>>());
}

async fn facts_that_contradict_themselves_are_refused() {
    let subject = Subject::parse("http://w:1/", &facts().to_string()).unwrap();
    assert_eq!((subject.url.as_str(), subject.strict), ("http://w:1", false));
    assert_eq!(subject.class(), "com.example.FileSourceConnector");
    assert_eq!((subject.simple_class(), subject.short_class()), ("FileSourceConnector", "FileSource"));

    for (pointer, value, fault) in [
        ("config", json!({ "a": "b" }), "config has no connector.class"),
        ("change", json!(["connector.class", "x"]), "config has connector.class, the key to add"),
        ("surprise", json!(1), "unknown field `surprise`"),
        ("config", json!({ "tasks.max": 1 }), "invalid type"),
    ] {
        let mut facts = facts();
        facts[pointer] = value;
        let error = Subject::parse("http://w:1", &facts.to_string()).unwrap_err();
        assert!(error.contains(fault), "{error}");
    }
}

async fn the_example_of_facts_can_be_read() {
    let subject =
        Subject::parse("http://w:1", include_str!("../../../peers/conformance/file-source.json")).unwrap();

    assert_eq!(subject.short_class(), "FileStreamSource");
    assert!(subject.strict && subject.credentials.is_some() && subject.provider.is_some());
}

async fn versions_are_read_as_kcctl_reads_them() {
    for (text, expected) in [
        ("4.3.1", Some((4, 3))),
        ("3.9", Some((3, 9))),
        ("3.9.0-tributary", Some((3, 9))),
        ("3.9-tributary", None),
        ("0", None),
        ("", None),
    ] {
        assert_eq!(version(text), expected, "{text:?}");
    }
}

async fn a_trace_is_shown_as_console_shows_it() {
    for (trace, shown) in [
        (
            "a.B: no token\n\tat a.B.c(B.java:1)\nCaused by: d.E: it expired\n\tat d.E.f(E.java:2)\n",
            "d.E: it expired",
        ),
        ("Unauthorized: the token has expired", "the token has expired"),
        ("org.example.SomeException\n\tat a.B.c(B.java:1)", ""),
        ("no colon", ""),
        ("", ""),
    ] {
        assert_eq!(console::error_card(trace), shown, "{trace:?}");
    }
}

async fn a_name_becomes_one_segment_of_a_path() {
    assert_eq!(segment("a-b_c.d~1"), "a-b_c.d~1");
    assert_eq!(segment("a b/c?d%é"), "a%20b%2Fc%3Fd%25%C3%A9");
}

/// A subject for runs that do not wait.
fn hurried(url: &str) -> Subject {
    let mut facts = facts();
    facts["credentials"] = json!({ "user": "u", "password": "p" });
    facts["provider"] = json!({ "key": "topic", "reference": "${file:/x:k}", "secret": "s" });
    let mut subject = Subject::parse(url, &facts.to_string()).unwrap();
    subject.patience = Duration::ZERO;
    subject
}

async fn a_worker_that_agrees_to_everything_fails_every_check() {
    for (status, body) in [(StatusCode::OK, "{}"), (StatusCode::OK, "[]"), (StatusCode::NOT_FOUND, "{}")] {
        let router =
            Router::new().fallback(async move || (status, [("content-type", "application/json")], body));
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await });

        let report = run(&hurried(&url)).await;

        server.abort();
        assert_eq!(report.rows.len(), 85);
        let held: Vec<u8> =
            report.rows.iter().filter(|row| row.result == CheckResult::Held).map(|row| row.number).collect();
        // A list, as an empty worker answers.
        let expected: &[u8] = if body == "[]" { &[3, 4] } else { &[] };
        assert_eq!(held, expected, "{status} {body}\n{report}");
    }
}

async fn a_worker_that_is_not_there_fails_every_check() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);

    let report = run(&hurried(&url)).await;

    assert_eq!((report.held(), report.asked()), (0, 85), "{report}");
    assert!(report.left_behind.is_some(), "{report}");
}

fn facts() -> Value {
    json!({
        "config": { "connector.class": "com.example.FileSourceConnector", "topic": "t" },
        "topic": "t",
        "change": ["batch.size", "10"],
        "failure": { "fail": "yes" },
        "password_key": "password",
    })
}
