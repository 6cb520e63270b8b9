//! The binary with a directory of connector files, as operators use it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::process::Process;
use crate::support::topics::LIMIT;
use crate::support::{Result, Shared, prefix, run_directory};

crate::tests! {
    plain check_with_two_files_of_one_name_names_both;
    real worker_applies_files_that_appear_and_shows_their_state;
}

const SECRET: &str = "a-secret-of-more-than-32-characters!";

async fn worker_applies_files_that_appear_and_shows_their_state(shared: &'static Shared) -> Result<()> {
    let directory = run_directory::create("declared-run")?;
    let declared = directory.join("connectors");
    let name = prefix("declared-run");
    let document = |client: &str| {
        json!({"name": "records", "initial_state": "STOPPED", "config": {
            "connector.class": "RecordSource", "topic.prefix": name, "enrich.resources": "customers",
            "provider.base.url": "https://api.example.com", "provider.auth.url": "https://login.example.com",
            "provider.subscription.key": "${env:KEY}", "oauth.client.id": client,
            "oauth.client.secret": "${env:KEY}"}})
    };
    // A file without the class of its connector.
    let bad = directory.join("bad.json");
    fs::write(&bad, r#"{"name": "bad", "config": {}}"#).unwrap();
    let topics: String = ["config", "offset", "status", "work", "grant"]
        .iter()
        .map(|topic| format!("{topic}.storage.topic={name}-{topic}\n{topic}.storage.replication.factor=1\n"))
        .collect();
    let properties = directory.join("worker.properties");
    fs::write(
        &properties,
        format!(
            "bootstrap.servers={}\nvalue.converter.schema.registry.url=http://127.0.0.1:1\ngroup.id={name}\n\
             listeners=http://127.0.0.1:0\nstate.dir={}\nconnectors.dir={}\nconnectors.dir.interval.ms=100\n\
             work.storage.partitions=3\noffset.storage.partitions=3\n\
             config.providers=env\nconfig.providers.env.param.allowlist.pattern=KEY\n{topics}",
            shared.bootstrap(),
            directory.join("state").display(),
            declared.display()
        ),
    )
    .unwrap();
    // Atomically: a half-written file would be refused once more.
    let declare = |text: String| {
        fs::write(directory.join("next"), text).unwrap();
        fs::rename(directory.join("next"), declared.join("records.json")).unwrap();
    };
    let mut command = tributary(&["run", "--config"]);
    command.arg(&properties).arg("--connector").arg(&bad).env("KEY", SECRET);
    let worker = Process::spawn("tributary", command, &directory.join("log"))?;
    let mut url = String::new();
    worker
        .ready(LIMIT, async || {
            let said = worker.said();
            let address = said.lines().find_map(|line| line.split_once(" listens on "));
            url = address.map(|(_, address)| format!("http://{address}")).unwrap_or_default();
            !url.is_empty()
        })
        .await?;

    worker.ready(LIMIT, async || worker.said().contains("could not read the connector files")).await?;
    fs::create_dir(&declared).unwrap();
    declare(document("one").to_string());
    until(&worker, &url, "in sync").await?;
    until_state(&worker, &url, "bad", "refused").await?;
    fs::remove_file(&bad).unwrap();
    until_state(&worker, &url, "bad", "").await?;
    let table = connectors(&["status", "--url", &url]).await;
    declare("{".to_owned());
    until(&worker, &url, "refused").await?;
    let refused = output(&["status", "records", "--url", &url]).await;
    assert_eq!(refused.status.code(), Some(1), "a script must notice");
    let refused = String::from_utf8(refused.stdout).unwrap();
    declare(document("two").to_string());
    until(&worker, &url, "in sync").await?;
    connectors(&["delete", "records", "--url", &url]).await;
    until(&worker, &url, "deleted").await?;
    let list = connectors(&["list", "--url", &url]).await;
    let applied = directory.join("applied.json");
    let mut other = document("one");
    other["name"] = json!("applied");
    fs::write(&applied, other.to_string()).unwrap();
    let apply = async || connectors(&["apply", applied.to_str().unwrap(), "--url", &url]).await;
    let said_of_apply = [apply().await, apply().await];
    let mut state = Value::Null;
    worker
        .ready(LIMIT, async || {
            let status = output(&["status", "applied", "--output", "json", "--url", &url]).await;
            let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
            state = status["applied"]["status"]["connector"]["state"].clone();
            // Its owner has not started it yet.
            !state.is_null() && state != "UNASSIGNED"
        })
        .await?;

    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "CLASS", "STATE", "WORKER", "TASKS", "FILE"], "{table}");
    assert_eq!((lines[1][0], &lines[1][lines[1].len() - 2..]), ("records", &["in", "sync"][..]), "{table}");
    assert!(
        refused.contains("records (records.json: refused)\n") && refused.contains("is not JSON"),
        "{refused}"
    );
    assert_eq!(said_of_apply, ["applied: created\n", "applied: configured\n"]);
    assert_eq!(state, "STOPPED", "as its file says");
    let row: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["records", "-", "-", "-", "-", "deleted"], "{list}");
    let said = worker.said();
    assert_eq!(said.matches("refused a connector file").count(), 2, "{said}");
    assert_eq!(said.matches("could not read the connector files").count(), 1, "{said}");
    assert!(said.contains("cannot use a connector file") && said.contains("bad.json"), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    let audited = said.lines().filter(|line| line.contains("audit") && line.contains("records.json"));
    assert_eq!(audited.count(), 2, "{said}");
    Ok(())
}

async fn check_with_two_files_of_one_name_names_both() -> Result<()> {
    let directory = run_directory::create("declared-twice-at-start")?;
    let document = json!({"name": "records", "config": {
        "connector.class": "RecordSource", "topic.prefix": "p", "enrich.resources": "customers",
        "provider.base.url": "https://api.example.com", "provider.auth.url": "https://login.example.com",
        "provider.subscription.key": SECRET, "oauth.client.id": "client", "oauth.client.secret": SECRET}});
    for file in ["one.json", "two.json"] {
        fs::write(directory.join(file), document.to_string()).unwrap();
    }
    let mut command = tributary(&["check"]);
    command
        .env("CONNECT_BOOTSTRAP_SERVERS", "127.0.0.1:1")
        .env("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
        .env("CONNECT_LISTENERS", "http://127.0.0.1:0")
        .env("CONNECT_CONNECTORS_DIR", &directory);

    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();

    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaints}");
    assert!(complaints.contains("1 problem ") && complaints.contains("two connectors"), "{complaints}");
    assert!(complaints.contains("one.json") && complaints.contains("two.json"), "{complaints}");
    Ok(())
}

/// Waits for this state of the only file in the directory, as a script would.
async fn until(worker: &Process, url: &str, state: &str) -> Result<()> {
    until_state(worker, url, "records", state).await
}

/// The same for any connector; an empty state means that it is not listed.
async fn until_state(worker: &Process, url: &str, name: &str, state: &str) -> Result<()> {
    let status = async || {
        let output = output(&["status", "--output", "json", "--url", url]).await;
        let Ok(status) = serde_json::from_slice::<Value>(&output.stdout) else { return false };
        let declaration = &status[name]["declaration"];
        declaration["state"].as_str().unwrap_or_default() == state
            && (state.is_empty() || declaration["file"] == format!("{name}.json"))
    };
    worker.ready(LIMIT, status).await
}

async fn connectors(arguments: &[&str]) -> String {
    let output = output(arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn output(arguments: &[&str]) -> Output {
    let mut command = tributary(&["connectors"]);
    command.args(arguments);
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

fn tributary(arguments: &[&str]) -> Command {
    let mut command = Command::new(PathBuf::from(env!("CARGO_BIN_EXE_tributary")));
    command.args(arguments).env_clear();
    command
}
