//! Errors between a record, its schema and the registry, and whether a retry can help.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use base::retry::Retry;

/// A cause that all callers waiting for one registration share.
pub type SharedCause = Arc<dyn std::error::Error + Send + Sync>;

/// An error of this module. `attempt` says what was tried and where, with ids; credentials never appear.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The registry settings cannot be used and must be changed.
    #[error("registry settings: {rule}")]
    Settings {
        /// The setting, the rule it breaks, and the remedy.
        rule: String,
        /// The error of the file system or the TLS library, if there was one.
        #[source]
        source: Option<SharedCause>,
    },
    /// No usable answer: connection refused, time-out, TLS failure, connection lost.
    #[error("{attempt}: no answer from the registry")]
    Transport {
        /// What was tried, where.
        attempt: String,
        /// What the HTTP client said.
        #[source]
        source: SharedCause,
    },
    /// The registry answered that it cannot answer now: 408, 429 or 5xx.
    #[error("{attempt}: the registry answered {status}: {message}")]
    Unavailable {
        /// What was tried, where.
        attempt: String,
        /// HTTP status.
        status: u16,
        /// The wait the registry asked for.
        retry_after: Option<Duration>,
        /// Start of the answer.
        message: String,
    },
    /// The registry refused our credentials or our right to do this: 401 or 403.
    #[error("{attempt}: the registry answered {status}: check the credentials and their rights: {message}")]
    Unauthorised {
        /// What was tried, where.
        attempt: String,
        /// HTTP status.
        status: u16,
        /// Start of the answer.
        message: String,
    },
    /// Our schema is incompatible with older versions of the subject.
    #[error("register subject {subject}: {conflict}")]
    Incompatible {
        /// Subject the schema was meant for.
        subject: String,
        /// Field, rule and version of the conflict.
        conflict: Box<SchemaConflict>,
    },
    /// Another refusal; a retry would be refused as well.
    #[error("{attempt}: the registry answered {status}: {message}")]
    Refused {
        /// What was tried, where.
        attempt: String,
        /// HTTP status.
        status: u16,
        /// The registry's own error code, if it gave one.
        code: Option<u32>,
        /// Start of the answer, with a remedy if one is known.
        message: String,
    },
    /// Invalid bytes or text: an answer, a schema, a framed record.
    #[error("{attempt}: {rule}")]
    Malformed {
        /// What was read.
        attempt: String,
        /// What is wrong with it.
        rule: String,
        /// The parser's error, if there was one.
        #[source]
        source: Option<SharedCause>,
    },
    /// A record does not match its schema.
    #[error("encode a record as {schema}")]
    Encode {
        /// Name of the schema.
        schema: &'static str,
        /// What does not match.
        #[source]
        source: SharedCause,
    },
    /// The record has another schema than the topic: a bug in the caller.
    #[error("encode a record for {topic}: the topic takes {takes}, the record is {given}")]
    WrongSchema {
        /// Topic the record was meant for.
        topic: String,
        /// Schema of the topic.
        takes: &'static str,
        /// Schema of the record.
        given: &'static str,
    },
    /// A record for a topic that this encoder does not serve, for example left over from an earlier configuration.
    #[error(
        "encode a record for {topic}: it is not one of the connector's topics; add its resource, or drop the subscription"
    )]
    ForeignTopic {
        /// Topic the record was meant for.
        topic: String,
    },
    /// The schema of a topic has no id yet: the registry was not asked, or has not answered.
    #[error("encode a record for {topic}: its schema has no id yet; prepare the subject first")]
    Unprepared {
        /// Topic the record was meant for.
        topic: String,
    },
    /// The file that keeps schema ids across restarts could not be written.
    #[error("write schema ids to {path}", path = path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What the file system said.
        #[source]
        source: SharedCause,
    },
    /// Several subjects failed; all are listed, so that all can be repaired at once.
    #[error("{}", listed(.0))]
    Several(Vec<Error>),
}

/// Why a schema is incompatible with the versions of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaConflict {
    /// Dotted path of the field in our schema, or the record's name for the whole record.
    pub field: String,
    /// The rule of Avro's schema resolution that it breaks.
    pub rule: String,
    /// The registered version it conflicts with, if known.
    pub version: Option<u32>,
    /// Compatibility level that this violates.
    pub level: &'static str,
}

impl fmt::Display for SchemaConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, rule, version, level } = self;
        write!(f, "field {field} breaks {level}")?;
        if let Some(version) = version {
            write!(f, " against version {version}")?;
        }
        write!(f, ": {rule}")
    }
}

/// All failures in one line, each with its causes: a list has no single source that a chain could show.
fn listed(errors: &[Error]) -> String {
    let mut text = format!("{} subjects are not ready", errors.len());
    for error in errors {
        text.push_str(&format!("; {error}"));
        for cause in std::iter::successors(std::error::Error::source(error), |cause| cause.source()) {
            text.push_str(&format!(": {cause}"));
        }
    }
    text
}

impl Error {
    /// Whether a retry can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Transport { .. } | Self::Unprepared { .. } | Self::State { .. } => Retry::Later,
            Self::Unavailable { retry_after, .. } => retry_after.map_or(Retry::Later, Retry::After),
            Self::Settings { .. }
            | Self::Unauthorised { .. }
            | Self::Incompatible { .. }
            | Self::Refused { .. }
            | Self::Malformed { .. }
            | Self::Encode { .. }
            | Self::WrongSchema { .. }
            | Self::ForeignTopic { .. } => Retry::Never,
            // One permanent failure makes the list permanent; otherwise the longest requested wait applies.
            Self::Several(errors) => errors.iter().map(Self::retry).max().unwrap_or(Retry::Later),
        }
    }

    /// Whether something other than the registry answered, such as a proxy, so that the registry's state is unknown.
    pub(super) fn is_foreign(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            // A registry's own codes begin with the status.
            Self::Refused { status: 404, code, .. } => {
                code.is_none_or(|code| !(40_400..40_500).contains(&code))
            }
            _ => false,
        }
    }

    /// Whether only this record is at fault: a dead letter, not an outage.
    #[must_use]
    pub fn concerns_one_record(&self) -> bool {
        matches!(self, Self::Encode { .. } | Self::WrongSchema { .. } | Self::ForeignTopic { .. })
    }

    /// Stable name of the kind of error, for dead letters.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Encode { .. } => "avro::Error::Encode",
            Self::WrongSchema { .. } => "avro::Error::WrongSchema",
            Self::ForeignTopic { .. } => "avro::Error::ForeignTopic",
            _ => "avro::Error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable(seconds: Option<u64>) -> Error {
        Error::Unavailable {
            attempt: "register".into(),
            status: 429,
            retry_after: seconds.map(Duration::from_secs),
            message: String::new(),
        }
    }

    fn unauthorised() -> Error {
        Error::Unauthorised { attempt: "register".into(), status: 401, message: String::new() }
    }

    #[test]
    fn list_of_retriable_errors_has_the_longest_wait() {
        let several = Error::Several(vec![unavailable(None), unavailable(Some(3)), unavailable(Some(2))]);

        assert_eq!(several.retry(), Retry::After(Duration::from_secs(3)));
    }

    #[test]
    fn a_list_shows_every_failure_with_its_cause() {
        let refused = Error::Transport {
            attempt: "register a-value".into(),
            source: Arc::new(std::io::Error::other("connection refused")),
        };

        let shown = Error::Several(vec![refused, unauthorised()]).to_string();

        for part in ["2 subjects", "register a-value", "connection refused", "401"] {
            assert!(shown.contains(part), "{part} is missing in: {shown}");
        }
    }
}
