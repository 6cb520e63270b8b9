//! One worker, whose connectors are edited, paused, stopped, restarted and deleted.

use std::sync::Arc;

use tributary::{
    config::connector::TargetState,
    connect::supervisor::Settings,
    state::{configs, statuses::RunState},
};

use super::cluster::WorkerGroup;
use super::worker::LocalWorker;
use crate::support::Shared;

crate::tests! {
    real each_task_of_a_connector_counts_and_reports_its_topic;
    real paused_tasks_wait_and_resume_where_they_were;
    real a_stopped_connector_has_no_tasks_and_a_deleted_one_no_status;
    real a_new_configuration_restarts_tasks_and_removes_surplus_ones;
    real every_restart_is_handled_once_by_its_target;
    real a_stopping_worker_ends_its_tasks_and_reports_it;
    real a_connector_created_paused_or_stopped_runs_once_resumed;
    real reset_topics_are_reported_again_with_the_next_record;
}

async fn start(shared: &Shared, name: &str) -> (WorkerGroup, LocalWorker) {
    let cluster = WorkerGroup::create(shared.bootstrap(), name).await;
    let worker = LocalWorker::start(&cluster.config, "alone:1", Settings::default()).await;
    (cluster, worker)
}

async fn each_task_of_a_connector_counts_and_reports_its_topic(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-count").await;

    cluster.create_connector("counts", &[("tasks.max", "3")]).await;

    cluster.until_running("counts", 3).await;
    for task in 0..3 {
        cluster.until_counted("counts", task, 5).await;
        assert_eq!(cluster.task("counts", task).worker_id, "alone:1");
    }
    let topic = cluster.topic("counts");
    cluster.until("its topic is reported", |statuses| statuses.topics("counts") == [topic.as_str()]).await;
    let running = worker.handle.running();
    assert!(running.iter().all(|one| one.state == RunState::Running && one.starts > 0), "{running:?}");
    assert_eq!(running.len(), 4);
    worker.stop().await;
    assert_eq!(cluster.check_numbers("counts").await.len(), 3);
}

async fn paused_tasks_wait_and_resume_where_they_were(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-pause").await;
    cluster.create_connector("pauses", &[]).await;
    cluster.create_connector("clock", &[]).await;
    cluster.until_counted("pauses", 0, 5).await;

    cluster.set_target("pauses", TargetState::Paused).await;
    cluster.until_states("pauses", RunState::Paused, &[RunState::Paused]).await;
    // A transaction in flight is finished; after that nothing moves while the other connector keeps counting.
    let mut tries = 0..5;
    loop {
        let before = cluster.count("pauses", 0);
        cluster.until_counted("clock", 0, 50).await;
        if cluster.count("pauses", 0) == before {
            break;
        }
        assert!(tries.next().is_some(), "it keeps counting");
    }
    cluster.set_target("pauses", TargetState::Running).await;

    cluster.until_running("pauses", 1).await;
    cluster.until_counted("pauses", 0, 5).await;
    worker.stop().await;
    cluster.check_numbers("pauses").await;
}

async fn a_stopped_connector_has_no_tasks_and_a_deleted_one_no_status(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-stop").await;
    cluster.create_connector("stops", &[("tasks.max", "2")]).await;
    cluster.until_running("stops", 2).await;
    cluster.until_counted("stops", 0, 5).await;

    cluster.set_target("stops", TargetState::Stopped).await;
    cluster.until_states("stops", RunState::Stopped, &[]).await;
    worker.until("no task runs", |running| running.iter().all(|one| one.id.task.is_none())).await;
    cluster.set_target("stops", TargetState::Running).await;
    cluster.until_running("stops", 2).await;
    cluster.until_counted("stops", 0, 5).await;

    cluster.delete("stops").await;
    cluster.until("nothing of it is shown", |statuses| statuses.names().count() == 0).await;
    assert!(cluster.count("stops", 0) > 0, "offsets outlive their connector");
    worker.stop().await;
    cluster.check_numbers("stops").await;
}

async fn a_new_configuration_restarts_tasks_and_removes_surplus_ones(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-edit").await;
    cluster.create_connector("edits", &[("tasks.max", "3")]).await;
    cluster.until_running("edits", 3).await;
    cluster.until_counted("edits", 0, 5).await;

    cluster.create_connector("edits", &[("tasks.max", "1"), ("messages", "200")]).await;

    cluster.until_running("edits", 1).await;
    cluster.until_counted("edits", 0, 5).await;
    let tasks = cluster.state.configs.read(|configs| configs.connectors()["edits"].tasks.to_vec());
    assert_eq!(tasks, [Arc::new(cluster.test_source("edits", &[("tasks.max", "1"), ("messages", "200")]))]);
    worker.stop().await;
    cluster.check_numbers("edits").await;
}

async fn every_restart_is_handled_once_by_its_target(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-restart").await;
    cluster.create_connector("again", &[("tasks.max", "2")]).await;
    cluster.until_running("again", 2).await;
    let starts = |id: Option<u32>| {
        let running = worker.handle.running();
        running.into_iter().find(|one| one.id.task == id).map(|one| one.starts)
    };
    let first = [None, Some(0), Some(1)].map(starts);

    cluster.restart("again", false, false, Some(1)).await;
    cluster.restart("again", false, true, None).await;
    cluster.restart("again", false, false, None).await;
    cluster
        .until("nothing is restarting", |statuses| {
            let tasks = statuses.tasks("again");
            let all = tasks.values().copied().chain(statuses.connector("again"));
            starts(Some(1)) != first[2]
                && starts(None) != first[0]
                && all.into_iter().all(|status| status.state == RunState::Running)
        })
        .await;

    assert_eq!(starts(Some(0)), first[1], "a task was restarted without a request");
    let (connectors, tasks) = (worker.handle.connector_startups(), worker.handle.task_startups());
    assert_eq!((connectors.attempts, tasks.attempts), (2, 3));
    cluster.restart("again", true, false, None).await;
    cluster.until_counted("again", 0, 5).await;
    cluster.until_counted("again", 1, 5).await;
    worker.stop().await;
    cluster.check_numbers("again").await;
}

async fn a_stopping_worker_ends_its_tasks_and_reports_it(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-end").await;
    cluster.create_connector("ends", &[("tasks.max", "2")]).await;
    cluster.until_running("ends", 2).await;
    let handle = worker.handle.clone();

    worker.stop().await;

    cluster.until_states("ends", RunState::Unassigned, &[RunState::Unassigned; 2]).await;
    assert!(handle.running().is_empty());
    let again = LocalWorker::start(&cluster.config, "alone:2", Settings::default()).await;
    cluster.until_running("ends", 2).await;
    assert_eq!(cluster.task("ends", 0).worker_id, "alone:2");
    cluster.until_counted("ends", 0, 5).await;
    again.stop().await;
    cluster.check_numbers("ends").await;
}

async fn a_connector_created_paused_or_stopped_runs_once_resumed(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-initial").await;
    let config = cluster.test_source("later", &[]);

    for (target, state) in
        [(TargetState::Stopped, RunState::Stopped), (TargetState::Paused, RunState::Paused)]
    {
        let writes =
            vec![configs::target_state("later", Some(target)), configs::connector("later", Some(&config))];
        cluster.write(writes).await;
        cluster.until_states("later", state, &[]).await;
    }
    cluster.set_target("later", TargetState::Running).await;

    cluster.until_running("later", 1).await;
    worker.stop().await;
}

async fn reset_topics_are_reported_again_with_the_next_record(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "alone-topics").await;
    cluster.create_connector("reports", &[]).await;
    let topic = cluster.topic("reports");
    cluster.until("its topic is reported", |statuses| !statuses.topics("reports").is_empty()).await;
    cluster.set_target("reports", TargetState::Paused).await;
    cluster.until_states("reports", RunState::Paused, &[RunState::Paused]).await;

    let (kafka, own) = (&cluster.config.kafka, &cluster.config.topics.status);
    let writer = tributary::state::writer::StatusWriter::start(kafka, &own.name, own.partitions).unwrap();
    writer.remove_topic("reports", &topic);
    cluster.until("its topic is removed", |statuses| statuses.topics("reports").is_empty()).await;
    cluster.set_target("reports", TargetState::Running).await;

    cluster
        .until("its topic is reported again", |statuses| statuses.topics("reports") == [topic.as_str()])
        .await;
    worker.stop().await;
}
