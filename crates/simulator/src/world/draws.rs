//! Random counts and choices.

use crate::random::Random;

/// The largest count drawn.
const MAX_COUNT: f64 = 10_000.0;
/// Guesses before a linear search; enough for a table that is half empty.
const GUESSES: usize = 8;

/// A random count with this average.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 10,000")]
pub(super) fn draw(random: &mut Random, average: f64) -> u32 {
    let average = if average.is_nan() { 0.0 } else { average.clamp(0.0, MAX_COUNT) };
    average as u32 + u32::from(random.chance(average.fract()))
}

/// A random number below `all` that fits, if one does.
pub(super) fn pick(random: &mut Random, all: u32, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let mut guess = || u32::try_from(random.below(u64::from(all))).ok().filter(|&guess| guess < all);
    for _ in 0..GUESSES {
        if let Some(found) = guess().filter(|&found| fits(found)) {
            return Some(found);
        }
    }
    let start = guess()?;
    (start..all).chain(0..start).find(|&number| fits(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_average_out_and_are_clamped() {
        let mut random = Random::new(1, 1);

        let total: u32 = (0..10_000).map(|_| draw(&mut random, 2.3)).sum();

        assert!((22_500..23_500).contains(&total), "{total}");
        for (average, count) in [(0.0, 0), (-1.0, 0), (f64::NAN, 0), (3.0, 3), (f64::INFINITY, 10_000)] {
            assert_eq!(draw(&mut random, average), count, "{average}");
        }
    }

    #[test]
    fn a_rare_match_is_found() {
        let mut random = Random::new(1, 1);

        assert_eq!(pick(&mut random, 100_000, |number| number == 77_777), Some(77_777));
        assert_eq!(pick(&mut random, 100, |_| false), None);
        assert_eq!(pick(&mut random, 0, |_| true), None);
    }
}
