//! A writer process, which can be frozen and killed like a worker.
//!
//! It is a copy of this binary that takes the shard and reads commands: `commit NAME` commits a batch; `hold NAME` prints
//! `acknowledged` before the commit and waits for another line. It prints the outcome of each batch.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kafka::{CommitError, TransactionOptions};
use rustix::process::Signal;

use super::shard::FencedShard;
use crate::support::process::Process;
use crate::support::topics::LIMIT;
use crate::support::{Result, run_directory};

/// Set for the copy: the bootstrap servers.
pub(crate) const WRITER: &str = "TRIBUTARY_TEST_WRITER";
/// Set for the copy: the shard's prefix.
const PREFIX: &str = "TRIBUTARY_TEST_WRITER_PREFIX";

/// The main function of the copy.
pub(crate) fn writer() -> ExitCode {
    let shard = FencedShard::new(&std::env::var(WRITER).unwrap(), &std::env::var(PREFIX).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(obey(&shard));
    ExitCode::SUCCESS
}

async fn obey(shard: &FencedShard) {
    let holding = Arc::new(AtomicBool::new(false));
    let hold = Arc::clone(&holding);
    let before_commit = Arc::new(move || {
        if hold.load(Ordering::Acquire) {
            println!("acknowledged");
            read_command();
        }
    });
    let options = TransactionOptions { before_commit: Some(before_commit), ..TransactionOptions::default() };
    let mut producer = shard.take_with(options, Arc::new(|| true)).await;
    println!("taken");
    while let Some((command, name)) = read_command() {
        holding.store(command == "hold", Ordering::Release);
        let outcome = match producer.commit(shard.batch(&name)).await {
            Ok(_) => "committed",
            Err(CommitError::Aborted { .. }) => "aborted",
            Err(CommitError::Rebuilt { .. }) => "rebuilt",
            Err(CommitError::Fenced { .. }) => "fenced",
            Err(CommitError::Over { .. }) => "over",
        };
        println!("{name} {outcome}");
    }
}

/// The next line as two words; `None` at the end.
fn read_command() -> Option<(String, String)> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let (command, name) = line.trim().split_once(' ')?;
    Some((command.to_owned(), name.to_owned()))
}

/// The handle of that process.
pub(super) struct WriterProcess(Process);

impl WriterProcess {
    /// Starts one and waits until it owns the shard.
    pub(super) async fn start(shard: &FencedShard) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(WRITER, &shard.kafka.bootstrap_servers).env(PREFIX, &shard.prefix);
        let log = run_directory::create("writer")?.join("log");
        let process = Process::spawn_listening("writer", command, &log)?;
        process.until_said("taken", LIMIT).await?;
        Ok(Self(process))
    }

    /// Commits a batch and waits for this outcome.
    pub(super) async fn commit(&self, name: &str, outcome: &str) -> Result<()> {
        self.0.write_line(&format!("commit {name}"))?;
        self.0.until_said(&format!("{name} {outcome}"), LIMIT).await
    }

    /// Starts a batch and holds it: every record is acknowledged, the commit not yet sent.
    pub(super) async fn hold(&self, name: &str) -> Result<()> {
        self.0.write_line(&format!("hold {name}"))?;
        self.0.until_said("acknowledged", LIMIT).await
    }

    /// Releases the batch that it holds and waits for this outcome.
    pub(super) async fn release(&self, name: &str, outcome: &str) -> Result<()> {
        self.0.write_line("release")?;
        self.0.until_said(&format!("{name} {outcome}"), LIMIT).await
    }

    pub(super) fn freeze(&self) -> Result<()> {
        self.0.signal(Signal::STOP)
    }

    pub(super) fn thaw(&self) -> Result<()> {
        self.0.signal(Signal::CONT)
    }

    pub(super) fn kill(&self) {
        self.0.kill();
    }
}
