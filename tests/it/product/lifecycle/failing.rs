//! Transient failures, permanent failures, and panics.

use std::time::Duration;

use base::retry::BackoffPolicy;
use tributary::{
    connect::supervisor::{RestartPolicy, Settings},
    state::{
        configs,
        statuses::{RunState, Statuses},
    },
};

use super::cluster::WorkerGroup;
use super::worker::LocalWorker;
use crate::product::grants::cluster::connector;
use crate::support::Shared;
use crate::support::topics::content_of;

crate::tests! {
    real a_permanent_failure_shows_reason_and_remedy_and_waits;
    real a_transient_failure_restarts_the_task_and_loses_no_number;
    real repeated_panics_fail_only_their_task;
    real an_unusable_configuration_fails_the_connector_not_its_tasks;
    real a_task_without_a_readable_grant_reports_the_remedy;
    real no_status_ever_shows_a_secret;
}

/// Restarts failed tasks soon, and a panicked task twice.
fn hasty() -> Settings {
    let wait = Duration::from_millis(100);
    let policy = BackoffPolicy { first: wait, longest: wait, total: None };
    let restarting = RestartPolicy { policy, panics: 2, ..RestartPolicy::default() };
    Settings { restarting, ..Settings::default() }
}

async fn start(shared: &Shared, name: &str) -> (WorkerGroup, LocalWorker) {
    let cluster = WorkerGroup::create(shared.bootstrap(), name).await;
    let worker = LocalWorker::start(&cluster.config, "alone:1", hasty()).await;
    (cluster, worker)
}

/// Whether the first task is in this state with a trace that contains all these words.
fn says<'a>(name: &'a str, state: RunState, words: &'a [&'a str]) -> impl Fn(&Statuses) -> bool + 'a {
    move |statuses| {
        statuses.tasks(name).get(&0).is_some_and(|status| {
            let trace = status.trace.as_deref().unwrap_or_default();
            status.state == state && words.iter().all(|word| trace.contains(word))
        })
    }
}

async fn a_permanent_failure_shows_reason_and_remedy_and_waits(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "failing-good").await;
    cluster.create_connector("fails", &[("fail.after", "7")]).await;

    let words = ["TestFailure: the test source fails on request", "\nRemedy: remove fail.after"];
    cluster.until("it has failed", says("fails", RunState::Failed, &words)).await;
    assert_eq!(cluster.state.statuses.read(|all| all.connector("fails").unwrap().state), RunState::Running);
    // Each start writes seven numbers and fails.
    cluster.until_counted_to("fails", 0, 7).await;
    cluster.restart("fails", true, true, None).await;
    cluster.until_counted_to("fails", 0, 14).await;
    cluster.until("it has failed again", says("fails", RunState::Failed, &words)).await;
    worker.stop().await;
    assert_eq!(cluster.check_numbers("fails").await["fails/0"] % 7, 0);
}

async fn a_transient_failure_restarts_the_task_and_loses_no_number(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "failing-passing").await;

    cluster.create_connector("flaky", &[("fail.after", "5"), ("fail.kind", "passing")]).await;

    let words = ["TestFailure: the test source fails for a while", "\nNext: it restarts in"];
    cluster.until("it is restarting", says("flaky", RunState::Restarting, &words)).await;
    cluster.until_counted("flaky", 0, 20).await;
    assert!(worker.handle.task_startups().attempts >= 4);
    worker.stop().await;
    cluster.check_numbers("flaky").await;
}

async fn repeated_panics_fail_only_their_task(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "failing-panic").await;
    cluster.create_connector("healthy", &[]).await;
    cluster.until_counted("healthy", 0, 1).await;

    cluster.create_connector("panics", &[("panic.after", "3")]).await;

    let words =
        ["Panicked: the program has a bug: the test source panics on request", "\nRemedy: report the bug"];
    cluster.until("it has failed", says("panics", RunState::Failed, &words)).await;
    assert_eq!(cluster.check_numbers("panics").await["panics/0"], 9, "three runs of three");
    cluster.until_counted("healthy", 0, 10).await;
    worker.stop().await;
    cluster.check_numbers("healthy").await;
}

async fn an_unusable_configuration_fails_the_connector_not_its_tasks(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "failing-config").await;
    cluster.create_connector("edited", &[]).await;
    cluster.until_running("edited", 1).await;

    cluster.create_connector("edited", &[("messages", "none")]).await;

    cluster.until_states("edited", RunState::Failed, &[RunState::Running]).await;
    let status = cluster.state.statuses.read(|statuses| statuses.connector("edited").cloned().unwrap());
    let trace = status.trace.unwrap();
    assert!(trace.starts_with("InvalidConfiguration: ") && trace.contains("messages must be"), "{trace}");
    cluster.until_counted("edited", 0, 5).await;
    cluster.create_connector("edited", &[("messages", "50")]).await;
    cluster.until_running("edited", 1).await;
    worker.stop().await;
}

async fn a_task_without_a_readable_grant_reports_the_remedy(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "failing-class").await;
    let mut config = connector();
    config.insert("name".to_owned(), "records".to_owned());

    cluster.write(vec![configs::connector("records", Some(&config))]).await;

    let words = ["GrantsUnavailable: records cannot be read", "\nRemedy: events wait until it is resolved"];
    cluster.until("it has failed", says("records", RunState::Failed, &words)).await;
    cluster.until_states("records", RunState::Running, &[RunState::Failed]).await;
    worker.stop().await;
}

async fn no_status_ever_shows_a_secret(shared: &'static Shared) {
    let (cluster, worker) = start(shared, "failing-secret").await;
    let secret = [("secret", "hunter2-hunter2"), ("fail.after", "1")];
    cluster.create_connector("fails", &secret).await;
    cluster.create_connector("refused", &[("secret", "${env:hunter2-hunter2"), ("messages", "none")]).await;
    cluster.create_connector("panics", &[("secret", "hunter2-hunter2"), ("panic.after", "1")]).await;
    for name in ["fails", "panics"] {
        cluster.until("it has failed", says(name, RunState::Failed, &[])).await;
    }
    let refused = |statuses: &Statuses| statuses.connector("refused").is_some_and(|one| one.trace.is_some());
    cluster.until("it was refused", refused).await;
    worker.stop().await;

    let own = &cluster.config.topics.status;
    for record in content_of(&cluster.config.kafka, &own.name, own.partitions).await {
        let text = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
        assert!(!text.contains("hunter2"), "{text}");
    }
}
