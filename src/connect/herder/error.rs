//! Why an operation failed, with Kafka Connect's text and status.
//!
//! Tools match some of these texts, so they begin and end as Kafka Connect's do, unlike our other errors. None of them repeats a
//! configuration value that was refused, except `name` and `connector.class`.

use base::retry::{ErrorChain, Retry};

use crate::connect::config_writer;

/// An error answer of the API.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing has this name: 404.
    #[error("{0}")]
    NotFound(String),
    /// The request itself is wrong: 400.
    #[error("{0}")]
    BadRequest(String),
    /// The configuration has errors: 400.
    #[error(
        "Connector configuration is invalid and contains the following {} error(s):\n{}\nYou can also find the above \
         list of errors at the endpoint `/connector-plugins/{class}/config/validate`",
        errors.len(),
        errors.join("\n")
    )]
    Invalid {
        /// Simple name of the class.
        class: String,
        /// One sentence for each error; not empty.
        errors: Vec<String>,
    },
    /// The name is taken: 409.
    #[error("Connector {0} already exists")]
    AlreadyExists(String),
    /// The current state forbids it: 409. Retrying does not help until that changes.
    #[error("{0}")]
    Conflict(String),
    /// Another request changed the same configuration, or other writers kept interfering: 409, retry.
    #[error(
        "Cannot complete request momentarily due to stale configuration (typically caused by a concurrent config change)"
    )]
    Stale,
    /// This worker has not read its topics to the end yet: 503.
    #[error(
        "this worker is starting: it has not read the topic {topic} to its end yet; try again in a moment"
    )]
    Starting {
        /// The first topic that is not read to its end.
        topic: &'static str,
    },
    /// Kafka failed: 503 if waiting helps, else 500.
    #[error("{doing}: {}", ErrorChain(&**source))]
    Kafka {
        /// What was attempted, and what is known of the outcome.
        doing: &'static str,
        /// Kafka's error.
        #[source]
        source: Box<kafka::Error>,
    },
    /// The schema registry failed: 503.
    #[error("{doing}: {reason}")]
    Registry {
        /// What was attempted.
        doing: &'static str,
        /// Its error.
        reason: String,
    },
    /// The provider could not be asked: 502.
    #[error("the provider could not be asked: {0}")]
    Provider(String),
    /// It exceeded its limit: 500.
    #[error("Request timed out. The worker was busy: {doing}")]
    TimedOut {
        /// What the worker was busy with.
        doing: &'static str,
    },
    /// A bug: 500. The log has the details.
    #[error("the worker failed to {doing}; its log says why")]
    Internal {
        /// What was attempted.
        doing: &'static str,
    },
}

impl Error {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.verdict().0
    }

    /// Whether the same request may succeed later.
    pub fn retry(&self) -> Retry {
        self.verdict().1
    }

    fn verdict(&self) -> (u16, Retry) {
        match self {
            Self::BadRequest(_) | Self::Invalid { .. } => (400, Retry::Never),
            Self::NotFound(_) => (404, Retry::Never),
            Self::AlreadyExists(_) | Self::Conflict(_) => (409, Retry::Never),
            Self::Stale => (409, Retry::Later),
            Self::Internal { .. } => (500, Retry::Never),
            Self::TimedOut { .. } => (500, Retry::Later),
            Self::Provider(_) => (502, Retry::Later),
            Self::Starting { .. } | Self::Registry { .. } => (503, Retry::Later),
            Self::Kafka { source, .. } => {
                let retry = source.retry();
                (if retry.is_retriable() { 503 } else { 500 }, retry)
            }
        }
    }

    /// Kafka failed to do this.
    pub(super) fn kafka(doing: &'static str) -> impl FnOnce(kafka::Error) -> Self {
        move |source| Self::Kafka { doing, source: Box::new(source) }
    }

    /// For reads of a connector, its config, tasks and offsets, and for its deletion.
    pub(super) fn no_connector(name: &str) -> Self {
        Self::NotFound(format!("Connector {name} not found"))
    }
}

impl From<config_writer::Error<Self>> for Error {
    fn from(error: config_writer::Error<Self>) -> Self {
        match error {
            config_writer::Error::Refused(refusal) => refusal,
            // Other writers kept taking the transactional id until the time was up.
            config_writer::Error::Conflict { .. }
            | config_writer::Error::Kafka(kafka::Error::Fenced { .. }) => Self::Stale,
            config_writer::Error::Kafka(source) => {
                let doing = "write the change to the config topic (ask for the connector to see whether it was taken)";
                Self::kafka(doing)(source)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_error_has_the_status_of_kafka_connect() {
        let deadline =
            || kafka::Error::Deadline { action: "commit".to_owned(), limit: Duration::from_secs(1) };
        let stopped = || kafka::Error::Stopped { action: "commit".to_owned() };
        let table = [
            (Error::no_connector("a"), 404),
            (Error::BadRequest(String::new()), 400),
            (Error::Invalid { class: String::new(), errors: Vec::new() }, 400),
            (Error::AlreadyExists("a".to_owned()), 409),
            (Error::Conflict(String::new()), 409),
            (config_writer::Error::Conflict { attempts: 3 }.into(), 409),
            (config_writer::Error::Refused(Error::Stale).into(), 409),
            (config_writer::Error::Kafka(deadline()).into(), 503),
            (config_writer::Error::Kafka(stopped()).into(), 500),
            (Error::Starting { topic: "config" }, 503),
            (Error::TimedOut { doing: "validate" }, 500),
            (Error::Provider(String::new()), 502),
        ];

        for (error, status) in table {
            assert_eq!(error.status(), status, "{error}");
        }
    }

    #[test]
    fn invalid_configuration_lists_its_errors_and_the_endpoint() {
        let errors = vec!["tasks.max must be a number".to_owned(), "topic is required".to_owned()];

        let text = Error::Invalid { class: "TestSource".to_owned(), errors }.to_string();

        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "Connector configuration is invalid and contains the following 2 error(s):",
                "tasks.max must be a number",
                "topic is required",
                "You can also find the above list of errors at the endpoint \
                 `/connector-plugins/TestSource/config/validate`",
            ]
        );
    }

    #[test]
    fn kafka_error_is_shown_with_its_last_cause() {
        let cause = kafka::Error::Deadline { action: "commit".to_owned(), limit: Duration::from_secs(7) };

        let text = Error::from(config_writer::Error::Kafka(cause)).to_string();

        assert!(text.starts_with("write the change to the config topic"), "{text}");
        assert!(text.ends_with("commit: not done within 7s"), "{text}");
    }
}
