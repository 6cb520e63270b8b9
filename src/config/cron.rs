//! Cron expressions of five fields, in UTC: when a run starts.
//!
//! Minute, hour, day of month, month, day of week. A field is a list of `*`, `n` and `n-m`, each with an optional `/step`; `n/step`
//! extends to the highest value; 0 and 7 are Sunday. If both days are restricted, a day that matches either counts; if one of them
//! starts with `*`, both must match. This is what cron does.
//!
//! Not `croner`: it reads `*/2` beside a day of the week differently, and accepts `?`, `L` and `@daily`.
//!
//! An expression that never matches, such as 30 February, has no next time.

use model::Moment;

use super::key::Violation;

const MINUTE: i64 = 60_000_000;
const DAY: i64 = 86_400_000_000;
/// Within this many days every date has fallen on every weekday that it can fall on: 29 February needs 40 years around a century
/// without one.
const SEARCH_DAYS: i64 = 366 * 41;

/// A parsed cron expression: one bit per matching value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day that matches one of `days` and `weekdays` is enough.
    either: bool,
}

impl Schedule {
    pub(crate) fn parse(expression: &str) -> Result<Self, Violation> {
        let fields: Vec<&str> = expression.split_whitespace().collect();
        let &[minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err("it does not have five fields".into());
        };
        Ok(Self {
            either: !days.starts_with('*') && !weekdays.starts_with('*'),
            minutes: field(minutes, 0, 59).ok_or("its minute is invalid")?,
            hours: field(hours, 0, 23).ok_or("its hour is invalid")?,
            days: field(days, 1, 31).ok_or("its day of month is invalid")?,
            months: field(months, 1, 12).ok_or("its month is invalid")?,
            // 7 is 0.
            weekdays: field(weekdays, 0, 7)
                .map(|set| set | set >> 7 & 1)
                .ok_or("its day of week is invalid")?,
        })
    }

    /// The first matching moment after this one; `None` if there is none. Both are microseconds since 1970.
    #[must_use]
    pub fn next(&self, after_micros: i64) -> Option<i64> {
        let first = after_micros.div_euclid(MINUTE).checked_add(1)?.checked_mul(MINUTE)?;
        let today = first.div_euclid(DAY);
        (today..today.checked_add(SEARCH_DAYS)?).find_map(|day| {
            if !self.has_day(day) {
                return None;
            }
            let begin = day.checked_mul(DAY)?;
            let from = (first - begin).max(0) / MINUTE;
            let minute = (from..24 * 60)
                .find(|minute| has(self.hours, minute / 60) && has(self.minutes, minute % 60))?;
            begin.checked_add(minute * MINUTE)
        })
    }

    /// Whether a day, counted from 1970, matches.
    fn has_day(&self, day: i64) -> bool {
        let (month, of_month) = Moment::from_micros(day.saturating_mul(DAY)).month_and_day();
        // The first day of 1970 was a Thursday.
        let (of_month, of_week) =
            (has(self.days, of_month.into()), has(self.weekdays, (day + 4).rem_euclid(7)));
        let fits = if self.either { of_month || of_week } else { of_month && of_week };
        fits && has(self.months, month.into())
    }
}

fn has(set: u64, number: i64) -> bool {
    set >> number & 1 == 1
}

/// One field, from `low` to `high`.
fn field(text: &str, low: u32, high: u32) -> Option<u64> {
    let number = |text: &str| text.parse().ok().filter(|number| (low..=high).contains(number));
    text.split(',').try_fold(0, |set, part| {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None if range == "*" => (low, high),
            None => (number(range)?, if step.is_some() { high } else { number(range)? }),
        };
        let step = step.map_or(Some(1), |step| step.parse().ok().filter(|step| (1..=high).contains(step)))?;
        (from <= to).then(|| (from..=to).step_by(step as usize).fold(set, |set, number| set | 1 << number))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> i64 {
        Moment::parse(text).unwrap().micros()
    }

    fn next_text(expression: &str, after: &str) -> Option<String> {
        next(expression, at(after)).map(|micros| Moment::from_micros(micros).to_string())
    }

    fn next(expression: &str, after: i64) -> Option<i64> {
        Schedule::parse(expression).ok()?.next(after)
    }

    #[test]
    fn next_time_matches_the_expression() {
        // 2024-05-06 is a Monday.
        for (expression, after, expected) in [
            ("* * * * *", "2024-05-06T07:08:09Z", "2024-05-06T07:09:00.000Z"),
            ("* * * * *", "2024-05-06T07:08:00Z", "2024-05-06T07:09:00.000Z"),
            ("30 3 * * 0", "2024-05-06T07:08:09Z", "2024-05-12T03:30:00.000Z"),
            ("30 3 * * 7", "2024-05-06T07:08:09Z", "2024-05-12T03:30:00.000Z"),
            ("30 3 * * 0", "2024-05-12T03:29:59.999Z", "2024-05-12T03:30:00.000Z"),
            ("30 3 * * 0", "2024-05-12T03:30:00Z", "2024-05-19T03:30:00.000Z"),
            ("*/15 * * * *", "2024-05-06T23:45:00Z", "2024-05-07T00:00:00.000Z"),
            ("7/20 * * * *", "2024-05-06T07:08:09Z", "2024-05-06T07:27:00.000Z"),
            ("10-20/5,50 * * * *", "2024-05-06T07:20:00Z", "2024-05-06T07:50:00.000Z"),
            ("0 0 1 1 *", "2024-05-06T07:08:09Z", "2025-01-01T00:00:00.000Z"),
            ("0 0 1 1-3 *", "2024-05-06T07:08:09Z", "2025-01-01T00:00:00.000Z"),
            ("0 0 31 * *", "2024-05-31T00:00:00Z", "2024-07-31T00:00:00.000Z"),
            ("0 12 * * 1-5", "2024-05-10T12:00:00Z", "2024-05-13T12:00:00.000Z"),
            ("0 12 * * 5-7", "2024-05-11T12:00:00Z", "2024-05-12T12:00:00.000Z"),
            ("0 0 29 2 *", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00.000Z"),
            ("0 0 29 2 *", "2096-02-29T00:00:00Z", "2104-02-29T00:00:00.000Z"),
            ("59 23 31 12 *", "1969-12-31T23:58:00Z", "1969-12-31T23:59:00.000Z"),
        ] {
            assert_eq!(next_text(expression, after).as_deref(), Some(expected), "{expression} after {after}");
        }
    }

    #[test]
    fn either_restricted_day_matches_but_a_star_needs_both() {
        let after = "2024-05-06T07:08:09Z";

        assert_eq!(next_text("0 0 13 * 5", after).as_deref(), Some("2024-05-10T00:00:00.000Z"));
        assert_eq!(next_text("0 0 8 * 5", after).as_deref(), Some("2024-05-08T00:00:00.000Z"));
        assert_eq!(next_text("0 0 */2 * 5", after).as_deref(), Some("2024-05-17T00:00:00.000Z"));
        assert_eq!(next_text("0 0 13 * *", after).as_deref(), Some("2024-05-13T00:00:00.000Z"));
    }

    #[test]
    fn impossible_or_invalid_expression_has_no_next_time() {
        for expression in [
            "0 0 30 2 *",
            "0 0 31 4,6,9,11 *",
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            "*/60 * * * *",
            "x * * * *",
            "mon * * * *",
            "1- * * * *",
            "-1 * * * *",
            ", * * * *",
        ] {
            assert_eq!(next_text(expression, "2024-05-06T07:08:09Z"), None, "{expression}");
        }
    }

    #[test]
    fn extreme_times_do_not_panic() {
        for after in [i64::MIN, i64::MAX, i64::MAX - DAY] {
            let found = next("0 0 29 2 *", after);
            assert!(found.is_none_or(|found| found > after), "{found:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(expression in "[-*/,0-9 a-z]{0,30}", after: i64) {
            let found = next(&expression, after);
            prop_assert!(found.is_none_or(|found| found > after));
        }

        #[test]
        fn next_time_is_the_first_matching_minute(
            minutes in proptest::collection::btree_set(0_i64..60, 1..4),
            hours in proptest::collection::btree_set(0_i64..24, 1..4),
            after in 0_i64..4_000_000_000_000_000,
        ) {
            let list = |set: &std::collections::BTreeSet<i64>| set.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
            let found = next(&format!("{} {} * * *", list(&minutes), list(&hours)), after).unwrap();

            let fits = |micros: i64| {
                let minute = micros / MINUTE;
                minutes.contains(&(minute % 60)) && hours.contains(&(minute / 60 % 24))
            };
            let expected = (after / MINUTE + 1..).map(|minute| minute * MINUTE).find(|micros| fits(*micros));
            prop_assert_eq!(Some(found), expected);
        }
    }
}
