//! Connectors that are created, changed and deleted while deliveries come in.

use std::fs;
use std::path::Path;

use kafka::partition_of;
use model::{AccountingResource, SchemaKind, Topic, Value};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use serde_json::json;

use super::cluster::{CONNECTOR, IngestCluster, SECRET, until};
use super::delivery::Delivery;
use crate::support::examples::incompressible;
use crate::support::place::{PARTITIONS, header};
use crate::support::{Result, Shared};

crate::tests! {
    real a_delivery_over_https_is_in_its_topic_as_it_was_sent within 120;
    real a_connector_receives_while_paused_not_stopped_or_deleted within 180;
    real a_rotated_secret_is_valid_at_once_beside_the_previous_one within 120;
    real a_changed_secret_file_takes_effect_a_missing_one_does_not within 120;
    real a_connector_without_its_secret_at_a_start_answers_503 within 180;
    real every_worker_receives_whichever_runs_the_task within 180;
    real a_paused_connector_holds_up_no_other_of_the_same_prefix within 120;
    real deleted_topics_of_a_running_connector_are_recreated within 180;
    real a_record_that_the_broker_refuses_becomes_a_dead_letter within 120;
}

const COMPANY: &str = "company:1:CM:a";
/// Above the default `max.message.bytes` of a topic (1 MiB and a little), below `body.limit.bytes` (8 MiB) and the limit of the
/// dead-letter topic.
const OVERSIZED: usize = 3 << 20;

/// Replaces a file in one step, so that a reader never sees half of it.
fn replace(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(&next, file).unwrap();
}

async fn a_delivery_over_https_is_in_its_topic_as_it_was_sent(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-basic")?;
    let worker = cluster.start().await?;
    let mut config = cluster.connector();
    config["body.limit.bytes"] = "4096".into();
    worker.change("PUT", "/config", Some(&config)).await;
    worker.until_received(Some("RUNNING")).await;
    let delivery = Delivery::change("delivery-1", COMPANY, 7);

    let forged = worker.send(&delivery, "fedcba9876543210-other").await;
    let answer = worker.send(&delivery, SECRET).await;
    let asked = worker.deliver(&Delivery::acknowledge("delivery-2")).await;
    let oversized = worker.deliver(&Delivery::change(&"3".repeat(5_000), COMPANY, 8)).await;

    assert_eq!(forged.status(), 401);
    assert_eq!((answer.status().as_u16(), answer.headers().get("set-cookie")), (200, None));
    assert_eq!(answer.text().await.unwrap(), "");
    assert_eq!((asked, oversized), (200, 413));
    cluster.until_published(&["delivery-1"]).await;
    let records = cluster.read(Topic::AccountingEvents(AccountingResource::Customers)).await;
    let record = &records[0];
    assert_eq!(record.key.as_deref(), Some(COMPANY.as_bytes()));
    assert_eq!(record.partition, partition_of(COMPANY.as_bytes(), PARTITIONS));
    assert_eq!(header(record, "tributary.origin"), Some("webhook"));
    let value = record.value.as_deref().unwrap();
    let (_, decoded) = cluster.topics.decoder().decode(SchemaKind::AccountingEvent, value).await.unwrap();
    let Value::AccountingEvent(event) = decoded else { panic!("{decoded:?}") };
    assert_eq!((event.connector.as_str(), event.data.sequence), (CONNECTOR, Some(7)));
    assert_eq!(event.data.correlation_id.as_deref(), Some("customer:1"));
    let acknowledged = until(async || cluster.state("acknowledge/hooks/webhook-1").await.is_some());
    assert!(acknowledged.await, "the Acknowledge was not recorded");
    let gap = until(async || cluster.state("gap/hooks/oversized/").await.is_some());
    assert!(gap.await, "no gap was opened for the oversized delivery");
    // The status topic may show RUNNING after the first record is published.
    let is_running = until(async || {
        let (_, status) = worker.ask("GET", &format!("/connectors/{CONNECTOR}/status"), None).await;
        status["tasks"][0]["state"] == "RUNNING"
    });
    assert!(is_running.await, "its status is not RUNNING");
    Ok(())
}

async fn a_connector_receives_while_paused_not_stopped_or_deleted(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-states")?;
    let worker = cluster.start().await?;
    worker.change("PUT", "/config", Some(&cluster.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    let deliver = async |id: &str| worker.deliver(&Delivery::change(id, COMPANY, 1)).await;
    assert_eq!(deliver("running").await, 200);
    cluster.until_published(&["running"]).await;

    worker.change("PUT", "/pause", None).await;
    worker.until_received(Some("PAUSED")).await;
    assert_eq!(deliver("paused").await, 200);
    let (_, health) = worker.health().await;
    assert_eq!(health["ingest"]["spool"]["entries"], 1, "{health}");
    assert_eq!(cluster.published().await, ["running"]);
    worker.change("PUT", "/resume", None).await;
    cluster.until_published(&["running", "paused"]).await;

    worker.change("PUT", "/stop", None).await;
    worker.until_received(Some("STOPPED")).await;
    let refused = worker.send(&Delivery::change("stopped", COMPANY, 1), SECRET).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let mut gap = None;
    let opened = until(async || {
        gap = cluster.state("gap/hooks/stopped/").await;
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
    assert_eq!(deliver("after the end").await, 401);
    cluster.until_published(&["running", "paused", "before the end"]).await;
    Ok(())
}

async fn a_rotated_secret_is_valid_at_once_beside_the_previous_one(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-rotation")?;
    let worker = cluster.start().await?;
    let next = "0123456789abcdef-second";
    let mut config = cluster.connector();
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
    assert!(until(async || status(next).await == 200).await, "the new secret is not valid");
    assert_eq!(status(SECRET).await, 200, "the previous secret is no longer valid");

    config.as_object_mut().unwrap().remove("accounting.secret.previous");
    worker.change("PUT", "/config", Some(&config)).await;
    assert!(until(async || status(SECRET).await == 401).await, "the previous secret is still valid");
    assert_eq!(status(next).await, 200);
    Ok(())
}

async fn a_changed_secret_file_takes_effect_a_missing_one_does_not(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-file")?;
    let worker = cluster.start().await?;
    let file = worker.directory.join("secrets.properties");
    let write = |secret: &str| replace(&file, &format!("other=1\nhooks={secret}\n"));
    let (second, third) = ("0123456789abcdef-second", "0123456789abcdef-third");
    write(SECRET);
    let mut config = cluster.connector();
    config["accounting.secret"] = format!("${{file:{}:hooks}}", file.display()).into();
    worker.change("PUT", "/config", Some(&config)).await;
    worker.until_received(Some("RUNNING")).await;
    let mut taken = Vec::new();
    let mut count = 0;
    let mut status = async |secret: &str| {
        count += 1;
        let id = format!("{count}");
        let status = worker.send(&Delivery::change(&id, COMPANY, 1), secret).await.status().as_u16();
        if status == 200 {
            taken.push(id);
        }
        status
    };
    let fault = async || worker.health().await.1["ingest"]["faults"][CONNECTOR].as_str().map(str::to_owned);
    assert_eq!((status(SECRET).await, status(second).await), (200, 401));

    write(second);
    assert!(until(async || status(second).await == 200).await, "{}", worker.said());
    assert_eq!(status(SECRET).await, 401, "the previous secret is still valid");

    fs::remove_file(&file).unwrap();
    let mut reported = None;
    let is_reported = until(async || {
        reported = fault().await;
        reported.is_some()
    });
    assert!(is_reported.await, "{}", worker.said());
    assert_eq!(status(second).await, 200, "the secret was lost with its file");
    write(third);
    assert!(until(async || status(third).await == 200).await, "{}", worker.said());

    assert!(reported.unwrap().contains("accounting.secret"));
    assert_eq!((status(second).await, fault().await), (401, None));
    let taken: Vec<&str> = taken.iter().map(String::as_str).collect();
    cluster.until_published(&taken).await;
    let said = worker.stop().await?;
    assert_eq!(said.matches("cannot be received as it is configured").count(), 1, "{said}");
    assert!(!said.contains(second) && !said.contains(third), "{said}");
    Ok(())
}

async fn a_connector_without_its_secret_at_a_start_answers_503(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-late")?;
    let worker = cluster.start().await?;
    let directory = worker.directory.clone();
    let file = directory.join("secrets.properties");
    let write = || replace(&file, &format!("hooks={SECRET}\n"));
    write();
    let mut config = cluster.connector();
    config["accounting.secret"] = format!("${{file:{}:hooks}}", file.display()).into();
    worker.change("PUT", "/config", Some(&config)).await;
    worker.until_received(Some("RUNNING")).await;
    worker.stop().await?;
    fs::remove_file(&file).unwrap();

    let worker = cluster.spawn(&directory).await?;
    let early = worker.send(&Delivery::change("early", COMPANY, 1), SECRET).await;
    // Unknown connectors are refused only once the config topic is read.
    let others = async || worker.post("/webhooks/accounting/others").send().await.unwrap().status() == 401;
    assert!(until(others).await, "{}", worker.said());
    let known = worker.send(&Delivery::change("early", COMPANY, 1), SECRET).await;
    write();

    for answer in [early, known] {
        assert_eq!(answer.status(), 503);
        assert!(answer.headers().contains_key("retry-after"));
    }
    let taken = until(async || worker.deliver(&Delivery::change("later", COMPANY, 2)).await == 200);
    assert!(taken.await, "{}", worker.said());
    cluster.until_published(&["later"]).await;
    Ok(())
}

async fn every_worker_receives_whichever_runs_the_task(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-both")?;
    let first = cluster.start().await?;
    let second = cluster.start().await?;
    first.change("PUT", "/config", Some(&cluster.connector())).await;
    let workers = [&first, &second];
    for worker in workers {
        worker.until_received(Some("RUNNING")).await;
    }

    for (number, worker) in workers.into_iter().enumerate() {
        assert_eq!(worker.deliver(&Delivery::change(&format!("at-{number}"), COMPANY, 1)).await, 200);
        let published = until(async || cluster.published().await.len() == number + 1);
        assert!(published.await, "{:?}", cluster.published().await);
    }

    assert_eq!(cluster.published().await, ["at-0", "at-1"]);
    let said = second.stop().await?;
    assert!(said.contains("deliveries are in Kafka or in the spool"), "{said}");
    assert_eq!(first.deliver(&Delivery::change("at-the-one-left", COMPANY, 1)).await, 200);
    Ok(())
}

async fn a_paused_connector_holds_up_no_other_of_the_same_prefix(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-beside")?;
    let worker = cluster.start().await?;
    worker.change("PUT", "/config", Some(&cluster.connector())).await;
    let other = worker.ask("PUT", "/connectors/other/config", Some(&cluster.connector())).await;
    assert_eq!(other.0, 201, "{other:?}");
    worker.change("PUT", "/pause", None).await;
    worker.until_received(Some("PAUSED")).await;
    let running = async || worker.health().await.1["ingest"]["receivers"]["other"] == "RUNNING";
    assert!(until(running).await, "the other is not received");

    // All of one company, so that only the connector distinguishes them.
    for number in 0..10 {
        for connector in [CONNECTOR, "other"] {
            let delivery = Delivery::change(&format!("{connector}-{number}"), COMPANY, number);
            let answer = worker.request(connector, &delivery, SECRET).send().await.unwrap();
            assert_eq!(answer.status(), 200);
        }
    }

    let of = |connector: &str| (0..10).map(|number| format!("{connector}-{number}")).collect::<Vec<_>>();
    let mut found = Vec::new();
    let published = until(async || {
        found = cluster.published().await;
        found.len() >= 10
    });
    assert!(published.await, "{found:?}");
    assert_eq!(found, of("other"));
    let kept = async || worker.health().await.1["ingest"]["spool"]["entries"] == 10;
    assert!(until(kept).await, "{}", worker.health().await.1);
    worker.change("PUT", "/resume", None).await;
    assert!(until(async || cluster.published().await.len() >= 20).await, "{:?}", cluster.published().await);
    assert_eq!(cluster.published().await[10..], of(CONNECTOR));
    Ok(())
}

async fn deleted_topics_of_a_running_connector_are_recreated(shared: &'static Shared) -> Result<()> {
    let mut cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-deleted")?;
    // For this long librdkafka assumes that a new topic which is missing at a broker has only not reached it yet.
    cluster.set("producer.topic.metadata.propagation.max.ms", "500");
    let worker = cluster.start().await?;
    worker.change("PUT", "/config", Some(&cluster.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    assert_eq!(worker.deliver(&Delivery::change("before", COMPANY, 1)).await, 200);
    cluster.until_published(&["before"]).await;

    let topic = cluster.topics.name(Topic::AccountingEvents(AccountingResource::Customers));
    let mut config = rdkafka::ClientConfig::new();
    let admin: AdminClient<DefaultClientContext> =
        config.set("bootstrap.servers", shared.bootstrap()).create().unwrap();
    admin.delete_topics(&[&topic], &AdminOptions::new()).await.unwrap().pop().unwrap().unwrap();
    // The controller deletes the topic before the broker does, which still accepts records for it until then.
    let gone = until(async || {
        let is_gone = cluster.topics.admin.partition_counts(&[&topic]).await.unwrap().is_empty();
        is_gone || worker.said().contains("topics of the connector are gone")
    });
    assert!(gone.await, "{}", worker.said());
    // One after the other: if the first waits for a missing topic, the others wait behind it.
    for number in 0..5 {
        let id = format!("after-{number}");
        assert_eq!(worker.deliver(&Delivery::change(&id, COMPANY, 2 + number)).await, 200);
    }

    let expected: Vec<_> = (0..5).map(|number| format!("after-{number}")).collect();
    let mut found = Vec::new();
    let published = until(async || {
        found = cluster.published().await;
        found.len() >= 5
    });
    assert!(published.await, "{found:?}\n{}", worker.health().await.1);
    assert_eq!(found, expected);
    let faultless = async || {
        let ingest = worker.health().await.1["ingest"].take();
        ingest["faults"] == json!({}) && ingest["spool"]["entries"] == 0
    };
    assert!(until(faultless).await, "{}", worker.health().await.1);
    Ok(())
}

async fn a_record_that_the_broker_refuses_becomes_a_dead_letter(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-refused")?;
    let worker = cluster.start().await?;
    worker.change("PUT", "/config", Some(&cluster.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    let user = String::from_utf8(incompressible(OVERSIZED)).unwrap();
    let large = Delivery::change("large", COMPANY, 1).by(user);

    let answer = worker.deliver(&large).await;
    let small = worker.deliver(&Delivery::change("small", COMPANY, 2)).await;

    assert_eq!((answer, small), (200, 200));
    cluster.until_published(&["small"]).await;
    let mut letters = Vec::new();
    let written = until(async || {
        letters = cluster.read(Topic::DeadLetters).await;
        !letters.is_empty()
    });
    assert!(written.await, "no dead letter\n{}", worker.said());
    // On a slow machine the spool answers first, and the drain writes the same letter again.
    for letter in &letters {
        assert!(letter.value.as_deref() == Some(large.body().as_bytes()), "the body was changed");
        assert_eq!(letter.key.as_deref(), Some(CONNECTOR.as_bytes()));
        assert_eq!(header(letter, "__connect.errors.connector.name"), Some(CONNECTOR));
        assert_eq!(header(letter, "__connect.errors.stage"), Some("KAFKA_PRODUCE"));
        let class = header(letter, "__connect.errors.exception.class.name");
        assert_eq!(class, Some("kafka::Error::RecordRefused"));
        let trace = header(letter, "__connect.errors.exception.stacktrace").unwrap();
        let topic = cluster.topics.name(Topic::AccountingEvents(AccountingResource::Customers));
        assert!(trace.contains(&topic) && trace.contains("too large"), "{trace}");
    }
    let drained = async || worker.health().await.1["ingest"]["spool"]["entries"] == 0;
    assert!(until(drained).await, "{}", worker.health().await.1);
    Ok(())
}
