//! Databases that cannot be opened, read or written.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tempfile::TempDir;

use super::*;
use crate::store::{self, Database, StoreChange, Visitor};

#[tokio::test]
async fn unopenable_database_is_recreated() {
    let bench = Bench::new();
    bench.write_birth(0, "b").await;
    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    let mut fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();
    bench.restore(&mut fence).await;
    drop(fence);
    let mut broken = 0;
    for file in fs::read_dir(bench.home.path().join("fence")).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() && file.metadata().unwrap().len() > 0 {
            fs::write(file, b"not what it was").unwrap();
            broken += 1;
        }
    }
    assert!(broken > 0);

    let mut fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();

    assert_eq!(fence.entries(), 0);
    assert_eq!(bench.restore(&mut fence).await, found(2, true, "b"));
    assert_eq!(fence.get(&key(1)).unwrap(), Some(stamp(1)));
}

#[tokio::test]
async fn unusable_directory_is_named_with_a_remedy() {
    let home = TempDir::new().unwrap();
    let in_the_way = home.path().join("fence");
    fs::write(&in_the_way, b"a file").unwrap();

    let error = Fences::new(in_the_way.clone()).shard(&prefix("p"), 0).await.err().unwrap();

    let text = error.to_string();
    assert!(text.contains(&*in_the_way.to_string_lossy()) && text.contains("delete the directory"), "{text}");
    assert_eq!(fs::read(in_the_way).unwrap(), b"a file", "it is not ours to remove");
}

#[tokio::test]
async fn loose_permissions_are_tightened_on_open() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    drop(bench.fences().shard(&prefix("p"), 0).await.unwrap());
    let directory = bench.home.path().join("fence");
    let loose: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).chain([directory]).collect();
    for path in &loose {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }

    let _fence = bench.fences().shard(&prefix("p"), 0).await.unwrap();

    for path in loose.iter().filter(|path| path.exists()) {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has {mode:o}", path.display());
    }
}

/// The real store with injected failures.
#[derive(Debug, Default)]
struct Failing {
    full: AtomicBool,
    unreadable: AtomicBool,
    refused: AtomicUsize,
    opened: AtomicUsize,
}

struct Wrapped(Box<dyn Database>, Arc<Failing>);

#[derive(Debug, Clone, Default)]
struct Disk(Arc<Failing>);

impl Storage for Disk {
    fn open(&self, directory: &Path) -> Result<Box<dyn Database>, store::Error> {
        if self.0.refused.load(Ordering::Acquire) > 0 {
            self.0.refused.fetch_sub(1, Ordering::AcqRel);
            return Err(store::Error::io("open the database", io::ErrorKind::PermissionDenied.into()));
        }
        self.0.opened.fetch_add(1, Ordering::AcqRel);
        Ok(Box::new(Wrapped(Fjall::cache().open(directory)?, Arc::clone(&self.0))))
    }

    fn salvage(&self, _: &Path, _: &Path) -> Result<Box<dyn Database>, store::Error> {
        unreachable!("a cache is never salvaged")
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        Fjall::cache().free_bytes(directory)
    }
}

impl Database for Wrapped {
    fn commit(&self, changes: Vec<StoreChange>, durable: bool) -> Result<(), store::Error> {
        assert!(!durable, "nothing is synced");
        if self.1.full.swap(false, Ordering::AcqRel) {
            return Err(store::Error::io("write", io::ErrorKind::StorageFull.into()));
        }
        self.0.commit(changes, durable)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, store::Error> {
        if self.1.unreadable.swap(false, Ordering::AcqRel) {
            return Err(store::Error::io("read", io::Error::other("a damaged block")));
        }
        self.0.get(key)
    }

    fn visit(&self, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), store::Error> {
        self.0.visit(from, to, visit)
    }

    fn compact(&self) -> Result<(), store::Error> {
        self.0.compact()
    }
}

#[tokio::test]
async fn full_disk_fails_all_fences_and_reopened_ones_resume() {
    let bench = Bench::new();
    let disk = Disk::default();
    let fences = Fences::with(bench.home.path().join("fence"), Arc::new(disk.clone()));
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    let idle = fences.shard(&prefix("p"), 1).await.unwrap();
    bench.write_birth(0, "b").await;
    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    bench.restore(&mut fence).await;
    let next_offset = bench.write_entries(0, &[(key(2), stamp(2))]).await;

    disk.0.full.store(true, Ordering::Release);
    let full = fence.put(vec![(key(2), stamp(2))], Some(next_offset)).await.unwrap_err();
    let later = fence.put(vec![(key(3), stamp(3))], Some(next_offset + 1)).await.unwrap_err();
    drop(fence);
    // The idle fence has not noticed the failure, and does not block the reopening.
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();

    assert!(matches!(full, Error::Store { source: Some(_), .. }), "{full}");
    assert!(matches!(later, Error::Store { source: None, .. }), "{later}");
    assert_eq!((full.retry(), later.retry()), (Retry::Later, Retry::Later));
    assert!(matches!(idle.get(&key(1)), Err(Error::Store { source: None, .. })));
    assert_eq!(bench.restore(&mut fence).await, found(1, false, "b"));
    assert_eq!((fence.get(&key(2)).unwrap(), fence.get(&key(3)).unwrap()), (Some(stamp(2)), None));
}

#[tokio::test]
async fn unreadable_database_is_recreated() {
    let bench = Bench::new();
    let disk = Disk::default();
    let fences = Fences::with(bench.home.path().join("fence"), Arc::new(disk.clone()));
    bench.write_birth(0, "b").await;
    bench.write_entries(0, &[(key(1), stamp(1))]).await;
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    bench.restore(&mut fence).await;

    disk.0.unreadable.store(true, Ordering::Release);
    let error = fence.get(&key(1)).unwrap_err();
    drop(fence);
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
    let from_start = bench.restore(&mut fence).await;
    drop(fence);
    // Opening a shard reads its metadata.
    disk.0.unreadable.store(true, Ordering::Release);
    let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();

    assert_eq!(error.retry(), Retry::Later, "{error}");
    assert_eq!(from_start, found(2, true, "b"));
    assert_eq!(bench.restore(&mut fence).await, found(2, true, "b"));
    assert_eq!(disk.0.opened.load(Ordering::Acquire), 3);
}

#[tokio::test]
async fn database_refused_by_the_system_is_kept() {
    let bench = Bench::new();
    let disk = Disk::default();
    let directory = bench.home.path().join("fence");
    let fence = Fences::new(directory.clone()).shard(&prefix("p"), 0).await.unwrap();
    fence.put(vec![(key(1), stamp(1))], None).await.unwrap();
    drop(fence);
    let fences = Fences::with(directory.clone(), Arc::new(disk.clone()));

    disk.0.refused.store(1, Ordering::Release);
    let error = fences.shard(&prefix("p"), 0).await.err().unwrap();
    let fence = fences.shard(&prefix("p"), 0).await.unwrap();

    let text = error.to_string();
    assert!(text.contains(&*directory.to_string_lossy()) && text.contains("let the worker write"), "{text}");
    assert_eq!(error.retry(), Retry::Later);
    assert_eq!(fence.get(&key(1)).unwrap(), Some(stamp(1)));
}
