//! Numbers, dates and timestamps within a filter.

use crate::simulator::clock::{SECOND, Ticks, midnight};

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
    let (day, time) = word.split_once('T').map_or((word, None), |(day, time)| (day, Some(time)));
    if time.is_some() && !timestamps {
        return Err(refused());
    }
    let day = date(day).ok_or_else(refused)?;
    match time {
        None => Ok(day),
        Some(time) => time_of_day(time).map(|time| Ticks(day.0 + time)).ok_or_else(refused),
    }
}

fn date(text: &str) -> Option<Ticks> {
    let (year, rest) = text.split_once('-')?;
    let (month, day) = rest.split_once('-')?;
    midnight(fixed_digits(year, 4)?, fixed_digits(month, 2)?, fixed_digits(day, 2)?)
}

/// 100 ns since midnight UTC of `hh:mm:ss`, up to seven digits of a second, and a zone.
fn time_of_day(text: &str) -> Option<i64> {
    let zone_at = text.find(['Z', '+', '-'])?;
    let (time, zone) = text.split_at(zone_at);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let (hour, rest) = time.split_once(':')?;
    let (minute, second) = rest.split_once(':')?;
    let (hour, minute, second) = (fixed_digits(hour, 2)?, fixed_digits(minute, 2)?, fixed_digits(second, 2)?);
    if hour > 23 || minute > 59 || second > 59 || fraction.len() > 7 {
        return None;
    }
    let scale = 10_i64.pow(7 - u32::try_from(fraction.len()).ok()?);
    let fraction = fixed_digits(fraction, fraction.len())? * scale;
    let of_day = (hour * 3_600 + minute * 60 + second) * SECOND + fraction;
    Some(of_day - zone_offset(zone)? * SECOND)
}

/// Seconds a zone is ahead of UTC.
fn zone_offset(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hour, minute) = zone.get(1..)?.split_once(':')?;
    let (hour, minute) = (fixed_digits(hour, 2)?, fixed_digits(minute, 2)?);
    (hour <= 14 && minute <= 59).then_some(sign * (hour * 3_600 + minute * 60))
}

fn fixed_digits(text: &str, width: usize) -> Option<i64> {
    let plain = text.len() == width && width > 0 && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}
