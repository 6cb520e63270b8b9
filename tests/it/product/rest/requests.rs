//! Refused requests, connector classes, and HTTP itself.

use serde_json::{Value, json};

use super::shows_secret;
use super::worker::{Group, config};
use crate::support::{Result, Shared};

crate::tests! {
    real every_refusal_has_connects_status_words_and_body;
    real every_class_is_described_and_known_by_its_aliases;
    real a_rubbish_request_is_answered_and_the_worker_keeps_running;
    real the_server_says_which_kafka_it_is;
}

async fn every_refusal_has_connects_status_words_and_body(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "refusals").worker().await;
    worker.ask("PUT", "/connectors/t1/config", Some(config("refusals"))).await;
    let with = |name: &str, edit: &dyn Fn(&mut Value)| {
        let mut config = config("other");
        edit(&mut config);
        json!({"name": name, "config": config})
    };
    let unknown_class = with("n", &|config| config["connector.class"] = json!("org.example.Nope"));
    let stray = json!({"name": "n", "config": config("other"), "more": 1});
    let invalid = |name| with(name, &|config| config["tasks.max"] = json!("zero"));
    let table: Vec<(&str, &str, Option<Value>, u16, &str)> = vec![
        ("GET", "/nope", None, 404, "HTTP 404 Not Found"),
        ("GET", "/connectors//config", None, 404, "HTTP 404 Not Found"),
        ("PATCH", "/connectors", None, 405, "HTTP 405 Method Not Allowed"),
        ("POST", "/connectors/t1/tasks", None, 405, "HTTP 405 Method Not Allowed"),
        ("PUT", "/connectors/t1/fence", None, 404, "HTTP 404 Not Found"),
        ("POST", "/connectors", Some(with("t1", &|_| {})), 409, "Connector t1 already exists"),
        ("POST", "/connectors", Some(invalid("t1")), 400, "1 error(s):\ntasks.max must be"),
        ("POST", "/connectors", Some(invalid("n")), 400, "`/connector-plugins/RecordSource/config/validate`"),
        (
            "POST",
            "/connectors",
            Some(unknown_class),
            400,
            "Failed to find any class that implements Connector and which name matches org.example.Nope, available \
             connectors are: RecordSource",
        ),
        ("POST", "/connectors", Some(stray), 400, "Unrecognized field \"more\""),
        ("POST", "/connectors", Some(with("", &|_| {})), 400, "name must not be empty"),
        (
            "POST",
            "/connectors",
            Some(with("a", &|config| config["name"] = json!("b"))),
            400,
            "(b) doesn't match",
        ),
        ("POST", "/connectors", Some(with("n", &|config| config["x"] = Value::Null)), 400, "x: is null"),
        (
            "POST",
            "/connectors",
            Some(with("n", &|config| config["topic.prefix"] = json!("refusals"))),
            400,
            "topic.prefix is the prefix that RecordSource t1 writes",
        ),
        ("GET", "/connectors/X/config", None, 404, "Connector X not found"),
        ("GET", "/connectors/X/tasks", None, 404, "Connector X not found"),
        ("GET", "/connectors/t1/tasks/99/status", None, 404, "No status found for task t1-99"),
        ("GET", "/connectors/t1/tasks/abc/status", None, 404, "HTTP 404 Not Found"),
        ("PUT", "/connectors/t1/config", Some(json!({"name": "t2"})), 400, "doesn't match connector name"),
        ("PATCH", "/connectors/X/config", Some(json!({})), 404, "Connector X not found"),
        ("PATCH", "/connectors/t1/config", Some(json!({"tasks.max": "zero"})), 400, "tasks.max must be"),
        ("PATCH", "/connectors/t1/config", Some(json!([])), 400, "must be a JSON object"),
        ("PUT", "/connectors/X/pause", None, 404, "Unknown connector X"),
        ("PUT", "/connectors/X/resume", None, 404, "Unknown connector X"),
        ("PUT", "/connectors/X/stop", None, 404, "Unknown connector X"),
        ("POST", "/connectors/X/restart", None, 404, "Unknown connector: X"),
        ("POST", "/connectors/X/restart?includeTasks=true", None, 404, "Unknown connector: X"),
        ("POST", "/connectors/X/tasks/0/restart", None, 404, "Unknown connector: X"),
        ("POST", "/connectors/t1/tasks/99/restart", None, 404, "Unknown task: t1-99"),
        ("DELETE", "/connectors/X", None, 404, "Connector X not found"),
        ("GET", "/connectors/X/offsets", None, 404, "Connector X not found"),
        ("DELETE", "/connectors/X/offsets", None, 404, "Connector X not found"),
        (
            "PATCH",
            "/connectors/X/offsets",
            Some(json!({"offsets": [{"partition": {}, "offset": {}}]})),
            404,
            "Connector X not found",
        ),
        ("PATCH", "/connectors/t1/offsets", Some(json!([])), 400, "must be a JSON object"),
        ("GET", "/admin/loggers/no.such", None, 404, "Logger no.such not found."),
        ("PUT", "/admin/loggers/root", Some(json!({})), 400, "Desired 'level' parameter was not specified"),
        ("PUT", "/admin/loggers/root", Some(json!({"level": "LOUD"})), 404, "invalid log level 'LOUD'."),
        (
            "PUT",
            "/admin/loggers/root?scope=cluster",
            Some(json!({"level": "LOUD"})),
            404,
            "invalid log level",
        ),
        ("GET", "/connectors/%ff", None, 400, "the path is not UTF-8"),
        (
            "PUT",
            "/connector-plugins/RecordSource/config/validate",
            Some(json!({"name": "c"})),
            400,
            "contains no connector type",
        ),
        (
            "PUT",
            "/connector-plugins/Nope/config/validate",
            Some(json!({"connector.class": "Nope"})),
            400,
            "Failed to find any class that implements Connector",
        ),
        (
            "PUT",
            "/connector-plugins/WebhookSource/config/validate",
            Some(config("other")),
            400,
            "Included connector type RecordSource does not match request type WebhookSource",
        ),
        ("PUT", "/connectors/%20n%20/config", Some(config("other")), 400, "begin or end with blanks"),
        ("POST", "/connectors", Some(with("..", &|_| {})), 400, "name must not be . or .."),
        (
            "PUT",
            "/admin/loggers/a%3Db?scope=cluster",
            Some(json!({"level": "DEBUG"})),
            400,
            "a logger's name has 1 to 255",
        ),
        (
            "PUT",
            "/admin/loggers/audit?scope=cluster",
            Some(json!({"level": "OFF"})),
            400,
            "the audit log is always written",
        ),
    ];

    for (method, path, body, status, words) in table {
        let answer = worker.ask(method, path, body).await;

        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert!(answer.message().contains(words), "{method} {path}: {answer:?}");
        assert_eq!(answer.body["error_code"], status);
        assert_eq!(answer.body.as_object().unwrap().len(), 2, "{answer:?}");
        assert!(!shows_secret(&answer), "{answer:?}");
    }
    let kept = worker.get("/connectors/t1/config").await;
    assert_eq!(kept.body["tasks.max"], "2", "a refused edit was applied");
    assert_eq!(worker.get("/connectors").await.body, json!(["t1"]));
    Ok(())
}

async fn every_class_is_described_and_known_by_its_aliases(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "classes").worker().await;
    let mut full = config("classes");
    full["name"] = json!("c");

    let all = worker.get("/connector-plugins?connectorsOnly=false").await.body;
    let classes = all.as_array().unwrap().iter().map(|plugin| plugin["class"].as_str().unwrap());
    for class in classes.chain(["org.example.RecordSourceConnector"]) {
        let path = format!("/connector-plugins/{class}/config");
        assert_eq!(worker.get(&path).await.status, 200, "{path}");
    }
    for class in ["RecordSource", "RecordSourceConnector", "Source"] {
        let path = format!("/connector-plugins/{class}/config/validate");
        let answer = worker.ask("PUT", &path, Some(full.clone())).await;
        assert_eq!((answer.status, &answer.body["error_count"]), (200, &json!(0)), "{class}: {answer:?}");
        assert!(!shows_secret(&answer), "{answer:?}");
    }
    Ok(())
}

async fn a_rubbish_request_is_answered_and_the_worker_keeps_running(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "rubbish").worker().await;
    let json_type = [("content-type", "application/json")];
    let deep = format!("{}1{}", r#"{"config":"#.repeat(200), "}".repeat(200));
    let large = format!(r#"{{"name":"n","config":{{"k":"{}"}}}}"#, "x".repeat(1 << 20));

    for (headers, body, status) in [
        (&json_type[..], "{bad", 400),
        (&json_type[..], "", 400),
        (&json_type[..], "null", 400),
        (&json_type[..], "\u{feff}{}", 400),
        (&json_type[..], deep.as_str(), 400),
        (&json_type[..], large.as_str(), 413),
        (&[("content-type", "text/plain")][..], "{}", 415),
        (&[("content-type", "application/json"), ("accept", "text/html")][..], "{}", 406),
    ] {
        let answer = worker.send("POST", "/connectors", headers, Some(body.to_owned())).await;
        assert_eq!((answer.status, &answer.body["error_code"]), (status, &json!(status)), "{answer:?}");
    }
    let head = worker.send("HEAD", "/connectors", &[], None).await;
    assert_eq!((head.status, head.body), (200, Value::Null));
    assert_eq!(worker.send("OPTIONS", "/connectors", &[], None).await.status, 200);
    assert_eq!(worker.get("/connectors?expand=%ff&forward=true&&==").await.body, json!({}));
    assert_eq!(worker.get("/connectors").await.body, json!([]));
    Ok(())
}

async fn the_server_says_which_kafka_it_is(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "server").worker().await;

    let server = worker.get("/").await.body;

    assert!(server["version"].as_str().unwrap().starts_with("4.3."), "{server}");
    assert!(server["commit"].is_string());
    assert!(!server["kafka_cluster_id"].as_str().unwrap().is_empty(), "{server}");
    Ok(())
}
