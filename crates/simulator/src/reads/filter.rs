//! The `filter` of payroll companies: comparisons of `companyCode` or `lastUpdate`, joined by `or`.
//!
//! ```text
//! filter     = comparison { "or" comparison }
//! comparison = field ("eq" | "ge" | "gt") (number | date | timestamp)
//! ```
//!
//! - Names and words are case-sensitive, because the document does not say that another spelling works.
//! - A date is its midnight, UTC. A timestamp has a zone (`Z` or `+02:00`) and up to seven digits of a second.
//! - The length is bounded; an error says what was expected.

use std::cmp::Ordering;

use super::render::payroll_code;
use crate::{clock::Ticks, timestamp, world::PayrollRow};

const MAX_FILTER_BYTES: usize = 4_096;

/// A parsed filter: a row passes if one of its comparisons holds.
#[derive(Debug)]
pub(super) struct PayrollFilter(Vec<FilterComparison>);

#[derive(Debug)]
struct FilterComparison {
    /// Whether it holds, given how the field compares with the value.
    holds: fn(Ordering) -> bool,
    value: FilterValue,
}

#[derive(Debug)]
enum FilterValue {
    Code(u32),
    Updated(Ticks),
}

impl PayrollFilter {
    /// Parses a filter. With `timestamps`, a value may have a time of day.
    pub(super) fn parse(text: &str, timestamps: bool) -> Result<Self, String> {
        if text.len() > MAX_FILTER_BYTES {
            return Err(format!("the filter has {} bytes, more than {MAX_FILTER_BYTES}", text.len()));
        }
        let mut words = text.split_whitespace();
        let mut comparisons = Vec::new();
        loop {
            comparisons.push(FilterComparison::parse(&mut words, timestamps)?);
            match words.next() {
                Some("or") => {}
                None => return Ok(Self(comparisons)),
                Some(word) => return Err(format!("{word:?} is not expected: expected or, or the end")),
            }
        }
    }

    /// Whether a payroll company passes.
    pub(super) fn passes(&self, seed: u64, row: &PayrollRow) -> bool {
        self.0.iter().any(|comparison| {
            (comparison.holds)(match comparison.value {
                FilterValue::Code(code) => payroll_code(seed, row.index).cmp(&code),
                FilterValue::Updated(moment) => row.updated.cmp(&moment),
            })
        })
    }
}

impl FilterComparison {
    fn parse<'a>(words: &mut impl Iterator<Item = &'a str>, timestamps: bool) -> Result<Self, String> {
        let field = words.next().unwrap_or_default();
        let holds = match words.next() {
            Some("eq") => Ordering::is_eq,
            Some("ge") => Ordering::is_ge,
            Some("gt") => Ordering::is_gt,
            _ => return Err("expected eq, ge or gt after a field".to_owned()),
        };
        let word = words.next().unwrap_or_default();
        let value = match field {
            "companyCode" => {
                FilterValue::Code(word.parse().map_err(|_| format!("{word:?} is not a company code"))?)
            }
            "lastUpdate" => FilterValue::Updated(moment(word, timestamps)?),
            _ => return Err(format!("field {field:?} is not known: expected companyCode or lastUpdate")),
        };
        Ok(Self { holds, value })
    }
}

/// A date, or a timestamp where those are accepted.
fn moment(word: &str, timestamps: bool) -> Result<Ticks, String> {
    let expected = if timestamps { "YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ" } else { "YYYY-MM-DD" };
    let found = timestamp::date(word).or_else(|| timestamp::parse(word).filter(|_| timestamps));
    found.ok_or_else(|| format!("{word:?} is no date of the form {expected}"))
}
