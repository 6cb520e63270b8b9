//! Resolves a connector argument: a file, or a name from `connectors.dir` or the config topic. And the arguments that a connector stands
//! for: a prefix, or the only one of its kind.

use std::{collections::BTreeSet, ffi::OsString, fmt::Display, path::Path, time::Duration};

use kafka::Admin;
use model::TopicPrefix;

use super::{Environment, Result, load, problem};
use crate::{
    config::{Connector, Problem, Providers, Worker, connector::ConnectorDocument},
    state::{TableState, configs::Configs},
};

const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The connector whose file or name is `argument`. `config` is the worker's properties.
pub(super) async fn connector(
    argument: &str,
    config: Option<&Path>,
    environment: &Environment,
) -> Result<Connector> {
    let path = Path::new(argument);
    if path.is_file() || path.extension().is_some_and(|extension| extension == "json") {
        from_file(path, config, environment)
    } else {
        by_name(argument, config, environment).await
    }
}

fn from_file(path: &Path, config: Option<&Path>, environment: &Environment) -> Result<Connector> {
    let providers = match load::worker_if_any(config, environment)? {
        Some(worker) => worker.providers,
        // Without a worker there are no allow lists; the file is read with the caller's permissions.
        None => Providers::new(readable(environment)),
    };
    let parsed = ConnectorDocument::load(path)
        .and_then(|(document, _)| Connector::parse(&document.name, &document.config, &providers));
    let (connector, _) = parsed.map_err(|problems| load::in_file(path, &problems))?;
    Ok(connector)
}

fn readable(environment: &Environment) -> impl Iterator<Item = (String, String)> {
    let text = |text: &OsString| text.to_str().map(str::to_owned);
    environment.iter().filter_map(move |(name, value)| Some((text(name)?, text(value)?)))
}

async fn by_name(name: &str, config: Option<&Path>, environment: &Environment) -> Result<Connector> {
    let loaded = load::load(config, &[], environment)?;
    if let Some(found) = loaded.connectors.into_iter().find(|one| one.common().name == name) {
        return Ok(found);
    }
    let configs = configs(&loaded.worker).await?;
    if let Some(found) = configs.connectors().get(name) {
        let (connector, _) = Connector::parse(name, &found.config, &loaded.worker.providers)?;
        return Ok(connector);
    }
    // One of the refused files may be the connector.
    let mut problems = loaded.rejects;
    problems.push(problem(
        "--connector",
        name,
        "is neither a file nor a connector of connectors.dir or of the workers",
        "name a connector file (JSON), or one that `tributary connectors list` shows",
    ));
    Err(problems.into())
}

/// The config topic's content; empty if there is no config topic.
pub(super) async fn configs(worker: &Worker) -> Result<Configs, kafka::Error> {
    let topic = worker.topics.config.name.as_str();
    let counts = Admin::Real(worker.kafka.clone()).partition_counts(&[topic]).await?;
    let mut configs = Configs::default();
    if let Some(count) = counts.get(topic) {
        let partitions: Vec<i32> = (0..*count).collect();
        kafka::read_to_end(&worker.kafka, topic, &partitions, READ_TIMEOUT, |record| {
            configs.apply(&record);
        })
        .await?;
    }
    Ok(configs)
}

/// The value of `--prefix`.
pub(super) fn prefix(text: &str) -> Result<TopicPrefix, Problem> {
    TopicPrefix::new(text).map_err(|error| {
        problem("--prefix", text, error.to_string(), "write the topic.prefix of a connector")
    })
}

/// The only value that the connectors of `connectors.dir` have for a missing option; an error if they have none or several.
pub(super) fn only<T: Clone + Display + Ord>(
    option: &str,
    known: &BTreeSet<T>,
    remedy: &str,
) -> Result<T, Problem> {
    let names = || known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let rule = match known.first() {
        Some(only) if known.len() == 1 => return Ok(only.clone()),
        Some(_) => format!("is missing, and connectors.dir has several: {}", names()),
        None => "is missing, and connectors.dir has no connector to take it from".to_owned(),
    };
    Err(problem(option, None, rule, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_value_is_chosen() {
        let choice = |topics: &[&'static str]| {
            let chosen = only("--topic", &topics.iter().copied().collect(), "name a topic");
            chosen.map_or_else(|problem| problem.to_string(), str::to_owned)
        };

        assert_eq!(choice(&["a.dead-letters"]), "a.dead-letters");
        assert!(choice(&[]).contains("--topic"), "{}", choice(&[]));
        assert!(choice(&["a", "b"]).contains("several: a, b"), "{}", choice(&["a", "b"]));
    }
}
