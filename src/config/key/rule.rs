//! Rules for values, and how a violation is reported.

use std::{borrow::Cow, fmt};

use super::Type;

/// Why a value breaks its rule. It can only be made from constant texts and declared names, never from the value: text set under
/// the wrong key may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation(Cow<'static, str>);

impl Violation {
    /// Adds the declared name that the value is probably a misspelling of.
    pub(crate) fn suggesting(self, name: &'static str) -> Self {
        Self(format!("{self}; did you mean {name}?").into())
    }

    /// Adds the list of declared names.
    pub(crate) fn listing(self, names: impl Iterator<Item = &'static str>) -> Self {
        let names: Vec<&str> = names.collect();
        Self(format!("{self}; known are {}", names.join(", ")).into())
    }
}

impl From<&'static str> for Violation {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A rule beyond the type. For a list it holds for each item.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    /// No further rule.
    Any,
    /// A whole number in this range, bounds included.
    Range(i64, i64),
    /// A replication factor or partition count: a positive number, or -1 for the broker's default.
    Count,
    /// A number above zero.
    Positive,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A secret whose length in bytes is in this range, bounds included.
    Size(usize, usize),
    /// The path of a regular file that can be opened.
    File,
    /// Any other rule.
    Custom {
        /// What the value must be, as it follows "must be".
        says: &'static str,
        /// How to correct a violation; empty for the default text.
        remedy: &'static str,
        /// `Err` says what is wrong.
        check: fn(&str) -> Result<(), Violation>,
    },
}

impl Rule {
    /// A rule with its own check. `says` is what the value must be, as it follows "must be"; the `Err` of `check` says what is
    /// wrong.
    pub(crate) const fn custom(says: &'static str, check: fn(&str) -> Result<(), Violation>) -> Self {
        Self::Custom { says, remedy: "", check }
    }

    /// Replaces the default text about how to correct a violation.
    pub(crate) const fn remedy(self, remedy: &'static str) -> Self {
        match self {
            Self::Custom { says, check, .. } => Self::Custom { says, remedy, check },
            other => other,
        }
    }

    /// The rule in words, as they follow "must be"; empty for [`Rule::Any`] on text.
    pub(crate) fn describe(&self, kind: Type) -> String {
        match self {
            Self::Any => match kind {
                Type::Boolean => "true or false".to_owned(),
                Type::Int | Type::Short | Type::Long => "a whole number".to_owned(),
                Type::Double => "a number".to_owned(),
                Type::String | Type::List | Type::Class | Type::Password => String::new(),
            },
            Self::Range(low, i64::MAX) => format!("a whole number of at least {low}"),
            Self::Range(low, high) if low == high => format!("{low}"),
            Self::Range(low, high) => format!("a whole number from {low} to {high}"),
            Self::Count => "a whole number of at least 1, or -1 for the broker's default".to_owned(),
            Self::Positive => "a number above 0".to_owned(),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::Size(low, usize::MAX) => format!("at least {low} bytes long"),
            Self::Size(low, high) => format!("{low} to {high} bytes long"),
            Self::File => "the path of a readable file".to_owned(),
            Self::Custom { says, .. } => (*says).to_owned(),
        }
    }

    /// `Err` says what the value must be.
    pub(super) fn check(&self, value: &str) -> Result<(), String> {
        let must = || format!("must be {}", self.describe(Type::String));
        let number = || value.parse::<i64>().map_err(|_| must());
        let sound = match self {
            Self::Any => true,
            Self::Range(low, high) => (*low..=*high).contains(&number()?),
            Self::Count => matches!(number()?, -1 | 1..=i64::MAX),
            Self::Positive => value.parse::<f64>().is_ok_and(|number| number.is_finite() && number > 0.0),
            Self::OneOf(words) => words.contains(&value),
            Self::Size(low, high) => (*low..=*high).contains(&value.len()),
            Self::File => {
                let unreadable = |error: std::io::Error| format!("{} ({})", must(), error.kind());
                base::durable::open_regular(std::path::Path::new(value)).map(|_| true).map_err(unreadable)?
            }
            Self::Custom { check, .. } => {
                check(value).map_err(|detail| format!("{} ({detail})", must()))?;
                true
            }
        };
        if sound { Ok(()) } else { Err(must()) }
    }
}

/// `Err` says what the type demands.
pub(super) fn check_type(kind: Type, value: &str) -> Result<(), String> {
    let sound = match kind {
        Type::Boolean => value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false"),
        Type::Int => value.parse::<i32>().is_ok(),
        Type::Short => value.parse::<i16>().is_ok(),
        Type::Long => value.parse::<i64>().is_ok(),
        Type::Double => value.parse::<f64>().is_ok_and(f64::is_finite),
        Type::String | Type::List | Type::Class | Type::Password => true,
    };
    let must = match kind {
        Type::Int => "a whole number of 32 bits",
        Type::Short => "a whole number of 16 bits",
        Type::Long => "a whole number of 64 bits",
        Type::Double => "a number",
        _ => "true or false",
    };
    if sound { Ok(()) } else { Err(format!("must be {must}")) }
}
