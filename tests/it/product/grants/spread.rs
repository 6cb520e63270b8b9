//! Several workers and many grants: one worker refreshes each grant, and another takes over when it dies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join_all;
use kafka::partition_of;
use tokio::time::{Instant, sleep};

use super::kill::now_ms;
use super::scene::{CommittedGrant, GrantScene, ReportedGrants};
use super::verdict::{GrantHistory, GrantVerdict};
use crate::support::{Error, Result, Shared};

crate::tests! {
    real one_of_three_workers_refreshes_each_grant_until_it_dies within 300;
}

const WORKERS: usize = 3;
const GRANTS: i32 = 6;
/// Lifetime of an access token in seconds: it is refreshed after three quarters of that.
const LIFE: u64 = 8;
/// Refreshes of each grant that are observed before the kill.
const ROUNDS: u64 = 2;
/// Workers join and leave meanwhile, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(50);

async fn one_of_three_workers_refreshes_each_grant_until_it_dies(shared: &'static Shared) -> Result<()> {
    let partitions = GRANTS.to_string();
    let properties = [("work.storage.partitions", &*partitions), ("grant.storage.partitions", "3")];
    let mut scene = GrantScene::start(shared, "grants-spread", WORKERS, &properties, |settings| {
        settings.knobs.identity.access_seconds = LIFE;
    })
    .await?;
    let names = names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    try_join_all(names.iter().map(|name| scene.connect(name, &[]))).await?;
    let logins: BTreeMap<&str, u64> = names.iter().copied().zip(scene.log_in_all(&names).await?).collect();
    // No worker joins or leaves from here on, so that grants keep their owners.
    let settled = refreshed(&scene, &names, 1).await?;
    refreshed(&scene, &names, ROUNDS).await?;

    let owners = owners(&scene.written().await, |written, name| written.grant.serial > settled[name].serial);
    assert!(owners.values().all(|owners| owners.len() == 1), "{owners:?}");
    let by_worker = owners.iter().fold(BTreeMap::<&str, usize>::new(), |mut by, (_, owners)| {
        *by.entry(owners.first().unwrap()).or_default() += 1;
        by
    });
    assert_eq!(by_worker.values().copied().collect::<Vec<_>>(), [2; WORKERS], "{owners:?}");

    // Killed while none of its refreshes is in flight, so that no token is lost.
    let (victim, id) = (0, worker_id(&scene, 0)?);
    let theirs: Vec<&str> = names.iter().copied().filter(|name| owners[*name].contains(&id)).collect();
    quiet(&scene, &theirs).await?;
    let died = now_ms();
    scene.stage.workers[victim].kill();
    let kills = [(died, now_ms())];
    scene.stage.workers.swap(0, 1);
    let begun = Instant::now();
    let after = refreshed(&scene, &names, 1).await?;
    let recovered = begun.elapsed();

    assert!(after.values().all(|one| one.state == "ready"), "{after:?}");
    for worker in [0, 2] {
        scene.stage.workers[worker].stop().await?;
    }
    let written = scene.written().await;
    let heirs = self::owners(&written, |written, _| written.at_ms > kills[0].1);
    assert!(theirs.iter().all(|name| !heirs[*name].contains(&id)), "{id} is dead: {heirs:?}");
    let identity = &scene.stage.simulator.provider().identity;
    let (issued, exchanges) = (identity.issued(), scene.exchanges());
    let books = GrantHistory { issued: &issued, exchanges: &exchanges, kills: &kills };
    let mut verdict = GrantVerdict::default();
    for (name, login) in &logins {
        verdict.add(&books, name, &written[*name], &[*login]);
    }
    println!(
        "grants: {WORKERS} workers, {GRANTS} grants, one killed, all refreshed after {recovered:.0?}: {verdict}"
    );
    assert_eq!((verdict.faults.len(), verdict.cut, verdict.again), (0, 0, 0), "{verdict}");
    Ok(())
}

/// One grant for each partition of the work topic, so that every worker has as many; they cover all partitions of the grants topic.
fn names() -> Vec<String> {
    let named = |partition: i32| {
        let names = (0..).map(|number| format!("grant-{number}"));
        let mut fitting = names.filter(|name| {
            partition_of(format!("grant/{name}").as_bytes(), GRANTS) == partition
                && partition_of(name.as_bytes(), 3) == partition % 3
        });
        fitting.next().unwrap()
    };
    (0..GRANTS).map(named).collect()
}

/// Waits until each grant has been refreshed `times` more.
async fn refreshed(scene: &GrantScene, names: &[&str], times: u64) -> Result<ReportedGrants> {
    let is_known = |reported: &ReportedGrants| {
        names.iter().all(|name| reported.get(*name).is_some_and(|one| one.state == "ready"))
    };
    let before = scene.until(0, "known", LIMIT, is_known).await?;
    let is_refreshed = |reported: &ReportedGrants| {
        names.iter().all(|name| {
            let (before, now) = (&before[*name], &reported[*name]);
            now.state == "lost" || now.serial >= before.serial + times
        })
    };
    scene.until(0, "refreshed", LIMIT, is_refreshed).await
}

/// Waits until none of these grants is being refreshed, with most of the lifetime of their tokens left.
async fn quiet(scene: &GrantScene, names: &[&str]) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let written = scene.written().await;
        let is_quiet = names.iter().all(|name| {
            let last = &written[*name].last().unwrap().grant;
            let left = last.tokens().unwrap().access_expires_ms - now_ms();
            last.intent().is_none() && left > i64::try_from(LIFE).unwrap() * 1_000 / 2
        });
        if is_quiet {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(Error(format!("{names:?} are always being refreshed")));
        }
        sleep(STEP).await;
    }
}

/// The workers that started refreshes of each grant, by the records that `is_counted` selects.
fn owners(
    written: &BTreeMap<String, Vec<CommittedGrant>>,
    is_counted: impl Fn(&CommittedGrant, &str) -> bool,
) -> BTreeMap<String, BTreeSet<String>> {
    let begun = |(name, written): (&String, &Vec<CommittedGrant>)| {
        let written = written.iter().filter(|one| is_counted(one, name));
        let owners = written.filter_map(|one| Some(one.grant.intent()?.origin.worker.clone())).collect();
        (name.clone(), owners)
    };
    written.iter().map(begun).collect()
}

/// The id of a worker, as others know it.
fn worker_id(scene: &GrantScene, worker: usize) -> Result<String> {
    let said = scene.stage.workers[worker].said();
    let line = said.lines().find_map(|line| line.split_once(" listens on "));
    let (id, _) = line.ok_or_else(|| scene.stage.workers[worker].error("it does not say who it is"))?;
    Ok(id.rsplit(' ').next().unwrap_or(id).to_owned())
}
