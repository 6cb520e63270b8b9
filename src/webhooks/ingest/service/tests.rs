//! Ingest without any Kafka: what starts, what does not, and what is said of it.

use std::{fs, path::Path};

use tokio::time::timeout;

use kafka::Admin;

use super::*;
use crate::{plugin::samples, publish::LetterSigner};

/// What a busy machine may need.
const LIMIT: Duration = Duration::from_secs(30);

/// A worker for a Kafka that is nowhere, with its state in this directory.
fn worker(directory: &Path, receives: bool) -> config::Worker {
    let mut worker = samples::worker();
    worker.kafka = kafka::Kafka::plaintext("127.0.0.1:1");
    worker.state_dir = directory.to_owned();
    if receives {
        worker.webhook.listeners = vec![config::Listener { host: "127.0.0.1".into(), port: 0, tls: false }];
    }
    worker
}

async fn start(worker: &config::Worker) -> Result<Option<Ingest>, Error> {
    timeout(LIMIT, Ingest::start(worker, &"worker:1".into(), store(worker).await)).await.unwrap()
}

async fn store(worker: &config::Worker) -> RecordWriting {
    let admin = Admin::Real(worker.kafka.clone());
    RecordWriting { admin, ids: ids(worker).await, signer: LetterSigner::default() }
}

async fn ids(worker: &config::Worker) -> avro::Ids {
    let registry = avro::Registry::new(&worker.registry).unwrap();
    avro::Ids::open(registry, &worker.state_dir).await
}

async fn stop(ingest: Ingest) {
    timeout(LIMIT, ingest.stop(Duration::from_secs(1), Instant::now() + LIMIT / 2)).await.unwrap();
}

#[tokio::test]
async fn a_spool_in_use_prevents_the_start_and_names_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(&worker(directory.path(), true)).await.unwrap().unwrap();

    let second = start(&worker(directory.path(), true)).await.unwrap_err();
    let without_listener = start(&worker(directory.path(), false)).await.unwrap();

    let reported = second.to_string();
    let place = directory.path().join("spool");
    assert!(
        reported.contains(&*place.to_string_lossy()) && reported.contains("its own state.dir"),
        "{reported}"
    );
    assert_eq!(second.retry(), Retry::Never);
    assert!(without_listener.is_none(), "whose spool it is publishes it");
    stop(first).await;
    assert!(start(&worker(directory.path(), true)).await.is_ok(), "it was given back");
}

#[tokio::test]
async fn a_worker_without_listeners_opens_only_an_existing_spool() {
    let directory = tempfile::tempdir().unwrap();

    let none = start(&worker(directory.path(), false)).await.unwrap();
    let made = directory.path().join("spool").exists();
    fs::create_dir(directory.path().join("spool")).unwrap();
    let some = start(&worker(directory.path(), false)).await.unwrap();

    assert!(none.is_none() && !made);
    stop(some.unwrap()).await;
}

#[tokio::test]
async fn a_spool_moved_aside_is_a_gap_of_every_connector() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("spool/1");
    fs::create_dir_all(broken.join("data")).unwrap();
    for file in ["ready", "data/0.jnl", "data/lock", "data/marker"] {
        fs::write(broken.join(file), b"none of ours").unwrap();
    }
    let receivers = serde_json::json!({ "format": 1, "connectors": {
        "hooks": { "config": samples::webhook_config(), "target": "RUNNING" } } });
    fs::write(directory.path().join("receivers.json"), receivers.to_string()).unwrap();

    let ready = fs::metadata(broken.join("ready")).unwrap().modified().unwrap();
    let kept = || GapFile::load(directory.path(), "worker:1".into()).unwritten();
    // The gap cannot be kept at first.
    let in_the_way = directory.path().join("gaps.json.tmp");
    fs::create_dir(&in_the_way).unwrap();
    let ingest = start(&worker(directory.path(), true)).await.unwrap().unwrap();
    stop(ingest).await;
    assert!(!broken.exists(), "it was not moved aside");
    assert!(kept().is_empty());
    fs::remove_dir(&in_the_way).unwrap();

    let ingest = start(&worker(directory.path(), true)).await.unwrap().unwrap();
    let report = ingest.watch().report();
    stop(ingest).await;
    let reported = kept();
    stop(start(&worker(directory.path(), true)).await.unwrap().unwrap()).await;

    assert_eq!(report["receivers"]["hooks"], "RUNNING", "{report}");
    let aside = report["spool"]["moved_aside"][0].as_str().unwrap();
    assert!(aside.contains("/spool/1.unreadable-"), "{report}");
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].key().as_str().starts_with("gap/hooks/spool/"), "{reported:?}");
    assert_eq!(reported[0].prefix, "acme");
    let value = reported[0].value();
    assert_eq!(value["from"], model::Moment::from(ready).micros(), "{value}");
    assert!(value["detail"].as_str().unwrap().contains(aside), "{value}");
    assert_eq!(kept(), reported, "it is reported once");
}

#[tokio::test]
async fn an_unopened_database_is_a_gap_until_it_opens() {
    let directory = tempfile::tempdir().unwrap();
    let receivers = serde_json::json!({ "format": 1, "connectors": {
        "hooks": { "config": samples::webhook_config(), "target": "PAUSED" } } });
    fs::write(directory.path().join("receivers.json"), receivers.to_string()).unwrap();
    let faults = spool::fault::Faulty::default();
    let worker = worker(directory.path(), true);
    let start = async || {
        let options = spool::SpoolOptions {
            storage: Arc::new(faults.clone()),
            ..spool::SpoolOptions::new(directory.path().join(SPOOL), INITIAL_SPOOL_LIMIT)
        };
        let id = "worker:1".into();
        let starting = Ingest::start_on(options, &worker, &id, store(&worker).await);
        timeout(LIMIT, starting).await.unwrap().unwrap().unwrap()
    };
    let append = async |ingest: &Ingest, sequence| {
        let lane = spool::Lane { topic: "acme.accounting.customers.events".into(), number: 0 };
        ingest
            .status
            .spool
            .append(spool::SpoolEntry { lane, sequence, payload: vec![0; 9].into() })
            .await
            .unwrap();
    };
    let started_at = model::Moment::now().micros();
    let ingest = start().await;
    let before = model::Moment::now().micros();
    append(&ingest, 1).await;
    stop(ingest).await;

    faults.refuse_opens(1);
    let ingest = start().await;
    append(&ingest, 2).await;
    let without = ingest.status.spool.totals().entries;
    let report = ingest.watch().report();
    stop(ingest).await;
    let gaps = GapFile::load(directory.path(), "worker:1".into()).unwritten();
    let ingest = start().await;
    let with = ingest.status.spool.totals().entries;
    stop(ingest).await;

    assert_eq!((without, with), (1, 2));
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert!(gaps[0].key().as_str().starts_with("gap/hooks/spool/"), "{gaps:?}");
    let detail = gaps[0].value()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("/spool/1 of the spool could not be opened"), "{detail}");
    let from = gaps[0].value()["from"].as_i64().unwrap();
    // A file's time is that of the last tick of the system's clock.
    assert!(
        (started_at - 100_000..=before).contains(&from),
        "{from} is not within {started_at} and {before}"
    );
    let unopened = report["spool"]["unopened"][0].as_str().unwrap();
    assert!(unopened.ends_with("/spool/1"), "{report}");
}

#[tokio::test]
async fn a_worker_is_unwell_only_once_it_has_to_refuse_deliveries() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = samples::webhook_config();
    config.insert("spool.limit.bytes".to_owned(), "1048576".to_owned());
    let receivers = serde_json::json!({ "format": 1, "connectors": { "hooks": { "config": config, "target": "PAUSED" } } });
    fs::write(directory.path().join("receivers.json"), receivers.to_string()).unwrap();
    let ingest = start(&worker(directory.path(), true)).await.unwrap().unwrap();
    let append = |sequence, size| {
        let lane = spool::Lane { topic: "acme.accounting.customers.events".into(), number: 0 };
        ingest.status.spool.append(spool::SpoolEntry { lane, sequence, payload: vec![0; size].into() })
    };

    append(1, 1_000).await.unwrap();
    let with_room = ingest.watch().refuses();
    append(2, 1_040_000).await.unwrap();
    let full = ingest.watch().refuses();
    let report = ingest.watch().report();
    stop(ingest).await;

    assert_eq!(with_room, None);
    assert!(
        full.is_some_and(|reported| reported.contains("503") && reported.contains("limit is reached")),
        "{report}"
    );
    assert_eq!((&report["receivers"]["hooks"], &report["spool"]["entries"]), (&"PAUSED".into(), &2.into()));
}

#[tokio::test]
async fn a_part_that_ends_by_itself_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut ingest = start(&worker(directory.path(), true)).await.unwrap().unwrap();
    let early = timeout(Duration::from_millis(100), ingest.ended()).await;

    ingest.status.spool.close(LIMIT).await;

    assert!(early.is_err(), "{early:?}");
    assert_eq!(timeout(LIMIT, ingest.ended()).await.unwrap(), "spool");
}

#[tokio::test]
async fn a_delivery_of_another_version_is_kept_and_is_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let receivers = serde_json::json!({ "format": 1, "connectors": {
        "hooks": { "config": samples::webhook_config(), "target": "RUNNING" } } });
    fs::write(directory.path().join("receivers.json"), receivers.to_string()).unwrap();
    let lane = spool::Lane { topic: "acme.accounting.customers.events".into(), number: 0 };
    let spool = Spool::open(spool::SpoolOptions::new(directory.path().join(SPOOL), 1 << 20)).unwrap().spool;
    let before = std::time::SystemTime::now();
    let entry = spool::SpoolEntry { lane: lane.clone(), sequence: 1, payload: vec![99; 100].into() };
    spool.append(entry).await.unwrap();
    spool.close(LIMIT).await;
    drop(spool);

    let mut keys = Vec::new();
    // However often it is started.
    for _ in 0..2 {
        let ingest = start(&worker(directory.path(), true)).await.unwrap().unwrap();
        let mut failures = ingest.status.spool.failures();
        timeout(LIMIT, failures.wait_for(|failures| failures.foreign.entries == 1)).await.unwrap().unwrap();
        let reported = async {
            while GapFile::load(directory.path(), "worker:1".into()).unwritten().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, reported).await.expect("no gap was opened");
        let report = ingest.watch().report();
        stop(ingest).await;
        let gaps = GapFile::load(directory.path(), "worker:1".into()).unwritten();
        keys.extend(gaps.iter().map(|gap| gap.key().as_str().to_owned()));
        let spool = &report["spool"];
        assert_eq!(
            (&spool["entries"], &spool["oldest_seconds"]),
            (&0.into(), &serde_json::Value::Null),
            "{report}"
        );
        assert_eq!(spool["of_other_versions"]["entries"], 1, "{report}");
    }

    assert!(keys.len() == 2 && keys[0] == keys[1], "one gap each time: {keys:?}");
    let at: u128 = keys[0].rsplit('/').next().unwrap().parse().unwrap();
    let since = before.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    assert!(
        (since / 1_000 * 1_000..since + 30_000_000).contains(&at),
        "it began when it was appended: {keys:?}"
    );
    let spool = Spool::open(spool::SpoolOptions::new(directory.path().join(SPOOL), 1 << 20)).unwrap().spool;
    let kept = spool.read(&lane, None, 9, 1 << 20).await.unwrap().entries;
    assert_eq!(kept.iter().map(|entry| entry.payload.len()).collect::<Vec<_>>(), [100]);
}
