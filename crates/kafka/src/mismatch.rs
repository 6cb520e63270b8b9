//! A topic whose settings differ from the required ones.

use std::fmt;

/// A topic that exists with other settings than required.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Topic name.
    pub topic: String,
    /// Actual setting.
    pub found: String,
    /// Required setting.
    pub wanted: String,
    /// Remedy for the operator.
    pub remedy: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, found, wanted, remedy } = self;
        write!(f, "topic {topic} has {found} and must have {wanted}: {remedy}")
    }
}
