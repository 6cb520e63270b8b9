//! A worker that is killed at any moment of its refreshes, and restarted on its disk.
//!
//! Its grants are always being refreshed. The provider rotates refresh tokens, ends a grant whose token is shown twice, and waits
//! before and after the rotation, so that kills fall between intent and rotation, and between rotation and commit. Longer runs
//! sometimes kill the worker again while it recovers. `TRIBUTARY_TEST_CYCLES_GRANTS` is the number of kills, `TRIBUTARY_TEST_SEED`
//! the seed of what is drawn.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use model::Moment;
use simulator::knobs::Latency;

use super::cluster::LIMIT;
use super::scene::{GrantScene, ReportedGrant, ReportedGrants};
use super::verdict::{GrantHistory, GrantVerdict};
use crate::support::dice::{Dice, seed};
use crate::support::{Error, Result, Shared, cycles};

const GRANTS: [&str; 4] = ["north", "east", "south", "west"];
/// Kills of the gate: each interrupts the refreshes of four grants.
const CYCLES: u32 = 1;
/// Longest wait of the provider between rotation and answer; also the longest time from a request to the kill.
const ANSWER_MS: u64 = 400;
/// Longest wait of the provider before it rotates.
const REQUEST_MS: u64 = 150;
/// Beyond [`CYCLES`], one in this many kills is followed by another one within [`SECOND_KILL_MS`], while the worker recovers.
const SECOND_KILL_ONE_IN: u64 = 4;
const SECOND_KILL_MS: u64 = 18_000;
/// A session that has to end, an intent that has to be waited out, and a busy machine.
const RECOVERY: Duration = Duration::from_secs(90);

crate::tests! {
    // A cycle takes twenty seconds.
    real only_a_kill_between_rotation_and_commit_loses_a_grant limit (180 + 90 * u64::from(cycles("GRANTS", CYCLES)));
}

async fn only_a_kill_between_rotation_and_commit_loses_a_grant(shared: &'static Shared) -> Result<()> {
    let (seed, began) = (seed(), Instant::now());
    let mut dice = Dice(seed);
    let mut scene = GrantScene::start(shared, "grants-kill", 1, &[], |settings| {
        settings.knobs.identity.access_seconds = 2;
        settings.knobs.identity.latency = Latency::Uniform { from: 0.0, to: REQUEST_MS as f64 };
        settings.knobs.identity.answer_latency = Latency::Uniform { from: 0.0, to: ANSWER_MS as f64 };
    })
    .await?;
    try_join_all(GRANTS.iter().map(|name| scene.connect(name, &[]))).await?;
    let mut logins: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (name, number) in GRANTS.into_iter().zip(scene.log_in_all(&GRANTS).await?) {
        logins.entry(name).or_default().push(number);
    }
    let (mut kills, mut salvaged) = (Vec::new(), 0);

    for cycle in 0..cycles("GRANTS", CYCLES) {
        let failed = |error: Error| Error(format!("seed {seed}, cycle {cycle}: {error}"));
        refreshed(&scene).await.map_err(failed)?;
        presented(&scene).await;
        // A sleep, because the moment of the kill is what is drawn.
        kill(&mut scene, &mut kills, dice.below(ANSWER_MS)).await.map_err(failed)?;
        if cycle >= CYCLES && dice.below(SECOND_KILL_ONE_IN) == 0 {
            salvaged += salvaged_by(&scene);
            kill(&mut scene, &mut kills, dice.below(SECOND_KILL_MS)).await.map_err(failed)?;
        }
        let after = refreshed(&scene).await.map_err(failed)?;
        salvaged += salvaged_by(&scene);

        let lost: Vec<&str> = GRANTS.into_iter().filter(|name| after[*name].state == "lost").collect();
        for name in &lost {
            let ReportedGrant { problem, .. } = &after[*name];
            let command = format!("run `tributary auth login accounting --connector {name}`");
            assert!(problem.contains("never ended") && problem.ends_with(&command), "{problem}");
        }
        for (name, number) in lost.iter().zip(scene.log_in_all(&lost).await.map_err(failed)?) {
            logins.entry(name).or_default().push(number);
        }
    }
    let is_ready = |reported: &ReportedGrants| GRANTS.iter().all(|name| reported[*name].state == "ready");
    scene.until(0, "ready after the logins", LIMIT, is_ready).await?;
    // An orderly stop waits for refreshes in flight, so that nothing is cut.
    scene.stage.workers[0].stop().await?;

    let identity = &scene.stage.simulator.provider().identity;
    let (issued, exchanges, written) = (identity.issued(), scene.exchanges(), scene.written().await);
    let books = GrantHistory { issued: &issued, exchanges: &exchanges, kills: &kills };
    let mut verdict = GrantVerdict::default();
    for (name, logins) in &logins {
        verdict.add(&books, name, &written[*name], logins);
    }
    let samples = kills.len() * GRANTS.len();
    println!(
        "grants: {} kills of {} grants in {:.0?}, seed {seed}: {verdict}, {salvaged} answers found on the disk",
        kills.len(),
        GRANTS.len(),
        began.elapsed()
    );
    assert!(verdict.faults.is_empty(), "seed {seed}, kills at {kills:?}: {verdict}");
    assert!(verdict.refreshes >= samples, "{verdict}");
    Ok(())
}

/// Kills the worker after `after_ms`, notes when, and starts it again.
async fn kill(scene: &mut GrantScene, kills: &mut Vec<(i64, i64)>, after_ms: u64) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(after_ms)).await;
    let begun = now_ms();
    scene.stage.workers[0].kill();
    kills.push((begun, now_ms()));
    scene.stage.workers[0].start_again().await
}

/// Answers that the present worker has found on its disk and written to the topic.
fn salvaged_by(scene: &GrantScene) -> usize {
    scene.stage.workers[0].said().matches("found an answer of the provider").count()
}

/// Waits until the present worker has refreshed each grant once more, or it is lost.
async fn refreshed(scene: &GrantScene) -> Result<ReportedGrants> {
    let is_known = |reported: &ReportedGrants| {
        GRANTS.iter().all(|name| reported.get(*name).is_some_and(|one| one.state != "unread"))
    };
    let before = scene.until(0, "known", RECOVERY, is_known).await?;
    let is_refreshed = |reported: &ReportedGrants| {
        GRANTS.iter().all(|name| {
            let (before, now) = (&before[*name], &reported[*name]);
            now.state == "lost" || now.state == "ready" && now.serial > before.serial
        })
    };
    scene.until(0, "refreshed", RECOVERY, is_refreshed).await
}

/// Waits until the provider is shown another token.
async fn presented(scene: &GrantScene) {
    let identity = &scene.stage.simulator.provider().identity;
    let before = identity.exchange_count();
    while identity.exchange_count() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> i64 {
    Moment::now().micros() / 1_000
}
