//! `tributary snapshot …` and `tributary verify`: lists read in full, how far that is, and what was proved.
//!
//! ```text
//! start, verify        ──▶ REST API of any worker ──▶ a run, read by the connector's tasks
//! status               ──▶ how runs stand; with --watch bars until it is over, plain lines where stdout is no terminal
//! pause, resume, stop  ──▶ an order
//! certificates         ──▶ what was proved of each list
//! ```
//!
//! Tables for people, JSON with `--json`. Exit codes: 0 done, and where a run was waited for it is certified, or nothing differs
//! (any more); 1 the worker refused or is not there, the run is not certified, or a verification left differences or could not
//! compare all it was to; 2 the command line is wrong.

mod show;
mod verify;
mod watch;

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

pub(super) use self::verify::{Options as VerifyOptions, run as verify};
#[cfg(feature = "simulator")]
pub(super) use self::watch::progress;
use super::{
    Failure, Result,
    client::{ConnectionArgs, Method, RestClient},
    failure,
    table::each,
};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Asks for lists to be read; the same request under the same id is one run, however often it is sent
    Start {
        /// Name of the connector
        connector: String,
        #[command(flatten)]
        asked: RunRequest,
        /// Of payroll only what has changed since the last run of it that was certified. It is certified only if the whole list
        /// had to be read
        #[arg(long)]
        incremental: bool,
        /// Wait until it is over; exit code 1 unless it is certified
        #[arg(long)]
        wait: bool,
    },
    /// How runs stand; with an id one run, with the lists that are being read
    Status {
        /// Name of the connector
        connector: String,
        /// Id of a run; with --watch and without it, the newest
        id: Option<String>,
        /// Show it until it is over; exit code 1 unless it is certified
        #[arg(long)]
        watch: bool,
    },
    /// Lets a run wait where it is
    Pause(RunArgs),
    /// Goes on after `pause`
    Resume(RunArgs),
    /// Ends a run where it is; it cannot go on
    Stop(RunArgs),
    /// What was proved of each list, the newest certificate first
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
        /// Only those that prove nothing
        #[arg(long)]
        uncertified: bool,
        /// The most that are shown
        #[arg(long, default_value_t = 1000)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
}

/// A run.
#[derive(Args)]
pub(super) struct RunArgs {
    /// Name of the connector
    connector: String,
    /// Id of the run, as `status` shows it
    id: String,
}

/// What is to be read.
#[derive(Args)]
pub(super) struct RunRequest {
    /// What the run shall be called; made up where it is left out
    #[arg(long)]
    id: Option<String>,
    /// A list: companies, customers, accounts or payroll; again for more. All that are configured where it is left out
    #[arg(long = "list", value_name = "LIST")]
    lists: Vec<String>,
    /// A company; again for more. All that are configured where it is left out
    #[arg(long = "company", value_name = "ID")]
    companies: Vec<String>,
}

impl RunRequest {
    /// The request, with what was said and nothing else.
    fn body(&self, kind: Option<&str>, incremental: bool) -> Value {
        let mut body = Map::new();
        let mut put = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
        if let Some(id) = &self.id {
            put("id", id.as_str().into());
        }
        if let Some(kind) = kind {
            put("kind", kind.into());
        }
        for (name, values) in [("lists", &self.lists), ("companies", &self.companies)] {
            if !values.is_empty() {
                put(name, values.as_slice().into());
            }
        }
        if incremental {
            put("incremental", true.into());
        }
        body.into()
    }
}

pub(super) async fn run(command: Command, access: &ConnectionArgs, out: &mut dyn Write) -> Result {
    let worker = RestClient::new(access)?;
    match command {
        Command::Start { connector, asked, incremental, wait } => {
            match start(&worker, &connector, &asked.body(None, incremental), wait, out).await? {
                None => Ok(()),
                Some(ended) => certified(&worker, &ended, out),
            }
        }
        Command::Status { connector, id: None, watch: false } => {
            worker.list(&path(&connector), &[], out, show::runs).await
        }
        Command::Status { connector, id: Some(id), watch: false } => {
            worker.list(&["connectors", &connector, "snapshots", &id], &[], out, show::run).await
        }
        Command::Status { connector, id, watch: true } => {
            let id = match id {
                Some(id) => id,
                None => newest(&worker.get(&path(&connector), &[]).await?, &connector)?,
            };
            let ended = watch::until_over(&worker, &connector, &id, out).await?;
            certified(&worker, &ended, out)
        }
        Command::Pause(named) => order(&worker, &named, "pause", out).await,
        Command::Resume(named) => order(&worker, &named, "resume", out).await,
        Command::Stop(named) => order(&worker, &named, "stop", out).await,
        Command::Certificates { connector, run, list, company, uncertified, limit } => {
            let mut query = vec![("uncertified", uncertified.to_string()), ("limit", limit.to_string())];
            for (name, value) in [("run", run), ("list", list), ("company", company)] {
                query.extend(value.map(|value| (name, value)));
            }
            let path = ["connectors", &connector, "certificates"];
            worker.list(&path, &query, out, show::certificates).await
        }
    }
}

/// Requests a run. If it is to be waited for, shows it until it is over and returns its last state.
async fn start(
    worker: &RestClient,
    connector: &str,
    body: &Value,
    wait: bool,
    out: &mut dyn Write,
) -> Result<Option<Value>> {
    let told = worker.send(Method::POST, &path(connector), &[], Some(body)).await?.json()?;
    if !wait {
        worker.output.show(&told, out, |told, out| show::started(connector, told, out))?;
        return Ok(None);
    }
    let id = told["id"].as_str().ok_or_else(|| failure("the worker did not say which id the run has"))?;
    watch::until_over(worker, connector, id, out).await.map(Some)
}

async fn order(worker: &RestClient, named: &RunArgs, order: &str, out: &mut dyn Write) -> Result {
    let path = ["connectors", &named.connector, "snapshots", &named.id, order];
    let told = worker.send(Method::PUT, &path, &[], None).await?.json()?;
    worker.output.show(&told, out, show::ordered)
}

/// The newest run that is not over, else the newest.
fn newest(found: &Value, connector: &str) -> Result<String> {
    let all = each(&found["snapshots"]);
    let chosen = all.iter().find(|run| !is_over(run)).or(all.first());
    chosen.and_then(|run| run["id"].as_str()).map(str::to_owned).ok_or_else(|| {
        failure(format!("{connector} has no runs; `tributary snapshot start {connector}` asks for one"))
    })
}

fn is_over(run: &Value) -> bool {
    matches!(run["state"].as_str(), Some("ended" | "stopped"))
}

/// Shows a run that is over; an error unless it is certified.
fn certified(worker: &RestClient, run: &Value, out: &mut dyn Write) -> Result {
    worker.output.show(run, out, show::run)?;
    if run["certified"] == true { Ok(()) } else { Err(Failure::Reported) }
}

fn path(connector: &str) -> [&str; 3] {
    ["connectors", connector, "snapshots"]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_run_to_watch_is_the_newest_that_is_not_over_else_the_newest() {
        let run = |id: &str, state: &str| json!({ "id": id, "state": state });
        let found = |runs: &[Value]| json!({ "snapshots": runs });

        let open = newest(&found(&[run("c", "ended"), run("b", "paused"), run("a", "running")]), "x");
        let over = newest(&found(&[run("c", "ended"), run("b", "stopped")]), "x");

        assert_eq!((open.ok().as_deref(), over.ok().as_deref()), (Some("b"), Some("c")));
        assert!(newest(&found(&[]), "x").is_err());
    }
}
