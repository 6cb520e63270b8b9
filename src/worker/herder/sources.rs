//! Configurations of connectors, read in full: with secrets, which may have to be read from files.

use std::collections::BTreeMap;

use tokio::{task::spawn_blocking, time::timeout};

use super::{Budget, Error, Herder};
use crate::{
    config::{self, Problems, Providers, Warning, connector::Class},
    worker::state::configs::Connector,
};

/// Reads a flat configuration.
type Parse<T> = fn(&str, &BTreeMap<String, String>, &Providers) -> Result<(T, Vec<Warning>), Problems>;

impl Herder {
    /// The configuration of a connector of this class. `what` is said of the class to who names one of another.
    pub(super) async fn source<T: Send + 'static>(
        &self,
        name: &str,
        connector: Connector,
        wanted: Class,
        what: &str,
        parse: Parse<T>,
        budget: Budget,
    ) -> Result<T, Error> {
        let class = self.class_of(&connector.config)?.class();
        if class != wanted.name() {
            let told = format!("Connector {name} is a {class}: only a {} {what}", wanted.name());
            return Err(Error::BadRequest(told));
        }
        let doing = "reading the configuration";
        let turn = self.limits.thread(budget, doing).await?;
        let (name, providers) = (name.to_owned(), self.parts.providers.clone());
        let parse = move || {
            let _turn = turn;
            parse(&name, &connector.config, &providers)
        };
        match timeout(budget.left(), spawn_blocking(parse)).await {
            Ok(Ok(Ok((source, _)))) => Ok(source),
            Ok(Ok(Err(problems))) => {
                Err(Error::Invalid { class: class.to_owned(), errors: errors(&problems) })
            }
            Ok(Err(error)) => {
                // The text of a panic may hold a value of the configuration.
                tracing::error!(panicked = error.is_panic(), "read a configuration");
                Err(Error::Internal { doing: "read the configuration" })
            }
            Err(_) => Err(Error::TimedOut { doing }),
        }
    }
}

/// What is asked for, within the time an answer may take.
pub(super) async fn within<T>(
    budget: Budget,
    doing: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(budget.left(), work).await.unwrap_or(Err(Error::TimedOut { doing }))
}

/// What is wrong with a configuration, without its values.
fn errors(problems: &config::Problems) -> Vec<String> {
    problems.iter().map(|problem| format!("{} {}; {}", problem.key, problem.rule, problem.remedy)).collect()
}
