//! A broker outage: tasks end with their lease, and resume by themselves.

use std::time::Instant;

use tributary::{connect::supervisor::Settings, state::statuses::RunState};

use super::cluster::WorkerGroup;
use super::worker::LocalWorker;
use crate::support::{Result, breakable};

crate::tests! {
    disturbing tasks_end_with_their_lease_in_an_outage_and_resume_after_it within 180;
    disturbing a_cut_off_worker_is_replaced_and_writes_nothing_more within 180;
}

async fn tasks_end_with_their_lease_in_an_outage_and_resume_after_it() -> Result<()> {
    let mut broker = breakable::take().await?;
    let cluster = WorkerGroup::create(&broker.bootstrap(), "outage-lease").await;
    let worker = LocalWorker::start(&cluster.config, "alone:1", Settings::default()).await;
    cluster.create_connector("lasts", &[("tasks.max", "2")]).await;
    cluster.until_running("lasts", 2).await;
    cluster.until_counted("lasts", 0, 5).await;

    broker.kill();
    worker.until("nothing runs without a lease", |running| running.is_empty()).await;
    // The status topic cannot be written and still shows RUNNING; this worker knows that the tasks have ended.
    let ended = |task| worker.handle.ended("lasts", Some(task), &cluster.task("lasts", task));
    assert_eq!(cluster.task("lasts", 0).state, RunState::Running);
    assert!(ended(0) && ended(1));
    broker.restart().await?;
    let begun = Instant::now();
    worker
        .until("all runs again", |running| {
            running.len() == 3 && running.iter().all(|one| one.state == RunState::Running)
        })
        .await;

    assert!(!ended(0) && !ended(1), "their new statuses count");
    println!("{} ms after the broker was back its tasks ran again", begun.elapsed().as_millis());
    cluster.until_counted("lasts", 0, 5).await;
    cluster.until_counted("lasts", 1, 5).await;
    cluster.until_running("lasts", 2).await;
    worker.stop().await;
    cluster.check_numbers("lasts").await;
    Ok(())
}

async fn a_cut_off_worker_is_replaced_and_writes_nothing_more() -> Result<()> {
    let broker = breakable::take().await?;
    let past_proxy = broker.bootstrap_past_proxy();
    let cluster = WorkerGroup::create(&past_proxy, "outage-cut-off").await;
    let behind = super::cluster::config(&broker.bootstrap(), &cluster.prefix);
    let cut_off = LocalWorker::start(&behind, "cut-off:1", Settings::default()).await;
    cluster.create_connector("moves", &[("tasks.max", "2")]).await;
    cluster.until_running("moves", 2).await;
    cluster.until_counted("moves", 0, 5).await;
    assert_eq!(cluster.task("moves", 0).worker_id, "cut-off:1");

    broker.proxy()?.stall();
    let successor = LocalWorker::start(&cluster.config, "successor:2", Settings::default()).await;
    cut_off.until("nothing runs without a lease", |running| running.is_empty()).await;
    let replaced = |statuses: &tributary::state::statuses::Statuses| {
        let tasks = statuses.tasks("moves");
        tasks.len() == 2
            && tasks.values().all(|one| one.state == RunState::Running && one.worker_id == "successor:2")
    };
    cluster.until("the successor runs all", replaced).await;
    cluster.until_counted("moves", 0, 5).await;
    broker.proxy()?.heal();

    // Back in the group it gets its share, under higher claims.
    cut_off.until("it runs tasks again", |running| !running.is_empty()).await;
    cluster.until_running("moves", 2).await;
    cluster.until_counted("moves", 0, 5).await;
    cluster.until_counted("moves", 1, 5).await;
    cut_off.stop().await;
    successor.stop().await;
    cluster.check_numbers("moves").await;
    Ok(())
}
