//! Finds hanging transactions and decides whether to commit or abort them.
//!
//! Every record of a batch carries the transactional id and batch number ([`BATCH_HEADER`]). The last record of a batch in each
//! partition also carries a [`BatchManifest`] with all partitions of the batch. A partition keeps a producer's records in order,
//! so if this record is there, the whole part of the batch is; if every partition of the manifest has it, the batch is complete.
//!
//! When a transaction ends, its coordinator writes a marker to every partition. Kafka 4.3 treats a partition that has no leader
//! at that moment (its broker is stopping, or has just restarted) as deleted and never writes the marker. Consumers of that
//! partition are then stuck before the batch, while consumers of the others may have it. The coordinator no longer knows the
//! outcome; it follows from the logs:
//!
//! | the batch is | in partitions with the marker it is | decision |
//! |---|---|---|
//! | incomplete | | abort: its commit was never requested |
//! | complete | visible in one | commit |
//! | complete | not visible | abort |
//! | complete | (no partition has the marker) | commit: its owner may have seen the commit succeed, and nothing is missing |
//!
//! A hanging batch is committed by writing its last record in each such partition again and committing that: the marker ends
//! everything its producer has open in the partition. So consumers get that record twice, with its manifest. If this commit is
//! aborted, the whole batch is aborted in that partition and is written again.
//!
//! If two batches hang in the same partition, one cannot be aborted without the other. So after a lost connection a commit first
//! checks the last transaction ([`super::ShardProducer::commit`]). One case remains: a batch that begins before the connection
//! is lost, while a stopping broker leads no partition but still answers, and that is then aborted; its abort also aborts a batch
//! that hangs before it.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use model::EncodedRecord;

use crate::{
    ConsumerRecord, Error, Kafka, TopicPartition,
    consumer::{ends, exists, read_range},
    murmur2,
    role::Isolation,
};

/// Header with the manifest.
pub(super) const MANIFEST_HEADER: &str = "tributary.batch";

/// Header that names a record's batch: 4 bytes for the transactional id and 8 for the batch number.
pub(super) const BATCH_HEADER: &str = "tributary.of";

/// How many of a partition's last offsets are searched, in turn, for a batch that is not open there: few are enough if no other
/// writer uses the partition.
const TAIL_LENGTHS: [i64; 3] = [500, 50_000, i64::MAX];

/// A partition counts as deleted when this many checks, with this pause, do not find it.
const EXISTS_TRIES: u32 = 6;
const EXISTS_PAUSE: Duration = Duration::from_millis(500);

/// The manifest in the last record of a batch in each of its partitions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct BatchManifest {
    /// The transactional id.
    by: String,
    /// Unique per transactional id; later batches have higher numbers.
    batch: u64,
    /// Partitions by topic.
    at: BTreeMap<String, BTreeSet<i32>>,
}

impl BatchManifest {
    fn read(record: &ConsumerRecord) -> Option<Self> {
        let (_, value) = record.headers.iter().find(|(name, _)| name == MANIFEST_HEADER)?;
        serde_json::from_slice(value).ok()
    }

    fn places(&self) -> impl Iterator<Item = TopicPartition> {
        let of_topic = |(topic, partitions): (&String, &BTreeSet<i32>)| {
            let topic: Arc<str> = topic.as_str().into();
            partitions.iter().map(move |partition| (Arc::clone(&topic), *partition)).collect::<Vec<_>>()
        };
        self.at.iter().flat_map(of_topic)
    }
}

/// Batch numbers: microseconds since 1970, strictly increasing.
#[derive(Debug, Default)]
pub(super) struct BatchNumbers(u64);

impl BatchNumbers {
    fn next(&mut self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0 = u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(self.0.saturating_add(1));
        self.0
    }
}

/// Adds the batch header to every record and the manifest to the last record in each partition.
pub(super) fn add_batch_headers(
    transactional_id: &str,
    numbers: &mut BatchNumbers,
    batch: &mut [EncodedRecord],
) {
    let number = numbers.next();
    let of = Bytes::copy_from_slice(&batch_id(transactional_id, number));
    let mut at: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
    let mut last = Vec::new();
    for (index, record) in batch.iter_mut().enumerate().rev() {
        record.headers.push((BATCH_HEADER, of.clone()));
        let partitions = match at.get_mut(&*record.topic) {
            Some(partitions) => partitions,
            None => at.entry(record.topic.to_string()).or_default(),
        };
        if partitions.insert(record.partition) {
            last.push(index);
        }
    }
    let manifest = BatchManifest { by: transactional_id.to_owned(), batch: number, at };
    // Serializing text and numbers cannot fail.
    let Ok(manifest) = serde_json::to_vec(&manifest).map(Bytes::from) else { return };
    for index in last {
        batch[index].headers.push((MANIFEST_HEADER, manifest.clone()));
    }
}

fn batch_id(transactional_id: &str, number: u64) -> [u8; 12] {
    let mut id = [0; 12];
    id[..4].copy_from_slice(&murmur2(transactional_id.as_bytes()).to_be_bytes());
    id[4..].copy_from_slice(&number.to_be_bytes());
    id
}

/// The batch number of a record, if this id has written it.
fn batch_number(transactional_id: &str, record: &ConsumerRecord) -> Option<u64> {
    let (_, of) = record.headers.iter().find(|(name, _)| name == BATCH_HEADER)?;
    let number = u64::from_be_bytes(of.get(4..)?.try_into().ok()?);
    (**of == batch_id(transactional_id, number)).then_some(number)
}

/// How to end the hanging transactions of an id.
pub(super) struct HangingTransactions {
    pub(super) commit: BTreeMap<TopicPartition, HangingBatch>,
    pub(super) abort: BTreeSet<TopicPartition>,
}

/// Decides about the open transactions of this id in these partitions, and about the same batches in other partitions.
///
/// A partition in which another id's transaction is open first is left alone: whether what is behind it has ended cannot be
/// known until that one has.
pub(super) async fn find_hanging(
    kafka: &Kafka,
    transactional_id: &str,
    places: &[TopicPartition],
    limit: Duration,
) -> Result<HangingTransactions, Error> {
    let end = Instant::now() + limit;
    let mut places: BTreeSet<TopicPartition> = places.iter().cloned().collect();
    let mut gone: BTreeSet<TopicPartition> = BTreeSet::new();
    let found = loop {
        let found = find_open_batches(kafka, transactional_id, &places, end).await?;
        let new: BTreeSet<TopicPartition> = found
            .values()
            .flat_map(|last| last.manifest.places())
            .filter(|place| !places.contains(place) && !gone.contains(place))
            .collect();
        if new.is_empty() {
            break found;
        }
        for place in new {
            if partition_exists(kafka, &place, end).await? {
                places.insert(place)
            } else {
                gone.insert(place)
            };
        }
    };
    let mut verdicts: BTreeMap<u64, bool> = BTreeMap::new();
    for last in found.values().filter(|last| last.is_first) {
        let batch = last.manifest.batch;
        if verdicts.contains_key(&batch) {
            continue;
        }
        let is_open =
            |place: &TopicPartition| found.get(place).is_some_and(|one| one.manifest.batch == batch);
        let with_marker = last.manifest.places().filter(|place| !is_open(place) && !gone.contains(place));
        verdicts
            .insert(batch, is_committed(kafka, &last.manifest, &with_marker.collect::<Vec<_>>(), end).await?);
    }
    let mut commit = found;
    commit.retain(|place, last| {
        let is_kept = last.is_first && verdicts.get(&last.manifest.batch) == Some(&true);
        // Another id's transaction that is open first must end before this one.
        if is_kept || !last.is_first {
            places.remove(place);
        }
        is_kept
    });
    Ok(HangingTransactions { commit, abort: places })
}

/// Whether the partition exists: its topic may have been deleted since. A restarted broker may not know it yet, hence the
/// repeated checks.
async fn partition_exists(kafka: &Kafka, place: &TopicPartition, end: Instant) -> Result<bool, Error> {
    for _ in 0..EXISTS_TRIES {
        if exists(kafka, place, left(end)).await? {
            return Ok(true);
        }
        sleep(EXISTS_PAUSE).await;
    }
    Ok(false)
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// The last batch of an id in a partition, from the first open transaction on.
pub(super) struct HangingBatch {
    manifest: BatchManifest,
    /// The batch's records there, in order.
    records: Vec<EncodedRecord>,
    /// Offset of its last record.
    offset: i64,
    /// Whether the first open transaction there is of this id.
    is_first: bool,
}

/// Finds, by partition, the last batch of an id that is not known to have ended.
async fn find_open_batches(
    kafka: &Kafka,
    transactional_id: &str,
    places: &BTreeSet<TopicPartition>,
    end: Instant,
) -> Result<BTreeMap<TopicPartition, HangingBatch>, Error> {
    let places: Vec<TopicPartition> = places.iter().cloned().collect();
    let stable = ends(kafka, &places, Isolation::ReadCommitted, left(end)).await?;
    let starts = stable.into_iter().map(|(place, (_, behind))| (place, behind)).collect();
    let mut found: BTreeMap<TopicPartition, HangingBatch> = BTreeMap::new();
    let mut begun: BTreeMap<TopicPartition, (u64, Vec<EncodedRecord>)> = BTreeMap::new();
    let mut first: BTreeMap<TopicPartition, bool> = BTreeMap::new();
    read_range(kafka, starts, Isolation::ReadUncommitted, left(end), |record| {
        let place = (Arc::clone(&record.topic), record.partition);
        let number = batch_number(transactional_id, &record);
        let is_first = *first.entry(place.clone()).or_insert(number.is_some());
        let Some(number) = number else { return };
        let (manifest, offset) = (BatchManifest::read(&record), record.offset);
        let batch = begun.entry(place.clone()).or_insert_with(|| (number, Vec::new()));
        if batch.0 != number {
            *batch = (number, Vec::new());
        }
        batch.1.push(to_encoded(record));
        if let Some(manifest) = manifest {
            let records = begun.remove(&place).map(|(_, records)| records).unwrap_or_default();
            // A copy of a batch's last record may follow it.
            let is_more = found.get(&place).is_none_or(|last| {
                last.manifest.batch != manifest.batch || last.records.len() < records.len()
            });
            if is_more {
                found.insert(place, HangingBatch { manifest, records, offset, is_first });
            }
        }
    })
    .await?;
    Ok(found)
}

/// The records whose commit completes these batches: at the first attempt the last record in each partition. After an attempt
/// with an unknown outcome, a partition may have it, or may have aborted the whole batch, which must then be written again.
pub(super) async fn commit_records(
    kafka: &Kafka,
    transactional_id: &str,
    open: &BTreeMap<TopicPartition, HangingBatch>,
    is_first: bool,
    limit: Duration,
) -> Result<Vec<EncodedRecord>, Error> {
    if is_first {
        return Ok(open.values().filter_map(|one| one.records.last().cloned()).collect());
    }
    let end = Instant::now() + limit;
    let still = find_open_batches(kafka, transactional_id, &open.keys().cloned().collect(), end).await?;
    let mut records = Vec::new();
    for (place, one) in open {
        match still.get(place) {
            Some(last) if last.is_first => records.extend(one.records.last().cloned()),
            // Another id's transaction is open first, so the outcome cannot be known yet.
            Some(_) => {
                let action = format!("complete a transaction in {} partition {}", place.0, place.1);
                return Err(Error::Deadline { action, limit });
            }
            None if is_seen(kafka, place, one.offset, left(end)).await? => {}
            None => records.extend(one.records.iter().cloned()),
        }
    }
    Ok(records)
}

/// Whether a record is visible to read-committed consumers.
async fn is_seen(kafka: &Kafka, place: &TopicPartition, offset: i64, limit: Duration) -> Result<bool, Error> {
    let mut is_seen = false;
    let start = BTreeMap::from([(place.clone(), offset)]);
    read_range(kafka, start, Isolation::ReadCommitted, limit, |record| is_seen |= record.offset == offset)
        .await?;
    Ok(is_seen)
}

/// Whether a batch that hangs in some partitions was committed, judging by those that have the marker.
async fn is_committed(
    kafka: &Kafka,
    manifest: &BatchManifest,
    with_marker: &[TopicPartition],
    end: Instant,
) -> Result<bool, Error> {
    let mut is_denied = false;
    let stable = ends(kafka, with_marker, Isolation::ReadCommitted, left(end)).await?;
    for (place, (low, high)) in ends(kafka, with_marker, Isolation::ReadUncommitted, left(end)).await? {
        let (mut at, mut is_older) = (Vec::new(), false);
        for back in TAIL_LENGTHS {
            let start = BTreeMap::from([(place.clone(), low.max(high.saturating_sub(back)))]);
            let each = |record: ConsumerRecord| {
                if BatchManifest::read(&record).as_ref() == Some(manifest) {
                    at.push(record.offset);
                }
                is_older |= batch_number(&manifest.by, &record).is_some_and(|number| number < manifest.batch);
            };
            read_range(kafka, start, Isolation::ReadUncommitted, left(end), each).await?;
            if !at.is_empty() || is_older {
                break;
            }
        }
        // Still open there, before a later batch that hangs too, so the partition has no marker of either.
        if at.iter().any(|offset| stable.get(&place).is_some_and(|(_, end)| offset >= end)) {
            continue;
        }
        // A copy may be aborted although the record itself is visible.
        for offset in &at {
            if is_seen(kafka, &place, *offset, left(end)).await? {
                return Ok(true);
            }
        }
        // Aborted there or never written. If the log was truncated past it (low > 0), a missing record proves nothing.
        is_denied |= !at.is_empty() || is_older || low == 0;
    }
    Ok(!is_denied)
}

/// The record as it was written.
fn to_encoded(record: ConsumerRecord) -> EncodedRecord {
    let headers = record.headers.into_iter().map(|(name, value)| (header_name(name), value)).collect();
    EncodedRecord {
        topic: record.topic,
        partition: record.partition,
        key: record.key.unwrap_or_default(),
        value: record.value,
        headers,
        timestamp_ms: record.timestamp_ms,
    }
}

/// Leaks a header's name, since `EncodedRecord` needs `'static` names. Only our own records are read, so there are few.
fn header_name(name: String) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    match names.get(&*name) {
        Some(known) => known,
        None => {
            let known: &'static str = name.leak();
            names.insert(known);
            known
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(topic: &str, partition: i32, key: &str) -> EncodedRecord {
        EncodedRecord {
            topic: topic.into(),
            partition,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: None,
            headers: vec![("tributary.id", Bytes::from_static(b"7"))],
            timestamp_ms: Some(5),
        }
    }

    fn received(record: &EncodedRecord) -> ConsumerRecord {
        ConsumerRecord {
            topic: Arc::clone(&record.topic),
            partition: record.partition,
            offset: 9,
            key: Some(record.key.clone()),
            value: record.value.clone(),
            headers: record.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            timestamp_ms: record.timestamp_ms,
        }
    }

    #[test]
    fn last_record_of_each_partition_has_the_manifest() {
        let mut numbers = BatchNumbers::default();
        let mut batch = [record("a", 0, "1"), record("a", 1, "2"), record("a", 0, "3"), record("b", 1, "4")];

        add_batch_headers("shard 0", &mut numbers, &mut batch);

        let read: Vec<Option<BatchManifest>> =
            batch.iter().map(|one| BatchManifest::read(&received(one))).collect();
        assert_eq!(read[0], None, "a later record has the same partition");
        let manifest = read[1].clone().unwrap();
        assert!(read[1..].iter().all(|one| one.as_ref() == Some(&manifest)));
        assert_eq!(manifest.by, "shard 0");
        let places: Vec<TopicPartition> = vec![("a".into(), 0), ("a".into(), 1), ("b".into(), 1)];
        assert!(manifest.places().eq(places));
        assert_eq!(batch[1].headers[0].0, "tributary.id", "its own headers come first");
        let number = |one: &EncodedRecord, id| batch_number(id, &received(one));
        assert!(batch.iter().all(|one| number(one, "shard 0") == Some(manifest.batch)));
        assert!(batch.iter().all(|one| number(one, "shard 1").is_none()), "it is of another id");
    }

    #[test]
    fn batch_numbers_strictly_increase() {
        let mut numbers = BatchNumbers::default();
        let drawn: Vec<u64> = (0..1_000).map(|_| numbers.next()).collect();
        assert!(drawn.is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn copy_equals_the_written_record() {
        let mut batch = [record("a", 3, "1")];
        add_batch_headers("shard", &mut BatchNumbers::default(), &mut batch);
        assert_eq!(to_encoded(received(&batch[0])), batch[0]);
    }

    #[test]
    fn malformed_headers_are_ignored() {
        let mut strange = received(&record("a", 0, "1"));
        assert_eq!((BatchManifest::read(&strange), batch_number("shard", &strange)), (None, None));
        strange.headers.push((BATCH_HEADER.to_owned(), Bytes::from_static(b"7")));
        strange.headers.push((MANIFEST_HEADER.to_owned(), Bytes::from_static(b"7")));
        assert_eq!((BatchManifest::read(&strange), batch_number("shard", &strange)), (None, None));
    }
}
