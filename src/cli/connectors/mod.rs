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
    Failure,
    client::{Access, Worker, accepted, refusal},
    drift, outside,
    table::harmless,
};
use crate::config::connector::Document;

mod show;

/// How long a resumed connector is waited for, and how often it is asked for meanwhile.
const RESUME_LIMIT: Duration = Duration::from_secs(10);
const RESUME_POLL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(super) struct Options {
    #[command(flatten)]
    access: Access,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    Pause {
        /// Name of the connector
        name: String,
    },
    /// Goes on after pause or stop
    Resume {
        /// Name of the connector
        name: String,
    },
    /// Ends the tasks; offsets may then be edited
    Stop {
        /// Name of the connector
        name: String,
    },
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
    Delete {
        /// Name of the connector
        name: String,
    },
    /// Where a connector has got to
    Offsets {
        /// Name of the connector
        name: String,
    },
}

pub(super) async fn run(options: &Options, out: &mut impl Write) -> Result<(), Failure> {
    let worker = Worker::new(&options.access)?;
    let path = |name: &str, rest: &[&str]| -> Vec<String> {
        ["connectors", name].iter().chain(rest).map(|&part| part.to_owned()).collect()
    };
    match &options.command {
        Command::List => {
            let found = worker.with_files().await?;
            worker.show(&found, out, |found, out| table(found, out))
        }
        Command::Status { name } => status(&worker, name.as_deref(), out).await,
        Command::Apply { files } => apply(&worker, files, out).await,
        Command::Pause { name } => {
            worker.tell(Method::PUT, &path(name, &["pause"]), &[], "pausing", out).await
        }
        Command::Resume { name } => {
            worker.send(Method::PUT, &path(name, &["resume"]), &[], None).await?;
            resumed(&worker, name, &path(name, &["status"]), out).await
        }
        Command::Stop { name } => {
            worker.tell(Method::PUT, &path(name, &["stop"]), &[], "stopping", out).await
        }
        Command::Restart { name, tasks, only_failed } => {
            let query = [("includeTasks", tasks.to_string()), ("onlyFailed", only_failed.to_string())];
            worker.tell(Method::POST, &path(name, &["restart"]), &query, "restarting", out).await
        }
        Command::Delete { name } => worker.tell(Method::DELETE, &path(name, &[]), &[], "deleted", out).await,
        Command::Offsets { name } => {
            let found = worker.get(&path(name, &["offsets"]), &[]).await?;
            worker.show(&found, out, |found, out| offsets(found, out))
        }
    }
}

/// Says in which state a connector is once it has left the one it was resumed from.
async fn resumed(
    worker: &Worker<'_>,
    name: &str,
    path: &[String],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let end = Instant::now() + RESUME_LIMIT;
    let state = loop {
        let found = worker.get(path, &[]).await?;
        let state = found["connector"]["state"].as_str().unwrap_or("UNASSIGNED").to_owned();
        if !matches!(state.as_str(), "PAUSED" | "STOPPED") || Instant::now() >= end {
            break state;
        }
        sleep(RESUME_POLL).await;
    };
    let told = json!({ "connector": name, "done": "resuming", "state": state });
    worker.show(&told, out, |_, out| writeln!(out, "{name}: resuming, now {}", harmless(&state)))
}

async fn status(worker: &Worker<'_>, name: Option<&str>, out: &mut impl Write) -> Result<(), Failure> {
    let mut found = worker.with_files().await?;
    if let Some(name) = name {
        let Some(one) = found.get(name).cloned() else {
            return Err(refusal(format!("Connector {name} not found")));
        };
        found = json!({ name: one });
    }
    worker.show(&found, out, |found, out| {
        table(found, out)?;
        drift::explain(found, out)?;
        for (name, trace) in traces(found) {
            writeln!(out, "\n{name}\n  {}", trace.trim_end().replace('\n', "\n  "))?;
        }
        Ok(())
    })?;
    if needs_somebody(&found) { Err(Failure::Reported) } else { Ok(()) }
}

async fn apply(worker: &Worker<'_>, files: &[PathBuf], out: &mut impl Write) -> Result<(), Failure> {
    // All files are read before the first is sent, so that a bad one leaves nothing half done.
    let mut documents = Vec::new();
    for file in files {
        let (document, _) = Document::load(file).map_err(Failure::Configuration)?;
        documents.push(document);
    }
    let (mut applied, mut ended) = (Vec::new(), Ok(()));
    for document in documents {
        let name = document.name.clone();
        match put(worker, document).await {
            Ok(done) => {
                ended = worker.say(&format!("{name}: {done}"), out);
                applied.push((name, done));
            }
            Err(failure) => ended = Err(failure),
        }
        if ended.is_err() {
            break;
        }
    }
    // What came before a refusal is done all the same.
    if !applied.is_empty() {
        let each = applied.iter().map(|(name, done)| json!({ "connector": name, "done": done }));
        let told = json!({ "connectors": each.collect::<Vec<_>>() });
        ended = ended.and(worker.show(&told, out, |_, _| Ok(())));
    }
    ended
}

/// Creates or changes one connector; which of the two.
async fn put(worker: &Worker<'_>, document: Document) -> Result<&'static str, Failure> {
    let Document { name, config, initial_state } = document;
    let config = config.into_iter().map(|(key, value)| (key, Value::from(value)));
    let config = Value::Object(config.collect::<Map<_, _>>());
    let status = match initial_state {
        // Only a creation takes a state; on one that is there it would undo what somebody has paused or stopped.
        Some(state) if !worker.has(&name).await? => {
            let body = json!({ "name": name, "config": config, "initial_state": state.name() });
            worker.send(Method::POST, &["connectors".to_owned()], &[], Some(&body)).await?.0
        }
        _ => {
            let path = ["connectors".to_owned(), name, "config".to_owned()];
            worker.send(Method::PUT, &path, &[], Some(&config)).await?.0
        }
    };
    Ok(if status == StatusCode::CREATED { "created" } else { "configured" })
}

impl Worker<'_> {
    async fn expanded(&self) -> Result<Value, Failure> {
        let query = [("expand", "info".to_owned()), ("expand", "status".to_owned())];
        self.get(&["connectors".to_owned()], &query).await
    }

    /// All connectors, each with what is known of the file that declares it.
    async fn with_files(&self) -> Result<Value, Failure> {
        let mut found = self.expanded().await?;
        let path = ["admin".to_owned(), "declarations".to_owned()];
        let (status, body) = self.ask(Method::GET, &path, &[], None).await?;
        // Kafka Connect's own workers do not know the path, and have no declarations.
        if !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            let (_, body) = accepted(status, body)?;
            drift::join(&mut found, &serde_json::from_slice(&body).map_err(outside)?);
        }
        Ok(found)
    }

    /// Whether there is such a connector.
    async fn has(&self, name: &str) -> Result<bool, Failure> {
        let path = ["connectors".to_owned(), name.to_owned()];
        match self.ask(Method::GET, &path, &[], None).await? {
            (StatusCode::NOT_FOUND, _) => Ok(false),
            (status, body) => accepted(status, body).map(|_| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut out = Vec::new();

        table(&found(), &mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
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
        let mut out = Vec::new();

        table(&found, &mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
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
            let options = Options { access, command: Command::Delete { name: name.to_owned() } };

            let refused = run(&options, &mut Vec::new()).await;

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
