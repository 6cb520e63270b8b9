//! `tributary probe`: reads the real provider to find out what its document leaves open.
//!
//! ```text
//! stored grants, or a login for this run ─▶ session: GETs, slow and bounded ─▶ judge ─▶ report: found, assumed, settings
//!                                                     └─▶ transcript, redacted ─▶ `tributary simulate --transcript`
//! ```
//!
//! - It sends GETs only, through the client of the workers, one at a time, and none after [`session::MAX_ANSWERS`] answers. A login for the
//!   run uses the identity service and is not stored; a stored grant is not refreshed.
//! - No output contains a token, a name or an amount: answers are shown by status, form, header and counts.
//! - A credential, scope or path that is missing is named, and the other questions are asked.
//!
//! Exit codes: 0 every question was answered; 1 some were not; 2 the command line or the configuration is wrong, and nothing was sent.

mod access;
mod judge;
mod questions;
mod report;
mod session;
mod transcript;

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use base::durable;
use provider::auth::Area;

use self::{questions::Prober, session::Session};
use super::{
    CommandError, Environment, Result, auth::login::BrowserArgs, client::OutputArgs, load, outside, problem,
    resolve,
};
use crate::config::{Connector, Problem};

/// `clock.skew.max.ms` without a worker's configuration: the default.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);

#[derive(Args)]
pub(super) struct ProbeOptions {
    /// RecordSource whose settings are compared: its file (JSON), or its name in connectors.dir or on the workers
    #[arg(long, value_name = "FILE|NAME")]
    connector: String,
    /// Worker properties, for stored grants and provider.hosts.allowed; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log in for this run only, instead of using the stored grant: accounting, payroll, or both separated by a comma
    #[arg(long, value_name = "AREAS", value_delimiter = ',', value_parser = area)]
    login: Vec<Area>,
    /// Company (correlation id) whose customers and accounts are read; default: the first that the provider lists
    #[arg(long, value_name = "ID")]
    company: Option<String>,
    /// Requests per second at most
    #[arg(long, default_value_t = 2.0, value_parser = rate)]
    rate: f64,
    /// Write a redacted transcript, which `tributary simulate --transcript` replays; the file must not exist
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    browser: BrowserArgs,
    #[command(flatten)]
    format: OutputArgs,
}

pub(super) async fn run(options: &ProbeOptions, environment: &Environment, out: &mut dyn Write) -> Result {
    let config = options.config.as_deref();
    let connector = resolve::connector(&options.connector, config, environment).await?;
    let Connector::RecordSource(source) = &connector else {
        let rule = "is a WebhookSource, which has none of the settings that the probe compares";
        return Err(problem("--connector", &*options.connector, rule, "name a RecordSource").into());
    };
    let worker = load::worker_if_any(config, environment)?;
    if let Some(path) = &options.save {
        check_new(path)?;
    }
    let clock_skew_max = worker.as_ref().map_or(CLOCK_SKEW_MAX, |worker| worker.clock_skew_max);
    let areas = access::open(options, &source.provider, worker.as_ref(), environment).await?;
    let session = Session::new(areas, options.rate, options.save.is_some());
    let prober = Prober::new(session, source, clock_skew_max);
    let (report, tape) = prober.run(options.company.as_deref()).await;
    options.format.output().show(&report.json(), out, |_, out| report.show(out))?;
    if let Some(path) = options.save.as_deref().filter(|_| !tape.is_empty()) {
        let mut text = Vec::new();
        transcript::write(&tape, options.company.as_deref(), &mut text)?;
        durable::replace(path, &text).map_err(outside)?;
        if report.seen.exceeds_tape() {
            let limit = session::MAX_TAPE_BYTES >> 20;
            writeln!(
                io::stderr(),
                "the transcript lacks the requests after the first {limit} MiB of answers"
            )?;
        }
    }
    if report.unanswered() == 0 { Ok(()) } else { Err(CommandError::Reported) }
}

/// Checks that a new file can be created there. It is written at the end, so that a run without a result leaves none.
fn check_new(path: &Path) -> Result<(), Problem> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.and_then(|_| fs::remove_file(path)).map_err(|error| {
        let rule = format!("cannot be created: {error}");
        problem(
            "--save",
            &*path.to_string_lossy(),
            rule,
            "name a new file in a directory that you may write to",
        )
    })
}

fn area(text: &str) -> Result<Area, String> {
    let found = [Area::Accounting, Area::Payroll].into_iter().find(|area| area.name() == text);
    found.ok_or_else(|| "must be accounting or payroll".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.1..=100.0).contains(rate));
    rate.ok_or_else(|| "must be a number from 0.1 to 100".to_owned())
}
