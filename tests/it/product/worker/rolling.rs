//! Three workers restarted one after the other under load, and bursts of changes on them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use serde_json::json;

use super::process::{LIMIT, Topics, Worker, client, numbers};
use crate::support::tries::Tries;
use crate::support::{Result, Shared};

crate::tests! {
    real a_rolling_restart_answers_every_accepted_request within 420;
    real a_burst_of_creations_succeeds_on_one_and_three_workers within 420;
}

/// Answers of a worker that is still starting.
const STARTING: [&str; 2] = ["Worker is still starting up", "this worker is starting"];
/// On a busy machine some creations may be too late; if that happens in every round, the machine is not the cause.
const ROUNDS: usize = 3;

/// Counts of one client.
#[derive(Debug, Default)]
struct Seen {
    done: usize,
    closed: usize,
    /// Answers of a worker that starts longer than a request waits.
    starting: usize,
    /// Kafka Connect's answer on concurrent writes; the client retries.
    conflicts: usize,
    other: Vec<String>,
}

async fn a_rolling_restart_answers_every_accepted_request(shared: &'static Shared) -> Result<()> {
    let topics = Topics::new(shared.bootstrap(), "worker-rolling");
    // Start one first, so that three do not create the topics at once and this measures only restarts.
    let mut workers = vec![Worker::start(&topics, &[]).await?];
    workers.extend(try_join_all([Worker::start(&topics, &[]), Worker::start(&topics, &[])]).await?);
    let over = AtomicBool::new(false);
    let changes = [const { AtomicUsize::new(0) }; 3];
    let clients: Vec<_> = (0..)
        .zip(workers.iter().zip(&changes))
        .map(|(number, (worker, changes))| load(number, worker.url.clone(), &topics, changes, &over))
        .collect();
    let restarts = async {
        let restarted = restart_all(&mut workers, &topics, &changes).await;
        over.store(true, Ordering::Relaxed);
        restarted
    };

    let (seen, restarted) = tokio::join!(join_all(clients), restarts);

    restarted?;
    println!("rolling restart: {seen:?}");
    assert!(seen.iter().all(|one| one.other.is_empty()), "{seen:?}");
    // On a busy machine a writer may lose to two others for as long as a request waits, but rarely.
    let (done, conflicts) =
        seen.iter().fold((0, 0), |(done, conflicts), one| (done + one.done, conflicts + one.conflicts));
    assert!(conflicts * 50 <= done, "{seen:?}");
    assert!(seen.iter().any(|one| one.closed > 0), "no client noticed a restart: {seen:?}");
    Ok(())
}

/// Restarts each worker, and waits until every client has made changes before the next.
async fn restart_all(workers: &mut Vec<Worker>, topics: &Topics, changes: &[AtomicUsize; 3]) -> Result<()> {
    for position in 0..workers.len() {
        let worker = workers.remove(position);
        let next = worker.restart(topics).await?;
        workers.insert(position, next);
        let before: Vec<usize> = changes.iter().map(|made| made.load(Ordering::Relaxed)).collect();
        let end = Instant::now() + LIMIT;
        while changes.iter().zip(&before).any(|(made, before)| made.load(Ordering::Relaxed) < before + 2) {
            assert!(Instant::now() < end, "a client got no change made for {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Reads and changes one connector on one worker without a pause, until `over`.
async fn load(number: usize, url: String, topics: &Topics, changes: &AtomicUsize, over: &AtomicBool) -> Seen {
    let client = client();
    let mut seen = Seen::default();
    for round in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let is_change = round % 4 == 0;
        let name = format!("load-{number}");
        let request = if is_change {
            let mut config = numbers(topics);
            config["messages"] = json!((round % 7 + 1).to_string());
            let request = client.put(format!("{url}/connectors/{name}/config"));
            request.header("content-type", "application/json").body(config.to_string())
        } else {
            client.get(format!("{url}/connectors/{name}/status"))
        };
        match request.send().await {
            Ok(answer) if answer.status().is_success() => {
                seen.done += 1;
                changes.fetch_add(usize::from(is_change), Ordering::Relaxed);
            }
            // Its first change may have been interrupted.
            Ok(answer) if answer.status().as_u16() == 404 && changes.load(Ordering::Relaxed) == 0 => {}
            Ok(answer) => {
                let status = answer.status();
                let text = answer.text().await.unwrap_or_default();
                if status.as_u16() == 503 && STARTING.iter().any(|words| text.contains(*words)) {
                    seen.starting += 1;
                } else if status.as_u16() == 409 && text.contains("concurrent config change") {
                    seen.conflicts += 1;
                } else {
                    seen.other.push(format!("round {round}: {status} {text}"));
                }
            }
            Err(error) if error.is_timeout() => seen.other.push(format!("round {round}: no answer")),
            Err(_) => {
                seen.closed += 1;
                // The worker is not listening right now.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    seen
}

async fn a_burst_of_creations_succeeds_on_one_and_three_workers(shared: &'static Shared) -> Result<()> {
    let topics = Topics::new(shared.bootstrap(), "worker-burst");
    let mut workers = vec![Worker::start(&topics, &[]).await?];
    workers.extend(try_join_all([Worker::start(&topics, &[]), Worker::start(&topics, &[])]).await?);
    let config = numbers(&topics);

    for among in [1, 3] {
        let mut tries = Tries::of(format!("30 creations at once on {among} workers are done"));
        for round in 1.. {
            let started = Instant::now();
            let each = (0..30).map(|number| {
                // Stopped, because this test is not about tasks.
                let name = format!("b{among}-{round}-{number}");
                let creation = json!({"name": name, "config": config, "initial_state": "STOPPED"});
                let worker = &workers[number % among];
                async move { (worker.ask("POST", "/connectors", Some(&creation)).await, started.elapsed()) }
            });
            let answers = join_all(each).await;

            let longest = answers.iter().map(|(_, took)| *took).max();
            println!("30 creations at once on {among} workers: the last after {longest:?}");
            let refused: Vec<_> = answers.iter().filter(|((status, _), _)| *status != 201).collect();
            if tries.held(refused.is_empty()) {
                break;
            }
            // Among many writers one may conflict too often or run out of time; no other refusal is allowed.
            assert!(refused.iter().all(|((status, _), _)| [409, 503].contains(status)), "{refused:?}");
            assert!(round < ROUNDS, "{refused:?}");
        }
    }
    Ok(())
}
