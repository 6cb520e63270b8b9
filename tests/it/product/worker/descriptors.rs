//! System resources of a worker: the limit of open files, raised for its public listeners or else a warning, and no huge pages.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::process::client;
use crate::support::process::Process;
use crate::support::{Result, run_directory};

crate::tests! {
    plain a_worker_raises_its_limit_of_open_files within 60;
    plain a_low_file_limit_is_a_warning_with_connections within 60;
    plain a_worker_uses_no_huge_pages within 60;
}

const LIMIT: Duration = Duration::from_secs(50);

async fn a_worker_raises_its_limit_of_open_files() -> Result<()> {
    let (worker, _) = start("ulimit -S -n 300", 2_000).await?;

    let limits = fs::read_to_string(format!("/proc/{}/limits", worker.id())).unwrap();

    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(soft > 2_000, "{line}");
    assert!(!worker.said().contains("webhook.connections.max"), "{}", worker.said());
    Ok(())
}

async fn a_low_file_limit_is_a_warning_with_connections() -> Result<()> {
    let (worker, rest) = start("ulimit -n 1000", 2_000).await?;

    let said = worker.said();
    let warnings: Vec<_> =
        said.lines().filter(|line| line.contains("set webhook.connections.max to 500")).collect();
    assert_eq!(warnings.len(), 1, "{said}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("may open 1000 files"), "{said}");
    let alive = client().get(format!("http://{rest}/health/live")).send().await.unwrap();
    assert_eq!(alive.status(), 200);
    Ok(())
}

async fn a_worker_uses_no_huge_pages() -> Result<()> {
    let (worker, _) = start("true", 100).await?;

    let status = fs::read_to_string(format!("/proc/{}/status", worker.id())).unwrap();

    // Older kernels do not report it.
    let enabled = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    assert!(enabled.is_none_or(|enabled| enabled.trim() == "0"), "{status}");
    Ok(())
}

/// Starts a worker without a Kafka, waits for its receiver, and returns its REST address.
async fn start(limit: &str, connections: usize) -> Result<(Process, String)> {
    let directory = run_directory::create("descriptors")?;
    let properties = directory.join("worker.properties");
    let lines = format!(
        "bootstrap.servers=127.0.0.1:1\nlisteners=http://127.0.0.1:0\nstate.dir={}\n\
         value.converter.schema.registry.url=http://127.0.0.1:9\nwebhook.listeners=http://127.0.0.1:0\n\
         webhook.plaintext=true\nwebhook.proxies=127.0.0.1\nwebhook.connections.max={connections}\n",
        directory.join("state").display()
    );
    fs::write(&properties, lines).unwrap();
    // The shell becomes the worker, so that the limit is this process's alone.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{limit} && exec \"$0\" run --config \"$1\"")]);
    command.arg(env!("CARGO_BIN_EXE_tributary")).arg(&properties).env_clear();
    let process = Process::spawn("limited worker", command, &directory.join("log"))?;
    let rest = || {
        let said = process.said();
        said.lines().find_map(|line| Some(line.split_once(" listens on ")?.1.to_owned()))
    };
    process.ready(LIMIT, async || process.said().contains(" receives deliveries on ")).await?;
    let rest = rest().unwrap();
    Ok((process, rest))
}
