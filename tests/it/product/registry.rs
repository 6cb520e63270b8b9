//! The registry at start: obeyed when it refuses, done without while it is away, and told apart from
//! something that is no registry.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use base::retry::Retry;
use kafka::embedded;
use model::{AccountingResource, CompanyId, Origin, Outgoing, RecordMeta, SchemaKind, Topic, Value};
use serde_json::json;
use tributary::avro::{Encoder, Ids, Subject};
use tributary::pipeline::{self, Publisher};

use crate::support::place::{Place, chain};
use crate::support::topics::LIMIT;
use crate::support::{Registry, Result, Shared, cycles, ports};

crate::tests! {
    real a_schema_that_breaks_registered_readers_is_refused_and_nothing_written;
    real a_new_subject_demands_of_later_versions_that_they_read_all_earlier_ones;
    real workers_that_start_together_get_the_same_id;
    real an_address_that_is_no_registry_is_refused_with_a_hint;
    plain without_ids_a_registry_that_is_away_is_worth_another_try;
    disturbing ids_of_an_earlier_run_serve_while_the_registry_is_away within 180;
}

const CUSTOMERS: Topic = Topic::AccountingRecords(AccountingResource::Customers);

async fn a_schema_that_breaks_registered_readers_is_refused_and_nothing_written(
    shared: &'static Shared,
) -> Result<()> {
    let place = Place::on(shared, "incompatible")?;
    let subject = format!("{}-value", place.name(CUSTOMERS));
    let versions = format!("{}/subjects/{subject}/versions", shared.registry());
    let other = json!({
        "type": "record", "name": "Customer", "namespace": "io.tributary",
        "fields": [{"name": "companyId", "type": "long"}],
    });
    let client = reqwest::Client::new();
    let posted = client.post(&versions).json(&json!({ "schema": other.to_string() })).send().await.unwrap();
    assert_eq!(posted.status(), 200);

    let error = place.open(&place.layout([CUSTOMERS])).await.map(drop).unwrap_err();

    assert_eq!(error.retry(), Retry::Never);
    let text = chain(&error);
    for part in [subject.as_str(), "field companyId", "BACKWARD_TRANSITIVE", "version 1", "long", "string"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    let registered: Vec<u32> = client.get(&versions).send().await.unwrap().json().await.unwrap();
    assert_eq!(registered, [1], "something was registered");
    assert!(place.read(&place.name(CUSTOMERS)).await.is_empty(), "something was published");
    Ok(())
}

async fn a_new_subject_demands_of_later_versions_that_they_read_all_earlier_ones(
    shared: &'static Shared,
) -> Result<()> {
    let place = Place::on(shared, "guarded")?;

    place.open(&place.layout([CUSTOMERS])).await.unwrap();

    let url = format!("{}/config/{}-value", shared.registry(), place.name(CUSTOMERS));
    let level: serde_json::Value = reqwest::get(url).await.unwrap().json().await.unwrap();
    assert_eq!(level["compatibilityLevel"], "BACKWARD_TRANSITIVE", "{level}");
    Ok(())
}

async fn workers_that_start_together_get_the_same_id(shared: &'static Shared) -> Result<()> {
    for _ in 0..cycles("REGISTRY", 2) {
        let place = Place::on(shared, "rivals")?;
        let subjects = [Subject::of(CUSTOMERS, &place.prefix).unwrap()];
        let (topic, outgoing) = (place.name(CUSTOMERS), customer("1"));
        let rivals = futures::future::join_all((0..4).map(|_| place.ids())).await;

        let prepared = futures::future::join_all(rivals.iter().map(|rival| rival.prepare(&subjects))).await;

        assert!(prepared.iter().all(|result| result.is_ok()), "{prepared:?}");
        // A framed record has its schema id after the first byte.
        let id_of = |rival: &Ids| {
            let encoder = Encoder::new(rival, &subjects);
            let framed = encoder.encode(&topic, outgoing.value.as_deref().unwrap()).unwrap();
            u32::from_be_bytes(framed[1..5].try_into().unwrap())
        };
        let ids: BTreeSet<_> = rivals.iter().map(id_of).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
    Ok(())
}

async fn an_address_that_is_no_registry_is_refused_with_a_hint(shared: &'static Shared) -> Result<()> {
    let mut place = Place::on(shared, "wrong-path")?;
    place.registry.urls[0].set_path("/apis/ccompat/v99");

    let error = place.open(&place.layout([CUSTOMERS])).await.map(drop).unwrap_err();

    assert_eq!(error.retry(), Retry::Never);
    let text = chain(&error);
    for part in ["/apis/ccompat/v99", "404", "is the base path right?"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    Ok(())
}

async fn without_ids_a_registry_that_is_away_is_worth_another_try() -> Result<()> {
    let [nobody] = ports::free::<1>()?;
    let url = format!("http://127.0.0.1:{nobody}/apis/ccompat/v7");
    let place = embedded(&url, "no-ids")?;

    let error = place.open(&place.layout([CUSTOMERS, Topic::Certificates])).await.map(drop).unwrap_err();

    assert_eq!(error.retry(), Retry::Later);
    let text = chain(&error);
    for part in [&*place.name(CUSTOMERS), &*place.name(Topic::Certificates), &url, "no answer"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    Ok(())
}

async fn ids_of_an_earlier_run_serve_while_the_registry_is_away() -> Result<()> {
    let mut registry = Registry::start().await?;
    let place = embedded(&registry.url(), "kept-ids")?;
    let layout = place.layout([CUSTOMERS]);
    place.open(&layout).await.unwrap();

    registry.kill();
    let ids = place.ids().await;
    let opened = pipeline::open(&layout, &place.admin, &ids).await.unwrap();
    let publisher = Publisher::new(opened.preparer, place.producer());
    let away = customer("1");
    publisher.publish(&away).await.unwrap();
    let unconfirmed = ids.unconfirmed();
    ids.refresh().await.unwrap();
    let still_unconfirmed = ids.unconfirmed();
    registry.restart().await?;
    // It may be slow to answer the first time.
    let restarted = Instant::now();
    while ids.unconfirmed() > 0 && restarted.elapsed() < LIMIT {
        ids.refresh().await.unwrap();
    }
    let back = customer("2");
    publisher.publish(&back).await.unwrap();

    assert_eq!((unconfirmed, still_unconfirmed, ids.unconfirmed()), (1, 1, 0));
    let found = place.read(&place.name(CUSTOMERS)).await;
    let decoder = place.decoder();
    for (record, outgoing) in found.iter().zip([&away, &back]) {
        let value = record.value.as_deref().unwrap();
        let (_, decoded) = decoder.decode(SchemaKind::Customer, value).await.unwrap();
        assert_eq!(Some(&decoded), outgoing.value.as_deref());
    }
    assert_eq!(found.len(), 2);
    Ok(())
}

/// On the in-process cluster: here only the registry fails.
fn embedded(registry: &str, name: &str) -> Result<Place> {
    let cluster = Arc::new(embedded::EmbeddedCluster::start(1).unwrap());
    Place::at(cluster.settings(), kafka::Admin::Embedded(cluster), registry, name)
}

fn customer(sequence: &str) -> Outgoing {
    let json = json!({ "correlationId": "c-1", "tradeName": "Æther", "sequenceVersion": sequence });
    let company = CompanyId::new("acc:1:CM:company").unwrap();
    let resource = AccountingResource::Customers;
    let value = Value::from_resource_json(json.to_string().as_bytes(), resource, &company).unwrap();
    Outgoing::new(value, RecordMeta::new(sequence, Origin::Enrichment)).unwrap()
}
