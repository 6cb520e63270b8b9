//! Time to restore the fences of a shard: first all of them from Kafka, then only those that the cache lacks.
//!
//! Each restore runs in its own process, so that its memory is separate and the cache is what an ended process left on disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka::{Admin, ShardProducers, TopicSpec, TransactionOptions};
use model::{Cleanup, CompanyId, EncodedRecord, Epoch, Key, Rank, RecordId, Stamp, Topic, TopicPrefix};
use serde::{Deserialize, Serialize};
use tributary::{
    publish::{ShardBatch, ShardWriter},
    records::fence::{self, Fences},
};

use crate::{
    machine::Usage,
    site::RESOURCE,
    support::{Error, Result, Shared, prefix, process::Process, run_directory},
};

/// Environment variable of the process that restores: an [`Order`].
pub(crate) const RESTORE: &str = "TRIBUTARY_BENCH_RESTORE";
/// The only partition of its topic.
const SHARD: i32 = 0;
/// Entries per transaction.
const CHUNK: u32 = 5_000;
/// Companies of the entries.
const COMPANIES: u32 = 1_000;
const LIMIT: Duration = Duration::from_secs(900);

/// What the process has to restore.
#[derive(Serialize, Deserialize)]
struct Order {
    bootstrap: String,
    prefix: String,
    directory: PathBuf,
    keys: u32,
}

/// Result of a restore.
#[derive(Serialize, Deserialize)]
struct Found {
    seconds: f64,
    /// Records read from Kafka.
    records: u64,
    from_start: bool,
    /// Keys that have a stamp.
    entries: u64,
    /// Sampled keys whose stamp is not the one written.
    wrong: u32,
    /// Peak memory in megabytes.
    peak: f64,
}

/// Measures each number of keys on its own topic and prints a table. Returns whether every key was found both times.
pub(crate) async fn measure(shared: &Shared, counts: &[u32]) -> Result<bool> {
    println!("\nfences of one shard restored, each time in a new process");
    println!(
        "{:>9} {:12} {:>9} {:>10} {:>9} {:>10} {:>11} {:>12}",
        "keys", "directory", "records", "entries", "seconds", "entries/s", "MB on disk", "peak RSS MB"
    );
    let mut sound = true;
    for keys in counts {
        let order = Order {
            bootstrap: shared.bootstrap().to_owned(),
            prefix: prefix("enrich-restore"),
            directory: run_directory::create("enrich-fences")?.join("fences"),
            keys: *keys,
        };
        let began = Instant::now();
        fill(&order).await?;
        let filling = began.elapsed();
        for directory in ["empty", "cached"] {
            let found = restore(&order).await?;
            println!(
                "{keys:>9} {directory:12} {:>9} {:>10} {:9.2} {:10.0} {:11.1} {:12.0}",
                found.records,
                found.entries,
                found.seconds,
                found.entries as f64 / found.seconds,
                on_disk(&order.directory) as f64 / f64::from(1 << 20),
                found.peak,
            );
            let as_planned = found.from_start == (directory == "empty");
            let whole = found.entries == u64::from(*keys) && found.wrong == 0;
            if !(as_planned && whole) {
                println!(
                    "{:>9} NOT SOUND: {} keys are missing, {} wrong, read from the start: {}",
                    "",
                    i64::from(*keys) - found.entries as i64,
                    found.wrong,
                    found.from_start
                );
                sound = false;
            }
        }
        println!("{:>9} written in {:.1} s, in transactions of {CHUNK}", "", filling.as_secs_f64());
    }
    Ok(sound)
}

/// Writes the birth record of the shard, and its fences.
async fn fill(order: &Order) -> Result<()> {
    let (kafka, topic) = (kafka::Kafka::plaintext(&*order.bootstrap), topic(order));
    let spec = TopicSpec {
        name: topic.to_string(),
        partitions: 1,
        may_grow: false,
        replication_factor: -1,
        min_message_bytes: 0,
        cleanup: Cleanup::Compact,
        configs: BTreeMap::new(),
    };
    let made = Admin::Real(kafka.clone()).ensure(&[spec]).await;
    made.map_err(|error| Error(format!("make {topic}: {error}")))?;
    let shards = ShardProducers::new(kafka, TransactionOptions::default());
    let producer = shards.take(format!("{}-shard-{SHARD}", order.prefix), Arc::new(|| true)).await;
    let mut writer = ShardWriter::new(producer.map_err(|error| Error(format!("take a shard: {error}")))?);
    let record = |key, value| EncodedRecord {
        topic: Arc::clone(&topic),
        partition: SHARD,
        key,
        value: Some(value),
        headers: Vec::new(),
        timestamp_ms: None,
    };
    let mut next = 0;
    while next < order.keys {
        let mut batch = ShardBatch::default();
        if next == 0 {
            let (key, value) = fence::birth_record(SHARD, &order.prefix);
            batch.add(record(key.as_str().to_owned().into(), value));
        }
        let end = order.keys.min(next.saturating_add(CHUNK));
        for number in next..end {
            let (key, value) = fence::record(&key(number), &stamp(number));
            batch.add(record(key, value));
        }
        writer.commit(batch).await.map_err(|error| Error(format!("write fences: {error}")))?;
        next = end;
    }
    Ok(())
}

/// Restores the fences in a new process.
async fn restore(order: &Order) -> Result<Found> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(RESTORE, serde_json::to_string(order).unwrap());
    let log = run_directory::create("enrich-restore")?.join("log");
    let process = Process::spawn("restore", command, &log)?;
    let ended = process.wait(LIMIT + Duration::from_secs(60)).await?;
    let said = process.said();
    let found = said.lines().find_map(|line| serde_json::from_str(line).ok());
    found.filter(|_| ended.success()).ok_or_else(|| process.error(&format!("restoring ended with {ended}")))
}

/// Restores the fences and prints the result.
pub(crate) fn serve(order: &str) {
    let order: Order = serde_json::from_str(order).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let found = runtime.block_on(async {
        let kafka = kafka::Kafka::plaintext(&*order.bootstrap);
        let prefix = TopicPrefix::new(&*order.prefix).unwrap();
        let began = Instant::now();
        let mut fence = Fences::new(order.directory.clone()).shard(&prefix, SHARD).await.unwrap();
        let restored = fence.restore(&kafka, &topic(&order), LIMIT).await.unwrap();
        let seconds = began.elapsed().as_secs_f64();
        let peak = Usage::own().peak();
        // About a thousand of them, and the last one.
        let step = (order.keys / 1_000).max(1) as usize;
        let looked_at = (0..order.keys).step_by(step).chain([order.keys - 1]);
        let wrong = looked_at.filter(|number| fence.get(&key(*number)).unwrap() != Some(stamp(*number)));
        let wrong = wrong.count() as u32;
        let entries = fence.entries();
        Found { seconds, records: restored.records, from_start: restored.from_start, entries, wrong, peak }
    });
    // The cache is written by the time the runtime has ended.
    drop(runtime);
    println!("{}", serde_json::to_string(&found).unwrap());
}

fn topic(order: &Order) -> Arc<str> {
    Topic::Fences.name(&TopicPrefix::new(&*order.prefix).unwrap()).into()
}

/// The key of an entry, as long as the provider's keys.
fn key(number: u32) -> Key {
    let company = number % COMPANIES;
    let company = format!("acc:{company}:CM:6f1c2b3a-9d4e-4f5a-8b6c-{company:012x}");
    // Scattered as real ids are, so that entries do not arrive in the store's order.
    let scattered = number.wrapping_mul(0x9E37_79B1);
    let id = format!("{scattered:08x}-9d4e-4f5a-8b6c-{number:012x}");
    let record = Key::record(&CompanyId::new(company).unwrap(), &RecordId::new(id).unwrap());
    Key::fence(Topic::AccountingRecords(RESOURCE), &record)
}

fn stamp(number: u32) -> Stamp {
    let version = (u64::from(number) + 1).to_string().parse().unwrap();
    Stamp { epoch: Epoch(0), version, rank: Rank::ById, deleted: false }
}

/// Bytes on disk of a directory tree.
fn on_disk(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => on_disk(&entry.path()),
        // Blocks, not lengths: files may be preallocated.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}
