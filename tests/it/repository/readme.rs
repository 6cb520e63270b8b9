//! The commands of the README work as described: `tests/tools/readme.py` runs them. With `CI` set the test fails if it cannot run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::harness::is_ci;
use crate::support::process::Process;
use crate::support::{Result, Shared, prefix, run_directory};

crate::tests! {
    real every_command_of_the_readme_does_what_it_says within 600;
}

const LIMIT: Duration = Duration::from_secs(500);
/// Exit code of the script if it may not listen on port 443, the only one that the provider delivers to.
const NO_PORT: i32 = 3;

async fn every_command_of_the_readme_does_what_it_says(shared: &'static Shared) -> Result<()> {
    let log = run_directory::create("readme")?.join("output.log");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/readme.py");
    let mut python = Command::new("python3");
    let name = prefix("readme");
    python.arg(script).args(["--kafka", shared.bootstrap(), "--registry", shared.registry()]);
    python.args(["--name", &name, "--free-ports", env!("CARGO_BIN_EXE_tributary")]);
    let process = Process::spawn("readme.py", python, &log)?;
    let status = process.wait(LIMIT).await?;

    if status.code() == Some(NO_PORT) {
        if is_ci() {
            let remedy = "run as root, or set sysctl net.ipv4.ip_unprivileged_port_start=443";
            return Err(
                process.error(&format!("the README's commands did not run, which CI forbids: {remedy}"))
            );
        }
        print!("readme, not tried: {}", process.said());
        return Ok(());
    }
    if !status.success() {
        return Err(process.error(&format!("the README's commands: {status}")));
    }
    Ok(())
}
