//! Dates and timestamps, read from text.

use super::clock::{SECOND, Ticks, midnight};

/// `YYYY-MM-DDThh:mm:ss` with up to seven digits of a second and a zone: RFC 3339 as far as a tick can say it.
pub fn parse(text: &str) -> Option<Ticks> {
    let (day, time) = text.split_once('T')?;
    Some(Ticks(date(day)?.0 + time_of_day(time)?))
}

/// Midnight of `YYYY-MM-DD`.
pub fn date(text: &str) -> Option<Ticks> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_read_as_it_is_written_and_in_any_zone() {
        for (text, written) in [
            ("2026-11-15T09:00:00Z", "2026-11-15T09:00:00.0000000Z"),
            ("2026-11-15T09:00:00.1234567Z", "2026-11-15T09:00:00.1234567Z"),
            ("2026-11-15T00:30:00.5+01:00", "2026-11-14T23:30:00.5000000Z"),
            ("2026-12-31T23:30:00-01:00", "2027-01-01T00:30:00.0000000Z"),
        ] {
            assert_eq!(parse(text).map(Ticks::iso).as_deref(), Some(written), "{text}");
        }
        for text in
            ["", "now", "2026-11-15", "2026-11-15T09:00:00", "2026-02-29T00:00:00Z", "2026-11-15T24:00:00Z"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
