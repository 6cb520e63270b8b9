//! Parsing of dates and timestamps.

use time::{Date, OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

use super::clock::{Ticks, midnight};

const DAY: &[BorrowedFormatItem<'_>] = format_description!(version = 2, "[year]-[month]-[day]");
const MOMENT: &[BorrowedFormatItem<'_>] = format_description!(
    version = 2,
    "[year]-[month]-[day]T[hour]:[minute]:[second][optional [.[subsecond]]][offset_hour sign:mandatory]:[offset_minute]"
);

/// `YYYY-MM-DDThh:mm:ss` with a zone and up to seven digits of a second: RFC 3339 in units of 100 ns.
pub fn parse(text: &str) -> Option<Ticks> {
    let (day, _) = text.split_once('T')?;
    date(day)?;
    let zoned = text.strip_suffix('Z').map(|utc| format!("{utc}+00:00"));
    let moment = OffsetDateTime::parse(zoned.as_deref().unwrap_or(text), MOMENT).ok()?;
    let fits = moment.nanosecond() % 100 == 0 && moment.offset().whole_hours().abs() <= 14;
    fits.then(|| i64::try_from(moment.unix_timestamp_nanos() / 100).ok().map(Ticks)).flatten()
}

/// Midnight of `YYYY-MM-DD`.
pub fn date(text: &str) -> Option<Ticks> {
    // The library also accepts years with a sign.
    let date = Date::parse(text, DAY).ok().filter(|_| text.len() == 10)?;
    midnight(date.year(), date.month().into(), date.day())
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
