//! The whole suite looked through for secrets: with `TRIBUTARY_TEST_TRACE` set, every part says all it can, and at the end
//! of the run what was said is searched.
//!
//! Said is what workers write, panics among it, and what the parts under test log in this process. Looked for is what the
//! fixtures name with [`hide`] and [`hide_later`], such as every token that a simulated provider has issued. Without the
//! variable all of this does nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::secrets::Secrets;
use super::{Result, run_directory};

const VARIABLE: &str = "TRIBUTARY_TEST_TRACE";

/// Tells secrets, under the names by which a report tells of them.
type Told = Box<dyn Fn() -> Vec<(String, String)> + Send>;

#[derive(Default)]
struct Kept {
    secrets: Vec<Told>,
    logs: Vec<PathBuf>,
}

/// Whether the run is looked through.
pub(crate) fn is_on() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty())
}

/// Names a secret of a test.
pub(crate) fn hide(name: &str, secret: &str) {
    let pair = (name.to_owned(), secret.to_owned());
    hide_later(move || vec![pair.clone()]);
}

/// Names secrets that are asked for at the end of the run.
pub(crate) fn hide_later(told: impl Fn() -> Vec<(String, String)> + Send + 'static) {
    if is_on() {
        kept().secrets.push(Box::new(told));
    }
}

/// Has a child of ours say all it can, and remembers where.
pub(crate) fn follow(command: &mut Command, log: &Path) {
    let program = Path::new(command.get_program());
    let is_ours = program == Path::new(env!("CARGO_BIN_EXE_tributary"))
        || std::env::current_exe().is_ok_and(|this| program == this);
    // What is given out by a simulated provider it has to tell those who are to use it.
    let is_provider = command.get_args().any(|argument| argument == "simulate");
    if is_on() && is_ours && !is_provider {
        command.env("RUST_LOG", "trace");
        kept().logs.push(log.to_owned());
    }
}

/// Has the parts in this process say all they can.
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
    kept().logs.push(log);
    Ok(())
}

/// What was found where, and how much was looked through; nothing where nobody asked for it.
pub(crate) fn found() -> Option<(Vec<String>, String)> {
    if !is_on() {
        return None;
    }
    let kept = std::mem::take(&mut *kept());
    let mut secrets = Secrets::default();
    let mut count = 0;
    for (name, secret) in kept.secrets.iter().flat_map(|told| told()) {
        secrets.add(&name, &secret);
        count += 1;
    }
    let (mut leaks, mut files, mut bytes) = (Vec::new(), 0, 0);
    let mut logs = kept.logs;
    logs.sort_unstable();
    logs.dedup();
    for log in logs {
        // A test that writes another in its place has looked through it.
        let Ok(text) = fs::read(&log) else { continue };
        leaks.extend(secrets.found_in(&log.display().to_string(), &text));
        (files, bytes) = (files + 1, bytes + text.len());
    }
    Some((leaks, format!("{count} secrets were looked for in {files} logs of {bytes} bytes\n")))
}

fn kept() -> MutexGuard<'static, Kept> {
    static KEPT: Mutex<Kept> = Mutex::new(Kept { secrets: Vec::new(), logs: Vec::new() });
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}
