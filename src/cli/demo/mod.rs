//! `tributary demo`: a worker and everything it needs in one process, over real sockets.
//!
//! ```text
//! simulated provider ──signed deliveries──▶ worker ──▶ embedded Kafka, embedded registry
//!   └ journal: deliveries answered 200 ───────── compared with ───────┘ topics, read back at the end
//! ```
//!
//! The steps, in order; each is printed as it happens ([`scenario`]):
//!
//! - Kafka, registry and provider start concurrently. The provider serves HTTPS with a generated certificate, which connectors
//!   trust by `provider.ssl.ca.location`.
//! - The demo logs in at the provider for accounting and payroll, as `tributary auth login` does, while the worker starts; the worker
//!   refreshes the logins. The grants are in the embedded Kafka, whose transactions do not isolate; with one worker that is no problem.
//! - The worker creates the declared subscriptions, and the provider starts to change data. For every event the worker fetches and
//!   publishes the full record; meanwhile it reads lists in full, including payroll companies, and proves them complete. It also
//!   registers invoicing hooks and publishes their signed notifications.
//! - Kafka is cut off. Deliveries are still answered 200, from the spool, and are published once Kafka is back.
//! - The provider disables a subscription: the worker enables it again, opens a gap for the time between and reads the affected list
//!   again. The provider deletes a hook: the worker registers it again.
//! - The list of payroll companies, which no webhook reports, is read once more.
//! - The answers in the provider's journal are compared with the topics, and every list with the published records.
//!
//! The result is a table of promises ([`summary`]); the exit code is 1 if one does not hold. With `--keep` everything stays up
//! and the provider continues until a signal. A signal before the verification is exit code 1.

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
use super::{CommandError, Environment, Result, signals::Signals, terminal::Colors};
use crate::telemetry::{self, Filters, Metrics};

#[derive(Args)]
pub(super) struct DemoOptions {
    /// How long the provider changes data; Kafka is down for the middle third
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(9..=3600))]
    seconds: u32,
    /// Changes at the provider per second, each a delivery
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=2000))]
    rate: u32,
    /// Lifetime of an access token, in seconds; the real provider's is an hour
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(5..=3600))]
    token_life: u32,
    /// Stay up after the verification until Ctrl-C, and print the addresses of REST API, metrics, provider, Kafka and registry
    #[arg(long)]
    keep: bool,
}

/// Capabilities of stdout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terminal {
    /// Whether lines can be redrawn in place.
    is_live: bool,
    colors: Colors,
}

impl Terminal {
    pub(super) fn of(environment: &Environment) -> Self {
        let stdout = io::stdout();
        let is_dumb = environment.iter().any(|(name, value)| name == "TERM" && value == "dumb");
        let colors = Colors { is_on: telemetry::is_colored(&stdout) && !is_dumb };
        Self { is_live: stdout.is_terminal() && !is_dumb, colors }
    }
}

pub(super) async fn run(
    options: &DemoOptions,
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
            if options.keep && matches!(shown, Ok(()) | Err(CommandError::Reported)) {
                screen.print(&format!("\n{}", kept_up(&system, options.rate)))?;
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
        // A second signal skips the wait.
        () = signals.next() => {}
    }
    ended
}

async fn start(
    options: &DemoOptions,
    logs: Filters,
    metrics: &Metrics,
    screen: &mut Screen<'_>,
) -> Result<DemoSystem> {
    // Three times the expected number: the journal must hold every delivery, including invoicing.
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

/// Runs the scenario and prints the table.
async fn show(options: &DemoOptions, system: &DemoSystem, screen: &mut Screen<'_>) -> Result {
    let counted = Box::pin(Scenario::new(system, screen).run(options)).await?;
    screen.close()?;
    screen.print(&format!("\n{}", counted.table(screen.terminal.colors)?))?;
    if counted.broken_promises() == 0 { Ok(()) } else { Err(CommandError::Reported) }
}

fn places(system: &DemoSystem) -> String {
    let DemoSystem { services, worker: RunningWorker { admin, receiver, .. }, .. } = system;
    let admin = admin.as_str().trim_end_matches('/');
    format!("REST API   {admin}\nmetrics    {admin}/metrics\nreceiver   {receiver}\n{services}")
}

fn kept_up(system: &DemoSystem, rate: u32) -> String {
    format!("staying up until Ctrl-C; the provider makes {rate} changes per second\n{}", places(system))
}

fn interrupted(screen: &mut Screen<'_>) -> Result {
    screen.close()?;
    screen.event("interrupted before the verification: nothing is verified")?;
    Err(CommandError::Reported)
}
