//! The `filter` of payroll companies: text in, a test of rows out.
//!
//! ```text
//! any     = all { "or" all }
//! all     = single { "and" single }
//! single  = "(" any ")" | "contains" "(" field "," text ")" | field ("eq" | "ge" | "gt") value
//! value   = number | text | date | timestamp | "null"
//! text    = "'" { character | "''" } "'"
//! ```
//!
//! - Names of fields are the document's, and like the words of the grammar they count by case: the document does not say
//!   that another spelling works, so none does.
//! - A date is its midnight, UTC. A timestamp has a zone (`Z` or `+02:00`) and up to seven digits of a second.
//! - Text compares by its characters' numbers, case included. No field is ever null, so a comparison with null is false.
//! - Length and depth are bounded; whatever is not understood is an error that says what would be.

mod literal;
mod parse;

use super::render::{payroll_code, payroll_identifier, payroll_name};
use crate::{clock::Ticks, world::PayrollRow};

/// A field of a payroll company.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// `companyCode`.
    Code,
    /// `companyName`.
    Name,
    /// `identifierNumber`.
    Identifier,
    /// `lastUpdate`.
    Updated,
}

impl Field {
    /// By its exact name.
    pub(super) fn from_name(name: &str) -> Result<Self, String> {
        match name {
            "companyCode" => Ok(Self::Code),
            "companyName" => Ok(Self::Name),
            "identifierNumber" => Ok(Self::Identifier),
            "lastUpdate" => Ok(Self::Updated),
            name => Err(format!(
                "field {name:?} is not known: expected companyCode, companyName, identifierNumber or lastUpdate"
            )),
        }
    }
}

/// A filter that was understood.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filter {
    /// All of these hold.
    All(Vec<Self>),
    /// One of these holds.
    Any(Vec<Self>),
    /// `companyCode` against a number. A code has 31 bits, which a double holds exactly.
    Code(Operator, f64),
    /// `lastUpdate` against a moment.
    Updated(Operator, Ticks),
    /// `companyName` against text.
    Name(Test),
    /// `identifierNumber` against text.
    Identifier(Test),
    /// A field against null.
    Never,
}

/// How a text is tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    /// By an operator.
    Compare(Operator, String),
    /// It occurs within.
    Contains(String),
}

/// An operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    /// `eq`.
    Equal,
    /// `ge`.
    GreaterOrEqual,
    /// `gt`.
    Greater,
}

impl Filter {
    /// Reads a filter; the error is for the client. `timestamps` lets values have a time of day.
    pub(super) fn parse(text: &str, timestamps: bool) -> Result<Self, String> {
        parse::parse(text, timestamps)
    }

    /// Whether a payroll company passes.
    pub(super) fn passes(&self, seed: u64, row: &PayrollRow) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.passes(seed, row)),
            Self::Any(parts) => parts.iter().any(|part| part.passes(seed, row)),
            Self::Code(operator, value) => {
                operator.holds(f64::from(payroll_code(seed, row.index)).partial_cmp(value))
            }
            Self::Updated(operator, value) => operator.holds(Some(row.updated.cmp(value))),
            Self::Name(test) => test.passes(&payroll_name(seed, row)),
            Self::Identifier(test) => test.passes(&payroll_identifier(seed, row.index)),
            Self::Never => false,
        }
    }
}

impl Test {
    fn passes(&self, text: &str) -> bool {
        match self {
            Self::Compare(operator, value) => operator.holds(Some(text.cmp(value))),
            Self::Contains(part) => text.contains(part.as_str()),
        }
    }
}

impl Operator {
    fn from_name(name: &str) -> Result<Self, String> {
        match name {
            "eq" => Ok(Self::Equal),
            "ge" => Ok(Self::GreaterOrEqual),
            "gt" => Ok(Self::Greater),
            name => Err(format!("operator {name:?} is not understood: expected eq, ge or gt")),
        }
    }

    fn holds(self, ordering: Option<std::cmp::Ordering>) -> bool {
        ordering.is_some_and(|ordering| match self {
            Self::Equal => ordering.is_eq(),
            Self::GreaterOrEqual => ordering.is_ge(),
            Self::Greater => ordering.is_gt(),
        })
    }
}

#[cfg(test)]
mod tests;
