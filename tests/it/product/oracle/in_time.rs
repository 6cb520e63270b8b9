//! Every delivery gets the right answer in under five seconds, whichever part is unavailable.
//!
//! `TRIBUTARY_TEST_OUTAGE_SECONDS` makes outages longer than three of the worker's session timeouts.

use std::time::Duration;

use super::ledger::Figures;
use super::senders::Senders;
use super::stage::{ReceiverStage, SESSION};
use crate::support::Result;
use crate::support::tries::Tries;

crate::tests! {
    disturbing every_answer_is_200_in_time_through_an_outage_and_a_restart within 600;
    disturbing every_answer_is_200_in_time_while_the_broker_is_frozen within 600;
    disturbing every_answer_is_200_in_time_while_the_registry_is_away within 600;
    disturbing a_full_spool_is_answered_503_in_time_until_there_is_room within 600;
}

/// Attempts at a case while answers are late only because of lost CPU time. A lost delivery, a wrong answer and one that is late
/// without that excuse fail the first attempt.
const ROUNDS: usize = 3;
const COMPANIES: u32 = 16;
/// Deliveries after which all companies have been received.
const WARM: u64 = 10 * COMPANIES as u64;

async fn every_answer_is_200_in_time_through_an_outage_and_a_restart() -> Result<()> {
    in_time("broker down", down, &[200]).await
}

async fn down() -> Result<Figures> {
    let mut stage = ReceiverStage::start("in-time-down", &[]).await?;
    let senders = warm(&stage).await?;

    stage.broker.kill();
    last(outage() / 2).await;
    stage.restart(async |worker| worker.stop().await).await?;
    stage.until_acknowledged(WARM).await?;
    last(outage() / 2).await;
    stage.broker.restart().await?;
    stage.until_acknowledged(WARM).await?;

    finish("broker down for three sessions, worker restarted", &stage, senders).await
}

async fn every_answer_is_200_in_time_while_the_broker_is_frozen() -> Result<()> {
    in_time("broker frozen", frozen, &[200]).await
}

async fn frozen() -> Result<Figures> {
    let stage = ReceiverStage::start("in-time-frozen", &[]).await?;
    let senders = warm(&stage).await?;

    stage.broker.pause()?;
    last(outage()).await;
    stage.broker.resume()?;
    stage.until_acknowledged(WARM).await?;

    finish("broker frozen", &stage, senders).await
}

async fn every_answer_is_200_in_time_while_the_registry_is_away() -> Result<()> {
    in_time("registry away", registry_away, &[200]).await
}

/// The worker has to publish with cached schema ids: it is started while the registry is away, which stays away until the verdict.
async fn registry_away() -> Result<Figures> {
    let mut stage = ReceiverStage::start("in-time-registry", &[]).await?;
    let senders = warm(&stage).await?;

    stage.registry.cut();
    stage
        .restart(async |worker| {
            worker.kill();
            Ok(())
        })
        .await?;
    stage.until_acknowledged(WARM).await?;

    finish("registry away, worker killed", &stage, senders).await
}

async fn a_full_spool_is_answered_503_in_time_until_there_is_room() -> Result<()> {
    in_time("spool full", full, &[200, 503]).await
}

async fn full() -> Result<Figures> {
    let stage = ReceiverStage::start("in-time-full", &[("spool.limit.bytes", "1048576")]).await?;
    let senders = warm(&stage).await?;

    assert_eq!(stage.ledger.figures().status(503), 0, "refused before the spool was full");
    stage.broker.proxy()?.cut();
    stage.until("refusals", async || stage.ledger.figures().status(503) > WARM).await?;
    stage.broker.proxy()?.heal();
    stage.until_drained().await?;
    let refused = stage.ledger.figures().status(503);
    stage.until_acknowledged(WARM).await?;
    assert_eq!(stage.ledger.figures().status(503), refused, "refused after the spool was drained");

    finish("spool full", &stage, senders).await
}

/// Runs a case until every answer is in time. Every status must be one of `known` each time.
async fn in_time(name: &str, case: impl AsyncFn() -> Result<Figures>, known: &[u16]) -> Result<()> {
    let mut tries = Tries::of(format!("answers in time, {name}"));
    let mut late = Vec::new();
    for _ in 0..ROUNDS {
        let figures = case().await?;
        let is_known = |status: &u16| known.contains(status);
        assert!(figures.statuses.keys().all(is_known), "{name}: not only {known:?}: {figures}");
        assert_eq!(figures.slow, 0, "{name}: late by itself: {figures}");
        if tries.held(figures.late == 0) {
            return Ok(());
        }
        late.push(figures.to_string());
    }
    panic!("{name}: late in each of {ROUNDS} rounds: {late:#?}");
}

/// Waits until deliveries are published without being spooled, so that some are in flight when something breaks.
async fn warm(stage: &ReceiverStage) -> Result<Senders> {
    let senders = stage.senders(COMPANIES);
    stage.until_acknowledged(WARM).await?;
    stage.until_drained().await?;
    stage.until_acknowledged(WARM).await?;
    Ok(senders)
}

/// Ends the senders, judges, and prints the figures. Every delivery that was sent while the worker listened has an answer.
async fn finish(case: &str, stage: &ReceiverStage, senders: Senders) -> Result<Figures> {
    senders.stop().await;
    let verdict = stage.verdict().await?;
    let figures = stage.ledger.figures();
    println!("{case}: worst answer {:.0?}; {figures}; {verdict}", figures.worst());
    verdict.check();
    assert_eq!((figures.unanswered, figures.improper), (0, 0), "{figures}");
    Ok(figures)
}

/// A sleep, because nothing may change for this time.
async fn last(time: Duration) {
    tokio::time::sleep(time).await;
}

fn outage() -> Duration {
    let seconds =
        std::env::var("TRIBUTARY_TEST_OUTAGE_SECONDS").ok().and_then(|text| text.trim().parse().ok());
    seconds.map_or(3 * SESSION, Duration::from_secs).max(3 * SESSION)
}
