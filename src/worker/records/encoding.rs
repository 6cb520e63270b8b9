//! What a batch is in Kafka: its records, what the fence has once they are committed, and what is told of it.

use bytes::Bytes;
use serde_json::{Map, Value as Json, json};

use super::Shared;
use crate::{
    enrich::{Batch, Change, Entry, GapFound, Parked, Subject},
    fence, kafka,
    model::{
        AccountingResource, EncodedRecord, Epoch, Gap, GapState, Key, Meta, Origin, Outgoing, Repair, Stamp,
        Target, Topic,
    },
    pipeline::{Failure, ShardBatch, Stage},
};

/// The kinds of a shard's own records in the state topic, beside what is parked.
pub(super) const BATCH: &str = "batch";
pub(super) const PATH: &str = "path";
pub(super) const BRAKE: &str = "brake";
pub(super) const REBUILD: &str = "rebuild";

/// A batch as it is committed.
pub(super) struct Encoded {
    /// Its records.
    pub(super) batch: ShardBatch,
    /// What the fence has since.
    pub(super) fences: Vec<(Key, Stamp)>,
    /// Topics that values went to.
    pub(super) topics: Vec<Topic>,
}

impl Shared {
    /// Turns a batch into records. An entry whose value cannot be encoded, or is larger than Kafka takes, becomes a dead letter in
    /// its place.
    pub(super) fn encode(&self, shard: i32, id: &str, batch: &mut Batch, now: i64) -> Encoded {
        let mut encoded = Encoded { batch: ShardBatch::default(), fences: Vec::new(), topics: Vec::new() };
        let mut gaps = 0;
        for entry in &mut batch.entries {
            let value = match self.value(entry) {
                Ok(value) => value,
                Err(failure) => {
                    *entry = entry.clone().refused(failure);
                    None
                }
            };
            if let Some((record, topic, stamp)) = value {
                if let Some(subject) = &entry.subject {
                    let key = subject.fence_key();
                    let (_, value) = fence::record(&key, &stamp);
                    encoded.batch.add(self.record(Topic::Fences, &key, Some(value)));
                    encoded.fences.push((key, stamp));
                }
                encoded.batch.publish(record, Origin::Enrichment);
                if !encoded.topics.contains(&topic) {
                    encoded.topics.push(topic);
                }
            }
            for change in &entry.changes {
                self.companions(shard, entry, change, now, &mut gaps, &mut encoded);
            }
        }
        for (resource, next) in &batch.offsets {
            let partition = self.source_partition(*resource, shard);
            let offset = Map::from_iter([("offset".to_owned(), Json::from(*next))]);
            encoded.batch.add(self.task.offset_record(&partition, &offset));
        }
        let mark = json!({ "id": id }).to_string();
        encoded.batch.add(self.preparer.state(&Key::shard_state(BATCH, shard, &[]), Some(mark.into())));
        encoded
    }

    /// What the offset of an event topic is stored under.
    pub(super) fn source_partition(&self, resource: AccountingResource, shard: i32) -> Map<String, Json> {
        let topic = self.preparer.topic_name(Topic::AccountingEvents(resource));
        Map::from_iter([
            ("topic".to_owned(), Json::from(&*topic)),
            ("partition".to_owned(), Json::from(shard)),
        ])
    }

    /// The value that an entry publishes, if it does.
    fn value(&self, entry: &Entry) -> Result<Option<(EncodedRecord, Topic, Stamp)>, Failure> {
        let Some(subject) = &entry.subject else { return Ok(None) };
        for change in &entry.changes {
            let (outgoing, stamp) = match change {
                Change::Publish { value, stamp, .. } => {
                    let outgoing = Outgoing::new((**value).clone(), meta(entry, stamp.epoch));
                    let refused = |error: crate::model::Error| {
                        Failure::new(Stage::Convert, "model::Error::Unplaceable", &error)
                    };
                    (outgoing.map_err(refused)?, stamp)
                }
                Change::Tombstone { stamp } => (tombstone(subject, entry, stamp)?, stamp),
                _ => continue,
            };
            let record = self
                .preparer
                .prepare(&outgoing)
                .map_err(|error| Failure::new(Stage::Convert, "avro::Error::Encode", &error))?;
            let size = record.key.len() + record.value.as_ref().map_or(0, Bytes::len);
            if size > kafka::LARGEST_RECORD {
                let message =
                    format!("the record has {size} bytes, and Kafka takes {}", kafka::LARGEST_RECORD);
                return Err(Failure {
                    stage: Stage::Produce,
                    class: "kafka::Error::RecordRefused",
                    message,
                    causes: Vec::new(),
                });
            }
            return Ok(Some((record, outgoing.topic, stamp.clone())));
        }
        Ok(None)
    }

    fn companions(
        &self,
        shard: i32,
        entry: &Entry,
        change: &Change,
        now: i64,
        gaps: &mut i64,
        encoded: &mut Encoded,
    ) {
        let state = |key: &Key, value: Option<Bytes>| self.preparer.state(key, value);
        let subject = entry.subject.as_ref();
        match change {
            Change::Publish { .. } | Change::Tombstone { .. } => {}
            Change::Park(parked) => {
                encoded.batch.add(state(&Parked::key(shard, &parked.subject), Some(parked.to_json())));
            }
            Change::Unpark => {
                if let Some(subject) = subject {
                    encoded.batch.add(state(&Parked::key(shard, subject), None));
                }
            }
            Change::DeadLetter(failure) => {
                let letters = &self.dead_letters;
                let destination = subject.map(|subject| self.preparer.topic_name(subject.topic()));
                letters.log(destination.as_deref(), failure);
                encoded.batch.add(letters.record(
                    &entry.event.original,
                    destination.as_deref(),
                    failure,
                    &[("tributary.id", Bytes::from(entry.event.id.clone()))],
                ));
            }
            Change::Gap(found) => {
                // No two have the same moment: it is their name.
                let gap = self.gap(found, now.saturating_add(*gaps));
                *gaps += 1;
                let repair = Repair::of(&gap, now, now);
                let value = |value: Json| Some(Bytes::from(value.to_string()));
                encoded.batch.add(state(&gap.key(), value(json!(gap))));
                encoded.batch.add(state(&repair.key(), value(json!(repair))));
            }
            Change::Path(resource) => {
                let value = json!({ "grant": self.source.provider.oauth.accounting_grant, "at": now });
                let key = Key::shard_state(PATH, shard, &[resource.name()]);
                encoded.batch.add(state(&key, Some(value.to_string().into())));
            }
            Change::Brake { resource, since, count } => {
                let value = json!({ "since": since, "count": count });
                let key = Key::shard_state(BRAKE, shard, &[resource.name()]);
                encoded.batch.add(state(&key, Some(value.to_string().into())));
            }
        }
    }

    fn gap(&self, found: &GapFound, now: i64) -> Gap {
        Gap {
            connector: self.task.connector.to_string(),
            cause: found.cause,
            target: Some(Target::Accounting(found.resource)),
            company: found.company.clone(),
            from: found.from,
            to: Some(now),
            detail: found.detail.clone(),
            opened_at: now,
            worker: self.task.tools.worker_id.to_string(),
            state: GapState::Open,
        }
    }

    /// A record of an internal topic of the prefix, placed as its key says.
    pub(super) fn record(&self, topic: Topic, key: &Key, value: Option<Bytes>) -> EncodedRecord {
        EncodedRecord { topic: self.preparer.topic_name(topic), ..self.preparer.state(key, value) }
    }
}

fn meta(entry: &Entry, epoch: Epoch) -> Meta {
    let event = &entry.event;
    Meta { epoch: Some(epoch), traceparent: event.trace, ..Meta::new(event.id.clone(), Origin::Enrichment) }
}

fn tombstone(subject: &Subject, entry: &Entry, stamp: &Stamp) -> Result<Outgoing, Failure> {
    let meta = Meta { version: Some(stamp.version.to_string()), ..meta(entry, stamp.epoch) };
    let made = Outgoing::tombstone(subject.resource, &subject.company, &subject.id, meta);
    made.map_err(|error| Failure::new(Stage::Convert, "model::Error", &error))
}
