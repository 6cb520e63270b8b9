//! Collects the evidence from outside: the committed records of every topic, offsets by REST, and the provider's records by its API.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kafka::ConsumerRecord;
use model::{AccountingEvent, AccountingResource, EventKind, SchemaKind, Topic};
use serde_json::Value;
use simulator::{
    catalog::Resource,
    control::{self, RecordTruth},
    deliveries::{End, Family, Purpose},
    knobs::CompanyContext,
    world::RecordState,
};
use tributary::avro::{Decoder, Registry};

use super::checker::{
    EventClass, EventPosition, Evidence, Fence, Letter, ProviderState, PublishedEvent, PublishedRecord,
    RecordName, encoded,
};
use super::scene::{EnrichScene, PARTITIONS, ours};
use crate::product::simulator::{Client, segment};
use crate::support::place::header;
use crate::support::{Error, Result};

/// Topics and provider records that are read at the same time.
const AT_ONCE: usize = 8;

/// Attempts to read everything while no record is added.
const READS: usize = 20;

/// Collects everything. The provider must answer every read, and must send no event meanwhile. If a repair publishes records
/// meanwhile, records, fences and dead letters are read again.
pub(super) async fn collect(scene: &EnrichScene) -> Result<Evidence> {
    let decoder = decoder(scene);
    // Offsets before events: every settled event has been written by then.
    let settled = scene.offsets().await?;
    let events =
        gather(scene, Topic::AccountingEvents, async |one, read| event(&decoder, one, &read).await).await?;
    let events: Vec<PublishedEvent> = events.into_iter().flat_map(|(_, events)| events).collect();
    let mut evidence = Evidence {
        partitions: PARTITIONS,
        lines: lines(scene).await?,
        events,
        fences: BTreeMap::new(),
        parked: BTreeMap::new(),
        letters: Vec::new(),
        settled,
        truth: BTreeMap::new(),
        accepted: accepted(scene),
        restored: false,
        certified: BTreeSet::new(),
    };
    for _ in 0..READS {
        let parked = parked(scene).await?.into_iter();
        evidence.parked = parked.map(|(name, entry)| (name, number(&entry["floor"]))).collect();
        evidence.fences = fences(scene).await?;
        evidence.letters = letters(scene).await?;
        let lines = lines(scene).await?;
        let stood_still = count(&lines) == count(&evidence.lines);
        evidence.lines = lines;
        if stood_still {
            evidence.truth = truth(scene, &evidence).await?;
            return Ok(evidence);
        }
    }
    Err(scene.stage.error("records are still being published"))
}

fn count(lines: &BTreeMap<AccountingResource, Vec<PublishedRecord>>) -> usize {
    lines.values().map(Vec::len).sum()
}

/// Every record of every record topic, each partition in log order.
pub(super) async fn lines(scene: &EnrichScene) -> Result<BTreeMap<AccountingResource, Vec<PublishedRecord>>> {
    let decoder = decoder(scene);
    let read = gather(scene, Topic::AccountingRecords, async |one, read| line(&decoder, one, &read).await);
    Ok(read.await?.into_iter().collect())
}

pub(super) fn decoder(scene: &EnrichScene) -> Decoder {
    let registry = tributary::config::RegistrySettings::open(scene.backend.registry.parse().unwrap());
    Decoder::new(Registry::new(&registry).unwrap())
}

/// Everything in a topic; nothing if it does not exist.
pub(super) async fn read(scene: &EnrichScene, topic: &str) -> Result<Vec<ConsumerRecord>> {
    scene.reader.read(topic).await
}

/// What is parked, by the state topic.
pub(super) async fn parked(scene: &EnrichScene) -> Result<BTreeMap<RecordName, Value>> {
    let mut parked = BTreeMap::new();
    for (key, value) in state(scene, Topic::State).await? {
        let parts: Vec<&str> = key.split('/').collect();
        let ["parked", _, resource, company, id] = parts[..] else { continue };
        let name = resource.strip_prefix("accounting.").unwrap_or(resource);
        let Ok(resource) = name.parse::<AccountingResource>() else {
            return Err(Error(format!("the key of a parked record names no resource: {key}")));
        };
        parked.insert((resource, format!("{company}/{id}")), value);
    }
    Ok(parked)
}

/// Keys of the list state that exists only during a run.
pub(super) async fn kept_of_lists(scene: &EnrichScene) -> Result<Vec<String>> {
    let all = state(scene, Topic::State).await?;
    let is_kept =
        |key: &String| ["page/", "over/", "void/", "known/"].iter().any(|kind| key.starts_with(kind));
    Ok(all.into_keys().filter(is_kept).collect())
}

/// The gaps of a connector.
pub(super) async fn gaps(scene: &EnrichScene, connector: &str) -> Result<Vec<Value>> {
    let all = state(scene, Topic::State).await?;
    let ours =
        all.into_iter().filter(|(key, value)| key.starts_with("gap/") && value["connector"] == connector);
    Ok(ours.map(|(_, gap)| gap).collect())
}

/// All dead letters.
pub(super) async fn letters(scene: &EnrichScene) -> Result<Vec<Letter>> {
    let letters = read(scene, &scene.topic(Topic::DeadLetters)).await?;
    Ok(letters.iter().map(letter).collect())
}

/// The last value of each key of a JSON topic.
async fn state(scene: &EnrichScene, topic: Topic) -> Result<BTreeMap<String, Value>> {
    let mut state = BTreeMap::new();
    for record in read(scene, &scene.topic(topic)).await? {
        let key = text(record.key.as_deref());
        match &record.value {
            None => drop(state.remove(&key)),
            Some(value) => {
                let value = serde_json::from_slice(value);
                state.insert(key, value.map_err(|error| Error(format!("read {topic}: {error}")))?);
            }
        }
    }
    Ok(state)
}

async fn fences(scene: &EnrichScene) -> Result<BTreeMap<RecordName, Fence>> {
    let mut fences = BTreeMap::new();
    // Other resources may be published too, such as companies by a repair, and are not judged.
    let own: Vec<_> = scene.resources.iter().copied().map(ours).collect();
    for (key, value) in state(scene, Topic::Fences).await? {
        // Payroll companies have no events and no numeric version: `lists::payroll` judges them.
        if key.starts_with('~') || key.starts_with("payroll.") {
            continue;
        }
        let named = key.strip_prefix("accounting.").and_then(|rest| rest.split_once('/'));
        let named = named.and_then(|(resource, key)| Some((resource.parse().ok()?, key.to_owned())));
        let fence = number(&value["epoch"]).zip(number(&value["version"])).zip(value["deleted"].as_bool());
        match (named, fence) {
            (Some(name), Some(((epoch, version), deleted))) => {
                let name: RecordName = name;
                if own.contains(&name.0) {
                    fences.insert(name, Fence { epoch, version, deleted });
                }
            }
            _ => return Err(Error(format!("the fence of {key} cannot be read: {value}"))),
        }
    }
    Ok(fences)
}

/// Reads one topic of each resource and converts each of its records.
async fn gather<T>(
    scene: &EnrichScene,
    topic: fn(AccountingResource) -> Topic,
    make: impl AsyncFn(AccountingResource, ConsumerRecord) -> Result<T>,
) -> Result<Vec<(AccountingResource, Vec<T>)>> {
    let make = &make;
    let each =
        stream::iter(scene.resources.iter().map(|resource| ours(*resource))).map(|resource| async move {
            let mut made = Vec::new();
            for record in read(scene, &scene.topic(topic(resource))).await? {
                made.push(make(resource, record).await?);
            }
            Ok((resource, made))
        });
    each.buffered(AT_ONCE).try_collect().await
}

async fn line(
    decoder: &Decoder,
    resource: AccountingResource,
    record: &ConsumerRecord,
) -> Result<PublishedRecord> {
    let value = match &record.value {
        None => None,
        Some(value) => {
            let decoded = decoder.decode(resource.schema(), value).await;
            let (_, value) = decoded.map_err(|error| Error(format!("decode {resource}: {error}")))?;
            Some(serde_json::from_str(&value.to_json()).unwrap())
        }
    };
    Ok(PublishedRecord {
        key: text(record.key.as_deref()),
        partition: record.partition,
        offset: record.offset,
        version: header(record, "tributary.version").and_then(numeric),
        epoch: header(record, "tributary.epoch").and_then(|text| text.parse().ok()),
        origin: header(record, "tributary.origin").unwrap_or_default().to_owned(),
        batch: header(record, "tributary.batch").map(ToOwned::to_owned),
        value,
    })
}

async fn event(
    decoder: &Decoder,
    resource: AccountingResource,
    record: &ConsumerRecord,
) -> Result<PublishedEvent> {
    let bytes = record.value.as_deref().unwrap_or_default();
    let event = match decoder.decode(SchemaKind::AccountingEvent, bytes).await {
        Ok((_, model::Value::AccountingEvent(event))) => Some(event),
        Ok(_) => None,
        Err(error) if error.retry() == base::retry::Retry::Never => None,
        Err(error) => return Err(Error(format!("decode an event of {resource}: {error}"))),
    };
    let event = event.as_deref();
    let company = text(record.key.as_deref());
    let id = event.and_then(|event| event.data.correlation_id.as_deref()).filter(|id| !id.is_empty());
    Ok(PublishedEvent {
        position: (record.topic.to_string(), record.partition, record.offset),
        key: id.map(|id| format!("{company}/{}", encoded(id))),
        resource,
        version: event.and_then(|event| event.data.sequence_version.as_deref()?.parse().ok()),
        kind: event.map_or(EventClass::Garbled, kind),
        id: header(record, "tributary.id").unwrap_or_default().to_owned(),
    })
}

fn kind(event: &AccountingEvent) -> EventClass {
    match event.kind() {
        Some(EventKind::ErrorOccurred | EventKind::Acknowledge) => EventClass::Silent,
        Some(EventKind::Deleted) => EventClass::Deleted,
        _ => EventClass::Changed,
    }
}

fn letter(record: &ConsumerRecord) -> Letter {
    let said = |name: &str| header(record, &format!("__connect.errors.{name}")).unwrap_or_default();
    let position: Option<EventPosition> = said("partition")
        .parse()
        .ok()
        .zip(said("offset").parse().ok())
        .map(|(partition, offset)| (said("topic").to_owned(), partition, offset));
    let (class, message) = (said("exception.class.name").to_owned(), said("exception.message").to_owned());
    Letter { position, class, message }
}

/// The ids of the deliveries that were answered 200.
fn accepted(scene: &EnrichScene) -> BTreeSet<String> {
    let entries = scene.provider().deliveries.entries(0, usize::MAX).into_iter().map(|(_, entry)| entry);
    let accepted = entries.filter(|entry| {
        (entry.family, entry.purpose, entry.end) == (Family::Accounting, Purpose::Event, Some(End::Accepted))
    });
    accepted.filter_map(|entry| entry.about.outgoing).map(|id| id.to_string()).collect()
}

/// Every record that the provider ever had of the scene's resources; those with an event or a published record as a read by id shows
/// them.
async fn truth(scene: &EnrichScene, evidence: &Evidence) -> Result<BTreeMap<RecordName, ProviderState>> {
    let wanted: BTreeSet<RecordName> = evidence
        .events
        .iter()
        .filter_map(|event| Some((event.resource, event.key.clone()?)))
        .chain(evidence.last().into_keys())
        .collect();
    let client = Client::accounting(&scene.stage.simulator);
    let records: Vec<(Resource, RecordTruth)> = scene
        .resources
        .iter()
        .flat_map(|one| {
            control::records(scene.provider(), *one).into_iter().map(move |record| (*one, record))
        })
        .collect();
    let deleted = deleted(evidence);
    let form = scene.provider().knobs().reads.records.company_context;
    let each = stream::iter(records).map(|(resource, record)| {
        let company = record.company.clone();
        let part = company.as_deref().unwrap_or(&scene.provider().settings.tenant);
        let name = (ours(resource), format!("{}/{}", encoded(part), encoded(&record.id)));
        let reads = record.readable && wanted.contains(&name);
        let (client, deleted) = (&client, &deleted);
        async move {
            let truth = if reads {
                let client = match &company {
                    Some(_) if resource == Resource::Companies && form == CompanyContext::Absent => {
                        client.clone()
                    }
                    Some(_) if resource == Resource::Companies && form == CompanyContext::None => {
                        client.context("none")
                    }
                    Some(company) => client.company(company),
                    None => client.context("none"),
                };
                let path = format!("{}/{}", resource.prefix(), segment(&record.id));
                let answer = client.get(&path).await;
                if answer.status != 200 {
                    return Err(Error(format!("GET {path}: {answer:?}")));
                }
                ProviderState::Alive(answer.json())
            } else if record.state != RecordState::Deleted {
                ProviderState::Alive(Value::Null)
            } else if deleted.contains(&name) {
                ProviderState::Deleted
            } else {
                ProviderState::Buried
            };
            Ok((name, truth))
        }
    });
    each.buffer_unordered(AT_ONCE).try_collect().await
}

/// Records with a delete event. Those of a deleted company have none.
fn deleted(evidence: &Evidence) -> BTreeSet<RecordName> {
    let deleted = evidence.events.iter().filter(|event| event.kind == EventClass::Deleted);
    deleted.filter_map(|event| Some((event.resource, event.key.clone()?))).collect()
}

/// A JSON number, or a number as text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| numeric(value.as_str()?))
}

/// The number in a version: all of it, or the part before the content hash of a record without a version.
fn numeric(version: &str) -> Option<u64> {
    version.split_once('#').map_or(version, |(number, _)| number).parse().ok()
}

/// The number of tombstones so far.
pub(super) async fn tombstones(scene: &EnrichScene) -> Result<usize> {
    Ok(lines(scene).await?.values().flatten().filter(|line| line.value.is_none()).count())
}

fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}
