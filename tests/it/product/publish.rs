//! From the provider's JSON to Kafka and back: every kind of value arrives unchanged, where it belongs.
//!
//! Topic, key, partition, headers and timestamp are compared with the hand-written [`examples`](crate::support::examples); the value is
//! decoded with the registry's schema and must be equal.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::retry::Retry;
use bytes::Bytes;
use kafka::{CommitError, ShardProducers, TransactionOptions, partition_of};
use model::{
    AccountingResource, CompanyId, EncodedRecord, Key, Origin, Outgoing, RecordId, RecordMeta, SchemaKind,
    Topic, Value,
};

use crate::support::examples::{COMPANY, Placed, incompressible, one_of_everything};
use crate::support::place::{PARTITIONS, Place, chain, header};
use crate::support::{Result, Shared};

crate::tests! {
    real every_kind_of_value_arrives_unchanged_where_it_belongs;
    real tombstone_has_the_key_and_partition_of_its_record;
    real refused_batch_leaves_nothing_and_later_ones_succeed;
    real a_value_of_another_schema_never_reaches_a_topic;
}

async fn every_kind_of_value_arrives_unchanged_where_it_belongs(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "publish")?;
    let examples = one_of_everything();
    let kinds: BTreeSet<SchemaKind> =
        examples.iter().flat_map(|example| &example.outgoing.value).map(|value| value.schema()).collect();
    assert_eq!(kinds.len(), SchemaKind::ALL.len(), "a kind has no example");
    let topics: BTreeSet<Topic> = examples.iter().map(|example| example.outgoing.topic).collect();
    let publisher = place.open(&place.layout(topics)).await.unwrap();

    let mut acks = Vec::new();
    for example in &examples {
        acks.push(publisher.publish(&example.outgoing).await.unwrap());
    }

    let decoder = place.decoder();
    for (example, ack) in examples.iter().zip(acks) {
        let name = format!("{}.{}", place.prefix, example.topic);
        let records = place.read(&name).await;
        let found =
            records.iter().find(|record| record.partition == ack.partition && record.offset == ack.offset);
        let found = found.unwrap_or_else(|| panic!("{name} has nothing at {ack:?}"));
        let value = example.outgoing.value.as_ref().unwrap();

        assert_eq!(found.key.as_deref(), Some(example.key.as_bytes()), "{name}");
        let wanted = match example.placed {
            Placed::By(text) => partition_of(text.as_bytes(), PARTITIONS),
            Placed::Shard(shard) => shard,
        };
        assert_eq!(found.partition, wanted, "{name}");
        let headers: Vec<(&str, String)> = found
            .headers
            .iter()
            .map(|(name, text)| (&**name, String::from_utf8(text.to_vec()).unwrap()))
            .collect();
        assert_eq!(headers, example.headers(), "{name}");
        if example.timestamp_ms.is_some() {
            assert_eq!(found.timestamp_ms, example.timestamp_ms, "{name}");
        }
        let (_, decoded) = decoder.decode(value.schema(), found.value.as_deref().unwrap()).await.unwrap();
        assert_eq!(decoded, **value, "{name}");
    }
    Ok(())
}

async fn tombstone_has_the_key_and_partition_of_its_record(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "tombstone")?;
    let resource = AccountingResource::Charges;
    let topic = Topic::AccountingRecords(resource);
    let (company, id) = (CompanyId::new(COMPANY).unwrap(), RecordId::new("charge/1").unwrap());
    let json = br#"{"correlationId": "charge/1", "sequenceVersion": "4"}"#;
    let value = Value::from_resource_json(json, resource, &company).unwrap();
    let publisher = place.open(&place.layout([topic])).await.unwrap();
    let mut deleted = RecordMeta::new("o-5", Origin::Enrichment);
    deleted.version = Some("5".into());

    publisher
        .publish(&Outgoing::new(value, RecordMeta::new("o-4", Origin::Enrichment)).unwrap())
        .await
        .unwrap();
    publisher.publish(&Outgoing::tombstone(resource, &company, &id, deleted).unwrap()).await.unwrap();

    let found = place.read(&place.name(topic)).await;
    assert_eq!(found.len(), 2);
    let (record, tombstone) = (&found[0], &found[1]);
    assert!(record.value.is_some(), "the record itself is a tombstone");
    assert_eq!(tombstone.value, None);
    assert_eq!(tombstone.key.as_deref(), Some(Key::record(&company, &id).as_str().as_bytes()));
    assert_eq!((&tombstone.key, tombstone.partition), (&record.key, record.partition));
    assert_eq!(
        (header(tombstone, "tributary.id"), header(tombstone, "tributary.version")),
        (Some("o-5"), Some("5"))
    );
    Ok(())
}

async fn refused_batch_leaves_nothing_and_later_ones_succeed(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "refused")?;
    let name = place.name(Topic::Fences);
    place.open(&place.layout([Topic::Fences])).await.unwrap();
    let record = |value: Vec<u8>| EncodedRecord {
        topic: name.as_str().into(),
        partition: 0,
        key: Bytes::from_static(b"key"),
        value: Some(value.into()),
        headers: Vec::new(),
        timestamp_ms: None,
    };
    let shards = ShardProducers::new(place.kafka.clone(), TransactionOptions::default());
    let mut shard = shards.take(place.prefix.as_str(), Arc::new(|| true)).await.unwrap();

    let refused = shard.commit(vec![record(b"first".into()), record(incompressible(2 << 20))]).await;
    let mut tries = 0;
    // librdkafka carries the refusal over into the next batch, which is aborted once with a retriable error.
    while let Err(failure) = shard.commit(vec![record(b"second".into())]).await {
        tries += 1;
        assert!(failure.retry() == Retry::Later && tries < 5, "try {tries}: {}", chain(&failure));
    }

    let failure = refused.unwrap_err();
    assert!(matches!(failure, CommitError::Aborted { .. }), "{}", chain(&failure));
    assert_eq!(failure.retry(), Retry::Never);
    let values: Vec<_> = place.read(&name).await.into_iter().map(|record| record.value.unwrap()).collect();
    assert_eq!(values, ["second"]);
    Ok(())
}

async fn a_value_of_another_schema_never_reaches_a_topic(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "misplaced")?;
    let topic = Topic::AccountingRecords(AccountingResource::Customers);
    let publisher = place.open(&place.layout([topic])).await.unwrap();
    let company = CompanyId::new(COMPANY).unwrap();
    let json = br#"{"correlationId": "account-1", "sequenceVersion": "1"}"#;
    let account = Value::from_resource_json(json, AccountingResource::Accounts, &company).unwrap();
    let mut misplaced = Outgoing::new(account, RecordMeta::new("o-1", Origin::Snapshot)).unwrap();
    misplaced.topic = topic;

    let refused = publisher.publish(&misplaced).await;

    assert!(refused.is_err(), "an Account was published to a topic of Customers");
    assert!(place.read(&place.name(topic)).await.is_empty(), "something was written");
    Ok(())
}
