//! Turns a batch into Kafka records: values, fence entries, dead letters, gaps, offsets, state and certificates.

use bytes::Bytes;
use serde_json::{Map, Value as Json};

use model::{
    AccountingResource, Certificate, EncodedRecord, Gap, GapState, Key, Origin, Outgoing, RecordMeta, Repair,
    Stamp, Target, Topic,
};

use super::{
    Shared,
    committing::Held,
    state::{self, Brake, Collection, Mark, Path},
};
use crate::{
    config::connector::record::MAX_SHARDS,
    publish::{self, PublishFailure, PublishStage, ShardBatch},
    records::{
        fence,
        schedule::{Batch, Change, Entry, GapFound, Parked, Subject},
    },
};

/// An encoded batch.
pub(super) struct Encoded {
    /// Its records.
    pub(super) batch: ShardBatch,
    /// Fence entries to store after the commit.
    pub(super) fences: Vec<(Key, Stamp)>,
}

/// Opening times of the gaps of one shard. The time is part of a gap's id, so every gap has its own, also across shards.
#[derive(Debug, Default)]
pub(super) struct Moments {
    last: i64,
}

impl Moments {
    /// The next opening time: within a millisecond of `now`, unless many gaps are opened at once.
    fn next(&mut self, shard: i32, now: i64) -> i64 {
        let apart = i64::from(MAX_SHARDS);
        let own = now - now.rem_euclid(apart) + i64::from(shard).rem_euclid(apart);
        self.last = own.max(self.last.saturating_add(apart));
        self.last
    }
}

impl Shared {
    /// Encodes a batch. An entry whose value cannot be encoded, or exceeds Kafka's size limit, is replaced by a dead letter, and then
    /// the state of lists is held back for the next batch.
    pub(super) fn encode(
        &self,
        shard: i32,
        id: &str,
        batch: &mut Batch,
        (moments, held): (&mut Moments, &mut Held),
        now: i64,
    ) -> Result<Encoded, publish::Error> {
        let mut encoded = Encoded { batch: ShardBatch::default(), fences: Vec::new() };
        for entry in &mut batch.entries {
            let value = match self.value(entry) {
                Ok(value) => value,
                Err(failure) => {
                    *entry = entry.clone().refused(failure);
                    None
                }
            };
            if let Some((record, key, stamp)) = value {
                let (_, value) = fence::record(&key, &stamp);
                encoded.batch.add(self.record(Topic::Fences, &key, Some(value)));
                encoded.fences.push((key, stamp));
                encoded.batch.publish(record, entry.event.origin);
            }
            for change in &entry.changes {
                self.companions(shard, entry, change, (moments, now), &mut encoded);
            }
        }
        held.hold_back(batch);
        for (resource, next) in &batch.offsets {
            let partition = self.source_partition(*resource, shard);
            let offset = Map::from_iter([("offset".to_owned(), Json::from(*next))]);
            encoded.batch.add(self.task.offset_record(&partition, &offset));
        }
        for (key, value) in &batch.first {
            encoded.batch.add(self.output.preparer.state(key, Some(value.clone())));
        }
        for (key, value) in &batch.state {
            encoded.batch.add(self.output.preparer.state(key, value.clone()));
        }
        for certificate in &batch.certificates {
            encoded.batch.add(self.certificate(certificate)?);
        }
        let mark = state::json(&Mark { id: id.to_owned() });
        encoded.batch.add(self.output.preparer.state(&state::batch(shard), Some(mark)));
        Ok(encoded)
    }

    /// The record of a certificate; its id names the run.
    fn certificate(
        &self,
        (certificate, asked_at): &(Certificate, i64),
    ) -> Result<EncodedRecord, publish::Error> {
        let id = Collection::certificate_id(&certificate.scope.run, *asked_at);
        let meta = RecordMeta::new(id, Origin::Snapshot);
        let value = model::Value::Certificate(Box::new(certificate.clone()));
        let outgoing = Outgoing::new(value, meta)
            .map_err(|error| publish::Error::Unplaceable { message: error.to_string() })?;
        let topic = self.output.preparer.topic_name(Topic::Certificates).to_string();
        let unencoded = |source| publish::Error::Convert { topic, source: Box::new(source) };
        self.output.preparer.prepare(&outgoing).map_err(unencoded)
    }

    /// The source partition of an event topic, under which its offset is stored.
    pub(super) fn source_partition(&self, resource: AccountingResource, shard: i32) -> Map<String, Json> {
        let topic = self.output.preparer.topic_name(Topic::AccountingEvents(resource));
        Map::from_iter([
            ("topic".to_owned(), Json::from(&*topic)),
            ("partition".to_owned(), Json::from(shard)),
        ])
    }

    /// The record, fence key and stamp that an entry publishes, if any.
    fn value(&self, entry: &Entry) -> Result<Option<(EncodedRecord, Key, Stamp)>, PublishFailure> {
        for change in &entry.changes {
            let (outgoing, stamp) = match change {
                Change::Publish { value, stamp, .. } => {
                    let refused = |error: model::Error| {
                        PublishFailure::new(PublishStage::Convert, "model::Error::Unplaceable", &error)
                    };
                    let value = value.value(entry.subject.as_ref()).map_err(refused)?;
                    let meta = meta(entry, stamp);
                    let outgoing = match &entry.subject {
                        // The id comes from the request, because a record may lack it.
                        Some(subject) => Outgoing::under(subject.key(), value, meta),
                        None => Outgoing::shared(value, meta),
                    };
                    (outgoing.map_err(refused)?, stamp)
                }
                Change::Tombstone { stamp } => {
                    let Some(subject) = &entry.subject else { continue };
                    (tombstone(subject, entry, stamp)?, stamp)
                }
                _ => continue,
            };
            let record =
                self.output.preparer.prepare(&outgoing).map_err(|error| {
                    PublishFailure::new(PublishStage::Convert, "avro::Error::Encode", &error)
                })?;
            let size = record.key.len() + record.value.as_ref().map_or(0, Bytes::len);
            if size > kafka::MAX_RECORD_BYTES {
                let message =
                    format!("the record has {size} bytes, and the limit is {}", kafka::MAX_RECORD_BYTES);
                return Err(PublishFailure {
                    stage: PublishStage::Produce,
                    class: "kafka::Error::RecordRefused",
                    message,
                    causes: Vec::new(),
                });
            }
            let guarded = Key::fence(outgoing.topic, &outgoing.key);
            return Ok(Some((record, guarded, stamp.clone())));
        }
        Ok(None)
    }

    fn companions(
        &self,
        shard: i32,
        entry: &Entry,
        change: &Change,
        (moments, now): (&mut Moments, i64),
        encoded: &mut Encoded,
    ) {
        let put = |key: &Key, value: Option<Bytes>| self.output.preparer.state(key, value);
        let subject = entry.subject.as_ref();
        match change {
            Change::Publish { .. } | Change::Tombstone { .. } => {}
            Change::Park(parked) => {
                encoded.batch.add(put(&Parked::key(shard, &parked.subject), Some(parked.to_json())));
            }
            Change::Unpark => {
                if let Some(subject) = subject {
                    encoded.batch.add(put(&Parked::key(shard, subject), None));
                }
            }
            Change::DeadLetter(failure) => {
                let letters = &self.output.dead_letters;
                let destination = subject.map(|subject| self.output.preparer.topic_name(subject.topic()));
                letters.log(destination.as_deref(), failure);
                encoded.batch.add(letters.record(
                    &entry.event.original,
                    destination.as_deref(),
                    failure,
                    &[("tributary.id", Bytes::from(entry.event.id.clone()))],
                ));
            }
            Change::Gap(found) => {
                let gap = self.gap(found, moments.next(shard, now), now);
                let repair = Repair::of(&gap, now, now);
                encoded.batch.add(put(&gap.key(), Some(state::json(&gap))));
                encoded.batch.add(put(&repair.key(), Some(state::json(&repair))));
            }
            Change::Path(resource) => {
                let grant = self.source.provider.oauth.logins.accounting.grant.clone();
                let value = state::json(&Path { grant, at: now });
                encoded.batch.add(put(&state::path(shard, *resource), Some(value)));
            }
            Change::Brake { resource, since, count } => {
                let value = state::json(&Brake { since: *since, count: *count });
                encoded.batch.add(put(&state::brake(shard, *resource), Some(value)));
            }
        }
    }

    fn gap(&self, found: &GapFound, opened_at: i64, now: i64) -> Gap {
        Gap {
            connector: self.task.connector.to_string(),
            cause: found.cause,
            target: Some(Target::Accounting(found.resource)),
            company: found.company.clone(),
            from: found.from,
            to: Some(now),
            detail: found.detail.clone(),
            opened_at,
            worker: self.task.tools.worker_id.to_string(),
            state: GapState::Open,
        }
    }

    /// A record of an internal topic of the prefix, placed as its key says.
    pub(super) fn record(&self, topic: Topic, key: &Key, value: Option<Bytes>) -> EncodedRecord {
        EncodedRecord {
            topic: self.output.preparer.topic_name(topic),
            ..self.output.preparer.state(key, value)
        }
    }
}

fn meta(entry: &Entry, stamp: &Stamp) -> RecordMeta {
    let event = &entry.event;
    let (version, epoch) = (Some(stamp.version.to_string()), Some(stamp.epoch));
    RecordMeta { version, epoch, traceparent: event.trace, ..RecordMeta::new(event.id.clone(), event.origin) }
}

fn tombstone(subject: &Subject, entry: &Entry, stamp: &Stamp) -> Result<Outgoing, PublishFailure> {
    let meta = meta(entry, stamp);
    let made = Outgoing::tombstone(subject.resource, &subject.company, &subject.id, meta);
    made.map_err(|error| PublishFailure::new(PublishStage::Convert, "model::Error", &error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn gaps_of_all_shards_have_distinct_opening_times() {
        let mut found = BTreeSet::new();
        for shard in 0..MAX_SHARDS {
            let mut moments = Moments::default();
            for now in [1_700_000_000_000_000, 1_700_000_000_000_000, 1_700_000_000_000_001] {
                let moment = moments.next(shard, now);
                assert!((moment - now).abs() < 3 * i64::from(MAX_SHARDS), "{moment}");
                found.insert(moment);
            }
        }
        assert_eq!(found.len(), 3 * MAX_SHARDS as usize);
    }
}
