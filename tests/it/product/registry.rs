//! The registry at start: its refusals are final, a start without it is possible, and an address without a registry is recognized.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use base::retry::Retry;
use kafka::embedded;
use model::{AccountingResource, CompanyId, Origin, Outgoing, RecordMeta, SchemaKind, Topic, Value};
use serde_json::json;
use tributary::{
    avro::{Encoder, Ids, ValueSubject},
    publish::{self, Publisher},
};

use crate::support::{
    Registry, Result, Shared, cycles,
    place::{Place, chain},
    ports,
    topics::LIMIT,
};

crate::tests! {
    real incompatible_schema_is_refused_and_nothing_written;
    real new_subject_is_set_to_backward_transitive;
    real workers_that_start_together_get_the_same_id;
    real address_without_a_registry_is_refused_with_a_hint;
    plain unavailable_registry_without_ids_is_retriable;
    disturbing ids_of_an_earlier_run_serve_without_the_registry within 180;
}

const CUSTOMERS: Topic = Topic::AccountingRecords(AccountingResource::Customers);

async fn incompatible_schema_is_refused_and_nothing_written(shared: &'static Shared) -> Result<()> {
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

async fn new_subject_is_set_to_backward_transitive(shared: &'static Shared) -> Result<()> {
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
        let subjects = [ValueSubject::of(CUSTOMERS, &place.prefix).unwrap()];
        let (topic, outgoing) = (place.name(CUSTOMERS), customer("1"));
        let workers = futures::future::join_all((0..4).map(|_| place.ids())).await;

        let prepared =
            futures::future::join_all(workers.iter().map(|worker| worker.prepare(&subjects))).await;

        assert!(prepared.iter().all(|result| result.is_ok()), "{prepared:?}");
        // A framed record has its schema id after the first byte.
        let id_of = |worker: &Ids| {
            let encoder = Encoder::new(worker, &subjects);
            let framed = encoder.encode(&topic, outgoing.value.as_deref().unwrap()).unwrap();
            u32::from_be_bytes(framed[1..5].try_into().unwrap())
        };
        let ids: BTreeSet<_> = workers.iter().map(id_of).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
    Ok(())
}

async fn address_without_a_registry_is_refused_with_a_hint(shared: &'static Shared) -> Result<()> {
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

async fn unavailable_registry_without_ids_is_retriable() -> Result<()> {
    let [unused_port] = ports::free::<1>()?;
    let url = format!("http://127.0.0.1:{unused_port}/apis/ccompat/v7");
    let place = embedded(&url, "no-ids")?;

    let error = place.open(&place.layout([CUSTOMERS, Topic::Certificates])).await.map(drop).unwrap_err();

    assert_eq!(error.retry(), Retry::Later);
    let text = chain(&error);
    for part in [&*place.name(CUSTOMERS), &*place.name(Topic::Certificates), &url, "no answer"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    Ok(())
}

async fn ids_of_an_earlier_run_serve_without_the_registry() -> Result<()> {
    let mut registry = Registry::start().await?;
    let place = embedded(&registry.url(), "kept-ids")?;
    let layout = place.layout([CUSTOMERS]);
    place.open(&layout).await.unwrap();

    registry.kill();
    let ids = place.ids().await;
    let opened = publish::open(&layout, &place.admin, &ids).await.unwrap();
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
