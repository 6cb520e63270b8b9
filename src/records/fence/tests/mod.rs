//! Fences on the in-process cluster.

mod disk;
mod reference;

use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tokio::time::timeout;

use kafka::{Producer, ProducerOptions, embedded::EmbeddedCluster};
use model::{AccountingResource, CompanyId, EncodedRecord, Epoch, Key, Rank, RecordId, Stamp, Topic};

use super::*;

const LIMIT: Duration = Duration::from_secs(60);
const TOPIC: &str = "p.fences";
const SHARDS: i32 = 3;

/// A topic, its writer and a directory.
struct Bench {
    cluster: EmbeddedCluster,
    producer: Producer,
    home: TempDir,
}

impl Bench {
    fn new() -> Self {
        let (cluster, producer) = log();
        Self { cluster, producer, home: TempDir::new().unwrap() }
    }

    fn fences(&self) -> Fences {
        Fences::new(self.home.path().join("fence"))
    }

    /// Recreates the topic, with a new cluster because the embedded one cannot delete topics.
    fn recreate_topic(&mut self) {
        (self.cluster, self.producer) = log();
    }

    /// Writes records and returns the offset after them.
    async fn write(&self, shard: i32, records: &[(Key, Option<Bytes>)]) -> i64 {
        let send = |(key, value): &(Key, Option<Bytes>)| {
            let record = EncodedRecord {
                topic: TOPIC.into(),
                partition: shard,
                key: Bytes::copy_from_slice(key.as_str().as_bytes()),
                value: value.clone(),
                headers: Vec::new(),
                timestamp_ms: None,
            };
            self.producer.send(record).unwrap()
        };
        let mut next_offset = 0;
        for delivery in records.iter().map(send).collect::<Vec<_>>() {
            next_offset = timeout(LIMIT, delivery).await.unwrap().unwrap().offset + 1;
        }
        next_offset
    }

    async fn write_birth(&self, shard: i32, birth: &str) -> i64 {
        let (key, value) = birth_record(shard, birth);
        self.write(shard, &[(key, Some(value))]).await
    }

    async fn write_entries(&self, shard: i32, entries: &[(Key, Stamp)]) -> i64 {
        let records: Vec<_> =
            entries.iter().map(|(key, stamp)| (key.clone(), Some(record(key, stamp).1))).collect();
        self.write(shard, &records).await
    }

    async fn restore(&self, fence: &mut ShardFence) -> Restored {
        fence.restore(&self.cluster.settings(), TOPIC, LIMIT).await.unwrap()
    }
}

fn log() -> (EmbeddedCluster, Producer) {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic(TOPIC, SHARDS).unwrap();
    let mut settings = cluster.settings();
    // The embedded cluster keeps 5 MB of a partition, as they were sent.
    settings.producer.insert("compression.type".into(), "lz4".into());
    let producer = Producer::new(&settings, &ProducerOptions::default()).unwrap();
    (cluster, producer)
}

fn prefix(text: &str) -> TopicPrefix {
    TopicPrefix::new(text).unwrap()
}

fn key(id: impl ToString) -> Key {
    let record = Key::record(&CompanyId::new("c").unwrap(), &RecordId::new(id.to_string()).unwrap());
    Key::fence(Topic::AccountingRecords(AccountingResource::Customers), &record)
}

fn stamp(version: u64) -> Stamp {
    Stamp {
        epoch: Epoch(0),
        version: version.to_string().parse().unwrap(),
        rank: Rank::ById,
        deleted: version.is_multiple_of(7),
    }
}

fn found(records: u64, from_start: bool, birth: &str) -> Restored {
    Restored { records, from_start, birth: Some(birth.to_owned()) }
}

#[test]
fn records_match_the_documented_format() {
    let (entry, value) = record(&key("r"), &stamp(12));
    let (birth, id) = birth_record(4, "b-1");

    assert_eq!(entry, "accounting.customers/c/r");
    assert_eq!(value, r#"{"epoch":0,"version":"12","rank":2,"deleted":false}"#);
    assert_eq!((birth.as_str(), &id[..]), ("~shard/4", &br#"{"birth":"b-1"}"#[..]));
}

#[tokio::test]
async fn partition_without_an_owner_has_no_birth() {
    let bench = Bench::new();
    let mut fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();

    let restored = bench.restore(&mut fence).await;

    assert_eq!(restored, Restored { records: 0, from_start: true, birth: None });
    assert_eq!((fence.entries(), fence.get(&key(1)).unwrap()), (0, None));
}

#[tokio::test]
async fn reopened_fence_reads_only_what_it_lacks() {
    let bench = Bench::new();
    let fences = bench.fences();
    let mut fence = fences.shard(&prefix("p"), 1).await.unwrap();
    bench.restore(&mut fence).await;
    bench.write_birth(1, "b").await;
    bench.restore(&mut fence).await;
    let batch = vec![(key(1), stamp(1)), (key(2), stamp(2))];
    let next_offset = bench.write_entries(1, &batch).await;
    fence.put(batch, Some(next_offset)).await.unwrap();
    drop(fence);
    bench.write_entries(1, &[(key(2), stamp(3)), (key(3), stamp(4))]).await;

    let mut fence = fences.shard(&prefix("p"), 1).await.unwrap();
    let restored = bench.restore(&mut fence).await;
    let again = bench.restore(&mut fence).await;

    assert_eq!(restored, found(2, false, "b"));
    assert_eq!(again, found(0, false, "b"));
    assert_eq!(fence.entries(), 3);
    for (id, version) in [(1, 1), (2, 3), (3, 4)] {
        assert_eq!(fence.get(&key(id)).unwrap(), Some(stamp(version)), "{id}");
    }
    assert_eq!(fence.get(&key(4)).unwrap(), None);
}

#[tokio::test]
async fn put_before_restore_sets_no_position() {
    let bench = Bench::new();
    bench.write_birth(0, "b").await;
    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    let next_offset = bench.write_entries(0, &[(key(2), stamp(2))]).await;
    let fences = bench.fences();
    let fence = fences.shard(&prefix("p"), 0).await.unwrap();
    fence.put(vec![(key(2), stamp(2))], Some(next_offset)).await.unwrap();
    assert_eq!(fence.position(), None);
    drop(fence);

    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    let restored = bench.restore(&mut fence).await;

    assert_eq!(restored, found(3, true, "b"));
    assert_eq!((fence.get(&key(1)).unwrap(), fence.entries()), (Some(stamp(1)), 2));
}

#[tokio::test]
async fn put_before_a_second_restore_keeps_the_position() {
    let bench = Bench::new();
    let fences = bench.fences();
    bench.write_birth(0, "b").await;
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    bench.restore(&mut fence).await;
    drop(fence);
    // Another worker had the shard meanwhile.
    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    let fence = fences.shard(&prefix("p"), 0).await.unwrap();
    let next_offset = bench.write_entries(0, &[(key(2), stamp(2))]).await;
    fence.put(vec![(key(2), stamp(2))], Some(next_offset)).await.unwrap();
    drop(fence);

    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    let restored = bench.restore(&mut fence).await;

    assert_eq!(restored, found(2, false, "b"));
    assert_eq!((fence.get(&key(1)).unwrap(), fence.entries()), (Some(stamp(1)), 2));
}

#[tokio::test]
async fn puts_are_written_in_order_without_being_awaited() {
    let bench = Bench::new();
    let fences = bench.fences();
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    bench.write_birth(0, "b").await;
    bench.restore(&mut fence).await;

    for version in 1..=200 {
        drop(fence.put(vec![(key("same"), stamp(version)), (key(version), stamp(version))], None));
    }
    drop(fence);
    let fence = fences.shard(&prefix("p"), 0).await.unwrap();

    assert_eq!(fence.get(&key("same")).unwrap(), Some(stamp(200)));
    assert_eq!(fence.entries(), 201);
}

#[tokio::test]
async fn position_beyond_the_topic_restores_from_the_start() {
    let bench = Bench::new();
    let fences = bench.fences();
    bench.write_birth(0, "b").await;
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    bench.restore(&mut fence).await;
    // As if the end of the log was lost.
    fence.put(vec![(key("lost"), stamp(1))], Some(500)).await.unwrap();

    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    let restored = bench.restore(&mut fence).await;

    assert_eq!(restored, found(2, true, "b"));
    assert_eq!(fence.get(&key("lost")).unwrap(), None);
    assert_eq!((fence.get(&key(1)).unwrap(), fence.entries()), (Some(stamp(1)), 1));
}

#[tokio::test]
async fn recreated_topic_is_detected_although_the_offset_fits() {
    let mut bench = Bench::new();
    let fences = bench.fences();
    bench.write_birth(0, "old").await;
    bench.write_entries(0, &[(key(1), stamp(100)), (key(2), stamp(100))]).await;
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    assert_eq!(bench.restore(&mut fence).await, found(3, true, "old"));

    bench.recreate_topic();
    bench.write_birth(0, "new").await;
    let entries: Vec<_> = (1..=5).map(|id| (key(id), stamp(id))).collect();
    bench.write_entries(0, &entries[1..]).await;
    let restored = bench.restore(&mut fence).await;

    assert_eq!(restored, found(5, true, "new"));
    assert_eq!((fence.get(&key(1)).unwrap(), fence.get(&key(2)).unwrap()), (None, Some(stamp(2))));
    assert_eq!(fence.entries(), 4);
}

#[tokio::test]
async fn new_birth_after_the_position_restores_from_the_start() {
    let bench = Bench::new();
    let fences = bench.fences();
    bench.write_birth(0, "one").await;
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    bench.restore(&mut fence).await;
    fence.put(vec![(key("of one"), stamp(1))], None).await.unwrap();

    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    bench.write_birth(0, "two").await;
    let restored = bench.restore(&mut fence).await;

    assert_eq!(restored, found(3, true, "two"));
    assert_eq!(fence.get(&key("of one")).unwrap(), None);
}

#[tokio::test]
async fn prefixes_and_shards_do_not_mix() {
    let bench = Bench::new();
    let fences = bench.fences();
    let places = [("p", 0), ("p", 1), ("p.q", 0), ("q", 0), ("p", 256)];
    let mut opened = Vec::new();
    for (version, (name, shard)) in (1..).zip(places) {
        let fence = fences.shard(&prefix(name), shard).await.unwrap();
        fence.put(vec![(key("same"), stamp(version)), (key(version), stamp(version))], None).await.unwrap();
        opened.push(fence);
    }

    for (version, fence) in (1..).zip(&opened) {
        assert_eq!(fence.get(&key("same")).unwrap(), Some(stamp(version)));
        assert_eq!(fence.entries(), 2);
    }
    // Dropping the entries of one shard keeps the others.
    bench.restore(&mut opened[0]).await;
    assert_eq!((opened[0].get(&key("same")).unwrap(), opened[0].entries()), (None, 0));
    for (version, fence) in (2..).zip(&opened[1..]) {
        assert_eq!(fence.get(&key("same")).unwrap(), Some(stamp(version)));
    }
}

#[tokio::test]
async fn shard_has_one_fence_at_a_time() {
    let bench = Bench::new();
    let fences = bench.fences();
    let first = fences.shard(&prefix("p"), 0).await.unwrap();
    let other = timeout(LIMIT, fences.clone().shard(&prefix("p"), 1)).await.unwrap().unwrap();

    let second = timeout(Duration::from_millis(100), fences.shard(&prefix("p"), 0)).await;
    assert!(second.is_err(), "the first one is still there");
    drop((first, other));

    timeout(LIMIT, fences.shard(&prefix("p"), 0)).await.unwrap().unwrap();
}

#[tokio::test]
async fn keys_too_long_for_the_store_are_kept_apart() {
    let bench = Bench::new();
    let fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();
    let (long, other) = (key("x".repeat(100_000)), key("x".repeat(100_001)));

    fence.put(vec![(long.clone(), stamp(1))], None).await.unwrap();

    assert_eq!((fence.get(&long).unwrap(), fence.get(&other).unwrap()), (Some(stamp(1)), None));
}

#[tokio::test]
async fn tombstones_remove_entries_and_other_records_are_skipped() {
    let bench = Bench::new();
    bench.write_birth(0, "b").await;
    bench.write_entries(0, &[(key(1), stamp(1)), (key(2), stamp(2))]).await;
    bench.write(0, &[(key(1), None), (key(9), None)]).await;
    bench.write(0, &[(Key::shard_list(0, "later"), Some(Bytes::from_static(b"?")))]).await;
    let mut fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();

    assert_eq!(bench.restore(&mut fence).await, found(6, true, "b"));

    assert_eq!((fence.get(&key(1)).unwrap(), fence.get(&key(2)).unwrap()), (None, Some(stamp(2))));
    assert_eq!(fence.entries(), 1);
}

#[tokio::test]
async fn unparsable_record_is_an_error_that_names_its_offset() {
    let bench = Bench::new();
    bench.write_birth(0, "b").await;
    bench
        .write(
            0,
            &[(key(1), Some(Bytes::from_static(br#"{"epoch":0,"version":"1","rank":9,"deleted":false}"#)))],
        )
        .await;
    let mut fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();

    let error = fence.restore(&bench.cluster.settings(), TOPIC, LIMIT).await.unwrap_err();

    assert!(error.to_string().contains("p.fences partition 0: the record at offset 1"), "{error}");
    assert_eq!(error.retry(), Retry::Never);
}

#[tokio::test]
async fn unreachable_kafka_is_retryable_and_loses_nothing() {
    let bench = Bench::new();
    bench.write_birth(0, "b").await;
    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    let mut fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();
    bench.restore(&mut fence).await;

    bench.cluster.set_reachable(false).unwrap();
    let short = Duration::from_millis(300);
    let error = fence.restore(&bench.cluster.settings(), TOPIC, short).await.unwrap_err();
    bench.cluster.set_reachable(true).unwrap();

    assert_eq!(error.retry(), Retry::Later, "{error}");
    assert_eq!(fence.get(&key(1)).unwrap(), Some(stamp(1)));
    assert_eq!(bench.restore(&mut fence).await, found(0, false, "b"));
}

#[tokio::test]
async fn hundred_thousand_entries_are_restored_and_counted() {
    const COUNT: u64 = 100_000;
    let bench = Bench::new();
    let fences = bench.fences();
    bench.write_birth(0, "b").await;
    // Every tenth key is written twice.
    let mut read = 1;
    for part in (0..COUNT).collect::<Vec<_>>().chunks(10_000) {
        let mut entries = Vec::new();
        for id in part {
            entries.push((key(id), stamp(*id)));
            if id.is_multiple_of(10) {
                entries.push((key(id), stamp(id + 1)));
            }
        }
        bench.write_entries(0, &entries).await;
        read += entries.len() as u64;
    }
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();

    let restored = bench.restore(&mut fence).await;
    drop(fence);
    let fence = fences.shard(&prefix("p"), 0).await.unwrap();

    assert_eq!(restored, found(read, true, "b"));
    assert_eq!(fence.entries(), COUNT);
    for id in [0, 1, 10, 49_999, 50_000, COUNT - 1] {
        let version = if id.is_multiple_of(10) { id + 1 } else { id };
        assert_eq!(fence.get(&key(id)).unwrap(), Some(stamp(version)), "{id}");
    }
}

#[tokio::test]
async fn known_records_are_paged_without_deleted_or_unwanted() {
    let bench = Bench::new();
    let mut fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();
    bench.restore(&mut fence).await;
    let topic = Topic::AccountingRecords(AccountingResource::Charges);
    let record = |company: &str, id: &str| (CompanyId::new(company).unwrap(), RecordId::new(id).unwrap());
    let entry = |company: &str, id: &str, version| {
        let (company, id) = record(company, id);
        (Key::fence(topic, &Key::record(&company, &id)), stamp(version))
    };
    let mut entries = vec![(key(1), stamp(1))];
    for company in ["a", "b/c", "d"] {
        // The second is deleted.
        entries.extend([entry(company, "1", 1), entry(company, "2", 7), entry(company, "3", 3)]);
    }
    fence.put(entries, None).await.unwrap();

    let (mut parts, mut after) = (Vec::new(), None);
    loop {
        let wanted = |company: &CompanyId| company.as_str() != "d";
        let (part, next) = fence.known_after(topic, after.as_deref(), 3, wanted).await.unwrap();
        parts.push(part);
        after = next;
        if after.is_none() {
            break;
        }
    }

    let first = vec![record("a", "1"), record("a", "3"), record("b/c", "1")];
    assert_eq!(parts, [first, vec![record("b/c", "3")]]);
}
