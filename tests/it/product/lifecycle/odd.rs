//! Tampered topics of a cluster: foreign records in the status topic, and a work topic with more partitions.

use std::collections::BTreeSet;
use std::time::Instant;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use tributary::{
    connect::supervisor::{InstanceId, Settings},
    state::{
        statuses::{RunState, Status, Statuses},
        writer::StatusWriter,
    },
};

use super::cluster::{WORK_PARTITIONS, WorkerGroup};
use super::worker::LocalWorker;
use crate::support::Shared;
use crate::support::topics::LIMIT;

crate::tests! {
    real the_owner_replaces_an_impossible_or_swept_status;
    real a_grown_work_topic_moves_no_task within 120;
}

async fn the_owner_replaces_an_impossible_or_swept_status(shared: &'static Shared) {
    let cluster = WorkerGroup::create(shared.bootstrap(), "odd-status").await;
    let worker = LocalWorker::start(&cluster.config, "alone:1", Settings::default()).await;
    cluster.create_connector("mine", &[]).await;
    cluster.until_running("mine", 1).await;
    let true_status = cluster.task("mine", 0);
    let (kafka, topic) = (&cluster.config.kafka, &cluster.config.topics.status);
    let writer = StatusWriter::start(kafka, &topic.name, topic.partitions).unwrap();
    let is_back = |statuses: &Statuses| statuses.tasks("mine").get(&0) == Some(&&true_status);

    // A recreated work topic leaves such a status behind, and the late cleanup of a recreated connector removes one.
    let foreign = Status {
        state: RunState::Failed,
        trace: None,
        worker_id: "x:1".into(),
        generation: i64::MAX,
        handled_restart: None,
    };
    for (what, removed) in [("an impossible status", false), ("a removal under its claim", true)] {
        match removed {
            false => writer.put("mine", Some(0), &foreign),
            true => writer.remove("mine", Some(0), true_status.generation),
        }
        writer.flush(LIMIT).await.unwrap();
        cluster.state.statuses.read_to_end(LIMIT).await.unwrap();
        let begun = Instant::now();
        cluster.until(&format!("the owner's status is back after {what}"), is_back).await;
        println!("{} ms after {what} the owner's status was back", begun.elapsed().as_millis());
    }

    cluster.restart("mine", true, false, None).await;
    cluster.until_counted("mine", 0, 5).await;
    // The status now also contains the restart that was handled.
    let is_same = |one: &Status| {
        (one.state, &one.worker_id, one.generation)
            == (true_status.state, &true_status.worker_id, true_status.generation)
    };
    let is_back = |statuses: &Statuses| statuses.tasks("mine").get(&0).is_some_and(|one| is_same(one));
    cluster.until("its state changes as before", is_back).await;
    worker.stop().await;
    let unassigned = [RunState::Unassigned];
    cluster.until_states("mine", RunState::Unassigned, &unassigned).await;
}

async fn a_grown_work_topic_moves_no_task(shared: &'static Shared) {
    let cluster = WorkerGroup::create(shared.bootstrap(), "odd-grown").await;
    let one = LocalWorker::start(&cluster.config, "one:1", Settings::default()).await;
    cluster.create_connector("grown", &[("tasks.max", "6")]).await;
    cluster.until_running("grown", 6).await;

    grow(shared.bootstrap(), &cluster.config.topics.work.name, WORK_PARTITIONS + 5).await;
    // It joins when the topic has all partitions; the other worker may not know of them yet.
    let two = LocalWorker::start(&cluster.config, "two:2", Settings::default()).await;

    let ids = |worker: &LocalWorker| -> Vec<InstanceId> {
        let running = worker.handle.running().into_iter();
        running.filter(|one| one.state == RunState::Running).map(|one| one.id).collect()
    };
    let once_each = || {
        let (here, there) = (ids(&one), ids(&two));
        let all: BTreeSet<&InstanceId> = here.iter().chain(&there).collect();
        !here.is_empty() && !there.is_empty() && here.len() + there.len() == 7 && all.len() == 7
    };
    one.until("each runs once, and both workers have some", |_| once_each()).await;
    for task in 0..6 {
        cluster.until_counted("grown", task, 10).await;
    }
    // A rebalance may be under way: then a task may run nowhere for a moment, but never twice.
    let (before, there, here) = (ids(&one), ids(&two), ids(&one));
    let twice: Vec<&InstanceId> =
        here.iter().filter(|id| before.contains(id) && there.contains(id)).collect();
    assert!(twice.is_empty(), "{twice:?} run in both workers");
    one.until("each runs once again", |_| once_each()).await;
    cluster.until_running("grown", 6).await;
    two.stop().await;
    one.stop().await;
    cluster.check_numbers("grown").await;
}

async fn grow(bootstrap: &str, topic: &str, partitions: usize) {
    let client: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let wanted = [NewPartitions::new(topic, partitions)];
    let options = AdminOptions::new().operation_timeout(Some(LIMIT));
    client.create_partitions(&wanted, &options).await.unwrap().remove(0).unwrap();
}
