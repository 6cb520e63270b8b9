//! `tributary connectors` against a scripted worker.

use std::{fs, process::Output};

use serde_json::{Value, json};

use crate::support::command::{stderr, stdout, tributary};
use crate::support::run_directory;
use crate::support::scripted::Script;

crate::tests! {
    plain orders_print_a_line_or_an_object;
    plain resume_prints_the_new_state;
    plain apply_reports_each_connector_until_a_refusal;
}

async fn at(url: &str, arguments: &[&str]) -> Output {
    tributary(&[&["connectors"][..], arguments, &["--url", url]].concat(), &[]).await
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}{}", stdout(output), stderr(output)))
}

async fn orders_print_a_line_or_an_object() {
    let script = Script::answering(&[
        ("PUT /connectors/hooks/pause", 202, Value::Null),
        ("PUT /connectors/hooks/stop", 202, Value::Null),
        ("POST /connectors/hooks/restart", 202, json!({ "name": "hooks" })),
        ("DELETE /connectors/hooks", 200, Value::Null),
    ]);
    let url = script.start().await;

    for (order, done) in
        [("pause", "pausing"), ("stop", "stopping"), ("restart", "restarting"), ("delete", "deleted")]
    {
        let people = at(&url, &[order, "hooks"]).await;
        let programs = at(&url, &[order, "hooks", "--output", "json"]).await;

        assert_eq!(stdout(&people), format!("hooks: {done}\n"), "{}", stderr(&people));
        assert_eq!(json_of(&programs), json!({ "connector": "hooks", "done": done }));
    }
}

async fn resume_prints_the_new_state() {
    let status = |state: &str| json!({ "name": "hooks", "connector": { "state": state }, "tasks": [] });
    let script = Script::answering(&[
        ("PUT /connectors/hooks/resume", 202, Value::Null),
        ("GET /connectors/hooks/status", 200, status("PAUSED")),
        ("GET /connectors/hooks/status", 200, status("RUNNING")),
    ]);
    let url = script.start().await;

    let people = at(&url, &["resume", "hooks"]).await;
    let programs = at(&url, &["resume", "hooks", "--output", "json"]).await;

    assert_eq!(stdout(&people), "hooks: resuming, now RUNNING\n", "{}", stderr(&people));
    let expected = json!({ "connector": "hooks", "done": "resuming", "state": "RUNNING" });
    assert_eq!(json_of(&programs), expected);
}

async fn apply_reports_each_connector_until_a_refusal() {
    let directory = run_directory::create("connectors-apply").unwrap();
    let files = ["one", "two", "three"].map(|name| {
        let file = directory.join(format!("{name}.json"));
        let config = json!({ "connector.class": "RecordSource", "topic.prefix": "acme" });
        fs::write(&file, json!({ "name": name, "config": config }).to_string()).unwrap();
        file.display().to_string()
    });
    let [one, two, three] = files.each_ref().map(String::as_str);
    let script = Script::answering(&[
        ("PUT /connectors/one/config", 201, json!({})),
        ("PUT /connectors/two/config", 200, json!({})),
        ("PUT /connectors/three/config", 409, json!({ "error_code": 409, "message": "not now" })),
    ]);
    let url = script.start().await;

    let people = at(&url, &["apply", one, two]).await;
    let programs = at(&url, &["apply", one, two, "--json"]).await;
    let refused = at(&url, &["apply", one, three, two, "--json"]).await;
    let nothing = at(&url, &["apply", three, "--json"]).await;

    assert_eq!(stdout(&people), "one: created\ntwo: configured\n", "{}", stderr(&people));
    let created = json!({ "connector": "one", "done": "created" });
    assert_eq!(
        json_of(&programs),
        json!({ "connectors": [created, { "connector": "two", "done": "configured" }] })
    );
    assert_eq!(json_of(&refused), json!({ "connectors": [created] }));
    assert_eq!((refused.status.code(), stderr(&refused).trim()), (Some(1), "error: not now"));
    assert_eq!((nothing.status.code(), stdout(&nothing)), (Some(1), String::new()));
}
