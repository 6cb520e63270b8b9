//! `tributary subscriptions` and `tributary gaps` against a scripted worker, and without a worker.

use std::{fs, process::Output};

use serde_json::{Value, json};

use crate::support::command::{stderr, stdout, tributary};
use crate::support::run_directory;
use crate::support::scripted::Script;

crate::tests! {
    plain receive_only_needs_only_the_file;
    plain a_derived_secret_is_shown_only_from_a_file;
    plain a_wrong_command_line_has_a_reason_and_exit_code_2;
    plain subscriptions_and_plans_are_tables_or_json;
    plain apply_waits_and_repeats_a_lost_wish;
    plain a_late_or_replaced_wish_ends_with_exit_code_1;
    plain receive_only_changes_the_configuration;
    plain gaps_are_listed_and_accepted;
}

const SECRET: &str = "a-secret-of-more-than-32-characters!";

fn connector(name: &str, more: &str) -> String {
    let directory = run_directory::create(name).unwrap();
    let file = directory.join("hooks.json");
    fs::write(
        &file,
        format!(
            r#"{{"name":"hooks","config":{{"connector.class":"WebhookSource","topic.prefix":"acme",
                "accounting.resources":"customers,accounts","accounting.secret":"${{env:HOOKS}}",
                "invoicing.hooks":"Customer:Created","invoicing.secret":"${{env:HOOKS}}",
                "subscriptions.manage":"false"{more}}}}}"#
        ),
    )
    .unwrap();
    file.display().to_string()
}

async fn run(arguments: &[&str]) -> Output {
    tributary(arguments, &[("HOOKS", SECRET)]).await
}

async fn receiving(file: &str, more: &[&str]) -> Output {
    let url = "https://hooks.example.com";
    run(&[&["subscriptions", "plan", file, "--receive-only", "--advertised-url", url], more].concat()).await
}

fn standing(wish: Value) -> Value {
    json!({
        "connector": "hooks",
        "manage": true,
        "advertisedUrl": "https://hooks.example.com/",
        "wish": wish,
        "start": null,
        "subscriptions": [{ "target": "accounting/customers", "id": "7", "phase": "active", "since": "T1", "fits": true,
            "lastDelivery": null, "problem": null }],
        "missing": ["accounting/accounts"],
    })
}

const LIST: &str = "GET /connectors/hooks/subscriptions?";
const POLL: &str = "GET /connectors/hooks/subscriptions";
const APPLY: &str = "POST /connectors/hooks/subscriptions/apply";

async fn receive_only_needs_only_the_file() {
    let file = connector("subscriptions-receive", r#","accounting.events":"Created,Updated""#);

    let table = receiving(&file, &[]).await;
    let json = receiving(&file, &["--json"]).await;

    assert_eq!(table.status.code(), Some(0), "{}", stderr(&table));
    let said = stdout(&table);
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["TARGET", "EVENTS", "FINGERPRINT", "SECRET", "URL"]);
    assert_eq!(lines.len(), 4, "{said}");
    assert_eq!(
        (lines[1][0], lines[1][1], lines[1][3]),
        ("accounting/accounts", "Created,Updated", "accounting.secret")
    );
    assert_eq!(lines[1][4], "https://hooks.example.com/webhooks/accounting/hooks/accounts");
    assert!(lines[3].starts_with(&["invoicing/Customer:Created", "Created"]), "{said}");
    assert!(said.contains("derived from invoicing.secret"), "{said}");
    assert!(
        lines[3].ends_with(&["https://hooks.example.com/api/webhooks/incoming/Invoicing/customer-created"]),
        "{said}"
    );
    let found: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&found["connector"], found["subscriptions"].as_array().unwrap().len()), (&json!("hooks"), 3));
    assert_eq!(found["subscriptions"][0]["secret"]["fingerprint"], lines[1][2]);
    for output in [table, json] {
        assert!(!stdout(&output).contains(SECRET) && !stderr(&output).contains(SECRET));
    }
}

async fn a_derived_secret_is_shown_only_from_a_file() {
    let file = connector("subscriptions-secrets", "");

    let shown: Value =
        serde_json::from_slice(&receiving(&file, &["--show-secrets", "--json"]).await.stdout).unwrap();
    let by_name = receiving("hooks", &["--show-secrets"]).await;
    let whole = connector("subscriptions-whole", r#","invoicing.secret.scope":"connector""#);
    let whole: Value =
        serde_json::from_slice(&receiving(&whole, &["--show-secrets", "--json"]).await.stdout).unwrap();

    let secrets: Vec<&Value> =
        shown["subscriptions"].as_array().unwrap().iter().map(|one| &one["secret"]["value"]).collect();
    // printf 'Customer:Created' | openssl dgst -sha256 -hmac 'a-secret-of-more-than-32-characters!'
    let derived = "0fdec9d1d3c99671dbd43d8ef6f2e589c2e032eaf4f8d60dd034a5e3ec818d07";
    assert_eq!(secrets, [&Value::Null, &Value::Null, &json!(derived)]);
    // The secret of all hooks is in the configuration.
    let of_all = &whole["subscriptions"][2]["secret"];
    assert_eq!((&of_all["key"], &of_all["derived"]), (&json!("invoicing.secret"), &json!(false)));
    assert_eq!(of_all["value"], Value::Null);
    assert_eq!(by_name.status.code(), Some(2));
    assert!(stderr(&by_name).contains("secrets are shown only from a file"), "{}", stderr(&by_name));
}

async fn a_wrong_command_line_has_a_reason_and_exit_code_2() {
    let file = connector("subscriptions-arguments", "");
    let directory = run_directory::create("subscriptions-records").unwrap();
    let records = directory.join("records.json");
    fs::write(
        &records,
        r#"{"name":"records","config":{"connector.class":"RecordSource","topic.prefix":"acme",
            "provider.base.url":"https://api.example.com","provider.auth.url":"https://login.example.com",
            "provider.subscription.key":"${env:HOOKS}","oauth.client.id":"client",
            "oauth.client.secret":"${env:HOOKS}"}}"#,
    )
    .unwrap();
    let records = records.display().to_string();
    let plan = |connector: &str, url: &str, expected| {
        let arguments = ["subscriptions", "plan", connector, "--receive-only", "--advertised-url", url];
        (arguments.map(str::to_owned).to_vec(), expected)
    };
    let other = |arguments: &str, expected| (arguments.split(' ').map(str::to_owned).collect(), expected);
    let table = [
        other("subscriptions", "Usage"),
        other("subscriptions apply", "<CONNECTOR>"),
        other("gaps accept hooks", "<IDS>"),
        other(&format!("subscriptions plan {file} --show-secrets"), "--receive-only"),
        other(&format!("subscriptions plan {file} --receive-only"), "--advertised-url: is missing"),
        other("subscriptions apply hooks --timeout soon", "invalid value 'soon'"),
        plan(
            &file,
            "http://h.example.com",
            "--advertised-url = http://h.example.com/: must be an https:// address on port 443",
        ),
        plan(&file, "https://h.example.com:8443", "must be an https:// address on port 443"),
        plan(
            &file,
            "https://h.example.com/base",
            "--advertised-url = https://h.example.com/base: has the path /base, and invoicing.hooks names hooks",
        ),
        plan(
            &records,
            "https://h.example.com",
            "is a RecordSource, which has no subscriptions; name a WebhookSource",
        ),
        plan("absent.json", "https://h.example.com", "absent.json"),
    ];
    for (arguments, expected) in table {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&arguments).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}\n{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}\n{}", stderr(&output));
        assert!(!stderr(&output).contains(SECRET));
    }
}

async fn subscriptions_and_plans_are_tables_or_json() {
    let step = json!({ "call": "subscribe", "target": "accounting/accounts", "why": "there is none" });
    let script = Script::answering(&[
        ("GET /connectors/hooks/subscriptions/plan", 200, json!({ "steps": [step], "converged": false })),
        (LIST, 200, standing(Value::Null)),
    ]);
    let url = script.start().await;

    let list = run(&["subscriptions", "list", "hooks", "--all", "--url", &url]).await;
    let json = run(&["subscriptions", "list", "hooks", "--json", "--url", &url]).await;
    let plan = run(&["subscriptions", "plan", "hooks", "--url", &url]).await;

    assert!(stdout(&list).contains("accounting/customers  active"), "{}", stdout(&list));
    assert!(stdout(&list).contains("accounting/accounts   missing"), "{}", stdout(&list));
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap(), standing(Value::Null));
    assert!(stdout(&plan).contains("subscribe  accounting/accounts  -   there is none"), "{}", stdout(&plan));
    let asked: Vec<String> = script.asked().into_iter().map(|(asked, _)| asked).collect();
    assert_eq!(asked[0], format!("{LIST}all=true"));
    assert!([list, json, plan].iter().all(|output| output.status.code() == Some(0)));
}

async fn apply_waits_and_repeats_a_lost_wish() {
    let wish =
        |number: u64, done: Value| standing(json!({ "number": number, "removed": false, "done": done }));
    let script = Script::answering(&[
        (APPLY, 202, json!({ "number": 3, "removed": false, "done": 2 })),
        (APPLY, 202, json!({ "number": 4, "removed": false, "done": 2 })),
        (POLL, 200, wish(3, json!(2))),
        // Another writer has overwritten it.
        (POLL, 200, wish(2, json!(2))),
        (POLL, 200, wish(4, json!(4))),
    ]);
    let url = script.start().await;

    let output = run(&["subscriptions", "apply", "hooks", "--url", &url]).await;

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("hooks: 1 as declared, 1 missing"), "{}", stderr(&output));
    assert!(stdout(&output).contains("accounting/customers  active"), "{}", stdout(&output));
    let posts = script.asked().iter().filter(|(asked, _)| asked == APPLY).count();
    assert_eq!(posts, 2);
}

async fn a_late_or_replaced_wish_ends_with_exit_code_1() {
    let wish = |removed: bool| standing(json!({ "number": 1, "removed": removed, "done": null }));
    let remove = "POST /connectors/hooks/subscriptions/remove";
    let script = Script::answering(&[
        (APPLY, 202, json!({ "number": 1 })),
        (remove, 202, json!({ "number": 1 })),
        (POLL, 200, wish(false)),
    ]);
    let url = script.start().await;

    let late = run(&["subscriptions", "apply", "hooks", "--timeout", "1", "--url", &url]).await;
    let replaced = run(&["subscriptions", "remove", "hooks", "--url", &url]).await;
    let unwaited = run(&["subscriptions", "remove", "hooks", "--timeout", "0", "--url", &url]).await;
    let json = run(&["subscriptions", "remove", "hooks", "--timeout", "0", "--json", "--url", &url]).await;

    assert_eq!(
        (late.status.code(), replaced.status.code(), unwaited.status.code()),
        (Some(1), Some(1), Some(0))
    );
    assert!(stderr(&late).contains("not finished within 1s (1 as declared, 1 missing)"), "{}", stderr(&late));
    assert!(stderr(&replaced).contains("a later request asked for the opposite"), "{}", stderr(&replaced));
    assert_eq!(stdout(&unwaited), "hooks: requested, as number 1\n");
    let expected =
        json!({ "connector": "hooks", "done": "asked for", "wish": { "number": 1, "removed": true } });
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap(), expected);
}

async fn receive_only_changes_the_configuration() {
    let script = Script::answering(&[("PATCH /connectors/hooks/config", 200, json!({}))]);
    let url = script.start().await;

    let output = run(&["subscriptions", "apply", "hooks", "--receive-only", "--url", &url]).await;
    let json = run(&["subscriptions", "apply", "hooks", "--receive-only", "--json", "--url", &url]).await;

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("hooks: only receives from now on"), "{}", stdout(&output));
    let expected = json!({ "connector": "hooks", "done": "configured", "manage": false });
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap(), expected);
    let expected =
        ("PATCH /connectors/hooks/config".to_owned(), r#"{"subscriptions.manage":"false"}"#.to_owned());
    assert_eq!(script.asked(), [expected.clone(), expected]);
}

async fn gaps_are_listed_and_accepted() {
    let gap = json!({ "id": "hooks/disabled/5/accounting%2Fcustomers", "cause": "disabled",
        "target": "accounting/customers", "company": null, "from": "T1", "to": "T2", "openedAt": "T1",
        "state": "unrepairable",
        "detail": "the provider has disabled the subscription", "repair": null });
    let script = Script::answering(&[
        ("GET /connectors/hooks/gaps", 200, json!([gap])),
        ("POST /connectors/hooks/gaps/accept", 200, gap.clone()),
        ("POST /connectors/hooks/gaps/accept", 200, gap.clone()),
        (
            "POST /connectors/hooks/gaps/accept",
            400,
            json!({ "error_code": 400, "message": "gap x has not ended" }),
        ),
    ]);
    let url = script.start().await;
    let id = gap["id"].as_str().unwrap();

    let list = run(&["gaps", "list", "hooks", "--url", &url]).await;
    let accepted = run(&["gaps", "accept", "hooks", id, "--url", &url]).await;
    let partly = run(&["gaps", "accept", "hooks", id, "x", "y", "--json", "--url", &url]).await;
    let refused = run(&["gaps", "accept", "hooks", "x", "--url", &url]).await;

    assert!(stdout(&list).contains(id) && stdout(&list).contains("unrepairable"), "{}", stdout(&list));
    assert_eq!(stdout(&accepted), format!("{id}: accepted\n"), "{}", stderr(&accepted));
    let expected = json!({ "connector": "hooks", "done": "accepted", "gaps": [id] });
    assert_eq!(serde_json::from_slice::<Value>(&partly.stdout).unwrap(), expected);
    for output in [partly, refused] {
        assert_eq!((output.status.code(), stderr(&output).trim()), (Some(1), "error: gap x has not ended"));
    }
    assert_eq!(script.asked()[1].1, format!(r#"{{"id":"{id}"}}"#));
}
