//! Several workers that join, leave, die and freeze.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tributary::state::statuses::{RunState, Statuses};

use super::cluster::WorkerGroup;
use super::worker::WorkerProcess;
use crate::support::topics::LIMIT;
use crate::support::tries::Tries;
use crate::support::{Result, Shared, cycles, lost};

crate::tests! {
    real tasks_spread_over_workers_and_move_at_once_when_one_leaves within 180;
    real tasks_of_a_killed_worker_run_elsewhere_within_its_session within 240;
    real kills_and_freezes_keep_one_instance_and_each_number_once within 600;
}

const TASKS: u32 = 6;
/// The session, and the time to rebalance and start the tasks.
const TAKEOVER: Duration = Duration::from_secs(6 + 5);
/// Less than a session, which only the tasks of a crashed worker wait for.
const AT_ONCE: Duration = Duration::from_secs(6);
/// Attempts: a busy machine may slow one of them down; a real fault slows each.
const ROUNDS: usize = 2;

/// Whether every task runs, on one of these workers.
fn run_on<'a>(names: &'a [&'a str], workers: &'a [&'a WorkerProcess]) -> impl Fn(&Statuses) -> bool + 'a {
    move |statuses| {
        let runs = |name: &&str| {
            let tasks = statuses.tasks(name);
            let on_them = |id: &str| workers.iter().any(|worker| worker.id == id);
            tasks.len() == TASKS as usize
                && tasks.values().all(|one| one.state == RunState::Running && on_them(&one.worker_id))
        };
        names.iter().all(runs)
    }
}

/// Whether every task runs, and each of these workers has some.
fn spread_over<'a>(name: &'a str, workers: &'a [&'a WorkerProcess]) -> impl Fn(&Statuses) -> bool + 'a {
    move |statuses| {
        let on: BTreeSet<_> = statuses.tasks(name).values().map(|one| &one.worker_id).collect();
        run_on(&[name], workers)(statuses) && on.len() == workers.len()
    }
}

/// Waits until every task runs in exactly one of these workers, as the workers report it: the status topic has one record for each
/// task, however many run.
async fn until_each_runs_once(names: &[&str], workers: &[WorkerProcess]) -> Result<()> {
    let each = |name| (0..TASKS).map(move |task| format!("{name}/{task}"));
    let wanted: Vec<String> = names.iter().flat_map(each).collect();
    let begun = Instant::now();
    loop {
        let mut running = Vec::new();
        for worker in workers {
            running.extend(worker.running().await?);
        }
        running.sort();
        if running == wanted {
            return Ok(());
        }
        assert!(lost::fair(begun) < LIMIT, "not every task runs once:\n{running:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn tasks_spread_over_workers_and_move_at_once_when_one_leaves(shared: &'static Shared) -> Result<()> {
    move_tasks(shared, "together-leave", false, AT_ONCE).await
}

async fn tasks_of_a_killed_worker_run_elsewhere_within_its_session(shared: &'static Shared) -> Result<()> {
    move_tasks(shared, "together-kill", true, TAKEOVER).await
}

/// Kills or stops one of two workers, whose tasks have to run elsewhere within this time.
async fn move_tasks(shared: &Shared, name: &str, is_killed: bool, limit: Duration) -> Result<()> {
    let cluster = WorkerGroup::create(shared.bootstrap(), name).await;
    let mut victim = WorkerProcess::start(&cluster, "one:1").await?;
    let other = WorkerProcess::start(&cluster, "two:2").await?;
    cluster.create_connector("spread", &[("tasks.max", "6")]).await;
    let ended = if is_killed { "was killed" } else { "left" };
    let mut tries = Tries::of(format!("tasks of a worker that {ended} run elsewhere in time"));
    let mut moved = Vec::new();
    loop {
        cluster.until("both have some", spread_over("spread", &[&victim, &other])).await;
        for task in 0..TASKS {
            cluster.until_counted("spread", task, 5).await;
        }

        let begun = Instant::now();
        if is_killed {
            victim.kill();
        } else {
            victim.stop().await?;
        }
        cluster.until("the other has all", run_on(&["spread"], &[&other])).await;
        let took = begun.elapsed();

        println!("after a worker {ended}, its tasks ran elsewhere in {} ms", took.as_millis());
        moved.push(took);
        for task in 0..TASKS {
            cluster.until_counted("spread", task, 5).await;
        }
        if tries.held(took < limit) {
            break;
        }
        assert!(moved.len() < ROUNDS, "it took {moved:?}");
        victim = WorkerProcess::start(&cluster, "three:3").await?;
    }
    other.stop().await?;
    assert_eq!(cluster.check_numbers("spread").await.len(), TASKS as usize);
    Ok(())
}

async fn kills_and_freezes_keep_one_instance_and_each_number_once(shared: &'static Shared) -> Result<()> {
    let cluster = WorkerGroup::create(shared.bootstrap(), "together-churn").await;
    let names = ["a", "b"];
    let mut workers = Vec::new();
    for number in 0..3 {
        workers.push(WorkerProcess::start(&cluster, &format!("worker-{number}:1")).await?);
    }
    for name in names {
        cluster.create_connector(name, &[("tasks.max", "6")]).await;
    }
    cluster.until("all run", run_on(&names, &workers.iter().collect::<Vec<_>>())).await;

    for cycle in 0..cycles("MOVES", 2) as usize {
        let victim = workers.remove(0);
        let others: Vec<&WorkerProcess> = workers.iter().collect();
        if cycle % 2 == 0 {
            victim.kill();
            cluster.until("the others have all", run_on(&names, &others)).await;
            workers.push(WorkerProcess::start(&cluster, &format!("worker-{}:1", cycle + 3)).await?);
        } else {
            victim.freeze()?;
            cluster.until("the others have all", run_on(&names, &others)).await;
            // The running workers handle a restart that is requested while it is frozen.
            cluster.restart("a", true, false, None).await;
            victim.thaw()?;
            workers.push(victim);
        }
        for name in names {
            for task in 0..TASKS {
                cluster.until_counted(name, task, 5).await;
            }
        }
        until_each_runs_once(&names, &workers).await?;
    }

    let all: Vec<&WorkerProcess> = workers.iter().collect();
    cluster.until("all run", run_on(&names, &all)).await;
    for worker in &workers {
        worker.stop().await?;
    }
    for name in names {
        let counts = cluster.check_numbers(name).await;
        assert_eq!(counts.len(), TASKS as usize);
        for task in 0..TASKS {
            assert_eq!(counts[&format!("{name}/{task}")], cluster.count(name, task), "{name}-{task}");
        }
    }
    Ok(())
}
