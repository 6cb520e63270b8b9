//! The `filter` of payroll companies: text in, a test of rows out.
//!
//! ```text
//! filter     = group { "or" group }
//! group      = comparison { "and" comparison }
//! comparison = field ("eq" | "ge" | "gt") (number | text | date | timestamp)
//! text       = "'" { character | "''" } "'"
//! ```
//!
//! - Names of fields are the document's, and like the words of the grammar they count by case: the document does not say
//!   that another spelling works, so none does.
//! - A date is its midnight, UTC. A timestamp has a zone (`Z` or `+02:00`) and up to seven digits of a second.
//! - Text compares by its characters' numbers, case included.
//! - The length is bounded; whatever is not understood is an error that says what would be.

use std::cmp::Ordering;

use super::render::{payroll_code, payroll_identifier, payroll_name};
use crate::{clock::Ticks, timestamp, world::PayrollRow};

/// The longest filter, in bytes.
const MAX_FILTER_BYTES: usize = 4_096;

/// A field of a payroll company.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PayrollField {
    Code,
    Name,
    Identifier,
    Updated,
}

impl PayrollField {
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

/// A filter that was understood: all comparisons of one of its groups hold.
#[derive(Debug)]
pub(super) struct PayrollFilter(Vec<Vec<FilterComparison>>);

#[derive(Debug)]
struct FilterComparison {
    field: PayrollField,
    /// Whether it holds for what the field is, seen from the value.
    holds: fn(Ordering) -> bool,
    value: FilterValue,
}

#[derive(Debug)]
enum FilterValue {
    /// A code has 31 bits, which a double holds exactly.
    Number(f64),
    Text(String),
    Moment(Ticks),
}

impl PayrollFilter {
    /// Reads a filter; the error is for the client. `timestamps` lets values have a time of day.
    pub(super) fn parse(text: &str, timestamps: bool) -> Result<Self, String> {
        if text.len() > MAX_FILTER_BYTES {
            return Err(format!("the filter has {} bytes, more than {MAX_FILTER_BYTES}", text.len()));
        }
        let mut rest = text;
        let (mut groups, mut group) = (Vec::new(), Vec::new());
        loop {
            group.push(FilterComparison::parse(&mut rest, timestamps)?);
            match word(&mut rest) {
                Some("and") => {}
                Some("or") => groups.push(std::mem::take(&mut group)),
                None => {
                    groups.push(group);
                    return Ok(Self(groups));
                }
                Some(word) => return Err(format!("{word:?} is not expected: expected and, or, or the end")),
            }
        }
    }

    /// Whether a payroll company passes.
    pub(super) fn passes(&self, seed: u64, row: &PayrollRow) -> bool {
        self.0.iter().any(|group| group.iter().all(|comparison| comparison.passes(seed, row)))
    }
}

impl FilterComparison {
    fn parse(rest: &mut &str, timestamps: bool) -> Result<Self, String> {
        let field = PayrollField::from_name(word(rest).ok_or("the filter ends early: expected a field")?)?;
        let holds = match word(rest) {
            Some("eq") => Ordering::is_eq,
            Some("ge") => Ordering::is_ge,
            Some("gt") => Ordering::is_gt,
            _ => return Err("expected eq, ge or gt after a field".to_owned()),
        };
        let value = match field {
            PayrollField::Name | PayrollField::Identifier => FilterValue::Text(quoted(rest)?),
            PayrollField::Code => {
                let word = word(rest).unwrap_or_default();
                // The parser of doubles would also take names such as "inf", exponents and a plus sign.
                let plain = word.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.'));
                let number = word.parse().ok().filter(|_| plain);
                FilterValue::Number(number.ok_or_else(|| format!("{word:?} is no number"))?)
            }
            PayrollField::Updated => FilterValue::Moment(moment(word(rest).unwrap_or_default(), timestamps)?),
        };
        Ok(Self { field, holds, value })
    }

    fn passes(&self, seed: u64, row: &PayrollRow) -> bool {
        let ordering = match &self.value {
            FilterValue::Number(value) => f64::from(payroll_code(seed, row.index)).partial_cmp(value),
            FilterValue::Moment(value) => Some(row.updated.cmp(value)),
            FilterValue::Text(value) if self.field == PayrollField::Name => {
                Some(payroll_name(seed, row).cmp(value))
            }
            FilterValue::Text(value) => Some(payroll_identifier(seed, row.index).cmp(value)),
        };
        ordering.is_some_and(self.holds)
    }
}

fn word<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let text = rest.trim_start();
    let (word, after) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    *rest = after;
    (!word.is_empty()).then_some(word)
}

/// The next text in single quotes; two quotes within are one.
fn quoted(rest: &mut &str) -> Result<String, String> {
    let mut after = rest.trim_start().strip_prefix('\'').ok_or("expected a text in single quotes")?;
    let mut text = String::new();
    loop {
        let (before, more) = after.split_once('\'').ok_or("a text has no closing quote")?;
        text.push_str(before);
        let Some(more) = more.strip_prefix('\'') else {
            *rest = more;
            return Ok(text);
        };
        text.push('\'');
        after = more;
    }
}

/// A bare date, or a full timestamp where those are understood.
fn moment(word: &str, timestamps: bool) -> Result<Ticks, String> {
    let expected = if timestamps { "YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ" } else { "YYYY-MM-DD" };
    let found = timestamp::date(word).or_else(|| timestamp::parse(word).filter(|_| timestamps));
    found.ok_or_else(|| format!("{word:?} is no date of the form {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::midnight;

    const SEED: u64 = 5;

    fn company(index: u32) -> PayrollRow {
        PayrollRow { index, updated: midnight(2026, 11, 15).unwrap(), revision: 0 }
    }

    fn passes(filter: &str, row: &PayrollRow) -> bool {
        PayrollFilter::parse(filter, true).unwrap_or_else(|why| panic!("{filter}: {why}")).passes(SEED, row)
    }

    #[test]
    fn dates_and_timestamps_compare_with_the_last_update() {
        let row = company(0);
        for (filter, expected) in [
            ("lastUpdate gt 2026-11-14", true),
            ("lastUpdate gt 2026-11-15", false),
            ("lastUpdate ge 2026-11-15", true),
            ("lastUpdate eq 2026-11-15", true),
            ("lastUpdate gt 2026-11-14T23:59:59.9999999Z", true),
            ("lastUpdate ge 2026-11-15T00:00:00.0000001Z", false),
            ("lastUpdate eq 2026-11-15T02:00:00+02:00", true),
            ("lastUpdate gt 2026-11-14 and lastUpdate gt 2026-11-15", false),
            ("lastUpdate gt 2026-11-15 or lastUpdate gt 2026-11-13 and lastUpdate gt 2026-11-14", true),
            ("lastUpdate gt 2026-11-14 or lastUpdate gt 2026-11-15 and lastUpdate gt 2026-11-15", true),
        ] {
            assert_eq!(passes(filter, &row), expected, "{filter}");
        }
    }

    #[test]
    fn texts_compare_by_case_and_a_doubled_quote_is_one() {
        // Among many names there is one with a quote in it.
        let row = (0..1_000).map(company).find(|row| payroll_name(SEED, row).contains('\'')).unwrap();
        let name = payroll_name(SEED, &row).replace('\'', "''");
        let identifier = payroll_identifier(SEED, row.index);
        for (filter, expected) in [
            (format!("companyName eq '{name}'"), true),
            (format!("companyName eq '{}'", name.to_uppercase()), false),
            (format!("companyName gt '{name}'"), false),
            (format!("companyName ge '{name}'"), true),
            (format!("companyName eq 'x' or identifierNumber eq '{identifier}'"), true),
        ] {
            assert_eq!(passes(&filter, &row), expected, "{filter}");
        }
    }

    #[test]
    fn a_filter_that_is_not_understood_is_refused_with_what_would_be() {
        for (filter, expected) in [
            ("", "expected a field"),
            ("lastUpdate", "expected eq, ge or gt"),
            ("lastUpdate gt", "no date of the form"),
            ("lastUpdate GT 2026-11-15", "expected eq, ge or gt"),
            ("lastupdate gt 2026-11-15", "expected companyCode, companyName, identifierNumber or lastUpdate"),
            ("lastUpdate gt '2026-11-15'", "no date of the form"),
            ("lastUpdate gt 2026-02-30", "no date of the form YYYY-MM-DD or"),
            ("lastUpdate gt 2026-11-15T09:00:00", "no date of the form"),
            ("companyCode eq inf", "no number"),
            ("companyCode eq 1e3", "no number"),
            ("companyName eq x", "text in single quotes"),
            ("companyName eq 'x''", "no closing quote"),
            ("companyCode eq 1 or", "expected a field"),
            ("companyCode eq 1 and", "expected a field"),
            ("companyCode eq 1 xor companyCode eq 2", "expected and, or, or the end"),
        ] {
            let refused = PayrollFilter::parse(filter, true).unwrap_err();

            assert!(refused.contains(expected), "{filter}: {refused}");
        }
        assert!(PayrollFilter::parse(&"x".repeat(5_000), true).unwrap_err().contains("more than 4096"));
    }
}
