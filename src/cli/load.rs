//! Files and environment to a checked configuration: the worker's and every connector's, all problems together.
//!
//! What is wrong with the worker's own configuration ends every command. What is wrong with a connector's file does not keep
//! a worker from starting, which tells of it and goes on ([`Loaded::rejects`]): one mistake in a file must not take down all
//! workers at their next restart. [`Loaded::sound`] is for commands that are asked about the files themselves.

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

/// A worker's configuration without problems, and what connectors there are beside it.
pub(super) struct Loaded {
    pub(super) worker: Worker,
    pub(super) connectors: Vec<Connector>,
    pub(super) warnings: Vec<Warning>,
    /// Why `connectors.dir` cannot be read.
    unseen: Option<Problem>,
    /// What is wrong with the files of connectors.
    pub(super) rejects: Problems,
}

impl Loaded {
    /// Itself, if nothing is wrong with any connector.
    pub(super) fn sound(mut self) -> Result<Self> {
        if let Some(unseen) = self.unseen.take() {
            self.rejects.push(unseen);
        }
        if self.rejects.is_empty() { Ok(self) } else { Err(self.rejects.into()) }
    }
}

/// Loads the worker's properties and the connectors of `connectors.dir` and the command line. A `RUST_LOG` wins over the
/// worker's filter, as everywhere in Rust.
pub(super) fn load(config: Option<&Path>, files: &[PathBuf], environment: &Environment) -> Result<Loaded> {
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
        // A setting that was left out for its own fault may be missed here by another.
        if !problems.iter().any(|known| known.key == problem.key) {
            problems.push(problem);
        }
    }
    let filter = filter.unwrap_or_else(|problem| {
        problems.push(problem);
        None
    });

    let mut rejects = Problems::default();
    let mut unseen = None;
    let mut paths = files.to_vec();
    if let Some(directory) = &directory {
        match connector::files(directory) {
            Ok(found) => paths.extend(found),
            Err(problem) => unseen = Some(problem),
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
            Ok(Loaded { worker, connectors, warnings, unseen, rejects })
        }
        _ => {
            unseen.into_iter().for_each(|problem| problems.push(problem));
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

/// What `RUST_LOG` asks for, if it is set.
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

/// What is wrong with a setting that passes through to librdkafka, under the key that sets it.
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
