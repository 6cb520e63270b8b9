//! Connectors that come, change and go while deliveries come in.

use serde_json::json;
use tributary::kafka::partition_of;
use tributary::model::{AccountingResource, SchemaKind, Topic, Value};

use super::delivery::Delivery;
use super::place::{CONNECTOR, Place, SECRET, until};
use crate::support::place::{PARTITIONS, header};
use crate::support::{Result, Shared};

crate::tests! {
    real a_delivery_over_https_is_in_its_topic_as_it_was_sent within 120;
    real a_paused_connector_keeps_deliveries_a_stopped_one_refuses_them_and_a_deleted_one_is_gone within 180;
    real a_rotated_secret_counts_at_once_and_the_one_before_until_it_is_removed within 120;
    real every_worker_receives_whoever_runs_the_task within 180;
}

const COMPANY: &str = "company:1:CM:a";

async fn a_delivery_over_https_is_in_its_topic_as_it_was_sent(shared: &'static Shared) -> Result<()> {
    let place = Place::at(shared.bootstrap(), shared.registry(), "ingest-basic")?;
    let worker = place.start().await?;
    worker.change("PUT", "/config", Some(&place.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    let delivery = Delivery::change("delivery-1", COMPANY, 7);

    let forged = worker.send(&delivery, "fedcba9876543210-other").await;
    let answer = worker.send(&delivery, SECRET).await;
    let asked = worker.deliver(&Delivery::acknowledge("delivery-2")).await;

    assert_eq!(forged.status(), 401);
    assert_eq!((answer.status().as_u16(), answer.headers().get("set-cookie")), (200, None));
    assert_eq!(answer.text().await.unwrap(), "");
    assert_eq!(asked, 200);
    place.until_published(&["delivery-1"]).await;
    let records = place.read(Topic::AccountingEvents(AccountingResource::Customers)).await;
    let record = &records[0];
    assert_eq!(record.key.as_deref(), Some(COMPANY.as_bytes()));
    assert_eq!(record.partition, partition_of(COMPANY.as_bytes(), PARTITIONS));
    assert_eq!(header(record, "tributary.origin"), Some("webhook"));
    let value = record.value.as_deref().unwrap();
    let (_, decoded) = place.topics.decoder().decode(SchemaKind::AccountingEvent, value).await.unwrap();
    let Value::AccountingEvent(event) = decoded else { panic!("{decoded:?}") };
    assert_eq!((event.connector.as_str(), event.sequence), (CONNECTOR, Some(7)));
    assert_eq!(event.correlation_id.as_deref(), Some("customer:1"));
    let acknowledged = until(async || place.state("acknowledge/hooks/webhook-1").await.is_some());
    assert!(acknowledged.await, "nobody was told of the Acknowledge");
    let (_, status) = worker.ask("GET", &format!("/connectors/{CONNECTOR}/status"), None).await;
    assert_eq!(status["tasks"][0]["state"], "RUNNING", "{status}");
    Ok(())
}

async fn a_paused_connector_keeps_deliveries_a_stopped_one_refuses_them_and_a_deleted_one_is_gone(
    shared: &'static Shared,
) -> Result<()> {
    let place = Place::at(shared.bootstrap(), shared.registry(), "ingest-states")?;
    let worker = place.start().await?;
    worker.change("PUT", "/config", Some(&place.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    let deliver = async |id: &str| worker.deliver(&Delivery::change(id, COMPANY, 1)).await;
    assert_eq!(deliver("running").await, 200);
    place.until_published(&["running"]).await;

    worker.change("PUT", "/pause", None).await;
    worker.until_received(Some("PAUSED")).await;
    assert_eq!(deliver("paused").await, 200);
    let (_, health) = worker.health().await;
    assert_eq!(health["ingest"]["spool"]["entries"], 1, "{health}");
    assert_eq!(place.published().await, ["running"]);
    worker.change("PUT", "/resume", None).await;
    place.until_published(&["running", "paused"]).await;

    worker.change("PUT", "/stop", None).await;
    worker.until_received(Some("STOPPED")).await;
    let refused = worker.send(&Delivery::change("stopped", COMPANY, 1), SECRET).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let mut gap = None;
    let opened = until(async || {
        gap = place.state("gap/hooks/stopped/").await;
        gap.is_some()
    });
    assert!(opened.await, "no gap was opened");
    let gap = gap.unwrap();
    assert_eq!(
        (&gap["state"], &gap["connector"], &gap["cause"]),
        (&json!("open"), &json!(CONNECTOR), &json!("stopped"))
    );

    worker.change("PUT", "/pause", None).await;
    worker.until_received(Some("PAUSED")).await;
    assert_eq!(deliver("before the end").await, 200);
    worker.change("DELETE", "", None).await;
    worker.until_received(None).await;
    assert_eq!(deliver("after the end").await, 404);
    place.until_published(&["running", "paused", "before the end"]).await;
    Ok(())
}

async fn a_rotated_secret_counts_at_once_and_the_one_before_until_it_is_removed(
    shared: &'static Shared,
) -> Result<()> {
    let place = Place::at(shared.bootstrap(), shared.registry(), "ingest-rotation")?;
    let worker = place.start().await?;
    let next = "0123456789abcdef-second";
    let mut config = place.connector();
    worker.change("PUT", "/config", Some(&config)).await;
    worker.until_received(Some("RUNNING")).await;
    let mut count = 0;
    let mut status = async |secret: &str| {
        count += 1;
        worker.send(&Delivery::change(&format!("{count}"), COMPANY, 1), secret).await.status().as_u16()
    };
    assert_eq!((status(SECRET).await, status(next).await), (200, 401));

    config["accounting.secret"] = next.into();
    config["accounting.secret.previous"] = SECRET.into();
    worker.change("PUT", "/config", Some(&config)).await;
    assert!(until(async || status(next).await == 200).await, "the new secret does not count");
    assert_eq!(status(SECRET).await, 200, "the one before does not count any more");

    config.as_object_mut().unwrap().remove("accounting.secret.previous");
    worker.change("PUT", "/config", Some(&config)).await;
    assert!(until(async || status(SECRET).await == 401).await, "the secret before still counts");
    assert_eq!(status(next).await, 200);
    Ok(())
}

async fn every_worker_receives_whoever_runs_the_task(shared: &'static Shared) -> Result<()> {
    let place = Place::at(shared.bootstrap(), shared.registry(), "ingest-both")?;
    let first = place.start().await?;
    let second = place.start().await?;
    first.change("PUT", "/config", Some(&place.connector())).await;
    let workers = [&first, &second];
    for worker in workers {
        worker.until_received(Some("RUNNING")).await;
    }

    for (number, worker) in workers.into_iter().enumerate() {
        assert_eq!(worker.deliver(&Delivery::change(&format!("at-{number}"), COMPANY, 1)).await, 200);
        let published = until(async || place.published().await.len() == number + 1);
        assert!(published.await, "{:?}", place.published().await);
    }

    assert_eq!(place.published().await, ["at-0", "at-1"]);
    let said = second.stop().await?;
    assert!(said.contains("deliveries are in Kafka or in the spool"), "{said}");
    assert_eq!(first.deliver(&Delivery::change("at-the-one-left", COMPANY, 1)).await, 200);
    Ok(())
}
