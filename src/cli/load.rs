//! Files and environment to a checked configuration: the worker's and every connector's, all problems together.

use std::path::{Path, PathBuf};

use super::{Failure, Files};
use crate::config::{Connector, Problem, Warning, Worker, connector};

/// A configuration without problems.
pub(super) struct Loaded {
    pub(super) worker: Worker,
    pub(super) connectors: Vec<Connector>,
    pub(super) warnings: Vec<Warning>,
}

/// Loads the worker's properties and the connectors of `connectors.dir` and the command line.
pub(super) fn load(files: &Files, environment: Vec<(String, String)>) -> Result<Loaded, Failure> {
    let worker = Worker::load(files.config.as_deref(), environment)?;
    let mut problems = Vec::new();
    let mut warnings = worker.warnings;
    let worker = worker.config;

    let mut paths = files.connectors.clone();
    if let Some(directory) = &worker.connectors_dir {
        match connector_files(directory) {
            Ok(found) => paths.extend(found),
            Err(problem) => problems.push(problem),
        }
    }
    let mut connectors = Vec::new();
    for path in paths {
        let parsed = connector::Document::load(&path)
            .and_then(|document| Connector::parse(&document.name, &document.config, &worker.providers));
        match parsed {
            Ok((connector, more)) => {
                connectors.push(connector);
                warnings.extend(more.into_iter().map(|warning| in_file(&path, warning)));
            }
            Err(found) => problems.extend(found.iter().map(|problem| Problem {
                key: format!("{}: {}", path.display(), problem.key),
                ..problem.clone()
            })),
        }
    }
    problems.extend(connector::conflicts(&connectors).iter().cloned());
    if problems.is_empty() {
        Ok(Loaded { worker, connectors, warnings })
    } else {
        Err(Failure::Configuration(problems))
    }
}

/// The `.json` files of a directory, in the order of their names.
fn connector_files(directory: &Path) -> Result<Vec<PathBuf>, Problem> {
    let problem = |error: std::io::Error| Problem {
        key: "connectors.dir".to_owned(),
        value: Some(directory.display().to_string()),
        rule: format!("cannot be read ({})", error.kind()),
        remedy: "correct the path or its permissions, or leave it out".to_owned(),
    };
    let entries = std::fs::read_dir(directory).map_err(problem)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(problem)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn in_file(path: &Path, warning: Warning) -> Warning {
    Warning { key: format!("{}: {}", path.display(), warning.key), ..warning }
}
