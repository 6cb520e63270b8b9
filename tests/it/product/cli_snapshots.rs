//! `tributary snapshot` and `tributary verify` against a scripted worker.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::command::{stderr, stdout, tributary};
use crate::support::scripted::Script;

crate::tests! {
    plain a_request_has_only_the_given_options;
    plain a_watch_prints_changes_and_ends_with_the_run;
    plain a_watch_survives_a_short_outage;
    plain runs_and_certificates_are_tables_or_json;
    plain orders_are_sent_and_a_refusal_is_printed;
    plain a_verification_fails_on_differences_or_missing_proof;
}

const RUNS: &str = "GET /connectors/records/snapshots";
const RUN: &str = "GET /connectors/records/snapshots/r";
const START: &str = "POST /connectors/records/snapshots";

fn run(state: &str, ended: u64, certified: Value) -> Value {
    json!({
        "id": "r", "kind": "snapshot", "lists": ["customers"], "companies": null, "incremental": false,
        "requestedBy": "rest", "requestedAt": "2026-11-16T00:00:00.000Z", "state": state,
        "startedAt": "2026-11-16T00:00:00.000Z", "updatedAt": "2026-11-16T00:01:00.000Z",
        "shards": { "total": 1, "ended": 0 }, "collections": { "total": 4, "ended": ended, "certified": ended },
        "pages": 1, "rows": 600, "published": 5, "vanished": 0, "differences": {}, "contents": 500, "certified": certified,
        "current": [{ "company": "a", "list": "customers", "pass": 1, "pages": 1, "rows": 5, "of": 10 }],
    })
}

async fn tributary_at(url: &str, arguments: &[&str]) -> Output {
    tributary(&[arguments, &["--url", url]].concat(), &[]).await
}

async fn a_request_has_only_the_given_options() {
    let script = Script::answering(&[(START, 202, run("waiting", 0, Value::Null))]);
    let url = script.start().await;

    let plain = tributary_at(&url, &["snapshot", "start", "records"]).await;
    let all = "snapshot start records --id r --list payroll --list customers --company a --incremental";
    let all = tributary_at(&url, &all.split(' ').collect::<Vec<_>>()).await;
    let verify = ["verify", "records", "--list", "customers", "--no-wait"];
    let plain_verify = tributary_at(&url, &verify).await;
    let sampled = tributary_at(&url, &[&verify[..], &["--sample", "50", "--repair"]].concat()).await;

    let said = "r: waiting; watch it with `tributary snapshot status records r --watch`\n";
    for output in [&plain, &all, &plain_verify, &sampled] {
        assert_eq!((output.status.code(), stdout(output).as_str()), (Some(0), said), "{}", stderr(output));
    }
    let bodies: Vec<Value> =
        script.asked().iter().map(|(_, body)| serde_json::from_str(body).unwrap()).collect();
    let expected = [
        json!({}),
        json!({ "id": "r", "lists": ["payroll", "customers"], "companies": ["a"], "incremental": true }),
        json!({ "kind": "verify", "lists": ["customers"] }),
        json!({ "kind": "verify", "lists": ["customers"], "sample": 50, "repair": true }),
    ];
    assert_eq!(bodies, expected);
}

async fn a_watch_prints_changes_and_ends_with_the_run() {
    for (state, certified, code) in [("ended", true, 0), ("ended", false, 1), ("stopped", false, 1)] {
        let mut over = run(state, 4, json!(certified));
        over["current"] = json!([]);
        let script = Script::answering(&[
            (START, 202, run("waiting", 0, Value::Null)),
            (RUN, 200, run("running", 1, Value::Null)),
            (RUN, 200, over),
        ]);
        let url = script.start().await;

        let output = tributary_at(&url, &["snapshot", "start", "records", "--wait"]).await;

        let said = stdout(&output);
        assert_eq!(output.status.code(), Some(code), "{said}{}", stderr(&output));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines[0],
            "r: running  [#########---------------]  37%  1 of 4 lists, 1 certified  600 rows  10 rows/s  about 100 s left"
                .replace("100 s", "2 min")
        );
        assert!(lines[1].starts_with(&format!("r: {state}  [########################] 100%")), "{said}");
        assert!(lines[2].starts_with("ID") && lines[3].starts_with("r "), "{said}");
        assert!(!said.contains('\u{1b}'), "there is no terminal");
    }
}

async fn a_watch_survives_a_short_outage() {
    let away = json!({ "error_code": 503, "message": "this worker is starting" });
    let script = Script::answering(&[
        ("GET /connectors/records/snapshots/r", 503, away),
        (RUN, 200, run("ended", 4, json!(true))),
    ]);
    let url = script.start().await;

    let output = tributary_at(&url, &["snapshot", "status", "records", "r", "--watch", "--json"]).await;

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["state"], script.asked().len()), (&json!("ended"), 2));
}

async fn runs_and_certificates_are_tables_or_json() {
    let certificates = json!({ "truncated": false, "certificates": [{ "list": "customers", "companyId": "a",
        "certified": false, "method": "none", "rows": 3, "published": 2, "vanishedCount": 0, "run": "r",
        "endedAt": "T1", "reason": "it drifts" }] });
    let script = Script::answering(&[
        (RUN, 200, run("running", 1, Value::Null)),
        (RUNS, 200, json!({ "snapshots": [run("running", 1, Value::Null)] })),
        ("GET /connectors/records/certificates", 200, certificates.clone()),
    ]);
    let url = script.start().await;

    let all = tributary_at(&url, &["snapshot", "status", "records"]).await;
    let one = tributary_at(&url, &["snapshot", "status", "records", "r"]).await;
    let proved = tributary_at(
        &url,
        &["snapshot", "certificates", "records", "--run", "r", "--company", "a/b", "--uncertified"],
    )
    .await;
    let json = tributary_at(&url, &["snapshot", "certificates", "records", "--output", "json"]).await;

    assert!(stdout(&all).contains("r   snapshot  running  customers  1/4"), "{}", stdout(&all));
    assert!(stdout(&one).contains("customers a"), "{}", stdout(&one));
    assert!(stdout(&one).contains("5 of 10 rows, pass 1"), "{}", stdout(&one));
    assert!(stdout(&proved).contains("customers of a\n  it drifts\n"), "{}", stdout(&proved));
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap(), certificates);
    let asked = script.asked();
    assert!(
        asked.iter().any(|(asked, _)| asked.ends_with("?uncertified=true&limit=1000&run=r&company=a%2Fb")),
        "{asked:?}"
    );
}

async fn orders_are_sent_and_a_refusal_is_printed() {
    let mut paused = run("running", 1, Value::Null);
    paused["reason"] = json!("pause requested; not every shard has paused");
    let over = json!({ "error_code": 409, "message": "run r of connector records is over (ended)" });
    let script = Script::answering(&[
        ("PUT /connectors/records/snapshots/r/pause", 202, paused),
        ("PUT /connectors/records/snapshots/r/resume", 202, run("running", 1, Value::Null)),
        ("PUT /connectors/records/snapshots/r/stop", 409, over),
    ]);
    let url = script.start().await;

    let paused = tributary_at(&url, &["snapshot", "pause", "records", "r"]).await;
    let resumed = tributary_at(&url, &["snapshot", "resume", "records", "r"]).await;
    let stopped = tributary_at(&url, &["snapshot", "stop", "records", "r"]).await;

    assert_eq!(
        stdout(&paused),
        "r: running (pause requested; not every shard has paused)\n",
        "{}",
        stderr(&paused)
    );
    assert_eq!(stdout(&resumed), "r: running\n");
    assert_eq!(
        (stopped.status.code(), stderr(&stopped).trim()),
        (Some(1), "error: run r of connector records is over (ended)")
    );
}

async fn a_verification_fails_on_differences_or_missing_proof() {
    let same = "r: nothing differs: 600 rows compared, 500 of them in full\n";
    let unproved = format!("{same}\nr: ended, 4 of 4 lists proved complete");
    let repaired = "REPAIRED  RECORDS\nbehind    3\n\nr: nothing differs any more: 600 rows";
    let table = [
        (json!({ "certified": true }), 0, same),
        (
            json!({ "certified": true, "differences": { "missing": 2, "stale": 0 } }),
            1,
            "RECORDS\nmissing     2\n",
        ),
        (json!({ "certified": false }), 1, &unproved),
        (json!({ "certified": true, "repaired": { "behind": 3 } }), 0, repaired),
        (
            json!({ "certified": true, "repaired": { "behind": 3 }, "differences": { "ahead": 1 } }),
            1,
            "ahead       1\n",
        ),
        (json!({ "certified": false, "sample": 50 }), 0, "a sample of at most 50 rows"),
        (
            json!({ "certified": false, "sample": 50, "unread": 2 }),
            1,
            "2 pages of the sample could not be read",
        ),
    ];
    for (state, code, expected) in table {
        let mut over = run("ended", 4, Value::Null);
        over.as_object_mut().unwrap().extend(state.as_object().unwrap().clone());
        let script = Script::answering(&[(START, 202, run("waiting", 0, Value::Null)), (RUN, 200, over)]);
        let url = script.start().await;

        let output = tributary_at(&url, &["verify", "records"]).await;

        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stdout(&output).contains(expected), "{}", stdout(&output));
    }
}
