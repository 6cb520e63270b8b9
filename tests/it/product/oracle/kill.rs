//! Killed at any moment, whatever the broker does: what was acknowledged is there afterwards, in order.
//!
//! Senders go on through all of it. In each cycle the broker gets into some trouble, the worker is killed some time into
//! it, and comes back on its disk, into the trouble or after it. In some of the cycles it has drained its spool before, so
//! that deliveries are on their way to Kafka when the trouble begins; in the others it may not even have found Kafka yet.
//! `TRIBUTARY_TEST_CYCLES_KILL` is the number of kills, `TRIBUTARY_TEST_SEED` says what is drawn.

use std::time::{Duration, Instant};

use super::stage::Stage;
use crate::support::dice::{Dice, seed};
use crate::support::harness::Test;
use crate::support::{Result, cycles};

/// Kills of the gate: one in each class of trouble.
const CYCLES: u32 = 3;
const COMPANIES: u32 = 24;

pub(crate) fn tests() -> Vec<Test> {
    let name = concat!(module_path!(), "::no_acknowledged_delivery_is_lost_or_overtaken_by_any_kill");
    // A cycle takes three seconds, on a machine that does other things ten.
    let limit = 240 + 15 * u64::from(cycles("KILL", CYCLES));
    vec![Test::disturbing(name, no_acknowledged_delivery_is_lost_or_overtaken_by_any_kill).within(limit)]
}

/// What can be the matter with a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Nothing.
    Up,
    /// It is killed, and comes back with its data.
    Down,
    /// Connections stay open and nothing answers.
    Paused,
    /// Everything takes its time.
    Slow,
    /// No connection holds.
    Cut,
    /// It takes records and nobody hears of it.
    Mute,
}

/// Classes of trouble, as a worker sees them: the broker works, cannot be reached, or does not answer in time.
const CLASSES: [&[Trouble]; 3] =
    [&[Trouble::Up], &[Trouble::Down, Trouble::Cut], &[Trouble::Paused, Trouble::Slow, Trouble::Mute]];

/// A trouble of each class, in an order that is drawn.
fn troubles(dice: &mut Dice) -> Vec<Trouble> {
    let mut left = CLASSES.to_vec();
    let mut drawn = Vec::new();
    while !left.is_empty() {
        let class = left.swap_remove(dice.index(left.len()));
        drawn.push(class[dice.index(class.len())]);
    }
    drawn
}

async fn no_acknowledged_delivery_is_lost_or_overtaken_by_any_kill() -> Result<()> {
    let seed = seed();
    let mut dice = Dice(seed);
    let began = Instant::now();
    let mut stage = Stage::start("kill", &[]).await?;
    let senders = stage.senders(COMPANIES);
    stage.until_acknowledged(10 * u64::from(COMPANIES)).await?;

    let (kills, mut planned) = (cycles("KILL", CYCLES), Vec::new());
    for cycle in 0..kills {
        if planned.is_empty() {
            planned = troubles(&mut dice);
        }
        let trouble = planned.pop().unwrap_or(Trouble::Up);
        let (moment, through) = (Duration::from_millis(dice.below(1200)), dice.below(2) == 0);
        if dice.below(3) == 0 {
            stage.until_drained().await?;
        }
        let told = |what: &str, stage: &Stage| {
            stage.worker.error(&format!("seed {seed}, cycle {cycle}, {trouble:?} for {moment:?}: {what}"))
        };
        begin(trouble, &stage, &mut dice)?;
        // No wait for something that happens: the moment of the kill is what is drawn.
        tokio::time::sleep(moment).await;
        stage.worker.kill();
        if !through {
            end(trouble, &mut stage).await?;
        }
        stage.worker.start_again()?;
        let receives = stage.until_acknowledged(u64::from(COMPANIES)).await;
        receives.map_err(|error| told(&error.to_string(), &stage))?;
        if through {
            end(trouble, &mut stage).await?;
        }
    }
    senders.stop().await;
    let verdict = stage.verdict().await?;

    let figures = stage.ledger.figures();
    println!("{kills} kills in {:.0?}, seed {seed}: {verdict}; {figures}", began.elapsed());
    verdict.check();
    assert_eq!(figures.late, 0, "{figures}");
    assert_eq!(figures.improper, 0, "{figures}");
    Ok(())
}

fn begin(trouble: Trouble, stage: &Stage, dice: &mut Dice) -> Result<()> {
    let proxy = stage.broker.proxy()?;
    match trouble {
        Trouble::Up => {}
        Trouble::Down => stage.broker.kill(),
        Trouble::Paused => stage.broker.pause()?,
        Trouble::Slow => proxy.slow(Duration::from_millis(20 + dice.below(500)), 200_000),
        Trouble::Cut => proxy.cut(),
        Trouble::Mute => proxy.stall_responses(),
    }
    Ok(())
}

async fn end(trouble: Trouble, stage: &mut Stage) -> Result<()> {
    match trouble {
        Trouble::Up => {}
        Trouble::Down => stage.broker.restart().await?,
        Trouble::Paused => stage.broker.resume()?,
        Trouble::Slow | Trouble::Cut | Trouble::Mute => stage.broker.proxy()?.heal(),
    }
    Ok(())
}
