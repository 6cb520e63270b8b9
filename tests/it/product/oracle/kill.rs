//! A worker that is killed at any moment, in any trouble of the broker: acknowledged deliveries are in the topic afterwards, in order.
//!
//! Senders never pause. In each cycle the broker gets into some trouble, the worker is killed some time into it, and restarts on its
//! disk, during the trouble or after it. In some cycles it has drained its spool before, so that deliveries are in flight to Kafka
//! when the trouble begins; in the others it may not even have connected to Kafka yet. `TRIBUTARY_TEST_CYCLES_KILL` is the number of
//! kills, `TRIBUTARY_TEST_SEED` the seed of what is drawn.

use std::time::{Duration, Instant};

use super::stage::ReceiverStage;
use crate::support::dice::{Dice, seed};
use crate::support::{Result, cycles};

/// Kills of the gate: one in each class of trouble.
const CYCLES: u32 = 3;
const COMPANIES: u32 = 24;

crate::tests! {
    // A cycle takes three seconds, on a busy machine ten.
    disturbing no_acknowledged_delivery_is_lost_or_overtaken_by_any_kill limit (240 + 15 * u64::from(cycles("KILL", CYCLES)));
}

/// The state of the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BrokerTrouble {
    /// No trouble.
    Up,
    /// It is killed, and restarts with its data.
    Down,
    /// Connections stay open and nothing answers.
    Paused,
    /// The connection is slow.
    Slow,
    /// Every connection is closed at once.
    Cut,
    /// It takes records, and its answers are held.
    Mute,
}

/// Classes of trouble, as a worker sees them: the broker works, cannot be reached, or does not answer in time.
const CLASSES: [&[BrokerTrouble]; 3] = [
    &[BrokerTrouble::Up],
    &[BrokerTrouble::Down, BrokerTrouble::Cut],
    &[BrokerTrouble::Paused, BrokerTrouble::Slow, BrokerTrouble::Mute],
];

/// A trouble of each class, in drawn order.
fn troubles(dice: &mut Dice) -> Vec<BrokerTrouble> {
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
    let mut stage = ReceiverStage::start("kill", &[]).await?;
    let senders = stage.senders(COMPANIES);
    stage.until_acknowledged(10 * u64::from(COMPANIES)).await?;

    let (kills, mut planned) = (cycles("KILL", CYCLES), Vec::new());
    for cycle in 0..kills {
        if planned.is_empty() {
            planned = troubles(&mut dice);
        }
        let trouble = planned.pop().unwrap_or(BrokerTrouble::Up);
        let (moment, through) = (Duration::from_millis(dice.below(1200)), dice.below(2) == 0);
        if dice.below(3) == 0 {
            stage.until_drained().await?;
        }
        let failed = |what: &str, stage: &ReceiverStage| {
            stage.worker.error(&format!("seed {seed}, cycle {cycle}, {trouble:?} for {moment:?}: {what}"))
        };
        begin(trouble, &stage, &mut dice)?;
        // A sleep, because the moment of the kill is what is drawn.
        tokio::time::sleep(moment).await;
        stage.worker.kill();
        if !through {
            end(trouble, &mut stage).await?;
        }
        stage.worker.start_again()?;
        let receives = stage.until_acknowledged(u64::from(COMPANIES)).await;
        receives.map_err(|error| failed(&error.to_string(), &stage))?;
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

fn begin(trouble: BrokerTrouble, stage: &ReceiverStage, dice: &mut Dice) -> Result<()> {
    let proxy = stage.broker.proxy()?;
    match trouble {
        BrokerTrouble::Up => {}
        BrokerTrouble::Down => stage.broker.kill(),
        BrokerTrouble::Paused => stage.broker.pause()?,
        BrokerTrouble::Slow => proxy.slow(Duration::from_millis(20 + dice.below(500)), 200_000),
        BrokerTrouble::Cut => proxy.cut(),
        BrokerTrouble::Mute => proxy.stall_responses(),
    }
    Ok(())
}

async fn end(trouble: BrokerTrouble, stage: &mut ReceiverStage) -> Result<()> {
    match trouble {
        BrokerTrouble::Up => {}
        BrokerTrouble::Down => stage.broker.restart().await?,
        BrokerTrouble::Paused => stage.broker.resume()?,
        BrokerTrouble::Slow | BrokerTrouble::Cut | BrokerTrouble::Mute => stage.broker.proxy()?.heal(),
    }
    Ok(())
}
