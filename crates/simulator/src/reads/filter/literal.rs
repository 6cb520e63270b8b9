//! Numbers, dates and timestamps within a filter.

use crate::{clock::Ticks, timestamp};

/// A number in digits, with a sign and a fraction at most.
pub(super) fn number(word: &str) -> Option<f64> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    // No exponents and no names such as "inf", which the parser of doubles would take.
    (plain(whole) && plain(fraction)).then(|| word.parse().ok()).flatten()
}

/// A bare date, or a full timestamp where those are understood.
pub(super) fn moment(word: &str, timestamps: bool) -> Result<Ticks, String> {
    let expected = if timestamps { "YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ" } else { "YYYY-MM-DD" };
    let refused = || format!("{word:?} is no date of the form {expected}");
    let found = match timestamp::date(word) {
        None if timestamps => timestamp::parse(word),
        date => date,
    };
    found.ok_or_else(refused)
}
