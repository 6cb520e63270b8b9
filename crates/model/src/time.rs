//! The provider's times: ISO 8601 text and counts of 100 nanoseconds.
//!
//! A [`Moment`] has nanosecond precision, since the provider's `version` has seven fractional digits and lower precision would
//! lose their order. Parsed fields of our schemas hold microseconds, rounded down, beside the original text.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use time::{
    PrimitiveDateTime, UtcDateTime, UtcOffset, format_description::BorrowedFormatItem,
    macros::format_description,
};

/// A moment in UTC, in the years -9999 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(UtcDateTime);

/// Date and time to the second.
const SECONDS: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year]-[month]-[day]T[hour]:[minute]:[second]");
const OFFSET: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[offset_hour sign:mandatory]:[offset_minute]");
/// An HTTP date after the day of the week (IMF-fixdate).
const HTTP: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
/// Ticks of 100 nanoseconds from 0001-01-01, where .NET starts to count, to 1970.
const NET_EPOCH: i64 = 621_355_968_000_000_000;
/// Ticks from 1601-01-01, where Windows file times start, to 1970.
const WINDOWS_EPOCH: i64 = 116_444_736_000_000_000;

impl Moment {
    /// The current time, by this machine's clock.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Parses `2024-05-06T07:08:09`, with up to nine fractional digits, then `Z`, an offset such as `+02:00`, or nothing, which
    /// means UTC according to the provider's documentation. `None` for anything else and for dates that do not exist.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (seconds, rest) = text.split_at_checked(19)?;
        let (nanoseconds, zone) = fraction(rest)?;
        let local = PrimitiveDateTime::parse(seconds, SECONDS).ok()?.replace_nanosecond(nanoseconds).ok()?;
        let offset = match zone {
            "" | "Z" => UtcOffset::UTC,
            // The library also accepts offsets of a day and more.
            zone => UtcOffset::parse(zone, OFFSET).ok().filter(|offset| offset.whole_hours().abs() < 24)?,
        };
        let ahead = time::Duration::seconds(offset.whole_seconds().into());
        // The calendar ends with the year 9999; later times become its last moment.
        Some(Self(local.as_utc().checked_sub(ahead).unwrap_or(UtcDateTime::MAX)))
    }

    /// Parses `Sun, 06 Nov 1994 08:49:37 GMT`. A leap second counts as second 59.
    #[must_use]
    pub fn parse_http(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once(", ")?;
        PrimitiveDateTime::parse(&rest.replace(":60 GMT", ":59 GMT"), HTTP)
            .ok()
            .map(|moment| Self(moment.as_utc()))
    }

    /// Parses a count of 100 nanoseconds with 18 digits. The provider does not document its epoch; for dates within a hundred years
    /// of today a count from year 1 starts with 6 and one from 1601 with 1, so the first digit decides. `None` for any other
    /// count.
    #[must_use]
    pub fn from_ticks(ticks: i64) -> Option<Self> {
        let epoch = match ticks / 100_000_000_000_000_000 {
            6 => NET_EPOCH,
            1 => WINDOWS_EPOCH,
            _ => return None,
        };
        UtcDateTime::from_unix_timestamp_nanos(i128::from(ticks - epoch) * 100).ok().map(Self)
    }

    /// From microseconds since 1970, clamped to the calendar.
    #[must_use]
    pub fn from_micros(micros: i64) -> Self {
        let nearest = if micros < 0 { UtcDateTime::MIN } else { UtcDateTime::MAX };
        Self(UtcDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).unwrap_or(nearest))
    }

    /// Microseconds since 1970, rounded down.
    #[must_use]
    pub fn micros(self) -> i64 {
        self.0.unix_timestamp() * 1_000_000 + i64::from(self.0.microsecond())
    }

    /// Month and day, both from 1.
    #[must_use]
    pub fn month_and_day(self) -> (u8, u8) {
        (self.0.month().into(), self.0.day())
    }
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |before| -before),
        };
        Self::from_micros(micros)
    }
}

/// In the format of [`Moment::parse`], to the millisecond: `2024-05-06T07:08:09.123Z`.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.0.to_calendar_date();
        let (hour, minute, second, milliseconds) = self.0.as_hms_milli();
        let month = u8::from(month);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
    }
}

/// Splits the fraction of a second, in nanoseconds, from the zone after it.
fn fraction(text: &str) -> Option<(u32, &str)> {
    let Some(text) = text.strip_prefix('.') else { return Some((0, text)) };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if !(1..=9).contains(&digits) {
        return None;
    }
    let (digits, zone) = text.split_at(digits);
    let missing = 9 - u32::try_from(digits.len()).ok()?;
    Some((digits.parse::<u32>().ok()? * 10_u32.pow(missing), zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Option<i64> {
        Moment::parse(text).map(Moment::micros)
    }

    #[test]
    fn known_times_are_parsed() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.000001Z", 1),
            ("1969-12-31T23:59:59.999999Z", -1),
            ("2000-02-29T12:00:00Z", 951_825_600_000_000),
            ("2001-09-09T01:46:40Z", 1_000_000_000_000_000),
            ("2024-02-29T23:59:59Z", 1_709_251_199_000_000),
            ("2024-05-06T07:08:09.1234567Z", 1_714_979_289_123_456),
            ("2024-05-06T07:08:09.123456789", 1_714_979_289_123_456),
            ("2024-05-06T09:08:09.123+02:00", 1_714_979_289_123_000),
            ("2024-05-05T21:38:09-09:30", 1_714_979_289_000_000),
            ("2038-01-19T03:14:08Z", 2_147_483_648_000_000),
            ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
            ("9999-12-31T23:59:59-01:00", 253_402_300_799_999_999),
        ] {
            assert_eq!(micros(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn system_time_is_counted_from_1970() {
        use std::time::Duration;

        for (time, expected) in [
            (UNIX_EPOCH, 0),
            (UNIX_EPOCH + Duration::from_micros(1_709_251_199_000_001), 1_709_251_199_000_001),
            (UNIX_EPOCH - Duration::from_millis(1), -1_000),
        ] {
            assert_eq!(Moment::from(time).micros(), expected, "{time:?}");
        }
        assert!(Moment::now() > Moment::parse("2024-01-01T00:00:00Z").unwrap());
    }

    #[test]
    fn display_parses_back() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1_000, "1969-12-31T23:59:59.999Z"),
            (1_709_251_199_123_000, "2024-02-29T23:59:59.123Z"),
            (253_402_300_799_000_000, "9999-12-31T23:59:59.000Z"),
        ] {
            let moment = Moment::from_micros(micros);

            assert_eq!(moment.to_string(), expected);
            assert_eq!(Moment::parse(expected), Some(moment));
        }
    }

    #[test]
    fn malformed_time_is_none() {
        for text in [
            "",
            "yesterday",
            "2024-05-06",
            "2024-05-06 07:08:09Z",
            "2024-05-06T07:08Z",
            "2024-05-06T07:08:09.Z",
            "2024-05-06T07:08:09.1234567890Z",
            "2024-05-06T07:08:09ZZ",
            "2024-05-06T07:08:09+0200",
            "2024-05-06T07:08:09+24:00",
            "2024-05-06T07:08:09é",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-04-31T00:00:00Z",
            "2023-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2024-05-06T24:00:00Z",
            "2024-05-06T07:60:00Z",
            "2024-05-06T07:08:60Z",
            "+024-05-06T07:08:09Z",
            "06/05/2024 07:08:09",
            "２０24-05-06T07:08:09Z",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }

    #[test]
    fn seven_fractional_digits_keep_their_order() {
        let earlier = Moment::parse("2024-05-06T07:08:09.1234567Z");
        let later = Moment::parse("2024-05-06T07:08:09.1234568Z");

        assert!(earlier < later);
        assert_eq!(earlier.map(Moment::micros), later.map(Moment::micros));
    }

    #[test]
    fn first_digit_decides_the_epoch_of_ticks() {
        let expected = Moment::parse("2024-05-06T07:08:09.1234567Z");

        let net = Moment::from_ticks(638_505_760_891_234_567);
        let windows = Moment::from_ticks(133_594_528_891_234_567);

        assert_eq!(net, expected);
        assert_eq!(windows, expected);
        for other in [0, -1, 1_714_979_289_123, 738_505_760_891_234_567, 63_850_576_089_123_456, i64::MAX] {
            assert_eq!(Moment::from_ticks(other), None, "{other}");
        }
    }
}
