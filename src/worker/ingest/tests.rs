//! Ingest without any Kafka: what starts, what does not, and what is said of it.

use std::fs;

use tokio::time::timeout;

use super::*;
use crate::worker::plugins::samples;

/// What a busy machine may need.
const LIMIT: Duration = Duration::from_secs(30);

/// A worker for a Kafka that is nowhere, with its state in this directory.
fn worker(directory: &Path, receives: bool) -> config::Worker {
    let mut worker = samples::worker();
    worker.kafka = config::Kafka::plaintext("127.0.0.1:1");
    worker.state_dir = directory.to_owned();
    if receives {
        worker.webhook.listeners = vec![config::Listener { host: "127.0.0.1".into(), port: 0, tls: false }];
    }
    worker
}

async fn start(worker: &config::Worker) -> Result<Option<Ingest>, Error> {
    timeout(LIMIT, Ingest::start(worker, &"worker:1".into())).await.unwrap()
}

async fn stop(ingest: Ingest) {
    timeout(LIMIT, ingest.stop(Duration::from_secs(1), Instant::now() + Duration::from_secs(3)))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_spool_that_another_process_has_keeps_a_receiver_from_starting_and_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(&worker(directory.path(), true)).await.unwrap().unwrap();

    let second = start(&worker(directory.path(), true)).await.unwrap_err();
    let without_listener = start(&worker(directory.path(), false)).await.unwrap();

    let told = second.to_string();
    let place = directory.path().join("spool");
    assert!(told.contains(&*place.to_string_lossy()) && told.contains("state.dir of its own"), "{told}");
    assert_eq!(second.retry(), Retry::Never);
    assert!(without_listener.is_none(), "whose spool it is publishes it");
    stop(first).await;
    assert!(start(&worker(directory.path(), true)).await.is_ok(), "it was given back");
}

#[tokio::test]
async fn a_worker_without_listeners_makes_no_spool_and_opens_one_that_is_there() {
    let directory = tempfile::tempdir().unwrap();

    let none = start(&worker(directory.path(), false)).await.unwrap();
    let made = directory.path().join("spool").exists();
    fs::create_dir(directory.path().join("spool")).unwrap();
    let some = start(&worker(directory.path(), false)).await.unwrap();

    assert!(none.is_none() && !made);
    stop(some.unwrap()).await;
}

#[tokio::test]
async fn a_spool_that_was_moved_aside_is_a_gap_of_every_connector_that_was_received() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("spool/1");
    fs::create_dir_all(broken.join("data")).unwrap();
    for file in ["ready", "data/0.jnl", "data/lock", "data/marker"] {
        fs::write(broken.join(file), b"none of ours").unwrap();
    }
    let receivers = serde_json::json!({ "format": 1, "connectors": {
        "hooks": { "config": samples::webhook_config(), "target": "RUNNING" } } });
    fs::write(directory.path().join("receivers.json"), receivers.to_string()).unwrap();

    let ingest = start(&worker(directory.path(), true)).await.unwrap().unwrap();
    let report = ingest.watch().report();
    stop(ingest).await;

    assert_eq!(report["receivers"]["hooks"], "RUNNING", "{report}");
    assert!(!broken.exists(), "it was not moved aside");
    let kept = Gaps::load(directory.path(), "worker:1".into()).unwritten();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(kept[0].key().as_str().starts_with("gap/hooks/spool/"), "{kept:?}");
    assert_eq!(kept[0].prefix, "acme");
}

#[tokio::test]
async fn a_part_that_ends_by_itself_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut ingest = start(&worker(directory.path(), true)).await.unwrap().unwrap();
    let early = timeout(Duration::from_millis(100), ingest.ended()).await;

    ingest.spool.close(LIMIT).await;

    assert!(early.is_err(), "{early:?}");
    assert_eq!(timeout(LIMIT, ingest.ended()).await.unwrap(), "spool");
}
