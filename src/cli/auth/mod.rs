//! `tributary auth …`: a person logs in at the provider, and all workers have the grant.
//!
//! ```text
//! login:  settings, key, Kafka ─▶ address ─▶ (browser) ─▶ callback or pasted code ─▶ tokens, checked ─▶ grants topic ─▶ a call
//! status: grants topic, or this machine's copies where Kafka is away ─▶ a table
//! logout: grants topic
//! ```
//!
//! - Works on any machine that reaches Kafka and the identity service; no worker needs to run.
//! - Nothing that is printed holds a token, a code or a key. The address to log in at holds state and nonce, which are worth
//!   nothing afterwards.
//!
//! Exit codes: 0 done; 1 the login was refused or not finished, or a grant needs a person soon; 2 the command line or the
//! configuration is wrong, and no login was started.

mod browser;
pub(super) mod callback;
pub(super) mod flow;
pub(super) mod grants_topic;
pub(super) mod login;
mod page;
mod paste;
mod probe;
#[cfg(feature = "simulator")]
pub(super) mod simulated;
mod status;

use std::{io::Write, path::PathBuf};

use clap::{Args, Subcommand};

use model::Moment;

use self::grants_topic::GrantsTopic;
use super::{Environment, Result, load, outside, problem};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Logs a person in at the provider and gives the grant to all workers
    Login(login::Options),
    /// Who has logged in, for what and until when; exit code 1 if a person has to do something within a week
    Status(status::Options),
    /// Forgets the tokens of a grant
    Logout(LogoutOptions),
}

#[derive(Args)]
pub(super) struct LogoutOptions {
    /// Name of the grant, as `auth status` shows it
    grant: String,
    /// Worker properties; without it, the environment (CONNECT_*) alone
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Remove the grant from the topic even if it cannot be opened with this key
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(command: Command, environment: &Environment, out: &mut dyn Write) -> Result {
    match command {
        Command::Login(options) => login::run(&options, environment, out).await,
        Command::Status(options) => status::run(&options, environment, out).await,
        Command::Logout(options) => log_out(&options, environment, out).await,
    }
}

async fn log_out(options: &LogoutOptions, environment: &Environment, out: &mut dyn Write) -> Result {
    let LogoutOptions { grant, config, force } = options;
    let worker = load::load(config.as_deref(), &[], environment)?.worker;
    let missing = || {
        let rule = "is no grant that anybody has logged in for";
        problem("grant", grant.as_str(), rule, "name one that `tributary auth status` shows")
    };
    let grants = GrantsTopic::open(&worker).await?.ok_or_else(missing)?;
    let known = grants.grants().into_iter().find(|known| known.name == *grant).ok_or_else(missing)?;
    if *force && known.grant.is_err() {
        grants.remove(grant).await?;
        return writeln!(out, "removed: whatever the grant {grant} held, nobody here could open it")
            .map_err(outside);
    }
    grants.log_out(grant, Moment::now().micros() / 1_000).await?;
    writeln!(
        out,
        "logged out: the tokens of the grant {grant} are forgotten here. The provider documents no way to revoke them, so an \
         access token that is in use lives for up to an hour",
    )
    .map_err(outside)
}
