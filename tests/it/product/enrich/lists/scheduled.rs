//! Payroll by schedule: it has no webhooks, so its changes are found only in its list.

use std::collections::BTreeMap;

use model::{List, Moment, Run, RunId, RunKind, Topic};
use simulator::catalog::{Kind, Resource};

use super::super::evidence;
use super::super::scene::{EnrichScene, Options, PARTITIONS, RECORDS};
use super::{payroll, sum};
use crate::support::{Error, Result, Shared};

crate::tests! {
    real scheduled_payroll_misses_nothing_through_a_crash within 480;
}

const COMPANIES: u32 = 80;
/// Who requests the runs.
const SCHEDULE: &str = "schedule-payroll";

async fn scheduled_payroll_misses_nothing_through_a_crash(shared: &'static Shared) -> Result<()> {
    let options = Options {
        resources: &[Resource::Customers],
        properties: &[("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "300")],
        settings: &[
            ("tasks.max", "1"),
            ("snapshot.mode", "initial"),
            ("snapshot.lists", "payroll"),
            ("payroll.incremental.schedule", "* * * * *"),
            ("page.size", "7"),
        ],
        ..Options::default()
    };
    let mut scene = EnrichScene::start(shared.into(), "lists-scheduled", options, |settings| {
        (settings.world.companies, settings.world.payroll_companies) = (2, COMPANIES);
    })
    .await?;
    assert_eq!(requested(&scene).await?, BTreeMap::new(), "there is no login for payroll");
    scene.stage.login_for("payroll", RECORDS).await?;
    let initial = scene.until_over("initial").await?;
    assert_eq!(sum(&initial, "certified"), PARTITIONS as u64, "{initial:#?}");

    // Changes arrive without a request, and no certificate is replaced by less.
    let changed_at = change(&scene);
    until_published(&scene).await?;
    let first = until_incremental(&scene, changed_at).await?;
    assert_eq!(sum(&scene.until_over(first.as_str()).await?, "certified"), 0, "the filter was not used");
    let certificates = scene.certificates().await?;
    assert_eq!(certificates.len(), PARTITIONS as usize);
    assert!(certificates.values().all(|one| one.certified), "{certificates:#?}");

    // The worker dies in the middle of an incremental run. Meanwhile pages change that the run has read.
    scene.stage.workers[0].kill();
    change(&scene);
    scene.stage.workers[0].start_again_to_die("lists.payroll.marked:3").await?;
    scene.stage.reach(0)?;
    scene.until("dead in the middle of a run", async || Ok(!scene.stage.workers[0].runs())).await?;
    let mut open = Vec::new();
    for run in requested(&scene).await?.into_values() {
        if !scene.is_over(run.id.as_str()).await? {
            open.push(run);
        }
    }
    let is_incremental = |run: &Run| run.incremental && run.requested_by == SCHEDULE;
    assert!(open.len() == 1 && open.iter().all(is_incremental), "{open:#?}");
    change(&scene);
    scene.stage.workers[0].start_again().await?;
    scene.stage.reach(0)?;
    until_published(&scene).await?;

    // The proof comes from a full run.
    let whole = scene.run("whole", RunKind::Snapshot, &[List::Payroll]).await?;
    let verified = scene.run("verified", RunKind::Verify, &[List::Payroll]).await?;

    let runs = requested(&scene).await?;
    println!("lists, scheduled: {:?}", runs.keys().map(RunId::as_str).collect::<Vec<_>>());
    for run in [&whole, &verified] {
        let proved = (sum(run, "published"), sum(run, "certified"));
        assert_eq!(proved, (0, PARTITIONS as u64), "{run:#?}");
        assert!(run.iter().all(|shard| shard["differences"].is_null()), "{run:#?}");
    }
    let by_others = runs.values().filter(|run| run.requested_by != SCHEDULE);
    let by_others: Vec<&str> = by_others.map(|run| run.id.as_str()).collect();
    assert_eq!(by_others, ["initial", "verified", "whole"], "nothing else was requested");
    Ok(())
}

/// Changes every payroll company, so that page 1 can check the filter, and adds one; the time before.
fn change(scene: &EnrichScene) -> i64 {
    let before = Moment::now().micros();
    scene.provider().change(|world, clock| {
        for index in 0..COMPANIES {
            assert!(world.act_payroll(Some(index), Kind::Updated, clock).is_some());
        }
        assert!(world.act_payroll(None, Kind::Created, clock).is_some());
        ((), Vec::new())
    });
    before
}

/// Waits until the topic shows each payroll company as the provider has it.
async fn until_published(scene: &EnrichScene) -> Result<()> {
    let truth = payroll::truth(scene);
    scene
        .until("payroll published", async || Ok(payroll::last(&payroll::published(scene).await?) == truth))
        .await
}

/// Waits for the end of an incremental run of the schedule that was requested after this time; its id.
async fn until_incremental(scene: &EnrichScene, after: i64) -> Result<RunId> {
    let mut found = None;
    scene
        .until("an incremental run over", async || {
            for run in requested(scene).await?.into_values() {
                let is_later = run.incremental && run.requested_by == SCHEDULE && run.requested_at > after;
                if is_later && scene.is_over(run.id.as_str()).await? {
                    found = Some(run.id);
                }
            }
            Ok(found.is_some())
        })
        .await?;
    found.ok_or_else(|| Error("no incremental run".to_owned()))
}

/// All requested runs, from the state topic: it can be read while no worker runs.
async fn requested(scene: &EnrichScene) -> Result<BTreeMap<RunId, Run>> {
    let mut found = BTreeMap::new();
    for record in evidence::read(scene, &scene.topic(Topic::State)).await? {
        let (Some(key), Some(value)) = (&record.key, &record.value) else { continue };
        if key.starts_with(format!("{}/", Run::KIND).as_bytes()) {
            let run: Run = serde_json::from_slice(value).unwrap();
            found.insert(run.id.clone(), run);
        }
    }
    Ok(found)
}
