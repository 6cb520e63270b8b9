//! Latencies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// A latency in milliseconds: `{"kind": "none"}`, `{"kind": "fixed", "milliseconds": 5}` or
/// `{"kind": "uniform", "from": 1, "to": 9}`. A merge patch to another kind leaves members of the old kind behind, so unknown
/// members are ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Latency {
    /// No added latency.
    #[default]
    None,
    /// Always the same.
    Fixed {
        /// How long.
        milliseconds: f64,
    },
    /// Evenly distributed.
    Uniform {
        /// The shortest.
        from: f64,
        /// The longest.
        to: f64,
    },
}

impl Latency {
    /// Draws a duration of at most an hour.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    pub fn sample(&self, random: &mut Random) -> Duration {
        /// An hour.
        const MAX_MILLISECONDS: f64 = 3_600_000.0;
        let milliseconds = match *self {
            Self::None => return Duration::ZERO,
            Self::Fixed { milliseconds } => milliseconds,
            Self::Uniform { from, to } => from + (to - from) * random.unit(),
        };
        // The cast turns NaN into 0.
        Duration::from_micros((milliseconds.clamp(0.0, MAX_MILLISECONDS) * 1_000.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_latency_delays_by_its_milliseconds() {
        let sample = Latency::Fixed { milliseconds: 12.5 }.sample(&mut Random::new(7, 2));

        assert_eq!(sample, Duration::from_micros(12_500));
    }

    #[test]
    fn a_uniform_latency_stays_between_its_ends() {
        let mut random = Random::new(7, 2);

        for latency in [Latency::Uniform { from: 5.0, to: 9.0 }, Latency::Uniform { from: 9.0, to: 5.0 }] {
            for _ in 0..1_000 {
                let sample = latency.sample(&mut random);
                assert!(
                    (Duration::from_millis(5)..=Duration::from_millis(9)).contains(&sample),
                    "{sample:?}"
                );
            }
        }
    }
}
