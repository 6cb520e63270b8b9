//! Kafka is away: reads still work, changes fail in time, and changes work again once it is back.

use std::time::{Duration, Instant};

use kafka::Kafka;
use serde_json::json;

use super::worker::{Answer, Group, Worker, config};
use crate::support::{Result, breakable, lost};

crate::tests! {
    disturbing reads_work_without_kafka_and_changes_fail_in_time within 240;
}

/// The timeout of common clients.
const PATIENCE: Duration = Duration::from_secs(10);

async fn reads_work_without_kafka_and_changes_fail_in_time() -> Result<()> {
    let broker = breakable::take().await?;
    let group = Group::new(&broker.bootstrap(), "outage");
    let worker = group.worker().await;
    assert_eq!(worker.ask("PUT", "/connectors/a/config", Some(config("outage"))).await.status, 201);
    worker.ask("PUT", "/connectors/a/stop", None).await;
    let nowhere = group.starting(&Kafka::plaintext("127.0.0.1:1")).await;

    let starting = timed(&nowhere, "GET", "/connectors").await;
    broker.pause()?;
    let read = worker.get("/connectors?expand=info&expand=status").await;
    let mut changed = Vec::new();
    for (method, path) in [
        ("PUT", "/connectors/b/config"),
        ("PUT", "/connectors/a/resume"),
        ("PATCH", "/connectors/a/offsets"),
        ("PUT", "/connectors/a/topics/reset"),
        ("PUT", "/admin/loggers/root?scope=cluster"),
    ] {
        changed.push((path, timed(&worker, method, path).await));
    }
    broker.resume()?;
    let back = Instant::now();
    while worker.ask("PUT", "/connectors/a/resume", None).await.status != 202 {
        assert!(back.elapsed() < Duration::from_secs(60), "changes are still refused");
    }

    assert_eq!(starting.status, 503, "{starting:?}");
    assert!(starting.message().contains("starting"), "{starting:?}");
    assert_eq!((read.status, &read.body["a"]["info"]["name"]), (200, &json!("a")));
    for (path, answer) in changed {
        assert!(answer.status == 503 || answer.status == 500, "{path}: {answer:?}");
        assert!(answer.message().len() > 20, "{path}: {answer:?}");
    }
    Ok(())
}

async fn timed(worker: &Worker, method: &str, path: &str) -> Answer {
    let body = match path {
        path if path.ends_with("config") => Some(config("outage-b")),
        path if path.ends_with("offsets") => {
            Some(json!({"offsets": [{"partition": {"topic": "t"}, "offset": {"position": 1}}]}))
        }
        path if path.contains("loggers") => Some(json!({"level": "DEBUG"})),
        _ => None,
    };
    let asked = Instant::now();
    let answer = worker.ask(method, path, body).await;
    let took = lost::promised(asked);
    println!("{method} {path} without Kafka: {} after {took:?}: {}", answer.status, answer.message());
    assert!(took < PATIENCE, "{method} {path} took {took:?}");
    answer
}
