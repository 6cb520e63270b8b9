//! The spool as its callers see it, on a real disk; `fault` injects failures.

mod aside;
mod disk;
mod failure;
mod limit;
mod model;
mod order;

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use tempfile::TempDir;

use super::{Error, Lane, OpenedSpool, Spool, SpoolEntry, SpoolOptions, fault::Faulty};
use crate::store::crash_copy;

/// Long enough for a loaded machine, short enough to find a hang.
const LIMIT: Duration = Duration::from_secs(30);
const GIB: u64 = 1024 * 1024 * 1024;
const ALL: usize = usize::MAX;

fn lane(topic: &str, number: u8) -> Lane {
    Lane { topic: topic.into(), number }
}

fn entry(lane: &Lane, sequence: u64) -> SpoolEntry {
    entry_of(lane, sequence, format!("payload {sequence}").into_bytes())
}

fn entry_of(lane: &Lane, sequence: u64, payload: impl Into<Bytes>) -> SpoolEntry {
    SpoolEntry { lane: lane.clone(), sequence, payload: payload.into() }
}

fn options(home: &Path) -> SpoolOptions {
    SpoolOptions { reserve_bytes: 0, ..SpoolOptions::new(home, GIB) }
}

fn open(home: &Path) -> OpenedSpool {
    Spool::open(options(home)).unwrap()
}

/// A spool on a disk whose faults the test controls.
struct Bench {
    home: TempDir,
    faults: Faulty,
    spool: Spool,
}

impl Bench {
    fn new() -> Self {
        Self::with(|options| options)
    }

    fn with(change: impl FnOnce(SpoolOptions) -> SpoolOptions) -> Self {
        let home = tempfile::tempdir().unwrap();
        let faults = Faulty::default();
        let options = SpoolOptions { storage: Arc::new(faults.clone()), ..options(home.path()) };
        let spool = Spool::open(change(options)).unwrap().spool;
        Self { home, faults, spool }
    }

    async fn append(&self, lane: &Lane, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            self.spool.append(entry(lane, sequence)).await.unwrap();
        }
    }

    async fn sequences(&self, lane: &Lane) -> Vec<u64> {
        sequences(&self.spool, lane).await
    }

    /// Waits until the writer holds a commit.
    async fn wait_for_held(&self) {
        let faults = self.faults.clone();
        assert!(tokio::task::spawn_blocking(move || faults.wait_for_held(LIMIT)).await.unwrap());
    }
}

async fn sequences(spool: &Spool, lane: &Lane) -> Vec<u64> {
    let entries = within(spool.read(lane, None, ALL, ALL)).await.unwrap().entries;
    for found in &entries {
        assert_eq!(*found, entry(lane, found.sequence), "an entry comes back as it went in");
    }
    entries.iter().map(|entry| entry.sequence).collect()
}

async fn close(spool: Spool) {
    assert!(spool.close(LIMIT).await, "the spool did not close in time");
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("took longer than the limit")
}

/// Polls for something that another thread does.
async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let end = std::time::Instant::now() + LIMIT;
    while !done().await {
        assert!(std::time::Instant::now() < end, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The state that a crash at this moment would leave: the files as they are, unlocked. Only for a spool whose background
/// threads are idle, because files are copied one after the other.
fn copy_of(home: &Path) -> TempDir {
    let target = tempfile::tempdir().unwrap();
    crash_copy::copy(home, target.path());
    target
}
