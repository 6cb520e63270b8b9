//! The report on a topic that is not what it must be.

use std::fmt;

/// A topic that exists and does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Its name.
    pub topic: String,
    /// What it is.
    pub found: String,
    /// What it must be.
    pub wanted: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, found, wanted, remedy } = self;
        write!(f, "topic {topic} has {found} and must have {wanted}: {remedy}")
    }
}
