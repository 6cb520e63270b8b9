//! Broken databases: a crash or failure while one is replaced loses no readable entry, and the database is reported.

use std::{path::PathBuf, time::SystemTime};

use super::{
    disk::{journal, overwrite, position_of},
    *,
};
use crate::store::{Fjall, Storage as _};

/// Turns a home and the database moved aside in it back into an earlier state.
type GoBack = fn(&Path, &Path);

/// Readable sequences of [`broken`].
const LEFT: std::ops::RangeInclusive<u64> = 1..=19;

/// A spool whose only database does not open because of its last entry.
async fn broken(lane: &Lane) -> TempDir {
    let bench = Bench::new();
    bench.append(lane, 1..=20).await;
    let crashed = copy_of(bench.home.path());
    let journal = journal(crashed.path());
    overwrite(&journal, position_of(&journal, b"payload 20"), &[0; 7]);
    crashed
}

/// [`broken`] after a complete start, and the folder that the broken database was moved to.
async fn replaced(lane: &Lane) -> (TempDir, PathBuf) {
    let home = broken(lane).await;
    let opened = open(home.path());
    close(opened.spool).await;
    let aside = opened.moved_aside[0].folder.clone();
    (home, aside)
}

/// Marks the second database as a copy of the first, as it is until the first has been moved aside.
fn mark_as_copy(home: &Path) {
    let mark = home.join("2/ready");
    let since = fs::read_to_string(&mark).unwrap();
    fs::write(mark, format!("copy of 1\n{since}")).unwrap();
}

#[tokio::test]
async fn a_crash_while_replacing_a_database_loses_nothing() {
    let lane = lane("t", 0);
    let before = SystemTime::now();
    let points: [(&str, GoBack); 4] = [
        ("while it is copied", |home, aside| {
            fs::rename(aside, home.join("1")).unwrap();
            fs::remove_file(home.join("2/ready")).unwrap();
            fs::remove_file(journal(&home.join("2"))).unwrap();
        }),
        ("once it is copied", |home, aside| {
            fs::rename(aside, home.join("1")).unwrap();
            mark_as_copy(home);
        }),
        ("once it is aside", |home, _| mark_as_copy(home)),
        ("once the copy may be used", |_, _| ()),
    ];
    for (point, go_back) in points {
        let (home, aside) = replaced(&lane).await;
        go_back(home.path(), &aside);
        let after = SystemTime::now();

        let opened = open(home.path());

        assert_eq!(sequences(&opened.spool, &lane).await, LEFT.collect::<Vec<_>>(), "killed {point}");
        assert_eq!(opened.spool.totals().entries, 19, "killed {point}: each is there once");
        let [missing] = &opened.moved_aside[..] else { panic!("killed {point}: {:?}", opened.moved_aside) };
        let name = missing.folder.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("1.unreadable-"), "{name}");
        // The time of the original counts, although the copy is newer.
        assert!((before..after).contains(&missing.since), "killed {point}: {missing:?}");
        opened.spool.append(entry(&lane, 21)).await.unwrap();
        opened.spool.remove(&lane, 1);
        close(opened.spool).await;
        let again = open(home.path());
        assert_eq!(again.moved_aside, opened.moved_aside, "killed {point}: it is reported again");
        again.moved_aside[0].mark_recorded().unwrap();
        close(again.spool).await;
        let last = open(home.path());
        assert!(last.moved_aside.is_empty() && last.unopened.is_empty(), "killed {point}");
        let left: Vec<_> = (2..=19).chain([21]).collect();
        assert_eq!(sequences(&last.spool, &lane).await, left, "killed {point}");
    }
}

#[tokio::test]
async fn a_failed_copy_is_repeated_by_a_later_start() {
    let lane = lane("t", 0);
    let home = broken(&lane).await;
    let faults = Faulty::default();
    faults.fill_up_at_salvage(1);
    let with_faults = || SpoolOptions { storage: Arc::new(faults.clone()), ..options(home.path()) };

    let first = Spool::open(with_faults()).unwrap();
    first.spool.append(entry(&lane, 30)).await.unwrap();
    let entries = first.spool.totals().entries;
    close(first.spool).await;
    let second = Spool::open(with_faults()).unwrap();

    assert_eq!(entries, 1);
    assert!(first.moved_aside.is_empty());
    assert_eq!(first.unopened[0].folder, home.path().join("1"));
    assert_eq!(second.moved_aside.len(), 1);
    assert_eq!(sequences(&second.spool, &lane).await, LEFT.chain([30]).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_database_that_cannot_be_moved_aside_allows_a_start() {
    let lane = lane("t", 0);
    let home = broken(&lane).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let taken: Vec<_> = (now..now + 120).map(|at| home.path().join(format!("1.unreadable-{at}"))).collect();
    for name in &taken {
        fs::create_dir(name).unwrap();
        fs::write(name.join("told"), b"").unwrap();
    }

    let first = open(home.path());
    first.spool.append(entry(&lane, 30)).await.unwrap();
    close(first.spool).await;
    for name in &taken {
        fs::remove_dir_all(name).unwrap();
    }
    let second = open(home.path());

    assert_eq!((first.moved_aside.len(), first.unopened.len()), (0, 1), "{:?}", first.unopened);
    assert_eq!((second.moved_aside.len(), second.unopened.len()), (1, 0));
    assert_eq!(second.spool.totals().entries, 20);
    assert_eq!(sequences(&second.spool, &lane).await, LEFT.chain([30]).collect::<Vec<_>>());
}

#[tokio::test]
async fn locked_and_unlisted_databases_count_as_unopened() {
    let bench = Bench::new();
    let lane = lane("t", 0);
    bench.append(&lane, [1]).await;
    close(bench.spool).await;
    let home = bench.home.path();
    let held = Fjall::default().open(&home.join("1/data")).unwrap();
    fs::create_dir(home.join("2")).unwrap();
    std::os::unix::fs::symlink("ready", home.join("2/ready")).unwrap();

    let opened = open(home);
    opened.spool.append(entry(&lane, 2)).await.unwrap();
    let outside = opened.spool.outside();
    close(opened.spool).await;
    drop(held);

    assert_eq!(outside.unopened, [home.join("2"), home.join("1")]);
    assert_eq!(sequences(&open(home).spool, &lane).await, [1, 2]);
}
