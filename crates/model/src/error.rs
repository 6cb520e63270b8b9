//! What can be wrong with plain data.

use super::{SchemaKind, is_printable};

/// Why a text, an object or a record was refused.
///
/// All of these are final: the same input gives the same answer, so whoever handles one treats it as
/// "never try again" and sends the input to the dead letters or the setting back to its author. This module
/// imports nothing of ours, hence the verdict is stated here and given by the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An id without a single character.
    #[error("{what} is empty; it must have at least one character")]
    EmptyId {
        /// Which id.
        what: &'static str,
    },
    /// A name that stands in none of our tables.
    #[error("unknown {what} `{given}`; use one of: {valid}")]
    UnknownName {
        /// What was looked up.
        what: &'static str,
        /// The text that was given, cut to a bearable length.
        given: String,
        /// Every name there is.
        valid: String,
    },
    /// A topic prefix that Kafka would refuse.
    #[error("topic prefix `{given}` {rule}; use at most {longest} of the characters a-z A-Z 0-9 . _ -")]
    Prefix {
        /// The prefix, cut to a bearable length.
        given: String,
        /// The rule it breaks.
        rule: &'static str,
        /// Characters a prefix may have, so that the longest topic name is still legal.
        longest: usize,
    },
    /// A sequence version that is not a number.
    #[error("sequence version `{given}` is not a number; it must be digits only")]
    NotANumber {
        /// The text, cut to a bearable length.
        given: String,
    },
    /// A time that is not ISO 8601.
    #[error("`{given}` is not a time; it must look like 2024-05-06T07:08:09.1234567Z")]
    NotATime {
        /// The text, cut to a bearable length.
        given: String,
    },
    /// A version text as our headers carry it, but broken.
    #[error("version `{given}` is neither digits, nor digits or a time and a content hash joined by `#`")]
    NotAVersion {
        /// The text, cut to a bearable length.
        given: String,
    },
    /// A trace parent that breaks the W3C format.
    #[error("traceparent {rule}; it must look like 00-<32 hex>-<16 hex>-<2 hex>, lower case, ids not zero")]
    Traceparent {
        /// The rule it breaks.
        rule: &'static str,
    },
    /// A key text that our encoding never makes.
    #[error("key part `{given}` is not percent-encoded as keys are")]
    KeyPart {
        /// The text, cut to a bearable length.
        given: String,
    },
    /// The provider sent something other than a JSON object.
    #[error("parse {schema}: the JSON is not an object")]
    NotAnObject {
        /// What it should have become.
        schema: SchemaKind,
    },
    /// The provider sent something that is not JSON. Where is told, what is not: bodies stay out of logs.
    #[error("parse {schema}: broken JSON at line {line}, column {column}")]
    Malformed {
        /// What it should have become.
        schema: SchemaKind,
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 at the start of a line.
        column: usize,
    },
    /// More notifications in one delivery than anyone would send.
    #[error("parse InvoicingEvent: {given} notifications in one delivery; at most {most} are taken")]
    TooManyNotifications {
        /// How many there are.
        given: usize,
        /// How many there may be.
        most: usize,
    },
    /// A record without what its key or topic is made of.
    #[error("place {schema} under its key: {member} is missing or not usable")]
    Unplaceable {
        /// Kind of the record.
        schema: SchemaKind,
        /// What the provider should have sent.
        member: &'static str,
    },
    /// A record whose version has a type that versions do not have.
    #[error("compare the version of {schema}: {member} has a type that no version has; it must be text")]
    Unversioned {
        /// Kind of the record.
        schema: SchemaKind,
        /// Where the version stands.
        member: &'static str,
    },
    /// A tombstone for something that is never deleted.
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

/// The start of a refused text: enough to recognise it, never a whole body, and nothing that controls a terminal.
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
    fn a_refused_text_is_shown_short_and_printable() {
        assert_eq!(excerpt("12\u{1b}[2J3\n4\u{202e}"), "12 [2J3 4 ");
        assert_eq!(excerpt(&"ñ".repeat(60)).chars().count(), 60);
        assert_eq!(excerpt(&"ñ".repeat(61)), format!("{}…", "ñ".repeat(60)));
    }
}
