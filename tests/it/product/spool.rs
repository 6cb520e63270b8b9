//! The spool in a process that is killed, or whose disk really fails.
//!
//! The process is a copy of this binary. It appends as fast as it can, many entries at a time and to several lanes, and removes some.
//! It prints `+lane sequence` for each acknowledged entry, and `-lane sequence` before each removal; the test reads this output.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tributary::spool::{Error, Lane, Spool, SpoolEntry, SpoolOptions};

use crate::support::process::Process;
use crate::support::{Result, cycles, run_directory};

crate::tests! {
    plain every_acknowledged_entry_is_there_after_a_kill within 1800;
    plain a_second_process_is_refused;
    plain a_failed_journal_loses_nothing_acknowledged_and_is_replaced;
}

/// Set for the copy: `append` or `fail`.
pub(crate) const SPOOLER: &str = "TRIBUTARY_TEST_SPOOLER";
/// Set for the copy: the directory of its spool.
const DIRECTORY: &str = "TRIBUTARY_TEST_SPOOLER_DIRECTORY";
const LIMIT: Duration = Duration::from_secs(30);
const LANES: u64 = 4;
const AT_ONCE: u64 = 32;
/// Largest file that the copy can write while its disk fails.
const LONGEST_FILE: u64 = 256 * 1024;

/// The main function of the copy.
pub(crate) fn spooler() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    match std::env::var(SPOOLER).unwrap().as_str() {
        "append" => runtime.block_on(append_until_killed(&directory)),
        "fail" => runtime.block_on(append_to_a_failing_disk(&directory)),
        other => panic!("{other}?"),
    }
    ExitCode::SUCCESS
}

async fn append_until_killed(directory: &Path) {
    let spool = match Spool::open(options(directory)) {
        Ok(opened) => opened.spool,
        Err(Error::InUse { .. }) => {
            println!("refused");
            return std::future::pending().await;
        }
        Err(error) => panic!("{error}"),
    };
    println!("opened");
    let mut sequence = spool.highest_sequence();
    let mut appends = JoinSet::new();
    loop {
        while (appends.len() as u64) < AT_ONCE {
            sequence += 1;
            appends.spawn(append(spool.clone(), sequence));
        }
        appends.join_next().await.unwrap().unwrap().unwrap();
    }
}

/// Appends an entry; every third is removed again.
async fn append(spool: Spool, sequence: u64) -> std::result::Result<(), Error> {
    let entry = entry(sequence);
    let lane = entry.lane.clone();
    spool.append(entry).await?;
    println!("+{} {sequence}", lane.number);
    if sequence.is_multiple_of(3) {
        println!("-{} {sequence}", lane.number);
        spool.remove(&lane, sequence);
    }
    Ok(())
}

async fn append_to_a_failing_disk(directory: &Path) {
    // SIGXFSZ, which tokio does not name: unhandled, the first write beyond the limit would end the process.
    let _handled = signal(SignalKind::from_raw(25)).unwrap();
    let spool = Spool::open(options(directory)).unwrap().spool;
    let full = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(LONGEST_FILE), ..full }).unwrap();
    let mut sequence = 0;
    let end = Instant::now() + LIMIT;
    let error = loop {
        sequence += 1;
        assert!(Instant::now() < end, "the disk never failed");
        if let Err(error) = append(spool.clone(), sequence).await {
            break error;
        }
    };
    println!("failed: {error:?}");
    setrlimit(Resource::Fsize, full).unwrap();
    loop {
        sequence += 1;
        assert!(Instant::now() < end, "no fresh database");
        if append(spool.clone(), sequence).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(spool.failures().borrow().count, 1);
    assert!(spool.close(LIMIT).await);
    println!("done");
    std::future::pending().await
}

fn options(directory: &Path) -> SpoolOptions {
    SpoolOptions { reserve_bytes: 0, ..SpoolOptions::new(directory, 1 << 30) }
}

fn entry(sequence: u64) -> SpoolEntry {
    let number = (sequence % LANES) as u8;
    // From empty to several pages, so that batches end anywhere in a page.
    let payload = vec![sequence as u8; (sequence * 37 % 9_000) as usize];
    SpoolEntry { lane: Lane { topic: "topic".into(), number }, sequence, payload: payload.into() }
}

/// The entries that were acknowledged, and those whose removal has started.
fn reported(said: &str) -> (BTreeSet<u64>, BTreeSet<u64>) {
    // The last line may be incomplete.
    let whole = said.rfind('\n').map_or("", |end| &said[..end]);
    let marked = |mark: char| {
        let lines = whole.lines().filter_map(move |line| line.strip_prefix(mark)?.split_once(' '));
        lines.map(|(_, sequence)| sequence.parse().unwrap()).collect::<BTreeSet<u64>>()
    };
    (marked('+'), marked('-'))
}

/// Reads all entries, and checks that they are complete and in order.
async fn held(spool: &Spool) -> BTreeSet<u64> {
    let mut held = BTreeSet::new();
    for number in 0..LANES {
        let lane = Lane { topic: "topic".into(), number: number as u8 };
        let mut after = None;
        loop {
            let entries = spool.read(&lane, after, 100, 1 << 20).await.unwrap().entries;
            let Some(last) = entries.last() else { break };
            let next = Some(last.sequence);
            for found in entries {
                assert!(Some(found.sequence) > after, "{} after {after:?}", found.sequence);
                after = Some(found.sequence);
                assert_eq!(found, entry(found.sequence));
                held.insert(found.sequence);
            }
            assert_eq!(after, next);
        }
    }
    held
}

fn start(what: &str, directory: &Path, log: &Path) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(SPOOLER, what).env(DIRECTORY, directory);
    Process::spawn("spooler", command, log)
}

async fn every_acknowledged_entry_is_there_after_a_kill() -> Result<()> {
    let home = run_directory::create("spool")?;
    let directory = home.join("spool");
    let mut owed: BTreeSet<u64> = BTreeSet::new();
    let mut before = 0;
    for cycle in 0..cycles("SPOOL", 3) {
        let process = start("append", &directory, &home.join(format!("log-{cycle}")))?;
        process.until_said("opened", LIMIT).await?;
        // Killed after some appends, another number each time.
        let enough = 200 + u64::from(cycle) * 131 % 1_000;
        let end = Instant::now() + LIMIT;
        while (reported(&process.said()).0.len() as u64) < enough {
            assert!(Instant::now() < end, "{}", process.error("appended too little"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        process.kill();

        let opened = Spool::open(options(&directory)).unwrap();
        let held = held(&opened.spool).await;

        assert!(opened.moved_aside.is_empty(), "a kill breaks nothing");
        let (acknowledged, removed) = reported(&process.said());
        owed.extend(acknowledged);
        owed.retain(|sequence| !removed.contains(sequence));
        let lost: Vec<_> = owed.difference(&held).collect();
        assert!(lost.is_empty(), "cycle {cycle}: {} of {} lost: {lost:?}", lost.len(), owed.len());
        assert!(opened.spool.highest_sequence() >= *held.last().unwrap());
        // Keep some new entries for the next process, and none that two processes have had.
        let stays = |sequence: &u64| sequence.is_multiple_of(5) && *sequence > before;
        for sequence in held.iter().filter(|sequence| !stays(sequence)) {
            opened.spool.remove(&entry(*sequence).lane, *sequence);
        }
        owed.retain(stays);
        before = *held.last().unwrap();
        assert!(opened.spool.close(LIMIT).await);
    }
    Ok(())
}

async fn a_second_process_is_refused() -> Result<()> {
    let home = run_directory::create("spool-second")?;
    let directory = home.join("spool");
    let first = Spool::open(options(&directory)).unwrap().spool;

    let second = start("append", &directory, &home.join("log"))?;

    second.until_said("refused", LIMIT).await?;
    assert!(first.close(LIMIT).await);
    start("append", &directory, &home.join("log-after"))?.until_said("opened", LIMIT).await
}

async fn a_failed_journal_loses_nothing_acknowledged_and_is_replaced() -> Result<()> {
    let home = run_directory::create("spool-failing")?;
    let directory = home.join("spool");

    let process = start("fail", &directory, &home.join("log"))?;
    process.until_said("done", LIMIT).await?;

    let said = process.said();
    assert!(said.contains("failed: Failed"), "{said}");
    let (acknowledged, removed) = reported(&said);
    let opened = Spool::open(options(&directory)).unwrap();
    let held = held(&opened.spool).await;
    assert!(opened.moved_aside.is_empty());
    let lost: Vec<_> =
        acknowledged.difference(&held).filter(|sequence| !removed.contains(sequence)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(opened.spool.close(LIMIT).await);
    Ok(())
}
