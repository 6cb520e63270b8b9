//! Child processes: reported when they end early, alive after the thread that started them, dead after the run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::support::process::Process;
use crate::support::{Result, run_directory};

crate::tests! {
    plain a_child_that_ends_early_is_reported_at_once_with_its_log;
    plain a_child_outlives_the_thread_that_asked_for_it;
    plain a_dropped_child_is_gone;
    plain children_die_with_a_killed_run;
}

/// Set for a copy of this binary that is to start a child and be killed.
pub(crate) const SLEEPER: &str = "TRIBUTARY_TEST_SLEEPER";

/// The main function of the copy: starts a child, prints its process id, and waits to be killed.
pub(crate) fn sleeper() -> ExitCode {
    let child = sleep().unwrap();
    println!("{}", child.id());
    std::thread::park_timeout(LONG);
    ExitCode::FAILURE
}

const LONG: Duration = Duration::from_secs(30);

async fn a_child_that_ends_early_is_reported_at_once_with_its_log() -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "echo the reason; exit 3"]);
    let child = Process::spawn("early", command, &run_directory::create("early")?.join("log"))?;
    let asked = Instant::now();

    let error = child.ready(LONG, async || false).await.unwrap_err().to_string();

    assert!(error.contains("exit status: 3") && error.contains("the reason"), "{error}");
    assert!(asked.elapsed() < LONG / 2, "noticed only after {:?}", asked.elapsed());
    Ok(())
}

async fn a_child_outlives_the_thread_that_asked_for_it() -> Result<()> {
    let child = std::thread::spawn(sleep).join().unwrap()?;

    let ended = child.wait(Duration::from_millis(300)).await;

    assert!(ended.is_err(), "ended with its thread: {ended:?}");
    Ok(())
}

async fn a_dropped_child_is_gone() -> Result<()> {
    let child = sleep()?;
    let id = child.id();
    assert!(is_there(id), "never started");

    drop(child);

    assert!(!is_there(id), "still there after the drop");
    Ok(())
}

/// On Linux, by the parent-death signal; elsewhere a killed run leaves its children behind.
async fn children_die_with_a_killed_run() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let mut run = Command::new(std::env::current_exe().unwrap());
    let mut run = run.env(SLEEPER, "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let id: u32 = line.trim().parse().unwrap();
    assert!(is_there(id), "never started");

    run.kill().unwrap();
    run.wait().unwrap();

    let deadline = Instant::now() + LONG;
    while is_there(id) {
        assert!(Instant::now() < deadline, "child {id} outlived its killed parent");
        tokio::task::yield_now().await;
    }
}

fn sleep() -> Result<Process> {
    let mut command = Command::new("sleep");
    command.arg("60");
    Process::spawn("sleep", command, &run_directory::create("sleep")?.join("log"))
}

/// Whether the process is alive. A zombie is dead as well: the process that adopts it may reap it late.
fn is_there(id: u32) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}
