//! `tributary connectors …`: the REST API of a running worker, for people and scripts.
//!
//! Prints tables, or with `--output json` the API's JSON; where the API answers with no content, an object that says what was done.
//! Exit codes: 0 done; 1 the worker refused or does not answer, or, for `status`, something has failed or a file is refused; 2 the
//! command line or a file is wrong, and no request was sent.

use std::{io::Write, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::show::{needs_attention, offsets, table, traces};
use super::{
    CommandError, Result,
    client::{ConnectionArgs, RestClient},
    declarations, failure,
    table::{harmless, note},
};
use crate::config::connector::ConnectorDocument;

mod show;

/// How long and how often `resume` polls for the new state.
const RESUME_LIMIT: Duration = Duration::from_secs(10);
const RESUME_POLL: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub(super) enum ConnectorsCommand {
    /// Lists all connectors with their states
    List,
    /// Shows one connector or all, with tasks and traces; exit code 1 if anything has failed or a file is refused
    Status {
        /// Name of the connector
        name: Option<String>,
    },
    /// Creates or updates connectors from files
    Apply {
        /// Connector files (JSON)
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Pauses the tasks of a connector
    Pause(ConnectorName),
    /// Resumes a paused or stopped connector
    Resume(ConnectorName),
    /// Stops the tasks; offsets can then be edited
    Stop(ConnectorName),
    /// Restarts a connector, and with --tasks its tasks
    Restart {
        /// Name of the connector
        name: String,
        /// Also its tasks
        #[arg(long)]
        tasks: bool,
        /// Only failed instances
        #[arg(long)]
        only_failed: bool,
    },
    /// Deletes a connector; its offsets stay
    Delete(ConnectorName),
    /// Shows the source offsets of a connector
    Offsets(ConnectorName),
}

#[derive(Args)]
pub(super) struct ConnectorName {
    /// Name of the connector
    name: String,
}

pub(super) async fn run(command: ConnectorsCommand, access: &ConnectionArgs, out: &mut dyn Write) -> Result {
    let worker = RestClient::new(access)?;
    match command {
        ConnectorsCommand::List => {
            let found = worker.with_files().await?;
            worker.output.show(&found, out, table)
        }
        ConnectorsCommand::Status { name } => status(&worker, name.as_deref(), out).await,
        ConnectorsCommand::Apply { files } => apply(&worker, &files, out).await,
        ConnectorsCommand::Pause(ConnectorName { name }) => {
            worker.order(Method::PUT, &["connectors", &name, "pause"], &[], "pausing", out).await
        }
        ConnectorsCommand::Resume(ConnectorName { name }) => resume(&worker, &name, out).await,
        ConnectorsCommand::Stop(ConnectorName { name }) => {
            worker.order(Method::PUT, &["connectors", &name, "stop"], &[], "stopping", out).await
        }
        ConnectorsCommand::Restart { name, tasks, only_failed } => {
            let query = [("includeTasks", tasks.to_string()), ("onlyFailed", only_failed.to_string())];
            worker.order(Method::POST, &["connectors", &name, "restart"], &query, "restarting", out).await
        }
        ConnectorsCommand::Delete(ConnectorName { name }) => {
            worker.order(Method::DELETE, &["connectors", &name], &[], "deleted", out).await
        }
        ConnectorsCommand::Offsets(ConnectorName { name }) => {
            worker.list(&["connectors", &name, "offsets"], &[], out, offsets).await
        }
    }
}

/// Resumes a connector and prints its state once it is no longer paused or stopped.
async fn resume(worker: &RestClient, name: &str, out: &mut dyn Write) -> Result {
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
    let done = json!({ "connector": name, "done": "resuming", "state": state });
    worker.output.show(&done, out, |_, out| writeln!(out, "{name}: resuming, now {}", harmless(&state)))
}

async fn status(worker: &RestClient, name: Option<&str>, out: &mut dyn Write) -> Result {
    let mut found = worker.with_files().await?;
    if let Some(name) = name {
        let Some(one) = found.get(name).cloned() else {
            return Err(failure(format!("Connector {name} not found")));
        };
        found = json!({ name: one });
    }
    worker.output.show(&found, out, |found, out| {
        table(found, out)?;
        declarations::explain(found, out)?;
        for (name, trace) in traces(found) {
            note(&name, &trace, out)?;
        }
        Ok(())
    })?;
    if needs_attention(&found) { Err(CommandError::Reported) } else { Ok(()) }
}

async fn apply(worker: &RestClient, files: &[PathBuf], out: &mut dyn Write) -> Result {
    // Read all files before sending the first, so that a bad one leaves no partial result.
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
    worker.each_in_turn(documents, put, all, out).await
}

/// Creates or updates one connector; returns which of the two.
async fn put(worker: &RestClient, document: ConnectorDocument) -> Result<&'static str> {
    let ConnectorDocument { name, config, initial_state } = document;
    let config = json!(config);
    let answer = match initial_state {
        // The initial state is for new connectors; for an existing one it would undo a pause or a stop.
        Some(state) if !worker.has(&name).await? => {
            let body = json!({ "name": name, "config": config, "initial_state": state.name() });
            worker.send(Method::POST, &["connectors"], &[], Some(&body)).await?
        }
        _ => worker.send(Method::PUT, &["connectors", &name, "config"], &[], Some(&config)).await?,
    };
    Ok(if answer.status == StatusCode::CREATED { "created" } else { "configured" })
}

impl RestClient {
    /// All connectors, each with the state of the file that declares it.
    async fn with_files(&self) -> Result<Value> {
        let query = [("expand", "info".to_owned()), ("expand", "status".to_owned())];
        let mut found = self.get(&["connectors"], &query).await?;
        let declared = self.request(Method::GET, &["admin", "declarations"], &[], None).await?;
        // Kafka Connect's own workers do not know this path.
        if !matches!(declared.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            declarations::join(&mut found, &declared.accepted()?.json()?);
        }
        Ok(found)
    }

    async fn has(&self, name: &str) -> Result<bool> {
        let answer = self.request(Method::GET, &["connectors", name], &[], None).await?;
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
    fn a_table_has_one_line_per_connector() {
        let text = written(|out| table(&found(), out));

        let expected = "NAME     CLASS          STATE    WORKER  TASKS\n\
                        hooks    WebhookSource  RUNNING  a:8083  0:FAILED\n\
                        records  RecordSource   STOPPED  b:8083  -\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_declared_connector_shows_the_state_of_its_file() {
        let mut found = found();
        let edited = json!({ "name": "hooks", "file": "hooks.json", "state": "edited" });
        declarations::join(
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
    async fn a_name_that_a_url_drops_is_refused() {
        for name in [".", ".."] {
            // No server listens there, so a request would fail differently.
            let access = ConnectionArgs::to("http://127.0.0.1:1");
            let command = ConnectorsCommand::Delete(ConnectorName { name: name.to_owned() });

            let refused = run(command, &access, &mut Vec::new()).await;

            let Err(CommandError::Configuration(problems)) = refused else { panic!("{name} was asked for") };
            assert!(problems.to_string().contains("is not a valid connector name"), "{problems}");
        }
    }

    #[test]
    fn traces_are_shown_and_failures_need_attention() {
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
        let found = [found(), silent, refused, restarting, with("RUNNING", Value::Null)];
        assert_eq!(found.map(|found| needs_attention(&found)), [true, true, true, false, false]);
    }
}
