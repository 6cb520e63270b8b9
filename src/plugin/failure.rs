//! Why a connector or task failed, and whether a retry can help.

use std::error::Error;

use base::retry::Retry;
use provider::auth;

/// Why a connector or task failed. Its texts are shown in the status topic and in REST answers: they contain no secret, and no
/// configuration value that validation refuses, except `connector.class`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Kind of failure, the first word of a trace: `ProviderRefused`.
    pub kind: &'static str,
    /// What was attempted, and what happened.
    pub message: String,
    /// What a person can do about it. Not about restarts: see [`Self::next`].
    pub remedy: Option<String>,
    /// Whether a retry may help.
    pub retry: Retry,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// A permanent failure: a person has to act, and the remedy says how.
    pub fn permanent(kind: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (message, remedy) = (message.into(), Some(remedy.into()));
        Self { kind, message, remedy, retry: Retry::Never, source: None }
    }

    /// When an instance restarts after a permanent failure.
    pub fn next(&self) -> &'static str {
        match self.kind {
            LOGIN_NEEDED => "it restarts after the login",
            GRANTS_UNAVAILABLE => "it restarts when its worker is started with the new configuration",
            _ => "it stays failed until it is restarted or its configuration changes",
        }
    }

    /// A retryable failure.
    pub fn retryable(kind: &'static str, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), remedy: None, retry: Retry::Later, source: None }
    }

    /// Kafka refused `action` or did not answer. Retryable if the writer was fenced or lost its lease, since the next instance
    /// takes a new one. Also if a topic is missing: it existed when the task started, and a broker that has just come back may not
    /// know it yet. If it stays missing, the next instance fails on it.
    pub fn kafka(action: impl Into<String>, source: kafka::Error) -> Self {
        let retry = match &source {
            kafka::Error::Fenced { .. } | kafka::Error::LeaseEnded { .. } | kafka::Error::Stopped { .. } => {
                Retry::Later
            }
            other if other.lacks_topic() => Retry::Later,
            other => other.retry(),
        };
        let remedy = (!retry.is_retriable()).then(|| KAFKA_REMEDY.to_owned());
        Self { kind: "KafkaError", message: action.into(), remedy, retry, source: Some(Box::new(source)) }
    }

    /// A transaction failed. Whatever happened to the writer, the next instance takes a new one.
    pub fn transaction(action: impl Into<String>, source: kafka::CommitError) -> Self {
        let retry = match &source {
            kafka::CommitError::Aborted { source } => source.retry(),
            kafka::CommitError::Rebuilt { .. }
            | kafka::CommitError::Fenced { .. }
            | kafka::CommitError::Over { .. } => Retry::Later,
        };
        let remedy = (!retry.is_retriable()).then(|| KAFKA_REMEDY.to_owned());
        Self { kind: "KafkaError", message: action.into(), remedy, retry, source: Some(Box::new(source)) }
    }
}

const LOGIN_NEEDED: &str = "LoginNeeded";
const GRANTS_UNAVAILABLE: &str = "GrantsUnavailable";
const KAFKA_REMEDY: &str = "correct what Kafka refuses: permissions, topics or settings";

/// Why subscriptions cannot be managed.
pub(crate) fn no_access(error: &auth::Error) -> Failure {
    unable("subscriptions cannot be kept", "deliveries are still received", error)
}

/// Failed for lack of access: what cannot be done, what happens meanwhile, and why. The remedy names who has to act: the owner
/// of the login, or of the connector's or the worker's configuration. A transient failure has none.
pub(crate) fn unable(what: &str, meanwhile: &str, error: &auth::Error) -> Failure {
    let message = format!("{what}: {error}");
    let meanwhile_and = |remedy: &str| format!("{meanwhile}; {remedy}");
    match error {
        auth::Error::Absent { .. } | auth::Error::LoggedOut { .. } | auth::Error::Lost { .. } => {
            let remedy = meanwhile_and("run the command that the first line names");
            Failure::permanent(LOGIN_NEEDED, message, remedy)
        }
        // Retryable: it may have been the provider's fault.
        auth::Error::Client { .. } => {
            let remedy = meanwhile_and("correct the client, here or at the provider");
            Failure { remedy: Some(remedy), ..Failure::retryable("ClientRefused", message) }
        }
        auth::Error::NoKey | auth::Error::Foreign { .. } => {
            let remedy = meanwhile_and("correct the configuration of the workers");
            Failure::permanent(GRANTS_UNAVAILABLE, message, remedy)
        }
        other if other.retry() == Retry::Never => {
            let remedy = meanwhile_and("correct the setting, or what the provider has on record");
            Failure::permanent("AccessRefused", message, remedy)
        }
        _ => Failure::retryable("NoAccess", message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_writer_is_retryable_and_a_refused_topic_is_not() {
        let stopped = || kafka::Error::Stopped { action: "commit".into() };

        assert_eq!(Failure::kafka("write", stopped()).retry, Retry::Later);
        assert_eq!(
            Failure::transaction("write", kafka::CommitError::Over { source: stopped() }).retry,
            Retry::Later
        );
        assert_eq!(Failure::kafka("read", kafka::samples::unknown_partition()).retry, Retry::Later);
        let refused = Failure::kafka("write", kafka::samples::unauthorised());
        assert_eq!(refused.retry, Retry::Never);
        assert!(refused.remedy.is_some_and(|remedy| remedy.contains("what Kafka refuses")));
        let aborted = kafka::CommitError::Aborted { source: kafka::samples::unauthorised() };
        assert_eq!(Failure::transaction("write", aborted).retry, Retry::Never);
    }

    #[test]
    fn missing_login_needs_a_person_and_an_unreadable_one_does_not() {
        let (grant, command) = ("accounting".to_owned(), "tributary auth login accounting".to_owned());

        let absent = no_access(&auth::Error::Absent { grant: grant.clone(), command });
        let unreadable = no_access(&auth::Error::Unreadable { grant, key: "0011223344556677".into() });

        assert_eq!((absent.kind, absent.retry), ("LoginNeeded", Retry::Never));
        assert!(absent.message.contains("run `tributary auth login accounting`"), "{}", absent.message);
        assert_eq!((unreadable.kind, unreadable.retry), ("NoAccess", Retry::Later));
    }

    #[test]
    fn remedy_names_a_login_only_where_one_helps() {
        let grant = || "accounting".to_owned();
        let failures = [
            (
                auth::Error::Client { grant: grant(), code: "invalid_client".into() },
                "ClientRefused",
                Retry::Later,
            ),
            (auth::Error::Distrusted { grant: grant(), rule: "iss".into() }, "AccessRefused", Retry::Never),
            (auth::Error::Setup { grant: grant(), what: "read".into() }, "NoAccess", Retry::Later),
            (auth::Error::Foreign { group: "theirs".into() }, "GrantsUnavailable", Retry::Never),
            (auth::Error::NoKey, "GrantsUnavailable", Retry::Never),
        ];
        for (error, kind, retry) in failures {
            let failure = no_access(&error);
            assert_eq!((failure.kind, failure.retry), (kind, retry), "{error}");
            let remedy = failure.remedy.unwrap_or_default();
            assert!(!remedy.contains("login"), "{error}: {remedy}");
        }
    }
}
