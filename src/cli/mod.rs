//! The command line: the only place where the parts are put together.
//!
//! Results go to stdout, logs and complaints to stderr. Exit codes: 0 all is well; 1 something outside is not (broker,
//! registry, topic, disk); 2 the configuration or the command line is not, and nothing was started. For `run` the files of
//! connectors are something outside that it starts without.

mod auth;
mod check;
mod client;
mod connectors;
mod dead_letters;
#[cfg(feature = "simulator")]
mod demo;
mod descriptors;
mod drift;
mod examples;
mod gaps;
mod live;
mod load;
mod meant;
mod remedy;
mod run;
mod schemas;
mod scratch;
mod signals;
#[cfg(feature = "simulator")]
mod simulate;
mod snapshot;
mod subscriptions;
mod table;
#[cfg(test)]
mod tests;
mod webhooks;

use std::{
    error::Error,
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use tracing::warn;

use base::{metrics, retry::ErrorChain};

use self::{client::Access, load::Loaded};
use crate::{
    config::{self, Problem, Problems, worker::LogFormat},
    telemetry::{self, Filters, Metrics},
};

/// What this is, as far as its build knows: version and, of a release, the commit.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("TRIBUTARY_BUILD"));

#[derive(Parser)]
#[command(name = "tributary", version = VERSION, about, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything in one process, nothing else needed: provider, Kafka and worker, an outage, and the count at the end
    #[cfg(feature = "simulator")]
    Demo(demo::Options),
    /// The worker: runs connectors, shares them with other workers, serves the REST API
    Run(RunOptions),
    /// Looks at what a start would need (configuration, broker, topics, registry, disk) and changes nothing
    Check(check::Options),
    #[command(flatten)]
    Short(Short),
    /// The Avro schemas against the registry
    Schemas {
        #[command(subcommand)]
        command: schemas::Command,
    },
    /// The configuration itself
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// What a shell needs to complete commands and options
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// The provider itself, simulated: for tests, demos and load, never for real data
    #[cfg(feature = "simulator")]
    Simulate(simulate::Options),
}

// Commands that answer a question or give an order, and log nothing but errors. (A doc comment would be part of the help.)
#[derive(Subcommand)]
enum Short {
    /// Connectors of running workers, over the REST API
    Connectors(Remote<connectors::Command>),
    /// What is subscribed to at the provider, what would be done about it, and doing it
    Subscriptions(Remote<subscriptions::Command>),
    /// Deliveries that may be missing, and why
    Gaps(Remote<gaps::Command>),
    /// Lists read in full: ask for a run, follow it, see what it proved
    Snapshot(Remote<snapshot::Command>),
    /// The source against the topics: reads lists and compares; publishes nothing without --repair
    Verify(snapshot::VerifyOptions),
    /// The login at the provider: who has access, until when, and how it is renewed by a person
    Auth {
        #[command(subcommand)]
        command: auth::Command,
    },
    /// A signed delivery by hand, against any receiver
    Webhooks {
        #[command(subcommand)]
        command: webhooks::Command,
    },
    /// What could not be published: look at it, and try again
    DeadLetters {
        #[command(subcommand)]
        command: dead_letters::Command,
    },
}

// A command that a running worker carries out. (A doc comment would be part of the help.)
#[derive(Args)]
struct Remote<C: Subcommand> {
    #[command(flatten)]
    access: Access,
    #[command(subcommand)]
    command: C,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Every key, as markdown
    Reference,
    /// Every metric, as markdown
    Metrics,
}

/// How the worker is started.
#[derive(Args)]
struct RunOptions {
    #[command(flatten)]
    files: Files,
    /// Take over topics that belong to another group or work topic; only while every other worker is stopped
    #[arg(long)]
    adopt: bool,
}

/// Where the configuration is.
#[derive(Args)]
struct Files {
    /// Worker properties; without it, the environment (CONNECT_*) alone
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Connector files (JSON) beside those in `connectors.dir`
    #[arg(long = "connector", value_name = "FILE")]
    connectors: Vec<PathBuf>,
}

impl Files {
    fn load(&self, environment: &Environment) -> Result<Loaded> {
        load::load(self.config.as_deref(), &self.connectors, environment)
    }
}

/// How long what still blocks a thread may hold up the end of the process.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Set to `true`, a worker of a build with the simulator has the class `TestSource` too.
const TEST_PLUGINS: &str = "TRIBUTARY_TEST_PLUGINS";

/// The process's variables, some of which may not be text.
type Environment = Vec<(OsString, OsString)>;

type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Why a command did not do what it was asked for.
enum Failure {
    /// Exit code 2.
    Configuration(Problems),
    /// Exit code 1, with what was attempted and why it failed.
    Outside(Box<dyn Error>),
    /// Exit code 1; all there is to say has been said.
    Reported,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Configuration(problem.into())
    }
}

/// Any error ends with exit code 1, except problems of the configuration, which end with 2.
impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let error: Box<dyn Error> = Box::new(error);
        match error.downcast() {
            Ok(problems) => Self::Configuration(*problems),
            Err(other) => Self::Outside(other),
        }
    }
}

/// A mistake in an option, a setting or a file. `value` is shown, so never pass the value of a setting: it may be a secret.
fn problem<'a>(
    key: &str,
    value: impl Into<Option<&'a str>>,
    rule: impl Into<String>,
    remedy: &str,
) -> Problem {
    let value = value.into().map(str::to_owned);
    Problem { key: key.to_owned(), value, rule: rule.into(), remedy: remedy.to_owned() }
}

/// Runs one command line. `environment` is the process's; results are written to `out`.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    out: &mut dyn Write,
) -> ExitCode {
    run_one(arguments.into_iter().collect(), environment.into_iter().collect(), out)
}

/// Without type parameters, so that all commands are compiled once, with the library, and not again with each program that calls it.
fn run_one(arguments: Vec<OsString>, environment: Environment, out: &mut dyn Write) -> ExitCode {
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers; anything else is a mistake. clap knows where each belongs.
            error.print().ok();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let ended = dispatch(arguments.command, environment, out);
    let mut complaints = io::stderr();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Reported) => ExitCode::from(1),
        // The reader, such as `head`, has closed the pipe.
        Err(Failure::Outside(error)) if is_closed_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(Failure::Outside(error)) => {
            writeln!(complaints, "error: {}", ErrorChain(error.as_ref())).ok();
            if let Some(remedy) = remedy::of(error.as_ref()) {
                writeln!(complaints, "remedy: {remedy}").ok();
            }
            ExitCode::from(1)
        }
        Err(Failure::Configuration(problems)) => {
            let count = problems.len();
            let noun = if count == 1 { "problem" } else { "problems" };
            writeln!(complaints, "{count} {noun} in the configuration; nothing was started\n{problems}").ok();
            ExitCode::from(2)
        }
    }
}

/// The command line, with helps that end with examples.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let mut command = command();
    let mut found = command.try_get_matches_from_mut(arguments)?;
    Arguments::from_arg_matches_mut(&mut found).map_err(|error| error.format(&mut command))
}

fn command() -> clap::Command {
    examples::added(Arguments::command())
}

fn dispatch(command: Command, environment: Environment, out: &mut dyn Write) -> Result {
    match command {
        Command::Config { command } => {
            let text = match command {
                ConfigCommand::Reference => config::reference(),
                ConfigCommand::Metrics => metrics::reference(),
            };
            out.write_all(text.as_bytes()).map_err(outside)
        }
        Command::Completions { shell } => {
            // Into memory first: a pipe that is closed early would end the process with a panic.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut self::command(), "tributary", &mut script);
            out.write_all(&script).map_err(outside)
        }
        #[cfg(feature = "simulator")]
        Command::Demo(options) => {
            let logs = log(&environment, "error,librdkafka=off,rdkafka=off")?;
            let terminal = demo::Terminal::of(&environment);
            block_on(async |metrics| demo::run(&options, logs, metrics, terminal, out).await)
        }
        Command::Run(RunOptions { files, adopt }) => {
            let with_test_source = with_test_source(&environment);
            let (loaded, logs) = start(files.load(&environment)?)?;
            for problem in loaded.rejects.iter() {
                warn!(%problem, "a connector file cannot be used as it is; the worker starts, and looks at it again");
            }
            block_on(async |metrics| {
                Box::pin(run::run(loaded, logs, metrics, with_test_source, adopt, out)).await
            })
        }
        Command::Check(options) => {
            let with_test_source = with_test_source(&environment);
            let (loaded, _) = start(options.files.load(&environment)?.sound()?)?;
            block_on(async |_| check::run(&options, &loaded, with_test_source, out).await)
        }
        Command::Short(short) => {
            log(&environment, "error")?;
            block_on(async |_| run_short(short, &environment, out).await)
        }
        Command::Schemas { command } => schemas::run(command, environment, out),
        #[cfg(feature = "simulator")]
        Command::Simulate(options) => {
            log(&environment, "info")?;
            block_on(async |_| simulate::run(&options, out).await)
        }
    }
}

async fn run_short(command: Short, environment: &Environment, out: &mut dyn Write) -> Result {
    match command {
        Short::Connectors(remote) => connectors::run(remote.command, &remote.access, out).await,
        Short::Subscriptions(remote) => {
            subscriptions::run(remote.command, &remote.access, environment, out).await
        }
        Short::Gaps(remote) => gaps::run(remote.command, &remote.access, out).await,
        Short::Snapshot(remote) => snapshot::run(remote.command, &remote.access, out).await,
        Short::Verify(options) => snapshot::verify(&options, out).await,
        Short::Auth { command } => auth::run(command, environment, out).await,
        Short::Webhooks { command } => webhooks::run(command, environment, out).await,
        Short::DeadLetters { command } => dead_letters::run(command, environment, out).await,
    }
}

/// Logs as text; `RUST_LOG` wins over this filter.
fn log(environment: &Environment, filter: &str) -> Result<Filters> {
    let filter = load::log_filter(environment)?.unwrap_or_else(|| filter.to_owned());
    Ok(telemetry::install_logs(LogFormat::Text, &filter)?)
}

/// Calls `look` until it returns something, and pauses between two calls.
async fn until<T>(pause: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(pause).await;
    }
}

/// For tests of the worker itself: a class that produces, fails and panics on request.
fn with_test_source(environment: &Environment) -> bool {
    environment.iter().any(|(name, value)| name == TEST_PLUGINS && value == "true")
}

fn outside(error: impl Error + 'static) -> Failure {
    error.into()
}

/// A failure with exit code 1 and this message, for which there is no remedy.
fn failure(message: impl Into<String>) -> Failure {
    Failure::Outside(message.into().into())
}

/// Whether the reader of the output is gone. True only for what this command writes: errors of sockets are wrapped in others.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Sends logs where a configuration says, and logs what it warns of.
fn start(loaded: Loaded) -> Result<(Loaded, Filters)> {
    let wanted = &loaded.worker.telemetry;
    let logs = telemetry::install_logs(wanted.format, &wanted.filter)?;
    for warning in &loaded.warnings {
        warn!(key = warning.key, "{}", warning.message);
    }
    Ok((loaded, logs))
}

/// Runs the work of one command, with the metrics that it moves.
fn block_on(work: impl AsyncFnOnce(&Metrics) -> Result) -> Result {
    let metrics = Metrics::install()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = work(&metrics) => ended,
            never = metrics.keep_up() => match never {},
        }
    });
    // Dropping it would block on a file of a mount that hangs.
    runtime.shutdown_timeout(EXIT_LIMIT);
    ended
}
