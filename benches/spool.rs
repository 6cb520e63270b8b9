//! Durable records a second of the spool, and how fast it drains.
//!
//! `cargo bench --bench spool [directory]`: a number of tasks append records of 1 KiB, each one at a time, so that about as many
//! share a commit; on the disk as it is, and with syncs that take 5 and 20 ms longer. Then a backlog is written, read
//! and removed; disk usage is printed before and after. A directory on another disk measures that disk.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for people, with nothing to recover")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tributary::{
    spool::{Lane, Spool, SpoolEntry, SpoolOptions},
    store,
};

use fault::Faulty;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../src/spool/tests/fault.rs"]
mod fault;

const PAYLOAD: usize = 1024;
const LIMIT: Duration = Duration::from_secs(60);

/// Time of a measurement, and records of the backlog; under `cargo test` it only has to run.
struct Scale {
    time: Duration,
    backlog: u64,
}

const MEASURED: Scale = Scale { time: Duration::from_secs(3), backlog: 300_000 };
const TRIED: Scale = Scale { time: Duration::from_millis(20), backlog: 100 };

#[tokio::main]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    // Cargo passes this only when it measures.
    let scale = if arguments.iter().any(|given| given == "--bench") { MEASURED } else { TRIED };
    let directory = arguments.iter().find(|given| !given.starts_with('-')).map(PathBuf::from);
    let home = directory.map_or_else(tempfile::tempdir, tempfile::tempdir_in).unwrap();

    println!("at once  sync    records/s  per commit   p50 ms   p99 ms  worst ms");
    for delay in [0, 5, 20].map(Duration::from_millis) {
        for at_once in [1, 16, 64, 256] {
            append(home.path(), delay, at_once, scale.time).await;
        }
    }
    drain(home.path(), scale.backlog).await;
}

fn open(home: &Path, faults: &Faulty) -> Spool {
    let options = SpoolOptions::new(home.join("spool"), 1 << 40);
    Spool::open(SpoolOptions { storage: Arc::new(faults.clone()), ..options }).unwrap().spool
}

fn entry(sequence: u64) -> SpoolEntry {
    let lane = Lane { topic: "a.accounting.customers.events".into(), number: (sequence % 32) as u8 };
    SpoolEntry { lane, sequence, payload: Bytes::from(vec![7; PAYLOAD]) }
}

async fn append(home: &Path, delay: Duration, at_once: u64, time: Duration) {
    let faults = Faulty::default();
    let spool = open(home, &faults);
    faults.slow_down(delay);
    let next = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let tasks: Vec<_> = (0..at_once)
        .map(|_| {
            let (spool, next, stop) = (spool.clone(), Arc::clone(&next), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let entry = entry(next.fetch_add(1, Ordering::Relaxed));
                    let begun = Instant::now();
                    spool.append(entry).await.unwrap();
                    times.push(begun.elapsed());
                }
                times
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let elapsed = start.elapsed();
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1000.0;
    println!(
        "{at_once:7}  +{:2} ms {:10.0} {:11.1} {:8.2} {:8.2} {:9.2}",
        delay.as_millis(),
        times.len() as f64 / elapsed.as_secs_f64(),
        times.len() as f64 / faults.durable_commits() as f64,
        at(0.5),
        at(0.99),
        at(1.0)
    );
    close(home, &spool).await;
}

async fn drain(home: &Path, backlog: u64) {
    let spool = open(home, &Faulty::default());
    let start = Instant::now();
    for chunk in (0..backlog).collect::<Vec<_>>().chunks(256) {
        let appends: Vec<_> = chunk.iter().map(|sequence| spool.append(entry(*sequence))).collect();
        for append in appends {
            append.await.unwrap();
        }
    }
    println!("\nbacklog of {backlog} written in {:.1?}, {} MB on disk", start.elapsed(), taken(home));
    let start = Instant::now();
    let mut drained = 0;
    for number in 0..32 {
        let lane = Lane { number, ..entry(0).lane };
        let mut after = None;
        loop {
            let entries = spool.read(&lane, after, 256, 1 << 20).await.unwrap().entries;
            let Some(last) = entries.last() else { break };
            after = Some(last.sequence);
            drained += entries.len();
            for entry in &entries {
                spool.remove(&lane, entry.sequence);
            }
        }
    }
    assert!(spool.lanes().await.unwrap().is_empty());
    let rate = drained as f64 / start.elapsed().as_secs_f64();
    println!("drained in {:.1?}, {rate:.0} records/s", start.elapsed());
    let start = Instant::now();
    while taken(home) > 20 && start.elapsed() < LIMIT {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{} MB on disk {:.1?} later", taken(home), start.elapsed());
    close(home, &spool).await;
}

async fn close(home: &Path, spool: &Spool) {
    assert!(spool.close(LIMIT).await);
    fs::remove_dir_all(home.join("spool")).unwrap();
}

/// Megabytes on disk under this directory.
fn taken(home: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;

    fn bytes(folder: &Path) -> u64 {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        files
            .map(|file| match file.metadata() {
                Ok(metadata) if metadata.is_dir() => bytes(&file.path()),
                Ok(metadata) => metadata.blocks() * 512,
                Err(_) => 0,
            })
            .sum()
    }
    bytes(home) / 1_000_000
}
