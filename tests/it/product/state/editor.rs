//! A worker in a process of its own that can be killed in the middle of an edit.
//!
//! It is a copy of this binary that creates one connector and says `acknowledged` when every record of it is in the log
//! and only the commit is missing. There it waits until it is killed.

use std::process::{Command, ExitCode};
use std::sync::Arc;

use kafka::TransactionOptions;

use super::ground::{Ground, LIMIT, create};
use crate::support::process::Process;
use crate::support::{Result, run_directory};

/// Set for the copy: where Kafka is.
pub(crate) const EDITOR: &str = "TRIBUTARY_TEST_EDITOR";
/// Set for the copy: the group.
const GROUP: &str = "TRIBUTARY_TEST_EDITOR_GROUP";
/// Set for the copy: the connector to create.
const CONNECTOR: &str = "TRIBUTARY_TEST_EDITOR_CONNECTOR";

/// The copy's whole life.
pub(crate) fn editor() -> ExitCode {
    let variable = |name: &str| std::env::var(name).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let ground = Ground::of(&variable(EDITOR), &variable(GROUP)).await;
        let hold = Arc::new(|| {
            println!("acknowledged");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        });
        let options = TransactionOptions { before_commit: Some(hold), ..TransactionOptions::default() };
        let worker = ground.worker_with(options).await;
        worker.arbiter.write(LIMIT, create(&variable(CONNECTOR), "the killed one")).await.unwrap();
    });
    ExitCode::SUCCESS
}

/// Starts one, lets it come to the last moment before its commit, and kills it there.
pub(super) async fn die_before_commit(ground: &Ground, connector: &str) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(EDITOR, &ground.kafka.bootstrap_servers).env(GROUP, &ground.group).env(CONNECTOR, connector);
    let log = run_directory::create("editor")?.join("log");
    let process = Process::spawn_listening("editor", command, &log)?;
    process.until_said("acknowledged", LIMIT).await?;
    process.kill();
    Ok(())
}
