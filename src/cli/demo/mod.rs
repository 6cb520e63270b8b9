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

mod deliveries;
mod invoicing;
mod lists;
mod payroll;
mod records;
mod scenario;
mod screen;
mod start;
mod summary;
mod system;

use std::{
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use clap::Args;

use base::durable;

use self::{
    scenario::Scenario,
    screen::Screen,
    start::{DemoServices, RunningWorker},
    system::DemoSystem,
};
use super::{Environment, Failure, Result, signals::Signals, terminal::Colors};
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
    colors: Colors,
}

impl Terminal {
    pub(super) fn of(environment: &Environment) -> Self {
        let stdout = io::stdout();
        let is_dumb = environment.iter().any(|(name, value)| name == "TERM" && value == "dumb");
        let colors = Colors { is_on: telemetry::is_coloured(&stdout) && !is_dumb };
        Self { is_live: stdout.is_terminal() && !is_dumb, colors }
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
    let Some(system) = started else { return interrupted(&mut screen) };
    let shown = tokio::select! {
        shown = Box::pin(show(options, &system, &mut screen)) => Some(shown),
        () = signals.next() => None,
    };
    let ended = match shown {
        None => interrupted(&mut screen),
        Some(shown) => {
            if options.keep && matches!(shown, Ok(()) | Err(Failure::Reported)) {
                screen.print(&format!("\n{}", told(&system, options.rate)))?;
                let mut scenario = Scenario::new(&system, &mut screen);
                tokio::select! {
                    ended = scenario.keep_changing(options.rate) => ended?,
                    () = signals.next() => screen.close()?,
                }
            }
            shown
        }
    };
    tokio::select! {
        stopped = system.stop() => stopped?,
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
) -> Result<DemoSystem> {
    // Three times as many as are expected: every delivery is compared, those of invoicing included.
    let deliveries = 3 * options.seconds as usize * options.rate as usize;
    let services = DemoServices::prepare(Duration::from_secs(options.token_life.into()), deliveries).await?;
    screen.event("Kafka, registry and provider are up")?;
    let (system, logins) = DemoSystem::start(services, logs, metrics).await?;
    for login in logins {
        screen.event(&login)?;
    }
    screen.print(&format!("\n{}\n", places(&system)))?;
    Ok(system)
}

/// Everything up to the table at the end.
async fn show(options: &Options, system: &DemoSystem, screen: &mut Screen<'_>) -> Result {
    let counted = Box::pin(Scenario::new(system, screen).run(options)).await?;
    screen.close()?;
    screen.print(&format!("\n{}", counted.told(screen.terminal.colors)?))?;
    if counted.broken_promises() == 0 { Ok(()) } else { Err(Failure::Reported) }
}

fn places(system: &DemoSystem) -> String {
    let DemoSystem { services, worker: RunningWorker { admin, receiver, .. }, .. } = system;
    let admin = admin.as_str().trim_end_matches('/');
    format!("REST API   {admin}\nmetrics    {admin}/metrics\nreceiver   {receiver}\n{services}")
}

fn told(system: &DemoSystem, rate: u32) -> String {
    format!("staying up until Ctrl-C, while the provider changes {rate} things a second\n{}", places(system))
}

fn interrupted(screen: &mut Screen<'_>) -> Result {
    screen.close()?;
    screen.event("interrupted before the count: nothing is verified")?;
    Err(Failure::Reported)
}
