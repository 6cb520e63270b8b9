//! Commits the batches of one shard, and turns them into Kafka records: values, fence entries, dead letters, gaps, offsets, state and
//! certificates.
//!
//! A transient error is retried. After a rebuild of the producer, the batch id in the state topic says whether the transaction was
//! committed. If Kafka rejects a record, the batch is split into one transaction per entry, and the rejected entry becomes a dead letter.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value as Json};
use tokio::time::{Instant, sleep};

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use kafka::{murmur2, write_id};
use model::{
    AccountingResource, Certificate, EncodedRecord, Gap, GapState, Key, Origin, Outgoing, RecordMeta, Repair,
    Stamp, Target, Topic,
};

use super::{
    Shared, now,
    state::{self, BatchId, Brake, Collection, Path},
    taking::unwritten,
};
use crate::{
    config::connector::record::MAX_SHARDS,
    plugin::Failure,
    publish::{self, PublishFailure, PublishStage, ShardBatch, ShardWriter},
    records::{
        fence,
        schedule::{Batch, Change, Entry, GapFound, Parked, Subject},
    },
};

/// Backoff after an aborted transaction that may be retried.
const COMMIT_RETRY_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(50),
    longest: Duration::from_secs(5),
    total: Some(Duration::from_secs(120)),
};

/// The outcome of a batch, and the committer for the next one.
pub(super) type CommitEnd = (Commit, Result<Written, Failure>);

/// Commits the batches of a shard, one at a time, also across rebuilds of its producer.
pub(super) struct Commit {
    pub(super) shared: Arc<Shared>,
    pub(super) shard: i32,
    pub(super) writer: ShardWriter,
    /// Id of the last committed batch.
    pub(super) last: Option<String>,
    pub(super) moments: Moments,
}

/// A committed batch, in parts if it was split.
#[derive(Default)]
pub(super) struct Written {
    pub(super) batches: Vec<Batch>,
    pub(super) fences: Vec<(Key, Stamp)>,
    /// Next offset of the fences topic after this batch.
    pub(super) next_offset: Option<i64>,
    /// State that must not become visible before the rejections of this batch are counted: the next batch writes both.
    pub(super) postponed: PostponedState,
    pub(super) took: Duration,
    /// Whether the fence entries are stored on this disk.
    pub(super) is_kept: bool,
}

/// State of lists from a batch with a rejected entry. A page must not become visible as read before the count of its unusable rows.
/// Certificates move with the state that removes the page marks of their lists.
#[derive(Debug, Default)]
pub(super) struct PostponedState {
    /// Whether an entry of the batch was rejected.
    is_needed: bool,
    /// Page marks, counts and progress.
    state: Vec<(Key, Option<Bytes>)>,
    /// Certificates, each with the time at which its run was requested.
    certificates: Vec<(Certificate, i64)>,
}

impl PostponedState {
    /// Moves the state of lists out of the batch if an entry of it, or of an earlier part, was rejected.
    pub(super) fn postpone(&mut self, batch: &mut Batch) {
        self.is_needed |= batch.entries.iter().any(|entry| entry.is_refused);
        if self.is_needed {
            self.state.append(&mut batch.state);
            self.certificates.append(&mut batch.certificates);
        }
    }

    /// Adds the postponed state to the next batch, before that batch's own.
    pub(super) fn add_to(&mut self, batch: &mut Batch) {
        let Self { state, certificates, .. } = std::mem::take(self);
        batch.state.splice(..0, state);
        batch.certificates.splice(..0, certificates);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.is_empty() && self.certificates.is_empty()
    }
}

impl Commit {
    pub(super) async fn write(mut self, batch: Batch) -> CommitEnd {
        let written = self.try_write(batch).await;
        (self, written)
    }

    /// Commits the whole batch, in parts if Kafka rejects a record of it.
    async fn try_write(&mut self, batch: Batch) -> Result<Written, Failure> {
        const ACTION: &str = "commit the batch of a shard";
        let begun = Instant::now();
        let mut written = Written::default();
        let mut parts = VecDeque::from([batch]);
        let mut backoff =
            Backoff::new(COMMIT_RETRY_BACKOFF, u64::from(murmur2(self.shard.to_string().as_bytes())));
        while let Some(mut batch) = parts.pop_front() {
            if self.shared.task.cancel.is_cancelled() && !backoff.is_fresh() {
                return Err(Failure::retryable(
                    "Stopped",
                    "the task was canceled while a batch was being retried",
                ));
            }
            let id = String::from_utf8_lossy(&write_id()).into_owned();
            let encoded = self.shared.encode(
                self.shard,
                &id,
                &mut batch,
                (&mut self.moments, &mut written.postponed),
                now(),
            );
            let encoded = encoded.map_err(|error| unwritten(ACTION, error))?;
            let source = match self.writer.commit(encoded.batch).await {
                Ok(committed) => {
                    let topic = self.shared.output.preparer.topic_name(Topic::Fences);
                    written.next_offset = committed.next_offset(&topic, self.shard).or(written.next_offset);
                    self.done(id, batch, encoded.fences, &mut written);
                    // Waits for different parts do not add up.
                    backoff.reset();
                    continue;
                }
                Err(publish::Error::Transaction { source, .. }) => *source,
                Err(error) => return Err(unwritten(ACTION, error)),
            };
            match source {
                kafka::CommitError::Rebuilt { source } => {
                    // A transaction that the previous producer left open must not become visible with the next one.
                    self.shared.starts(self.shard, self.writer.producer()).await?;
                    // Every batch writes its id, from which an unknown outcome is resolved.
                    let found = self.shared.read_state(self.shard).await?.batch;
                    if found.as_deref() == Some(&id) {
                        self.done(id, batch, encoded.fences, &mut written);
                    } else if found == self.last {
                        let Some(wait) = backoff.next_wait(Retry::Later) else {
                            return Err(Failure::transaction(ACTION, kafka::CommitError::Rebuilt { source }));
                        };
                        sleep(wait).await;
                        tracing::warn!(shard = self.shard, error = %ErrorChain(&source), "a batch is committed again");
                        parts.push_front(batch);
                    } else {
                        let message = format!("another writer has written to shard {}", self.shard);
                        return Err(Failure::retryable("ShardTaken", message));
                    }
                }
                kafka::CommitError::Aborted { source }
                    if source.refuses_record() && batch.entries.iter().any(Entry::may_be_refused) =>
                {
                    let causes = vec![ErrorChain(&source).to_string()];
                    let failure = record_refused("Kafka does not take the record".to_owned(), causes);
                    for part in apart(batch, failure).into_iter().rev() {
                        parts.push_front(part);
                    }
                }
                kafka::CommitError::Aborted { source } => {
                    let Some(wait) = backoff.next_wait(source.retry()) else {
                        return Err(Failure::transaction(ACTION, kafka::CommitError::Aborted { source }));
                    };
                    tracing::warn!(shard = self.shard, error = %ErrorChain(&source), ?wait, "a batch was not taken");
                    sleep(wait).await;
                    parts.push_front(batch);
                }
                failure => return Err(Failure::transaction(ACTION, failure)),
            }
        }
        written.took = begun.elapsed();
        Ok(written)
    }

    fn done(&mut self, id: String, batch: Batch, fences: Vec<(Key, Stamp)>, written: &mut Written) {
        self.last = Some(id);
        written.batches.push(batch);
        written.fences.extend(fences);
    }
}

/// Splits a batch into one part per entry, to find the rejected one. A batch of a single entry has found it: the entry is replaced.
fn apart(mut batch: Batch, failure: PublishFailure) -> Vec<Batch> {
    if batch.entries.len() <= 1 {
        batch.entries = batch.entries.into_iter().map(|entry| entry.refused(failure.clone())).collect();
        return vec![batch];
    }
    let (entries, first) = (std::mem::take(&mut batch.entries), std::mem::take(&mut batch.first));
    let mut parts: Vec<Batch> =
        entries.into_iter().map(|entry| Batch { entries: vec![entry], ..Batch::default() }).collect();
    if let Some(part) = parts.first_mut() {
        part.first = first;
    }
    // Offsets, page marks and certificates must not become visible before the entries that they depend on.
    if let Some(last) = parts.last_mut() {
        let (entries, first) = (std::mem::take(&mut last.entries), std::mem::take(&mut last.first));
        *last = Batch { entries, first, ..batch };
    }
    parts
}

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
    /// the state of lists is postponed to the next batch.
    pub(super) fn encode(
        &self,
        shard: i32,
        id: &str,
        batch: &mut Batch,
        (moments, postponed): (&mut Moments, &mut PostponedState),
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
        postponed.postpone(batch);
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
        let id = state::json(&BatchId { id: id.to_owned() });
        encoded.batch.add(self.output.preparer.state(&state::batch(shard), Some(id)));
        Ok(encoded)
    }

    /// The record of a certificate; its id names the run.
    fn certificate(
        &self,
        (certificate, requested_at): &(Certificate, i64),
    ) -> Result<EncodedRecord, publish::Error> {
        let id = Collection::certificate_id(&certificate.scope.run, *requested_at);
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
                return Err(record_refused(message, Vec::new()));
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
                let value = state::json(&Path { grant });
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

/// The failure of a record that Kafka rejected, or would reject for its size.
fn record_refused(message: String, causes: Vec<String>) -> PublishFailure {
    PublishFailure { stage: PublishStage::Produce, class: "kafka::Error::RecordRefused", message, causes }
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
