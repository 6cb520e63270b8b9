//! `tributary demo`: a worker and everything around it in one process, over real sockets, with nothing installed.
//!
//! ```text
//! simulated provider ──signed deliveries──▶ worker ──▶ embedded Kafka, embedded registry
//!   └ journal: what was answered 200 ─────────── compared with ───────┘ topics, read back at the end
//! ```
//!
//! Before anything else somebody logs in at the provider, as `tributary auth login` does, and the worker keeps the login alive.
//! The grant stands in the embedded Kafka, whose transactions isolate nothing: with one worker that refreshes it nobody notices.
//!
//! The worker subscribes at the provider as its connector declares, and at the end the provider disables one of the
//! subscriptions: it is enabled again, and a gap tells of the time between.
//!
//! Before the first change the worker reads the lists of customers and accounts in full, and proves each of them complete.
//! Behind every event it fetches the full record and publishes it, compacted by its key. At the end what the gap may have cost is
//! read again, and every list is compared with what is published.
//!
//! In the middle Kafka is cut off. Deliveries go on being answered 200, from the spool, and are published when it is back.
//! The end compares what the provider was told with what is in the topics; a difference is exit code 1, and so are an answer
//! other than 200 or after the provider's 5 seconds, a dead letter, a task that does not run, a record that is older than its last event, a subscription
//! that stays disabled, a list that is not certified, a gap that stays open, a row that differs from what is published, and an outage that the spool saw nothing of.

mod access;
mod ledger;
mod lists;
mod records;
mod stage;

use std::{
    io::Write,
    time::{Duration, Instant},
};

use clap::Args;
use tokio::time::sleep;

use self::{ledger::Figures, stage::Stage};
use super::{Failure, outside};
use crate::telemetry::{Filters, Metrics};

/// How often a line is printed.
const LINE: Duration = Duration::from_secs(1);
/// How long the last deliveries and the spool may take.
const PATIENCE: Duration = Duration::from_secs(60);

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
}

pub(super) async fn run(
    options: &Options,
    logs: Filters,
    metrics: &Metrics,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let stage = Stage::start(Duration::from_secs(options.token_life.into()), logs, metrics).await?;
    writeln!(out, "{stage}\n").map_err(outside)?;
    let subscribed = stage.subscribed().await?;
    writeln!(
        out,
        "{subscribed} subscriptions made by the worker, each acknowledged; the provider changes {} things a second",
        options.rate
    )
    .map_err(outside)?;
    let (is_listed, listed) = stage.listed(PATIENCE).await;
    writeln!(out, "{listed}").map_err(outside)?;
    writeln!(out, "\n{:>4}  {:<10} {}", "s", "Kafka", Figures::HEAD).map_err(outside)?;

    let third = Duration::from_secs(options.seconds.into()) / 3;
    let begun = Instant::now();
    stage.change(f64::from(options.rate));
    let mut most_spooled = 0;
    for (number, reachable) in [true, false, true].into_iter().enumerate() {
        stage.set_reachable(reachable)?;
        let end = third * (number as u32 + 1);
        while begun.elapsed() < end {
            sleep(LINE.min(end.saturating_sub(begun.elapsed()))).await;
            most_spooled = most_spooled.max(line(&stage, begun, reachable, out)?.spooled);
        }
    }
    stage.change(0.0);
    let settled = stage.settled(PATIENCE).await;
    let figures = line(&stage, begun, true, out)?;

    let verdict = stage.verdict(settled.as_deref().unwrap_or_default()).await?;
    writeln!(out, "\n{verdict}; at most {most_spooled} in the spool").map_err(outside)?;
    let enriched = stage.enriched(PATIENCE).await?;
    writeln!(out, "{enriched}").map_err(outside)?;
    let (runs, standing) = stage.standing(PATIENCE).await;
    writeln!(out, "{standing}").map_err(outside)?;
    let mended = stage.disable_one(PATIENCE).await;
    let told = mended.as_deref().unwrap_or("a subscription that the provider disabled was not enabled again");
    writeln!(out, "{told}").map_err(outside)?;
    let repaired = stage.repaired(PATIENCE).await;
    let state = repaired.as_deref().unwrap_or("open: nothing has mended it in time");
    writeln!(out, "what the gap may have cost was read again: it is {state}").map_err(outside)?;
    let (is_same, compared) = stage.compared(PATIENCE).await;
    writeln!(out, "{compared}").map_err(outside)?;
    stage.stop().await?;
    let is_received = figures.all_in_time() && verdict.holds() && most_spooled > 0;
    let is_mended = mended.is_some() && repaired.is_some();
    let holds = runs && is_listed && is_mended && is_received && enriched.holds() && is_same;
    if holds { Ok(()) } else { Err(Failure::Reported) }
}

fn line(stage: &Stage, begun: Instant, reachable: bool, out: &mut impl Write) -> Result<Figures, Failure> {
    let kafka = if reachable { "there" } else { "cut off" };
    let figures = stage.figures();
    writeln!(out, "{:>4.0}  {kafka:<10} {}", begun.elapsed().as_secs_f64(), figures).map_err(outside)?;
    out.flush().map_err(outside)?;
    Ok(figures)
}
