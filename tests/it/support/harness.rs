//! From lists of functions to a test run: kinds, time limits, and the order parallel first, disturbing last.
//!
//! A module lists its tests with [`tests!`](crate::tests), the `mod.rs` above it collects the lists and `main`
//! runs them, so one that is not listed is dead code and a warning. Each test has its own thread and runtime;
//! a panic, an error or the time limit fails it. Limits do not count time that the machine lost ([`lost`]).
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

/// Characters of a failure that are printed at once, beside the test's name: the report at the end is often cut off.
const FAILURE_CHARACTERS: usize = 2_000;

/// Default time limit of a test: many times what it takes, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// Time beyond its limit that a test has to notice it; after that its thread is abandoned.
const GRACE: Duration = Duration::from_secs(5);
/// Tests mostly wait. With more threads the run takes as long, and each test longer.
const THREADS_PER_CORE: usize = 3;
/// Tests named at the end for the time they took.
const SLOWEST: usize = 12;

/// Directories of `tests/it` that only group modules: no part of a test's name.
const GROUPS: [&str; 2] = ["product::", "repository::"];

/// How long each test took, without what it waited for others.
static TOOK: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Lists a module's tests: `kind name;`, where kind is one of [`Test`]'s constructors. `within SECONDS` or `limit (EXPRESSION)` sets
/// another time limit; a test with `given "VARIABLE"` runs only where that variable is set.
#[macro_export]
macro_rules! tests {
    ($($kind:ident $name:ident $(within $seconds:literal)? $(limit ($limit:expr))? $(given $variable:literal)?;)*) => {
        pub(crate) fn tests() -> Vec<$crate::support::harness::Test> {
            use $crate::support::harness::Test;
            vec![$(
                Test::$kind(concat!(module_path!(), "::", stringify!($name)), $name)
                    $(.within($seconds))?$(.within($limit))?$(.given($variable))?
            ),*]
        }
    };
}

type TestBody = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Result<(), String>>>> + Send>;

/// What a test needs and may disturb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestKind {
    Plain,
    Real,
    Disturbing,
}

/// One test of this binary.
pub(crate) struct Test {
    name: String,
    kind: TestKind,
    limit: Duration,
    /// Environment variable without which the test is ignored.
    given: Option<&'static str>,
    body: TestBody,
}

impl Test {
    /// Needs nothing from outside; runs beside others.
    pub(crate) fn plain<Running>(name: &str, run: impl FnOnce() -> Running + Send + 'static) -> Self
    where
        Running: Future<Output: TestOutcome> + 'static,
    {
        Self::new(name, TestKind::Plain, body(run))
    }

    /// Uses the shared Kafka and registry, which it must not disturb; runs beside others.
    pub(crate) fn real<Run, Running>(name: &str, run: Run) -> Self
    where
        Run: FnOnce(&'static Shared) -> Running + Send + 'static,
        Running: Future<Output: TestOutcome> + 'static,
    {
        let body = move || async move {
            let shared = shared::get().map_err(|error| error.to_string())?;
            run(shared).await.into_result()
        };
        Self::new(name, TestKind::Real, Box::new(move || Box::pin(body())))
    }

    /// Breaks brokers or registries that no other test uses; runs after all others, at most [`breakable::COUNT`] at a time.
    pub(crate) fn disturbing<Running>(name: &str, run: impl FnOnce() -> Running + Send + 'static) -> Self
    where
        Running: Future<Output: TestOutcome> + 'static,
    {
        Self::new(name, TestKind::Disturbing, body(run))
    }

    /// Replaces the time limit [`LIMIT`].
    pub(crate) fn within(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs only where this environment variable is set; elsewhere it is ignored. In CI it fails if the gate should have set it.
    pub(crate) fn given(mut self, variable: &'static str) -> Self {
        self.given = Some(variable);
        self
    }

    fn new(name: &str, kind: TestKind, body: TestBody) -> Self {
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
        let _permit = RunPermit::wait(self.kind == TestKind::Disturbing);
        let missing = match self.kind {
            TestKind::Plain => None,
            TestKind::Real => shared::missing(),
            TestKind::Disturbing => jars::missing(),
        };
        if let Some(reason) = missing {
            shared::note_left_out(&self.name, reason);
            return if is_ci() {
                Err(format!("left out, which CI forbids: {reason}").into())
            } else {
                Ok(Completion::ignored_with(reason))
            };
        }
        // Fetching and starting take longer than a test may: they come before its time begins.
        match self.kind {
            TestKind::Plain => {}
            TestKind::Real => {
                shared::note_use();
                shared::get().map_err(report_once)?;
            }
            TestKind::Disturbing => {
                shared::note_own();
                jars::get().map_err(report_once)?;
            }
        }
        let began = Instant::now();
        let result = run_limited(&self.name, self.limit, self.body);
        if let Err(why) = &result {
            println!("{} failed: {}", self.name, why.chars().take(FAILURE_CHARACTERS).collect::<String>());
        }
        TOOK.lock().unwrap_or_else(PoisonError::into_inner).push((began.elapsed(), self.name));
        result.map(|()| Completion::Completed).map_err(Failed::from)
    }
}

fn body<Running>(run: impl FnOnce() -> Running + Send + 'static) -> TestBody
where
    Running: Future<Output: TestOutcome> + 'static,
{
    Box::new(move || Box::pin(async move { run().await.into_result() }))
}

/// The name of a test: its path without this binary and without the directory that groups its module.
fn test_name(path: &str) -> &str {
    let path = path.strip_prefix("it::").unwrap_or(path);
    GROUPS.iter().find_map(|group| path.strip_prefix(*group)).unwrap_or(path)
}

/// Whether CI has to set this variable of [`Test::given`]: the gate prepares what it names.
fn must_be_set(variable: &str) -> bool {
    let may_leave_out = std::env::var("TRIBUTARY_CI_MAY_LEAVE_OUT").unwrap_or_default();
    variable == "TRIBUTARY_TEST_PYTHON" && !may_leave_out.split_whitespace().any(|check| check == "python")
}

/// Whether this is CI, where a test that cannot run fails.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// Permission to run: any number of tests that disturb no other, or up to [`breakable::COUNT`] that do.
struct RunPermit {
    disturbing: bool,
}

/// How many tests run: those that disturb no other, and those that do.
static RUNNING: Mutex<[usize; 2]> = Mutex::new([0, 0]);
static PERMIT_RETURNED: Condvar = Condvar::new();

impl RunPermit {
    /// Disturbing tests come last in the list, so the others do not wait behind them for long.
    fn wait(disturbing: bool) -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let others = |running: &mut [usize; 2]| {
            running[usize::from(!disturbing)] > 0 || disturbing && running[1] >= breakable::COUNT
        };
        let mut running = PERMIT_RETURNED.wait_while(running, others).unwrap_or_else(PoisonError::into_inner);
        running[usize::from(disturbing)] += 1;
        if disturbing {
            shared::pause()
        } else {
            shared::resume()
        }
        Self { disturbing }
    }
}

impl Drop for RunPermit {
    fn drop(&mut self) {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(self.disturbing)] -= 1;
        PERMIT_RETURNED.notify_all();
    }
}

/// The reason in full for the first test that it fails; a hundred copies of a log would bury the report.
fn report_once(error: Error) -> Failed {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if IS_REPORTED.swap(true, Ordering::Relaxed) {
        Failed::from("real Kafka did not start; the first test that needed it shows why")
    } else {
        Failed::from(error)
    }
}

/// What a test may return: nothing, or a result whose error fails it.
pub(crate) trait TestOutcome {
    /// The error as text.
    fn into_result(self) -> Result<(), String>;
}

impl TestOutcome for () {
    fn into_result(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: Display> TestOutcome for Result<(), E> {
    fn into_result(self) -> Result<(), String> {
        self.map_err(|error| error.to_string())
    }
}

/// Runs the tests that the arguments select, prints the report about real Kafka, and ends every child.
pub(crate) fn run(tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or_else(threads);
    let mut tests = tests;
    // The longest first: the run would wait for a long one that begins last.
    tests.sort_by_key(|test| Reverse(recorded(&test.name)));
    let (disturbing, beside): (Vec<_>, Vec<_>) =
        tests.into_iter().partition(|test| test.kind == TestKind::Disturbing);
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

/// Hides the messages of panics that tests cause on purpose; they would bury the others.
fn hush() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !message(info.payload()).ends_with("panics on request") {
            report(info);
        }
    }));
}

/// Prints the secrets that were found in the logs of the run; whether there were any.
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

/// Which tests took longest.
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
pub(crate) fn run_limited(name: &str, limit: Duration, body: TestBody) -> Result<(), String> {
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

fn block_on(name: &str, limit: Duration, body: TestBody) -> Result<(), String> {
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
