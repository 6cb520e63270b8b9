//! The search for secrets in the logs of a whole run: with `TRIBUTARY_TEST_TRACE` set, everything logs at `trace`, and the logs are
//! searched at the end of the run.
//!
//! The logs are the output of workers, panics included, and what the library logs in this process. The secrets are those that
//! fixtures name with [`hide`] and [`hide_later`], such as every token that a simulated provider issued. Without the variable all of
//! this does nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::secrets::Secrets;
use super::{Result, run_directory};

const VARIABLE: &str = "TRIBUTARY_TEST_TRACE";

/// Returns secrets, each with the name that a report uses for it.
type SecretSource = Box<dyn Fn() -> Vec<(String, String)> + Send>;

#[derive(Default)]
struct Trace {
    secrets: Vec<SecretSource>,
    logs: Vec<PathBuf>,
}

/// Whether the logs of this run are searched.
pub(crate) fn is_on() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty())
}

/// Names a secret of a test.
pub(crate) fn hide(name: &str, secret: &str) {
    let pair = (name.to_owned(), secret.to_owned());
    hide_later(move || vec![pair.clone()]);
}

/// Names secrets that are known only at the end of the run.
pub(crate) fn hide_later(secrets: impl Fn() -> Vec<(String, String)> + Send + 'static) {
    if is_on() {
        trace().secrets.push(Box::new(secrets));
    }
}

/// Has a child of our binaries log at `trace`, and remembers the log.
pub(crate) fn follow(command: &mut Command, log: &Path) {
    let program = Path::new(command.get_program());
    let is_ours = program == Path::new(env!("CARGO_BIN_EXE_tributary"))
        || std::env::current_exe().is_ok_and(|this| program == this);
    // A simulated provider prints the credentials that it issues.
    let is_provider = command.get_args().any(|argument| argument == "simulate");
    if is_on() && is_ours && !is_provider {
        command.env("RUST_LOG", "trace");
        trace().logs.push(log.to_owned());
    }
}

/// Has the library in this process log at `trace`.
pub(crate) fn begin() -> Result<()> {
    if !is_on() {
        return Ok(());
    }
    let log = run_directory::create("traced")?.join("in-process.log");
    let file =
        fs::File::create(&log).map_err(|error| super::Error(format!("create {}: {error}", log.display())))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("trace")
        .with_ansi(false)
        .with_writer(Mutex::new(file))
        .finish();
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|error| super::Error(format!("log at trace: {error}")))?;
    trace().logs.push(log);
    Ok(())
}

/// The secrets that were found, and a summary of the search; `None` unless the variable is set.
pub(crate) fn found() -> Option<(Vec<String>, String)> {
    if !is_on() {
        return None;
    }
    let trace = std::mem::take(&mut *trace());
    let mut secrets = Secrets::default();
    let mut count = 0;
    for (name, secret) in trace.secrets.iter().flat_map(|secrets| secrets()) {
        secrets.add(&name, &secret);
        count += 1;
    }
    let (mut leaks, mut files, mut bytes) = (Vec::new(), 0, 0);
    let mut logs = trace.logs;
    logs.sort_unstable();
    logs.dedup();
    for log in logs {
        // A test that replaces a log has searched it.
        let Ok(text) = fs::read(&log) else { continue };
        leaks.extend(secrets.found_in(&log.display().to_string(), &text));
        (files, bytes) = (files + 1, bytes + text.len());
    }
    Some((leaks, format!("searched {files} logs of {bytes} bytes for {count} secrets\n")))
}

fn trace() -> MutexGuard<'static, Trace> {
    static TRACE: Mutex<Trace> = Mutex::new(Trace { secrets: Vec::new(), logs: Vec::new() });
    TRACE.lock().unwrap_or_else(PoisonError::into_inner)
}
