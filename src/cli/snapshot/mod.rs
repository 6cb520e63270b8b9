//! `tributary snapshot …` and `tributary verify`: runs that read lists in full, their progress and their certificates.
//!
//! ```text
//! start, verify        ──▶ REST API of any worker ──▶ a run, carried out by the connector's tasks
//! status               ──▶ states of runs; with --watch progress bars until the end, plain lines if stdout is no terminal
//! pause, resume, stop  ──▶ an order to a run
//! certificates         ──▶ the newest certificate of each list
//! ```
//!
//! Exit codes: 0 done, and a run that was waited for is certified or found no remaining differences; 1 the worker refused or does
//! not answer, the run is not certified, or a verification left differences or could not compare everything; 2 the command line is
//! wrong.

mod show;
mod verify;
mod watch;

use std::io::Write;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

pub(super) use self::verify::{VerifyOptions, run as verify};
#[cfg(feature = "simulator")]
pub(super) use self::watch::progress;
use super::{
    CommandError, Result,
    client::{ConnectionArgs, Method, RestClient},
    failure,
    table::each,
};

#[derive(Subcommand)]
pub(super) enum SnapshotCommand {
    /// Starts a run that reads lists; repeating a request with the same id does not start another
    Start {
        /// Name of the connector
        connector: String,
        #[command(flatten)]
        asked: RunRequestArgs,
        /// Read only changes of payroll since its last certified run. The run is certified only if the whole list had to be
        /// read
        #[arg(long)]
        incremental: bool,
        /// Wait for the end; exit code 1 unless the run is certified
        #[arg(long)]
        wait: bool,
    },
    /// Shows all runs; with an id one run and the lists being read
    Status {
        /// Name of the connector
        connector: String,
        /// Id of a run; --watch without an id takes the newest
        id: Option<String>,
        /// Show progress until the end; exit code 1 unless the run is certified
        #[arg(long)]
        watch: bool,
    },
    /// Pauses a run
    Pause(RunArgs),
    /// Resumes a paused run
    Resume(RunArgs),
    /// Stops a run permanently
    Stop(RunArgs),
    /// Prints the certificates of lists, newest first
    Certificates {
        /// Name of the connector
        connector: String,
        /// Only of this run
        #[arg(long, value_name = "ID")]
        run: Option<String>,
        /// Only of this list: companies, customers, accounts or payroll
        #[arg(long)]
        list: Option<String>,
        /// Only of this company
        #[arg(long, value_name = "ID")]
        company: Option<String>,
        /// Only certificates that prove nothing
        #[arg(long)]
        uncertified: bool,
        /// Maximum number of certificates
        #[arg(long, default_value_t = 1000)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
}

#[derive(Args)]
pub(super) struct RunArgs {
    /// Name of the connector
    connector: String,
    /// Id of the run, as `status` shows it
    id: String,
}

#[derive(Args, Serialize)]
pub(super) struct RunRequestArgs {
    /// Id of the run; default: a generated id
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// A list: companies, customers, accounts or payroll; repeat for more. Default: all configured lists
    #[arg(long = "list", value_name = "LIST")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lists: Vec<String>,
    /// A company; repeat for more. Default: all configured companies
    #[arg(long = "company", value_name = "ID")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    companies: Vec<String>,
}

pub(super) async fn run(command: SnapshotCommand, access: &ConnectionArgs, out: &mut dyn Write) -> Result {
    let worker = RestClient::new(access)?;
    match command {
        SnapshotCommand::Start { connector, asked, incremental, wait } => {
            let mut body = json!(asked);
            if incremental {
                body["incremental"] = true.into();
            }
            match start(&worker, &connector, &body, wait, out).await? {
                None => Ok(()),
                Some(ended) => certified(&worker, &ended, out),
            }
        }
        SnapshotCommand::Status { connector, id: None, watch: false } => {
            worker.list(&path(&connector), &[], out, show::runs).await
        }
        SnapshotCommand::Status { connector, id: Some(id), watch: false } => {
            worker.list(&["connectors", &connector, "snapshots", &id], &[], out, show::run).await
        }
        SnapshotCommand::Status { connector, id, watch: true } => {
            let id = match id {
                Some(id) => id,
                None => newest(&worker.get(&path(&connector), &[]).await?, &connector)?,
            };
            let ended = watch::until_over(&worker, &connector, &id, out).await?;
            certified(&worker, &ended, out)
        }
        SnapshotCommand::Pause(named) => order(&worker, &named, "pause", out).await,
        SnapshotCommand::Resume(named) => order(&worker, &named, "resume", out).await,
        SnapshotCommand::Stop(named) => order(&worker, &named, "stop", out).await,
        SnapshotCommand::Certificates { connector, run, list, company, uncertified, limit } => {
            let mut query = vec![("uncertified", uncertified.to_string()), ("limit", limit.to_string())];
            for (name, value) in [("run", run), ("list", list), ("company", company)] {
                query.extend(value.map(|value| (name, value)));
            }
            let path = ["connectors", &connector, "certificates"];
            worker.list(&path, &query, out, show::certificates).await
        }
    }
}

/// Requests a run. With `wait`, shows its progress until the end and returns its last state.
async fn start(
    worker: &RestClient,
    connector: &str,
    body: &Value,
    wait: bool,
    out: &mut dyn Write,
) -> Result<Option<Value>> {
    let run = worker.send(Method::POST, &path(connector), &[], Some(body)).await?.json()?;
    if !wait {
        worker.output.show(&run, out, |run, out| show::started(connector, run, out))?;
        return Ok(None);
    }
    let id = run["id"].as_str().ok_or_else(|| failure("the worker's answer has no id of the run"))?;
    watch::until_over(worker, connector, id, out).await.map(Some)
}

async fn order(worker: &RestClient, named: &RunArgs, order: &str, out: &mut dyn Write) -> Result {
    let path = ["connectors", &named.connector, "snapshots", &named.id, order];
    let run = worker.send(Method::PUT, &path, &[], None).await?.json()?;
    worker.output.show(&run, out, show::ordered)
}

/// The newest unfinished run, else the newest.
fn newest(found: &Value, connector: &str) -> Result<String> {
    let all = each(&found["snapshots"]);
    let chosen = all.iter().find(|run| !is_over(run)).or(all.first());
    chosen.and_then(|run| run["id"].as_str()).map(str::to_owned).ok_or_else(|| {
        failure(format!("{connector} has no runs; start one with `tributary snapshot start {connector}`"))
    })
}

fn is_over(run: &Value) -> bool {
    matches!(run["state"].as_str(), Some("ended" | "stopped"))
}

/// Prints a finished run; an error unless it is certified.
fn certified(worker: &RestClient, run: &Value, out: &mut dyn Write) -> Result {
    worker.output.show(run, out, show::run)?;
    if run["certified"] == true { Ok(()) } else { Err(CommandError::Reported) }
}

fn path(connector: &str) -> [&str; 3] {
    ["connectors", connector, "snapshots"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_unfinished_run_is_watched() {
        let run = |id: &str, state: &str| json!({ "id": id, "state": state });
        let found = |runs: &[Value]| json!({ "snapshots": runs });

        let open = newest(&found(&[run("c", "ended"), run("b", "paused"), run("a", "running")]), "x");
        let over = newest(&found(&[run("c", "ended"), run("b", "stopped")]), "x");

        assert_eq!((open.ok().as_deref(), over.ok().as_deref()), (Some("b"), Some("c")));
        assert!(newest(&found(&[]), "x").is_err());
    }
}
