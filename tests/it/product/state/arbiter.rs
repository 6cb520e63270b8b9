//! Edits of connectors by several workers at once: one wins, the other knows it, nothing is lost, doubled or halved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::poll;
use kafka::{Received, TransactionOptions};
use tokio::time::timeout;
use tributary::worker::arbiter::{Arbiter, Error};
use tributary::worker::state::configs::{self, Configs, Properties, Write};

use super::editor::die_before_commit;
use super::ground::{Ground, LIMIT, Worker, create};
use crate::support::gate::{Gate, gate};
use crate::support::{Result, Shared, breakable, cycles};

crate::tests! {
    real a_write_is_read_by_its_own_worker_when_it_returns_and_soon_by_others within 120;
    real of_two_workers_that_create_the_same_name_at_once_exactly_one_does_each_time within 300;
    real no_edit_of_three_workers_at_once_is_lost within 180;
    real edits_that_wait_are_written_in_turn_and_each_sees_those_before_it;
    real an_edit_that_kafka_refuses_fails_alone;
    real an_edit_with_time_left_outlives_the_one_before_it;
    real a_burst_of_edits_on_one_worker_and_on_three_is_all_done within 180;
    real a_refusal_is_about_what_stands_in_the_topic_now;
    real a_writer_that_loses_its_turn_inside_its_write_leaves_nothing_and_decides_anew;
    real a_worker_killed_between_its_records_and_its_commit_leaves_nothing;
    disturbing a_write_decides_on_nothing_that_its_own_tail_has_not_read within 120;
    disturbing a_write_whose_answer_was_lost_is_found_and_made_once within 120;
}

async fn a_write_is_read_by_its_own_worker_when_it_returns_and_soon_by_others(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "state-own").await;
    let (one, other) = (ground.worker().await, ground.worker().await);
    let (mut took, mut seen) = (Vec::new(), Vec::new());

    for round in 0..cycles("WRITES", 2) {
        let name = format!("c-{round}");
        let started = Instant::now();
        one.arbiter.write(LIMIT, create(&name, "one")).await.unwrap();
        took.push(started.elapsed());

        assert!(has(&one, &name), "{name} was not read back");
        one.state.configs.read(|configs| assert!(!configs.is_half_written(&name)));
        let mut changes = other.state.configs.changes();
        let appears = async {
            while !has(&other, &name) {
                changes.changed().await.unwrap();
            }
        };
        timeout(LIMIT, appears).await.unwrap();
        seen.push(started.elapsed());
    }
    println!("state: write by one worker {}, seen by the other {}", figures(&mut took), figures(&mut seen));
}

async fn of_two_workers_that_create_the_same_name_at_once_exactly_one_does_each_time(
    shared: &'static Shared,
) {
    let ground = Ground::create(shared.bootstrap(), "state-race").await;
    let (one, other) = (ground.worker().await, ground.worker().await);
    let rounds = cycles("NAMES", 5);
    let (mut took, mut conflicts) = (Vec::new(), 0);

    for round in 0..rounds {
        let name = format!("c-{round}");
        let started = Instant::now();
        let (first, second) = tokio::join!(
            one.arbiter.write(LIMIT, create(&name, "one")),
            other.arbiter.write(LIMIT, create(&name, "other")),
        );
        took.push(started.elapsed());

        let winner = match (&first, &second) {
            (Ok(()), Err(_)) => "one",
            (Err(_), Ok(())) => "other",
            both => panic!("{name}: {both:?}"),
        };
        for outcome in [first, second] {
            match outcome {
                Ok(()) | Err(Error::Refused("already exists")) => {}
                Err(Error::Conflict { .. }) => conflicts += 1,
                Err(error) => panic!("{name}: {error:?}"),
            }
        }
        one.state.configs.read_to_end(LIMIT).await.unwrap();
        one.state.configs.read(|configs| {
            let connector = &configs.connectors()[&name];
            assert_eq!(connector.config["by"], winner, "{name}");
            assert_eq!(connector.tasks.len(), 2, "{name}");
            assert!(connector.tasks.iter().all(|task| task["by"] == winner), "{name}: {:?}", connector.tasks);
            assert!(!configs.is_half_written(&name), "{name}");
        });
    }

    let keys = ground.keys().await;
    assert_eq!(keys.len(), rounds as usize * 4, "connector, two tasks and a commit for each");
    assert!(keys.values().all(|count| *count == 1), "something was written twice: {keys:?}");
    println!("state: {rounds} races for a name {}, {conflicts} gave up", figures(&mut took));
}

async fn no_edit_of_three_workers_at_once_is_lost(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "state-count").await;
    let workers = [ground.worker().await, ground.worker().await, ground.worker().await];
    workers[0].arbiter.write(LIMIT, create("counter", "0")).await.unwrap();
    let each = cycles("COUNTER", 4);

    let count = async |worker: &Worker| {
        let mut done = 0;
        while done < each {
            match worker.arbiter.write(LIMIT, add_one).await {
                Ok(()) => done += 1,
                Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    tokio::join!(count(&workers[0]), count(&workers[1]), count(&workers[2]));

    for worker in &workers {
        worker.state.configs.read_to_end(LIMIT).await.unwrap();
        let by = worker.state.configs.read(|configs| configs.connectors()["counter"].config["by"].clone());
        assert_eq!(by, (3 * each).to_string());
    }
    assert_eq!(ground.keys().await["connector-counter"], 3 * each as usize + 1, "as many records as edits");
}

/// Counts up what stands there.
fn add_one(configs: &Configs) -> std::result::Result<((), Vec<Write>), ()> {
    let before: u32 = configs.connectors()["counter"].config["by"].parse().map_err(|_| ())?;
    let config = Properties::from([("by".to_owned(), (before + 1).to_string())]);
    Ok(((), vec![configs::connector("counter", Some(&config))]))
}

async fn edits_that_wait_are_written_in_turn_and_each_sees_those_before_it(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "state-together").await;
    let (worker, held) = gated(&ground).await;
    let names = ["a", "b", "a", "c", "first", "d"];

    let outcomes = behind_a_held_write(&worker, &held, &names.map(|name| (name, "me"))).await;

    for (name, (outcome, done)) in
        names.iter().zip(outcomes.iter().zip([true, true, false, true, false, true]))
    {
        match outcome {
            Ok(()) => assert!(done, "{name} was created twice"),
            Err(Error::Refused("already exists")) => assert!(!done, "{name} was refused"),
            Err(error) => panic!("{name}: {error:?}"),
        }
    }
    let log = ground.log().await;
    assert_eq!(log.len(), 5 * 4, "connector, two tasks and a commit for each");
    let ends = |record: &&Received| record.headers.iter().any(|(name, _)| name == "tributary.batch");
    assert_eq!(log.iter().filter(ends).count(), 5, "one transaction for each edit");
}

async fn a_burst_of_edits_on_one_worker_and_on_three_is_all_done(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "state-burst").await;
    let workers = [ground.worker().await, ground.worker().await, ground.worker().await];

    for among in [1, 3] {
        let started = Instant::now();
        let each = (0..30).map(|number| {
            let name = format!("{among}-{number}");
            let arbiter = &workers[number % among].arbiter;
            async move { (arbiter.write(LIMIT, create(&name, "me")).await, started.elapsed()) }
        });
        let outcomes = join_all(each).await;

        let mut took: Vec<Duration> = outcomes.iter().map(|(_, took)| *took).collect();
        println!("state: 30 edits at once on {among}: {}", figures(&mut took));
        for (outcome, _) in outcomes {
            outcome.unwrap();
        }
    }
    let keys = ground.keys().await;
    assert!(keys.len() == 60 * 4 && keys.values().all(|count| *count == 1), "{keys:?}");
}

async fn a_refusal_is_about_what_stands_in_the_topic_now(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "state-now").await;
    let (one, other) = (ground.worker().await, ground.worker().await);

    let mut took = Vec::new();
    for round in 0..cycles("REFUSALS", 2) {
        let name = format!("c-{round}");
        // Both have held the id before, so neither needs to read for a write.
        one.arbiter.write(LIMIT, create(&format!("{name}-one"), "one")).await.unwrap();
        one.arbiter.write(LIMIT, create(&name, "one")).await.unwrap();
        let exists = other.arbiter.write(LIMIT, create(&name, "other")).await;
        assert!(matches!(exists, Err(Error::Refused(_))), "{exists:?}");

        one.arbiter
            .write(LIMIT, |configs: &Configs| Ok::<_, ()>(((), configs.deletion(&name))))
            .await
            .unwrap();
        let started = Instant::now();
        other.arbiter.write(LIMIT, create(&name, "other")).await.unwrap();
        took.push(started.elapsed());
        one.arbiter
            .write(LIMIT, |configs: &Configs| {
                let found = configs.connectors().get(&name).map(|it| it.config["by"].clone());
                if found.as_deref() == Some("other") { Ok(((), Vec::new())) } else { Err(found) }
            })
            .await
            .unwrap();
    }
    println!("state: write after another worker's {}", figures(&mut took));
}

async fn an_edit_that_kafka_refuses_fails_alone(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "state-refused").await;
    let (worker, held) = gated(&ground).await;
    // No two lines alike: it must be too large also when it is compressed.
    let large: String =
        (0..1u64 << 17).map(|n| format!("{:x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();

    let edits = [("a", "me"), ("large", &*large), ("b", "me"), ("a", "again")];
    let outcomes = behind_a_held_write(&worker, &held, &edits).await;

    assert!(
        matches!(
            &outcomes[..],
            [Ok(()), Err(Error::Kafka(refused)), Ok(()), Err(Error::Refused("already exists"))]
                if refused.refuses_record()
        ),
        "{outcomes:?}"
    );
    assert!(has(&worker, "a") && has(&worker, "b") && !has(&worker, "large"));
    assert!(ground.keys().await.values().all(|count| *count == 1));
}

async fn an_edit_with_time_left_outlives_the_one_before_it(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "state-outlives").await;
    let (worker, held) = gated(&ground).await;

    // The second waits for its turn until the first gives up, which is held inside its commit.
    let mut short = Box::pin(worker.arbiter.write(Duration::from_secs(2), create("short", "me")));
    let mut long = Box::pin(worker.arbiter.write(LIMIT, create("long", "me")));
    assert!(poll!(&mut short).is_pending() && poll!(&mut long).is_pending());
    let ended = short.await;
    let outlived = long.await;
    held.open();

    assert!(ended.is_err(), "{ended:?}");
    outlived.unwrap();
    assert!(has(&worker, "long") && !has(&worker, "short"), "the abandoned transaction was aborted");
    assert_eq!(ground.keys().await["connector-long"], 1);
}

async fn a_writer_that_loses_its_turn_inside_its_write_leaves_nothing_and_decides_anew(
    shared: &'static Shared,
) {
    let ground = Ground::create(shared.bootstrap(), "state-turn").await;
    let ((slow, held), rival) = (gated(&ground).await, ground.worker().await);

    let arbiter = slow.arbiter.clone();
    let writing = tokio::spawn(async move { arbiter.write(LIMIT, create("c", "slow")).await });
    held.reached().await;
    rival.arbiter.write(LIMIT, create("c", "rival")).await.unwrap();
    held.open();
    let outcome = writing.await.unwrap();

    assert!(matches!(outcome, Err(Error::Refused("already exists"))), "{outcome:?}");
    let by = slow.state.configs.read(|configs| configs.connectors()["c"].config["by"].clone());
    assert_eq!(by, "rival");
    assert!(ground.keys().await.values().all(|count| *count == 1));
}

async fn a_worker_killed_between_its_records_and_its_commit_leaves_nothing(
    shared: &'static Shared,
) -> Result<()> {
    let ground = Ground::create(shared.bootstrap(), "state-killed").await;
    let worker = ground.worker().await;

    for round in 0..cycles("UNCOMMITTED", 1) {
        let (killed, next) = (format!("killed-{round}"), format!("next-{round}"));
        die_before_commit(&ground, &killed).await?;
        // Not held up by what the dead one left open.
        worker.arbiter.write(LIMIT / 3, create(&next, "me")).await.unwrap();

        assert!(has(&worker, &next) && !has(&worker, &killed));
        let keys = ground.keys().await;
        assert!(keys.keys().all(|key| !key.contains(&killed)), "{keys:?}");
    }
    Ok(())
}

async fn a_write_decides_on_nothing_that_its_own_tail_has_not_read() -> Result<()> {
    let broker = breakable::take().await?;
    let ground = Ground::create(&broker.bootstrap(), "state-lagging").await;
    let past = ground.over(&broker.bootstrap_past_proxy());
    let (behind, rival) = (ground.worker().await, past.worker().await);
    // Its tail is cut off, its way to write is not.
    let configs = behind.state.configs.clone();
    let arbiter = Arbiter::new(&past.kafka, configs, behind.state.offsets.places());

    broker.proxy()?.stall();
    rival.arbiter.write(LIMIT, create("c", "rival")).await.unwrap();
    let blind = arbiter.write(Duration::from_secs(3), create("c", "blind")).await;
    broker.proxy()?.heal();
    let later = arbiter.write(LIMIT, create("c", "later")).await;

    assert!(matches!(blind, Err(Error::Kafka(_))), "{blind:?}");
    assert!(matches!(later, Err(Error::Refused("already exists"))), "{later:?}");
    assert_eq!(past.keys().await["connector-c"], 1);
    Ok(())
}

async fn a_write_whose_answer_was_lost_is_found_and_made_once() -> Result<()> {
    let broker = breakable::take().await?;
    let ground = Ground::create(&broker.bootstrap(), "state-lost").await;
    let watcher = ground.over(&broker.bootstrap_past_proxy()).worker().await;
    let (hook, held) = gate();
    let watchdog = Duration::from_secs(1);
    let options = TransactionOptions { before_commit: Some(hook), watchdog, ..TransactionOptions::default() };
    let worker = ground.worker_with(options).await;

    let disturbance = async {
        held.reached().await;
        broker.proxy()?.stall_responses();
        held.open();
        // Committed; the answer is held back until the writer has given up waiting for it.
        let mut changes = watcher.state.configs.changes();
        while !has(&watcher, "c") {
            changes.changed().await.unwrap();
        }
        tokio::time::sleep(2 * watchdog).await;
        broker.proxy()?.heal();
        Ok(())
    };
    let (written, disturbed) = tokio::join!(worker.arbiter.write(2 * LIMIT, create("c", "me")), disturbance);
    disturbed?;

    written.unwrap();
    assert!(has(&worker, "c"));
    let keys = ground.over(&broker.bootstrap_past_proxy()).keys().await;
    assert_eq!(
        keys.into_iter().collect::<Vec<_>>(),
        [
            ("commit-c".to_owned(), 1),
            ("connector-c".to_owned(), 1),
            ("task-c-0".to_owned(), 1),
            ("task-c-1".to_owned(), 1),
        ]
    );
    Ok(())
}

/// A worker whose first write is held before its commit, until it is let through.
async fn gated(ground: &Ground) -> (Worker, Arc<Gate>) {
    let (hook, held) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    (ground.worker_with(options).await, held)
}

/// Creates `first` and holds that write until these wait behind it, connectors with what they say. How those end.
async fn behind_a_held_write(
    worker: &Worker,
    held: &Gate,
    edits: &[(&str, &str)],
) -> Vec<std::result::Result<(), Error<&'static str>>> {
    let arbiter = worker.arbiter.clone();
    let first = tokio::spawn(async move { arbiter.write(LIMIT, create("first", "me")).await });
    held.reached().await;
    let mut waiting: Vec<_> =
        edits.iter().map(|(name, by)| Box::pin(worker.arbiter.write(LIMIT, create(name, by)))).collect();
    // Each has asked for its turn before the next does: this is their order.
    for one in &mut waiting {
        assert!(poll!(one).is_pending());
    }
    held.open();
    first.await.unwrap().unwrap();
    join_all(waiting).await
}

fn has(worker: &Worker, name: &str) -> bool {
    worker.state.configs.read(|configs| configs.connectors().contains_key(name))
}

/// Middle and longest.
fn figures(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let (middle, longest) = (times[times.len() / 2], times[times.len() - 1]);
    format!("p50 {} ms, longest {} ms", middle.as_millis(), longest.as_millis())
}
