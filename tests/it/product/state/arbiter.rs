//! Edits of connectors on one worker: they are written in turn, and one that fails does not affect others. `tables` and `rest` test
//! edits of several workers.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use kafka::{ConsumerRecord, TransactionOptions};
use tributary::connect::config_writer::Error;

use super::cluster::{LIMIT, StateCluster, StateWorker, create};
use crate::support::{
    Shared,
    gate::{Gate, gate},
};

crate::tests! {
    real waiting_edits_are_written_in_turn_and_see_earlier_ones;
    real an_edit_that_kafka_refuses_fails_alone;
    real an_edit_with_time_left_outlives_the_one_before_it;
}

async fn waiting_edits_are_written_in_turn_and_see_earlier_ones(shared: &'static Shared) {
    let cluster = StateCluster::create(shared.bootstrap(), "state-together").await;
    let (worker, held) = gated(&cluster).await;
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
    let log = cluster.log().await;
    assert_eq!(log.len(), 5 * 4, "connector, two tasks and a commit for each");
    let ends = |record: &&ConsumerRecord| record.headers.iter().any(|(name, _)| name == "tributary.batch");
    assert_eq!(log.iter().filter(ends).count(), 5, "one transaction for each edit");
}

async fn an_edit_that_kafka_refuses_fails_alone(shared: &'static Shared) {
    let cluster = StateCluster::create(shared.bootstrap(), "state-refused").await;
    let (worker, held) = gated(&cluster).await;
    // Incompressible: it must be too large also when it is compressed.
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
    assert!(cluster.keys().await.values().all(|count| *count == 1));
}

async fn an_edit_with_time_left_outlives_the_one_before_it(shared: &'static Shared) {
    let cluster = StateCluster::create(shared.bootstrap(), "state-outlives").await;
    let (worker, held) = gated(&cluster).await;

    // The first is held inside its commit; the second waits until the first gives up.
    let mut short = Box::pin(worker.config_writer.write(Duration::from_secs(2), create("short", "me")));
    let mut long = Box::pin(worker.config_writer.write(LIMIT, create("long", "me")));
    assert!(poll!(&mut short).is_pending() && poll!(&mut long).is_pending());
    let ended = short.await;
    let outlived = long.await;
    held.open();

    assert!(ended.is_err(), "{ended:?}");
    outlived.unwrap();
    assert!(has(&worker, "long") && !has(&worker, "short"), "the abandoned transaction was aborted");
    assert_eq!(cluster.keys().await["connector-long"], 1);
}

/// A worker whose first write is held before its commit until the gate is opened.
async fn gated(cluster: &StateCluster) -> (StateWorker, Arc<Gate>) {
    let (hook, held) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    (cluster.worker_with(options).await, held)
}

/// Creates `first`, holds that write until these edits wait behind it, and opens the gate; their outcomes.
async fn behind_a_held_write(
    worker: &StateWorker,
    held: &Gate,
    edits: &[(&str, &str)],
) -> Vec<std::result::Result<(), Error<&'static str>>> {
    let config_writer = worker.config_writer.clone();
    let first = tokio::spawn(async move { config_writer.write(LIMIT, create("first", "me")).await });
    held.reached().await;
    let mut waiting: Vec<_> = edits
        .iter()
        .map(|(name, by)| Box::pin(worker.config_writer.write(LIMIT, create(name, by))))
        .collect();
    // Each is queued before the next one, which is their order.
    for one in &mut waiting {
        assert!(poll!(one).is_pending());
    }
    held.open();
    first.await.unwrap().unwrap();
    join_all(waiting).await
}

fn has(worker: &StateWorker, name: &str) -> bool {
    worker.state.configs.read(|configs| configs.connectors().contains_key(name))
}
