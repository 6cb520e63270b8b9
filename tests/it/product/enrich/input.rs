//! Unusable events and oversized records: each becomes a dead letter with its reason, and blocks no other.

use std::collections::{BTreeMap, BTreeSet};

use kafka::Admin;
use model::{
    AccountingEvent, AccountingResource, EncodedRecord, List, Origin, Outgoing, Reception, RecordMeta,
    RunKind, Topic,
};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::FutureRecord;
use serde_json::{Value, json};
use simulator::catalog::{Kind, Resource};
use tributary::publish::{Layout, Preparer};

use super::{
    checker::{EventPosition, check},
    scene::{EnrichScene, Options, PARTITIONS},
};

use crate::support::{Error, Result, Shared, place::Place, run_directory};

crate::tests! {
    real unusable_events_are_dead_letters_and_block_no_other within 240;
    real an_oversized_record_is_a_dead_letter_and_blocks_no_other within 240;
}

const CUSTOMERS: AccountingResource = AccountingResource::Customers;
const JOURNALS: AccountingResource = AccountingResource::Journals;

async fn unusable_events_are_dead_letters_and_block_no_other(shared: &'static Shared) -> Result<()> {
    let scene = EnrichScene::start(shared.into(), "enrich-input", Options::default(), |_| {}).await?;
    scene.warm().await?;
    let preparer = preparer(&scene).await?;
    let (customer, journal) = {
        let living = scene.living();
        let first = |resource| *living.iter().find(|place| place.resource == resource).unwrap();
        (first(Resource::Customers), first(Resource::Journals))
    };
    let (id, company) = (scene.id(customer), scene.provider().world().company_id(0));
    let updated = |company: &str, data: &str| event(&preparer, CUSTOMERS, "CustomerUpdated", company, data);
    let good = updated(&company, &json!({ "CorrelationId": id, "SequenceVersion": "1" }).to_string());
    let whole = good.value.clone().unwrap();
    let with = |value: &[u8]| EncodedRecord { value: Some(value.to_vec().into()), ..good.clone() };

    let bad = [
        (
            "no number",
            updated(&company, &json!({ "CorrelationId": id, "SequenceVersion": "12a" }).to_string()),
        ),
        ("negative", updated(&company, &json!({ "CorrelationId": id, "SequenceVersion": "-5" }).to_string())),
        ("no id", updated(&company, &json!({ "SequenceVersion": "5" }).to_string())),
        ("empty id", updated(&company, &json!({ "CorrelationId": "", "SequenceVersion": "5" }).to_string())),
        ("no JSON", updated(&company, "not JSON at all")),
        ("unknown resource", with(&replaced(&whole, b"customers", b"custodian"))),
        ("no Avro", with(b"not Avro at all")),
        ("unknown schema", with(&[&[0, 0x7f, 0xff, 0xff, 0xff], &whole[5..]].concat())),
        ("cut off", with(&whole[..whole.len() / 2])),
        ("too long", with(&[&whole[..], b"and more"].concat())),
        (
            "foreign",
            updated("unknown:1:CM:0", &json!({ "CorrelationId": id, "SequenceVersion": "5" }).to_string()),
        ),
    ];
    let mut spots: BTreeSet<EventPosition> = BTreeSet::new();
    for (_, record) in &bad {
        spots.insert(write(&scene, record).await?);
        // A good event after each bad one, in the same partition.
        scene.act(customer, Kind::Updated);
    }
    // An event says that a journal is deleted, and a read finds it.
    let version = scene.act(journal, Kind::Updated).to_string();
    let lie = json!({ "CorrelationId": scene.id(journal), "SequenceVersion": version }).to_string();
    write(&scene, &event(&preparer, JOURNALS, "JournalDeleted", &company, &lie)).await?;
    scene.update(&scene.living());
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    let verdict = check(&evidence);
    println!("enrich, input: {verdict}");
    verdict.assert_sound();
    let letters: BTreeSet<EventPosition> =
        evidence.letters.iter().filter_map(|letter| letter.position.clone()).collect();
    assert_eq!(letters, spots, "{:?}", evidence.letters);
    assert_eq!(evidence.letters.len(), bad.len(), "{:?}", evidence.letters);
    assert_eq!(evidence.tombstones(), 0);
    // The checker excuses this key for its dead letters; so compare it with the provider here.
    let newest = evidence.last()[&scene.name(customer)];
    let truth = scene.provider().world().find(Resource::Customers, &id).unwrap().1.sequence;
    assert_eq!(newest.version, Some(truth));
    scene.until_taken_over(&[0]).await
}

async fn an_oversized_record_is_a_dead_letter_and_blocks_no_other(shared: &'static Shared) -> Result<()> {
    let options = Options { settings: &[("snapshot.lists", "customers")], ..Options::default() };
    // Kafka refuses every customer at least twice, and aborts a transaction each time: few are enough.
    let scene = EnrichScene::start(shared.into(), "enrich-large", options, |settings| {
        (settings.world.companies, settings.world.customers) = (2, 2);
    })
    .await?;
    scene.warm().await?;
    let before = scene.evidence().await?;

    // Smaller than any customer with its headers.
    limit(&scene, &scene.topic(Topic::AccountingRecords(CUSTOMERS)), Some("250")).await?;
    let (customers, journals): (Vec<_>, Vec<_>) =
        scene.living().into_iter().partition(|place| place.resource == Resource::Customers);
    for place in customers.iter().chain(&journals) {
        scene.act(*place, Kind::Updated);
    }
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    let verdict = check(&evidence);
    println!("enrich, large: {verdict}");
    verdict.assert_sound();
    let events = evidence.events.iter().filter(|event| event.resource == CUSTOMERS);
    let keys: BTreeMap<&EventPosition, Option<&str>> =
        events.map(|event| (&event.position, event.key.as_deref())).collect();
    let letters: BTreeSet<&EventPosition> =
        evidence.letters.iter().filter_map(|letter| letter.position.as_ref()).collect();
    assert!(letters.iter().all(|position| keys.contains_key(position)), "{letters:?}");
    // A delivery that was published twice has two letters.
    let refused: BTreeSet<Option<&str>> = letters.iter().map(|position| keys[position]).collect();
    assert_eq!(refused.len(), customers.len(), "{:?}", evidence.letters);
    assert_eq!(evidence.lines[&CUSTOMERS], before.lines[&CUSTOMERS]);
    assert_eq!(evidence.lines[&JOURNALS].len(), before.lines[&JOURNALS].len() + journals.len());

    // Lists show these records too, and none is certified.
    scene.ask_for("large", RunKind::Snapshot, &[List::Customers]).await?;
    let listed = scene.until_over("large").await?;
    let count = |member: &str| listed.iter().filter_map(|one| one[member].as_u64()).sum::<u64>();
    assert!(count("ended") > 0 && count("certified") == 0, "{listed:#?}");
    scene.until_taken_over(&[0]).await
}

/// Encodes records for the scene's topics.
async fn preparer(scene: &EnrichScene) -> Result<Preparer> {
    let place = Place {
        prefix: scene.prefix.clone(),
        kafka: scene.kafka(),
        admin: Admin::Real(scene.kafka()),
        registry: tributary::config::RegistrySettings::open(scene.backend.registry.parse().unwrap()),
        state_dir: run_directory::create("enrich-input")?,
    };
    let topics = [Topic::AccountingEvents(CUSTOMERS), Topic::AccountingEvents(JOURNALS)];
    let layout = Layout { partitions: Some(PARTITIONS), ..place.layout(topics) };
    let publisher =
        place.open(&layout).await.map_err(|error| Error(format!("open {}: {error}", place.prefix)))?;
    Ok(publisher.preparer().clone())
}

/// An event as a receiver publishes it, with this `JsonData`.
fn event(
    preparer: &Preparer,
    resource: AccountingResource,
    kind: &str,
    company: &str,
    data: &str,
) -> EncodedRecord {
    let body: Value = json!({
        "WebhookId": "w", "OutgoingId": "o", "TenantId": "tenant-1",
        "ExtraPartitionInformation": { "PartitionClientId": company, "UserName": "a user" },
        "EventType": { "AppName": "Svc", "Domain": "ACC", "EventType": kind },
        "Timestamp": 638_505_760_891_234_567_i64,
        "JsonData": data,
    });
    let reception = Reception { connector: super::scene::HOOKS, received_at: 1_790_000_000_000_000 };
    let event = AccountingEvent::from_json(body.to_string().as_bytes(), resource, reception).unwrap();
    let outgoing = Outgoing::new(event.into(), RecordMeta::new("straight", Origin::Webhook)).unwrap();
    preparer.prepare(&outgoing).unwrap()
}

async fn write(scene: &EnrichScene, record: &EncodedRecord) -> Result<EventPosition> {
    let value = record.value.as_deref().unwrap_or_default();
    let offset = scene.produce(&record.topic, record.partition, &record.key, value).await?;
    Ok((record.topic.to_string(), record.partition, offset))
}

/// Replaces the first occurrence of a piece by one of the same length.
fn replaced(bytes: &[u8], piece: &[u8], by: &[u8]) -> Vec<u8> {
    let at = bytes.windows(piece.len()).position(|window| window == piece).unwrap();
    [&bytes[..at], by, &bytes[at + piece.len()..]].concat()
}

/// Limits the batches of this topic, or no longer does, and waits until the broker acts on it.
pub(super) async fn limit(scene: &EnrichScene, topic: &str, bytes: Option<&str>) -> Result<()> {
    let failed = |error: String| Error(format!("limit {topic} to {bytes:?} bytes: {error}"));
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &scene.backend.bootstrap)
        .create()
        .map_err(|error| failed(error.to_string()))?;
    // Settings that are not named get the broker's default.
    let mut config = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("cleanup.policy", "compact");
    if let Some(bytes) = bytes {
        config = config.set("max.message.bytes", bytes);
    }
    let altered = admin.alter_configs(&[config], &AdminOptions::new()).await;
    for one in altered.map_err(|error| failed(error.to_string()))? {
        one.map_err(|(_, code)| failed(code.to_string()))?;
    }
    // The broker applies the change with a delay. A compacted topic accepts no record without a key, but the broker checks sizes
    // first.
    let large = vec![0; 1_000];
    for partition in 0..PARTITIONS {
        let held = async || {
            let refused =
                scene.send(FutureRecord::<[u8], _>::to(topic).partition(partition).payload(&large)).await;
            Ok((refused == Err(RDKafkaErrorCode::MessageSizeTooLarge)) == bytes.is_some())
        };
        scene.until("the limit applied", held).await?;
    }
    Ok(())
}
