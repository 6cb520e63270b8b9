//! The provider's clock and its formats of time.
//!
//! All dates (versions, tokens, `Timestamp`, `Date`) come from one clock, which can be frozen, advanced or skewed, so that
//! tests need not wait for a token or code to expire.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use time::{Date, Month, UtcDateTime, format_description::BorrowedFormatItem, macros::format_description};

/// A moment in 100 ns since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticks(pub i64);

/// 100 ns in one second.
pub const SECOND: i64 = 10_000_000;
/// .NET counts from the year 1, Windows file times from 1601.
const DOTNET_EPOCH: i64 = 621_355_968_000_000_000;
const FILETIME_EPOCH: i64 = 116_444_736_000_000_000;

impl Ticks {
    /// Whole seconds since 1970.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(SECOND)
    }

    /// Later by this much.
    pub fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(ticks(time)))
    }

    /// Earlier by this much.
    pub fn minus(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(ticks(time)))
    }

    /// .NET ticks: 18 digits in this century.
    pub const fn dotnet(self) -> i64 {
        self.0 + DOTNET_EPOCH
    }

    /// Windows file time: 18 digits.
    pub const fn filetime(self) -> i64 {
        self.0 + FILETIME_EPOCH
    }

    /// `2026-11-15T09:00:00.1234567Z`, the format of records.
    pub fn iso(self) -> String {
        self.written(format_description!(
            version = 2,
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:7]Z"
        ))
    }

    /// `2026-11-15T09:00:00.123Z`, the format of payroll.
    pub fn iso_milliseconds(self) -> String {
        self.written(format_description!(
            version = 2,
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
        ))
    }

    /// `11/15/2026 9:00:00 AM`, the format of `Version` in events, which is not ISO 8601.
    pub fn month_first(self) -> String {
        self.written(format_description!(
            version = 2,
            "[month padding:none]/[day padding:none]/[year] [hour repr:12 padding:none]:[minute]:[second] [period]"
        ))
    }

    /// `Sun, 15 Nov 2026 09:00:00 GMT`, the format of the `Date` header.
    pub fn http_date(self) -> String {
        self.written(format_description!(
            version = 2,
            "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
        ))
    }

    /// A moment outside the calendar is formatted as its first or last moment.
    fn written(self, format: &[BorrowedFormatItem<'_>]) -> String {
        let nearest = if self.0 < 0 { UtcDateTime::MIN } else { UtcDateTime::MAX };
        let moment = UtcDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 100).unwrap_or(nearest);
        // Every moment has all components of these formats.
        moment.format(format).unwrap_or_default()
    }
}

/// A duration in 100 ns.
pub fn ticks(time: Duration) -> i64 {
    i64::try_from(time.as_nanos() / 100).unwrap_or(i64::MAX)
}

/// Midnight UTC of a date; `None` if there is no such day.
pub fn midnight(year: i32, month: u8, day: u8) -> Option<Ticks> {
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day).ok()?;
    (year > 0).then(|| Ticks(date.midnight().as_utc().unix_timestamp() * SECOND))
}

/// The provider's clock.
#[derive(Debug)]
pub struct Clock {
    /// The moment at which a frozen clock stands.
    frozen: Option<Ticks>,
    /// How far it is ahead of the machine's clock, or of the frozen moment.
    offset: AtomicI64,
    /// The last moment given to a change; no two changes share one.
    last_change: AtomicI64,
    /// How far changes are dated ahead of the clock, after it was set back past one of them.
    ahead: AtomicI64,
}

impl Clock {
    /// A clock that runs with the machine's, or is frozen until moved.
    pub fn new(frozen: Option<Ticks>) -> Self {
        Self {
            frozen,
            offset: AtomicI64::new(0),
            last_change: AtomicI64::new(i64::MIN),
            ahead: AtomicI64::new(0),
        }
    }

    /// The current time.
    pub fn now(&self) -> Ticks {
        let base = self.frozen.unwrap_or_else(|| Ticks(UNIX_EPOCH.elapsed().map_or(0, ticks)));
        Ticks(base.0.saturating_add(self.offset.load(Ordering::Relaxed)))
    }

    /// The moment of the next change: now, but later than every earlier change. With a frozen clock changes still get distinct
    /// moments; after the clock was set back they continue from the last change, at the clock's speed.
    pub fn change(&self) -> Ticks {
        let now = self.unless_set_back();
        let next = |last: i64| now.max(last.saturating_add(1));
        let update = |last| Some(next(last));
        let last = self.last_change.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        Ticks(next(last.unwrap_or_else(|last| last)))
    }

    /// The current time on the scale by which changes are dated; never before the last change. Reads of an earlier state
    /// count back from here.
    pub fn latest(&self) -> Ticks {
        Ticks(self.unless_set_back().max(self.last_change.load(Ordering::Relaxed)))
    }

    /// Advances the clock; a negative value sets it back.
    pub fn advance(&self, by: i64) {
        self.offset.fetch_add(by, Ordering::Relaxed);
        if by < 0 {
            self.look_ahead();
        }
    }

    /// Sets how far the clock is ahead of its base.
    pub fn skew(&self, by: i64) {
        self.offset.store(by, Ordering::Relaxed);
        self.look_ahead();
    }

    fn unless_set_back(&self) -> i64 {
        self.now().0.saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    fn look_ahead(&self) {
        let last = self.last_change.load(Ordering::Relaxed);
        self.ahead.store(last.saturating_sub(self.now().0).max(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_each_of_the_providers_formats() {
        let moment =
            Ticks(midnight(2026, 11, 15).unwrap().0 + (13 * 3_600 + 5 * 60 + 9) * SECOND + 1_234_567);

        assert_eq!(moment.iso(), "2026-11-15T13:05:09.1234567Z");
        assert_eq!(moment.iso_milliseconds(), "2026-11-15T13:05:09.123Z");
        assert_eq!(moment.month_first(), "11/15/2026 1:05:09 PM");
        assert_eq!(moment.http_date(), "Sun, 15 Nov 2026 13:05:09 GMT");
    }

    #[test]
    fn both_tick_counts_have_eighteen_digits_and_the_known_values() {
        let epoch = Ticks(0);
        let moment = midnight(2026, 11, 15).unwrap();

        assert_eq!(epoch.dotnet(), 621_355_968_000_000_000);
        assert_eq!(epoch.filetime(), 116_444_736_000_000_000);
        assert_eq!(moment.dotnet().to_string().len(), 18);
        assert!(moment.filetime().to_string().starts_with("134"));
    }

    #[test]
    fn only_days_that_exist_have_a_midnight() {
        assert_eq!(midnight(1970, 1, 1), Some(Ticks(0)));
        assert_eq!(midnight(2024, 2, 29).unwrap().iso(), "2024-02-29T00:00:00.0000000Z");
        for (year, month, day) in [(2026, 2, 29), (2026, 4, 31), (2026, 13, 1), (2026, 0, 1), (0, 1, 1)] {
            assert_eq!(midnight(year, month, day), None, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn a_frozen_clock_dates_changes_apart_and_can_be_moved() {
        let clock = Clock::new(Some(Ticks(1_000)));

        assert_eq!((clock.change(), clock.change(), clock.now()), (Ticks(1_000), Ticks(1_001), Ticks(1_000)));
        clock.advance(5_000);
        assert_eq!((clock.now(), clock.change()), (Ticks(6_000), Ticks(6_000)));
        clock.skew(-500);
        assert_eq!((clock.now(), clock.change()), (Ticks(500), Ticks(6_001)));
    }
    #[test]
    fn changes_stay_in_order_when_the_clock_is_set_back() {
        let clock = Clock::new(Some(Ticks(1_000)));
        assert_eq!(clock.latest(), Ticks(1_000));
        clock.change();
        clock.change();
        assert_eq!((clock.now(), clock.latest()), (Ticks(1_000), Ticks(1_001)));

        clock.advance(-600);
        assert_eq!((clock.now(), clock.latest(), clock.change()), (Ticks(400), Ticks(1_001), Ticks(1_002)));
        clock.advance(50);
        assert_eq!((clock.now(), clock.latest(), clock.change()), (Ticks(450), Ticks(1_051), Ticks(1_051)));
        clock.skew(500);

        assert_eq!((clock.now(), clock.latest(), clock.change()), (Ticks(1_500), Ticks(1_500), Ticks(1_500)));
    }

    #[test]
    fn a_clock_set_back_before_any_change_dates_the_first() {
        let clock = Clock::new(Some(Ticks(1_000)));

        clock.skew(-600);

        assert_eq!((clock.latest(), clock.change()), (Ticks(400), Ticks(400)));
    }
}
