//! Partitions as any Kafka client would choose them, so that readers in other languages find a company.
//!
//! The partitions that Kafka's Java producer chooses for keys must be those that we compute.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use base::retry::Retry;
use kafka::{Kafka, MIN_MAX_MESSAGE_BYTES, TopicSpec, partition_of, read_to_end};
use model::{
    AccountingEvent, AccountingResource, Cleanup, CompanyId, Origin, Outgoing, Reception, RecordMeta, Topic,
    Value,
};

use crate::support::broker::tool_with_input;
use crate::support::place::{PARTITIONS, Place, chain};
use crate::support::{Result, Shared};

crate::tests! {
    real java_producer_chooses_the_same_partitions;
    real records_share_the_partition_of_their_companys_events;
    real zstd_topic_is_read_or_refused_by_name;
}

const RESOURCE: AccountingResource = AccountingResource::Customers;
const LIMIT: Duration = Duration::from_secs(60);

async fn java_producer_chooses_the_same_partitions(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "java")?;
    let topic = format!("{}.keys", place.prefix);
    let (name, cleanup, configs) = (topic.clone(), Cleanup::Delete, BTreeMap::new());
    let min_message_bytes = MIN_MAX_MESSAGE_BYTES;
    let spec = TopicSpec {
        name,
        partitions: PARTITIONS,
        may_grow: false,
        replication_factor: -1,
        cleanup,
        min_message_bytes,
        configs,
    };
    place.admin.ensure(&[spec]).await.unwrap();
    let keys: Vec<String> = (0..400).map(key).collect();
    let mut lines = String::new();
    keys.iter().for_each(|key| writeln!(lines, "{key}\tx").unwrap());

    let arguments =
        ["--bootstrap-server", shared.bootstrap(), "--topic", &topic, "--reader-property", "parse.key=true"];
    tool_with_input("org.apache.kafka.tools.ConsoleProducer", &arguments, &lines).await?;

    let chosen: BTreeMap<String, i32> = place
        .read(&topic)
        .await
        .into_iter()
        .map(|record| (String::from_utf8(record.key.unwrap().to_vec()).unwrap(), record.partition))
        .collect();
    assert_eq!(chosen.len(), keys.len(), "keys were lost or changed on the way");
    for key in &keys {
        assert_eq!(chosen.get(key), Some(&partition_of(key.as_bytes(), PARTITIONS)), "{key}");
    }
    let reached = (0..PARTITIONS).filter(|partition| chosen.values().any(|other| other == partition));
    assert_eq!(reached.count(), 3, "the keys do not reach every partition");
    Ok(())
}

/// Brokers and other producers may use a codec that this build lacks.
async fn zstd_topic_is_read_or_refused_by_name(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "zstd")?;
    let topic = place.name(Topic::AccountingEvents(RESOURCE));
    place.open(&place.layout([Topic::AccountingEvents(RESOURCE)])).await.unwrap();
    let arguments =
        ["--bootstrap-server", shared.bootstrap(), "--topic", &topic, "--compression-codec", "zstd"];
    tool_with_input("org.apache.kafka.tools.ConsoleProducer", &arguments, &"x".repeat(1_000)).await?;

    let (mut records, partitions) = (0, (0..PARTITIONS).collect::<Vec<_>>());
    let kafka = Kafka::plaintext(shared.bootstrap());
    let read = read_to_end(&kafka, &topic, &partitions, LIMIT, |_| records += 1).await;

    if cfg!(feature = "zstd") {
        assert!(read.is_ok() && records == 1, "{read:?}, {records} records");
    } else {
        let error = read.unwrap_err();
        assert!(chain(&error).contains("build with `--features zstd`"), "{}", chain(&error));
        assert_eq!(error.retry(), Retry::Never);
    }
    Ok(())
}

async fn records_share_the_partition_of_their_companys_events(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "together")?;
    let (events, records) = (Topic::AccountingEvents(RESOURCE), Topic::AccountingRecords(RESOURCE));
    let publisher = place.open(&place.layout([events, records])).await.unwrap();
    let companies: Vec<CompanyId> = (0..60).map(|number| CompanyId::new(key(number)).unwrap()).collect();

    for company in &companies {
        for outgoing in [event(company), record(company)] {
            publisher.publish(&outgoing).await.unwrap();
        }
    }

    let of_events: BTreeMap<Vec<u8>, i32> = place
        .read(&place.name(events))
        .await
        .into_iter()
        .map(|event| (event.key.unwrap().to_vec(), event.partition))
        .collect();
    let of_records = place.read(&place.name(records)).await;
    assert_eq!((of_events.len(), of_records.len()), (companies.len(), companies.len()));
    for record in of_records {
        let key = record.key.unwrap();
        let company = key.split(|byte| *byte == b'/').next().unwrap();
        assert_eq!(of_events.get(company), Some(&record.partition), "{key:?}");
    }
    Ok(())
}

/// Realistic keys: the provider's ids, tenants, short ones, text with one to four bytes per character.
fn key(number: u32) -> String {
    let guid = format!("{number:08x}-9d4e-4f5a-8b6c-{:012x}", u64::from(number) * 7_919_717);
    match number % 6 {
        0 => format!("acc:{number}:CM:{guid}"),
        1 => guid,
        2 => format!("größe-{number}-é"),
        3 => format!("会社{number}"),
        4 => format!("{number}😀"),
        _ => number.to_string(),
    }
}

fn event(company: &CompanyId) -> Outgoing {
    let json = serde_json::json!({ "ExtraPartitionInformation": { "PartitionClientId": company } });
    let reception = Reception { connector: "hooks", received_at: 0 };
    let event = AccountingEvent::from_json(json.to_string().as_bytes(), RESOURCE, reception).unwrap();
    // Stamped by the producer: retention would remove a record of 1970.
    Outgoing {
        timestamp_ms: None,
        ..Outgoing::new(event.into(), RecordMeta::new("e", Origin::Webhook)).unwrap()
    }
}

fn record(company: &CompanyId) -> Outgoing {
    let json = br#"{"correlationId": "an/id", "sequenceVersion": "1"}"#;
    let value = Value::from_resource_json(json, RESOURCE, company).unwrap();
    Outgoing::new(value, RecordMeta::new("r", Origin::Snapshot)).unwrap()
}
