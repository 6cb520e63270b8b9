//! The worker dies at each step of a refresh, and only one of these crashes loses a login: after the provider has rotated the
//! token, and before its answer is on the disk or in the topic.
//!
//! Each fail point has its own grant, whose token is due when the worker starts. The refreshed token is valid for an hour, so that no
//! grant is refreshed twice. The last worker recovers all grants at once, after the wait that an open intent requires.

use std::time::Duration;

use futures::future::try_join_all;
use tributary::avro::embedded::EmbeddedRegistry;

use super::kill::now_ms;
use super::scene::{GrantScene, ReportedGrants};
use super::verdict::{GrantHistory, GrantVerdict};
use crate::support::stage::Backend;
use crate::support::{Error, Result, breakable};

crate::tests! {
    disturbing a_grant_is_lost_only_between_rotation_and_first_copy within 240;
}

/// The fail points, which are also the names of the grants. `kept` is last, because the next worker commits the answer that it
/// finds on the disk, and would die at `committed` of the wrong grant.
const FAILPOINTS: [&str; 4] = ["intent", LOST, "committed", "kept"];
/// The fail point that loses a login.
const LOST: &str = "rotated";
/// The wait of an open intent, on a busy machine.
const RECOVERY: Duration = Duration::from_secs(90);

async fn a_grant_is_lost_only_between_rotation_and_first_copy() -> Result<()> {
    let broker = breakable::take().await?;
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let backend = Backend { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    // Short, so that the restarted worker soon owns the grants.
    let properties = [("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "300")];
    let mut scene = GrantScene::start(backend, "grants-places", 1, &properties, |_| {}).await?;
    try_join_all(FAILPOINTS.iter().map(|name| scene.connect(name, &[]))).await?;
    scene.stage.workers[0].kill();

    let (mut logins, mut kills) = (Vec::new(), Vec::new());
    for name in FAILPOINTS {
        // A login needs no worker; the session of the dead one ends meanwhile.
        scene.stage.simulator.provider().turn(|knobs| knobs.identity.access_seconds = 2);
        logins.push(scene.log_in(name).await?);
        scene.stage.simulator.provider().turn(|knobs| knobs.identity.access_seconds = 3_600);
        let begun = now_ms();
        scene.stage.workers[0].start_again_to_die(&format!("grants.{name}")).await?;
        let died = scene.stage.workers[0].dead().await;
        died.map_err(|error| Error(format!("{name}: {error}")))?;
        kills.push((begun, now_ms()));
    }
    scene.stage.workers[0].start_again().await?;
    let is_over = |all: &ReportedGrants| {
        FAILPOINTS.iter().all(|name| {
            all.get(*name).is_some_and(|one| one.state == "lost" || one.state == "ready" && one.serial > 1)
        })
    };
    let reported = scene.until(0, "refreshed or lost", RECOVERY, is_over).await?;
    scene.stage.workers[0].stop().await?;

    let identity = &scene.stage.simulator.provider().identity;
    let (issued, exchanges, written) = (identity.issued(), scene.exchanges(), scene.written().await);
    let books = GrantHistory { issued: &issued, exchanges: &exchanges, kills: &kills };
    let mut verdict = GrantVerdict::default();
    for (name, login) in FAILPOINTS.into_iter().zip(&logins) {
        verdict.add(&books, name, &written[name], &[*login]);
    }
    println!("grants: a worker died at {} fail points of a refresh: {verdict}", FAILPOINTS.len());
    assert!(verdict.faults.is_empty(), "{verdict}");
    assert_eq!((verdict.cut, verdict.lost), (1, 1), "{verdict}");
    let lost: Vec<&str> = FAILPOINTS.into_iter().filter(|name| reported[*name].state == "lost").collect();
    assert_eq!(lost, [LOST]);
    let command = format!("run `tributary auth login accounting --connector {LOST}`");
    let problem = &reported[LOST].problem;
    assert!(problem.contains("never ended") && problem.ends_with(&command), "{problem}");
    Ok(())
}
