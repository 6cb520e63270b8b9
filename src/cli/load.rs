//! Loads and checks the configuration of the worker and of every connector, and reports all problems together.
//!
//! A problem in the worker's own configuration fails every command. A problem in a connector file does not prevent a worker from
//! starting, which logs it ([`CheckedConfig::rejects`]): one bad file must not take down all workers at their next restart. Commands about
//! the files themselves use [`CheckedConfig::sound`], which fails on either.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kafka::Kafka;

use super::{Environment, Result, problem};
use crate::{
    config::{self, Connector, Problem, Problems, RejectedConfig, Warning, Worker, connector},
    telemetry,
};

/// A valid worker configuration, and the connectors of its files.
pub(super) struct CheckedConfig {
    pub(super) worker: Worker,
    pub(super) connectors: Vec<Connector>,
    pub(super) warnings: Vec<Warning>,
    /// Why `connectors.dir` cannot be read.
    unreadable_directory: Option<Problem>,
    /// Problems of connector files.
    pub(super) rejects: Problems,
}

impl CheckedConfig {
    /// Fails if any connector file has a problem.
    pub(super) fn sound(mut self) -> Result<Self> {
        if let Some(unreadable_directory) = self.unreadable_directory.take() {
            self.rejects.push(unreadable_directory);
        }
        if self.rejects.is_empty() { Ok(self) } else { Err(self.rejects.into()) }
    }
}

/// Loads the worker's properties and the connectors of `connectors.dir` and the command line. `RUST_LOG` overrides the worker's
/// filter.
pub(super) fn load(
    config: Option<&Path>,
    files: &[PathBuf],
    environment: &Environment,
) -> Result<CheckedConfig> {
    let filter = log_filter(environment);
    let mut warnings = Vec::new();
    let mut problems = Problems::default();
    let (worker, providers, directory, kafka) = match Worker::load(config, environment.clone()) {
        Ok(config::LoadedConfig { config: worker, warnings: more }) => {
            warnings.extend(more);
            let (providers, directory) = (worker.providers.clone(), worker.connectors_dir.clone());
            let kafka = worker.kafka.clone();
            (Some(worker), providers, directory, kafka)
        }
        Err(rejected) => {
            let RejectedConfig { problems: found, providers, connectors_dir, kafka } = *rejected;
            problems.extend(found);
            (None, providers, connectors_dir, kafka)
        }
    };
    for error in kafka::check_settings(&kafka) {
        let problem = client_problem(&kafka, error);
        // A setting that was rejected may cause a follow-up problem here.
        if !problems.iter().any(|known| known.key == problem.key) {
            problems.push(problem);
        }
    }
    let filter = filter.unwrap_or_else(|problem| {
        problems.push(problem);
        None
    });

    let mut rejects = Problems::default();
    let mut unreadable_directory = None;
    let mut paths = files.to_vec();
    if let Some(directory) = &directory {
        match connector::files(directory) {
            Ok(found) => paths.extend(found),
            Err(problem) => unreadable_directory = Some(problem),
        }
    }
    let mut connectors: Vec<Connector> = Vec::new();
    let mut declared: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in paths {
        let parsed = connector::ConnectorDocument::load(&path).and_then(|(document, repeated)| {
            Connector::parse(&document.name, &document.config, &providers)
                .map(|(connector, more)| (connector, repeated.into_iter().chain(more)))
        });
        match parsed {
            Ok((connector, more)) => {
                let key = |warning: &Warning| format!("{}: {}", path.display(), warning.key);
                warnings.extend(more.map(|warning| Warning { key: key(&warning), ..warning }));
                let name = connector.common().name.clone();
                match declared.get(&name) {
                    Some(first) => rejects.push(connector::declared_twice(&name, first, &path)),
                    None => {
                        declared.insert(name, path);
                        connectors.push(connector);
                    }
                }
            }
            Err(found) => rejects.extend(in_file(&path, &found)),
        }
    }
    rejects.extend(connector::conflicts(&connectors));
    match worker {
        Some(mut worker) if problems.is_empty() => {
            worker.connector_files = files.to_vec();
            worker.telemetry.filter = filter.unwrap_or(worker.telemetry.filter);
            Ok(CheckedConfig { worker, connectors, warnings, unreadable_directory, rejects })
        }
        _ => {
            unreadable_directory.into_iter().for_each(|problem| problems.push(problem));
            problems.extend(rejects);
            Err(problems.into())
        }
    }
}

/// The worker that the properties or, without them, the environment describe; `None` if no properties are named and the
/// environment describes none.
pub(super) fn worker_if_any(config: Option<&Path>, environment: &Environment) -> Result<Option<Worker>> {
    match Worker::load(config, environment.clone()) {
        Ok(loaded) => Ok(Some(loaded.config)),
        Err(_) if config.is_none() => Ok(None),
        Err(rejected) => Err(rejected.problems.into()),
    }
}

/// The problems of a file, with its path before every key.
pub(super) fn in_file(path: &Path, problems: &Problems) -> Problems {
    let mut named = Problems::default();
    for problem in problems.iter() {
        named.push(Problem { key: format!("{}: {}", path.display(), problem.key), ..problem.clone() });
    }
    named
}

/// The filter in `RUST_LOG`, if set.
pub(super) fn log_filter(environment: &Environment) -> Result<Option<String>, Problem> {
    let Some((_, value)) = environment.iter().find(|(name, _)| name == "RUST_LOG") else { return Ok(None) };
    match value.to_str().filter(|text| telemetry::filter(text).is_ok()) {
        Some(text) => Ok(Some(text.to_owned())),
        None => {
            let rule = "must be a log filter such as info or info,tributary::kafka=debug";
            Err(problem("RUST_LOG", &*value.to_string_lossy(), rule, "correct or unset the variable"))
        }
    }
}

/// The problem of a librdkafka setting, under the key that sets it.
fn client_problem(kafka: &Kafka, error: kafka::Error) -> Problem {
    match error {
        kafka::Error::Refused { client, key: setting, rule, remedy, .. } => {
            problem(&kafka.key_of(client, &setting), None, format!("is refused: {rule}"), &remedy)
        }
        kafka::Error::Setting { client, key: setting, reason, remedy } => {
            problem(&kafka.key_of(client, &setting), None, reason, &remedy)
        }
        other => {
            let remedy = "correct the settings of the Kafka clients";
            problem("bootstrap.servers", None, other.to_string(), remedy)
        }
    }
}
