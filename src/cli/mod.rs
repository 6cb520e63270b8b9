//! The command line: the only module that wires the others together.
//!
//! Results go to stdout, logs and errors to stderr. Exit codes: 0 success; 1 a problem outside (broker, registry, topic, disk);
//! 2 a problem in the configuration or the command line, and nothing was started; 3 `events trace` found no event. A bad connector file
//! does not stop `run`.

mod auth;
mod check;
mod client;
mod connectors;
mod dead_letters;
mod declarations;
#[cfg(feature = "simulator")]
mod demo;
mod events;
mod examples;
mod gaps;
mod load;
mod open_files;
mod probe;
mod remedy;
mod resolve;
mod run;
mod scan;
mod schemas;
mod scratch;
mod signals;
#[cfg(feature = "simulator")]
mod simulate;
mod snapshot;
mod subscriptions;
mod table;
mod terminal;
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

use self::{client::ConnectionArgs, load::CheckedConfig};
use crate::{
    config::{self, Problem, Problems, worker::LogFormat},
    telemetry::{self, Filters, Metrics},
};

/// Version and, for a release build, the commit.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("TRIBUTARY_BUILD"));

#[derive(Parser)]
#[command(name = "tributary", version = VERSION, about, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs provider, Kafka and worker in one process, with an outage, and verifies that nothing is lost
    #[cfg(feature = "simulator")]
    Demo(demo::DemoOptions),
    /// Runs a worker: connectors, work sharing with other workers, REST API
    Run(RunOptions),
    /// Checks everything that a start needs (configuration, broker, topics, registry, disk); changes nothing
    Check(check::CheckOptions),
    #[command(flatten)]
    Quiet(QuietCommand),
    /// Lists the Avro schemas, checks them against the registry, or registers them
    Schemas {
        #[command(subcommand)]
        command: schemas::SchemasCommand,
    },
    /// Prints the reference of settings and metrics
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Prints a completion script for a shell
    Completions {
        /// Shell to print the script for
        shell: Shell,
    },
    /// Runs a simulated provider for tests, demos and load; never for real data
    #[cfg(feature = "simulator")]
    Simulate(simulate::SimulateOptions),
}

// Commands that print an answer and log only errors. (A doc comment would be part of the help.)
#[derive(Subcommand)]
enum QuietCommand {
    /// Lists and controls connectors, over the REST API of a running worker
    Connectors(RemoteCommand<connectors::ConnectorsCommand>),
    /// Lists, plans, applies and removes subscriptions at the provider
    Subscriptions(RemoteCommand<subscriptions::SubscriptionsCommand>),
    /// Lists and accepts gaps: times in which deliveries may be missing
    Gaps(RemoteCommand<gaps::GapsCommand>),
    /// Reads lists in full: starts, watches and stops runs, prints certificates
    Snapshot(RemoteCommand<snapshot::SnapshotCommand>),
    /// Compares the provider's lists with the topics; publishes nothing without --repair
    Verify(snapshot::VerifyOptions),
    /// Logs in at the provider, logs out, and shows the logins with their expiry
    Auth {
        #[command(subcommand)]
        command: auth::AuthCommand,
    },
    /// Reads the real provider to find out what its document leaves open, and proposes settings; sends only GETs
    Probe(probe::ProbeOptions),
    /// Signs and sends test deliveries to any receiver
    Webhooks {
        #[command(subcommand)]
        command: webhooks::WebhooksCommand,
    },
    /// Lists, shows and replays dead letters
    DeadLetters {
        #[command(subcommand)]
        command: dead_letters::DeadLettersCommand,
    },
    /// Finds events in the topics, such as the outcome of a write
    Events {
        #[command(subcommand)]
        command: events::EventsCommand,
    },
}

// A command that a running worker executes. (A doc comment would be part of the help.)
#[derive(Args)]
struct RemoteCommand<C: Subcommand> {
    #[command(flatten)]
    access: ConnectionArgs,
    #[command(subcommand)]
    command: C,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Prints every setting, as markdown
    Reference,
    /// Prints every metric, as markdown
    Metrics,
}

#[derive(Args)]
struct RunOptions {
    #[command(flatten)]
    files: ConfigFiles,
    /// Take over topics that belong to another group or work topic; stop every other worker first
    #[arg(long)]
    adopt: bool,
}

#[derive(Args)]
struct ConfigFiles {
    /// Worker properties; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Connector files (JSON), in addition to those in `connectors.dir`
    #[arg(long = "connector", value_name = "FILE")]
    connectors: Vec<PathBuf>,
}

impl ConfigFiles {
    fn load(&self, environment: &Environment) -> Result<CheckedConfig> {
        load::load(self.config.as_deref(), &self.connectors, environment)
    }
}

/// How long a blocked thread may delay the exit of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// If `true`, a worker of a build with the simulator also has the class `TestSource`.
const TEST_PLUGINS: &str = "TRIBUTARY_TEST_PLUGINS";

/// The process's environment variables; some may not be UTF-8.
type Environment = Vec<(OsString, OsString)>;

type Result<T = (), E = CommandError> = std::result::Result<T, E>;

/// Why a command failed.
enum CommandError {
    /// Exit code 2.
    Configuration(Problems),
    /// Exit code 1; the error names the attempted action and the cause.
    Outside(Box<dyn Error>),
    /// Exit code 1; the command has already reported the problem.
    Reported,
    /// Exit code 3: there is nothing of what was searched for, and the search was complete. What it was, and where.
    NotFound(String),
}

impl From<Problem> for CommandError {
    fn from(problem: Problem) -> Self {
        Self::Configuration(problem.into())
    }
}

/// Any error ends with exit code 1, except problems of the configuration, which end with 2.
impl<E: Error + 'static> From<E> for CommandError {
    fn from(error: E) -> Self {
        let error: Box<dyn Error> = Box::new(error);
        match error.downcast() {
            Ok(problems) => Self::Configuration(*problems),
            Err(other) => Self::Outside(other),
        }
    }
}

/// A problem of an option, a setting or a file. `value` is printed, so never pass the value of a setting: it may be a secret.
fn problem<'a>(
    key: &str,
    value: impl Into<Option<&'a str>>,
    rule: impl Into<String>,
    remedy: &str,
) -> Problem {
    let value = value.into().map(str::to_owned);
    Problem { key: key.to_owned(), value, rule: rule.into(), remedy: remedy.to_owned() }
}

/// Runs one command line and writes its results to `out`.
pub fn run(
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    out: &mut dyn Write,
) -> ExitCode {
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to stdout with exit code 0; other errors go to stderr.
            error.print().ok();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let ended = dispatch(arguments.command, environment, out);
    let mut stderr = io::stderr();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandError::Reported) => ExitCode::from(1),
        Err(CommandError::NotFound(message)) => {
            writeln!(stderr, "{message}").ok();
            ExitCode::from(3)
        }
        // The reader, such as `head`, has closed the pipe.
        Err(CommandError::Outside(error)) if is_closed_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(CommandError::Outside(error)) => {
            writeln!(stderr, "error: {}", ErrorChain(error.as_ref())).ok();
            if let Some(remedy) = remedy::of(error.as_ref()) {
                writeln!(stderr, "remedy: {remedy}").ok();
            }
            ExitCode::from(1)
        }
        Err(CommandError::Configuration(problems)) => {
            let count = problems.len();
            let noun = if count == 1 { "problem" } else { "problems" };
            writeln!(stderr, "{count} {noun} in the configuration; nothing was started\n{problems}").ok();
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: Vec<OsString>) -> Result<Arguments, clap::Error> {
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
            // Into memory first: clap_complete panics if the pipe is closed early.
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
                warn!(%problem, "cannot use a connector file; the worker starts without it and retries");
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
        Command::Quiet(short) => {
            log(&environment, "error")?;
            block_on(async |_| run_quiet(short, &environment, out).await)
        }
        Command::Schemas { command } => schemas::run(command, environment, out),
        #[cfg(feature = "simulator")]
        Command::Simulate(options) => {
            log(&environment, "info")?;
            block_on(async |_| simulate::run(&options, out).await)
        }
    }
}

async fn run_quiet(command: QuietCommand, environment: &Environment, out: &mut dyn Write) -> Result {
    match command {
        QuietCommand::Connectors(remote) => connectors::run(remote.command, &remote.access, out).await,
        QuietCommand::Subscriptions(remote) => {
            subscriptions::run(remote.command, &remote.access, environment, out).await
        }
        QuietCommand::Gaps(remote) => gaps::run(remote.command, &remote.access, out).await,
        QuietCommand::Snapshot(remote) => snapshot::run(remote.command, &remote.access, out).await,
        QuietCommand::Verify(options) => snapshot::verify(&options, out).await,
        QuietCommand::Auth { command } => auth::run(command, environment, out).await,
        QuietCommand::Probe(options) => Box::pin(probe::run(&options, environment, out)).await,
        QuietCommand::Webhooks { command } => webhooks::run(command, environment, out).await,
        QuietCommand::DeadLetters { command } => dead_letters::run(command, environment, out).await,
        QuietCommand::Events { command } => events::run(command, environment, out).await,
    }
}

/// Installs text logs; `RUST_LOG` overrides this filter.
fn log(environment: &Environment, filter: &str) -> Result<Filters> {
    let filter = load::log_filter(environment)?.unwrap_or_else(|| filter.to_owned());
    Ok(telemetry::install_logs(LogFormat::Text, &filter)?)
}

/// Calls `look` until it returns a value, with a pause between calls.
async fn poll_until<T>(pause: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Whether the worker has the class `TestSource`, which produces, fails and panics on request.
fn with_test_source(environment: &Environment) -> bool {
    environment.iter().any(|(name, value)| name == TEST_PLUGINS && value == "true")
}

fn outside(error: impl Error + 'static) -> CommandError {
    error.into()
}

/// A failure with exit code 1 and this message, without a remedy.
fn failure(message: impl Into<String>) -> CommandError {
    CommandError::Outside(message.into().into())
}

/// Whether the reader closed the output pipe. Socket errors are wrapped in other errors, so they do not match.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Installs the configured logs and logs the configuration's warnings.
fn start(loaded: CheckedConfig) -> Result<(CheckedConfig, Filters)> {
    let wanted = &loaded.worker.telemetry;
    let logs = telemetry::install_logs(wanted.format, &wanted.filter)?;
    for warning in &loaded.warnings {
        warn!(key = warning.key, "{}", warning.message);
    }
    Ok((loaded, logs))
}

/// Runs a command's work on a new runtime, with its metrics.
fn block_on(work: impl AsyncFnOnce(&Metrics) -> Result) -> Result {
    let metrics = Metrics::install()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = work(&metrics) => ended,
            never = metrics.keep_up() => match never {},
        }
    });
    // Dropping the runtime would block on a file of a hanging mount.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}
