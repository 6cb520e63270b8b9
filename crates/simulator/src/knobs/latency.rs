//! How long something takes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// How long something takes, in milliseconds. As JSON one object for all kinds, so that a merge patch leads from any to any other;
/// it leaves the members of the former kind behind, which are therefore ignored: `{"kind": "none"}`,
/// `{"kind": "fixed", "milliseconds": 5}`, `{"kind": "uniform", "from": 1, "to": 9}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Latency {
    /// No longer than it must.
    #[default]
    None,
    /// Always this.
    Fixed {
        /// How long.
        milliseconds: f64,
    },
    /// Evenly between the two.
    Uniform {
        /// The shortest.
        from: f64,
        /// The longest.
        to: f64,
    },
}

impl Latency {
    /// How long this one takes: never negative, at most an hour, whatever the knob says.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    pub fn sample(&self, random: &mut Random) -> Duration {
        /// An hour in milliseconds.
        const MAX_MILLISECONDS: f64 = 3_600_000.0;
        let milliseconds = match *self {
            Self::None => return Duration::ZERO,
            Self::Fixed { milliseconds } => milliseconds,
            Self::Uniform { from, to } => from + (to - from) * random.unit(),
        };
        // What is no number becomes 0 by the cast.
        Duration::from_micros((milliseconds.clamp(0.0, MAX_MILLISECONDS) * 1_000.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
