//! `tributary subscriptions …`: what is subscribed to at the provider, what would be done about it, and doing it.
//!
//! ```text
//! list, plan, apply, remove ──▶ REST API of any worker ──▶ the worker of the connector's task does it
//! plan --receive-only       ──▶ a connector's configuration alone: what a person has to subscribe by other means
//! ```
//!
//! Tables for people, JSON with `--json`. Exit codes: 0 done; 1 the worker refused, is not there, or has not done it in
//! time; 2 the command line or a file is wrong, and nothing was asked.

mod receive_only;
mod show;
mod wait;

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::json;
use url::Url;

use super::{
    Environment, Result,
    client::{ConnectionArgs, Method, RestClient},
};

#[derive(Subcommand)]
pub(super) enum Command {
    /// What there is of each target, and which targets have none
    List {
        /// Name of the connector
        connector: String,
        /// Those that have ended too
        #[arg(long)]
        all: bool,
    },
    /// What `apply`, or `remove`, would change at the provider; asks it, and changes nothing
    Plan {
        /// Name of the connector; with --receive-only its file (JSON), or its name in connectors.dir or on the workers
        connector: String,
        /// What `remove` would
        #[arg(long, conflicts_with = "receive_only")]
        remove: bool,
        #[command(flatten)]
        receiving: ReceiveOnlyArgs,
    },
    /// Has everything made as it is declared, and waits until it is
    Apply {
        /// Name of the connector
        connector: String,
        /// From now on only receive: sets subscriptions.manage to false. Subscriptions stay as they are
        #[arg(long)]
        receive_only: bool,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Has all of them deleted, and none made until `apply`; waits until they are gone
    Remove {
        /// Name of the connector
        connector: String,
        #[command(flatten)]
        waiting: WaitArgs,
    },
}

/// For people who subscribe by other means.
#[derive(Args)]
pub(super) struct ReceiveOnlyArgs {
    /// Show what a person has to subscribe by other means, from the connector's configuration; asks nobody
    #[arg(long)]
    receive_only: bool,
    /// Address of the receivers, where the worker's properties have no webhook.advertised.url
    #[arg(long, value_name = "URL", requires = "receive_only")]
    advertised_url: Option<Url>,
    /// Print the secrets that are derived for invoicing hooks; only from a file
    #[arg(long, requires = "receive_only")]
    show_secrets: bool,
}

/// How long is waited.
#[derive(Args)]
pub(super) struct WaitArgs {
    /// Seconds to wait until it is done; 0 to only ask for it
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=86_400))]
    timeout: u64,
}

pub(super) async fn run(
    command: Command,
    access: &ConnectionArgs,
    environment: &Environment,
    out: &mut dyn Write,
) -> Result {
    if let Command::Plan { connector, receiving, .. } = &command
        && receiving.receive_only
    {
        return receive_only::plan(connector, receiving, access, environment, out).await;
    }
    let worker = RestClient::new(access)?;
    match command {
        Command::List { connector, all } => {
            let path = ["connectors", &connector, "subscriptions"];
            worker.list(&path, &[("all", all.to_string())], out, show::list).await
        }
        Command::Plan { connector, remove, .. } => {
            let path = ["connectors", &connector, "subscriptions", "plan"];
            worker.list(&path, &[("removed", remove.to_string())], out, show::plan).await
        }
        Command::Apply { connector, receive_only: true, .. } => {
            let path = ["connectors", &connector, "config"];
            let patch = json!({ "subscriptions.manage": "false" });
            worker.send(Method::PATCH, &path, &[], Some(&patch)).await?;
            let told = json!({ "connector": connector, "done": "configured", "manage": false });
            worker.output.show(&told, out, |_, out| {
                writeln!(out, "{connector}: only receives from now on; its subscriptions stay as they are")
            })
        }
        Command::Apply { connector, waiting, .. } => {
            wait::until_done(&worker, &connector, false, waiting.timeout, out).await
        }
        Command::Remove { connector, waiting } => {
            wait::until_done(&worker, &connector, true, waiting.timeout, out).await
        }
    }
}
