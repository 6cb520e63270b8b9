//! Workers that start and end while Kafka and the registry are away.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::future::join_all;

use super::cluster::{CONNECTOR, IngestCluster, SECRET, until};
use super::delivery::Delivery;
use crate::support::tries::Tries;
use crate::support::{Registry, Result, breakable, run_directory};

crate::tests! {
    disturbing a_worker_started_without_kafka_and_registry_still_receives within 240;
    plain a_worker_keeps_other_users_out_of_its_state within 120;
    disturbing a_stop_while_kafka_is_frozen_answers_waiting_requests within 240;
}

const COMPANY: &str = "company:1:CM:a";

async fn a_worker_started_without_kafka_and_registry_still_receives() -> Result<()> {
    let mut broker = breakable::take().await?;
    let registry = Registry::start().await?;
    let cluster = IngestCluster::at(&broker.bootstrap(), &registry.url(), "ingest-outage")?;
    let worker = cluster.start().await?;
    worker.change("PUT", "/config", Some(&cluster.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    assert_eq!(worker.deliver(&Delivery::change("before", COMPANY, 1)).await, 200);
    cluster.until_published(&["before"]).await;
    let directory = worker.directory.clone();
    worker.stop().await?;
    registry.kill();
    broker.kill();

    let worker = cluster.spawn(&directory).await?;
    let first = worker.deliver(&Delivery::change("during", COMPANY, 2)).await;
    let forged =
        worker.send(&Delivery::change("forged", COMPANY, 3), "fedcba9876543210-other").await.status();
    let (status, health) = worker.health().await;
    worker.kill();
    let worker = cluster.spawn(&directory).await?;
    let second = worker.deliver(&Delivery::change("after a crash", COMPANY, 4)).await;
    broker.restart().await?;

    assert_eq!((first, forged.as_u16(), second), (200, 401, 200));
    assert_eq!((status, &health["status"]), (503, &"starting".into()), "{health}");
    assert_eq!(health["ingest"]["spool"]["entries"], 1, "{health}");
    // The registry stays away: the worker has cached its ids.
    cluster.until_published(&["before", "during", "after a crash"]).await;
    Ok(())
}

/// Files with open permissions, left by an earlier version or by mistake, are closed; the store never creates one.
async fn a_worker_keeps_other_users_out_of_its_state() -> Result<()> {
    let cluster = IngestCluster::at("127.0.0.1:1", "http://127.0.0.1:1", "ingest-private")?;
    let directory = run_directory::create("ingest-private")?;
    let state = directory.join("state");
    for part in ["spool", "grants"] {
        fs::create_dir_all(state.join(part)).unwrap();
    }
    let files = ["receivers.json", "schema-ids.json", "grants/acc.grant"].map(|file| state.join(file));
    for file in &files {
        fs::write(file, "{}").unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o666)).unwrap();
    }
    for part in ["", "spool", "grants"] {
        fs::set_permissions(state.join(part), Permissions::from_mode(0o777)).unwrap();
    }

    let worker = cluster.spawn(&directory).await?;
    let found = modes(&state);
    worker.kill();

    assert!(found.iter().any(|(path, _)| path.ends_with("spool/lock")), "{found:?}");
    for (path, mode) in found {
        assert_eq!(mode & 0o077, 0, "{} has {mode:o}", path.display());
    }
    Ok(())
}

/// All files and directories with their modes.
fn modes(under: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = vec![(under.to_owned(), under.metadata().unwrap().permissions().mode())];
    for path in fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()) {
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => found.extend(modes(&path)),
            Ok(metadata) => found.push((path, metadata.permissions().mode())),
            // The store may remove files meanwhile.
            Err(_) => {}
        }
    }
    found
}

/// Without a stop they would be answered after 2.5 s. If a busy machine takes that long to stop the worker, the round proves nothing
/// and is repeated.
async fn a_stop_while_kafka_is_frozen_answers_waiting_requests() -> Result<()> {
    const COUNT: u32 = 8;
    let broker = breakable::take().await?;
    let registry = Registry::start().await?;
    let cluster = IngestCluster::at(&broker.bootstrap(), &registry.url(), "ingest-hurry")?;
    let mut tries = Tries::of("a stop answers deliveries that wait for Kafka");
    let mut longest = Vec::new();
    for round in 0..3 {
        let worker = cluster.start().await?;
        worker.change("PUT", "/config", Some(&cluster.connector())).await;
        worker.until_received(Some("RUNNING")).await;
        let first = format!("round-{round}");
        assert_eq!(worker.deliver(&Delivery::change(&first, COMPANY, 1)).await, 200);
        let published = until(async || cluster.published().await.contains(&first));
        assert!(published.await, "{:?}", cluster.published().await);

        broker.pause()?;
        let deliveries =
            (0..COUNT).map(|number| Delivery::change(&format!("{round}-{number}"), COMPANY, number));
        let sending = deliveries.map(|delivery| {
            let request = worker.request(CONNECTOR, &delivery, SECRET);
            tokio::spawn(async move {
                let begun = Instant::now();
                (request.send().await.map(|answer| answer.status().as_u16()), begun.elapsed())
            })
        });
        let sending: Vec<_> = sending.collect();
        let mut waited = false;
        let looked = until(async || {
            let used = worker.health().await.1["ingest"]["intake"]["memory_bytes"].as_u64();
            waited = used.is_some_and(|bytes| bytes > u64::from(COUNT) * 512);
            waited || sending.iter().all(|one| one.is_finished())
        });
        let looked = looked.await;
        let stopping = worker.stop().await;
        broker.resume()?;

        assert!(looked, "they are neither in flight nor answered");
        stopping?;
        let answers: Vec<_> = join_all(sending).await.into_iter().map(std::result::Result::unwrap).collect();
        assert!(answers.iter().all(|(status, _)| matches!(status, Ok(200))), "{answers:?}");
        // Deliveries that were answered before the test saw them wait prove nothing.
        let last = if waited { answers.iter().map(|(_, took)| *took).max().unwrap() } else { Duration::MAX };
        longest.push(last);
        if tries.held(last < Duration::from_millis(2_400)) {
            return Ok(());
        }
    }
    panic!("answered only by their deadline: {longest:?}");
}
