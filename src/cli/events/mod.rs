//! `tributary events trace`: finds how a write at the provider ended, by the events that report it.
//!
//! Event topics of the prefix ─▶ [`EventTrace`]: records that contain the bytes of the id ─▶ decoded and compared ─▶ a table or JSON.
//!
//! - Avro stores text as it is, so only records that contain the id have to be decoded.
//! - Memory is bounded by `--limit` events and by the buffers of one consumer.
//!
//! Exit codes: 0 an event was found; 1 Kafka or the registry does not answer, or no record with the id can be decoded; 2 the command
//! line or the configuration is wrong, and nothing was read; 3 no event has the id.

mod found;
mod trace;
mod write_id;

use std::{collections::BTreeSet, io::Write, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, Subcommand};

use model::TopicPrefix;

use self::{trace::EventTrace, write_id::WriteId};
use super::{
    Environment, Result,
    client::OutputArgs,
    load, resolve,
    scan::{duration, since},
};
use crate::config::Worker;

#[derive(Subcommand)]
pub(super) enum EventsCommand {
    /// Finds how a write ended: the accounting events with its id; exit code 3 if there is none
    Trace {
        /// SvcProcessId or ConversationId of the write
        #[arg(value_parser = WriteId::parse)]
        id: WriteId,
        #[command(flatten)]
        which: PrefixChoice,
        #[command(flatten)]
        bounds: TraceBounds,
        #[command(flatten)]
        format: OutputArgs,
    },
}

#[derive(Args)]
#[command(group(ArgGroup::new("owner").multiple(false).args(["prefix", "connector"])))]
pub(super) struct PrefixChoice {
    /// Worker properties; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The events of a topic.prefix; default: that of the connectors in connectors.dir
    #[arg(long)]
    prefix: Option<String>,
    /// The events of a connector's topic.prefix: its file (JSON), or its name in connectors.dir or on the workers
    #[arg(long, value_name = "FILE|NAME")]
    connector: Option<String>,
}

/// What is read, and how much of it is kept.
#[derive(Args)]
pub(super) struct TraceBounds {
    /// Only events received since a time such as 2026-11-15T09:00:00Z, or within a duration (90s, 15m, 2h, 7d); default: all that
    /// the topics have
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<i64>,
    /// Wait this long for the first event (90s, 15m, 2h)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// Maximum number of events; the newest are shown
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub(super) async fn run(command: EventsCommand, environment: &Environment, out: &mut dyn Write) -> Result {
    match command {
        EventsCommand::Trace { id, which, bounds, format } => {
            let (worker, prefix) = which.find(environment).await?;
            // A large future.
            Box::pin(async {
                let mut trace = EventTrace::begin(&worker, &prefix, id, &bounds).await?;
                trace.run(bounds.wait.unwrap_or_default()).await?;
                trace.print(format.is_json(), out)
            })
            .await
        }
    }
}

impl PrefixChoice {
    async fn find(&self, environment: &Environment) -> Result<(Worker, TopicPrefix)> {
        let loaded = load::load(self.config.as_deref(), &[], environment)?;
        let prefix = match (&self.connector, &self.prefix) {
            (Some(named), _) => {
                let connector = resolve::connector(named, self.config.as_deref(), environment).await?;
                connector.common().topic_prefix.clone()
            }
            (None, Some(prefix)) => resolve::prefix(prefix)?,
            (None, None) => {
                let prefixes: BTreeSet<TopicPrefix> =
                    loaded.connectors.iter().map(|one| one.common().topic_prefix.clone()).collect();
                resolve::only("--prefix", &prefixes, "name a topic.prefix, or a --connector that has it")?
            }
        };
        Ok((loaded.worker, prefix))
    }
}
