//! Connectors on one worker from creation to deletion, with their offsets, topics, restarts and log levels.

use kafka::{CommitError, ShardProducers, TransactionOptions};
use serde_json::{Value, json};
use tributary::state::statuses::{RunState, Status};

use super::{
    plugin::writer,
    worker::{self, Group, config},
};

use crate::support::{Result, Shared};

crate::tests! {
    real a_connector_is_reported_as_kafka_connect_does;
    real a_connector_without_an_owner_is_in_every_list;
    real edited_offsets_of_a_stopped_connector_are_not_overwritten;
    real topics_are_listed_until_they_are_reset;
    real a_cluster_log_level_reaches_running_workers_not_later_ones;
    real a_restart_that_was_answered_hides_the_state_before_it;
}

async fn a_connector_is_reported_as_kafka_connect_does(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "life").worker().await;
    let _supervised = worker.supervise();
    let mut sent = config("life");
    sent["tasks.max"] = json!(2);

    let created = worker.ask("POST", "/connectors/", Some(json!({"name": " t 1 ", "config": sent}))).await;

    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!(created.location, Some(format!("{}/connectors/t%201", worker.url)));
    assert_eq!(created.content_type.as_deref(), Some("application/json"));
    let mut echoed = config("life");
    echoed["name"] = json!("t 1");
    assert_eq!(created.body, json!({"name": "t 1", "config": echoed, "tasks": [], "type": "source"}));

    let running = worker.until("/connectors/t%201/status", all_run).await;
    let id = worker.url.trim_start_matches("http://");
    let state = |number: u32| json!({"id": number, "state": "RUNNING", "worker_id": id});
    assert_eq!(
        running.body,
        json!({"name": "t 1", "connector": {"state": "RUNNING", "worker_id": id},
            "tasks": [state(0), state(1)], "type": "source"})
    );
    assert_eq!(worker.get("/connectors/t%201/config").await.body, echoed, "unchanged, secrets included");
    assert_eq!(worker.get("/connectors/t%201/").await.body["config"], echoed);
    let tasks = worker.get("/connectors/t%201/tasks").await.body;
    assert_eq!(tasks[1], json!({"id": {"connector": "t 1", "task": 1}, "config": echoed}));
    assert_eq!(worker.get("/connectors/t%201/tasks-config").await.body["t 1-0"], echoed);

    for (path, status) in [("pause/", 202), ("resume", 202), ("stop", 204)] {
        let answer = worker.ask("PUT", &format!("/connectors/t%201/{path}"), None).await;
        assert_eq!((answer.status, answer.body), (status, Value::Null), "{path}");
    }
    assert_eq!(worker.get("/connectors/t%201").await.body["tasks"], json!([]), "at once");
    Ok(())
}

async fn a_connector_without_an_owner_is_in_every_list(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "new").worker().await;

    worker.ask("PUT", "/connectors/new/config", Some(config("new"))).await;
    let listed = worker.get("/connectors?expand=status&expand=info").await.body;
    let status = worker.get("/connectors/new/status").await;

    let connector = &listed["new"]["status"]["connector"];
    assert_eq!(connector["state"], "UNASSIGNED");
    assert!(connector["worker_id"].is_string(), "{connector}");
    assert_eq!(listed["new"]["info"]["config"]["name"], "new");
    assert_eq!((status.status, &status.body), (200, &listed["new"]["status"]));
    assert_eq!(worker.get("/connectors?expand=bogus").await.body, json!({"new": {}}));
    Ok(())
}

async fn edited_offsets_of_a_stopped_connector_are_not_overwritten(shared: &'static Shared) -> Result<()> {
    let group = Group::new(shared.bootstrap(), "offsets");
    let worker = group.worker().await;
    let _supervised = worker.supervise();
    worker.ask("PUT", "/connectors/o/config", Some(config("offsets"))).await;
    let one = json!({"partition": {"topic": "a", "partition": 1}, "offset": {"position": 7}});
    let two = json!({"partition": {"topic": "b", "partition": 0}, "offset": {"position": 1}});
    let both = json!({"offsets": [two, one]});
    let offsets = "/connectors/o/offsets";
    worker.until("/connectors/o", |answer| answer.body["tasks"][1].is_object()).await;

    worker.ask("PUT", "/connectors/o/stop", None).await;
    let frozen = ShardProducers::new(group.kafka.clone(), TransactionOptions::default());
    let mut frozen = frozen.take(writer("o"), std::sync::Arc::new(|| true)).await.unwrap();
    let foreign = json!({"offsets": [{"partition": {"file": "a"}, "offset": {"position": 7}}]});
    let refused = worker.ask("PATCH", offsets, Some(foreign)).await;
    let altered = worker.ask("PATCH", offsets, Some(both.clone())).await;

    assert_eq!((refused.status, refused.message()), (400, "a partition has to name its topic"));
    assert_eq!(altered.status, 200, "{altered:?}");
    assert_eq!(altered.message(), "The offsets for this connector have been altered successfully");
    assert_eq!(worker.get(offsets).await.body, both);
    let topic = format!("{}-grants", group.topic_prefix()).into();
    let late = crate::support::topics::record(&topic, 0, "key", "value");
    let fenced = frozen.commit(vec![late]).await.unwrap_err();
    assert!(matches!(fenced, CommitError::Fenced { .. }), "{fenced:?}");

    let reset = json!({"offsets": [{"partition": {"topic": "a", "partition": 1}, "offset": null}]});
    assert_eq!(worker.ask("PATCH", offsets, Some(reset)).await.status, 200);
    assert_eq!(worker.get(offsets).await.body, json!({"offsets": [two]}));
    let gone = worker.ask("DELETE", offsets, None).await;
    assert_eq!(gone.message(), "The offsets for this connector have been reset successfully");
    assert_eq!(worker.get(offsets).await.body, json!({"offsets": []}));
    Ok(())
}

async fn topics_are_listed_until_they_are_reset(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "topics").worker().await;
    worker.statuses.put_topic("t", 0, "b.topic");
    worker.statuses.put_topic("t", 1, "a.topic");
    worker.statuses.put_topic("other", 0, "c.topic");

    let used = worker
        .until("/connectors/t/topics", |answer| answer.body["t"]["topics"].as_array().unwrap().len() == 2)
        .await;
    let reset = worker.ask("PUT", "/connectors/t/topics/reset", None).await;
    let after = worker.get("/connectors/t/topics").await;

    assert_eq!(used.body, json!({"t": {"topics": ["a.topic", "b.topic"]}}));
    assert_eq!((reset.status, reset.body), (202, Value::Null));
    assert_eq!(after.body, json!({"t": {"topics": []}}));
    worker
        .until("/connectors/other/topics", |answer| answer.body["other"]["topics"] == json!(["c.topic"]))
        .await;
    Ok(())
}

async fn a_cluster_log_level_reaches_running_workers_not_later_ones(shared: &'static Shared) -> Result<()> {
    let group = Group::new(shared.bootstrap(), "levels");
    let (one, two) = (group.worker().await, group.worker().await);
    let logger = "/admin/loggers/tributary::kafka";

    let own = one.ask("PUT", "/admin/loggers/root?scope=elsewhere", Some(json!({"level": "warn"}))).await;
    let all = one.ask("PUT", &format!("{logger}?scope=cluster"), Some(json!({"level": "debug"}))).await;
    let at_once = one.get(logger).await;
    let there = two.until(logger, |answer| answer.status == 200).await;
    let later = group.worker().await;
    one.ask("PUT", "/admin/loggers/marker?scope=cluster", Some(json!({"level": "INFO"}))).await;
    later.until("/admin/loggers/marker", |answer| answer.status == 200).await;

    assert_eq!((own.status, own.body), (200, json!(["root"])));
    assert_eq!((all.status, all.body), (204, Value::Null));
    for (answer, worker) in [(at_once, "the worker that was asked"), (there, "the other worker")] {
        assert_eq!(answer.body["level"], "DEBUG", "{worker}: {answer:?}");
        assert!(answer.body["last_modified"].is_i64(), "{worker}: {answer:?}");
    }
    assert_eq!(two.get("/admin/loggers/root").await.body, json!({"level": "INFO", "last_modified": null}));
    assert_eq!(later.get(logger).await.status, 404, "a later worker obeyed an old command");
    Ok(())
}

async fn a_restart_that_was_answered_hides_the_state_before_it(shared: &'static Shared) -> Result<()> {
    let worker = Group::new(shared.bootstrap(), "restarting").worker().await;
    worker.ask("PUT", "/connectors/r/config", Some(config("restarting"))).await;
    let supervised = worker.supervise();
    worker.until("/connectors/r/status", all_run).await;
    drop(supervised);
    // The status of an owner that does not know of any restart.
    let before = Status {
        state: RunState::Running,
        trace: None,
        worker_id: "elsewhere:8083".to_owned(),
        generation: 2,
        handled_restart: Some(-1),
    };
    let put = |handled: i64| {
        let status = Status { handled_restart: Some(handled), ..before.clone() };
        for task in [None, Some(0), Some(1)] {
            worker.statuses.put("r", task, &status);
        }
    };
    put(-1);
    let elsewhere = |answer: &worker::Answer| {
        let body = &answer.body;
        let all = [&body["connector"], &body["tasks"][0], &body["tasks"][1]];
        all.iter().all(|one| one["worker_id"] == "elsewhere:8083")
    };
    worker.until("/connectors/r/status", elsewhere).await;

    let one = worker.ask("POST", "/connectors/r/tasks/1/restart", None).await;
    let after_one = worker.get("/connectors/r/status").await;
    let all = worker.ask("POST", "/connectors/r/restart?includeTasks=true", None).await;
    let after_all = worker.get("/connectors/r/status").await;
    let last = worker.state.configs.read(|configs| configs.restarts("r").next_back().cloned()).unwrap();
    put(last.revision);
    let served = worker.until("/connectors/r/status", all_run).await;

    assert_eq!((one.status, all.status), (204, 202));
    assert_eq!(states(&after_one.body), ["RUNNING", "RUNNING", "RESTARTING"].map(Value::from));
    assert_eq!(states(&all.body), ["RESTARTING"; 3].map(Value::from));
    assert_eq!(states(&after_all.body), ["RESTARTING"; 3].map(Value::from));
    assert!(elsewhere(&served));
    Ok(())
}

/// The states of a connector and two tasks in a status.
fn states(body: &Value) -> [Value; 3] {
    [&body["connector"], &body["tasks"][0], &body["tasks"][1]].map(|one| one["state"].clone())
}

/// Whether a status shows a connector and two tasks that run.
fn all_run(answer: &worker::Answer) -> bool {
    states(&answer.body) == ["RUNNING"; 3].map(Value::from)
}
