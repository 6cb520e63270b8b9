//! A writer in a process of its own, so that it can be frozen and killed as a worker is.
//!
//! It is a copy of this binary that takes the shard and obeys lines: `commit NAME` commits a batch, `hold NAME` does
//! the same but says `acknowledged` before it asks for the commit, and waits there for another line. It says how each
//! batch ended.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kafka::{CommitError, TransactionOptions};
use rustix::process::Signal;

use super::shard::Shard;
use crate::support::process::Process;
use crate::support::topics::LIMIT;
use crate::support::{Result, run_directory};

/// Set for the copy: where Kafka is.
pub(crate) const WRITER: &str = "TRIBUTARY_TEST_WRITER";
/// Set for the copy: the shard's prefix.
const PREFIX: &str = "TRIBUTARY_TEST_WRITER_PREFIX";

/// The copy's whole life.
pub(crate) fn writer() -> ExitCode {
    let shard = Shard::new(&std::env::var(WRITER).unwrap(), &std::env::var(PREFIX).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(obey(&shard));
    ExitCode::SUCCESS
}

async fn obey(shard: &Shard) {
    let holding = Arc::new(AtomicBool::new(false));
    let hold = Arc::clone(&holding);
    let before_commit = Arc::new(move || {
        if hold.load(Ordering::Acquire) {
            println!("acknowledged");
            heard();
        }
    });
    let options = TransactionOptions { before_commit: Some(before_commit), ..TransactionOptions::default() };
    let mut producer = shard.take_with(options, Arc::new(|| true)).await;
    println!("taken");
    while let Some((order, name)) = heard() {
        holding.store(order == "hold", Ordering::Release);
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
fn heard() -> Option<(String, String)> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let (order, name) = line.trim().split_once(' ')?;
    Some((order.to_owned(), name.to_owned()))
}

/// That process, as the test sees it.
pub(super) struct Writer(Process);

impl Writer {
    /// Starts one and waits until the shard is its own.
    pub(super) async fn start(shard: &Shard) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(WRITER, &shard.kafka.bootstrap_servers).env(PREFIX, &shard.prefix);
        let log = run_directory::create("writer")?.join("log");
        let process = Process::spawn_listening("writer", command, &log)?;
        process.until_said("taken", LIMIT).await?;
        Ok(Self(process))
    }

    /// Commits a batch and waits for its end, which must be this one.
    pub(super) async fn commit(&self, name: &str, outcome: &str) -> Result<()> {
        self.0.tell(&format!("commit {name}"))?;
        self.0.until_said(&format!("{name} {outcome}"), LIMIT).await
    }

    /// Brings it into a batch: every record is acknowledged, the commit not yet sent.
    pub(super) async fn hold(&self, name: &str) -> Result<()> {
        self.0.tell(&format!("hold {name}"))?;
        self.0.until_said("acknowledged", LIMIT).await
    }

    /// Lets it go on with the batch it holds, which must end like this.
    pub(super) async fn go_on(&self, name: &str, outcome: &str) -> Result<()> {
        self.0.tell("go on")?;
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
