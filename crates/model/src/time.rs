//! Moments as the provider writes them: ISO 8601 text and counts of 100 nanoseconds.
//!
//! A [`Moment`] is exact to the nanosecond, since the provider's `version` has seven fractional digits and a
//! millisecond type would lose their order. Typed fields of our schemas hold microseconds, rounded down; the
//! text stands beside them.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

/// A moment in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Since 1970; negative before.
    seconds: i64,
    /// Within the second, below one billion.
    nanoseconds: u32,
}

/// Ticks of 100 nanoseconds from 0001-01-01, where .NET starts to count, to 1970.
const NET_EPOCH: i64 = 621_355_968_000_000_000;
/// Ticks from 1601-01-01, where Windows file times start, to 1970.
const WINDOWS_EPOCH: i64 = 116_444_736_000_000_000;
const TICKS_PER_SECOND: i64 = 10_000_000;

impl Moment {
    /// The moment of asking, by the clock of this machine.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Reads `2024-05-06T07:08:09`, with up to nine fractional digits, then `Z`, an offset such as `+02:00`,
    /// or nothing, which means UTC because the provider's documents say its times are. Anything else is
    /// `None`, and so is a date that does not exist.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let (time, rest) = rest.strip_prefix('T')?.split_at_checked(8)?;
        let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
        let exists = (1..=12).contains(&month)
            && (1..=days_of_month(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !exists {
            return None;
        }
        let (nanoseconds, zone) = fraction(rest)?;
        let local = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
        Some(Self { seconds: local - offset(zone)?, nanoseconds })
    }

    /// Reads a count of 100 nanoseconds with 18 digits. The provider does not say where it starts to count;
    /// for any date of the last and the next hundred years a count from year 1 starts with 6 and one from
    /// 1601 with 1, so the first digit tells. Any other count is `None`.
    #[must_use]
    pub fn from_ticks(ticks: i64) -> Option<Self> {
        let epoch = match ticks / 100_000_000_000_000_000 {
            6 => NET_EPOCH,
            1 => WINDOWS_EPOCH,
            _ => return None,
        };
        let since = ticks - epoch;
        let nanoseconds = u32::try_from(since.rem_euclid(TICKS_PER_SECOND) * 100).ok()?;
        Some(Self { seconds: since.div_euclid(TICKS_PER_SECOND), nanoseconds })
    }

    /// So many microseconds since 1970.
    #[must_use]
    pub fn from_micros(micros: i64) -> Self {
        // Below a million, so below a billion when a thousand times as many.
        let nanoseconds = u32::try_from(micros.rem_euclid(1_000_000) * 1_000).unwrap_or_default();
        Self { seconds: micros.div_euclid(1_000_000), nanoseconds }
    }

    /// Microseconds since 1970, rounded down. Always fits: years have four digits.
    #[must_use]
    pub fn micros(self) -> i64 {
        self.seconds * 1_000_000 + i64::from(self.nanoseconds / 1_000)
    }

    /// Year, month and day.
    #[must_use]
    pub fn date(self) -> (i64, i64, i64) {
        date(self.seconds.div_euclid(86_400))
    }
}

impl From<SystemTime> for Moment {
    /// What is too far away to be counted in seconds is as far as can be counted in microseconds.
    fn from(time: SystemTime) -> Self {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |before| -before),
        };
        Self::from_micros(micros)
    }
}

/// As [`Moment::parse`] reads it, to the millisecond: `2024-05-06T07:08:09.123Z`.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.seconds.div_euclid(86_400), self.seconds.rem_euclid(86_400));
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let milliseconds = self.nanoseconds / 1_000_000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
    }
}

/// Fixed numbers of digits between separators.
fn numbers<const N: usize>(text: &str, separator: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, expected) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        // Checked here because `parse` would take a sign.
        if part.len() != expected || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Splits the fraction of a second, in nanoseconds, from the zone behind it.
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

/// Seconds that local time is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    let (sign, rest) = match zone.as_bytes().first() {
        None => return Some(0),
        Some(b'Z') if zone.len() == 1 => return Some(0),
        Some(b'+') => (1, &zone[1..]),
        Some(b'-') => (-1, &zone[1..]),
        Some(_) => return None,
    };
    let [hours, minutes] = numbers(rest, ':', [2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The proleptic Gregorian calendar. Years are counted from March, so that the leap day is the last of its
/// year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 153 days in each five months from March; 719 468 days from 0000-03-01 to 1970-01-01.
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// Year, month and day of a day: [`days_since_1970`] the other way.
fn date(days: i64) -> (i64, i64, i64) {
    // Eras of 400 years have 146 097 days each; within one, years begin in March.
    let since = days + 719_468;
    let (era, day) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year, if month < 10 { month + 3 } else { month - 9 });
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Option<i64> {
        Moment::parse(text).map(Moment::micros)
    }

    #[test]
    fn known_moments_have_their_known_numbers() {
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
        ] {
            assert_eq!(micros(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn the_time_of_this_machine_is_counted_from_1970() {
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
    fn what_is_written_is_read_as_the_same_moment() {
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
    fn what_is_not_a_time_is_none() {
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
    fn every_day_of_nine_hundred_years_follows_the_day_before() {
        let mut expected = days_since_1970(1600, 1, 1);

        for year in 1600..2500 {
            for month in 1..=12 {
                for day in 1..=days_of_month(year, month) {
                    assert_eq!(days_since_1970(year, month, day), expected, "{year}-{month}-{day}");
                    assert_eq!(date(expected), (year, month, day));
                    expected += 1;
                }
            }
        }
    }

    #[test]
    fn the_first_digit_tells_where_ticks_are_counted_from() {
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
