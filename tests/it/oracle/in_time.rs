//! Always answered, always in time: whatever is away, a delivery gets its answer in under five seconds, and the right one.
//!
//! `TRIBUTARY_TEST_OUTAGE_SECONDS` makes outages longer than three of the worker's session timeouts.

use std::time::Duration;

use super::ledger::Figures;
use super::senders::Senders;
use super::stage::{SESSION, Stage};
use crate::support::Result;

crate::tests! {
    disturbing every_answer_is_200_in_time_while_the_broker_is_down_for_three_sessions_and_the_worker_restarts within 600;
    disturbing every_answer_is_200_in_time_while_the_broker_is_frozen within 600;
    disturbing every_answer_is_200_in_time_and_events_flow_while_the_registry_is_away within 600;
    disturbing a_full_spool_is_answered_503_in_time_until_there_is_room_again within 600;
}

const COMPANIES: u32 = 16;
/// Deliveries that show that all companies are received.
const WARM: u64 = 10 * COMPANIES as u64;

async fn every_answer_is_200_in_time_while_the_broker_is_down_for_three_sessions_and_the_worker_restarts()
-> Result<()> {
    let mut stage = Stage::start("in-time-down", &[]).await?;
    let senders = warm(&stage).await?;

    stage.broker.kill();
    last(outage() / 2).await;
    stage.restart(async |worker| worker.stop().await).await?;
    stage.until_acknowledged(WARM).await?;
    last(outage() / 2).await;
    stage.broker.restart().await?;
    stage.until_acknowledged(WARM).await?;

    only_200(&finish("broker down for three sessions, worker restarted", &stage, senders).await?);
    Ok(())
}

async fn every_answer_is_200_in_time_while_the_broker_is_frozen() -> Result<()> {
    let stage = Stage::start("in-time-frozen", &[]).await?;
    let senders = warm(&stage).await?;

    stage.broker.pause()?;
    last(outage()).await;
    stage.broker.resume()?;
    stage.until_acknowledged(WARM).await?;

    only_200(&finish("broker frozen", &stage, senders).await?);
    Ok(())
}

/// The worker has to publish with what it remembers of the registry: it is started while that is away, and the registry does
/// not come back before the verdict.
async fn every_answer_is_200_in_time_and_events_flow_while_the_registry_is_away() -> Result<()> {
    let mut stage = Stage::start("in-time-registry", &[]).await?;
    let senders = warm(&stage).await?;

    stage.registry.cut();
    stage
        .restart(async |worker| {
            worker.kill();
            Ok(())
        })
        .await?;
    stage.until_acknowledged(WARM).await?;

    only_200(&finish("registry away, worker killed", &stage, senders).await?);
    Ok(())
}

async fn a_full_spool_is_answered_503_in_time_until_there_is_room_again() -> Result<()> {
    let stage = Stage::start("in-time-full", &[("spool.limit.bytes", "1048576")]).await?;
    let senders = warm(&stage).await?;

    stage.broker.proxy()?.cut();
    stage.until("refusals", async || stage.ledger.figures().status(503) > WARM).await?;
    stage.broker.proxy()?.heal();
    stage.until_acknowledged(WARM).await?;

    let figures = finish("spool full", &stage, senders).await?;
    let known = [200, 503];
    assert!(figures.statuses.keys().all(|status| known.contains(status)), "{figures}");
    Ok(())
}

/// Deliveries flow straight to Kafka, and are on their way there when something breaks.
async fn warm(stage: &Stage) -> Result<Senders> {
    let senders = stage.senders(COMPANIES);
    stage.until_acknowledged(WARM).await?;
    stage.until_drained().await?;
    stage.until_acknowledged(WARM).await?;
    Ok(senders)
}

/// Ends the senders, judges, and prints the figures. Whatever was sent while the worker listened has an answer.
async fn finish(case: &str, stage: &Stage, senders: Senders) -> Result<Figures> {
    senders.stop().await;
    let verdict = stage.verdict().await?;
    let figures = stage.ledger.figures();
    println!("{case}: worst answer {:.0?}; {figures}; {verdict}", figures.worst());
    verdict.check();
    assert_eq!((figures.unanswered, figures.late, figures.improper), (0, 0, 0), "{figures}");
    Ok(figures)
}

fn only_200(figures: &Figures) {
    assert!(figures.statuses.keys().eq([&200]), "{figures}");
}

/// No wait for something that happens: for so long nothing is to change.
async fn last(time: Duration) {
    tokio::time::sleep(time).await;
}

fn outage() -> Duration {
    let seconds =
        std::env::var("TRIBUTARY_TEST_OUTAGE_SECONDS").ok().and_then(|text| text.trim().parse().ok());
    seconds.map_or(3 * SESSION, Duration::from_secs).max(3 * SESSION)
}
