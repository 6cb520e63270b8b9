//! `tributary auth …`: a person logs in at the provider, and all workers get the grant.
//!
//! ```text
//! login:  settings, key, Kafka ─▶ address ─▶ (browser) ─▶ callback or pasted code ─▶ tokens, checked ─▶ grants topic ─▶ a call
//! status: grants topic, or this machine's copies if Kafka is down ─▶ a table
//! logout: grants topic
//! ```
//!
//! - Works on any machine that reaches Kafka and the identity service; no worker needs to run.
//! - No output contains a token, a code or a key. The login address contains state and nonce, which are useless afterwards.
//!
//! Exit codes: 0 done; 1 the login was refused or not finished, or a grant needs a person within a week; 2 the command line or the
//! configuration is wrong, and no login was started.

mod browser;
pub(super) mod callback;
pub(super) mod flow;
pub(super) mod grants_topic;
pub(super) mod login;
mod page;
mod paste;
pub(super) mod probe;
#[cfg(feature = "simulator")]
pub(super) mod simulated;
mod status;

use std::{io::Write, path::PathBuf};

use clap::{Args, Subcommand};

use model::Moment;

use self::grants_topic::GrantsTopic;
use super::{Environment, Result, load, outside, problem};

#[derive(Subcommand)]
pub(super) enum AuthCommand {
    /// Logs a person in at the provider and gives the grant to all workers
    Login(login::LoginOptions),
    /// Shows all logins with their area and expiry; exit code 1 if one needs a person within a week
    Status(status::StatusOptions),
    /// Removes the tokens of a grant
    Logout(LogoutOptions),
}

#[derive(Args)]
pub(super) struct LogoutOptions {
    /// Name of the grant, as `auth status` shows it
    grant: String,
    /// Worker properties; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Remove the grant from the topic even if this key cannot decrypt it
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(command: AuthCommand, environment: &Environment, out: &mut dyn Write) -> Result {
    match command {
        AuthCommand::Login(options) => login::run(&options, environment, out).await,
        AuthCommand::Status(options) => status::run(&options, environment, out).await,
        AuthCommand::Logout(options) => log_out(&options, environment, out).await,
    }
}

async fn log_out(options: &LogoutOptions, environment: &Environment, out: &mut dyn Write) -> Result {
    let LogoutOptions { grant, config, force } = options;
    let worker = load::load(config.as_deref(), &[], environment)?.worker;
    let missing = || {
        let rule = "is not a known grant";
        problem("grant", grant.as_str(), rule, "name one that `tributary auth status` shows")
    };
    let grants = GrantsTopic::open(&worker).await?.ok_or_else(missing)?;
    let known = grants.grants().into_iter().find(|known| known.name == *grant).ok_or_else(missing)?;
    if *force && known.grant.is_err() {
        grants.remove(grant).await?;
        return writeln!(out, "removed the grant {grant}, which could not be decrypted here")
            .map_err(outside);
    }
    grants.log_out(grant, Moment::now().micros() / 1_000).await?;
    writeln!(
        out,
        "logged out: removed the tokens of the grant {grant}. The provider documents no way to revoke them, so an access token in \
         use stays valid for up to an hour",
    )
    .map_err(outside)
}
