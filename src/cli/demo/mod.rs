//! `tributary demo`: a worker and everything around it in one process, over real sockets, with nothing installed.
//!
//! ```text
//! simulated provider ──signed deliveries──▶ worker ──▶ embedded Kafka, embedded registry
//!   └ journal: what was answered 200 ─────────── compared with ───────┘ topics, read back at the end
//! ```
//!
//! In this order, each printed as it happens ([`play`]):
//!
//! - Kafka, registry and provider come up at once. The provider serves HTTPS with a certificate made for it, which connectors
//!   trust by `provider.ssl.ca.location`.
//! - Somebody logs in at the provider for accounting and for payroll, as `tributary auth login` does, while the worker starts; it keeps
//!   the logins alive. The grants are in the embedded Kafka, whose transactions isolate nothing: with one worker that makes no difference.
//! - The worker subscribes as its connector declares, and from then on the provider changes things. Behind every event the full
//!   record is fetched and published, compacted by its key; beside that, lists are read in full and proved complete, that of payroll
//!   companies among them. Hooks of the invoicing API are registered as well, and their signed notifications published.
//! - Kafka is cut off. Deliveries are still answered 200, from the spool, and are published when it is back.
//! - The provider disables a subscription: it is enabled again, a gap records the time between, and what the gap may have cost is
//!   read again. A hook that is deleted at the provider is registered again.
//! - The list of payroll companies, which no webhook reports, is read once more.
//! - The answers that the provider got are compared with the topics, and every list with what is published.
//!
//! The end is a table of promises ([`summary`]); one that does not hold is exit code 1. With `--keep` everything then stays up,
//! and the provider continues, until a signal ends it in order. A signal before the count is exit code 1: nothing was proved.

mod invoicing;
mod ledger;
mod lists;
mod payroll;
mod play;
mod records;
mod screen;
mod stage;
mod start;
mod summary;

use std::{
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use clap::Args;

use base::durable;

use self::{
    play::Play,
    screen::Screen,
    stage::Stage,
    start::{Ground, RunningWorker},
};
use super::{Environment, Failure, Result, live::Paint, signals::Signals};
use crate::telemetry::{self, Filters, Metrics};

#[derive(Args)]
pub(super) struct Options {
    /// How long the provider changes things; Kafka is away for the third of it in the middle
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(9..=3600))]
    seconds: u32,
    /// Changes at the provider in a second, each a delivery
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=2000))]
    rate: u32,
    /// How long an access token lives, in seconds; the provider's lives an hour
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(5..=3600))]
    token_life: u32,
    /// Stay up after the count until Ctrl-C, and print where REST API, metrics, provider, Kafka and registry are
    #[arg(long)]
    keep: bool,
}

/// What stdout is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terminal {
    /// Whether lines may stay in place.
    is_live: bool,
    paint: Paint,
}

impl Terminal {
    pub(super) fn of(environment: &Environment) -> Self {
        let stdout = io::stdout();
        let is_dumb = environment.iter().any(|(name, value)| name == "TERM" && value == "dumb");
        let paint = Paint { is_on: telemetry::is_colored(&stdout) && !is_dumb };
        Self { is_live: stdout.is_terminal() && !is_dumb, paint }
    }
}

pub(super) async fn run(
    options: &Options,
    logs: Filters,
    metrics: &Metrics,
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result {
    let mut signals = Signals::take()?;
    durable::create_private_files();
    let mut screen = Screen::new(out, terminal);
    let started = tokio::select! {
        started = Box::pin(start(options, logs, metrics, &mut screen)) => Some(started?),
        () = signals.next() => None,
    };
    let Some(stage) = started else { return interrupted(&mut screen) };
    let shown = tokio::select! {
        shown = Box::pin(show(options, &stage, &mut screen)) => Some(shown),
        () = signals.next() => None,
    };
    let ended = match shown {
        None => interrupted(&mut screen),
        Some(shown) => {
            if options.keep && matches!(shown, Ok(()) | Err(Failure::Reported)) {
                screen.print(&format!("\n{}", told(&stage, options.rate)))?;
                let mut play = Play::new(&stage, &mut screen);
                tokio::select! {
                    ended = play.go_on(options.rate) => ended?,
                    () = signals.next() => screen.close()?,
                }
            }
            shown
        }
    };
    tokio::select! {
        stopped = stage.stop() => stopped?,
        // A second signal ends the wait.
        () = signals.next() => {}
    }
    ended
}

async fn start(
    options: &Options,
    logs: Filters,
    metrics: &Metrics,
    screen: &mut Screen<'_>,
) -> Result<Stage> {
    // Three times as many as are expected: every delivery is compared, those of invoicing included.
    let deliveries = 3 * options.seconds as usize * options.rate as usize;
    let ground = Ground::prepare(Duration::from_secs(options.token_life.into()), deliveries).await?;
    screen.tell("Kafka, registry and provider are up")?;
    let (stage, logins) = Stage::start(ground, logs, metrics).await?;
    for login in logins {
        screen.tell(&login)?;
    }
    screen.print(&format!("\n{}\n", places(&stage)))?;
    Ok(stage)
}

/// Everything up to the table at the end.
async fn show(options: &Options, stage: &Stage, screen: &mut Screen<'_>) -> Result {
    let counted = Box::pin(Play::new(stage, screen).run(options)).await?;
    screen.close()?;
    screen.print(&format!("\n{}", counted.told(screen.terminal.paint)?))?;
    if counted.broken() == 0 { Ok(()) } else { Err(Failure::Reported) }
}

fn places(stage: &Stage) -> String {
    let Stage { ground, worker: RunningWorker { admin, receiver, .. }, .. } = stage;
    let admin = admin.as_str().trim_end_matches('/');
    format!("REST API   {admin}\nmetrics    {admin}/metrics\nreceiver   {receiver}\n{ground}")
}

fn told(stage: &Stage, rate: u32) -> String {
    format!("staying up until Ctrl-C, while the provider changes {rate} things a second\n{}", places(stage))
}

fn interrupted(screen: &mut Screen<'_>) -> Result {
    screen.close()?;
    screen.tell("interrupted before the count: nothing is verified")?;
    Err(Failure::Reported)
}
