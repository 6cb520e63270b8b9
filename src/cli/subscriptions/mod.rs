//! `tributary subscriptions …`: lists, plans, applies and removes subscriptions at the provider.
//!
//! ```text
//! list, plan, apply, remove ──▶ REST API of any worker ──▶ carried out by the worker of the connector's task
//! plan --receive-only       ──▶ only the connector's configuration: the subscriptions that a person has to create
//! tenants                   ──▶ Kafka and the registry: what the connector's events show
//! ```
//!
//! Exit codes: 0 done; 1 the worker refused, does not answer, or has not finished in time; 2 the command line or a file is wrong, and
//! no request was sent.

mod receive_only;
mod show;
mod tenants;
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
pub(super) enum SubscriptionsCommand {
    /// Lists the subscriptions of each target, and targets without one
    List {
        /// Name of the connector
        connector: String,
        /// Also subscriptions that have ended
        #[arg(long)]
        all: bool,
    },
    /// Shows what `apply` or `remove` would change at the provider; queries it, and changes nothing
    Plan {
        /// Name of the connector; with --receive-only its file (JSON), or its name in connectors.dir or on the workers
        connector: String,
        /// Plan for `remove`
        #[arg(long, conflicts_with = "receive_only")]
        remove: bool,
        #[command(flatten)]
        receiving: ReceiveOnlyArgs,
    },
    /// Creates and changes subscriptions as declared, and waits for the result
    Apply {
        /// Name of the connector
        connector: String,
        /// Set subscriptions.manage to false, so that the connector only receives. Subscriptions stay as they are
        #[arg(long)]
        receive_only: bool,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Lists the invoicing tenants that events show, and proposes invoicing.tenants; reads Kafka, and changes nothing
    Tenants(tenants::TenantsArgs),
    /// Deletes all subscriptions until the next `apply`, and waits for the result
    Remove {
        /// Name of the connector
        connector: String,
        #[command(flatten)]
        waiting: WaitArgs,
    },
}

#[derive(Args)]
pub(super) struct ReceiveOnlyArgs {
    /// Show the subscriptions that you have to create yourself, from the connector's configuration; sends no request
    #[arg(long)]
    receive_only: bool,
    /// Address of the receivers, if the worker's properties have no webhook.advertised.url
    #[arg(long, value_name = "URL", requires = "receive_only")]
    advertised_url: Option<Url>,
    /// Print the secrets that are derived for invoicing hooks; only from a file
    #[arg(long, requires = "receive_only")]
    show_secrets: bool,
}

#[derive(Args)]
pub(super) struct WaitArgs {
    /// Seconds to wait for the result; 0 to only send the request
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=86_400))]
    timeout: u64,
}

pub(super) async fn run(
    command: SubscriptionsCommand,
    access: &ConnectionArgs,
    environment: &Environment,
    out: &mut dyn Write,
) -> Result {
    if let SubscriptionsCommand::Plan { connector, receiving, .. } = &command
        && receiving.receive_only
    {
        return receive_only::plan(connector, receiving, access, environment, out).await;
    }
    let worker = RestClient::new(access)?;
    match command {
        // A large future.
        SubscriptionsCommand::Tenants(options) => {
            Box::pin(tenants::run(&options, access, environment, out)).await
        }
        SubscriptionsCommand::List { connector, all } => {
            let path = ["connectors", &connector, "subscriptions"];
            worker.list(&path, &[("all", all.to_string())], out, show::list).await
        }
        SubscriptionsCommand::Plan { connector, remove, .. } => {
            let path = ["connectors", &connector, "subscriptions", "plan"];
            worker.list(&path, &[("removed", remove.to_string())], out, show::plan).await
        }
        SubscriptionsCommand::Apply { connector, receive_only: true, .. } => {
            let path = ["connectors", &connector, "config"];
            let patch = json!({ "subscriptions.manage": "false" });
            worker.send(Method::PATCH, &path, &[], Some(&patch)).await?;
            let done = json!({ "connector": connector, "done": "configured", "manage": false });
            worker.output.show(&done, out, |_, out| {
                writeln!(out, "{connector}: only receives from now on; its subscriptions stay unchanged")
            })
        }
        SubscriptionsCommand::Apply { connector, waiting, .. } => {
            wait::until_done(&worker, &connector, false, waiting.timeout, out).await
        }
        SubscriptionsCommand::Remove { connector, waiting } => {
            wait::until_done(&worker, &connector, true, waiting.timeout, out).await
        }
    }
}
