//! `tributary connectors …`: the REST API of a running worker, for people and scripts.
//!
//! Tables for people, the API's own JSON with `--output json`, and an object that says what was done where the API answers with
//! nothing. Exit codes: 0 done; 1 the worker refused or is not there, or, for `status`, something has failed or a file is refused;
//! 2 the command line or a file is wrong, and nothing was asked.

use std::{io::Write, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use self::show::{needs_somebody, offsets, table, traces};
use super::{
    Failure, Result,
    client::{Access, Worker},
    drift, failure,
    table::{harmless, note},
};
use crate::config::connector::ConnectorDocument;

mod show;

/// How long a resumed connector is waited for, and how often it is asked for meanwhile.
const RESUME_LIMIT: Duration = Duration::from_secs(10);
const RESUME_POLL: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub(super) enum Command {
    /// All connectors, with their states
    List,
    /// One connector or all, with tasks and traces; exit code 1 if anything has failed or a file is refused
    Status {
        /// Name of the connector
        name: Option<String>,
    },
    /// Creates or changes connectors to what files say
    Apply {
        /// Connector files (JSON)
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Keeps the tasks, but lets them wait
    Pause(Named),
    /// Goes on after pause or stop
    Resume(Named),
    /// Ends the tasks; offsets may then be edited
    Stop(Named),
    /// Restarts the connector, or its tasks too
    Restart {
        /// Name of the connector
        name: String,
        /// Its tasks too
        #[arg(long)]
        tasks: bool,
        /// Only what has failed
        #[arg(long)]
        only_failed: bool,
    },
    /// Removes a connector; its offsets stay
    Delete(Named),
    /// Where a connector has got to
    Offsets(Named),
}

#[derive(Args)]
pub(super) struct Named {
    /// Name of the connector
    name: String,
}

pub(super) async fn run(command: Command, access: &Access, out: &mut dyn Write) -> Result {
    let worker = Worker::new(access)?;
    match command {
        Command::List => {
            let found = worker.with_files().await?;
            worker.output.show(&found, out, table)
        }
        Command::Status { name } => status(&worker, name.as_deref(), out).await,
        Command::Apply { files } => apply(&worker, &files, out).await,
        Command::Pause(Named { name }) => {
            worker.tell(Method::PUT, &["connectors", &name, "pause"], &[], "pausing", out).await
        }
        Command::Resume(Named { name }) => resume(&worker, &name, out).await,
        Command::Stop(Named { name }) => {
            worker.tell(Method::PUT, &["connectors", &name, "stop"], &[], "stopping", out).await
        }
        Command::Restart { name, tasks, only_failed } => {
            let query = [("includeTasks", tasks.to_string()), ("onlyFailed", only_failed.to_string())];
            worker.tell(Method::POST, &["connectors", &name, "restart"], &query, "restarting", out).await
        }
        Command::Delete(Named { name }) => {
            worker.tell(Method::DELETE, &["connectors", &name], &[], "deleted", out).await
        }
        Command::Offsets(Named { name }) => {
            worker.list(&["connectors", &name, "offsets"], &[], out, offsets).await
        }
    }
}

/// Resumes a connector, and says in which state it is once it has left the one it was resumed from.
async fn resume(worker: &Worker, name: &str, out: &mut dyn Write) -> Result {
    worker.send(Method::PUT, &["connectors", name, "resume"], &[], None).await?;
    let end = Instant::now() + RESUME_LIMIT;
    let state = loop {
        let found = worker.get(&["connectors", name, "status"], &[]).await?;
        let state = found["connector"]["state"].as_str().unwrap_or("UNASSIGNED").to_owned();
        if !matches!(state.as_str(), "PAUSED" | "STOPPED") || Instant::now() >= end {
            break state;
        }
        sleep(RESUME_POLL).await;
    };
    let told = json!({ "connector": name, "done": "resuming", "state": state });
    worker.output.show(&told, out, |_, out| writeln!(out, "{name}: resuming, now {}", harmless(&state)))
}

async fn status(worker: &Worker, name: Option<&str>, out: &mut dyn Write) -> Result {
    let mut found = worker.with_files().await?;
    if let Some(name) = name {
        let Some(one) = found.get(name).cloned() else {
            return Err(failure(format!("Connector {name} not found")));
        };
        found = json!({ name: one });
    }
    worker.output.show(&found, out, |found, out| {
        table(found, out)?;
        drift::explain(found, out)?;
        for (name, trace) in traces(found) {
            note(&name, &trace, out)?;
        }
        Ok(())
    })?;
    if needs_somebody(&found) { Err(Failure::Reported) } else { Ok(()) }
}

async fn apply(worker: &Worker, files: &[PathBuf], out: &mut dyn Write) -> Result {
    // All files are read before the first is sent, so that a bad one leaves nothing half done.
    let mut documents = Vec::new();
    for file in files {
        let (document, _) = ConnectorDocument::load(file)?;
        documents.push(document);
    }
    let put = async |document: ConnectorDocument| {
        let name = document.name.clone();
        put(worker, document).await.map(|done| (name, done))
    };
    let all = |applied: &[(String, &str)]| {
        let each = applied.iter().map(|(name, done)| json!({ "connector": name, "done": done }));
        json!({ "connectors": each.collect::<Vec<_>>() })
    };
    worker.one_by_one(documents, put, all, out).await
}

/// Creates or changes one connector; which of the two.
async fn put(worker: &Worker, document: ConnectorDocument) -> Result<&'static str> {
    let ConnectorDocument { name, config, initial_state } = document;
    let config = config.into_iter().map(|(key, value)| (key, Value::from(value)));
    let config = Value::Object(config.collect::<Map<_, _>>());
    let answer = match initial_state {
        // Only a creation takes a state; for an existing connector it would undo a pause or a stop.
        Some(state) if !worker.has(&name).await? => {
            let body = json!({ "name": name, "config": config, "initial_state": state.name() });
            worker.send(Method::POST, &["connectors"], &[], Some(&body)).await?
        }
        _ => worker.send(Method::PUT, &["connectors", &name, "config"], &[], Some(&config)).await?,
    };
    Ok(if answer.status == StatusCode::CREATED { "created" } else { "configured" })
}

impl Worker {
    /// All connectors, each with what is known of the file that declares it.
    async fn with_files(&self) -> Result<Value> {
        let query = [("expand", "info".to_owned()), ("expand", "status".to_owned())];
        let mut found = self.get(&["connectors"], &query).await?;
        let declared = self.ask(Method::GET, &["admin", "declarations"], &[], None).await?;
        // Kafka Connect's own workers do not know the path, and have no declarations.
        if !matches!(declared.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            drift::join(&mut found, &declared.accepted()?.json()?);
        }
        Ok(found)
    }

    async fn has(&self, name: &str) -> Result<bool> {
        let answer = self.ask(Method::GET, &["connectors", name], &[], None).await?;
        Ok(answer.status != StatusCode::NOT_FOUND && answer.accepted().map(|_| true)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::written;

    fn found() -> Value {
        json!({
            "hooks": {
                "info": { "config": { "connector.class": "WebhookSource" } },
                "status": {
                    "connector": { "state": "RUNNING", "worker_id": "a:8083" },
                    "tasks": [{ "id": 0, "state": "FAILED", "worker_id": "a:8083", "trace": "Kind: why\nCaused by: X: y" }],
                },
            },
            "records": {
                "info": { "config": { "connector.class": "RecordSource" } },
                "status": { "connector": { "state": "STOPPED", "worker_id": "b:8083" }, "tasks": [] },
            },
        })
    }

    #[test]
    fn a_table_has_one_line_a_connector_under_even_columns() {
        let text = written(|out| table(&found(), out));

        let expected = "NAME     CLASS          STATE    WORKER  TASKS\n\
                        hooks    WebhookSource  RUNNING  a:8083  0:FAILED\n\
                        records  RecordSource   STOPPED  b:8083  -\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_connector_that_a_file_declares_says_how_the_two_compare() {
        let mut found = found();
        let edited = json!({ "name": "hooks", "file": "hooks.json", "state": "edited" });
        drift::join(
            &mut found,
            &json!([edited, { "name": "gone", "file": "gone.json", "state": "deleted" }]),
        );

        let text = written(|out| table(&found, out));

        let expected = "NAME     CLASS          STATE    WORKER  TASKS     FILE\n\
                        gone     -              -        -       -         deleted\n\
                        hooks    WebhookSource  RUNNING  a:8083  0:FAILED  edited\n\
                        records  RecordSource   STOPPED  b:8083  -\n";
        assert_eq!(text, expected);
    }

    #[tokio::test]
    async fn a_name_that_an_address_would_lose_is_not_asked_for() {
        for name in [".", ".."] {
            // Nobody listens there: a request would fail otherwise.
            let access = Access::to("http://127.0.0.1:1");
            let command = Command::Delete(Named { name: name.to_owned() });

            let refused = run(command, &access, &mut Vec::new()).await;

            let Err(Failure::Configuration(problems)) = refused else { panic!("{name} was asked for") };
            assert!(problems.to_string().contains("is no name of a connector"), "{problems}");
        }
    }

    #[test]
    fn every_trace_is_shown_and_what_waits_for_a_person_is_told_by_the_exit_code() {
        let with = |state: &str, trace: Value| {
            let mut found = found();
            found["hooks"]["status"]["tasks"][0]["state"] = state.into();
            found["hooks"]["status"]["tasks"][0]["trace"] = trace;
            found
        };
        let shown = |found: &Value| traces(found).into_iter().map(|(_, trace)| trace).collect::<Vec<_>>();
        let (restarting, silent) = (with("RESTARTING", "undecided".into()), with("FAILED", Value::Null));
        let mut refused = with("RUNNING", Value::Null);
        refused["records"]["declaration"] = json!({ "file": "records.json", "state": "refused" });

        assert_eq!(traces(&found()), [("hooks-0".to_owned(), "Kind: why\nCaused by: X: y".to_owned())]);
        assert_eq!(
            (shown(&restarting), shown(&silent)),
            (vec!["undecided".to_owned()], vec!["no trace".to_owned()])
        );
        assert_eq!(shown(&refused), Vec::<String>::new());
        let told = [found(), silent, refused, restarting, with("RUNNING", Value::Null)];
        assert_eq!(told.map(|found| needs_somebody(&found)), [true, true, true, false, false]);
    }
}
