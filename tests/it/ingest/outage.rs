//! Workers that start while Kafka and the registry are away.

use super::delivery::Delivery;
use super::place::Place;
use crate::support::{Registry, Result, breakable};

crate::tests! {
    disturbing a_worker_that_starts_without_kafka_and_registry_receives_what_it_received_before within 240;
}

const COMPANY: &str = "company:1:CM:a";

async fn a_worker_that_starts_without_kafka_and_registry_receives_what_it_received_before() -> Result<()> {
    let mut broker = breakable::take().await?;
    let registry = Registry::start().await?;
    let place = Place::at(&broker.bootstrap(), &registry.url(), "ingest-outage")?;
    let worker = place.start().await?;
    worker.change("PUT", "/config", Some(&place.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    assert_eq!(worker.deliver(&Delivery::change("before", COMPANY, 1)).await, 200);
    place.until_published(&["before"]).await;
    let directory = worker.directory.clone();
    worker.stop().await?;
    registry.kill();
    broker.kill();

    let worker = place.spawn(&directory).await?;
    let first = worker.deliver(&Delivery::change("during", COMPANY, 2)).await;
    let forged =
        worker.send(&Delivery::change("forged", COMPANY, 3), "fedcba9876543210-other").await.status();
    let (status, health) = worker.health().await;
    worker.kill();
    let worker = place.spawn(&directory).await?;
    let second = worker.deliver(&Delivery::change("after a crash", COMPANY, 4)).await;
    broker.restart().await?;

    assert_eq!((first, forged.as_u16(), second), (200, 401, 200));
    assert_eq!((status, &health["status"]), (503, &"starting".into()), "{health}");
    assert_eq!(health["ingest"]["spool"]["entries"], 1, "{health}");
    // The registry stays away: the ids it gave are known.
    place.until_published(&["before", "during", "after a crash"]).await;
    Ok(())
}
