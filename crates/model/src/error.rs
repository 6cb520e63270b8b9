//! Errors of plain data.

use super::{SchemaKind, is_printable};

/// Why a text, an object or a record was refused.
///
/// All are permanent, since the same input gives the same result: callers never retry, but write a dead letter or report the
/// wrong setting. This crate imports none of ours, so it has no `retry()`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An empty id.
    #[error("{what} is empty; it must have at least one character")]
    EmptyId {
        /// Which id.
        what: &'static str,
    },
    /// An unknown name.
    #[error("unknown {what} `{given}`; use one of: {valid}")]
    UnknownName {
        /// What was looked up.
        what: &'static str,
        /// The given text, shortened.
        given: String,
        /// The valid names.
        valid: String,
    },
    /// A topic prefix that Kafka would refuse.
    #[error("topic prefix `{given}` {rule}; use at most {longest} of the characters a-z A-Z 0-9 . _ -")]
    Prefix {
        /// The prefix, shortened.
        given: String,
        /// The rule it breaks.
        rule: &'static str,
        /// Maximum length of a prefix with which the longest topic name is legal.
        longest: usize,
    },
    /// A sequence version that is not a number.
    #[error("sequence version `{given}` is not a number; it must be digits only")]
    NotANumber {
        /// The text, shortened.
        given: String,
    },
    /// A time that is not ISO 8601.
    #[error("`{given}` is not a time; it must look like 2024-05-06T07:08:09.1234567Z")]
    NotATime {
        /// The text, shortened.
        given: String,
    },
    /// A malformed version header.
    #[error("version `{given}` is neither digits, nor digits or a time and a content hash joined by `#`")]
    NotAVersion {
        /// The text, shortened.
        given: String,
    },
    /// A trace parent that breaks the W3C format.
    #[error("traceparent {rule}; it must look like 00-<32 hex>-<16 hex>-<2 hex>, lower case, ids not zero")]
    Traceparent {
        /// The rule it breaks.
        rule: &'static str,
    },
    /// A key that our encoding never produces.
    #[error("key part `{given}` is not percent-encoded as keys are")]
    KeyPart {
        /// The text, shortened.
        given: String,
    },
    /// The provider sent something other than a JSON object.
    #[error("parse {schema}: the JSON is not an object")]
    NotAnObject {
        /// The type it was parsed as.
        schema: SchemaKind,
    },
    /// The provider sent invalid JSON. The error has the position but not the content, which must not reach logs.
    #[error("parse {schema}: broken JSON at line {line}, column {column}")]
    Malformed {
        /// The type it was parsed as.
        schema: SchemaKind,
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 at the start of a line.
        column: usize,
    },
    /// Too many notifications in one delivery.
    #[error("parse InvoicingEvent: {given} notifications in one delivery; at most {most} are taken")]
    TooManyNotifications {
        /// How many there are.
        given: usize,
        /// How many there may be.
        most: usize,
    },
    /// A record without a member that its key or topic needs.
    #[error("place {schema} under its key: {member} is missing or not usable")]
    Unplaceable {
        /// Kind of the record.
        schema: SchemaKind,
        /// The missing member.
        member: &'static str,
    },
    /// A record whose version has the wrong type.
    #[error("compare the version of {schema}: {member} has the wrong type; it must be text")]
    Unversioned {
        /// Kind of the record.
        schema: SchemaKind,
        /// The member with the version.
        member: &'static str,
    },
    /// A tombstone for a resource that is never deleted.
    #[error(
        "delete a record of {resource}: the provider only disables these, so no tombstone may be written"
    )]
    NeverDeleted {
        /// The resource.
        resource: &'static str,
    },
}

impl Error {
    /// Stable name of the kind of error, for dead letters.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "model::Error::Malformed",
            Self::NotAnObject { .. } => "model::Error::NotAnObject",
            Self::TooManyNotifications { .. } => "model::Error::TooManyNotifications",
            Self::Unplaceable { .. } => "model::Error::Unplaceable",
            Self::Unversioned { .. } => "model::Error::Unversioned",
            _ => "model::Error",
        }
    }
}

/// The start of a refused text: enough to recognize it, never a whole body, without terminal control characters.
pub(super) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut letters = text.chars();
    let clean = |letter: char| if is_printable(letter) { letter } else { ' ' };
    let mut start: String = letters.by_ref().take(LONGEST).map(clean).collect();
    if letters.next().is_some() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_short_and_printable() {
        assert_eq!(excerpt("12\u{1b}[2J3\n4\u{202e}"), "12 [2J3 4 ");
        assert_eq!(excerpt(&"ñ".repeat(60)).chars().count(), 60);
        assert_eq!(excerpt(&"ñ".repeat(61)), format!("{}…", "ñ".repeat(60)));
    }
}
