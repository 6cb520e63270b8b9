//! Files on disk: broken, torn, damaged, and freed.

use std::{
    fs::OpenOptions,
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::PathBuf,
    time::SystemTime,
};

use super::*;
use crate::store::{Fjall, Storage as _, StoreChange};

fn files(under: &Path, ending: impl Fn(&Path) -> bool + Copy) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for file in fs::read_dir(under).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if ending(&path) {
            found.push(path);
        }
    }
    found
}

pub(super) fn journal(home: &Path) -> PathBuf {
    files(home, |path| path.extension().is_some_and(|extension| extension == "jnl")).pop().unwrap()
}

pub(super) fn overwrite(file: &Path, at: u64, with: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(file).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(with).unwrap();
}

pub(super) fn position_of(file: &Path, text: &[u8]) -> u64 {
    let mut bytes = Vec::new();
    fs::File::open(file).unwrap().read_to_end(&mut bytes).unwrap();
    bytes.windows(text.len()).position(|window| window == text).unwrap() as u64
}

/// Bytes on disk of the spool's files.
fn taken(home: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    files(home, |_| true)
        .iter()
        .filter_map(|file| file.metadata().ok())
        .map(|metadata| metadata.blocks() * 512)
        .sum()
}

/// Fills a spool and returns the file of its one table.
async fn table_with(home: &Path, lane: &Lane, count: u64) -> PathBuf {
    let spool = open(home).spool;
    let appends: Vec<_> = (1..=count).map(|sequence| spool.append(entry(lane, sequence))).collect();
    for append in appends {
        within(append).await.unwrap();
    }
    close(spool).await;
    // Opening flushes the journal into a table, which has a checksum per block.
    let spool = open(home).spool;
    let is_table = |path: &Path| path.parent().is_some_and(|parent| parent.ends_with("1/tables"));
    eventually("a table is written", async || !files(home, is_table).is_empty()).await;
    close(spool).await;
    files(home, is_table).pop().unwrap()
}

#[tokio::test]
async fn a_broken_database_is_moved_aside_and_others_are_read() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1, 2]).await;
    bench.faults.fail_commits(&[crate::spool::fault::Fault::Write]);
    within(bench.spool.append(entry(&lane, 3))).await.unwrap_err();
    bench.append(&lane, [4]).await;
    close(bench.spool).await;
    let home = bench.home.path();
    let broken: Vec<_> =
        files(&home.join("1"), |path| path.file_name().is_some_and(|name| name == "version"));
    assert_eq!(broken.len(), 1, "the store's own mark");
    fs::write(&broken[0], b"nonsense").unwrap();

    let opened = open(home);

    assert_eq!(opened.moved_aside.len(), 1);
    let aside = &opened.moved_aside[0].folder;
    assert!(aside.file_name().unwrap().to_str().unwrap().starts_with("1.unreadable-"), "{aside:?}");
    assert!(!files(aside, |_| true).is_empty(), "its files are kept");
    assert_eq!(sequences(&opened.spool, &lane).await, [4]);
    opened.spool.append(entry(&lane, 5)).await.unwrap();
    close(opened.spool).await;
    opened.moved_aside[0].mark_recorded().unwrap();
    let again = open(home);
    assert!(again.moved_aside.is_empty(), "its gap is recorded");
    assert_eq!(again.spool.outside().aside, std::slice::from_ref(aside), "and stays");
    assert_eq!(sequences(&again.spool, &lane).await, [4, 5]);
}

#[tokio::test]
async fn a_torn_journal_end_loses_nothing_acknowledged() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=20).await;
    let crashed = copy_of(bench.home.path());
    let journal = journal(crashed.path());
    let last = position_of(&journal, b"payload 20");
    OpenOptions::new().write(true).open(&journal).unwrap().set_len(last + 3).unwrap();

    let opened = open(crashed.path());

    assert!(opened.moved_aside.is_empty());
    assert_eq!(sequences(&opened.spool, &lane).await, (1..=19).collect::<Vec<_>>());
}

#[tokio::test]
async fn all_before_a_last_batch_with_a_hole_is_salvaged() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, 1..=20).await;
    let crashed = copy_of(bench.home.path());
    // The batch's end is on disk, a page in its middle is not: a power cut can do that.
    let journal = journal(crashed.path());
    overwrite(&journal, position_of(&journal, b"payload 20"), &[0; 7]);

    let opened = open(crashed.path());

    assert_eq!(sequences(&opened.spool, &lane).await, (1..=19).collect::<Vec<_>>());
    assert_eq!(opened.moved_aside.len(), 1, "the original is kept and reported");
    opened.moved_aside[0].mark_recorded().unwrap();
    opened.spool.append(entry(&lane, 21)).await.unwrap();
    close(opened.spool).await;
    let again = open(crashed.path());
    assert!(again.moved_aside.is_empty());
    assert_eq!(sequences(&again.spool, &lane).await, (1..=19).chain([21]).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_damaged_block_costs_its_entries_and_no_others() {
    let home = tempfile::tempdir().unwrap();
    let lane = lane("t", 0);
    let table = table_with(home.path(), &lane, 2_000).await;
    overwrite(&table, position_of(&table, b"payload 1000"), b"?");

    let opened = open(home.path());
    let found = within(opened.spool.read(&lane, None, ALL, ALL)).await.unwrap().entries;

    assert!(opened.moved_aside.is_empty());
    let found: Vec<_> = found.iter().map(|entry| entry.sequence).collect();
    assert!(!found.contains(&1000) && found.first() == Some(&1) && found.last() == Some(&2_000), "{found:?}");
    assert!(found.len() > 1_700, "only {} of 2,000 are left", found.len());
    let lanes = within(opened.spool.lanes()).await.unwrap();
    assert_eq!(lanes[0].entries, found.len() as u64, "unreadable entries are not counted");
    for sequence in found {
        opened.spool.remove(&lane, sequence);
    }
    assert!(within(opened.spool.lanes()).await.unwrap().is_empty());
    close(opened.spool).await;
}

#[tokio::test]
async fn a_damaged_first_block_hides_nothing_behind_it() {
    let home = tempfile::tempdir().unwrap();
    let lane = lane("t", 0);
    let table = table_with(home.path(), &lane, 2_000).await;
    let written = SystemTime::now();
    overwrite(&table, position_of(&table, b"payload 1"), b"?");

    let opened = open(home.path());
    let found = sequences(&opened.spool, &lane).await;

    assert!(found.len() > 1_700 && found.first() > Some(&1) && found.last() == Some(&2_000), "{found:?}");
    assert_eq!(opened.spool.totals().entries, found.len() as u64);
    let failures = opened.spool.failures().borrow().clone();
    assert_eq!(failures.unreadable, 1);
    assert!(failures.unreadable_since.is_some_and(|since| since < written), "{failures:?}");
}

#[tokio::test]
async fn damage_found_by_a_reader_is_reported_and_counted_once() {
    let bench = Bench::new();
    let (lane, other) = (lane("t", 0), lane("t", 1));
    bench.append(&lane, 1..=20).await;
    bench.append(&other, [21]).await;
    let mut failures = bench.spool.failures();

    bench.faults.damage(Some(b"payload 7"));
    let found = bench.sequences(&lane).await;

    assert_eq!(found, (1..=20).filter(|sequence| *sequence != 7).collect::<Vec<_>>());
    within(failures.wait_for(|failures| failures.unreadable == 1)).await.unwrap();
    assert_eq!(bench.sequences(&lane).await, found);
    let lanes = within(bench.spool.lanes()).await.unwrap();
    assert_eq!(lanes.iter().map(|state| state.entries).collect::<Vec<_>>(), [19, 1]);
    assert_eq!(bench.spool.failures().borrow().unreadable, 1);
    for sequence in found {
        bench.spool.remove(&lane, sequence);
    }
    let lanes = within(bench.spool.lanes()).await.unwrap();
    assert_eq!(lanes.iter().map(|state| &state.lane).collect::<Vec<_>>(), [&other]);
}

#[tokio::test]
async fn a_damaged_database_is_moved_aside_once_drained() {
    let bench = Bench::with(|options| SpoolOptions { rotate_bytes: 100, ..options });
    let lane = lane("t", 0);
    bench.append(&lane, 1..=20).await;
    bench.faults.damage(Some(b"payload 7"));

    for sequence in bench.sequences(&lane).await {
        bench.spool.remove(&lane, sequence);
    }

    let home = bench.home.path();
    let names = || fs::read_dir(home).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    eventually("it is set aside", async || names().any(|name| name.starts_with("1.unreadable-"))).await;
}

#[tokio::test]
async fn a_database_without_rights_stays_where_it_is() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;
    close(bench.spool).await;
    bench.faults.refuse_opens(1);
    let with_faults =
        || SpoolOptions { storage: Arc::new(bench.faults.clone()), ..options(bench.home.path()) };

    let opened = Spool::open(with_faults()).unwrap();

    assert!(opened.moved_aside.is_empty());
    let folder = bench.home.path().join("1");
    assert_eq!(opened.unopened.iter().map(|missing| &missing.folder).collect::<Vec<_>>(), [&folder]);
    assert_eq!(opened.spool.outside().unopened, [folder]);
    opened.spool.append(entry(&lane, 2)).await.unwrap();
    close(opened.spool).await;
    assert_eq!(sequences(&Spool::open(with_faults()).unwrap().spool, &lane).await, [1, 2]);
}

#[tokio::test]
async fn a_database_large_before_a_restart_is_replaced_once_drained() {
    let bench = Bench::with(|options| SpoolOptions { rotate_bytes: 1_000_000, ..options });
    let lane = lane("t", 0);
    bench.spool.append(entry_of(&lane, 1, vec![7; 2_000_000])).await.unwrap();
    bench.append(&lane, [2]).await;
    bench.spool.remove(&lane, 1);
    close(bench.spool).await;

    let home = bench.home.path();
    let spool = Spool::open(SpoolOptions { rotate_bytes: 1_000_000, ..options(home) }).unwrap().spool;
    spool.remove(&lane, 2);

    eventually("the database is gone", async || !home.join("1").exists() && home.join("2").exists()).await;
}

#[tokio::test]
async fn a_drained_spool_frees_its_disk() {
    let bench = Bench::with(|options| SpoolOptions { rotate_bytes: 1_000_000, ..options });
    let home = bench.home.path();
    let lane = lane("t", 0);
    let appends: Vec<_> =
        (0..2_000).map(|sequence| bench.spool.append(entry_of(&lane, sequence, vec![7; 4_000]))).collect();
    for append in appends {
        within(append).await.unwrap();
    }
    let before = taken(home);

    for sequence in 0..2_000 {
        bench.spool.remove(&lane, sequence);
    }

    eventually("the first database is gone", async || {
        !home.join("1").exists() && !home.join("1.drained").exists()
    })
    .await;
    let after = taken(home);
    assert!(before > 8_000_000 && after < 1_000_000, "{before} bytes before, {after} after");
    bench.append(&lane, [3_000]).await;
    assert_eq!(bench.sequences(&lane).await, [3_000]);
}

#[test]
fn a_journal_that_grew_over_many_restarts_is_freed() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let journals = || -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        let files = files(&data, |path| path.extension().is_some_and(|extension| extension == "jnl"));
        files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.blocks() * 512).sum()
    };
    // Each run is too short to fill a table; only then does the store trim its journal.
    for life in 0..7_u8 {
        let database = Fjall::default().open(&data).unwrap();
        database.commit(vec![StoreChange::Put(vec![1, life], vec![life; 10_000_000])], true).unwrap();
    }
    let before = journals();

    let database = Fjall::default().open(&data).unwrap();

    let end = std::time::Instant::now() + LIMIT;
    while journals() > 20_000_000 {
        assert!(std::time::Instant::now() < end, "{} bytes of journal, {before} before", journals());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(before > 64_000_000, "{before}");
    assert_eq!(database.get(&[1, 3]).unwrap().map(|value| value.len()), Some(10_000_000));
}

#[test]
fn compaction_frees_the_disk_of_removed_entries() {
    let home = tempfile::tempdir().unwrap();
    let database = Fjall::default().open(&home.path().join("data")).unwrap();
    let key = |number: u32| number.to_be_bytes().to_vec();
    for batch in 0..20_u32 {
        let puts = (0..1_000).map(|at| StoreChange::Put(key(batch * 1_000 + at), vec![7; 4_000])).collect();
        database.commit(puts, false).unwrap();
    }
    let tables = || -> u64 {
        let is_table = |path: &Path| path.parent().is_some_and(|parent| parent.ends_with("tables"));
        let files = files(home.path(), is_table);
        files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
    };
    // A background thread of the store writes and removes tables.
    let until = |what: &str, reached: &dyn Fn(u64) -> bool| {
        let end = std::time::Instant::now() + LIMIT;
        while !reached(tables()) {
            assert!(std::time::Instant::now() < end, "{what}: {} bytes of tables", tables());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // 80 MB were committed, of which the store keeps no more than 64 MiB in memory.
    until("written", &|bytes| bytes > 10_000_000);
    // One in a thousand stays.
    for batch in 0..20_u32 {
        let deletes = (1..1_000).map(|at| StoreChange::Delete(key(batch * 1_000 + at))).collect();
        database.commit(deletes, false).unwrap();
    }

    database.compact().unwrap();

    until("freed", &|bytes| bytes < 1_000_000);
    assert_eq!(database.get(&key(5_000)).unwrap().map(|value| value.len()), Some(4_000));
    assert_eq!(database.get(&key(5_001)).unwrap(), None);
}

#[tokio::test]
async fn opening_takes_rights_away_from_other_users() {
    use std::os::unix::fs::PermissionsExt as _;
    let (home, lane) = (tempfile::tempdir().unwrap(), lane("t", 0));
    let spool = open(home.path()).spool;
    spool.append(entry(&lane, 1)).await.unwrap();
    close(spool).await;
    let data = home.path().join("1/data");
    let loose: Vec<_> = files(home.path(), |_| true)
        .into_iter()
        .chain([home.path().to_owned(), home.path().join("1"), data.join("keyspaces"), data])
        .filter(|path| path.exists())
        .collect();
    for path in &loose {
        let mode = if path.is_dir() { 0o777 } else { 0o666 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    let spool = open(home.path()).spool;

    for path in loose.iter().filter(|path| path.exists()) {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has {mode:o}", path.display());
    }
    assert_eq!(sequences(&spool, &lane).await, [1]);
    close(spool).await;
}
