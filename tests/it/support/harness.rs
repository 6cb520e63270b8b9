//! From lists of functions to a test run: kinds, time limits, and the order parallel first, disturbing last.
//!
//! A module lists its tests with [`tests!`](crate::tests), the `mod.rs` above it collects the lists and `main`
//! runs them, so one that is not listed is dead code and a warning. Each test has a thread and a runtime of its
//! own; a panic, an error or the time limit fails it. Limits do not count time that the machine lost ([`lost`]).
//! Tests that cannot run here are counted as ignored and named at the end; with `CI` set they fail.

use std::cmp::Reverse;
use std::fmt::Display;
use std::panic;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, FormatSetting, Trial};

use super::{Error, Shared, breakable, jars, lost, process, run_directory, shared, traced, tries};

/// So many characters of why a test failed are told at once, beside its name: what is told in the end is often cut off.
const TOLD: usize = 2_000;

/// For tests that name no other limit: many times what they take, since a busy machine is no fault of theirs.
const LIMIT: Duration = Duration::from_secs(120);
/// What a test gets beyond its limit to notice it; after that its thread is left behind.
const GRACE: Duration = Duration::from_secs(5);
/// Tests mostly wait. More of them at a time would take as long in sum, and each of them longer.
const THREADS_PER_CORE: usize = 3;
/// Tests named at the end for the time they took.
const SLOWEST: usize = 12;

/// Directories of `tests/it` that only group modules: no part of a test's name.
const GROUPS: [&str; 2] = ["product::", "repository::"];

/// How long each test took, without what it waited for others.
static TOOK: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Lists a module's tests: `kind name;`, or `kind name within SECONDS;`, kind being one of [`Test`]'s
/// constructors. `given "VARIABLE"` at the end makes it a test that runs only where that is set.
#[macro_export]
macro_rules! tests {
    ($($kind:ident $name:ident $(within $seconds:literal)? $(given $variable:literal)?;)*) => {
        pub(crate) fn tests() -> Vec<$crate::support::harness::Test> {
            use $crate::support::harness::Test;
            vec![$(
                Test::$kind(concat!(module_path!(), "::", stringify!($name)), $name)$(.within($seconds))?$(.given($variable))?
            ),*]
        }
    };
}

type Body = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Result<(), String>>>> + Send>;

/// What a test needs and may disturb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Real,
    Disturbing,
}

/// One test of this binary.
pub(crate) struct Test {
    name: String,
    kind: Kind,
    limit: Duration,
    /// Environment variable without which nobody asks for this test.
    given: Option<&'static str>,
    body: Body,
}

impl Test {
    /// Needs nothing from outside; runs beside others.
    pub(crate) fn plain<Run, Running>(name: &str, run: Run) -> Self
    where
        Run: FnOnce() -> Running + Send + 'static,
        Running: Future<Output: Outcome> + 'static,
    {
        Self::new(name, Kind::Plain, Box::new(move || Box::pin(async move { run().await.into_result() })))
    }

    /// Uses the shared Kafka and registry, which it must not disturb; runs beside others.
    pub(crate) fn real<Run, Running>(name: &str, run: Run) -> Self
    where
        Run: FnOnce(&'static Shared) -> Running + Send + 'static,
        Running: Future<Output: Outcome> + 'static,
    {
        let body = move || async move {
            let shared = shared::get().map_err(|error| error.to_string())?;
            run(shared).await.into_result()
        };
        Self::new(name, Kind::Real, Box::new(move || Box::pin(body())))
    }

    /// Starts brokers or registries of its own to break them; runs after all others, at most [`breakable::COUNT`] at a time.
    pub(crate) fn disturbing<Run, Running>(name: &str, run: Run) -> Self
    where
        Run: FnOnce() -> Running + Send + 'static,
        Running: Future<Output: Outcome> + 'static,
    {
        Self::new(
            name,
            Kind::Disturbing,
            Box::new(move || Box::pin(async move { run().await.into_result() })),
        )
    }

    /// Another time limit than [`LIMIT`].
    pub(crate) fn within(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs only where this environment variable is set; elsewhere it is ignored. In CI it fails if the gate should have set it.
    pub(crate) fn given(mut self, variable: &'static str) -> Self {
        self.given = Some(variable);
        self
    }

    fn new(name: &str, kind: Kind, body: Body) -> Self {
        Self { name: test_name(name).to_owned(), kind, limit: LIMIT, given: None, body }
    }

    fn into_trial(self) -> Trial {
        Trial::ignorable_test(self.name.clone(), move || self.run())
    }

    fn run(self) -> Result<Completion, Failed> {
        if let Some(variable) = self.given.filter(|variable| std::env::var_os(variable).is_none()) {
            let reason = format!("{variable} is not set");
            return if is_ci() && must_be_set(variable) {
                Err(reason.into())
            } else {
                Ok(Completion::ignored_with(reason))
            };
        }
        let _turn = Turn::wait(self.kind == Kind::Disturbing);
        let missing = match self.kind {
            Kind::Plain => None,
            Kind::Real => shared::missing(),
            Kind::Disturbing => jars::missing(),
        };
        if let Some(reason) = missing {
            shared::note_left_out(&self.name, reason);
            return if is_ci() {
                Err(format!("left out, which CI forbids: {reason}").into())
            } else {
                Ok(Completion::ignored_with(reason))
            };
        }
        // Fetching and starting take longer than a test may and are not its fault: they come before its time
        // begins.
        match self.kind {
            Kind::Plain => {}
            Kind::Real => {
                shared::note_use();
                shared::get().map_err(tell_once)?;
            }
            Kind::Disturbing => {
                shared::note_own();
                jars::get().map_err(tell_once)?;
            }
        }
        let begun = Instant::now();
        let result = run_limited(&self.name, self.limit, self.body);
        if let Err(why) = &result {
            println!("{} failed: {}", self.name, why.chars().take(TOLD).collect::<String>());
        }
        TOOK.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), self.name));
        result.map(|()| Completion::Completed).map_err(Failed::from)
    }
}

/// The name of a test: its path without this binary and without the directory that groups its module.
fn test_name(path: &str) -> &str {
    let path = path.strip_prefix("it::").unwrap_or(path);
    GROUPS.iter().find_map(|group| path.strip_prefix(*group)).unwrap_or(path)
}

/// Whether CI has to set a variable that tests are given: the gate prepares what it names.
fn must_be_set(variable: &str) -> bool {
    let may_leave_out = std::env::var("TRIBUTARY_CI_MAY_LEAVE_OUT").unwrap_or_default();
    variable == "TRIBUTARY_TEST_PYTHON" && !may_leave_out.split_whitespace().any(|check| check == "python")
}

/// Whether this is CI, where a test that cannot run fails.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// Tests that run now: any number of those that disturb nobody, or a few that do.
struct Turn {
    disturbing: bool,
}

/// How many of each kind run.
static RUNNING: Mutex<[usize; 2]> = Mutex::new([0, 0]);
static TURNS: Condvar = Condvar::new();

impl Turn {
    /// Disturbing ones come last in the list, so nobody waits behind them for long.
    fn wait(disturbing: bool) -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let others = |running: &mut [usize; 2]| {
            running[usize::from(!disturbing)] > 0 || disturbing && running[1] >= breakable::COUNT
        };
        let mut running = TURNS.wait_while(running, others).unwrap_or_else(PoisonError::into_inner);
        running[usize::from(disturbing)] += 1;
        if disturbing {
            shared::pause()
        } else {
            shared::resume()
        }
        Self { disturbing }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(self.disturbing)] -= 1;
        TURNS.notify_all();
    }
}

/// The reason in full for the first test it fails; a hundred times the same log would bury the report.
fn tell_once(error: Error) -> Failed {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        Failed::from("real Kafka did not start; another test that wanted it says why")
    } else {
        Failed::from(error)
    }
}

/// What a test body may return: nothing, or a result whose error fails it.
pub(crate) trait Outcome {
    /// The error as text.
    fn into_result(self) -> Result<(), String>;
}

impl Outcome for () {
    fn into_result(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: Display> Outcome for Result<(), E> {
    fn into_result(self) -> Result<(), String> {
        self.map_err(|error| error.to_string())
    }
}

/// Runs the tests the arguments select, prints what is to be said about real Kafka, and ends every child.
pub(crate) fn run(tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or_else(threads);
    let mut tests = tests;
    // The longest first: one that begins last would be waited for alone.
    tests.sort_by_key(|test| Reverse(recorded(&test.name)));
    let (disturbing, beside): (Vec<_>, Vec<_>) =
        tests.into_iter().partition(|test| test.kind == Kind::Disturbing);
    let trials = beside.into_iter().chain(disturbing).map(Test::into_trial).collect();

    lost::watch();
    hush();
    if let Err(error) = traced::begin() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let conclusion = libtest_mimic::run(&arguments, trials);

    process::kill_all();
    let leaks = leaks();
    let (tried, too_many_tries) = tries::closing();
    if !arguments.list {
        let closing = format!("{}{}{tried}", slowest(), shared::closing(conclusion.has_failed()));
        // Standard output is the report's, unless a program reads it.
        if arguments.format == Some(FormatSetting::Json) { eprint!("{closing}") } else { print!("{closing}") }
    }
    if leaks || too_many_tries {
        return ExitCode::FAILURE;
    }
    if !conclusion.has_failed() {
        run_directory::remove();
    }
    conclusion.exit_code()
}

/// Panics that a test asks for say nothing: among them one that nobody asked for would not be seen.
fn hush() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !message(info.payload()).ends_with("panics on request") {
            tell(info);
        }
    }));
}

/// Whether secrets were found in what the run has written, which is then told.
fn leaks() -> bool {
    let Some((found, looked)) = traced::found() else { return false };
    eprint!("{looked}");
    for leak in &found {
        eprintln!("found: {leak}");
    }
    !found.is_empty()
}

/// Seconds that a test took when durations were recorded last; 0 for a short or a new one.
fn recorded(name: &str) -> u64 {
    let lines = include_str!("../durations.tsv").lines().filter_map(|line| line.split_once('\t'));
    let mut seconds = lines.filter(|(_, test)| *test == name).filter_map(|(seconds, _)| seconds.parse().ok());
    seconds.next().unwrap_or(0)
}

/// Writes how long each test took, in whole seconds, where `TRIBUTARY_TEST_DURATIONS` names a file: `tests/it/durations.tsv` to
/// record them.
fn record(took: &[(Duration, String)]) {
    let Some(path) = std::env::var_os("TRIBUTARY_TEST_DURATIONS") else { return };
    let long = took.iter().filter(|(took, _)| took.as_secs() > 0);
    let lines: String = long.map(|(took, name)| format!("{}\t{name}\n", took.as_secs())).collect();
    if let Err(error) = std::fs::write(&path, lines) {
        eprintln!("write durations to {}: {error}", path.display());
    }
}

/// Where the time of the run went, for whoever wants to shorten it.
fn slowest() -> String {
    let mut took = std::mem::take(&mut *TOOK.lock().unwrap_or_else(PoisonError::into_inner));
    took.sort_unstable_by(|one, other| other.cmp(one));
    record(&took);
    if took.len() <= SLOWEST {
        return String::new();
    }
    let sum: Duration = took.iter().map(|(took, _)| *took).sum();
    let lines =
        took.iter().take(SLOWEST).map(|(took, name)| format!("  {:5.1} s  {name}\n", took.as_secs_f64()));
    format!(
        "slowest of {} tests, {:.0} s in sum:\n{}",
        took.len(),
        sum.as_secs_f64(),
        lines.collect::<String>()
    )
}

fn threads() -> Option<usize> {
    let asked = std::env::var("TRIBUTARY_TEST_THREADS").ok().and_then(|count| count.parse().ok());
    asked.or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Some(cores * THREADS_PER_CORE)
    })
}

/// Runs a body on a thread named after the test, so that the panic message names it too.
pub(crate) fn run_limited(name: &str, limit: Duration, body: Body) -> Result<(), String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
        let name = name.to_owned();
        move || {
            let result = panic::catch_unwind(panic::AssertUnwindSafe(|| block_on(&name, limit, body)));
            sender.send(result.unwrap_or_else(|payload| Err(message(&*payload)))).ok();
        }
    });
    thread.map_err(|error| format!("start a thread for {name}: {error}"))?;
    let (began, patience) = (Instant::now(), limit + GRACE);
    let mut left = patience;
    loop {
        match receiver.recv_timeout(left) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(format!("{name} ended without a result")),
            Err(RecvTimeoutError::Timeout) => left = patience.saturating_sub(lost::fair(began)),
        }
        if left.is_zero() {
            return Err(format!("{name} blocks its thread and has not ended within {limit:?}"));
        }
    }
}

fn block_on(name: &str, limit: Duration, body: Body) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| format!("build a runtime for {name}: {error}"))?;
    let result = runtime.block_on(async { lost::timeout(limit, body()).await });
    // A blocking call the test left behind must not keep the run from ending.
    runtime.shutdown_background();
    result.unwrap_or_else(|| Err(format!("{name} has not ended within {limit:?}")))
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("with something that is not text"))
}
